"""Global switches of a process: set while any prediction runs, in any thread, and after the last as they were."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS

from swep_ds.models.backends import WITHOUT_SYNC, given_masks, without_cudnn_attention
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_batches, tiny_models


def masks() -> dict:
    return {name: MASK_FUNCTIONS[name] for name in WITHOUT_SYNC}


@pytest.mark.parametrize(("kind", "architecture"), [(ExtractiveQA, "bert"), (GenerativeQA, "t5")])
def test_predictions_take_no_cudnn_attention_and_the_masks_that_they_are_given(kind, architecture):
    plain, seen, before = tiny_models.model(architecture).eval(), [], masks()
    plain.register_forward_hook(lambda *_: seen.append((cudnn_sdp_enabled(), masks())))
    batch = tiny_batches.batch() if kind is ExtractiveQA else tiny_batches.generative()
    with torch.no_grad():
        kind(plain).predict(batch)
    assert all(state == (False, WITHOUT_SYNC) for state in seen)
    assert (cudnn_sdp_enabled(), masks()) == (True, before)


@pytest.mark.parametrize("before", [True, False])
def test_blocks_leave_all_as_it_was(before):
    functions = masks()
    enable_cudnn_sdp(before)
    try:
        with without_cudnn_attention(), given_masks():
            with without_cudnn_attention(), given_masks():
                pass
            assert (cudnn_sdp_enabled(), masks()) == (False, WITHOUT_SYNC)
        assert (cudnn_sdp_enabled(), masks()) == (before, functions)
    finally:
        enable_cudnn_sdp(True)


def test_threads_predict_at_the_same_time():
    qa, batch, meet = ExtractiveQA(tiny_models.model("bert").eval()).double(), tiny_batches.batch(), Barrier(4)

    def predict(_) -> list[torch.Tensor]:
        meet.wait()
        with torch.no_grad():
            return [qa.predict(batch)[0] for _ in range(20)]

    with torch.no_grad():
        expected = qa.predict(batch)[0]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(predict, range(4)):
            assert all(torch.equal(each, expected) for each in found)
