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
from swep_ds.pipeline.prepare import prepare as prepare_job
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from tests.support.tiny_run import ROOT, ds_config, losses, make_runs, metrics, prepare

pytestmark = pytest.mark.slow

STAGES, UPDATES = (0, 2, 3), 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("generative")
    prepare(path, architecture="t5")
    (path / "untied").mkdir()
    prepare(path / "untied", architecture="t5-v1.1")
    return path


@pytest.fixture(scope="module")
def finished(folder) -> dict[tuple[str, int], Path]:
    """The folders of all runs by name and world size."""
    folders = {}
    for world_size in (1, 2):
        runs = []

        def add(name: str, config: Path, runs=runs, world_size=world_size, **settings) -> None:
            output = folder / f"{name}-on{world_size}"
            settings |= {"train.max_updates": UPDATES, "train.micro_batch_size": 8 // world_size}
            settings |= {"data.max_target_length": 12}
            overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
            start = folder / "untied" if name.startswith("untied") else folder
            run = {"recipe": str(start / "recipe.yaml"), "set": overrides}
            runs.append(run | {"ds_config": str(config), "output_dir": str(output)})
            if world_size == 2:
                runs[-1]["file_bytes"] = 10_000
            folders[name, world_size] = output

        if world_size == 1:
            add("zero0-joint", ds_config(folder, 0), **{"train.execution": "joint"})
            add("zero2_offload", ROOT / "ds_configs" / "zero2_offload.json")
            adafactor = {"train.optimizer": "adafactor", "train.schedule": "constant", "train.weight_decay": 0.1}
            add("adafactor", ds_config(folder, 0), **adafactor | {"method.name": "mle"})
            add("bf16", ds_config(folder, 2), **{"train.precision": "bf16"})
            add("untied-zero0", ds_config(folder, 0))
        for stage in STAGES:
            add(f"zero{stage}", ds_config(folder, stage))
        if world_size == 2:
            add("untied-zero3", ds_config(folder, 3))
        if world_size == 1:
            add("zero3_offload", ROOT / "ds_configs" / "zero3_offload.json")
            for stage in (0, 2, 3):
                add(f"zero{stage}-autocast", ds_config(folder, stage), **{"train.precision": "autocast"})
        said = make_runs(folder, runs, ranks=world_size).stdout
        (folder / f"said{world_size}").write_text(said)
    return folders


def predictions(run: Path) -> dict[str, str]:
    return json.loads((run / "predictions" / "test.json").read_text())


def test_the_runs_are_worth_comparing(finished, folder):
    before, after = (load_file(run / "model" / "model.safetensors") for run in (folder, finished["zero0", 1]))
    assert all((after[name] - value).abs().max() > 1e-3 for name, value in before.items() if value.dim() == 2)
    answers = predictions(finished["zero0", 1])
    assert len(answers) == 9
    assert any(answers.values())


@pytest.mark.parametrize(
    ("name", "world_size"),
    [("zero0-joint", 1), ("zero2_offload", 1), ("zero3_offload", 1)]
    + [(f"zero{s}", n) for s in STAGES for n in (1, 2)],
)
def test_stages_offload_and_world_sizes_agree(finished, name, world_size):
    assert losses(finished[name, world_size]) == pytest.approx(losses(finished["zero0", 1]), rel=1e-5)
    first, expected = (metrics(finished[run])[0] for run in ((name, world_size), ("zero0", 1)))
    compared = [key for key in expected if "_nll_" in key]  # what the noise does
    assert len(compared) == 6
    for key in compared:
        assert first[key] == pytest.approx(expected[key], rel=1e-4), key


def test_an_output_layer_of_its_own_is_trained_and_exported(finished, folder):
    """T5 v1.1, Flan and mT5 have one; ZeRO-3 on two ranks against one rank alone."""
    whole, sharded = finished["untied-zero0", 1], finished["untied-zero3", 2]
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-5)
    assert predictions(sharded) == predictions(whole)
    confidences = [json.loads((run / "confidence" / "test.json").read_text()) for run in (whole, sharded)]
    assert confidences[1] == pytest.approx(confidences[0], rel=1e-3)
    assert all(0 < confidence < 1 for confidence in confidences[0].values())
    models = []
    for run in (folder / "untied", whole, sharded):
        model, report = AutoModelForSeq2SeqLM.from_pretrained(run / "model", output_loading_info=True)
        assert not any(report.values())
        assert model.lm_head.weight is not model.shared.weight
        models.append(model)
    runs = (finished["zero3", 2], whole, sharded)
    configs = [json.loads((run / "model" / "config.json").read_text()) for run in runs]
    assert [config["tie_word_embeddings"] for config in configs] == [True, False, False]
    before, after, spread = (model.lm_head.weight for model in models)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(spread, after, rtol=0, atol=1e-5)


def test_cut_answers_are_counted(finished, folder):
    assert re.search(
        r"windows \(\d+ without the answer, \d+ questions cut, \d+ answers cut\): ", (folder / "said2").read_text()
    )


@pytest.mark.parametrize("stage", STAGES)
def test_beam_search_on_two_ranks_answers_as_on_one(finished, stage):
    assert predictions(finished[f"zero{stage}", 2]) == predictions(finished[f"zero{stage}", 1])


def test_bf16_is_close_to_fp32(finished):
    assert losses(finished["bf16", 1]) == pytest.approx(losses(finished["zero0", 1]), rel=0.02)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_autocast_is_close_to_fp32_and_keeps_float32_weights(finished, stage):
    run = finished[f"zero{stage}-autocast", 1]
    assert losses(run) == pytest.approx(losses(finished["zero0", 1]), rel=0.02)
    assert losses(run) != pytest.approx(losses(finished["zero0", 1]), rel=1e-5)
    weights = load_file(run / "model" / "model.safetensors").values()
    assert {value.dtype for value in weights} == {torch.float32}
    assert any((value.bfloat16().float() != value).any() for value in weights)


def test_adafactor_is_transformers_with_a_constant_rate(finished, folder):
    """Against a plain loop of Hugging Face's model and optimizer, on the windows of the run's updates."""
    run, expected = finished["adafactor", 1], []
    with process_group():
        batches = prepare_job(Recipe.load(str(run / "recipe.yaml")), str(ds_config(folder, 0))).batches
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model").train()
    settings = {"weight_decay": 0.1, "scale_parameter": False, "relative_step": False}
    optimizer = Adafactor(model.parameters(), lr=1e-3, **settings)
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
    assert losses(run) == pytest.approx(expected, rel=1e-5)
    assert expected[0] - expected[-1] > 0.01
    assert {line["learning_rate"] for line in metrics(run)} == {1e-3}


@pytest.mark.parametrize("stage", STAGES)
def test_the_export_answers_without_this_package(finished, stage, folder):
    """transformers alone, in a strict load of several files, generates what the run predicted."""
    assert len(list((finished[f"zero{stage}", 2] / "model").glob("model-0000?-of-0000?.safetensors"))) >= 4
    model, report = AutoModelForSeq2SeqLM.from_pretrained(
        finished[f"zero{stage}", 2] / "model", output_loading_info=True
    )
    assert not any(report.values())
    assert model.get_input_embeddings().weight is model.lm_head.weight  # tied
    tokenizer = AutoTokenizer.from_pretrained(finished[f"zero{stage}", 2] / "model")
    paragraphs = [
        p for article in json.loads((folder / "test.json").read_text())["data"] for p in article["paragraphs"]
    ]
    short = [p for p in paragraphs if len(tokenizer(p["context"]).input_ids) < 20]
    assert short
    for paragraph in short:
        [qa] = paragraph["qas"]
        parts = ("question:", qa["question"], "context:", paragraph["context"])
        ids = [tokenizer(part, add_special_tokens=False).input_ids for part in parts]
        ids[1] = ids[1][:16]
        first, last = tokenizer("").input_ids
        inputs = torch.tensor([[first, *ids[0], *ids[1], *ids[2], *ids[3], last]])
        if inputs.shape[1] > 48:
            continue
        answers = model.eval().generate(inputs)  # with the generation settings of the run
        text = tokenizer.decode(answers[0], skip_special_tokens=True).strip()
        assert text == predictions(finished[f"zero{stage}", 2])[qa["id"]]
