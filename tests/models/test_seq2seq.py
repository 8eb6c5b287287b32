"""Sequence-to-sequence models: what is perturbed, and answers that are those of the plain model."""

import pytest
import torch
import transformers

from swep_ds.data.batches import IGNORED
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_batches, tiny_models
from tests.support.bad_input import refused


@pytest.mark.parametrize("architecture", tiny_models.SEQ2SEQ)
def test_only_the_encoders_tokens_are_perturbed(architecture):
    """Other encoder embeddings change the logits only through the encoder's states, and at padding not at all."""
    plain = tiny_models.model(architecture).double().eval()
    qa, batch = GenerativeQA(plain), tiny_batches.generative()
    other = qa.embed(batch) * 1.3
    states = plain.get_encoder()(inputs_embeds=other, attention_mask=batch.attention_mask)
    expected = plain(encoder_outputs=states, attention_mask=batch.attention_mask, labels=batch.target_ids).logits
    torch.testing.assert_close(qa(other, batch).logits, expected)
    zeros, noisy = tiny_batches.outputs_with_zeros_and_with_noise_at_padding(qa, batch)
    torch.testing.assert_close(noisy.logits, zeros.logits)
    torch.testing.assert_close(noisy.nll, zeros.nll)
    wide, plain_output = tiny_batches.rounded(batch), qa(other, batch)
    wider = qa(qa.embed(wide) * 1.3, wide)
    torch.testing.assert_close(wider.logits[:, :-4], plain_output.logits)
    torch.testing.assert_close(wider.nll, plain_output.nll)
    assert (wider.shares[:, -4:] == 0).all()


@pytest.mark.parametrize("architecture", [*tiny_models.SEQ2SEQ, "pegasus"])
@pytest.mark.parametrize("beams", [1, 4])
def test_answers_are_transformers_beam_search_and_are_scored_from_ids(architecture, beams):
    """Pegasus scales only embeddings of ids."""
    if architecture == "pegasus":
        torch.manual_seed(0)
        config = transformers.PegasusConfig(**tiny_models.BART, init_std=0.3)
        plain = transformers.PegasusForConditionalGeneration(config).eval()
    else:
        plain = tiny_models.model(architecture, seed=3).eval()
    qa, batch = GenerativeQA(plain, beams=beams, max_answer_tokens=6), tiny_batches.generative()
    with torch.no_grad():
        answers, log_probability = qa.predict(batch)
        for row, length in enumerate((12, 7, 9)):
            ids = batch.input_ids[row : row + 1, :length]
            expected = plain.generate(ids, num_beams=beams, max_new_tokens=6, do_sample=False)[0, 1:]
            kept = answers[row][answers[row] != IGNORED]
            assert kept.tolist() == expected[: len(kept)].tolist()
            assert set(expected[len(kept) :].tolist()) <= {plain.config.pad_token_id}
            begun = torch.tensor([[plain.config.decoder_start_token_id, *kept[:-1]]])
            logits = plain(input_ids=ids, decoder_input_ids=begun).logits[0]
            by_hand = logits.log_softmax(-1).gather(1, kept[:, None]).mean()
            torch.testing.assert_close(log_probability[row], by_hand)


def test_where_answers_may_be_empty_none_is_and_the_empty_ones_log_probability_is_a_sum():
    """It begins with token 9, so that an answer ends with its third token at the earliest."""
    qa = GenerativeQA(tiny_models.model("t5", seed=3).eval(), beams=1, max_answer_tokens=6)
    batch = tiny_batches.generative()
    qa.empty_answer = [9, 1]
    likely = torch.nn.functional.one_hot(torch.tensor(1), 64) * 9.0  # the end of sequence, wherever it may be
    qa.model.lm_head.register_forward_hook(lambda _, inputs, logits: logits + likely)
    with torch.no_grad():
        answers, _, null = qa.predict(batch)
        assert answers[:, 2].tolist() == [1, 1, 1]
        qa.empty_answer = None
        for row, length in enumerate((12, 7, 9)):
            ids = batch.input_ids[row : row + 1, :length]
            expected = qa.model.generate(ids, num_beams=1, max_new_tokens=6, min_new_tokens=2, do_sample=False)[0, 1:]
            kept = answers[row][answers[row] != IGNORED]
            assert kept.tolist() == expected[: len(kept)].tolist()
            log_p = qa.model(ids, decoder_input_ids=torch.tensor([[0, 9]])).logits[0].log_softmax(-1)
            torch.testing.assert_close(null[row], log_p[0, 9] + log_p[1, 1])


def test_the_models_own_generation_settings_do_not_count(tmp_path):
    """Neither in predictions nor in those of the exported model."""
    batch, answers = tiny_batches.generative(), []
    of_a_summariser = {"min_length": 6, "no_repeat_ngram_size": 1, "length_penalty": 2.0, "repetition_penalty": 3.0}
    for settings in ({}, of_a_summariser | {"forced_bos_token_id": 7}):
        plain = tiny_models.model("bart", seed=3).eval()
        plain.generation_config.update(**settings)
        qa = GenerativeQA(plain, beams=2, max_answer_tokens=8)
        with torch.no_grad():
            answers.append(qa.predict(batch)[0])
    assert answers[0].tolist() == answers[1].tolist()
    plain.save_pretrained(tmp_path)
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    alone = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generate(**inputs)[:, 1:]
    assert torch.where(answers[0] == IGNORED, plain.config.pad_token_id, answers[0]).tolist() == alone.tolist()


def test_any_of_several_ends_ends_an_answer():
    def answers(ends) -> list[list[int]]:
        plain = tiny_models.model("t5", seed=3, eos_token_id=ends).eval()
        with torch.no_grad():
            ids = GenerativeQA(plain, beams=1, max_answer_tokens=8).predict(tiny_batches.generative())[0]
        return [[token for token in row if token != IGNORED] for row in ids.tolist()]

    whole = answers(1)
    other = whole[0][0]
    cut = [row[: row.index(other) + 1] if other in row else row for row in whole]
    assert answers([1, other]) == cut != whole


def test_a_model_that_cannot_shift_targets_is_refused():
    for field in ("decoder_start_token_id", "pad_token_id", "eos_token_id"):
        plain = tiny_models.model("t5")
        setattr(plain.config, field, None)
        assert "cannot shift targets for its decoder (" in refused(GenerativeQA, plain)
    plain = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**tiny_models.BART))
    assert "M2M100ForConditionalGeneration cannot shift targets" in refused(GenerativeQA, plain)


def test_answers_are_generated_from_the_token_that_targets_begin_with():
    """mBART begins a target with the token that it ends with: with </s> (mbart-large-50), or a language's (cc25)."""
    config = transformers.MBartConfig(**tiny_models.BART | {"decoder_start_token_id": None})
    end, language = config.eos_token_id, 7
    qa = GenerativeQA(transformers.MBartForConditionalGeneration(config))
    assert qa.generation.decoder_start_token_id == end
    for empty, first in (([end, language], language), ([language, end], end), ([], end)):
        qa.answer_like(empty, declines=False)
        assert qa.generation.decoder_start_token_id == first
