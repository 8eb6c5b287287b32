"""PyTorch's switch of cuDNN's attention: off in predictions, and after them as it was."""

import pytest
import torch
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp

from swep_ds.models.backends import without_cudnn_attention
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_batches, tiny_models


@pytest.mark.parametrize(("kind", "architecture"), [(ExtractiveQA, "bert"), (GenerativeQA, "t5")])
def test_no_prediction_takes_it(kind, architecture):
    plain, seen = tiny_models.model(architecture).eval(), set()
    plain.register_forward_hook(lambda *_: seen.add(cudnn_sdp_enabled()))
    batch = tiny_batches.batch() if kind is ExtractiveQA else tiny_batches.generative()
    with torch.no_grad():
        kind(plain).predict(batch)
    assert seen == {False}
    assert cudnn_sdp_enabled()


@pytest.mark.parametrize("before", [True, False])
def test_blocks_that_overlap_leave_it_as_it_was_before_the_first(before):
    enable_cudnn_sdp(before)
    try:
        first, second = without_cudnn_attention(), without_cudnn_attention()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not cudnn_sdp_enabled()
        second.__exit__(None, None, None)
        assert cudnn_sdp_enabled() is before
    finally:
        enable_cudnn_sdp(True)
