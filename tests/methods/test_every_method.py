"""Every method, around spans and generated answers: executions, weights, widths, precisions; and it learns."""

import pytest
import torch

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch
from swep_ds.methods import METHODS, build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches, tiny_models
from tests.support.tiny_objective import JOINT, gradients, objective, split

IN_ONE_STEP = [name for name, settings in METHODS.items() if settings.needs != "gradient"]


def windows(architecture: str, **options) -> Batch:
    if architecture in tiny_models.SEQ2SEQ:
        return tiny_batches.generative(**options)
    return tiny_batches.batch(**options)


def update(module: Objective, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of an update in `split` execution."""
    module.zero_grad()
    total = 0.0
    for loss, _, _ in split(module, batch):
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("architecture", tiny_models.SEQ2SEQ)
@pytest.mark.parametrize("method", IN_ONE_STEP)
def test_split_equals_joint(method, architecture):
    module, batch = objective(method, architecture), tiny_batches.generative()
    loss, split = update(module, batch)
    joint_loss = module(batch, JOINT)[0]
    assert loss == pytest.approx(joint_loss.item(), rel=1e-12)
    for name, gradient in gradients(module, joint_loss).items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
@pytest.mark.parametrize("method", METHODS)
def test_a_window_without_weight_changes_nothing_and_bfloat16_little(method, architecture):
    """A rank that has run out of windows takes part with such a one."""
    module, batch = objective(method, architecture), windows(architecture)
    first_two = Batch(*(t if t is None else t[:2] for t in batch))
    counted = torch.tensor([1.0, 1.0, 0.0])
    padded = batch._replace(weight=batch.weight * counted, token_weight=batch.token_weight * counted)
    (loss, with_it), (expected, without) = update(module, padded), update(module, first_two)
    assert loss == pytest.approx(expected, rel=1e-9)
    for name, gradient in without.items():
        torch.testing.assert_close(with_it[name], gradient, rtol=1e-6, atol=1e-12)
    batch = windows(architecture, dtype=torch.float32)
    exact = update(module.float(), batch)[0]
    assert update(module.bfloat16(), batch)[0] == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method):
    """A few steps of Adam lower the loss on clean text."""
    module, batch = objective(method), tiny_batches.batch()

    def clean_nll() -> float:
        with torch.no_grad():
            return module.qa(module.qa.embed(batch), batch).nll.mean().item()

    before = clean_nll()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for number in range(10):
        optimizer.zero_grad()
        for loss, _, _ in split(module, batch, number):
            loss.backward()
        optimizer.step()
    assert clean_nll() < before - 0.1


@pytest.mark.parametrize("width", [6, 16])
@pytest.mark.parametrize("method", METHODS)
def test_a_width_is_refused_before_training_or_trained_with(method, width):
    qa = ExtractiveQA(tiny_models.model("bert", hidden_size=width))
    settings = METHODS[method]()
    if settings.draws_noise and width % 4:
        with pytest.raises(InputError, match=rf"^model\.name: its word embeddings are {width} wide, .* {method} draws"):
            build(settings, qa.hidden_size, qa.embedding_size)
        return
    module = Objective(qa, build(settings, qa.hidden_size, qa.embedding_size), seed=1).train()
    update(module, tiny_batches.batch(dtype=torch.float32))
    assert all(parameter.grad is not None for parameter in qa.model.qa_outputs.parameters())
