"""Question-answering examples from the hub, from local files or from the embedded quick-start corpus.

Local files are recognised by content, never by name, gzip or not:
  - SQuAD v1.1 JSON, which is also the layout of SQuADShifts;
  - MRQA 2019 shared-task lines: a header (or none), then one context with its questions a line (offsets inclusive);
  - rows of the `datasets` layout (id, question, context, answers{text, answer_start}) as JSON lines, as one
    JSON list, as Parquet or as Arrow.
A question without an id in the first and the last gets one from its place in the file.
Everything here is extractive question answering as SQuAD v1.1 poses it: every question has an answer.
"""

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from swep_ds.errors import InputError

SOURCES = (
    "a local file or folder (SQuAD or MRQA layout, or rows of the datasets layout), a hub id "
    "owner/name[:config][@split], or quickstart:<domain>"
)
DATA_SUFFIXES = {".json", ".jsonl", ".parquet", ".arrow", ".gz"}

_HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<config>[^@]+))?(@(?P<split>.+))?")
_SURROGATE = re.compile("[\ud800-\udfff]")
# [SEP] stands behind titles in several MRQA sets, and a BERT tokenizer would read it as its own separator.
_MRQA_MARKER = re.compile(r"\[(?:TLE|PAR|DOC|SEP)\]")


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one context.

    `answers` are the accepted texts for scoring, at least one. `span` is the training answer as characters
    [start, end) of `context`, None when read for evaluation. `article` is its title where the source has one:
    questions of one article are to be kept on one side of a split of the data.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    span: tuple[int, int] | None
    article: str


def read_examples(source: str, *, training: bool) -> list[Example]:
    """Reads every example of `source`, in its order.

    `source` is a hub id `owner/name[:config][@split]`, a local file, a folder (saved by `Dataset.save_to_disk`,
    or else its data files in name order), or `quickstart:<domain>[.<split>]`. A source with named splits gives
    "train" for training, else "validation" or, without that, "test" (the quick start has "train" and "test").
    With `training` the first answer of each question must stand at its offset and becomes `Example.span`.

    Raises InputError for a missing or malformed source, a missing field, a blank question or context, a
    question without an answer, an answer not at its offset (training only), duplicate ids, or no example.
    """
    path = Path(source).expanduser()
    if source.startswith("quickstart:"):
        examples = _read_quickstart(source, training)
    elif path.is_dir():
        examples = _read_folder(path, training)
    elif path.exists():
        examples = list(_read_file(path, training))
    elif (hub_id := _HUB_ID.fullmatch(source)) and not DATA_SUFFIXES & set(path.suffixes):
        examples = _read_hub(source, hub_id, training)
    else:
        raise InputError(f"data source {source!r}: no such file or folder; name {SOURCES}")
    if not examples:
        raise InputError(f"{source}: holds no questions; give a data set with at least one")
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise InputError(f"{source}: question id {example.id!r} occurs twice; make every id unique")
        seen.add(example.id)
    return examples


# Sources


def _read_quickstart(source: str, training: bool) -> list[Example]:
    from swep_ds.data.quickstart import DOMAINS, SOURCE, corpus

    domain, _, split = source.removeprefix("quickstart:").partition(".")
    try:
        document = corpus(domain, split or ("train" if training else "test"))
    except KeyError as error:
        raise InputError(
            f"{source}: the quick-start corpus has no such domain or split; name one of {', '.join(DOMAINS)} for "
            f"evaluation, {SOURCE} for training"
        ) from error
    return list(_squad(source, document, training))


def _read_folder(folder: Path, training: bool) -> list[Example]:
    source = str(folder)
    if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
        from datasets import load_from_disk

        try:
            saved = load_from_disk(source)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{source}: damaged saved data set ({_first_line(error)}); save it again") from error
        return list(_table_rows(source, _default_split(source, saved, training), training))
    files = sorted(f for f in folder.iterdir() if f.suffix in DATA_SUFFIXES and f.is_file() and f.name[0] != ".")
    if not files:
        raise InputError(f"{source}: no data file in this folder; expected {', '.join(sorted(DATA_SUFFIXES))}")
    return [example for file in files for example in _read_file(file, training)]


def _read_hub(source: str, hub_id: re.Match[str], training: bool) -> list[Example]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        dataset = load_dataset(hub_id["name"], hub_id["config"], split=hub_id["split"])
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:  # no network, no such data set, config or split
        raise InputError(
            f"{source}: not a local file, and the hub says: {_first_line(error)}; correct the id, or download "
            "the data set and name its local file or folder instead"
        ) from error
    return list(_table_rows(source, _default_split(source, dataset, training), training))


def _default_split(source: str, dataset: Any, training: bool) -> pa.Table:
    """The table of a `Dataset`, or of the split of a `DatasetDict` that `read_examples` promises."""
    from datasets import Dataset

    if not isinstance(dataset, Dataset):
        wanted = ("train",) if training else ("validation", "test")
        split = next((split for split in wanted if split in dataset), None)
        if split is None:
            raise InputError(
                f"{source}: has no split {' or '.join(wanted)}, only {', '.join(dataset)}; name one (@split "
                "behind a hub id, or the split's own folder)"
            )
        dataset = dataset[split]
    return dataset.with_format("arrow")[:]


def _read_file(path: Path, training: bool) -> Iterator[Example]:
    source = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror}); check its permissions") from error
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{source}: damaged gzip file ({error}); fetch it again") from error
    if content[:4] == b"PAR1" or content[:6] == b"ARROW1" or content[:4] == b"\xff\xff\xff\xff":
        try:
            table = _arrow_table(content)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{source}: damaged data file ({_first_line(error)}); fetch it again") from error
        return _table_rows(source, table, training)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: neither UTF-8 text (byte {error.start}) nor Parquet or Arrow; save it as UTF-8"
        ) from error
    values = _json_values(source, text)
    first = next(values, None)
    if first is None:
        raise InputError(f"{source}: is empty; give a data set with at least one question")
    line, value = first
    if isinstance(value, dict) and ("header" in value or "qas" in value):
        return _mrqa(source, values if "header" in value else itertools.chain([first], values), training)
    if isinstance(value, dict) and "data" in value:
        if (extra := next(values, None)) is not None:
            raise InputError(f"{source}: line {extra[0]}: text after the end of the SQuAD document; remove it")
        return _squad(source, value, training)
    if isinstance(value, dict):
        return _rows(source, ((f"line {n}", row) for n, row in itertools.chain([first], values)), training)
    if isinstance(value, list):
        return _rows(source, ((f"row {i}", row) for i, row in enumerate(value)), training)
    raise InputError(f"{source}: line {line}: expected a JSON object or list, found {_excerpt(value)}")


def _arrow_table(content: bytes) -> pa.Table:
    if content[:4] == b"PAR1":
        return pq.read_table(pa.BufferReader(content))
    if content[:6] == b"ARROW1":
        return pa.ipc.open_file(content).read_all()
    return pa.ipc.open_stream(content).read_all()


def _json_values(source: str, text: str) -> Iterator[tuple[int, Any]]:
    """The JSON value of every line, or else the one of the whole text, each with the line it begins on."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    try:
        for number, line in lines:
            yield number, json.loads(line)
    except json.JSONDecodeError as error:
        if number > lines[0][0] or len(lines) == 1:
            raise _malformed(source, number, error) from error
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise _malformed(source, error.lineno, error) from error
        yield number, document


def _malformed(source: str, line: int, error: json.JSONDecodeError) -> InputError:
    return InputError(
        f"{source}: malformed JSON at line {line}, column {error.colno}: {error.msg}; correct it or fetch the "
        "file again"
    )


# Layouts


def _squad(source: str, document: dict[str, Any], training: bool) -> Iterator[Example]:
    for a, article in enumerate(_field(document, "data", list, source)):
        where = f"{source}: data[{a}]"
        paragraphs = _field(article, "paragraphs", list, where)
        title = str(article.get("title") or where)
        for p, paragraph in enumerate(paragraphs):
            where = f"{source}: data[{a}].paragraphs[{p}]"
            context = _text(paragraph, "context", where)
            for q, qa in enumerate(_field(paragraph, "qas", list, where)):
                id_ = _id(qa, "id", f"{where}.qas[{q}]", otherwise=f"{Path(source).name}-{a}.{p}.{q}")
                where_q = f"{source}: question {id_!r}"
                question = _text(qa, "question", where_q)
                answers = _field(qa, "answers", list, where_q)
                texts = [_field(answer, "text", str, f"{where_q}: answers") for answer in answers]
                _require_answer(where_q, texts)
                span = None
                if training:
                    start = _field(answers[0], "answer_start", int, f"{where_q}: answers")
                    span = _squad_span(where_q, context, texts[0], start)
                yield Example(id_, question, context, tuple(texts), span, title)


def _table_rows(source: str, table: pa.Table, training: bool) -> Iterator[Example]:
    columns = [name for name in ("id", "title", "question", "context", "answers") if name in table.column_names]
    return _rows(source, ((f"row {i}", row) for i, row in enumerate(table.select(columns).to_pylist())), training)


def _rows(source: str, rows: Iterable[tuple[str, Any]], training: bool) -> Iterator[Example]:
    contexts: dict[str, str] = {}  # rows repeat their paragraph: one copy in memory serves them all
    for label, row in rows:
        id_ = _id(row, "id", f"{source}: {label}", otherwise=f"{Path(source).name}-{label.split()[1]}")
        where = f"{source}: question {id_!r}"
        question, context = _text(row, "question", where), _text(row, "context", where)
        answers = _field(row, "answers", dict, where)
        texts = _field(answers, "text", list, f"{where}: answers")
        _require_answer(where, texts)
        span = None
        if training:
            starts = _field(answers, "answer_start", list, f"{where}: answers")
            if not (starts and isinstance(starts[0], int)):
                raise InputError(f"{where}: answers.answer_start holds no offset; give one integer for each text")
            span = _squad_span(where, context, texts[0], starts[0])
        context = contexts.setdefault(context, context)
        yield Example(id_, question, context, tuple(texts), span, str(row.get("title") or context))


def _mrqa(source: str, lines: Iterator[tuple[int, Any]], training: bool) -> Iterator[Example]:
    for line, row in lines:
        where = f"{source}: line {line}"
        raw_context = _text(row, "context", where)
        # as many blanks as the marker has characters, so that every offset holds
        context = _MRQA_MARKER.sub(lambda marker: " " * len(marker[0]), raw_context)
        for qa in _field(row, "qas", list, where):
            id_ = _id(qa, "qid", where)
            where_q = f"{source}: question {id_!r}"
            question, answers = _text(qa, "question", where_q), _field(qa, "answers", list, where_q)
            _require_answer(where_q, answers)
            span = _mrqa_span(where_q, raw_context, qa) if training else None
            yield Example(id_, question, context, tuple(answers), span, context)


# Answers and fields


def _squad_span(where: str, context: str, text: str, start: int) -> tuple[int, int]:
    end = start + len(text)
    if not text.strip():
        raise InputError(f"{where}: its answer is blank; give the answer's text or leave the question out")
    if start < 0 or context[start:end] != text:
        found = _excerpt(context[start:end]) if 0 <= start < len(context) else "no text"
        raise InputError(
            f"{where}: the answer {_excerpt(text)} is not at answer_start {start} of its context, where "
            f"{found} stands; correct the offset (it counts characters, from 0)"
        )
    return start, end


def _mrqa_span(where: str, context: str, qa: dict[str, Any]) -> tuple[int, int]:
    """The first occurrence of the first detected answer. Its text is detokenised, so white space and case may
    differ from the context's."""
    detected = _field(qa, "detected_answers", list, where)
    if not detected:
        raise InputError(f"{where}: no detected_answers to train on; leave the question out")
    text = _field(detected[0], "text", str, f"{where}: detected_answers")
    spans = _field(detected[0], "char_spans", list, f"{where}: detected_answers")
    match spans:
        case [[int(start), int(last)], *_]:
            found = context[start : last + 1] if 0 <= start <= last else ""
        case _:
            raise InputError(f"{where}: char_spans is {_excerpt(spans)}; expected [[first, last], ...], characters")
    if not found.strip() or "".join(found.split()).casefold() != "".join(text.split()).casefold():
        raise InputError(
            f"{where}: the answer {_excerpt(text)} is not at char_spans {[start, last]} of its context, where "
            f"{_excerpt(found)} stands; correct the offsets (characters, from 0, the last one included)"
        )
    return start, last + 1


def _require_answer(where: str, answers: list[Any]) -> None:
    if not answers:
        raise InputError(
            f"{where}: has no answer; every question of SQuAD v1.1 has one, leave unanswerable questions out"
        )
    for answer in answers:
        if not isinstance(answer, str):
            raise InputError(f"{where}: the answer {_excerpt(answer)} is not text; give a string")


_KINDS = {str: "string", int: "whole number", list: "list", dict: "object", (str, int): "string or number"}


def _field(mapping: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(mapping, dict):
        raise InputError(f"{where}: expected an object with the field {name!r}, found {_excerpt(mapping)}")
    if name not in mapping:
        raise InputError(f"{where}: field {name!r} is missing; add it")
    if not isinstance(mapping[name], kind):
        raise InputError(f"{where}: field {name!r} is {_excerpt(mapping[name])}; expected a {_KINDS[kind]}")
    return mapping[name]


def _text(mapping: Any, name: str, where: str) -> str:
    value = _field(mapping, name, str, where)
    if not value or value.isspace():
        raise InputError(f"{where}: {name} is empty; give its text or leave it out of the data set")
    if _SURROGATE.search(value):
        raise InputError(f"{where}: {name} holds half of a surrogate pair, which is no text; remove or complete it")
    return value


def _id(mapping: Any, name: str, where: str, otherwise: str | None = None) -> str:
    """`otherwise` stands in for an id that is missing, as in generated pairs; None = every question needs one."""
    if otherwise and isinstance(mapping, dict) and mapping.get(name) is None:
        return otherwise
    return str(_field(mapping, name, (str, int), where))


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
