"""Every baseline and rival against its paper's equations, written here in plain NumPy and PyTorch, in float64."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from swep_ds.data.batches import Batch
from swep_ds.data.quickstart import ENCODER
from swep_ds.methods import METHODS, build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches
from tests.support.perturb_reference import normal, uniform
from tests.support.tiny_objective import (
    JOINT,
    MEASURED,
    SEED,
    UPDATE,
    gradients,
    inputs,
    objective,
    running_inputs,
    split,
)

LENGTHS = (12, 7, 9)


def logits(module: Objective, embeddings: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    output = module.qa.model(inputs_embeds=embeddings, attention_mask=batch.attention_mask)
    return output.start_logits, output.end_logits


def nll(module: Objective, embeddings: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Hugging Face's loss per window, [N]."""
    start, end = logits(module, embeddings, batch)
    losses = [
        cross_entropy(start, batch.start_position, reduction="none"),
        cross_entropy(end, batch.end_position, reduction="none"),
    ]
    return sum(losses) / 2


def assert_same(module: Objective, loss: torch.Tensor, expected: torch.Tensor) -> None:
    """Value and gradients of all parameters."""
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # shares of a window are float32
    got, reference = gradients(module, loss), gradients(module, expected)
    assert set(got) == set(reference)
    for name, gradient in reference.items():
        assert (got[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-12, name


def words(module: Objective, batch: Batch) -> torch.Tensor:
    return module.qa.model.get_input_embeddings()(batch.input_ids)


def test_gaussian_dropout():
    module, batch = objective("gaussian_dropout", drop_probability=0.2), tiny_batches.batch(LENGTHS)
    e = words(module, batch)
    eps = torch.from_numpy(normal(SEED, UPDATE, batch.sample_id.numpy(), *e.shape[1:]))
    noisy = e * (1 + (0.2 / 0.8) ** 0.5 * eps) * batch.attention_mask[..., None]
    assert_same(module, module(batch, JOINT)[0], nll(module, noisy, batch).mean())


def test_bernoulli_dropout():
    module, batch = objective("bernoulli_dropout", drop_probability=0.3), tiny_batches.batch(LENGTHS)
    e = words(module, batch)
    kept = torch.from_numpy(uniform(SEED, UPDATE, batch.sample_id.numpy(), *e.shape[1:]) >= 0.3)
    assert_same(module, module(batch, JOINT)[0], nll(module, torch.where(kept, e / 0.7, 0.0), batch).mean())


def test_word_dropout():
    module, batch = objective("word_dropout", drop_probability=0.3), tiny_batches.batch(LENGTHS)
    e = words(module, batch)
    kept = torch.from_numpy(uniform(SEED, UPDATE, batch.sample_id.numpy(), e.shape[1], 4)[..., :1] >= 0.3)
    assert 0 < kept.sum() < kept.numel()
    assert_same(module, module(batch, JOINT)[0], nll(module, torch.where(kept, e, 0.0), batch).mean())


def test_neftune():
    module, batch = objective("neftune", noise_alpha=7.0), tiny_batches.batch(LENGTHS)
    e = words(module, batch)
    u = 2 * torch.from_numpy(uniform(SEED, UPDATE, batch.sample_id.numpy(), *e.shape[1:])) - 1
    scale = 7.0 / torch.tensor([length * e.shape[-1] for length in LENGTHS]).double().sqrt()
    assert_same(module, module(batch, JOINT)[0], nll(module, e + scale[:, None, None] * u, batch).mean())


@pytest.mark.parametrize(("method", "width"), [("bernoulli_dropout", None), ("word_dropout", 1)])
def test_rate_of_dropout(method, width):
    """4,000 tokens of 16 dimensions (or one decision each): within five standard deviations of p."""
    module = objective(method, drop_probability=0.1)
    batch = tiny_batches.batch((40,) * 100)
    perturbed = module.method.passes(0.0)[0].perturb(inputs(module, batch, draw=3)).embeddings
    dropped = (perturbed == 0)[..., :width]
    deviation = (0.1 * 0.9 / dropped.numel()) ** 0.5
    assert abs(dropped.double().mean().item() - 0.1) < 5 * deviation


def test_r_drop():
    module, batch = objective("r_drop", dropout=0.2, divergence_weight=0.7), tiny_batches.batch(LENGTHS)
    torch.manual_seed(3)
    loss, _, statistics = module(batch, JOINT)
    torch.manual_seed(3)
    e = words(module, batch)
    predicted = [logits(module, e, batch) for _ in range(2)]  # dropout differs between them
    assert not torch.equal(predicted[0][0], predicted[1][0])
    expected = 0.0
    for part, target in ((0, batch.start_position), (1, batch.end_position)):
        p, q = (log_softmax(pair[part], -1) for pair in predicted)
        for log_probability in (p, q):
            expected = expected - log_probability.gather(1, target[:, None]).mean() / 4
        both = (p.exp() * (p - q)).sum(-1) + (q.exp() * (q - p)).sum(-1)
        expected = expected + 0.7 * both.mean() / 4  # half for the symmetry, half for start and end
    assert_same(module, loss, expected)
    assert statistics["divergence"] > 0
    assert len(module.parts("split")) == 1


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_r_drop_says_so_where_there_is_no_dropout(weight):
    batch, remarks = tiny_batches.batch(LENGTHS), []
    for dropout in (0.0, 0.1):
        module = objective("r_drop", dropout=dropout, divergence_weight=weight)
        _, _, statistics = module(batch, JOINT)
        remarks.append(module.method.remark({name: float(value) for name, value in statistics.items()}, 0.1))
    assert "no dropout" in remarks[0]
    assert remarks[1] is None


def freelb_by_hand(module: Objective, batch: Batch, steps: int, step_size: float, radius: float) -> torch.Tensor:
    """Algorithm 1 of Zhu et al. 2020 with autograd.grad, one window after the other; the loss, mean over windows."""
    losses = []
    for row in range(len(LENGTHS)):
        window = Batch(*(t if t is None else t[row : row + 1] for t in batch))
        e = words(module, window)
        u = 2 * uniform(SEED, steps * UPDATE, window.sample_id.numpy(), *e.shape[1:]) - 1
        delta = torch.from_numpy(u) * radius / (LENGTHS[row] * e.shape[-1]) ** 0.5
        delta = delta * window.attention_mask[..., None]
        for _ in range(steps):
            delta.requires_grad_()
            loss = nll(module, e + delta, window).mean()
            losses.append(loss / steps / len(LENGTHS))
            [g] = torch.autograd.grad(loss, delta, retain_graph=True)
            g = g * window.attention_mask[..., None]  # padding is not a part of the window
            delta = delta.detach() + step_size * g / g.norm()
            if delta.norm() > radius:
                delta = delta * radius / delta.norm()
    return sum(losses)


@pytest.mark.parametrize("radius", [0.2, 10.0])  # with and without the projection
def test_freelb(radius):
    module = objective("freelb", ascent_steps=3, step_size=0.15, radius=radius)
    batch = tiny_batches.batch(LENGTHS)
    expected = freelb_by_hand(module, batch, 3, 0.15, radius)
    reference = gradients(module, expected)
    module.zero_grad()
    total, norms = 0.0, []
    for loss, carried, _ in split(module, batch):
        (1024 * loss).backward()  # as a loss scaler does
        total += loss.item()
        norms.append(carried.delta.detach().flatten(1).norm(dim=1))
    assert total == pytest.approx(expected.item(), rel=1e-6)
    for name, gradient in reference.items():
        got = module.get_parameter(name).grad / 1024
        assert (got - gradient).norm() <= 1e-5 * gradient.norm() + 1e-12, name  # delta is float32
    assert max(norm.max().item() for norm in norms) <= radius * (1 + 1e-6)


@pytest.mark.parametrize("fault", [float("inf"), float("nan"), 0.0])
def test_freelb_stays_where_a_gradient_says_nothing(fault):
    """An overflow in fp16, which the engine skips, or a window of weight 0: the next pass is finite all the same."""
    module, batch = objective("freelb"), tiny_batches.batch(LENGTHS)
    parts = split(module, batch)
    loss, carried, _ = next(parts)
    loss.backward()
    carried.delta.grad[0] = fault
    before = carried.delta.detach().clone()
    loss, carried, _ = next(parts)
    assert loss.isfinite()
    assert torch.equal(carried.delta[0], before[0])
    assert not torch.equal(carried.delta[1], before[1])


def test_freelb_climbs_with_the_same_dropout():
    module, batch = objective("freelb", dropout=0.3, step_size=1e-9, radius=1e-9), tiny_batches.batch(LENGTHS)
    losses = []
    for loss, _, _ in split(module, batch):
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == pytest.approx(losses[2], rel=1e-6)
    again, _, _ = next(split(module, batch))  # the generator has moved on: another micro-batch drops other units
    assert again.item() != pytest.approx(losses[0], rel=1e-3)


def adversarial(module: Objective, batch: Batch, steps: int, step_size: float, penalty: float) -> torch.Tensor:
    """The ascent on Volpi et al.'s objective with steps of a given length, one window after the other."""
    rows = []
    for row, length in enumerate(LENGTHS):
        window = Batch(*(t if t is None else t[row : row + 1] for t in batch))
        e = words(module, window).detach()
        point, mask = e.clone(), window.attention_mask
        h = module.qa.model.base_model(inputs_embeds=e, attention_mask=mask).last_hidden_state.detach()
        for _ in range(steps):
            point.requires_grad_()
            states = module.qa.model.base_model(inputs_embeds=point, attention_mask=mask).last_hidden_state
            cost = ((states - h)[:, :length] ** 2).sum() / length / 2
            [g] = torch.autograd.grad(nll(module, point, window).sum() - penalty * cost, point)
            g = g * mask[..., None]
            point = (point + step_size * e[:, :length].norm() * g / g.norm()).detach()
        rows.append(point - e)
    return torch.cat(rows)


def test_adv_aug():
    module, batch = objective("adv_aug", step_size=0.05, penalty=0.5, mle_weight=0.3), tiny_batches.batch(LENGTHS)
    delta = adversarial(module, batch, 5, 0.05, 0.5)
    e = words(module, batch)
    clean, raised = nll(module, e, batch), nll(module, e + delta, batch)
    assert (raised > clean + 1e-3).all()  # it raises the loss of its inputs
    loss, _, statistics = module(batch, JOINT)
    assert statistics["nll_adversarial"] > statistics["nll_clean"]
    assert_same(module, loss, 0.3 * clean.mean() + 0.7 * raised.mean())


def test_the_distance_penalty_holds_h_back():
    batch = tiny_batches.batch(LENGTHS)

    def moved(penalty: float) -> float:
        module = objective("adv_aug", step_size=0.1, penalty=penalty)
        e = words(module, batch)
        delta = module.method.passes(0.0)[1].perturb(running_inputs(module, batch)).embeddings - e
        read = [module.qa(x, batch, hidden=True).hidden for x in (e, e + delta)]
        return (read[0] - read[1]).norm().item()

    assert moved(5.0) < 0.9 * moved(0.0)


def test_adv_aug_climbs_at_its_defaults_on_a_pretrained_encoder():
    """Objective up, by a small change of the input: steps that overshoot would leave unreadable text."""
    qa = ExtractiveQA.load(str(ENCODER), activation_checkpointing=False)
    torch.manual_seed(0)
    torch.nn.init.normal_(qa.model.qa_outputs.weight, std=0.02)
    module = Objective(qa, build(METHODS["adv_aug"](), qa.hidden_size, qa.embedding_size), SEED)
    batch = tiny_batches.batch((60, 90, 40), dtype=torch.float32)
    delta = module.method.passes(0.0)[1].perturb(running_inputs(module, batch)).embeddings - module.qa.embed(batch)
    with torch.no_grad():
        e = module.qa.embed(batch)
        before, after = (module._forward_without_dropout(batch, x) for x in (e, e + delta))
    real = batch.attention_mask
    cost = ((after.hidden - before.hidden).square().sum(-1) / 2 * real).sum(1) / real.sum(1)
    assert (after.nll - module.method.settings.penalty * cost > before.nll).all()
    assert 0 < delta.norm() < 0.02 * (e * real[..., None]).norm()


def test_adv_aug_touches_no_gradient_and_costs_its_steps():
    module, batch = objective("adv_aug", dropout=0.1, ascent_steps=4), tiny_batches.batch(LENGTHS)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    forwards, computed = [], []
    module.qa.register_forward_hook(lambda *_: forwards.append(module.qa.training))
    for parameter in module.qa.parameters():
        parameter.register_hook(lambda gradient: computed.append(gradient))
    module.method.passes(0.0)[1].perturb(running_inputs(module, batch))
    assert forwards == [False] * 4  # one forward a step, without dropout
    assert module.qa.training
    assert not computed  # no gradient of a parameter was ever made
    assert all((parameter.grad == 7.0).all() for parameter in module.parameters())
    module(batch, JOINT)
    assert forwards == [False] * 4 + [True] + [False] * 4 + [True]


@pytest.mark.parametrize("noise", ["additive", "fixed_mu", "fixed_sigma", "no_eps"])
def test_ablations_start_at_their_prior_and_log_what_they_learn(noise):
    module, batch = objective("swep", noise=noise, prior_variance=0.3), tiny_batches.batch(LENGTHS)
    _, _, statistics = module(batch, MEASURED)
    learned = {"additive": {"mu", "mu_distance", "sigma"}, "fixed_mu": {"sigma"}}.get(noise, {"mu", "mu_distance"})
    learned |= {"words_changed", "words_changed_clean"}
    ignored = {"nll_clean", "nll_noisy", "kl_per_token", "kl_per_window", "beta", "span_nats"}
    assert statistics.keys() - ignored == learned
    # KL(N(1, 1) || N(1, alpha)) per dimension, where sigma is fixed at 1
    d = module.qa.embedding_size
    expected = d * (1 / 0.3 - 1 + np.log(0.3)) / 2 if noise == "fixed_sigma" else 0.0
    assert statistics["kl_per_token"].item() == pytest.approx(expected, abs=0.01)
    if "mu" in learned:
        assert statistics["mu"].item() == pytest.approx(0.0 if noise == "additive" else 1.0, abs=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method):
    """A few steps of Adam lower the loss on clean text."""
    module, batch = objective(method), tiny_batches.batch(LENGTHS)
    before = nll(module, words(module, batch), batch).mean().item()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for update in range(10):
        optimizer.zero_grad()
        for loss, _, _ in split(module, batch, update):
            loss.backward()
        optimizer.step()
    assert nll(module, words(module, batch), batch).mean().item() < before - 0.1
