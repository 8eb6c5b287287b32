"""What the noise does, against the equations in NumPy and plain PyTorch; and that measuring it changes nothing."""

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from swep_ds.data.batches import IGNORED, Batch
from swep_ds.methods.base import NoiseKey
from swep_ds.methods.noise_effect import shuffle
from swep_ds.methods.objective import Objective
from tests.support import tiny_batches
from tests.support.methods_reference import shuffled
from tests.support.perturb_reference import normal
from tests.support.tiny_objective import MEASURED, SEED, UPDATE, objective

NAMES = {f"{answer}_nll_{noise}" for answer in ("gold", "guess") for noise in ("learned", "shuffled", "prior")}


def batch_of(architecture: str) -> Batch:
    return tiny_batches.generative() if architecture == "t5" else tiny_batches.batch()


def learned(architecture: str = "bert", **settings) -> Objective:
    """An objective whose noise differs from token to token."""
    module = objective("swep", architecture, **settings)
    torch.manual_seed(2)
    for parameter in module.method.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.parametrize(
    ("architecture", "noise"), [("bert", "no_eps"), ("electra", "learned"), ("bert", "additive"), ("t5", "fixed_sigma")]
)
def test_it_is_the_nll_under_the_three_kinds_of_noise(architecture, noise):
    alpha = 0.3
    module = learned(architecture, dropout=0.3, noise_dropout=0.3, noise=noise, prior_variance=alpha)
    batch = batch_of(architecture)
    got = module(batch, MEASURED)[2]
    assert {name for name in got if "_nll_" in name} == NAMES
    module.eval()  # the reference needs no other precaution against dropout
    e, mask = module.qa.embed(batch), batch.attention_mask

    def logits_and_h(embeddings):
        if architecture == "t5":
            decoded = module.qa.model.prepare_decoder_input_ids_from_labels(labels=batch.target_ids)
            out = module.qa.model(inputs_embeds=embeddings, attention_mask=mask, decoder_input_ids=decoded)
            return list(out.logits.unbind(1)), out.encoder_last_hidden_state
        out = module.qa.model(inputs_embeds=embeddings, attention_mask=mask, output_hidden_states=True)
        return [out.start_logits, out.end_logits], out.hidden_states[-1]

    logits, h = logits_and_h(e)
    gold = [*batch.target_ids.T] if architecture == "t5" else [batch.start_position, batch.end_position]
    counted = torch.stack([target != IGNORED for target in gold]).double()
    guess = [scores.argmax(-1) for scores in logits]
    net = module.method.noise
    inner = torch.relu(h @ net.inner.weight.T + net.inner.bias)
    mean = 0.0 if noise == "additive" else 1.0
    mu, log_variance = (inner @ net.difference.weight.T + net.difference.bias).chunk(2, -1)
    mu, log_variance = mean + mu, np.log(alpha) + log_variance
    if noise == "fixed_sigma":
        log_variance = torch.zeros_like(mu)
    eps = torch.from_numpy(normal(SEED, UPDATE, batch.sample_id.numpy(), e.shape[1], e.shape[2])) * (noise != "no_eps")
    windows = zip(batch.sample_id.tolist(), (12, 7, 9), strict=True)
    moved = np.stack([shuffled(SEED, UPDATE, sample_id, length, 12) for sample_id, length in windows])
    rows = np.arange(3)[:, None]
    drawn = {
        "learned": mu + (log_variance / 2).exp() * eps,
        "shuffled": mu[rows, moved] + (log_variance / 2).exp()[rows, moved] * eps,
        "prior": mean + (1.0 if noise == "fixed_sigma" else alpha**0.5) * eps,
    }
    for name, z in drawn.items():
        noisy, _ = logits_and_h((e + z if noise == "additive" else e * z) * mask[:, :, None])
        for answer, targets in (("gold", gold), ("guess", guess)):
            pairs = zip(noisy, targets, strict=True)
            nll = -torch.stack([scores.log_softmax(-1).gather(1, t.clamp(0)[:, None])[:, 0] for scores, t in pairs])
            expected = ((nll * counted).sum(0) / counted.sum(0)).mean()
            assert got[f"{answer}_nll_{name}"].item() == pytest.approx(expected.item(), rel=1e-6), (answer, name)
    values = {round(got[name].item(), 9) for name in NAMES}
    assert len(values) == len(NAMES)


def test_it_is_a_mean_over_windows_however_they_are_split():
    """A rank that has run out of windows takes part with one of weight 0."""
    module, batch = learned(), tiny_batches.batch()
    whole = module(batch, MEASURED)[2]
    parts = [Batch(*(None if t is None else t[rows] for t in batch)) for rows in ([0], [1, 2], [0])]
    parts[2] = parts[2]._replace(weight=0 * parts[2].weight, token_weight=0 * parts[2].token_weight)
    seen = [module(part, MEASURED)[2] for part in parts]
    for name in NAMES:
        assert sum(statistics[name] for statistics in seen).item() == pytest.approx(whole[name].item(), rel=1e-9)


def test_a_windows_shuffle_depends_only_on_its_key():
    batch, key = tiny_batches.batch((6, 12, 9, 7)), NoiseKey(SEED, UPDATE)
    values = torch.arange(4 * 12.0).view(4, 12, 1)
    whole = shuffle(values, batch, key)
    some = Batch(*(None if t is None else t[[2, 0]] for t in batch))
    wider = some._replace(input_ids=pad(some.input_ids, (0, 5)), attention_mask=pad(some.attention_mask, (0, 5)))
    assert torch.equal(shuffle(pad(values[[2, 0]], (0, 0, 0, 5)), wider, key)[:, :12], whole[[2, 0]])
    for other in (NoiseKey(SEED, UPDATE + 1), NoiseKey(SEED + 1, UPDATE)):
        assert not torch.equal(shuffle(values, batch, other), whole)
    left = batch._replace(attention_mask=batch.attention_mask.flip(1))  # padding on the left
    for row, mask in zip(shuffle(values, left, key)[:, :, 0], left.attention_mask.bool(), strict=True):
        assert torch.equal(row[~mask], torch.arange(12.0)[~mask] + row[0] - row[0] % 12)
        assert torch.equal(row[mask].sort().values % 12, torch.arange(12.0)[mask])
    alike = batch._replace(attention_mask=torch.ones_like(batch.attention_mask))
    orders = shuffle(values - values[:, :1], alike, key)[:, :, 0]
    assert len({tuple(row) for row in orders.tolist()}) == 4  # every window has an order of its own
