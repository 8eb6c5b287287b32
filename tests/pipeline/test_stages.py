"""Two stages of training and the choice of a checkpoint: in real processes, stopped at every point and resumed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import load_file

from tests.support.tiny_run import complete, ds_config, error, losses, make_runs, metrics, prepare, squad

pytestmark = pytest.mark.slow

UPDATES, EVERY, FIRST_UPDATES = 6, 2, 4
SELECTED = {"select-0": 0, "two-bf16": 2, "two": 3}  # run -> ZeRO stage
# weights change, predictions do not: all scores are equal, and the first checkpoint is chosen, whatever the machine
SLOWLY = "train.learning_rate=1e-6"


def start(folder: Path, output: str, stage: int, *settings: str, **more) -> dict:
    run = {"recipe": str(folder / "recipe.yaml"), "ds_config": str(ds_config(folder, stage))}
    fixed = [f"train.max_updates={UPDATES}", f"train.checkpoint_every={EVERY}", "train.micro_batch_size=4"]
    fixed.append("train.learning_rate=0.03")
    return run | {"output_dir": str(folder / output), "set": [*fixed, *settings]} | more


def two(folder: Path, output: str, stage: int, *settings: str, **more) -> dict:
    first = (f"pretrain.train={folder / 'generated.json'}", f"pretrain.max_updates={FIRST_UPDATES}")
    first += ("pretrain.micro_batch_size=8", "pretrain.learning_rate=1e-3", "eval.select_on=test")
    return start(folder, output, stage, *first, *settings, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    prepare(folder, dropout=0.1, num_hidden_layers=1)
    generated = squad(40, seed=5)
    for qa in (qa for article in generated["data"] for p in article["paragraphs"] for qa in p["qas"]):
        del qa["id"]
    (folder / "generated.json").write_text(json.dumps(generated))
    (folder / "test.json").write_text(json.dumps(squad(60, seed=1)))
    (folder / "other.json").write_text(json.dumps(squad(7, seed=2)))
    select = ("eval.select_on=test", f"data.eval.other={folder / 'other.json'}")
    alone = [
        start(folder, "select-0", 0, *select),
        start(folder, "stopped-0", 0, *select, stop_after=5),
        start(folder, "stopped-0", 0, *select),
        two(folder, "bad-first", 0, "pretrain.train=nowhere/generated.json", fails=True),
        two(folder, "bad-second", 0, "data.eval.more=nowhere/more.json", fails=True),
    ]
    make_runs(folder, alone, ranks=1)
    killed = [
        two(folder, "two-bf16", 2, "train.precision=bf16", "train.freeze_embeddings=true"),
        two(folder, "two", 3, SLOWLY),
        start(folder, "from-first", 3, SLOWLY, f"model.name={folder / 'two' / 'pretrain' / 'model'}"),
        two(folder, "stopped", 3, SLOWLY, stop_after=3),  # in its first stage
        two(folder, "stopped", 3, SLOWLY, kill_between=True),
    ]
    assert make_runs(folder, killed, ranks=2, check=False).returncode != 0
    shutil.copy(folder / "stopped" / "pretrain" / "results.json", folder / "between.json")
    checkpoint = str(folder / "two" / "checkpoints" / f"update-{UPDATES - EVERY:08d}")
    resumed = [two(folder, "stopped", 3, SLOWLY), two(folder, "branch", 3, SLOWLY, resume=checkpoint)]
    make_runs(folder, resumed, ranks=2)
    return folder


def results(run: Path) -> dict:
    return json.loads((run / "results.json").read_text())


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def saved_weights(run: Path, update: int, stage: int) -> dict[str, torch.Tensor]:
    """The model's float32 weights in a checkpoint, read from DeepSpeed's files without an engine."""
    tag = run / "checkpoints" / f"update-{update:08d}"
    if stage == 0:
        state = torch.load(tag / "mp_rank_00_model_states.pt", weights_only=False)["module"]
    else:
        state = get_fp32_state_dict_from_zero_checkpoint(str(tag.parent), tag.name)
    return {name.removeprefix("qa.model."): value for name, value in state.items() if name.startswith("qa.model.")}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() <= right.keys()
    assert all(torch.equal(left[name], right[name].to(left[name].dtype)) for name in left)


def assert_same_run(left: Path, right: Path) -> None:
    assert results(left)["selection"] == results(right)["selection"]
    assert results(left)["eval"] == results(right)["eval"]
    assert losses(left) == losses(right)
    assert_equal(weights(left), weights(right))


# Choosing a checkpoint


@pytest.mark.parametrize("run", SELECTED)
def test_the_checkpoint_of_the_best_score_is_evaluated_and_exported(folder, run):
    selection = results(folder / run)["selection"]
    logged = {line["update"]: line for line in metrics(folder / run) if "validation_f1" in line}
    assert list(logged) == list(range(EVERY, UPDATES + 1, EVERY))
    for update, line in logged.items():
        scores = selection["checkpoints"][str(update)]
        assert (scores["f1"], scores["exact_match"]) == (line["validation_f1"], line["validation_exact_match"])
    best = max(logged, key=lambda u: (logged[u]["validation_f1"], logged[u]["validation_exact_match"], -u))
    assert selection["update"] == best
    assert selection["f1"] == logged[best]["validation_f1"]
    exported, saved = weights(folder / run), saved_weights(folder / run, best, SELECTED[run])
    assert_equal({name: exported[name] for name in saved}, saved)
    left_out = {"bert.embeddings.word_embeddings.weight"} if run == "two-bf16" else set()  # frozen
    assert exported.keys() - saved.keys() == left_out


def test_of_equal_scores_the_earlier_checkpoint_is_chosen_and_outlives_the_others(folder):
    run = folder / "two"
    selection = results(run)["selection"]
    assert len({(score["f1"], score["exact_match"]) for score in selection["checkpoints"].values()}) == 1
    assert selection["update"] == EVERY
    assert complete(run) == [EVERY, UPDATES - EVERY, UPDATES]
    last, exported = saved_weights(run, UPDATES, 3), weights(run)
    assert not all(torch.equal(exported[name], last[name]) for name in exported)


def test_one_half_chooses_and_the_other_is_reported(folder):
    whole = results(folder / "select-0")
    names = ["method", "model", "seed", "world_size", "train", "selection", "eval", "scorers", "versions", "inputs"]
    assert sorted(whole) == sorted([*names, "threads", "questions", "provenance"])
    assert whole["selection"]["data_set"] == "test"
    assert whole["selection"]["total"] + whole["eval"]["test"]["total"] == 60
    assert abs(whole["selection"]["total"] - whole["eval"]["test"]["total"]) <= 15  # articles of 15 questions
    assert whole["eval"]["other"]["total"] == 7
    reported = json.loads((folder / "select-0" / "predictions" / "test.json").read_text())
    document = json.loads((folder / "test.json").read_text())
    articles = [{qa["id"] for p in article["paragraphs"] for qa in p["qas"]} for article in document["data"]]
    assert all(article <= reported.keys() or not article & reported.keys() for article in articles)
    assert "one half of `test`" in (folder / "select-0" / "model" / "README.md").read_text()


# Two stages


def test_the_first_stage_is_a_run_of_its_own(folder):
    first, done, whole = folder / "two" / "pretrain", results(folder / "two" / "pretrain"), results(folder / "two")
    assert len(losses(first)) == FIRST_UPDATES
    assert not [line for line in metrics(first) if "validation_f1" in line]
    assert (done["eval"], done["train"]["examples"]) == ({}, 40)
    assert whole["pretraining"] == {"data": str(folder / "generated.json"), **done["train"]}
    assert whole["inputs"]["pretrain.train"] == done["inputs"]["data.train"]
    assert (whole["train"]["examples"], whole["model"]) == (42, str(folder / "model"))


def test_the_second_stage_is_a_run_from_the_model_of_the_first_and_scores_leave_it_as_it_is(folder):
    assert losses(folder / "two") == losses(folder / "from-first")
    assert len(set(losses(folder / "two"))) == len(losses(folder / "two")) == UPDATES  # equal ones would prove little
    handed, untrained = weights(folder / "two" / "pretrain"), weights(folder)
    assert_equal(handed, saved_weights(folder / "two" / "pretrain", FIRST_UPDATES, 3))
    assert not all(torch.equal(handed[name], untrained[name]) for name in handed)


def test_half_precision_hands_over_the_weights_that_it_rounds(folder):
    handed = weights(folder / "two-bf16" / "pretrain")
    masters = saved_weights(folder / "two-bf16" / "pretrain", FIRST_UPDATES, 2)
    assert all(value.dtype == torch.float32 for value in handed.values())
    frozen = handed.pop("bert.embeddings.word_embeddings.weight")  # which have no others, and are in no checkpoint
    assert torch.equal(frozen, weights(folder)["bert.embeddings.word_embeddings.weight"].bfloat16())
    assert_equal(handed, masters)
    assert not all(torch.equal(value, value.bfloat16().float()) for value in handed.values())
    exported = weights(folder / "two-bf16")  # for use, not training
    assert all(value.dtype == torch.bfloat16 for value in exported.values())


def test_a_run_stopped_in_its_first_stage_and_after_it_ends_as_one_that_was_not(folder):
    assert_same_run(folder / "stopped-0", folder / "select-0")  # which has one stage
    whole, stopped = folder / "two", folder / "stopped"
    assert_same_run(stopped, whole)
    assert losses(stopped / "pretrain") == losses(whole / "pretrain")
    assert_equal(weights(stopped / "pretrain"), weights(whole / "pretrain"))
    assert [line["update"] for line in metrics(stopped)] == list(range(1, UPDATES + 1))
    # its finished stage is not trained again: the results would have other seconds
    assert (stopped / "pretrain" / "results.json").read_text() == (folder / "between.json").read_text()


def test_a_checkpoint_of_the_second_stage_needs_no_first(folder):
    branch = folder / "branch"
    assert not (branch / "pretrain").exists()
    assert losses(branch) == losses(folder / "two")[UPDATES - EVERY :]
    assert results(branch)["pretraining"] == {"data": str(folder / "generated.json")}
    assert "pretrain.train" not in results(branch)["inputs"]  # it read no such file
    assert results(branch)["selection"]["update"] == UPDATES  # its only one


# Bad input


def test_bad_data_of_either_stage_shows_before_the_first_is_trained(folder):
    for run, field, file in (
        ("bad-first", "first stage (pretrain): pretrain.train", "nowhere/generated.json"),
        ("bad-second", "data.eval.more", "nowhere/more.json"),
    ):
        assert error(folder / run).startswith(f"{field}: data source '{file}': no such file")
        assert not (folder / run).exists()
