"""What a run trains on: the same questions for every method, nested fractions, samples of nothing else."""

import copy
import json
from types import SimpleNamespace

import pytest

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.prepare import OVERFLOWS_IN_FP16, load_model
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import _peak, _report, _take
from swep_ds.ranks.group import process_group
from swep_ds.training.checkpoints import TrainState
from tests.support import tiny, tiny_models
from tests.support.tiny_run import squad


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """train.json, and two samples of each of its questions in augmented.json."""
    path = tmp_path_factory.mktemp("run")
    document = squad(100)
    (path / "train.json").write_text(json.dumps(document))
    for article in document["data"]:
        paragraphs = [json.loads(json.dumps(paragraph)) for paragraph in article["paragraphs"] for _ in range(2)]
        for number, paragraph in enumerate(paragraphs):
            paragraph["context"] += " again"
            paragraph["qas"][0]["id"] += f"-ssmba{number % 2}"
        article["paragraphs"] = paragraphs
    (path / "augmented.json").write_text(json.dumps(document))
    return path


def training(folder, method: str = "mle", **data) -> list[Example]:
    data = {"train": str(folder / "train.json"), "eval": {"test": str(folder / "train.json")}, **data}
    if method == "ssmba":
        data["augmented"] = str(folder / "augmented.json")
    recipe = Recipe.model_validate({"model": {"name": "m"}, "method": {"name": method}, "data": data, "seed": 3})
    return load_examples(recipe)[0]


def originals(examples: list[Example]) -> list[Example]:
    return [example for example in examples if "-ssmba" not in example.id]


@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_fractions_are_nested_and_the_same_for_every_method(folder, holdout):
    whole = training(folder, holdout_fraction=holdout)
    larger = whole
    for fraction in (0.5, 0.1):
        chosen = training(folder, train_fraction=fraction, holdout_fraction=holdout)
        assert len(chosen) == round(fraction * len(whole))
        assert {e.id for e in chosen} < {e.id for e in larger}
        for method in ("mle", "swep", "ssmba"):
            examples = training(folder, method, train_fraction=fraction, holdout_fraction=holdout)
            assert originals(examples) == chosen
        larger = chosen


@pytest.mark.parametrize("data", [{}, {"train_fraction": 0.1}, {"max_train_examples": 7}, {"holdout_fraction": 0.3}])
def test_samples_follow_their_questions(folder, data):
    plain = training(folder, **data)
    for method in ("ssmba", "swep"):
        examples = training(folder, method, augmented=str(folder / "augmented.json"), **data)
        samples = examples[len(plain) :]
        assert examples[: len(plain)] == plain
        assert [e.id for e in samples] == [f"{e.id}-ssmba{k}" for e in plain for k in range(2)]
        assert samples[0].context == plain[0].context + " again"
        assert samples[0].span == plain[0].span


def test_samples_that_are_missing_broken_or_of_other_data(folder):
    for source, said in (
        ("nowhere.json", r"^data\.augmented: .*nowhere\.json.*no such file"),
        (str(folder / "train.json"), r"^data\.augmented: none of its 100 questions is a sample"),
    ):
        with pytest.raises(InputError, match=said):
            training(folder, augmented=source)
    broken = json.loads((folder / "augmented.json").read_text())
    broken["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] += 1
    (folder / "broken.json").write_text(json.dumps(broken))
    with pytest.raises(InputError, match=r"^data\.augmented: .*broken\.json: question 'q0-0-ssmba0': the answer"):
        training(folder, augmented=str(folder / "broken.json"))


def test_a_service_that_is_not_installed_is_refused_before_the_folder_is_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr("swep_ds.training.tracking.find_spec", lambda _: None)
    tree = {"model": {"name": "m"}, "method": {"name": "mle"}, "data": {"train": "t", "eval": {}}}
    recipe, path = Recipe.model_validate(tree | {"tracking": {"to": "tensorboard"}}), tmp_path / "run"
    said = r"^tracking\.to: tensorboard is not installed: pip install tensorboard, or set it to off$"
    with process_group(), RunFolder(path) as folder, pytest.raises(InputError, match=said):
        _take(folder, recipe, "auto")
    assert not path.exists()


def test_a_report_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
    def report(_):
        raise KeyError("of the test")

    finished = []
    monkeypatch.setattr("swep_ds.ranks.group.rank", lambda: 0)
    _report(report, RunFolder(tmp_path / "a run"), SimpleNamespace(finish=lambda: finished.append(True)), print)
    assert finished == [True]
    said = "no report.html (KeyError: 'of the test'); the run is done, and `swep-ds report '"
    assert said in caplog.text


def model_recipe(folder, **train) -> Recipe:
    data = {"train": "t", "eval": {}, "max_length": 48}
    tree = {"task": "generative", "model": {"name": str(folder)}, "method": {"name": "mle"}, "data": data}
    return Recipe.model_validate(tree | {"train": train})


@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_what_overflows_in_fp16_is_refused_by_its_config(kind, tmp_path):
    assert kind in OVERFLOWS_IN_FP16
    config = tiny_models.config("t5").to_dict() | {"model_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(config))  # no weights there
    said = f"^train.precision fp16: activations of {kind} overflow in it .*: set it to autocast, or to bf16 or fp32$"
    with pytest.raises(InputError, match=said):
        load_model(model_recipe(tmp_path, precision="fp16"), None, str(tmp_path))


def test_another_models_tokenizer_is_refused(tmp_path):
    tiny_models.model("t5", vocab_size=200).save_pretrained(tmp_path)
    load_model(model_recipe(tmp_path), copy.deepcopy(tiny.wordpiece()), str(tmp_path))
    with pytest.raises(InputError, match=r"^model\.name .*: its tokenizer has more tokens than the model"):
        load_model(model_recipe(tmp_path), copy.deepcopy(tiny.byte_bpe()), str(tmp_path))


def test_a_start_without_an_update_reports_the_memory_of_the_training(tmp_path):
    line = {"update": 1, "memory_mib": [2.0**20, 2.0**21]}  # more than this process will have
    (tmp_path / "health.jsonl").write_text(json.dumps(line) + "\n")
    with process_group():
        assert _peak(RunFolder(tmp_path), TrainState(updates=2)) == 2**41
        assert 0 < _peak(RunFolder(tmp_path), TrainState()) < 2**41
