"""Every method, around spans and generated answers: executions, weights, widths and precisions."""

import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import Pass
from swep_ds.methods.objective import Objective
from tests.support import tiny_batches, tiny_models
from tests.support.bad_input import refused
from tests.support.tiny_objective import MEASURED, away_from_the_prior, gradients, objective, split, windows

IN_ONE_STEP = [(name, "bert", {}) for name, settings in METHODS.items() if not settings.needs_gradient]
IN_ONE_STEP += [("swep", "bert", {"separate_hidden_pass": True}), ("swep", "bert", {"mle_weight": 0.0})]
IN_ONE_STEP += [(name, architecture, {}) for name in ("swep", "lnsr") for architecture in tiny_models.SEQ2SEQ]


def update(module: Objective, batch: Batch, measure: bool = False) -> tuple[float, dict, dict]:
    """Loss, gradients and statistics of an update in `split` execution."""
    module.zero_grad()
    total, statistics = 0.0, {}
    for loss, _, seen in split(module, batch, measure=measure):
        loss.backward()
        # ZeRO-3 needs a gradient for every parameter of the method in every micro-step
        assert all(p.grad is not None for p in module.method.parameters())
        total, statistics = total + loss.item(), statistics | seen
    return total, {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}, statistics


@pytest.mark.parametrize(("method", "architecture", "settings"), IN_ONE_STEP)
def test_split_equals_joint(method, architecture, settings):
    module, batch = away_from_the_prior(objective(method, architecture, **settings)), windows(architecture)
    loss, got, statistics = update(module, batch, measure=True)
    assert len(module.parts("joint")) == 1
    joint_loss, _, joint_statistics = module(batch, MEASURED)
    assert loss == pytest.approx(joint_loss.item(), rel=1e-12)
    assert statistics == joint_statistics
    for name, gradient in gradients(module, joint_loss).items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-9, atol=1e-14)


PADDED = [(name, "bert") for name in METHODS] + [("swep", "t5"), ("freelb", "t5")]


@pytest.mark.parametrize(("method", "architecture"), PADDED)
def test_a_window_without_weight_changes_nothing_and_bfloat16_little(method, architecture):
    """A rank that has run out of windows takes part with such a one."""
    module, batch = objective(method, architecture), windows(architecture)
    first_two = Batch(*(t if t is None else t[:2] for t in batch))
    counted = torch.tensor([1.0, 1.0, 0.0])
    padded = batch._replace(weight=batch.weight * counted, token_weight=batch.token_weight * counted)
    loss, with_it, _ = update(module, padded)
    expected, without, _ = update(module, first_two)
    assert loss == pytest.approx(expected, rel=1e-9)
    for name, gradient in without.items():
        torch.testing.assert_close(with_it[name], gradient, rtol=1e-6, atol=1e-12)
    batch = windows(architecture, dtype=torch.float32)
    exact = update(module.float(), batch)[0]
    assert update(module.bfloat16(), batch)[0] == pytest.approx(exact, rel=0.03)


def test_a_kl_needs_a_pass_that_trains_and_a_perturbation_a_width_that_has_noise():
    assert Pass("noisy", 0.0, kl_weight=1.0, divergence_weight=1.0).trains
    for weight in (1.0, torch.tensor(0.0)):
        with pytest.raises(ValueError, match="a KL needs a pass that trains"):
            Pass("noisy", 0.0, kl_weight=weight)
    assert "multiple of 4 dimensions, and the model's have 18" in refused(build, METHODS["swep"](), 16, 18)
    build(METHODS["r_drop"](), 16, 18)


@pytest.mark.parametrize("separate", [False, True])
def test_passes_without_gradient_leave_those_of_autocast_whole(separate):
    """Weights that autocast has cast for a pass without gradient would give later passes none."""
    module, batch = objective("swep", separate_hidden_pass=separate).float(), tiny_batches.batch(dtype=torch.float32)
    exact = update(module, batch, measure=True)[1]
    with torch.autocast("cpu", torch.bfloat16):
        cast = update(module, batch, measure=True)[1]
    assert exact.keys() == cast.keys()
    for name, expected in exact.items():
        if expected.norm() > 1e-3:
            assert torch.nn.functional.cosine_similarity(cast[name].ravel(), expected.ravel(), 0) > 0.9, name
