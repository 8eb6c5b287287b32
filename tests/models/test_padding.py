"""What stands at padding reaches no token: it only has a share of the softmax over a window's positions.

The published code of SWEP perturbs padding as well; here a perturbed embedding is zero there.
"""

import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.outputs import QAModel, QAOutput
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_batches, tiny_models


def with_zeros_and_with_noise(qa: QAModel, batch: Batch) -> list[QAOutput]:
    """The outputs with zeros and with noise at padding."""
    embeddings, mask_NT1 = qa.embed(batch).detach(), batch.attention_mask[..., None]
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0), dtype=embeddings.dtype)
    return [qa(embeddings * mask_NT1 + fill * (1 - mask_NT1), batch, hidden=True) for fill in (0, noise)]


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_noise_at_padding_changes_only_the_softmaxs_denominator(architecture):
    qa, batch = ExtractiveQA(tiny_models.model(architecture)).double().eval(), tiny_batches.batch()
    zeros, noisy = with_zeros_and_with_noise(qa, batch)
    token_NT = batch.attention_mask == 1
    torch.testing.assert_close(noisy.hidden[token_NT], zeros.hidden[token_NT])
    for before, after in zip(zeros.logits.unbind(1), noisy.logits.unbind(1), strict=True):
        torch.testing.assert_close(after[token_NT], before[token_NT])
    shift_NK = noisy.logits.logsumexp(-1) - zeros.logits.logsumexp(-1)
    torch.testing.assert_close(noisy.nll - zeros.nll, shift_NK.mean(1))
    assert (shift_NK.abs() > 1e-6).any() == (architecture != "deberta-v2")  # which masks its embeddings itself
    assert shift_NK[0].abs().max() < 1e-12  # the longest window has no padding


@pytest.mark.parametrize("architecture", tiny_models.SEQ2SEQ)
def test_noise_at_padding_changes_no_generated_answer(architecture):
    qa, batch = GenerativeQA(tiny_models.model(architecture)).double().eval(), tiny_batches.generative()
    zeros, noisy = with_zeros_and_with_noise(qa, batch)
    torch.testing.assert_close(noisy.logits, zeros.logits)
    torch.testing.assert_close(noisy.nll, zeros.nll)
