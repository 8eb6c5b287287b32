"""Corruption and splicing: what was not corrupted keeps every byte, and the answer is where it is said to be."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from swep_ds.data.windows import plain_backend
from swep_ds.methods.ssmba_samples.corruption import Text, Vocabulary, corrupt, splice
from tests.support import tiny
from tests.support.tiny import with_marks

WORDS = sorted({word for sentence in tiny.SENTENCES for word in sentence.split()})
WORDS += ["(in", "well-known", "½", "…", "😀", "naïve", "[SEP]", "<mask>", "\u200b", "x\u0301", "北京"]
TEXTS = st.lists(
    st.tuples(st.sampled_from(["", " ", " ", " ", "  ", "\n", "\u00a0", "\t "]), st.sampled_from(WORDS)), min_size=1
).map(lambda parts: "".join(space + word for space, word in parts))
SPECIAL = {"unk_token": "[UNK]", "pad_token": "[PAD]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


@functools.cache
def wordpiece() -> PreTrainedTokenizerFast:
    """Its vocabulary is known to the word, where training breaks ties at random. Likewise the next two."""
    words = "( ) , . - the it was not founded in 1204 by abbot old nice and too opened again north cafe w e l t"
    pieces = [*SPECIAL.values(), *words.split(), "##s", "##e", "##l", "##t", "[unused7]"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


@functools.cache
def byte_bpe() -> PreTrainedTokenizerFast:
    """Has all possible merges: every word is a token, with the space before it and without."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    options = {"special_tokens": list(SPECIAL.values()), "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    trainer = trainers.BpeTrainer(vocab_size=1000, show_progress=False, **options)
    words = ("It", "was", "the", "not", "all", "monastery", "ø", "It's")
    tokenizer.train_from_iterator([*words, *(f" {word}" for word in words)], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


EXACT = {"exact wordpiece": wordpiece, "exact byte_bpe": byte_bpe}
VOCABULARIES = {kind: Vocabulary(make()) for kind, make in (tiny.TOKENIZERS | EXACT).items()}


def tokenised(kind: str, text: str, kept: tuple[int, int] | None = None) -> Text:
    backend = plain_backend((tiny.TOKENIZERS | EXACT)[kind]())
    return Text.of(text, backend.encode(text, add_special_tokens=False), kept, protected=True)


def shown(tokens) -> list[str]:
    return [tokens.text[s:e] for s, e in zip(tokens.starts, tokens.ends, strict=True)]


def bare(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
def test_no_special_or_added_token_may_be_written(kind):
    tokenizer = tiny.TOKENIZERS[kind].__wrapped__()  # a new one, to add a token to
    assert tokenizer.add_tokens(["zzz"]) == 1
    candidates = Vocabulary(tokenizer).candidates.tolist()
    assert not {*tokenizer.all_special_ids, tokenizer.convert_tokens_to_ids("zzz")} & set(candidates)
    assert candidates == VOCABULARIES[kind].candidates.tolist()


def test_no_unused_token_or_part_of_a_character_may_be_written():
    assert wordpiece().convert_tokens_to_ids("[unused7]") not in VOCABULARIES["exact wordpiece"].candidates
    vocabulary, ids = VOCABULARIES["exact byte_bpe"], byte_bpe().get_vocab()
    assert vocabulary.texts[ids["Ã¸"]] == "ø"
    for token in ("Ã", "Ġ", "Ċ", "Ā"):  # part of a character, white space, NUL
        assert ids[token] not in vocabulary.candidates


def test_tokens_of_the_answer_white_space_and_bytes_of_a_character_are_not_eligible():
    text = "it was founded in 1204 by abbot"
    for span in ((18, 22), (19, 20)):  # the token 1204, and a character in it
        tokens = tokenised("exact wordpiece", text, span)
        assert shown(tokens) == text.split()
        assert tokens.eligible.tolist() == [word != "1204" for word in text.split()]
    tokens = tokenised("exact byte_bpe", "a “b”  \n c d")
    assert set(np.array(shown(tokens))[tokens.eligible]) == {*"abcd"}
    assert set(np.array(shown(tokens))[~tokens.eligible]) == {"“", "”", ""}


def test_shares_of_corrupted_masked_replaced_and_kept_tokens():
    vocabulary, ids = VOCABULARIES["wordpiece"], np.arange(60, 160)
    eligible = np.arange(100) % 4 != 0
    rng = np.random.default_rng(0)
    draws = [corrupt(ids, eligible, 0.25, vocabulary, rng) for _ in range(400)]
    for corrupted, selected, uniforms in draws:
        assert eligible[selected].all()
        assert (np.diff(selected) > 0).all()
        assert not np.delete(corrupted - ids, selected).any()
        assert ((uniforms >= 0) & (uniforms < 1)).all()
        assert set(corrupted) <= {*ids, *vocabulary.candidates, vocabulary.mask_id}
    counts = [len(selected) for _, selected, _ in draws]
    assert set(counts) == {18, 19}  # 18.75 on average
    assert np.mean(counts) == pytest.approx(0.25 * 75, abs=0.1)
    after = np.concatenate([corrupted[selected] for corrupted, selected, _ in draws])
    places = np.concatenate([selected for _, selected, _ in draws])
    masked, same = after == vocabulary.mask_id, after == ids[places]
    # 7,500 tokens: standard deviations of 0.005 and 0.003
    assert masked.mean() == pytest.approx(0.8, abs=0.02)
    assert same.mean() == pytest.approx(0.1, abs=0.015)
    assert (~masked & ~same).mean() == pytest.approx(0.1, abs=0.015)
    assert np.bincount(places, minlength=100)[eligible].std() < 2 * np.sqrt(400 * 0.25 * 0.75)  # all of them alike
    nothing = corrupt(np.arange(3), np.zeros(3, bool), 1.0, vocabulary, rng)
    assert [part.tolist() for part in nothing] == [[0, 1, 2], [], []]


@given(kind=st.sampled_from(sorted(tiny.TOKENIZERS)), text=TEXTS.filter(str.strip), data=st.data())
def test_only_what_is_exchanged_changes_and_the_answer_is_found(kind, text, data):
    words = [i for i, character in enumerate(text) if not character.isspace()]
    begin = data.draw(st.sampled_from(words))
    end = data.draw(st.integers(begin + 1, min(len(text), begin + 12)))
    tokens, vocabulary = tokenised(kind, text, (begin, end)), VOCABULARIES[kind]

    def in_a_word(text: str, at: int) -> bool:
        return text[max(at - 1, 0) : at].isalnum() and text[at : at + 1].isalnum()

    eligible = np.flatnonzero(tokens.eligible).tolist()
    chosen = sorted(data.draw(st.sets(st.sampled_from(eligible)))) if eligible else []
    new = [data.draw(st.sampled_from(vocabulary.candidates.tolist())) for _ in chosen]
    result, start = splice(tokens, np.array(chosen, np.int64), np.array(new, np.int64), vocabulary)

    assert result[start : start + end - begin] == text[begin:end]
    for before, now in ((begin, start), (end, start + end - begin)):  # it does not become a part of another word
        assert in_a_word(text, before) or not in_a_word(result, now)
    # against the tokenizer's own offsets: all characters, apart from white space, token by token
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "split_special_tokens": True}
    encoded = tiny.TOKENIZERS[kind]()(text, **options)
    ids, offsets = encoded["input_ids"], with_marks(text, encoded["offset_mapping"])
    changed = {p: vocabulary.texts[t] for p, t in zip(chosen, new, strict=True) if t != ids[p]}
    expected, at, runs = "", 0, []
    for position, (left, right) in enumerate(offsets):
        if position in changed:
            expected += bare(text[at:left]) + bare(changed[position])
            runs.append(text[at:left].strip())
            at = right
    runs.append(text[at:].strip())
    assert bare(result) == expected + bare(text[at:])
    # the text between two exchanged tokens is unchanged, its white space included
    at = 0
    for run in runs:
        assert run in result[at:]
        at = result.index(run, at) + len(run)
    if not changed:
        assert (result, start) == (text, begin)


WORD_PIECES = [
    ("It WAS  founded", [("WAS", "not")], "It not  founded"),  # a word for a word: its spaces stay
    ("It WAS  founded", [("WAS", "was")], "It WAS  founded"),  # came back: as it was written
    ("Was founded", [("founded", "##s")], "Wass"),  # goes on with the word before
    ("opened, again", [(",", "too")], "opened too again"),  # a word in place of a mark that touched the word
    ("opened again", [("again", ".")], "opened."),
    ("north-nice", [("-", "and")], "north and nice"),  # else one word
    ("north-nice", [("-", "(")], "north(nice"),
    ("north-nice", [("-", "and"), ("nice", "##s")], "north ands"),
    ("the nice\u0301 welt", [("nice\u0301", "old")], "the old welt"),  # the accent is the word's
    ("The welt", [("e", "old")], "The w oldlt"),  # a word within a word
    ("in 1204 by abbot", [("in", "##s"), ("by", ".")], "s 1204 . abbot"),
    ("in 1204, by", [(",", "##s")], "in 1204 s by"),
]
BYTE_LEVEL = [
    ("It was the", [("was", "'s")], "It's the"),
    ("It's the", [("'s", "Ġwas")], "It was the"),
    ("It was the", [("It", "Ġmonastery")], "monastery was the"),  # no space at the beginning
    ("It\n was the", [("was", "all")], "It\nall the"),  # a line break is a token of its own
    ("(1204)", [("(", "\u0120the"), (")", "s")], "the 1204 s"),
]
SPLICES = [("exact wordpiece", *case) for case in WORD_PIECES] + [("exact byte_bpe", *case) for case in BYTE_LEVEL]


@pytest.mark.parametrize(("kind", "text", "exchanges", "expected"), SPLICES)
def test_predicted_tokens_return_to_the_text_and_the_answer_stays_a_word(kind, text, exchanges, expected):
    """Tokens are named by their characters and by their place in the vocabulary; an answer is 1204."""
    at = text.find("1204")
    tokens, ids = tokenised(kind, text, (at, at + 4) if at >= 0 else None), EXACT[kind]().get_vocab()
    pairs = sorted((shown(tokens).index(old), ids[new]) for old, new in exchanges)
    assert all(tokens.eligible[position] for position, _ in pairs)
    positions, predicted = np.array(pairs, np.int64).T
    result, start = splice(tokens, positions, predicted, VOCABULARIES[kind])
    assert result == expected
    assert at < 0 or result[start : start + 4] == "1204"
