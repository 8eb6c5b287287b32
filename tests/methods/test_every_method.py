"""Every method, around spans and generated answers: executions, weights, widths, precisions, the keys of the noise."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy, pad

from swep_ds.data.batches import Batch
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import MicroStep, Pass
from tests.support import tiny_batches, tiny_models, tiny_objective
from tests.support.bad_input import refused
from tests.support.tiny_objective import JOINT, MEASURED, away_from_the_prior, inputs, objective, split, windows

IN_ONE_STEP = [(name, "bert", {}) for name, settings in METHODS.items() if not settings.needs_gradient]
IN_ONE_STEP += [("swep", "bert", {"separate_hidden_pass": True}), ("swep", "bert", {"mle_weight": 0.0})]
IN_ONE_STEP += [(name, architecture, {}) for name in ("swep", "lnsr") for architecture in tiny_models.SEQ2SEQ]


def update(module, batch: Batch, measure: bool = False) -> tuple[float, dict, dict]:
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
    for name, gradient in tiny_objective.gradients(module, joint_loss).items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("method", "architecture"), [*((name, "bert") for name in METHODS), ("swep", "t5"), ("freelb", "t5")]
)
def test_a_window_without_weight_and_more_columns_change_nothing_and_bfloat16_little(method, architecture):
    """A rank that has run out of windows takes part with such a one; on a GPU widths are rounded up."""
    module, batch = objective(method, architecture), windows(architecture)
    first_two = Batch(*(t if t is None else t[:2] for t in batch))
    counted = torch.tensor([1.0, 1.0, 0.0])
    padded = batch._replace(weight=batch.weight * counted, token_weight=batch.token_weight * counted)
    loss, with_it, _ = update(module, tiny_batches.rounded(padded))
    expected, without, _ = update(module, first_two)
    assert loss == pytest.approx(expected, rel=1e-9)
    for name, gradient in without.items():
        torch.testing.assert_close(with_it[name], gradient, rtol=1e-6, atol=1e-12)
    batch = windows(architecture, dtype=torch.float32)
    exact = update(module.float(), batch)[0]
    assert update(module.bfloat16(), tiny_batches.rounded(batch))[0] == pytest.approx(exact, rel=0.03)


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
    large = [name for name, expected in exact.items() if expected.norm() > 1e-3]
    assert len(large) > len(exact) / 2
    for name in large:
        assert cosine_similarity(cast[name].ravel(), exact[name].ravel(), 0) > 0.9, name


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


@pytest.mark.parametrize("method", ["swep", "prior_aug"])
def test_loss_and_noise_depend_on_no_other_window_and_no_padding(method):
    module, batch = away_from_the_prior(objective(method)), tiny_batches.batch((6, 12, 9, 7))

    def rows(chosen: list[int], padding: int = 0) -> Batch:
        """These windows, with more columns."""
        taken = {name: values[chosen] for name, values in batch._asdict().items() if values is not None}
        wider = {name: pad(values, (0, padding)) for name, values in taken.items() if values.dim() > 1}
        return batch._replace(**taken | wider)

    whole = module(batch, JOINT)[0].item()
    for chosen, others in (([3], [0, 2, 1]), ([2, 0], [1, 3])):
        losses = [module(rows(part), JOINT)[0].item() for part in (chosen, others)]
        assert sum(losses) == pytest.approx(whole, rel=1e-10)
    draw = module.method.passes(0.0)[-1].perturb
    hidden = torch.randn(4, 12, 16, dtype=torch.float64)
    narrow = draw(inputs(module, batch, 3, hidden)).embeddings
    wide = draw(inputs(module, rows([2, 0], 5), 3, pad(hidden[[2, 0]], (0, 0, 0, 5)))).embeddings
    assert torch.equal(wide[:, :12], narrow[[2, 0]])
    loss, _, expected = module(batch, MEASURED)
    rounded, _, measured = module(tiny_batches.rounded(batch), MEASURED)
    assert rounded.item() == pytest.approx(loss.item(), rel=1e-9)
    assert measured == {name: pytest.approx(value.item(), rel=1e-6) for name, value in expected.items()}


@pytest.mark.parametrize("columns", [0, 4])
@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_smoothed_targets_are_uniform_over_a_windows_tokens_or_the_vocabulary(architecture, columns):
    module, batch = objective("mle", architecture), tiny_batches.rounded(windows(architecture), columns)
    module.label_smoothing = share = 0.2
    output = module.qa(module.qa.embed(batch), batch)
    loss, _, statistics = module(batch, JOINT)
    expected = []
    for row, logits in enumerate(output.logits):
        if architecture == "t5":
            expected.append(cross_entropy(logits, batch.target_ids[row], label_smoothing=share))
            continue
        for log_p, place in zip(logits.log_softmax(-1), (batch.start_position, batch.end_position), strict=True):
            mean = log_p[: batch.attention_mask[row].sum()].mean()
            expected.append(-(1 - share) * log_p[place[row]] - share * mean)
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    torch.testing.assert_close(statistics["nll_clean"], output.nll.mean().detach())


DRAWS = [  # update 4's
    ("swep", {}, [4]),
    ("swep", {"separate_hidden_pass": True, "mle_weight": 0.3}, [4]),
    ("swep", {"mle_weight": 0.0}, [4]),
    ("prior_aug", {"mle_weight": 0.1}, [4]),
    ("freelb", {}, [12, 13, 14]),
    ("r_drop", {}, []),
]


@pytest.mark.parametrize("execution", ["split", "joint"])
@pytest.mark.parametrize(("method", "settings", "draws"), DRAWS)
def test_all_methods_with_one_noisy_pass_share_its_noise(method, settings, draws, execution):
    """The number of the draw, the seed and the window are all that noise depends on: see test_equations.py."""
    module = objective(method, **settings)
    passes = [pair for part in module.parts(execution) for pair in module.passes(MicroStep(4, 0.0, part))]
    assert [key.draw for _, key in passes if key] == draws
