"""The mean of the weights: its formula, and what an engine holds with and without it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from swep_ds.data.splits import halves
from swep_ds.evaluation.evaluate import Evaluation
from swep_ds.evaluation.results import read_results
from swep_ds.methods.base import MicroStep
from swep_ds.pipeline import checks, prepare
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.folder import UNAVERAGED
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.pipeline.saved import load_saved
from swep_ds.ranks.group import process_group
from swep_ds.training.average import WeightAverage
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update
from tests.support import tiny_run
from tests.support.engine_runs import weights_of

UPDATES = 6
DECAY = 0.6
FILE, WORD = "average_rank_0.pt", "qa.model.bert.embeddings.word_embeddings.weight"
EMA = {"average": "ema", "average_decay": DECAY}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


def plain_mean(weights: list[torch.Tensor]) -> torch.Tensor:
    """The definition in float64, of the weights after each update."""
    stacked = torch.stack([w.double() for w in weights])
    shares = torch.tensor([DECAY ** (len(weights) - i) for i in range(1, len(weights) + 1)], dtype=torch.float64)
    return torch.einsum("u,u...->...", shares / shares.sum(), stacked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """In a process group."""
    path = tmp_path_factory.mktemp("average")
    tiny_run.prepare(path)
    with process_group():
        yield path


@pytest.mark.parametrize(
    ("stage", "precision", "zero"),
    [(0, "fp32", {}), (2, "bf16", {}), (3, "bf16", {"sub_group_size": 3000}), (3, "autocast", OFFLOAD)],
)
def test_an_engine_holds_the_mean_inside_and_its_own_weights_outside(folder, stage, precision, zero):
    settings = {"precision": precision, "max_updates": UPDATES, **EMA}
    recipe = Recipe.load(str(folder / "recipe.yaml"), [f"train.{name}={value}" for name, value in settings.items()])
    job = prepare.prepare(checks.read_and_check(recipe, str(tiny_run.ds_config(folder, stage, **zero))))
    engine = build_engine(job.objective, job.config, recipe.train, UPDATES)
    average = WeightAverage(engine, recipe.train)
    half, seen = precision == "bf16", []
    batches = iter(job.batches[update] for update in range(UPDATES))
    for update in range(UPDATES):
        run_update(engine, batches, 1, MicroStep(update))
        average.add(update + 1)
        seen.append(weights_of(engine, masters=half))
    rounded = weights_of(engine, masters=False)
    with average.applied():
        inside, rounded_inside = weights_of(engine, masters=half), weights_of(engine, masters=False)
    moved = 0
    for name, last in seen[-1].items():
        expected = plain_mean([weights[name] for weights in seen]) if name.startswith("qa.") else last.double()
        torch.testing.assert_close(inside[name].double(), expected, rtol=1e-6, atol=1e-7)
        assert torch.equal(rounded_inside[name], inside[name].to(rounded[name].dtype))
        moved += (expected - last).abs().max() > 1e-4
    assert moved > 10
    for before, after in ((seen[-1], weights_of(engine, masters=half)), (rounded, weights_of(engine, masters=False))):
        assert all(torch.equal(before[name], after[name]) for name in before)
    engine.destroy()


def test_checkpoints_and_tests_are_scored_with_the_mean(folder, tmp_path, monkeypatch):
    """By the weights that a run has whenever it predicts: at three checkpoints, then for the validation data and for
    the test of each outcome."""
    seen = []

    def record(evaluation: Evaluation, engine, test, predict=Evaluation.predict, **options):
        seen.append(engine.module.get_parameter(WORD).detach().flatten().clone())
        return predict(evaluation, engine, test, **options)

    monkeypatch.setattr(Evaluation, "predict", record)
    settings = EMA | {"max_updates": 3, "checkpoint_every": 1, "keep_checkpoints": 3}
    sets = [*(f"train.{name}={value}" for name, value in settings.items()), "eval.select_on=test"]
    recipe = Recipe.load(str(folder / "recipe.yaml"), sets)
    run(recipe, str(tiny_run.ds_config(folder, 1)), tmp_path / "run", "never")
    tags = sorted((tmp_path / "run" / "checkpoints").glob("update-*"))
    means = [torch.load(tag / FILE)[WORD]["mean"] for tag in tags]
    last = [torch.load(tag / "mp_rank_00_model_states.pt", weights_only=False)["module"][WORD] for tag in tags]
    chosen = read_results(tmp_path / "run" / "results.json").selection.update - 1
    expected = [*means, *[last[chosen].flatten()] * 2, *[means[chosen]] * 2]
    assert [torch.equal(weights, right) for weights, right in zip(seen, expected, strict=True)] == [True] * 7
    assert not torch.equal(means[2], last[2].flatten())
    monkeypatch.undo()
    for part in (tmp_path / "run", tmp_path / "run" / UNAVERAGED):
        saved, selection = load_saved(str(part / "model")), read_results(part / "results.json").selection
        evaluation = Evaluation(saved.tokenizer, saved.windows, saved.spans, batch_size=8)
        tests = {"test": halves(load_examples(recipe)[1]["test"])[0]}
        [half] = evaluation.prepare(tests, recipe.eval.scorer_of)
        score = half.score(evaluation.predict(saved.qa.predict, half))
        assert (selection.update, selection.f1) == (chosen + 1, pytest.approx(score["f1"]))
