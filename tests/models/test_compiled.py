"""A compiled model computes what the plain one computes, in few graphs, and never falls back to eager execution."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from swep_ds.errors import InputError
from swep_ds.models import extractive
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_models
from tests.support.tiny_batches import batch


@pytest.fixture
def compiled(tmp_path, monkeypatch) -> ExtractiveQA:
    """Loaded with train.compile; the backend runs the graphs without compiling any C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(extractive, "MOST_GRAPHS", 2)
    limit = torch._dynamo.config.recompile_limit
    tiny_models.model("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    torch._dynamo.reset()
    counters.clear()
    yield ExtractiveQA.load(str(tmp_path), compiled=True, activation_checkpointing=False)
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.reset()


def run(qa: ExtractiveQA, lengths: tuple[int, ...], **asked) -> tuple[torch.Tensor, torch.Tensor]:
    """The nll, and the gradient of the word embeddings."""
    windows, table = batch(lengths, dtype=torch.float32), qa.model.get_input_embeddings().weight
    nll = qa(qa.embed(windows), windows, **asked).nll
    [gradient] = torch.autograd.grad(nll.sum(), table)
    return nll, gradient


def test_it_is_the_plain_model_and_what_would_fall_back_is_refused(compiled):
    plain = ExtractiveQA(tiny_models.model("bert", num_hidden_layers=1))
    plain.load_state_dict(compiled.state_dict())
    plain.eval()
    for lengths in ((12, 7, 9), (20, 7), (5, 6, 5, 30)):
        torch.testing.assert_close(run(compiled, lengths), run(plain, lengths))
    assert counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(run(compiled, (9, 4), hidden=True), run(plain, (9, 4), hidden=True))
    assert counters["stats"]["unique_graphs"] == 2
    with (
        torch.no_grad(),
        pytest.raises(InputError, match=r"^train\.compile: bert takes more than 2 graphs: set it to false$"),
    ):
        compiled.predict(batch((12, 7), dtype=torch.float32))


def test_a_model_that_breaks_the_graph_is_refused(compiled):
    forward = compiled.model.bert.forward

    def broken(*args, **kwargs):
        torch._dynamo.graph_break()
        return forward(*args, **kwargs)

    compiled.model.bert.forward = broken
    with pytest.raises(InputError, match=r"^train\.compile: PyTorch cannot compile bert \(.*: set it to false$"):
        run(compiled, (12, 7))
