"""A method around a tiny model in float64, as the engine would call it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from swep_ds.data.batches import Batch
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import Inputs, MicroStep, PassState
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_batches, tiny_models

SEED, UPDATE = 2**40 + 7, 5
JOINT, MEASURED = MicroStep(UPDATE), MicroStep(UPDATE, measure=True, compare=True)  # all passes at once


def objective(method: str, architecture: str = "bert", dropout: float = 0.0, **settings) -> Objective:
    qa_class = GenerativeQA if architecture in tiny_models.SEQ2SEQ else ExtractiveQA
    qa = qa_class(tiny_models.model(architecture, dropout))
    torch.manual_seed(1)
    module = build(METHODS[method](name=method, **settings), qa.hidden_size, qa.embedding_size)
    return Objective(qa, module, SEED).double().train()


def windows(architecture: str, **options) -> Batch:
    make = tiny_batches.generative if architecture in tiny_models.SEQ2SEQ else tiny_batches.batch
    return make(**options)


def away_from_the_prior(module: Objective) -> Objective:
    """With noise that differs from token to token, and no gradient of zero."""
    torch.manual_seed(2)
    for parameter in module.method.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def split(
    module: Objective, batch: Batch, update: int = UPDATE, *, progress: float = 0.0, measure: bool = False
) -> Iterator[tuple[torch.Tensor, PassState, dict[str, torch.Tensor]]]:
    """The micro-steps of `split` execution one after the other; the caller goes backward between two."""
    carried = PassState()
    for part in module.parts("split"):
        loss, carried, statistics = module(batch, MicroStep(update, progress, part, carried, measure, compare=measure))
        yield loss, carried, statistics


def gradients(module: Objective, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def inputs(module: Objective, batch: Batch, draw: int, hidden: torch.Tensor | None = None) -> Inputs:
    """The inputs of a perturbation that does not run the model."""
    return Inputs(module.qa.embed(batch), batch, SEED, draw, PassState(hidden), forward=None)


def running_inputs(module: Objective, batch: Batch) -> Inputs:
    """The inputs of a perturbation that runs the model."""
    return replace(inputs(module, batch, draw=1), forward=partial(module._without_dropout, batch))
