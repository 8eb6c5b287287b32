"""Model FLOPs against what PyTorch counts in the operations themselves, and by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForQuestionAnswering

from swep_ds.cost.flops import Flops, count, peak_flops
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import split

# wide enough that the first layer's and the head's peculiarities do not matter
SHAPE = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"intermediate_size": 256, "max_position_embeddings": 64, "attn_implementation": "eager"}


def objective(method: str) -> Objective:
    qa = ExtractiveQA(BertForQuestionAnswering(BertConfig(**SHAPE)))
    return Objective(qa, build(METHODS[method](name=method), 64, 64), seed=0).train()


@pytest.mark.parametrize(
    ("method", "lengths"), [("mle", (12, 12)), ("mle", (48,)), ("swep", (48,)), ("adv_aug", (48,)), ("pdr", (48,))]
)
def test_they_are_those_of_the_operations_where_nothing_is_padding(method, lengths):
    module, windows = objective(method), batch(lengths, dtype=torch.float32)

    def update(windows, number):
        for loss, _, _ in split(module, windows, number):
            loss.backward()

    with FlopCounterMode(display=False) as counted:
        update(windows, 0)
    assert count(module, module.qa, update, windows).of(lengths) == pytest.approx(counted.get_total_flops(), rel=0.02)


def test_padding_is_not_counted():
    module = objective("mle")

    def update(windows, number):
        module(windows, MicroStep(number))[0].backward()

    full, padded = (
        count(module, module.qa, update, batch(lengths, dtype=torch.float32)) for lengths in [(12, 12), (12, 3)]
    )
    assert full == pytest.approx(padded)
    d, inner, layers = 64, 256, 2
    # forward and backward; query, key, value, output, the two of the feed-forward, and the head's two columns
    assert full.per_token == 6 * (layers * (4 * d * d + 2 * d * inner) + 2 * d)
    assert full.per_square == 3 * 4 * layers * d
    assert Flops(10, 3).of([2, 5]) == 10 * 7 + 3 * (4 + 25)


def test_peaks_go_by_name_and_precision():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak_flops("NVIDIA H200", "fp32") == 67e12
    assert peak_flops("NVIDIA H200", "tf32") == 494e12
    assert peak_flops("NVIDIA H100 PCIe", "autocast") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops("an unknown card", "bf16") is None
