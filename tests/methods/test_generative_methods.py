"""Every method around sequence-to-sequence models: split is joint, and a window of weight 0 changes nothing."""

import pytest
import torch

from swep_ds.methods import METHODS
from swep_ds.methods.objective import Objective
from tests.support import tiny_batches, tiny_models
from tests.support.tiny_objective import JOINT, gradients, objective, split

IN_ONE_STEP = [name for name, settings in METHODS.items() if settings.needs != "gradient"]


def update(module: Objective, batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of an update in `split` execution."""
    module.zero_grad()
    total = 0.0
    for loss, _, _ in split(module, batch):
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", tiny_models.SEQ2SEQ)
@pytest.mark.parametrize("method", IN_ONE_STEP)
def test_split_equals_joint(method, architecture):
    module, batch = objective(method, architecture), tiny_batches.generative()
    loss, split = update(module, batch)
    joint_loss = module(batch, JOINT)[0]
    assert loss == pytest.approx(joint_loss.item(), rel=1e-12)
    for name, gradient in gradients(module, joint_loss).items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
@pytest.mark.parametrize("method", METHODS)
def test_a_window_without_weight_changes_nothing(method, architecture):
    """A rank that has run out of windows takes part with such a one."""
    make = tiny_batches.generative if architecture == "t5" else tiny_batches.batch
    module, batch = objective(method, architecture), make()
    alone = type(batch)(*(t if t is None else t[:2] for t in batch))
    padded = batch._replace(
        weight=batch.weight * torch.tensor([1.0, 1.0, 0.0]),
        token_weight=batch.token_weight * torch.tensor([1.0, 1.0, 0.0]),
    )
    (loss, with_it), (expected, without) = update(module, padded), update(module, alone)
    assert loss == pytest.approx(expected, rel=1e-9)
    for name, gradient in without.items():
        torch.testing.assert_close(with_it[name], gradient, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_is_close(method, architecture):
    make = tiny_batches.generative if architecture == "t5" else tiny_batches.batch
    module, batch = objective(method, architecture), make(dtype=torch.float32)
    exact = update(module.float(), batch)[0]
    assert update(module.bfloat16(), batch)[0] == pytest.approx(exact, rel=0.03)
