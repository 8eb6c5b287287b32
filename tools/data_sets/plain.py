"""Reads a published file by `json` and `csv` alone, and counts what is in it. Nothing of this package is used."""

import csv
import gzip
import io
import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

NAMES = {  # the names of each field in the files, but for those that a set's `data.columns` gives
    "question": ["question", "query_text"],
    "context": ["context", "context_text"],
    "answers": ["answers", "answer"],
    "answer_start": ["answer_start", "start_char"],
    "is_impossible": ["is_impossible"],
    "id": ["id", "query_id"],
    "qas": ["qas"],
    "paragraphs": ["paragraphs"],
}
NO_ANSWER = "ANSWERNOTFOUND"  # SubjQA's
FLAGS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
Names = dict[str, list[str]]


class Row(NamedTuple):
    """A question as its file has it. `answers` are the texts that are not blank, each with its offset, or None where it
    is missing or -1. They are None where the file has no such field."""

    id: Any
    question: Any
    context: Any
    answers: list[tuple[str, int | None]] | None
    has_blank_answer: bool
    impossible: bool | None

    @property
    def is_blank(self) -> bool:
        return is_blank(self.question) or is_blank(self.context)

    @property
    def begin(self) -> int | None:
        """Where the first answer stands, if it stands at its offset."""
        text, start = self.answers[0]
        if start is None or self.context[start : start + len(text)] != text:
            return None
        return start


def is_blank(text: Any) -> bool:
    """Whether this is no text, or only spaces, control and format characters."""
    return not isinstance(text, str) or all(unicodedata.category(letter) in ("Cc", "Cf", "Zs", "Zl") for letter in text)


def read_rows(path: Path, columns: dict[str, str | None]) -> Iterator[Row]:
    """The questions of a file. `columns` are the names of its fields, as in a recipe."""
    names = {field: list(known) for field, known in NAMES.items()}
    for column, name in columns.items():
        if name:
            names["answers" if column == "answer" else column].insert(0, name)
    for item in _items(path):
        paragraphs = _value(item, names["paragraphs"], [item])
        for paragraph in paragraphs if isinstance(paragraphs, list) else [paragraphs]:
            context = _value(paragraph, names["context"])
            for row in _value(paragraph, names["qas"], [paragraph]):
                answers, has_blank = _answers(row, names)
                impossible = FLAGS.get(str(_value(row, names["is_impossible"])).lower())
                question = _value(row, names["question"])
                yield Row(_value(row, names["id"]), question, context, answers, has_blank, impossible)


def _items(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    if path.suffix == ".csv":
        csv.field_size_limit(sys.maxsize)
        return list(csv.DictReader(io.StringIO(text, newline="")))
    if path.suffix == ".jsonl" or "}\n{" in text:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    document = json.loads(text)
    if isinstance(document, dict):
        return document.get("data", [document])
    return document


def _value(item: dict[str, Any], names: list[str], default: Any = None) -> Any:
    return next((item[name] for name in names if name in item), default)


def _answers(row: dict[str, Any], names: Names) -> tuple[list[tuple[str, int | None]] | None, bool]:
    """The answers of a row that are not blank, and whether some are."""
    given = _value(row, names["answers"])
    if given in (None, NO_ANSWER):
        return ([] if given else None), False
    if isinstance(given, list) and any(isinstance(answer, dict) for answer in given):
        pairs = [(answer["text"], _value(answer, names["answer_start"])) for answer in given]
    else:
        beside = given if isinstance(given, dict) else row  # where the offsets of texts are
        texts = given.get("text", []) if isinstance(given, dict) else given
        texts = texts if isinstance(texts, list) else [texts]
        starts = _value(beside, names["answer_start"])
        starts = (starts if isinstance(starts, list) else [starts]) or [None]
        starts = starts * len(texts) if len(starts) == 1 else starts
        pairs = list(zip(texts, starts, strict=True))
    answers = []
    for text, start in pairs:
        if text is not None and not is_blank(str(text)):
            answers.append((str(text), None if start in (None, "", -1) else int(start)))
    return answers, len(answers) < len(pairs)


def count(rows: list[Row]) -> Counter[str]:
    """What is in a file, and what is wrong with it. Answers are the first of each question."""
    counts: Counter[str] = Counter({"questions": len(rows)})
    ids = Counter(str(row.id) for row in rows if row.id not in (None, ""))
    counts["repeated ids"] = sum(times > 1 for times in ids.values())
    for row in rows:
        counts["blank rows"] += row.is_blank
        counts["blank answers"] += row.has_blank_answer and row.impossible is not True
        if row.is_blank:
            continue
        if row.answers is None and row.impossible is not True:
            counts["lost answers"] += 1
        if row.answers and row.impossible:
            counts["impossible with answers"] += 1
        if not row.answers:
            counts["possible without answers"] += row.impossible is False
            continue
        counts["with answers"] += 1
        if row.impossible:
            continue
        text, start = row.answers[0]
        places = row.context.count(text.strip())
        where = ("nowhere", "once")[places] if places < 2 else "several times"
        if start is None:
            counts["without offset"] += 1
            counts[f"without offset, {where}"] += 1
        elif row.begin is None:
            counts["misplaced"] += 1
            counts[f"misplaced, {where}"] += 1
    answered = [row for row in rows if row.answers or row.impossible]
    counts["withheld"] = 0 if answered else len(rows)
    return counts
