"""Long contexts: the tokens of the whole text, piece by piece, in memory that does not grow with the windows."""

import copy
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from swep_ds.data import features, tokens
from swep_ds.data.features import build_features
from swep_ds.data.tokens import TextTokens
from swep_ds.data.windows import Template, WindowSettings
from tests.support import tiny

LONG = " ".join(tiny.SENTENCES * 60)


def prepending() -> Tokenizer:
    """Like Llama's: a mark in front of the text, and no words, so that no cut leaves the tokens alone."""
    mark = "\u2581"
    tokenizer = Tokenizer(models.BPE({mark: 0, "a": 1, "b": 2, f"{mark}a": 3, f"{mark * 2}": 4}, [(mark, "a")]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(mark), normalizers.Replace(" ", mark)])
    return tokenizer


BACKENDS = {kind: make().backend_tokenizer for kind, make in tiny.TOKENIZERS.items()} | {"prepending": prepending()}


@pytest.fixture
def small(monkeypatch):
    """Pieces of 200 characters and 50 of them on each side of a cut."""
    monkeypatch.setattr(tokens, "CHARACTERS_AT_A_TIME", 200)
    monkeypatch.setattr(tokens, "AROUND_CUT", 50)


def equals_the_whole(backend, text, gap=""):
    whole = TextTokens.of(backend.encode(gap + text, add_special_tokens=False), gap + text, -len(gap))
    pieces = TextTokens.of_long(backend, gap + text, -len(gap))
    return all(map(np.array_equal, whole, pieces))


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("gap", ["", " "])
def test_pieces_have_the_tokens_of_the_whole(kind, gap, small):
    assert equals_the_whole(BACKENDS[kind], LONG, gap)
    pieces = [piece for _, piece in tokens._pieces(BACKENDS[kind], LONG)]
    assert "".join(pieces) == LONG
    if kind == "prepending":
        assert len(pieces) == 1
    else:
        assert max(map(len, pieces)) <= 200


@pytest.mark.parametrize("kind", BACKENDS)
@given(text=st.text(st.sampled_from("ab \n\t\u00e9e\u0301\u4e0a\u200b\U0001f600.-'"), min_size=1, max_size=60))
@settings(deadline=None, max_examples=60)
def test_no_cut_changes_a_token(kind, text):
    """Each cut is compared with all characters around it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "CHARACTERS_AT_A_TIME", 8)
        patch.setattr(tokens, "CUTS_TRIED", 4)
        assert equals_the_whole(BACKENDS[kind], text)


@pytest.mark.parametrize(
    "text",
    ["\u4e0a\u6d77" * 500, "a" * 1000, " " * 1000, "\n".join(["tea"] * 300)],
    ids=["CJK", "word", "blank", "lines"],
)
@pytest.mark.parametrize("kind", BACKENDS)
def test_texts_without_words(kind, text, small):
    assert equals_the_whole(BACKENDS[kind], text)


@pytest.mark.parametrize("kind", tiny.TOKENIZERS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("task", ["extractive", "generative"])
def test_bounds_do_not_show_in_the_windows(kind, training, task, monkeypatch):
    examples = [tiny.example(f"When was it {i}?", LONG[i % 2 : 2000], "1998", str(i)) for i in range(4)]
    examples.insert(2, tiny.example("Who?" * 100, tiny.SENTENCES[0], "an abbot"))
    sizes = WindowSettings(max_length=60, doc_stride=20, max_query_length=20, task=task)

    def windows():
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = tiny.TOKENIZERS[kind]()
            built = build_features(examples, tokenizer, sizes, training=training, cache_dir=Path(folder))
            (file,) = Path(folder).glob("*.arrow")
            batches = list(pa.ipc.open_stream(file.read_bytes()))
            return list(built.dataset), [sum(batch["length"].to_pylist()) for batch in batches]

    expected, sums = windows()
    assert len(sums) == 1
    monkeypatch.setattr(tokens, "CHARACTERS_AT_A_TIME", 300)
    monkeypatch.setattr(tokens, "EXAMPLES_AT_A_TIME", 3)
    monkeypatch.setattr(tokens, "AROUND_CUT", 50)
    monkeypatch.setattr(features, "TOKENS_AT_A_TIME", 500)
    rows, sums = windows()
    assert rows == expected
    assert len(sums) > 1
    assert max(sums) < 500 + 60


def test_memory_does_not_grow_with_tokens_times_windows(tmp_path, monkeypatch):
    """One number per token and window would be 400 MB. Counts Python and NumPy alone."""
    monkeypatch.setattr(features, "TOKENS_AT_A_TIME", 2**14)
    context = " ".join(["tea"] * 20_000)
    examples = [tiny.example("What?", context, "tea")]
    sizes = WindowSettings(max_length=40, doc_stride=8, max_query_length=8)
    for training in (True, False):
        tracemalloc.start()
        built = build_features(examples, tiny.wordpiece(), sizes, training=training, cache_dir=tmp_path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(built.dataset) > 2400
        assert peak < 20 * 2**20


def test_the_template_is_read_off_the_beginning_of_a_context(monkeypatch):
    """A context of megabytes is not encoded three times more for it."""
    encoded = []

    class Counting:
        def encode(self, *texts, **options):
            encoded.append(sum(map(len, texts)))
            return BACKENDS["wordpiece"].encode(*texts, **options)

    long = tiny.example("When?", LONG * 10, "1998")
    short = Template.learn(BACKENDS["wordpiece"], tiny.example("When?", tiny.SENTENCES[3], "1998"))
    learned = Template.learn(Counting(), long)
    assert max(encoded) <= 2000
    assert all(map(np.array_equal, short, learned))
    blank = tiny.Example("q", "When?", "\u200b" * 3000 + "1998", ("1998",), (3000, 3004), "a")
    assert all(map(np.array_equal, short, Template.learn(copy.deepcopy(BACKENDS["wordpiece"]), blank)))


@pytest.mark.parametrize(
    ("normalizer", "text", "words"),
    [
        (normalizers.BertNormalizer(lowercase=True), "\u0917\u0941\u0930\u0941 \u0939\u0948", None),  # Hindi
        (normalizers.NFC(), "the cafe\u0301 x", None),
        (normalizers.NFKC(), "\u1112\u1161\u11ab x", None),  # a Hangul syllable
        (normalizers.BertNormalizer(lowercase=True), "plain caf\u00e9, x", ["plain", "caf\u00e9", ",", "x"]),
    ],
)
def test_a_token_reaches_over_the_marks_that_its_tokenizer_leaves_out(normalizer, text, words):
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    whole = TextTokens.of(tokenizer.encode(text), text, 0).over_marks(text)
    assert [text[start:end] for start, end in zip(whole.starts, whole.ends, strict=True)] == (words or text.split())
