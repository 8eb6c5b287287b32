"""Generated pairs become rows that the reader takes; ids read back as text give the same ids again."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swep_ds.commands import convert as convert_command
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.features import build_features
from swep_ds.data.pairs import convert_pairs
from swep_ds.data.readers import read_examples
from swep_ds.data.windows import WindowSettings
from tests.support import tiny

WORDS = " ".join(tiny.SENTENCES).split()


def features(example: Example, cache: Path) -> dict:
    """The only training window of an example."""
    windows = build_features(
        [example], tiny.wordpiece(), WindowSettings(200, 100, 64), training=True, cache_dir=cache
    ).dataset
    assert len(windows) == 1
    return windows[0]


def line(example: Example, cache: Path, width: int = 250) -> str:
    """A line as Info-HCVAE writes it: ids, mask, token types, all padded, then the answer's first and last position."""
    window = features(example, cache)
    columns = [window["input_ids"], [1] * window["length"], window["token_type_ids"]]
    padded = [" ".join(map(str, column + [0] * (width - len(column)))) for column in columns]
    return "\t".join([*padded, str(window["start_position"]), str(window["end_position"])]) + "\n"


def convert(folder: Path, content: str | bytes) -> tuple[list[Example], dict]:
    source, output = folder / "pairs.txt", folder / "pairs.jsonl"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    output.unlink(missing_ok=True)
    counts = convert_pairs(source, output, tiny.wordpiece)
    return read_examples(str(output), training=True), dict(counts)


texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=25)


@settings(max_examples=20)
@given(question=texts, context=texts, data=st.data())
def test_ids_read_back_as_text_give_the_same_window(tmp_path_factory, question, context, data):
    first = data.draw(st.integers(0, len(context) - 1))
    last = data.draw(st.integers(first, len(context) - 1))
    start = len(" ".join([*context[:first], ""]))
    text, answer = " ".join(context), " ".join(context[first : last + 1])
    example = Example("q", " ".join(question), text, (answer,), (start, start + len(answer)), text)
    folder = tmp_path_factory.getbasetemp() / "pairs"
    folder.mkdir(exist_ok=True)
    (read,), counts = convert(folder, line(example, folder))
    assert counts == {"written": 1}
    assert features(read, folder) == features(example, folder)


def test_features_without_an_answer_in_the_context_are_dropped_and_counted(tmp_path):
    example = Example("q", "When?", "It was built in 1204 .", ("1204",), (16, 20), "")
    good = line(example, tmp_path).rsplit("\t", 2)
    last = features(example, tmp_path)["length"] - 1
    lines = ["\t".join([good[0], str(a), str(b)]) for a, b in [(good[1], good[2]), (0, 0), (last, last), (9, 8)]]
    examples, counts = convert(tmp_path, "\n".join(lines) + "\n")
    assert [example.id for example in examples] == ["pairs-1"]
    assert examples[0].answers == ("1204",)
    assert counts == {"written": 1, "answer not in the context": 3}


def test_json_lines_find_the_answer_as_whole_words(tmp_path):
    pairs = [
        {"context": "Cats scatter the cat.", "question": "What?", "answer": " cat "},
        {"context": "A (b.c) d", "question": "What?", "answer": "(b.c)"},
        {"context": "A cat.", "question": "What?", "answer": "dog"},
        {"context": "A cat.", "question": " ", "answer": "cat"},
    ]
    examples, counts = convert(tmp_path, "\n".join(map(json.dumps, pairs)))
    assert [(e.id, e.answers, e.span) for e in examples] == [
        ("pairs-1", ("cat",), (17, 20)),
        ("pairs-2", ("(b.c)",), (2, 7)),
    ]
    assert counts == {
        "written": 2,
        "answer not in the context": 1,
        "blank question, context or answer": 1,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no pair"),
        ('{"context": "A cat.", "question": "What?", "answer": "dog"}', "holds no pair"),
        ('{"context": "A cat.", "question": "What?"}', "line 1: field 'answer' is missing"),
        ('{"context": "A cat."', "line 1: is not a generated pair (Expecting"),
        (
            '{"context": "A cat.", "question": "What?", "answer": null}',
            "line 1: field 'answer' is None; expected a string",
        ),
        ("2 5 3 6 3\t1 1 1 1 1\t0 0 0 1 1\t3\n", "line 1: is not a generated pair (IndexError"),
        ("2 5 9999 3 6 3\t\t\t4\t4\n", "token id 9999, and the tokenizer has"),
        ("some text\n", "line 1: is not a generated pair"),
    ],
    ids=lambda value: str(value[:40]),
)
def test_bad_files(tmp_path, content, message):
    with pytest.raises(InputError) as caught:
        convert(tmp_path, content)
    assert message in str(caught.value)
    assert str(tmp_path / "pairs.txt") in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.txt"]  # nothing half-written either


def test_nothing_is_overwritten_and_wrong_files_and_tokenizers_are_named(tmp_path):
    (tmp_path / "pairs.txt").write_text("2 5 3 6 3\t1 1 1 1 1\t0 0 0 1 1\t3\t3\n")
    with pytest.raises(InputError, match="has no WordPiece vocabulary"):
        convert_pairs(tmp_path / "pairs.txt", tmp_path / "pairs.jsonl", tiny.byte_bpe)
    assert not (tmp_path / "pairs.jsonl").exists()
    (tmp_path / "notes.csv").write_text("question\tcontext\tanswer\n")
    with pytest.raises(InputError, match=r"notes\.csv: line 1: is not a generated pair"):
        convert_pairs(tmp_path / "notes.csv", tmp_path / "out.jsonl", lambda: pytest.fail("a tokenizer was loaded"))
    (tmp_path / "there.jsonl").write_text("")
    with pytest.raises(InputError, match=r"there\.jsonl: exists already"):
        convert_pairs(tmp_path / "pairs.txt", tmp_path / "there.jsonl", tiny.wordpiece)
    with pytest.raises(InputError, match=r"none\.txt: no such file"):
        convert_pairs(tmp_path / "none.txt", tmp_path / "new.jsonl", tiny.wordpiece)


def test_the_command_says_what_it_wrote_and_dropped(tmp_path, monkeypatch, capsys):
    pairs = [{"context": "A cat.", "question": "What?", "answer": answer} for answer in ("cat", "dog", "cow")]
    (tmp_path / "pairs.txt").write_text("\n".join(map(json.dumps, pairs)))
    output = tmp_path / "pairs.jsonl"
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path / "pairs.txt"), str(output)])
    convert_command.convert()
    assert capsys.readouterr().out.splitlines() == [f"{output}: 1 pairs", "dropped: 2 (answer not in the context)"]
