"""The micro-steps of an update: which passes each of them runs, with which noise, and what the engine needs of them."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from swep_ds.methods.base import Method, MicroStep, Pass, PassState


class Key(NamedTuple):
    """What keys the noise of a pass, with its sample ids."""

    seed: int | Tensor  # the run's
    draw: int | Tensor  # `Inputs.draw`


def split(passes: list[Pass]) -> list[list[int]]:
    """The passes' numbers by micro-step, which ends with a pass that trains, unless the next is compared with it."""
    groups: list[list[int]] = [[]]
    for number, pass_ in enumerate(passes):
        if pass_.compares:
            groups[-2:] = [groups[-2] + groups[-1]]
        groups[-1].append(number)
        if pass_.trains:
            groups.append([])
    return groups[:-1]


def passes_of(method: Method, step: MicroStep, seed: int) -> list[tuple[Pass, Key | None]]:
    """`Objective.passes`. A CUDA graph reads the numbers of the update on the device (`MicroStep.scalars`)."""
    passes = method.passes(step.progress)
    perturbed = [number for number, pass_ in enumerate(passes) if pass_.perturb]
    first = Key(seed, step.update * len(perturbed))
    if step.scalars:
        first = Key(step.scalars.seed, step.scalars.draw)
        for number in perturbed:
            if passes[number].trains:
                passes[number] = replace(passes[number], kl_weight=step.scalars.kl_weights[number])
    keys = {number: Key(first.seed, first.draw + k) for k, number in enumerate(perturbed)}
    numbers = range(len(passes))
    if step.part is not None:
        numbers = split(passes)[step.part]
    return [(passes[number], keys.get(number)) for number in numbers]


def with_networks(loss: Tensor, method: Method, embeddings: Tensor, hidden_size: int) -> Tensor:
    """The same loss, after the method's networks have run on a token of zeros, for a micro-step without noise.

    ZeRO-3 needs a gradient for each parameter in an update's first micro-step, and modules that all micro-steps call in
    the same order: call it where a perturbation would run the networks.
    """
    token = embeddings.new_zeros(1, 1, hidden_size)
    for network in method.children():
        loss = loss + 0.0 * network(token).float().sum()
    return loss


def generator(device: torch.device):
    """What has `get_rng_state` and `set_rng_state` of the generator that dropout on this device draws from."""
    if device.type == "cpu":
        return torch
    return torch.get_device_module(device)


def repeat_dropout(carried: PassState, device: torch.device) -> PassState:
    """Restores the carried generator state, or carries the present one: the passes then drop the same units."""
    if carried.dropout is None:
        return replace(carried, dropout=generator(device).get_rng_state())
    generator(device).set_rng_state(carried.dropout)
    return carried
