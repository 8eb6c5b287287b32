"""Encoders: padding, masks, and compiled models, which compute the same."""

from functools import partialmethod

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch._dynamo.testing import CompileCounterWithBackend

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch
from swep_ds.models import extractive
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches, tiny_models, tiny_objective


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_noise_at_padding_changes_only_the_softmaxs_denominator(architecture):
    """The published code of SWEP perturbs padding as well; here a perturbed embedding is zero there."""
    qa, batch = ExtractiveQA(tiny_models.model(architecture)).double().eval(), tiny_batches.batch()
    zeros, noisy = tiny_batches.outputs_with_zeros_and_with_noise_at_padding(qa, batch)
    token_NT = batch.attention_mask == 1
    torch.testing.assert_close(noisy.hidden[token_NT], zeros.hidden[token_NT])
    for before, after in zip(zeros.logits.unbind(1), noisy.logits.unbind(1), strict=True):
        torch.testing.assert_close(after[token_NT], before[token_NT])
    shift_NK = noisy.logits.logsumexp(-1) - zeros.logits.logsumexp(-1)
    torch.testing.assert_close(noisy.nll - zeros.nll, shift_NK.mean(1))
    assert (shift_NK.abs() > 1e-6).any() == (architecture != "deberta-v2")  # which masks its embeddings itself
    assert shift_NK[0].abs().max() < 1e-12  # the longest window has no padding


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, "xlnet", "llama"])
def test_columns_behind_the_width_have_no_probability_and_change_none(architecture):
    qa, narrow = ExtractiveQA(tiny_models.model(architecture)).double().eval(), tiny_batches.batch()
    plain, wide = (qa(qa.embed(batch), batch) for batch in (narrow, tiny_batches.rounded(narrow)))
    assert wide.logits.isfinite().all()
    log_p, log_q = plain.logits.log_softmax(-1), wide.logits.log_softmax(-1)
    assert (log_q[..., 12:].exp() == 0).all()
    rows = slice(None)
    if architecture == "deberta-v2":  # its padding attends to all columns alike, so that of windows with padding the
        rows = slice(1)  # softmax's denominator changes
        token_N1T = (narrow.attention_mask == 1)[:, None].expand_as(plain.logits)
        torch.testing.assert_close(wide.logits[..., :12][token_N1T], plain.logits[token_N1T])
    torch.testing.assert_close(log_q[rows, :, :12], log_p[rows], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(wide.nll[rows], plain.nll[rows], rtol=1e-9, atol=0)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_mask_that_masks_nothing_is_left_out_and_none_is_asked_for_its_values(architecture, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "all", lambda *_: pytest.fail("a mask's values were read"))
    qa = ExtractiveQA(tiny_models.model(architecture).eval())
    masks = []
    qa.model.register_forward_pre_hook(lambda _, args, inputs: masks.append(inputs["attention_mask"]), with_kwargs=True)
    full, padded = tiny_batches.batch((9, 9)), tiny_batches.batch((9, 7))._replace(lengths=(9, 7))
    with torch.no_grad():
        known, unknown, _ = (qa(qa.embed(b), b).nll for b in (full._replace(lengths=(9, 9)), full, padded))
    torch.testing.assert_close(known, unknown)
    for given, expected in zip(masks, (None, full.attention_mask, padded.attention_mask), strict=True):
        assert given is expected


@pytest.mark.slow
def test_lengths_compile_nothing_anew_and_change_no_number(tmp_path, monkeypatch):
    tiny_models.model("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    plain, compiled = tiny_objective.objective("swep"), tiny_objective.objective("swep")
    plain.qa = tiny_models.load(tmp_path).double().train()
    counter = CompileCounterWithBackend("eager")  # what load() asks for, with a compiler that takes no time
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend=counter))
    compiled.qa = tiny_models.load(tmp_path, compiled=True).double().train()
    assert list(compiled.state_dict()) == list(plain.state_dict())
    frames = []
    several = [(12, 7, 9), (20, 31, 20, 11), (9,) * 7]
    for update, lengths in enumerate(several):
        batch, results = tiny_batches.batch(lengths), []
        for objective in (plain, compiled):
            clean, noisy = (loss for loss, _, _ in tiny_objective.split(objective, batch, update))
            results.append((clean, noisy, tiny_objective.gradients(objective, clean + noisy)))
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
        frames.append(counter.frame_count)
    assert counter.op_count > 100  # the layer is in it
    assert frames == [2] * len(several)  # a graph for each of the two passes, of which one asks for hidden states
    compiled.qa.model.save_pretrained(tmp_path / "saved")
    saved, names = (load_file(tmp_path / folder / "model.safetensors").keys() for folder in ("saved", "."))
    assert saved == names


@pytest.fixture
def quick_compiler(monkeypatch):
    """Compiles without any C++, and forgets it after the test."""
    limit = torch._dynamo.config.recompile_limit
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    torch._dynamo.reset()
    yield
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.reset()


@pytest.mark.usefixtures("quick_compiler")
def test_a_compiled_model_may_checkpoint_activations_and_what_cannot_be_compiled_is_refused(tmp_path, monkeypatch):
    """transformers logs a message where a config asks for a cache as well, which no graph can hold."""
    tiny_models.model("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    windows, losses = tiny_batches.batch((12, 7), dtype=torch.float32), []
    for compiled in (False, True):
        qa = tiny_models.load(tmp_path, compiled=compiled, activation_checkpointing=True).train()
        losses.append(qa(qa.embed(windows), windows).nll.mean())
        losses[-1].backward()
    torch.testing.assert_close(losses[1], losses[0])
    torch._dynamo.reset()
    monkeypatch.setattr(extractive, "MAX_GRAPHS", 1)
    qa = tiny_models.load(tmp_path, compiled=True)
    qa.predict(windows)
    with pytest.raises(InputError, match=r"^train\.compile: PyTorch cannot compile bert \(.*: set it to false$"):
        qa(qa.embed(windows), windows, hidden=True)
    torch._dynamo.reset()
    monkeypatch.setattr(qa.model.bert, "forward", lambda *_, **__: torch._dynamo.graph_break())
    with pytest.raises(InputError, match=r"^train\.compile: PyTorch cannot compile bert \(.*: set it to false$"):
        qa.predict(windows)


def test_roberta_counts_positions_of_embeddings_as_those_of_ids():
    """Also behind the text, where its logits take part in the loss."""
    model = tiny_models.model("roberta").eval()
    ids = torch.tensor([[0, 9, 8, 7, 2], [0, 9, 2, 1, 1]])
    batch = Batch(ids, (ids != 1).long())
    qa = ExtractiveQA(model)
    with torch.no_grad():
        logits = qa(qa.embed(batch), Batch(*batch[:2], start_position=ids[:, 0], end_position=ids[:, 0])).logits
        plain = model(input_ids=ids, attention_mask=batch.attention_mask)
    torch.testing.assert_close(logits, torch.stack([plain.start_logits, plain.end_logits], 1))


def test_a_model_of_peft_is_run_without_its_wrapper():
    """`PeftModelForQuestionAnswering` drops token types."""
    bare = tiny_models.model("bert").eval()
    wrapped = get_peft_model(bare, LoraConfig(task_type="QUESTION_ANS", target_modules=["query"]))
    qa = ExtractiveQA(wrapped)
    assert qa.model is wrapped
    assert qa.base is bare
    ids = torch.tensor([[2, 9, 8, 3, 7, 9]])
    kinds = [Batch(ids, torch.ones_like(ids), types) for types in (0 * ids, (ids > 7).long())]
    with torch.no_grad():
        assert not torch.equal(qa.predict(kinds[0])[0], qa.predict(kinds[1])[0])
