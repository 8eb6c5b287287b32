"""The losses of all methods written a second time: one window after the other, in plain PyTorch, from the equations.

Without dropout. Shares with the package the settings and the number of the draw that keys the noise.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from transformers import PreTrainedModel

from swep_ds.data.batches import IGNORED, Batch
from swep_ds.methods.settings import Settings
from tests.support.perturb_reference import normal, philox, uniform


class Reading(NamedTuple):
    """What the model makes of a window: its negative log-likelihood, its distributions, its states after each layer."""

    nll: Tensor
    answers: Categorical
    states: tuple[Tensor, ...]


class Window(NamedTuple):
    """A batch of one window of `length` tokens, in a model."""

    model: PreTrainedModel
    batch: Batch
    seed: int
    draw: int

    @property
    def length(self) -> int:
        return int(self.batch.attention_mask.sum())

    def words(self) -> Tensor:
        """e [1, T, d]."""
        model = self.model.get_encoder() if self.model.config.is_encoder_decoder else self.model
        return model.get_input_embeddings()(self.batch.input_ids)

    def drawn(self, draw: Callable, like: Tensor) -> Tensor:
        """[1, T, d] numbers."""
        drawn = draw(self.seed, self.draw, self.batch.sample_id.numpy(), *like.shape[1:])
        return torch.from_numpy(drawn).to(like.dtype)

    def of_tokens(self, values: Tensor) -> Tensor:
        """The values with zeros at padding."""
        return values * self.batch.attention_mask[..., None]

    def read(self, embeddings: Tensor) -> Reading:
        inputs = {"inputs_embeds": embeddings, "attention_mask": self.batch.attention_mask}
        inputs["output_hidden_states"] = True
        if self.model.config.is_encoder_decoder:
            output = self.model(**inputs, labels=self.batch.target_ids)
            logits, states = output.logits[0], output.encoder_hidden_states
            targets = self.batch.target_ids[0]
            logits, targets = logits[targets != IGNORED], targets[targets != IGNORED]
        else:
            output = self.model(**inputs, token_type_ids=self.batch.token_type_ids)
            logits, states = torch.cat([output.start_logits, output.end_logits]), output.hidden_states
            targets = torch.cat([self.batch.start_position, self.batch.end_position])
        answers = Categorical(logits=logits)
        return Reading(-answers.log_prob(targets).mean(), answers, states[1:])


def windows(model: PreTrainedModel, batch: Batch, seed: int, draw: int) -> Iterator[Window]:
    for row in range(len(batch.input_ids)):
        alone = Batch(*(part[row : row + 1] if isinstance(part, Tensor) else None for part in batch))
        yield Window(model, alone, seed, draw)


def both_directions(first: Reading, second: Reading) -> Tensor:
    """KL(p || q) + KL(q || p), the mean over the window's predictions."""
    p, q = first.answers, second.answers
    return (kl_divergence(p, q) + kl_divergence(q, p)).mean()


def along(gradient: Tensor, window: Window, length: float) -> Tensor:
    """The gradient by the window's tokens, at this length."""
    gradient = window.of_tokens(gradient)
    return length * gradient / gradient.square().sum().sqrt()


def mle(window: Window, settings: Settings, _) -> Tensor:
    return window.read(window.words()).nll


def prior_aug(window: Window, settings: Settings, _) -> Tensor:
    e, lam = window.words(), settings.mle_weight
    z = 1 + settings.prior_variance**0.5 * window.drawn(normal, e)
    return lam * window.read(e).nll + (1 - lam) * window.read(window.of_tokens(e * z)).nll


def gaussian_dropout(window: Window, settings: Settings, _) -> Tensor:
    e, p = window.words(), settings.drop_probability
    return window.read(window.of_tokens(e * (1 + (p / (1 - p)) ** 0.5 * window.drawn(normal, e)))).nll


def bernoulli_dropout(window: Window, settings: Settings, _) -> Tensor:
    e, p = window.words(), settings.drop_probability
    return window.read(torch.where(window.drawn(uniform, e) >= p, e / (1 - p), 0.0)).nll


def word_dropout(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    kept = window.drawn(uniform, e[..., :4])[..., :1] >= settings.drop_probability
    return window.read(torch.where(kept, e, 0.0)).nll


def neftune(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    scale = settings.noise_alpha / (window.length * e.shape[-1]) ** 0.5
    return window.read(e + scale * (2 * window.drawn(uniform, e) - 1)).nll


def freelb(window: Window, settings: Settings, _) -> Tensor:
    """Algorithm 1 of Zhu et al. 2020; padding is not a part of the window."""
    e, radius, total = window.words(), settings.radius, 0.0
    delta = window.of_tokens(2 * window.drawn(uniform, e) - 1) * radius / (window.length * e.shape[-1]) ** 0.5
    for _ in range(settings.ascent_steps):
        delta.requires_grad_()
        loss = window.read(e + delta).nll
        total = total + loss / settings.ascent_steps
        [gradient] = torch.autograd.grad(loss, delta, retain_graph=True)
        delta = delta.detach() + along(gradient, window, settings.step_size)
        if delta.norm() > radius:
            delta = delta * radius / delta.norm()
    return total


def adv_aug(window: Window, settings: Settings, _) -> Tensor:
    """The ascent on Volpi et al.'s objective with steps of a given length."""
    e, lam = window.words(), settings.mle_weight
    base = e.detach()
    h, point = window.read(base).states[-1].detach(), base.clone()
    for _ in range(settings.ascent_steps):
        point.requires_grad_()
        reading = window.read(point)
        cost = (reading.states[-1] - h)[:, : window.length].square().sum() / window.length / 2
        [gradient] = torch.autograd.grad(reading.nll - settings.penalty * cost, point)
        point = (point + along(gradient, window, settings.step_size * window.of_tokens(base).norm())).detach()
    return lam * window.read(e).nll + (1 - lam) * window.read(e + point - base).nll


def r3f(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    noise = 2 * window.drawn(uniform, e) - 1
    clean, noisy = window.read(e), window.read(e + settings.noise_size * window.of_tokens(noise))
    return clean.nll + settings.divergence_weight * both_directions(clean, noisy)


def pdr(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    base, start = e.detach(), settings.start_size * window.of_tokens(window.drawn(normal, e))
    start.requires_grad_()
    divergence = both_directions(window.read(base), window.read(base + start))
    [gradient] = torch.autograd.grad(divergence, start)
    clean, adversarial = window.read(e), window.read(e + along(gradient, window, settings.epsilon))
    return clean.nll + settings.divergence_weight * both_directions(clean, adversarial)


def fgm(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    clean = window.read(e)
    [gradient] = torch.autograd.grad(clean.nll, e, retain_graph=True)
    return clean.nll + window.read(e + along(gradient, window, settings.epsilon)).nll


def symnoise(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    signs = torch.where(window.drawn(uniform, e) < 0.5, -1.0, 1.0)
    delta = settings.noise_alpha / (window.length * e.shape[-1]) ** 0.5 * window.of_tokens(signs)
    return (window.read(e + delta).nll + window.read(e - delta).nll) / 2


def lnsr(window: Window, settings: Settings, _) -> Tensor:
    e = window.words()
    size = settings.noise_scale * e.detach().square().mean(-1, keepdim=True).sqrt()  # each dimension's
    clean, noisy = window.read(e), window.read(e + window.of_tokens(size * window.drawn(normal, e)))
    length = window.length
    distances = [(a - b)[0, :length].square().sum() / length for a, b in zip(clean.states, noisy.states, strict=True)]
    return clean.nll + settings.distance_weight * sum(distances) / len(distances)


def shuffled(seed: int, draw: int, sample_id: int, length: int, width: int) -> np.ndarray:
    """Where each position of a window takes its mu and sigma from, [T]: real tokens by their third Philox word."""
    key = ~seed % 2**64
    counter = (np.zeros(length, int), np.arange(length), np.full(length, sample_id), np.full(length, draw))
    return np.append(np.argsort(philox(counter, (key % 2**32, key >> 32))[2]), np.arange(length, width))


def under_noise(window: Window, settings: Settings, parameters: Tensor) -> tuple[Reading, Tensor]:
    """The reading under noise with these differences from its prior, of Section 5.1's kinds, and the noise's KL."""
    e, length, alpha = window.words(), window.length, settings.prior_variance
    kind, mean = settings.noise, 0.0 if settings.noise == "additive" else 1.0
    if kind == "shuffled":
        parameters = parameters[:, shuffled(window.seed, window.draw, int(window.batch.sample_id), length, e.shape[1])]
    delta, log_ratio = parameters.chunk(2, -1)
    mu = torch.ones_like(delta) if kind == "fixed_mu" else mean + delta
    sigma = torch.ones_like(delta) if kind == "fixed_sigma" else alpha**0.5 * (log_ratio / 2).exp()
    z = mu if kind == "no_eps" else mu + sigma * window.drawn(normal, e)
    noisy = window.read(window.of_tokens(e + z if kind == "additive" else e * z))
    posterior = Normal(mu, alpha**0.5 if kind == "no_eps" else sigma)
    return noisy, kl_divergence(posterior, Normal(mean, alpha**0.5))[0, :length].sum()


def swep(window: Window, settings: Settings, generator: nn.Module) -> Tensor:
    """Eq. 1-4 of Lee et al. 2021 with half the sum of both KLs between clean and noisy predictions."""
    lam, clean = settings.mle_weight, window.read(window.words())
    noisy, kl = under_noise(window, settings, generator(clean.states[-1].detach()))
    if settings.kl_reduction == "mean":  # over the batch's tokens, where all else is over its windows
        kl = kl * window.batch.token_weight.item() / window.batch.weight.item()
    loss = lam * clean.nll + (1 - lam) * (noisy.nll + settings.beta * kl)
    return loss + settings.divergence_weight * both_directions(clean, noisy) / 2


LOSSES = {loss.__name__: loss for loss in (mle, prior_aug, gaussian_dropout, bernoulli_dropout, word_dropout, neftune)}
LOSSES |= {loss.__name__: loss for loss in (freelb, adv_aug, r3f, pdr, fgm, symnoise, lnsr, swep)}


def loss(
    model: PreTrainedModel, batch: Batch, settings: Settings, seed: int, draw: int, generator: nn.Module | None = None
) -> Tensor:
    """The loss of a method on a batch; `generator` takes h to mu - 1 and log(sigma^2 / alpha), for "swep"."""
    parts = [LOSSES[settings.name](window, settings, generator) for window in windows(model, batch, seed, draw)]
    return (batch.weight * torch.stack(parts)).sum()
