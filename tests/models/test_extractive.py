"""Every architecture: the loss and h from word embeddings are those of the plain model from token ids."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import ViTConfig

from swep_ds.errors import InputError
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.masks import use_given_masks
from tests.support import tiny_batches, tiny_models


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_from_embeddings_equals_the_plain_model(architecture):
    plain = tiny_models.model(architecture).eval()
    qa, batch = ExtractiveQA(plain), tiny_batches.batch()
    embeddings = qa.embed(batch)
    assert embeddings.shape == (3, 12, qa.embedding_size)
    with torch.no_grad():
        nll, _, _, hidden = qa(embeddings, batch, hidden=True)
        expected = plain(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        states = plain.base_model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        start, end = qa.predict(batch)
    real = batch.attention_mask.bool()
    torch.testing.assert_close(hidden[real], states[real])
    assert hidden.shape[-1] == qa.hidden_size
    for got, logits in ((start, expected.start_logits), (end, expected.end_logits)):
        torch.testing.assert_close(got, logits, rtol=0, atol=0)
    by_hand = cross_entropy(expected.start_logits, batch.start_position, reduction="none")
    by_hand = (by_hand + cross_entropy(expected.end_logits, batch.end_position, reduction="none")) / 2
    torch.testing.assert_close(nll, by_hand)


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_a_mask_that_masks_nothing_is_left_out_and_none_is_asked_for_its_values(architecture, monkeypatch):
    use_given_masks()
    monkeypatch.setattr(torch.Tensor, "all", lambda *_: pytest.fail("a mask's values were read"))
    qa = ExtractiveQA(tiny_models.model(architecture).eval())
    given = []
    qa.model.register_forward_pre_hook(lambda _, args, named: given.append(named["attention_mask"]), with_kwargs=True)
    full = tiny_batches.batch((9, 9))
    with torch.no_grad():
        known, unknown = (qa(qa.embed(full), one).nll for one in (full._replace(lengths=(9, 9)), full))
        qa(qa.embed(full), padded := tiny_batches.batch((9, 7))._replace(lengths=(9, 7)))
    torch.testing.assert_close(known, unknown)
    assert given[0] is None
    assert given[1] is full.attention_mask
    assert given[2] is padded.attention_mask


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_loads_in_float32_from_a_half_precision_folder(architecture, tmp_path):
    tiny_models.model(architecture).half().save_pretrained(tmp_path)
    qa = ExtractiveQA.load(str(tmp_path), activation_checkpointing=False)
    assert {p.dtype for p in qa.parameters()} == {torch.float32}


def test_activation_checkpointing_leaves_the_loss(tmp_path):
    tiny_models.model("bert").save_pretrained(tmp_path)
    losses = []
    for checkpointing in (False, True):
        qa = ExtractiveQA.load(str(tmp_path), activation_checkpointing=checkpointing).train()
        assert qa.model.is_gradient_checkpointing == checkpointing
        batch = tiny_batches.batch()
        losses.append(qa(qa.embed(batch), batch).nll.sum())
        losses[-1].backward()
    assert losses[0].item() == losses[1].item()


def test_missing_model_is_named(tmp_path):
    with pytest.raises(InputError, match=r"model\.name .*nowhere.*local folder"):
        ExtractiveQA.load(str(tmp_path / "nowhere"), activation_checkpointing=False)


def test_model_type_without_a_head_is_refused(tmp_path):

    ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="no question-answering head for model type 'vit'"):
        ExtractiveQA.load(str(tmp_path), activation_checkpointing=False)


def test_model_that_refuses_embeddings_is_refused(tmp_path, monkeypatch):
    import transformers.models.bert.modeling_bert as bert

    plain = tiny_models.model("bert")
    plain.save_pretrained(tmp_path)
    forward = bert.BertForQuestionAnswering.forward

    def without(self, input_ids, **rest):
        return forward(self, input_ids, **rest)

    monkeypatch.setattr(bert.BertForQuestionAnswering, "forward", without)
    with pytest.raises(InputError, match="cannot be run on inputs_embeds"):
        ExtractiveQA.load(str(tmp_path), activation_checkpointing=False)


def test_attention_is_chosen_or_refused(tmp_path):
    tiny_models.model("bert").save_pretrained(tmp_path / "bert")
    for name in ("eager", "sdpa"):
        qa = ExtractiveQA.load(str(tmp_path / "bert"), activation_checkpointing=False, attention=name)
        assert qa.model.config._attn_implementation == name
    tiny_models.model("deberta-v2").save_pretrained(tmp_path / "deberta")
    with pytest.raises(
        InputError, match=r"model\.attention sdpa: not to be had here for deberta-v2 .*: set it to auto"
    ):
        ExtractiveQA.load(str(tmp_path / "deberta"), activation_checkpointing=False, attention="sdpa")


def test_mapped_weights_stay_in_their_file_as_they_are_there(tmp_path):
    tiny_models.model("bert").half().save_pretrained(tmp_path)
    qa = ExtractiveQA.load(str(tmp_path), activation_checkpointing=False, mapped=True)
    assert {p.dtype for p in qa.parameters()} == {torch.float16}
