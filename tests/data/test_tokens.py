"""Tokens in bounded memory, and the characters that each of them reads."""

import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from swep_ds.data import features
from swep_ds.data import windows as windows_module
from swep_ds.data.features import build_features
from swep_ds.data.tokens import TextTokens
from swep_ds.data.windows import WindowSettings
from tests.support import tiny

LONG = " ".join(tiny.SENTENCES * 60)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("task", ["extractive", "generative"])
def test_bounds_do_not_show_in_the_windows(training, task, monkeypatch, tmp_path):
    examples = [tiny.example(f"When was it {i}?", LONG[i % 2 : 2000], "1998", str(i)) for i in range(4)]
    examples.insert(2, tiny.example("Who?" * 100, tiny.SENTENCES[0], "an abbot"))
    sizes = WindowSettings(max_length=60, doc_stride=20, max_query_length=20, task=task)

    def windows(folder: Path):
        built = build_features(examples, tiny.byte_bpe(), sizes, training=training, cache_dir=folder)
        (file,) = folder.glob("*.arrow")
        return list(built.dataset), [batch.num_rows for batch in pa.ipc.open_stream(file.read_bytes())]

    expected, written = windows(tmp_path / "at once")
    assert written == [len(expected)]
    monkeypatch.setattr(windows_module, "EXAMPLES_AT_A_TIME", 3)
    monkeypatch.setattr(features, "ROWS_AT_A_TIME", 5)
    rows, written = windows(tmp_path / "in parts")
    assert rows == expected
    assert max(written) == 5 < len(rows)


def test_memory_does_not_grow_with_tokens_times_windows(tmp_path, monkeypatch):
    """One number per token and window would be 400 MB. Counts only Python and NumPy."""
    monkeypatch.setattr(features, "ROWS_AT_A_TIME", 500)
    examples = [tiny.example("What?", " ".join(["tea"] * 20_000), "tea")]
    sizes = WindowSettings(max_length=40, doc_stride=8, max_query_length=8)
    tracemalloc.start()
    built = build_features(examples, tiny.wordpiece(), sizes, training=False, cache_dir=tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(built.dataset) > 2400
    assert peak < 20 * 2**20


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
    whole = TextTokens.of(tokenizer.encode(text), text)
    assert [text[start:end] for start, end in zip(whole.starts, whole.ends, strict=True)] == (words or text.split())
