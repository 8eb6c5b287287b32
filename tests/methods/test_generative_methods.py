"""Every method around sequence-to-sequence models: split is joint, and a window of weight 0 changes nothing."""

import pytest
import torch

from swep_ds.methods import METHODS
from swep_ds.methods.objective import Objective
from tests.support import tiny_batches, tiny_models
from tests.support.tiny_objective import JOINT, gradients, objective, split

IN_ONE_STEP = [name for name, settings in METHODS.items() if not settings.needs_split]


def update(made: Objective, batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of an update in `split` execution."""
    made.zero_grad()
    total = 0.0
    for loss, _, _ in split(made, batch):
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", tiny_models.SEQ2SEQ)
@pytest.mark.parametrize("method", IN_ONE_STEP)
def test_split_equals_joint(method, architecture):
    made, batch = objective(method, architecture), tiny_batches.generative()
    loss, split = update(made, batch)
    joint_loss = made(batch, JOINT)[0]
    assert loss == pytest.approx(joint_loss.item(), rel=1e-12)
    for name, gradient in gradients(made, joint_loss).items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
@pytest.mark.parametrize("method", METHODS)
def test_a_window_without_weight_changes_nothing(method, architecture):
    """A rank that has run out of windows takes part with such a one."""
    make = tiny_batches.generative if architecture == "t5" else tiny_batches.batch
    made, batch = objective(method, architecture), make()
    alone = type(batch)(*(t if t is None else t[:2] for t in batch))
    padded = batch._replace(
        weight=batch.weight * torch.tensor([1.0, 1.0, 0.0]),
        token_weight=batch.token_weight * torch.tensor([1.0, 1.0, 0.0]),
    )
    (loss, with_it), (expected, without) = update(made, padded), update(made, alone)
    assert loss == pytest.approx(expected, rel=1e-9)
    for name, gradient in without.items():
        torch.testing.assert_close(with_it[name], gradient, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_is_close(method, architecture):
    make = tiny_batches.generative if architecture == "t5" else tiny_batches.batch
    made, batch = objective(method, architecture), make(dtype=torch.float32)
    exact = update(made.float(), batch)[0]
    assert update(made.bfloat16(), batch)[0] == pytest.approx(exact, rel=0.03)
