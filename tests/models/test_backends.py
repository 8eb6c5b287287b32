"""Global switches of a process: set while any prediction runs, in any thread, and after the last as they were."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.backends.cuda import cudnn_sdp_enabled
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASK_FUNCTIONS

from swep_ds.models.backends import WITHOUT_SYNC
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


def test_threads_predict_at_the_same_time():
    qa, batch = ExtractiveQA(tiny_models.model("bert").eval()).double(), tiny_batches.batch()
    before = masks()

    @torch.no_grad()
    def predict(_) -> torch.Tensor:
        return qa.predict(batch)[0]

    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(logits, predict(0)) for logits in pool.map(predict, range(40)))
    assert (cudnn_sdp_enabled(), masks()) == (True, before)
