"""transformers' mask functions: replaced while any prediction runs, in any thread, and put back after the last."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as FUNCTIONS

from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.masks import WITHOUT_SYNC, given_masks
from tests.support import tiny_batches, tiny_models


@pytest.mark.parametrize("own", [False, True])
def test_blocks_that_overlap_put_the_functions_back_after_the_last(own, request):
    if own:  # of the host
        FUNCTIONS["sdpa"] = lambda *_, **__: None
        request.addfinalizer(lambda: FUNCTIONS.__delitem__("sdpa"))
    before = {name: FUNCTIONS[name] for name in WITHOUT_SYNC}
    first, second = given_masks(), given_masks()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert {name: FUNCTIONS[name] for name in WITHOUT_SYNC} == WITHOUT_SYNC
    second.__exit__(None, None, None)
    assert {name: FUNCTIONS[name] for name in WITHOUT_SYNC} == before


def test_threads_predict_beside_each_other():
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
