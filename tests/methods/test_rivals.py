"""What rivals do beside their equations: remarks, dropout, ascents; and SWEP without the weight of a divergence."""

from dataclasses import replace

import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.models.outputs import symmetric_divergence
from tests.support import tiny_batches
from tests.support.tiny_objective import JOINT, gradients, inputs, objective, running_inputs, split


def windows(architecture: str) -> Batch:
    return tiny_batches.generative() if architecture == "t5" else tiny_batches.batch()


@pytest.mark.parametrize("extra", [{}, {"separate_hidden_pass": True}])
def test_without_a_weight_for_the_divergence_swep_is_unchanged(extra):
    batch = tiny_batches.batch()
    results = []
    for settings in ({}, {"divergence_weight": 0.0}):
        module = objective("swep", **extra, **settings)
        loss, _, statistics = module(batch, JOINT)
        assert "divergence" not in statistics
        assert len(module.parts("split")) == 2
        results.append((loss, gradients(module, loss)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_two_dropout_masks_are_r_drop_without_its_divergence():
    """The control of every method with two passes: MLE's loss, averaged over two masks."""
    control, mle = objective("r_drop", dropout=0.2, divergence_weight=0), objective("mle", dropout=0.2)
    batch = tiny_batches.batch()
    torch.manual_seed(3)
    losses = [loss.item() for loss, _, _ in split(control, batch)]
    torch.manual_seed(3)
    expected = [mle(batch, JOINT)[0].item() for _ in range(2)]
    assert expected[0] != pytest.approx(expected[1], rel=1e-3)
    assert losses == pytest.approx([loss / 2 for loss in expected], rel=1e-9)


def test_r3f_says_so_where_it_is_mle():
    batch, remarks = tiny_batches.batch(), []
    for settings in ({"noise_size": 1e-5}, {"noise_size": 1e-5, "dropout": 0.1}, {"noise_size": 0.3}):
        module = objective("r3f", **settings)
        _, _, statistics = module(batch, JOINT)
        remarks.append(module.method.remark({name: float(value) for name, value in statistics.items()}, 0.1))
    assert "R3F hardly differs from MLE" in remarks[0]
    assert remarks[1:] == [None, None]


def test_r3f_compares_two_dropout_masks_and_lnsr_one():
    batch = tiny_batches.batch()
    _, _, statistics = objective("r3f", dropout=0.3, noise_size=1e-9)(batch, JOINT)
    assert statistics["divergence"] > 1e-3
    _, _, statistics = objective("lnsr", dropout=0.3, noise_scale=1e-6)(batch, JOINT)
    assert 0 < statistics["hidden_distance"] < 1e-6


# The ascents

ASCENTS = {"pdr": [False, True], "adv_aug": [True] * 5}  # whether each forward is with a gradient


@pytest.mark.parametrize("method", ASCENTS)
def test_an_ascent_runs_without_dropout_and_touches_no_gradient(method):
    module, batch = objective(method, dropout=0.2), tiny_batches.batch()
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    forwards, computed = [], []
    module.qa.register_forward_hook(lambda *_: forwards.append((module.qa.training, torch.is_grad_enabled())))
    for parameter in module.qa.parameters():
        parameter.register_hook(lambda gradient: computed.append(gradient))
    module.method.passes(0.0)[1].perturb(running_inputs(module, batch))
    assert forwards == [(False, with_gradient) for with_gradient in ASCENTS[method]]
    assert module.qa.training
    assert not computed  # no gradient of a parameter was ever made
    assert all((parameter.grad == 7.0).all() for parameter in module.parameters())


def test_pdr_climbs():
    module, batch = objective("pdr", epsilon=0.3), tiny_batches.batch()
    given = running_inputs(module, batch)
    delta = (module.method.passes(0.0)[1].perturb(given).embeddings - given.embeddings).detach()
    real = batch.attention_mask.bool()
    assert delta.flatten(1).norm(dim=1).tolist() == pytest.approx([0.3] * 3, rel=1e-6)
    assert (delta[~real] == 0).all()
    torch.manual_seed(0)
    other = torch.randn_like(delta) * real[..., None]
    other *= 0.3 / other.flatten(1).norm(dim=1)[:, None, None]
    base = given.embeddings.detach()
    clean, climbed, drifted = (given.forward(x) for x in (base, base + delta, base + other))
    assert (symmetric_divergence(clean, climbed) > 2 * symmetric_divergence(clean, drifted)).all()


def test_pdr_stays_where_the_divergence_says_nothing():
    module, batch = objective("pdr", start_size=1e-30), tiny_batches.batch()
    loss, _, statistics = module(batch, JOINT)
    assert statistics["divergence"] == 0
    assert loss.item() == statistics["nll_clean"].item()


@pytest.mark.parametrize("fault", [float("inf"), float("nan"), 0.0])
@pytest.mark.parametrize("method", ["fgm", "freelb"])
def test_an_ascent_stays_where_a_gradient_says_nothing(method, fault):
    """An overflow in fp16, which the engine skips, or a window of weight 0: the next pass is finite all the same."""
    module, batch = objective(method), tiny_batches.batch()
    parts = split(module, batch)
    loss, carried, _ = next(parts)
    loss.backward()
    carried.delta.grad[0] = fault
    [(pass_, key)] = module.passes(replace(JOINT, part=1, carried=carried))
    given = replace(inputs(module, batch, key.draw), carried=carried)
    moved = pass_.perturb(given).embeddings - given.embeddings - carried.delta
    assert [length > 1e-3 for length in moved.flatten(1).norm(dim=1)] == [False, True, True]
    loss, _, _ = next(parts)
    assert loss.isfinite()


def test_freelb_climbs_with_the_same_dropout():
    module, batch = objective("freelb", dropout=0.3, step_size=1e-9, radius=1e-9), tiny_batches.batch()
    losses = []
    for loss, _, _ in split(module, batch):
        loss.backward()
        losses.append(loss.item())
    assert losses[1:] == pytest.approx(losses[:1] * 2, rel=1e-6)
    again, _, _ = next(split(module, batch))  # the generator has moved on: another micro-batch drops other units
    assert again.item() != pytest.approx(losses[0], rel=1e-3)


def test_fgm_raises_the_loss():
    module, batch = objective("fgm", epsilon=0.05), tiny_batches.batch()
    seen = {}
    for loss, _, statistics in split(module, batch):
        loss.backward()
        seen |= statistics
    assert seen["nll_adversarial"] > seen["nll_clean"] + 1e-3


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_lnsr_takes_all_layers_with_activation_checkpointing_too(architecture):
    batch, losses = windows(architecture), []
    for checkpointing in (False, True):
        module = objective("lnsr", architecture, noise_scale=0.3)
        if checkpointing:
            module.qa.model.gradient_checkpointing_enable({"use_reentrant": False})
        loss, _, statistics = module(batch, JOINT)
        assert loss > 1.01 * statistics["nll_clean"]
        losses.append((loss, gradients(module, loss)))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-14)
