"""The files that a run reads, and their checksums."""

import gzip
import hashlib
import json

import datasets
import pytest

from swep_ds.analysis.answered import read_answered
from swep_ds.analysis.trained_run import TrainedRun
from swep_ds.data.readers import read_examples
from swep_ds.models.hub import model_checksum
from swep_ds.pipeline.examples import validation_examples
from swep_ds.pipeline.inputs import input_checksums, input_files
from swep_ds.pipeline.recipe import Recipe
from tests.support import tiny_run
from tests.support.bad_input import refused
from tests.support.finished import finished


def test_every_field_that_names_local_files_has_their_checksum(tmp_path):
    options = ["data.eval.quick=quickstart:news", "data.eval.hub=owner/name", f"data.eval.gone={tmp_path}/gone.json"]
    options += [f"data.augmented={tmp_path}/test.json", f"pretrain.train={tmp_path}/train.json"]
    path = tiny_run.prepare(tmp_path)
    files = [tmp_path / name for name in ("train.json", "test.json")]
    train, test = (hashlib.sha256(file.read_bytes()).hexdigest()[:32] for file in files)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(files[1].read_bytes()))  # with the time in its header
    recipe = Recipe.load(str(path), [*options, f"data.eval.packed={packed}"])
    expected = {"data.train": train, "data.augmented": test, "data.eval.test": test, "pretrain.train": train}
    expected |= {"data.eval.packed": test, "model.name": model_checksum(str(tmp_path / "model"))}
    assert input_checksums(recipe) == expected


@pytest.mark.parametrize("saved", [True, False])
def test_a_folder_stands_for_the_data_files_in_it(tmp_path, saved):
    folder = tmp_path / "data"
    [article] = tiny_run.squad(4)["data"][:1]
    if saved:
        rows = [{"id": "1", "question": "Who?", "context": "Ann.", "answers": {"text": ["Ann"], "answer_start": [0]}}]
        datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(folder)
        datasets.load_from_disk(str(folder))["train"].map(dict, load_from_cache_file=False)  # leaves a cache there
        assert list(folder.glob("train/cache-*"))
    else:
        folder.mkdir()
        (folder / "train.json").write_text(json.dumps({"data": [article]}))
        (folder / "test.json").write_text("not read to train")
        (folder / "notes.txt").write_text("read by nobody")
    recipe = Recipe.load("quickstart", [f"data.train={folder}", "data.holdout_fraction=0"])
    names = ["data-00000-of-00001.arrow"] if saved else ["train.json"]
    assert [file.name for file in input_files(recipe)["data.train"]] == names
    assert read_examples(str(folder), training=True)


def test_what_a_run_read_is_compared_before_anything_is_computed_from_it_again(tmp_path):
    folder = finished(tmp_path)
    recipe = Recipe.load(str(folder / "recipe.yaml"))
    selecting = Recipe.load(str(folder / "recipe.yaml"), ["eval.select_on=test"])
    run = TrainedRun.load(folder)
    assert run.test_examples()
    assert run.training_examples()

    document = json.loads((tmp_path / "test.json").read_text())
    for paragraph in document["data"][0]["paragraphs"]:  # the same ids, but another answer
        paragraph["qas"][0]["answers"] = [{"text": paragraph["context"].split()[0], "answer_start": 0}]
    (tmp_path / "test.json").write_text(json.dumps(document))
    said = f"data.eval.test {tmp_path}/test.json: has changed since {folder} read it: restore it, or train again"
    assert refused(run.test_examples).startswith(said)
    assert refused(read_answered, folder, recipe, "test").startswith(said)
    assert refused(validation_examples, selecting, folder).startswith(said)
    assert run.training_examples()
    (tmp_path / "train.json").write_text(json.dumps(document))
    assert refused(run.training_examples).startswith(f"data.train {tmp_path}/train.json: has changed")
