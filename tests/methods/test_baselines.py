"""What the paper's baselines and ablations do beside their equations."""

import numpy as np
import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.data.quickstart import ENCODER
from swep_ds.methods import METHODS, build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches
from tests.support.tiny_objective import (
    JOINT,
    MEASURED,
    SEED,
    gradients,
    inputs,
    objective,
    running_inputs,
)

LENGTHS = (12, 7, 9)


def words(module: Objective, batch: Batch) -> torch.Tensor:
    return module.qa.model.get_input_embeddings()(batch.input_ids)


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
    read = [module.qa.model(inputs_embeds=words(module, batch), attention_mask=batch.attention_mask) for _ in range(2)]
    expected = 0.0
    for part, target in (("start_logits", batch.start_position), ("end_logits", batch.end_position)):
        p, q = (output[part].log_softmax(-1) for output in read)
        assert not torch.equal(p, q)  # their dropout differs
        for log_probability in (p, q):
            expected = expected - log_probability.gather(1, target[:, None]).mean() / 4
        both = (p.exp() * (p - q)).sum(-1) + (q.exp() * (q - p)).sum(-1)
        expected = expected + 0.7 * both.mean() / 4  # half for the symmetry, half for start and end
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # shares of a window are float32
    got, reference = gradients(module, loss), gradients(module, expected)
    for name, gradient in reference.items():
        assert (got[name] - gradient).norm() <= 1e-6 * gradient.norm() + 1e-12, name
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
