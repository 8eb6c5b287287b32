"""The loop notices a gradient that is not finite before it saves anything; DeepSpeed would continue."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from swep_ds.errors import TrainingDiverged
from swep_ds.pipeline.prepare import prepare
from swep_ds.ranks.group import process_group
from swep_ds.recipe import Recipe
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import train
from swep_ds.training.tracking import Tracker
from tests.support import tiny_run

FAULTY = 3  # the update with the gradient


class Saves:
    """Checkpoints that are only noted."""

    def __init__(self):
        self.updates: list[int] = []

    def save(self, engine, done: TrainState, score=None) -> bool:
        self.updates.append(done.updates)
        return True


@contextmanager
def overflowing(engine) -> Iterator[None]:
    """One element of one gradient of update FAULTY is infinite; its loss is finite."""
    [parameter, *_] = engine.module.qa.parameters()

    def spoil(gradient: Tensor) -> Tensor:
        if engine.global_steps == FAULTY - 1:
            gradient = gradient.clone()
            gradient.view(-1)[0] = torch.inf
        return gradient

    hook = parameter.register_hook(spoil)
    yield
    hook.remove()


@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16"), (2, "bf16"), (2, "fp32"), (3, "bf16")])
def test_an_update_with_an_infinite_gradient_is_named_and_nothing_is_saved_after_it(tmp_path, caplog, stage, precision):
    settings = [f"train.precision={precision}", "train.log_every=100", "train.checkpoint_every=2"]
    recipe = Recipe.load(str(tiny_run.prepare(tmp_path)), [*settings, "train.max_updates=6", "method.name=mle"])
    saves = Saves()
    with process_group():
        job = prepare(recipe, str(tiny_run.ds_config(tmp_path, stage)))
        assert precision == "fp32" or job.config["bf16"]["check_grad_overflow"] is False
        engine = build_engine(job.objective, job.config, recipe.train, 6)
        message = f"by update 4 .*, the gradient not finite first in update {FAULTY}"
        with (
            overflowing(engine),
            Tracker(recipe, tmp_path, 6, TrainState(), active=False) as tracker,
            pytest.raises(TrainingDiverged, match=message),
        ):
            train(engine, job.batches, recipe.train, saves, tracker, TrainState(), None, None)
        engine.destroy()
    assert saves.updates == [2]
    warning = "bf16 at ZeRO-0: DeepSpeed steps one weight tensor after the other"
    assert (warning in caplog.text and "take --ds_config zero1" in caplog.text) == (stage == 0)
