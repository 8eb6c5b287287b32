"""Tokenizers: loaded, also from a SentencePiece model alone, checked, and fitted to their model."""

import copy
import io
import re

import pytest
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from swep_ds.models.hub import check_knows, fit_tokenizer, load_tokenizer, longest_window
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused

T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
DEBERTA |= {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}


@pytest.mark.parametrize(
    ("architecture", "file", "special"),
    [("t5-v1.1", "spiece.model", T5), ("mt5", "spiece.model", T5), ("deberta-v2", "spm.model", DEBERTA)],
)
def test_a_sentencepiece_model_alone_gives_a_fast_tokenizer(architecture, file, special, tmp_path):
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.SENTENCES * 3), model_writer=written, vocab_size=90, minloglevel=2, **special
    )
    (tmp_path / file).write_bytes(written.getvalue())
    tiny_models.config(architecture).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    text = "the old bridge over the river"
    encoding = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoding.input_ids, skip_special_tokens=True) == text
    assert encoding.input_ids[-1] == special["eos_id"]
    assert tokenizer.pad_token_id == 0
    covered = {place for begin, end in encoding.offset_mapping for place in range(begin, end)}
    assert covered >= {place for place, letter in enumerate(text) if letter != " "}


def test_a_slow_tokenizer(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    tiny_models.config("t5").save_pretrained(tmp_path)
    message = refused(load_tokenizer, str(tmp_path))
    assert message.startswith(f"model.name {tmp_path}: its tokenizer has no fast version")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused():
    model = tiny_models.model("t5", vocab_size=len(tiny.wordpiece()))
    fit_tokenizer(copy.deepcopy(tiny.wordpiece()), model, "model x")
    message = refused(fit_tokenizer, tiny.byte_bpe(), model, "model x")
    assert re.match(r"model x: its tokenizer has more tokens than .* \(340, 200\): they do not", message)


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, *tiny_models.SEQ2SEQ])
def test_a_folder_without_tokenizer_files(architecture, tmp_path):
    """transformers then makes a tokenizer of special tokens alone, to which every word is unknown."""
    tiny_models.model(architecture).save_pretrained(tmp_path)
    message = refused(load_tokenizer, str(tmp_path))
    assert message.startswith(f"model.name {tmp_path}: ")
    assert "tokenizer" in message


SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
VOCABULARIES = {"no words": SPECIAL, "nothing at all": {}, "signs alone": SPECIAL | {"-": 5, "##!": 6, "(": 7}}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_tokenizer_without_words(vocabulary, tmp_path):
    tiny.wordpiece().save_pretrained(tmp_path)
    kind = "WordPiece" if VOCABULARIES[vocabulary] else "WordLevel"
    change_json(tmp_path / "tokenizer.json", "model", type=kind, vocab=VOCABULARIES[vocabulary])
    assert refused(load_tokenizer, str(tmp_path)).startswith(f"model.name {tmp_path}: ")


def test_an_empty_list_of_words(tmp_path):
    tiny_models.config("bert").save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("")
    assert refused(load_tokenizer, str(tmp_path)).startswith(f"model.name {tmp_path}: ")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    assert "knows no words" in refused(load_tokenizer, str(tmp_path))


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_texts_in_a_language_that_the_tokenizer_does_not_know(kind):
    tokenizer = tiny.TOKENIZERS[kind]()
    check_knows(tokenizer, tiny.SENTENCES, "model.name x", "data.train")
    foreign = ["Мост через реку был построен в", "橋は古い。"]
    if kind == "byte_bpe":  # which knows all bytes
        check_knows(tokenizer, foreign, "model.name x", "data.train")
    else:
        message = refused(check_knows, tokenizer, foreign, "model.name x", "data.train")
        assert re.match(r"model\.name x: its tokenizer knows \d+% of the first texts of data\.train: ", message)


def test_letters_that_a_tokenizer_leaves_out_are_not_known():
    """Without an unknown token a BPE drops what it does not know."""
    bpe = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    bpe.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe)
    check_knows(tokenizer, ["abba a"], "x", "y")
    assert "knows 20%" in refused(check_knows, tokenizer, ["abcdefghij"], "x", "y")


BEYOND = {
    "a word": (("model", "vocab"), {"th": 9999}),
    "a special token": (("post_processor", "special_tokens", "[CLS]"), {"ids": [9999]}),
}


@pytest.mark.parametrize("token", BEYOND)
def test_numbers_of_tokens_beyond_the_table(token, tmp_path):
    tiny.wordpiece().save_pretrained(tmp_path)
    path, change = BEYOND[token]
    change_json(tmp_path / "tokenizer.json", *path, **change)
    message = refused(fit_tokenizer, load_tokenizer(str(tmp_path)), tiny_models.model(vocab_size=200), "model x")
    assert "(10000, 200)" in message


def test_token_types_beyond_the_models():
    model = tiny_models.model("roberta", vocab_size=340, type_vocab_size=1)
    fit_tokenizer(tiny.byte_bpe(), model, "model x")
    assert "gives 2 token types" in refused(fit_tokenizer, tiny.wordpiece(), model, "model x")


@pytest.mark.parametrize("architecture", ["distilbert", "modernbert", "t5"])
def test_token_types_of_a_model_without_any_are_left_out(architecture, tmp_path):
    """transformers' tokenizer for DistilBERT gives token types."""
    tokenizer = copy.deepcopy(tiny.wordpiece())
    assert "token_type_ids" in tokenizer.model_input_names
    fit_tokenizer(tokenizer, tiny_models.model(architecture, vocab_size=200), "model x")
    tokenizer.save_pretrained(tmp_path)
    tiny_models.config(architecture).save_pretrained(tmp_path)
    for kept in (tokenizer, load_tokenizer(str(tmp_path))):
        assert "token_type_ids" not in kept.model_input_names


@pytest.mark.parametrize("length", ["512", [512], {}, True, 0, -5])
def test_lengths_that_are_not_numbers(length, tmp_path):
    tiny.wordpiece().save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", model_max_length=length)
    assert "tokenizer_config.json has model_max_length" in refused(load_tokenizer, str(tmp_path))
    model = tiny_models.model("t5")
    model.config.max_position_embeddings = length
    assert "config.json has max_position_embeddings" in refused(longest_window, tiny.wordpiece(), model)


FAULTS = {
    "a pair without texts": ("post_processor", {"pair": []}, "leaves out texts"),
    "a number far beyond the others": ("model", {"vocab": SPECIAL | {"a": 10**9}}, "numbers 6 tokens up to 1000000000"),
    "no unknown token": ("model", {"unk_token": "<none>"}, "cannot be used"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tokenizers_that_load_and_cannot_be_used(fault, tmp_path):
    section, change, said = FAULTS[fault]
    tiny.wordpiece().save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer.json", section, **change)
    message = refused(load_tokenizer, str(tmp_path))
    assert message.startswith(f"model.name {tmp_path}: its tokenizer")
    assert said in message
