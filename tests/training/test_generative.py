"""Generated answers: tiny T5 at ZeRO 0, 2 and 3, its beam search on one rank and on two, and what is exported."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import Adafactor, AutoModelForSeq2SeqLM, AutoTokenizer

from swep_ds.data.batches import IGNORED
from swep_ds.pipeline.checks import read_and_check
from swep_ds.pipeline.prepare import prepare as prepare_job
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import process_group
from tests.support.engine_runs import train_runs, weights
from tests.support.tiny_run import ds_config, losses, make_runs, metrics, prepare

pytestmark = pytest.mark.slow

UPDATES = 4
ADAFACTOR = {"train.optimizer": "adafactor", "train.schedule": "constant", "train.weight_decay": 0.1}
# name, ranks, ZeRO stage and settings: of runs with answers, then of trainings only
WHOLE = [("tied", 1, 0, {}), ("tied", 2, 3, {}), ("untied", 1, 0, {}), ("untied", 2, 3, {})]
TRAININGS = [
    ("joint", 1, 2, {"train.execution": "joint", "train.pad_to_multiple_of": 8}),
    ("autocast", 1, 3, {"train.precision": "autocast"}),
    ("adafactor", 1, 0, ADAFACTOR | {"method.name": "mle"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("generative")
    for name, architecture in (("tied", "t5"), ("untied", "t5-v1.1")):
        (path / name).mkdir()
        prepare(path / name, architecture=architecture, num_layers=1, num_decoder_layers=1)
    return path


def asked(folder: Path, name: str, ranks: int, stage: int, settings: dict) -> dict:
    settings = settings | {"train.max_updates": UPDATES, "train.micro_batch_size": 8 // ranks}
    settings["data.max_target_length"] = 12
    return {
        "recipe": str(folder / ("untied" if name == "untied" else "tied") / "recipe.yaml"),
        "set": [f"{key}={json.dumps(value)}" for key, value in settings.items()],
        "ds_config": str(ds_config(folder, stage)),
        "output_dir": str(folder / f"{name}-on{ranks}"),
        "file_bytes": 7_000,
    }


@pytest.fixture(scope="module")
def finished(folder) -> dict[tuple[str, int], Path]:
    """The folders of all runs by name and number of ranks."""
    for ranks in (1, 2):
        whole = [asked(folder, *run) for run in WHOLE if run[1] == ranks]
        (folder / f"said{ranks}").write_text(make_runs(folder, whole, ranks=ranks).stdout)
    train_runs(folder, [asked(folder, *run) for run in TRAININGS], 1)
    return {(name, ranks): folder / f"{name}-on{ranks}" for name, ranks, *_ in WHOLE + TRAININGS}


def predictions(run: Path) -> dict[str, str]:
    return json.loads((run / "predictions" / "test.json").read_text())


def test_split_and_joint_execution_stages_and_world_sizes_agree_and_autocast_is_close(finished, folder):
    before = load_file(folder / "tied" / "model" / "model.safetensors")
    after = weights(finished["joint", 1])
    # a wrong update would show
    assert all((after[f"qa.model.{n}"] - value).abs().max() > 1e-3 for n, value in before.items() if value.dim() == 2)
    answers = predictions(finished["tied", 1])
    assert len(answers) == 9
    assert any(answers.values())
    assert predictions(finished["tied", 2]) == answers  # by beam search
    expected = {key: value for key, value in metrics(finished["tied", 1])[0].items() if "_nll_" in key}
    assert len(expected) == 6  # what the noise does
    for run in (finished["joint", 1], finished["tied", 2]):
        assert losses(run) == pytest.approx(losses(finished["tied", 1]), rel=1e-5)
        first = metrics(run)[0]
        assert {key: first[key] for key in expected} == pytest.approx(expected, rel=1e-4)
    autocast = losses(finished["autocast", 1])
    assert autocast == pytest.approx(losses(finished["tied", 1]), rel=0.02)
    in_float32 = accelerator.emulates(torch.bfloat16)  # a processor without instructions for it
    assert (autocast == pytest.approx(losses(finished["tied", 1]), rel=1e-5)) == in_float32


def test_an_output_layer_of_its_own_is_trained_and_exported(finished, folder):
    """T5 v1.1, Flan and mT5 have one; ZeRO-3 on two ranks against one rank alone."""
    whole, sharded = finished["untied", 1], finished["untied", 2]
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-5)
    assert predictions(sharded) == predictions(whole)
    confidences = [json.loads((run / "confidence" / "test.json").read_text()) for run in (whole, sharded)]
    assert confidences[1] == pytest.approx(confidences[0], rel=1e-3)
    assert all(0 < confidence < 1 for confidence in confidences[0].values())
    heads = []
    for run in (folder / "untied", whole, sharded):
        model, report = AutoModelForSeq2SeqLM.from_pretrained(run / "model", output_loading_info=True)
        assert not any(report.values())
        heads.append(model.lm_head.weight)
        assert heads[-1] is not model.shared.weight
    runs = (finished["tied", 2], whole, sharded)
    configs = [json.loads((run / "model" / "config.json").read_text()) for run in runs]
    assert [config["tie_word_embeddings"] for config in configs] == [True, False, False]
    before, after, spread = heads
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(spread, after, rtol=0, atol=1e-5)


def test_adafactor_is_transformers_with_a_constant_rate(finished, folder):
    """Against a plain loop of Hugging Face's model and optimizer, on the windows of the run's updates."""
    expected = []
    with process_group():
        run = asked(folder, *TRAININGS[-1])
        batches = prepare_job(read_and_check(Recipe.load(run["recipe"], run["set"]), run["ds_config"])).batches
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "tied" / "model").train()
    optimizer = Adafactor(model.parameters(), lr=1e-3, weight_decay=0.1, scale_parameter=False, relative_step=False)
    for update in range(UPDATES):
        batch = batches[update]
        labels = batch.target_ids
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).logits
        per_token = cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
        loss = (per_token.sum(1) / (labels != IGNORED).sum(1)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    run = finished["adafactor", 1]
    assert losses(run) == pytest.approx(expected, rel=1e-5)
    assert expected[0] - expected[-1] > 0.01
    assert {line["learning_rate"] for line in metrics(run)} == {1e-3}


def test_the_export_answers_without_this_package(finished, folder):
    """transformers alone, in a strict load of several files, generates what the run predicted."""
    run = finished["tied", 2]
    assert len(list((run / "model").glob("model-0000?-of-0000?.safetensors"))) >= 4
    model, report = AutoModelForSeq2SeqLM.from_pretrained(run / "model", output_loading_info=True)
    assert not any(report.values())
    assert model.get_input_embeddings().weight is model.lm_head.weight  # tied
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    compared = 0
    for article in json.loads((folder / "tied" / "test.json").read_text())["data"]:
        for paragraph in article["paragraphs"]:
            [qa] = paragraph["qas"]
            parts = ("question:", qa["question"], "context:", paragraph["context"])
            ids = [tokenizer(part, add_special_tokens=False).input_ids for part in parts]
            first, last = tokenizer("").input_ids
            inputs = torch.tensor([[first, *ids[0], *ids[1][:16], *ids[2], *ids[3], last]])
            if len(ids[3]) < 18 and inputs.shape[1] <= 48:  # one window
                answers = model.eval().generate(inputs)  # with the generation settings of the run
                text = tokenizer.decode(answers[0], skip_special_tokens=True).strip()
                assert text == predictions(run)[qa["id"]]
                compared += 1
    assert compared
    assert re.search(r"\d+ questions cut, \d+ answers cut\): ", (folder / "said2").read_text())
