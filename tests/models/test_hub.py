"""Tokenizers: loaded, also from a SentencePiece model alone, checked, and fitted to their model."""

import copy
import inspect
import io
import json
import re
from functools import partial

import pytest
import torch
import transformers
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from swep_ds.models.hub import check_knows, check_length, fit_tokenizer, load_tokenizer, longest_window
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused

SAMPLE = "The quick brown fox jumps over 13 lazy dogs."
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
DEBERTA |= {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}


@pytest.mark.parametrize(("architecture", "special"), [("t5-v1.1", T5), ("mt5", T5), ("deberta-v2", DEBERTA)])
def test_a_sentencepiece_model_alone_gives_a_fast_tokenizer(architecture, special, tmp_path):
    sentences, written = iter(tiny.SENTENCES * 3), io.BytesIO()
    options = {"vocab_size": 90, "minloglevel": 2, **special}
    SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=written, **options)
    (tmp_path / ("spiece.model" if special is T5 else "spm.model")).write_bytes(written.getvalue())
    tiny_models.config(architecture).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    text = "the old bridge over the river"
    encoding = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoding.input_ids, skip_special_tokens=True) == text
    assert encoding.input_ids[-1] == special["eos_id"]
    assert tokenizer.pad_token_id == 0
    covered = {place for begin, end in encoding.offset_mapping for place in range(begin, end)}
    assert covered >= {place for place, letter in enumerate(text) if letter != " "}


def test_a_slow_tokenizer_and_one_with_more_tokens_than_the_model_are_refused(tmp_path):
    ByT5Tokenizer().save_pretrained(tmp_path)
    tiny_models.config("t5").save_pretrained(tmp_path)
    message = refused(load_tokenizer, str(tmp_path))
    assert message.startswith(f"model.name {tmp_path}: its tokenizer has no fast version")
    model = tiny_models.model("t5", vocab_size=len(tiny.wordpiece()))
    fit_tokenizer(copy.deepcopy(tiny.wordpiece()), model, "model x")
    message = refused(fit_tokenizer, tiny.byte_bpe(), model, "model x")
    assert re.match(r"model x: its tokenizer has more tokens than .* \(340, 200\): name a folder", message)


@pytest.mark.parametrize("architecture", ["bert", "deberta-v2", "modernbert", "t5", "bart"])
def test_a_folder_without_words_for_a_tokenizer(architecture, tmp_path):
    """transformers then makes a tokenizer of special tokens, to which every word is unknown."""
    tiny_models.config(architecture).save_pretrained(tmp_path)
    assert re.match(rf"model\.name {tmp_path}: .*tokenizer", refused(load_tokenizer, str(tmp_path)))
    if architecture == "bert":
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
        assert "knows no words" in refused(load_tokenizer, str(tmp_path))


@pytest.mark.parametrize("architecture", ["bert", "roberta", "deberta-v2", "distilbert", "bart", "xlnet", "t5"])
def test_the_longest_window_is_what_the_model_takes(architecture):
    model, tokenizer = tiny_models.model(architecture).eval(), copy.deepcopy(tiny.wordpiece())
    tokenizer.model_max_length = 10**30  # as in a tokenizer that does not say
    longest = longest_window(tokenizer, model)
    if architecture in ("xlnet", "t5"):  # without a limit
        assert longest == 10**30
    else:
        assert longest == 64
        run = partial(model, use_cache=False) if architecture == "bart" else model
        run(torch.full((1, longest), 7))
        with pytest.raises((IndexError, RuntimeError)):
            run(torch.full((1, longest + 1), 7))
    tokenizer.model_max_length = 48
    assert longest_window(tokenizer, model) == 48


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


def test_letters_that_a_tokenizer_leaves_out_are_not_known_but_marks_are():
    """Without an unknown token a BPE drops what it does not know."""
    bpe = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    bpe.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe)
    check_knows(tokenizer, ["abba a"], "x", "y")
    assert "knows 20%" in refused(check_knows, tokenizer, ["abcdefghij"], "x", "y")
    text = "\u0917\u0941\u0930\u0941 \u0939\u0948 \u1112\u1161\u11ab"  # Hindi, Hangul
    pieces = [sign + letter for letter in sorted(set(text)) if letter.isalpha() for sign in ("", "##")]
    vocabulary = {piece: number for number, piece in enumerate(["[UNK]", *pieces])}
    words = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    words.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.BertNormalizer(lowercase=True)])
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    check_knows(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]"), [text], "x", "y")


@pytest.mark.parametrize(("architecture", "types"), [("distilbert", 2), ("modernbert", 2), ("t5", 2), ("roberta", 1)])
def test_token_types_that_a_model_does_not_tell_apart_are_left_out(architecture, types, tmp_path):
    tokenizer = copy.deepcopy(tiny.wordpiece())
    assert "token_type_ids" in tokenizer.model_input_names
    fit_tokenizer(tokenizer, tiny_models.model(architecture, vocab_size=200, type_vocab_size=types), "model x")
    tokenizer.save_pretrained(tmp_path)
    tiny_models.config(architecture).save_pretrained(tmp_path)
    for kept in (tokenizer, load_tokenizer(str(tmp_path))):
        assert "token_type_ids" not in kept.model_input_names


@pytest.mark.parametrize("architecture", ["bert", "electra", "albert", "xlnet"])
def test_token_types_are_given_where_the_model_has_a_table_whatever_the_files_list(architecture, tmp_path):
    """transformers 4 wrote no list of inputs into a PreTrainedTokenizerFast's file, and version 5 then gives no types.
    Those of the template are given."""
    tiny.wordpiece().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    change_json(file, tokenizer_class="PreTrainedTokenizerFast")
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "model_input_names"}))
    model = tiny_models.model(architecture, vocab_size=len(tiny.wordpiece()))
    model.config.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    assert "token_type_ids" not in tokenizer.model_input_names
    fit_tokenizer(tokenizer, model, "model x")
    assert tokenizer("Who?", SAMPLE).token_type_ids == tiny.wordpiece()("Who?", SAMPLE).token_type_ids
    names = list(tokenizer.model_input_names)
    fit_tokenizer(tokenizer, model, "model x")
    assert tokenizer.model_input_names == names


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neo", "gptj", "xlm", "flaubert"])
def test_a_model_that_looks_types_up_among_the_words_gets_none(kind):
    config = transformers.AutoConfig.for_model(kind, vocab_size=len(tiny.wordpiece()))
    with torch.device("meta"):
        model = transformers.AutoModelForQuestionAnswering.from_config(config)
    assert "token_type_ids" in inspect.signature(model.forward).parameters
    tokenizer = copy.deepcopy(tiny.wordpiece())
    fit_tokenizer(tokenizer, model, "model x")
    assert "token_type_ids" not in tokenizer.model_input_names


def test_tokens_that_were_added_without_rows_for_them_are_refused_with_the_way_to_add_them():
    tokenizer = copy.deepcopy(tiny.wordpiece())
    model = tiny_models.model("bert", vocab_size=len(tokenizer))
    tokenizer.add_tokens(["covid-19"])
    assert "model.resize_token_embeddings(len(tokenizer))" in refused(fit_tokenizer, tokenizer, model, "model x")


@pytest.mark.parametrize("kind", ["gptj", "mpt"])
def test_a_table_that_is_no_module_limits_windows_as_well(kind):
    sizes = {"vocab_size": 300, "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 64, "rotary_dim": 4}
    if kind == "mpt":
        sizes = {"vocab_size": 300, "n_layers": 1, "n_heads": 2, "d_model": 16, "max_seq_len": 64}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForQuestionAnswering.from_config(config)
    tokenizer = copy.deepcopy(tiny.wordpiece())
    tokenizer.model_max_length = 64
    assert "the model takes at most 64 tokens" in refused(check_length, tokenizer, model, 65, "data.max_length")


@pytest.mark.parametrize("architecture", ["bert", "t5", "deberta-v2"])
def test_windows_are_limited_by_a_table_of_positions_and_else_warned_of(architecture, caplog):
    relative = {"position_biased_input": False} if architecture == "deberta-v2" else {}
    model, tokenizer = tiny_models.model(architecture, **relative), copy.deepcopy(tiny.wordpiece())
    tokenizer.model_max_length = 64
    check_length(tokenizer, model, 64, "data.max_length")
    if architecture == "bert":
        said = refused(check_length, tokenizer, model, 65, "data.max_length")
        assert said == "data.max_length 65: the model takes at most 64 tokens: lower it"
    else:
        check_length(tokenizer, model, 65, "data.max_length")
        assert "data.max_length 65: the model was made for 64 tokens, but its positions have no limit" in caplog.text


@pytest.mark.parametrize(
    ("make", "model_type", "named"),
    [
        (tiny.wordpiece, "bert", "BertTokenizer"),
        (tiny.wordpiece, "roberta", "RobertaTokenizer"),
        (tiny.wordpiece, "deberta-v2", None),  # whose class takes no such vocabulary
        (tiny.wordpiece, "roformer", None),  # whose class needs a package that is not there
        (tiny.unigram, "t5", None),  # which would add 100 tokens
        (tiny.byte_bpe, "bert", "BertTokenizerFast"),
    ],
)
def test_what_tokenizer_json_does_is_done_whatever_class_is_named(make, model_type, named, tmp_path):
    made = make()
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    change_json(tmp_path / "tokenizer_config.json", tokenizer_class=named, model_max_length=77)
    tokenizer = load_tokenizer(str(tmp_path))
    written = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    exported = tmp_path / "exported"
    tokenizer.save_pretrained(exported)
    (exported / "config.json").write_text(json.dumps({"model_type": model_type}))
    for same in (tokenizer, load_tokenizer(str(exported)), AutoTokenizer.from_pretrained(exported)):
        for text in (*tiny.SENTENCES, "The Old-Mill  of été"):
            assert same(text, SAMPLE).input_ids == written.encode(text, SAMPLE).ids
        assert same.special_tokens_map == made.special_tokens_map
        assert (same.model_max_length, len(same)) == (77, len(made))
        assert same.model_input_names == tokenizer.model_input_names


@pytest.mark.parametrize(("make", "kind"), [(tiny.wordpiece, "Bert"), (tiny.byte_bpe, "Roberta")])
def test_a_file_may_leave_special_tokens_to_the_class(make, kind, tmp_path):
    make().save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", tokenizer_class=f"{kind}Tokenizer")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind.lower()}))
    change_json(tmp_path / "tokenizer.json", post_processor=None)
    assert load_tokenizer(str(tmp_path))("Who?", SAMPLE).input_ids == make()("Who?", SAMPLE).input_ids


def test_dropout_is_no_part_of_a_loaded_tokenizer(tmp_path):
    tiny.byte_bpe().save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer.json", "model", dropout=0.5)
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    change_json(tmp_path / "tokenizer.json", truncation=truncation)
    tokenizer = load_tokenizer(str(tmp_path))
    tokenizer.save_pretrained(tmp_path / "exported")
    for same in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "exported")):
        assert {tuple(same(SAMPLE).input_ids) for _ in range(20)} == {tuple(tiny.byte_bpe()(SAMPLE).input_ids)}
