"""Models whose parts are not where those of most are: loaded and right, or refused in one line."""

from functools import partial

import pytest
import torch
from torch.nn.functional import cross_entropy

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.saved import load_saved
from tests.support.bad_input import change_json
from tools.models.making import save_model


def test_ibert_answers_though_its_table_is_no_embedding_of_pytorch(tmp_path):
    save_model("ibert", tmp_path)
    assert load_saved(str(tmp_path)).windows.max_length == 32
    with pytest.raises(InputError, match="cannot be run on inputs_embeds"):
        ExtractiveQA.load(str(tmp_path), activation_checkpointing=False)


def test_canine_without_a_table_of_words_is_refused(tmp_path):
    save_model("canine", tmp_path)
    with pytest.raises(InputError, match="CanineForQuestionAnswering gives no table of word embeddings"):
        load_saved(str(tmp_path))


@pytest.mark.parametrize(("kind", "said"), [("fsmt", "sees the tokens that it is to write"), ("prophetnet", "n-grams")])
def test_decoders_that_learn_something_else_than_the_next_token_are_refused(kind, said, tmp_path):
    save_model(kind, tmp_path)
    for load in (load_saved, partial(GenerativeQA.load, activation_checkpointing=False)):
        with pytest.raises(InputError, match=said):
            load(str(tmp_path))


def test_the_answers_of_big_bird_do_not_depend_on_former_ones(tmp_path):
    """After one short window it attends to all tokens, for good. Its logits of -1e6 at the question hid that."""
    save_model("big_bird", tmp_path)
    saved = load_saved(str(tmp_path))
    windows = [Batch(ids, torch.ones_like(ids)) for ids in (torch.arange(2, 32)[None], torch.arange(2, 8)[None])]
    with torch.no_grad():
        first, _, again = (saved.qa.predict(windows[number])[0] for number in (0, 1, 0))
    assert torch.equal(first, again)


def test_an_encoder_with_a_config_of_its_text_knows_its_width(tmp_path):
    save_model("t5gemma2", tmp_path)
    assert GenerativeQA.load(str(tmp_path), activation_checkpointing=False).hidden_size == 16
    assert load_saved(str(tmp_path)).windows.max_length == 32  # an image has 4 positions


def test_funnel_which_halves_lengths_is_made_ready_for_the_compiler(tmp_path):
    save_model("funnel", tmp_path)
    qa = ExtractiveQA.load(str(tmp_path), activation_checkpointing=False, compiled=True)
    assert qa.base._compiled_call_impl is not None
    assert torch._dynamo.config.recompile_limit == 64


def test_an_answer_of_mbart_that_is_cut_has_the_probability_of_what_was_written(tmp_path):
    """Its class shifts a target's last token to the front, which the end of sequence is only in whole answers."""
    save_model("mbart", tmp_path)
    saved = load_saved(str(tmp_path))
    saved.qa.generation.max_new_tokens = 4
    ids = torch.tensor([[2, 7, 8, 9, 10, 3]])
    with torch.no_grad():
        written, [log_p] = saved.qa.predict(Batch(ids, torch.ones_like(ids)))
    assert not (written == 3).any()  # no end of sequence
    read = torch.cat([torch.tensor([[3]]), written[:, :-1]], 1)
    with torch.no_grad():
        logits = saved.qa.model(input_ids=ids, decoder_input_ids=read).logits
    assert float(log_p) == pytest.approx(-float(cross_entropy(logits[0], written[0])), rel=1e-5)


def test_a_model_computes_in_the_dtype_of_its_files_whatever_its_config_says(tmp_path):
    save_model("bert", tmp_path)
    change_json(tmp_path / "config.json", dtype="bfloat16")
    assert load_saved(str(tmp_path)).qa.model.dtype == torch.float32
