"""Generated pairs become rows that the reader takes; ids read back as text give the same ids again."""

import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from swep_ds.commands.convert import convert as convert_command
from swep_ds.data.example import Example
from swep_ds.data.features import build_features
from swep_ds.data.readers import read_examples
from swep_ds.data.windows import WindowSettings
from swep_ds.models import hub
from tests.support import bad_input, tiny

texts = st.lists(st.sampled_from(" ".join(tiny.SENTENCES).split()), min_size=1, max_size=25)


def features(example: Example, cache: Path) -> dict:
    sizes = WindowSettings(200, 100, 64)
    [window] = build_features([example], tiny.wordpiece(), sizes, training=True, cache_dir=cache).dataset
    return window


def line(example: Example, cache: Path) -> str:
    """A line as Info-HCVAE writes it: ids, mask, token types, all padded, then the answer's first and last position."""
    window = features(example, cache)
    columns = [window["input_ids"], [1] * window["length"], window["token_type_ids"]]
    padded = [" ".join(map(str, column + [0] * (250 - len(column)))) for column in columns]
    return "\t".join([*padded, str(window["start_position"]), str(window["end_position"])]) + "\n"


def convert(folder: Path, content: str, tokenizer=tiny.wordpiece) -> tuple[list[Example], list[str]]:
    """The questions, and the lines that the command prints."""
    source, output = folder / "pairs.txt", folder / "pairs.jsonl"
    source.write_text(content)
    output.unlink(missing_ok=True)
    with (
        mock.patch.object(sys, "argv", ["convert", str(source), str(output)]),
        mock.patch.object(hub, "load_tokenizer", return_value=tokenizer()),
        contextlib.redirect_stdout(io.StringIO()) as said,
    ):
        convert_command()
    return read_examples(str(output), training=True), said.getvalue().splitlines()


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
    (read,), said = convert(folder, line(example, folder))
    assert said == [f"{folder / 'pairs.jsonl'}: 1 pairs"]
    assert features(read, folder) == features(example, folder)


def test_features_without_an_answer_in_the_context_are_dropped_and_counted(tmp_path):
    example = Example("q", "When?", "It was built in 1204 .", ("1204",), (16, 20), "")
    good = line(example, tmp_path).rsplit("\t", 2)
    last = features(example, tmp_path)["length"] - 1
    lines = ["\t".join([good[0], str(a), str(b)]) for a, b in [(good[1], good[2]), (0, 0), (last, last), (9, 8)]]
    examples, said = convert(tmp_path, "\n".join(lines) + "\n")
    assert [(example.id, example.answers) for example in examples] == [("pairs-1", ("1204",))]
    assert said == [f"{tmp_path / 'pairs.jsonl'}: 1 pairs", "dropped: 3 (answer not in the context)"]


def test_json_lines_find_the_answer_as_whole_words_and_the_command_counts(tmp_path):
    pairs = [("Cats scatter the cat.", "What?", " cat "), ("A (b.c) d", "What?", "(b.c)")]
    pairs += [("A cat.", "What?", "dog"), ("A cat.", "What?", "cow"), ("A cat.", " ", "cat"), ("A cat.", "What?", " ")]
    rows = [dict(zip(("context", "question", "answer"), pair, strict=True)) for pair in pairs]
    (first, second), said = convert(tmp_path, "\n".join(map(json.dumps, rows)))
    assert said == [
        f"{tmp_path / 'pairs.jsonl'}: 2 pairs",
        "dropped: 2 (answer not in the context)",
        "dropped: 2 (blank question, context or answer)",
    ]
    assert (first.id, first.answers, first.span) == ("pairs-1", ("cat",), (17, 20))
    assert (second.id, second.answers, second.span) == ("pairs-2", ("(b.c)",), (2, 7))


def test_bad_files_and_a_wrong_tokenizer_are_named_and_nothing_is_overwritten(tmp_path, monkeypatch):
    source, output = tmp_path / "pairs.txt", tmp_path / "pairs.jsonl"
    for content, message in (
        ("", "holds no pair"),
        ('{"context": "A cat.", "question": "What?"}', "line 1 is not a generated pair (KeyError: 'answer')"),
        ('{"context": "A cat."', "line 1 is not a generated pair (Expecting"),
        ("2 5 3 6 3\t1 1 1 1 1\t0 0 0 1 1\t3\n", "line 1 is not a generated pair (IndexError"),
        ("2 5 9999 3 6 3\t\t\t4\t4\n", "token id 9999, and the tokenizer has"),
        (
            '[\n{"id": 1, "data": {}, "annotations": []}]',
            "data sources read SQuAD-like JSON and exports of annotation tools as they are",
        ),
    ):
        said = bad_input.refused(convert, tmp_path, content)
        assert f"{source}: " in said
        assert message in said
    of_ids = "2 5 3 6 3\t1 1 1 1 1\t0 0 0 1 1\t3\t3\n"
    assert "has no WordPiece vocabulary" in bad_input.refused(convert, tmp_path, of_ids, tiny.byte_bpe)
    assert [file.name for file in tmp_path.iterdir()] == ["pairs.txt"]  # nothing half-written either
    output.touch()
    monkeypatch.setattr(sys, "argv", ["convert", str(source), str(output)])
    assert "pairs.jsonl: exists already" in bad_input.refused(convert_command)
