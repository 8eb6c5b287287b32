"""What baselines and rivals do beyond their equations: remarks, dropout, ascents."""

from dataclasses import replace

import pytest
import torch

from tests.support import methods_reference, tiny_batches
from tests.support.tiny_objective import JOINT, SEED, gradients, inputs, objective, running_inputs, split


def test_r_drop_is_its_equation_with_two_dropout_masks():
    module, batch = objective("r_drop", dropout=0.2, divergence_weight=0.7), tiny_batches.batch((7,))
    torch.manual_seed(3)
    loss = module(batch, JOINT)[0]
    torch.manual_seed(3)
    [window] = methods_reference.windows(module.qa.model, batch, SEED, draw=0)
    first, second = (window.read(window.words()) for _ in range(2))
    expected = (first.nll + second.nll) / 2 + 0.7 * methods_reference.both_directions(first, second) / 2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # shares of a window are float32
    got, reference = gradients(module, loss), gradients(module, expected)
    for name, gradient in reference.items():
        assert (got[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-12, name


def test_the_log_says_where_passes_that_are_compared_predict_the_same():
    for method, change in (("r_drop", {"dropout": 0.1}), ("r3f", {"noise_size": 0.3})):
        for settings in ({}, change):
            module = objective(method, **settings)
            _, _, statistics = module(tiny_batches.batch(), JOINT)
            remark = module.method.remark({name: float(value) for name, value in statistics.items()}, 0.1)
            assert remark is None if settings else "no dropout" in remark


def test_r3f_compares_two_dropout_masks_lnsr_one_and_pdr_stays_where_the_divergence_says_nothing():
    batch = tiny_batches.batch()
    _, _, statistics = objective("r3f", dropout=0.3, noise_size=1e-9)(batch, JOINT)
    assert statistics["divergence"] > 1e-3
    _, _, statistics = objective("lnsr", dropout=0.3, noise_scale=1e-6)(batch, JOINT)
    assert 0 < statistics["hidden_distance"] < 1e-6
    _, _, statistics = objective("pdr", start_size=1e-30)(batch, JOINT)
    assert statistics["divergence"] == 0


ASCENTS = {"pdr": [False, True], "adv_aug": [True] * 5}  # whether each forward is with a gradient


@pytest.mark.parametrize("method", ASCENTS)
def test_an_ascent_runs_without_dropout_and_touches_no_gradient(method):
    module, batch = objective(method, dropout=0.2), tiny_batches.batch()
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    forwards, computed = [], []
    module.qa.model.bert.embeddings.eval()  # as a user may freeze a part
    module.qa.register_forward_hook(lambda *_: forwards.append((module.qa.training, torch.is_grad_enabled())))
    for parameter in module.qa.parameters():
        parameter.register_hook(lambda gradient: computed.append(gradient))
    module.method.passes(0.0)[1].perturb(running_inputs(module, batch))
    assert forwards == [(False, with_gradient) for with_gradient in ASCENTS[method]]
    assert module.qa.training
    assert not module.qa.model.bert.embeddings.training
    assert not computed  # no gradient of a parameter was ever made
    assert all((parameter.grad == 7.0).all() for parameter in module.parameters())


@pytest.mark.parametrize("fault", [float("inf"), 0.0])
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


def test_lnsr_takes_all_layers_with_activation_checkpointing_too():
    batch, losses = tiny_batches.generative(), []
    for checkpointing in (False, True):
        module = objective("lnsr", "t5", noise_scale=0.3)
        if checkpointing:
            module.qa.model.gradient_checkpointing_enable({"use_reentrant": False})
        loss, _, statistics = module(batch, JOINT)
        assert loss > 1.01 * statistics["nll_clean"]
        losses.append((loss, gradients(module, loss)))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-14)
