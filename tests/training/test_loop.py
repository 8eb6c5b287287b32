"""What the loop does around an update: makes batches ahead, keys dropout, measures, notices what is not finite."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product

import pytest
import torch
from torch import Tensor

from swep_ds.common.errors import TrainingDiverged
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.loop import AHEAD, prefetch, seed_dropout
from tests.data.test_batches import ranks, windows
from tests.support import tiny_run
from tests.support.engine_runs import Saves, train_here

FAULTY = 3  # the update with the gradient


@contextmanager
def overflowing(engine) -> Iterator[None]:
    """One element of one gradient of update FAULTY is infinite; its loss is finite."""
    [parameter, *_] = engine.module.qa.parameters()

    def spoil(gradient: Tensor) -> Tensor:
        if engine.deepspeed.global_steps == FAULTY - 1:
            gradient = gradient.clone()
            gradient.view(-1)[0] = torch.inf
        return gradient

    parameter.register_hook(spoil)
    yield


@pytest.mark.parametrize("first", [0, 29, 30])
def test_batches_made_ahead_are_those_of_the_data_set_in_its_order(first):
    [batches] = ranks(windows(19), micro=2, epochs=3)  # 10 micro-steps an epoch
    yielded = list(prefetch(batches, first, torch.device("cpu")))
    assert len(yielded) == 30 - first
    for number, batch in enumerate(yielded, first):
        for mine, expected in zip(batch, batches[number], strict=True):
            assert torch.equal(mine, expected) if isinstance(mine, Tensor) else mine == expected


def test_no_more_than_a_few_are_made_ahead_and_closing_ends_the_thread():
    [batches] = ranks(windows(40), micro=2)
    asked = []

    class Noted(type(batches)):
        def __getitem__(self, number):
            asked.append(number)
            return super().__getitem__(number)

    batches.__class__ = Noted
    before = set(threading.enumerate())
    yielded = prefetch(batches, 0, torch.device("cpu"))
    for _ in range(3):
        next(yielded)
    while len(asked) < 3 + AHEAD:  # the thread makes them when it comes to run
        time.sleep(0.01)
    yielded.close()
    assert not set(threading.enumerate()) - before
    assert asked == list(range(3 + AHEAD))


def test_dropout_differs_by_seed_update_and_rank_and_repeats(monkeypatch):
    drawn = []
    for rank, seed, update in [*product((0, 1), repeat=3)] * 2:
        monkeypatch.setattr("swep_ds.ranks.rank", lambda rank=rank: rank)
        seed_dropout(seed, update)
        drawn.append(tuple(torch.rand(4).tolist()))
    assert len(set(drawn)) == 8
    assert drawn[:8] == drawn[8:]


def test_what_the_noise_does_is_measured_at_every_20th_update_from_the_first_on(tmp_path):
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), ["train.max_updates=41", "train.micro_batch_size=2"])
    with process_group():
        train_here(recipe, tiny_run.ds_config(tmp_path, 0), tmp_path, Saves())
    lines = tiny_run.metrics(tmp_path)
    assert len(lines) == 41
    assert [line["update"] for line in lines if "gold_nll_learned" in line] == [1, 21, 41]


def diverged(folder, stage: int, said: str, *settings: str, inside=nullcontext) -> list[int]:
    """The updates that a run saves until it ends with what it `said`."""
    recipe = Recipe.load(str(tiny_run.prepare(folder)), ["method.name=mle", *settings])
    config, saves = tiny_run.ds_config(folder, stage), Saves()
    with process_group(), pytest.raises(TrainingDiverged, match=said):
        train_here(recipe, config, folder, saves, logs=False, inside=inside)
    return saves.updates


@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16"), (2, "bf16"), (3, "fp32")])
def test_an_update_with_an_infinite_gradient_is_named_and_nothing_is_saved_after_it(tmp_path, caplog, stage, precision):
    settings = [f"train.precision={precision}", "train.log_every=100", "train.checkpoint_every=2"]
    said = f"by update 4 .*, the gradient not finite first in update {FAULTY}"
    assert diverged(tmp_path, stage, said, *settings, "train.max_updates=6", inside=overflowing) == [2]
    warning = "bf16 at ZeRO-0: DeepSpeed updates one weight tensor at a time"
    assert (warning in caplog.text and "use --ds_config zero1" in caplog.text) == (stage == 0)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_weights_that_an_update_breaks_are_not_saved(tmp_path, stage):
    """At ZeRO-2 the norm of the gradient is finite, and says nothing of the weights."""
    settings = ["train.weight_decay=1e300", "train.max_updates=3", "train.checkpoint_every=1"]
    assert diverged(tmp_path, stage, "by update 1 ", *settings, "train.warmup_fraction=0") == []
