"""What the objective does beyond the equations: the order of modules, the keys of the noise, statistics."""

import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.methods.base import MicroStep
from tests.support import tiny_batches
from tests.support.tiny_objective import JOINT, away_from_the_prior, inputs, objective, split


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


DRAWS = [  # of update 4
    ("swep", {}, [4]),
    ("swep", {"separate_hidden_pass": True, "mle_weight": 0.3}, [4]),
    ("swep", {"mle_weight": 0.0}, [4]),
    ("prior_aug", {"mle_weight": 0.1}, [4]),
    ("gaussian_dropout", {}, [4]),
    ("freelb", {}, [12, 13, 14]),
    ("r_drop", {}, []),
]


@pytest.mark.parametrize("execution", ["split", "joint"])
@pytest.mark.parametrize(("method", "settings", "draws"), DRAWS)
def test_all_methods_with_one_noisy_pass_share_its_noise(method, settings, draws, execution):
    """The number of the draw, the seed and the window are all that noise depends on: see test_equations.py."""
    module = objective(method, **settings)
    passes = [pair for part in module.parts(execution) for pair in module.passes(MicroStep(4, 0.0, part))]
    assert [key.draw for _, key in passes if key is not None] == draws
