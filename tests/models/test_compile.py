"""A compiled model: the same losses and gradients, compiled once for all lengths, the same names of parameters."""

from functools import partialmethod

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.testing import CompileCounterWithBackend

from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches, tiny_models, tiny_objective


@pytest.mark.slow
def test_lengths_compile_nothing_anew_and_change_no_number(tmp_path, monkeypatch):
    tiny_models.model("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    plain, compiled = tiny_objective.objective("swep"), tiny_objective.objective("swep")
    plain.qa = ExtractiveQA.load(str(tmp_path), activation_checkpointing=False).double().train()
    counter = CompileCounterWithBackend("eager")  # what load() asks for, with a compiler that takes no time
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=counter))
    compiled.qa = ExtractiveQA.load(str(tmp_path), compiled=True, activation_checkpointing=False).double().train()
    assert list(compiled.state_dict()) == list(plain.state_dict())
    frames = []
    several = [(12, 7, 9), (10, 3), (20, 31, 20, 11), (30, 30, 5), (9,) * 7]
    for update, lengths in enumerate([*several, (5,), (9,)]):
        batch, found = tiny_batches.batch(lengths), []
        for made in (plain, compiled):
            loss, more = (one for one, _, _ in tiny_objective.split(made, batch, update))
            found.append((loss, more, tiny_objective.gradients(made, loss + more)))
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
        frames.append(counter.frame_count)
    assert counter.op_count > 100  # the layer is in it
    # a graph for each of the two passes, of which one asks for hidden states; a batch of one window has its own
    assert frames == [2] * len(several) + [4, 4]
    compiled.qa.model.save_pretrained(tmp_path / "saved")
    saved, names = (load_file(tmp_path / folder / "model.safetensors").keys() for folder in ("saved", "."))
    assert saved == names
