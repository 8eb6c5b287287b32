"""What a recipe's seed decides, and what a start warns of."""

import pytest
import torch

from swep_ds.pipeline.prepare import Prepared, prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.group import process_group
from tests.support import tiny_run


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> list[Prepared]:
    """Of seeds 0, 1 and 1, on half of the questions."""
    folder = tmp_path_factory.mktemp("seeds")
    file, config = str(tiny_run.prepare(folder)), str(tiny_run.ds_config(folder, 0))
    with process_group():
        return [prepare(Recipe.load(file, [f"seed={seed}", "data.train_fraction=0.5"]), config) for seed in (0, 1, 1)]


def order(job: Prepared) -> list[int]:
    return [row for update in range(job.batches.updates) for row in job.batches.windows(update).tolist()]


def questions(job: Prepared) -> list[list[int]]:
    return job.features.dataset["input_ids"][:]


def weights(job: Prepared) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in job.objective.method.parameters()])


def test_a_seed_decides_the_noise_the_generators_start_the_order_and_the_questions(jobs):
    first, other, again = jobs
    assert [job.objective.seed for job in jobs] == [0, 1, 1]
    assert not torch.equal(weights(first), weights(other))
    assert torch.equal(weights(again), weights(other))
    assert order(first) != order(other) == order(again)
    assert questions(first) != questions(other) == questions(again)
    assert first.questions == other.questions == 21


@pytest.mark.parametrize(("precision", "emulated"), [("bf16", True), ("bf16", False), ("fp32", True)])
def test_a_precision_that_the_processor_emulates_is_warned_of(precision, emulated, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(accelerator, "emulates", lambda dtype: emulated)
    file, config = str(tiny_run.prepare(tmp_path)), str(tiny_run.ds_config(tmp_path, 1))
    with process_group():
        prepare(Recipe.load(file, [f"train.precision={precision}"]), config)
    warned = "train.precision bf16: this processor has no instructions for bf16" in caplog.text
    assert warned == (emulated and precision == "bf16")
