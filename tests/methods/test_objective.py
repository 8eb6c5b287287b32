"""What the objective does beyond the equations: the order of modules, the keys of the noise, statistics."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.methods import METHODS
from swep_ds.methods.base import MicroStep, PassState
from tests.support import tiny_batches
from tests.support.perturb_reference import normal
from tests.support.tiny_objective import JOINT, SEED, UPDATE, away_from_the_prior, gradients, inputs, objective, split


def test_mle_is_hugging_faces_loss():
    module, batch = objective("mle"), tiny_batches.batch()
    loss, carried, statistics = module(batch, JOINT)
    plain = module.qa.model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        start_positions=batch.start_position,
        end_positions=batch.end_position,
    ).loss
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)  # ours takes float32 logits into the logarithm
    assert carried == PassState()
    assert statistics["nll_clean"] == loss


def test_micro_steps_of_swep_take_the_modules_in_one_order():
    module, batch = objective("swep", "t5"), tiny_batches.generative()
    called: list[tuple[str, str]] = []
    for name, part in module.named_modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_pre_hook(lambda *_, name=name: called.append(("forward", name)))
            part.register_full_backward_pre_hook(lambda *_, name=name: called.append(("backward", name)))
    orders = []
    for loss, _, _ in split(module, batch):
        loss.backward()
        orders.append(list(called))
        called.clear()
    assert orders[0] == orders[1]
    assert ("backward", "method.noise.difference") in orders[0]


def rows(batch: Batch, chosen: list[int], padding: int) -> Batch:
    """Some windows of a batch, in this order, with `padding` more columns."""

    def take(tensor):
        if tensor is None:
            return None
        return tensor[chosen] if tensor.dim() == 1 else torch.nn.functional.pad(tensor[chosen], (0, padding))

    return Batch(*map(take, batch))


@pytest.mark.parametrize("method", ["swep", "prior_aug"])
def test_loss_and_noise_depend_on_no_other_window_and_no_padding(method):
    module, batch = away_from_the_prior(objective(method)), tiny_batches.batch((6, 12, 9, 7))
    whole = module(batch, JOINT)[0].item()
    for chosen, others in (([3], [0, 2, 1]), ([2, 0], [1, 3])):
        parts = [rows(batch, chosen, 0), rows(batch, others, 0)]
        assert sum(module(part, JOINT)[0].item() for part in parts) == pytest.approx(whole, rel=1e-10)
    draw = module.method.passes(0.0)[-1].perturb
    hidden = torch.randn(4, 12, 16, dtype=torch.float64)
    narrow = draw(inputs(module, batch, 3, hidden)).embeddings
    wide_hidden = torch.nn.functional.pad(hidden[[2, 0]], (0, 0, 0, 5))
    wide = draw(inputs(module, rows(batch, [2, 0], 5), 3, wide_hidden)).embeddings
    assert torch.equal(wide[:, :12], narrow[[2, 0]])


def test_noise_is_new_in_every_update_and_pass():
    module, batch = objective("prior_aug"), tiny_batches.batch()
    losses = [module(batch, MicroStep(update))[0].item() for update in (0, 1, 2, 0)]
    assert losses[0] == losses[3]
    assert all(a != b for a, b in itertools.combinations(losses[:3], 2))
    module = objective("freelb")
    draws = [key.draw for update in (0, 1) for _, key in module.passes(MicroStep(update))]
    assert draws == [0, 1, 2, 3, 4, 5]
    assert [key for _, key in objective("r_drop").passes(JOINT)] == [None, None]


WITH_ONE_NOISY_PASS = [
    ("swep", {}),
    ("swep", {"separate_hidden_pass": True, "mle_weight": 0.3}),
    ("swep", {"mle_weight": 0.0}),
    ("prior_aug", {"mle_weight": 0.1}),
    ("gaussian_dropout", {"drop_probability": 1 / 11}),  # variance 0.1
]


@pytest.mark.parametrize("execution", ["split", "joint"])
def test_all_methods_with_one_noisy_pass_share_its_noise(execution):
    """At its prior SWEP perturbs as Prior-Aug does if both draw the same numbers for each update, window and token."""
    batch = tiny_batches.batch()
    drawn = np.stack([normal(SEED, update, batch.sample_id.numpy(), 12, 16) for update in (4, UPDATE)])
    for method, settings in WITH_ONE_NOISY_PASS:
        module = objective(method, **settings)
        for parameter in module.method.parameters():
            torch.nn.init.zeros_(parameter)
        seen = []
        module.qa.register_forward_pre_hook(lambda _, arguments, seen=seen: seen.append(arguments[0].detach()))
        for update in (4, UPDATE):
            for part in module.parts(execution):
                hidden = torch.zeros(3, 12, 16, dtype=torch.float64)
                module(batch, MicroStep(update, 0.0, part, PassState(hidden)))
        e, real = module.qa.embed(batch).detach(), batch.attention_mask.bool()
        noisy = torch.stack([embeddings for embeddings in seen if not torch.equal(embeddings, e)])
        eps = ((noisy / e - 1) / math.sqrt(0.1))[:, real]
        np.testing.assert_allclose(eps, drawn[:, real], rtol=0, atol=1e-5, err_msg=f"{method} {settings}")


@pytest.mark.parametrize("method", [name for name, settings in METHODS.items() if "noise" in settings.model_fields])
def test_every_kind_of_noise_trains_and_is_another(method):
    """One that the settings take and the method does not draw must not become another one silently."""
    kinds = get_args(METHODS[method].model_fields["noise"].annotation)
    losses = set()
    for kind in kinds:
        module = away_from_the_prior(objective(method, noise=kind))
        loss = module(tiny_batches.batch(), JOINT)[0]
        trained = gradients(module, loss)
        assert all(gradient.isfinite().all() for gradient in trained.values()), kind
        assert {f"method.{name}" for name, _ in module.method.named_parameters()} <= trained.keys()
        losses.add(loss.item())
    assert len(losses) == len(kinds)
