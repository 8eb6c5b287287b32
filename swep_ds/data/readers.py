"""Question-answering examples from the hub, from local files or from the embedded quick-start corpus.

Local files are recognised by content, never by name, gzip or not:
  - SQuAD v1.1 and v2.0 JSON, which is also the layout of SQuADShifts, XQuAD and MLQA;
  - MRQA 2019 shared-task lines: a header (or none), then a context with its questions per line (offsets inclusive);
  - rows (id, question, context, and answers{text, answer_start}, a list of answers or one answer) as JSON lines, a JSON
    list, Parquet, Arrow or CSV (commas, semicolons or tabs).
In the first and the last layout a question without an id gets one from its place in the file, and an answer without an
offset is looked up in its context.
"""

import gzip
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swep_ds.data import layouts
from swep_ds.data.fields import excerpt
from swep_ds.data.layouts import Example, LabelOptions
from swep_ds.data.reader_registry import BUILT_IN, find_reader, read_rows
from swep_ds.data.tables import (
    csv_answers,
    csv_delimiter,
    csv_rows,
    is_table,
    memory_rows,
    most_unpacked,
    saved_contents,
    saved_splits,
    table_rows,
)
from swep_ds.errors import InputError, as_input_error, printable
from swep_ds.files import check_hub, parse_json, read_bytes, user_path

__all__ = ["Example", "local_files", "read_examples", "read_questions"]

SOURCES = (
    "a local file or folder (SQuAD or MRQA layout, or rows as JSON, Parquet, Arrow or CSV), a hub id "
    "owner/name[:config][@split], quickstart:<domain> or quickstart_v2:<domain>, or NAME:ADDRESS of a reader that a "
    "package registers"
)
QUICKSTART = tuple(f"{name}:" for name in BUILT_IN)
DATA_SUFFIXES = {".json", ".jsonl", ".parquet", ".arrow", ".csv", ".tsv", ".gz"}

_HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<config>[^@]+))?(@(?P<split>.+))?")


def read_examples(source: str, *, training: bool, unanswerable: bool = False) -> list[Example]:
    """Reads every example of `source`, in its order.

    Args:
        source: a hub id `owner/name[:config][@split]`, a local file, a folder (saved by `Dataset.save_to_disk`, or
            else its data files in name order, whose names may tell splits apart), `quickstart:<domain>[.<split>]`,
            `quickstart_v2:...` with unanswerable questions, or `NAME:ADDRESS` of a registered reader
            (`reader_registry.reader`). A source with named splits gives "train" for training, else "validation" or,
            without it, "test" (the quick start has "train" and "test").
        training: the first answer of each question must be at its offset or, without one, occur exactly once in the
            context; it becomes `Example.span`.
        unanswerable: reads questions without an answer, too, which are an error otherwise.

    Raises:
        InputError: a missing or malformed source, a missing field, a blank question or context, a question without an
            answer, an answer not at its offset (training only), duplicate ids, or no example. One message reports the
            faults of all questions of a file.
    """
    return _read(source, training, LabelOptions(training, unanswerable))


def read_questions(source: str) -> list[Example]:
    """Reads the questions and contexts of `source`, a source as in `read_examples` that need not have answers; those it
    has are left out. Raises InputError: as `read_examples`, but for its answers."""
    return _read(source, False, LabelOptions(spans=False, labels=False))


def local_files(source: str, *, training: bool) -> tuple[Path, ...]:
    """The files that a local file or folder is read from; none for another source.

    Args:
        training: as in `read_examples`.

    Raises InputError: the path cannot be looked up, the folder cannot be listed, or it has no such split.
    """
    if source.startswith(QUICKSTART) or find_reader(source):
        return ()
    path = user_path(source, "data source")
    if not path.is_dir():
        return (path,) if path.exists() else ()
    if saved := _saved_folder(path, training):  # in which the library keeps its caches, too
        return tuple(sorted(file for file in saved.glob("*.arrow") if not file.name.startswith("cache-")))
    return tuple(_data_files(path, training))


def _read(source: str, training: bool, wanted: LabelOptions) -> list[Example]:
    if source.startswith(QUICKSTART):
        examples = _read_quickstart(source, training, wanted)
    elif read := find_reader(source):
        examples = list(layouts.rows(printable(source), read_rows(source, read), wanted))
    else:
        path = user_path(source, "data source")
        if path.is_dir():
            examples = _read_folder(path, training, wanted)
        elif path.exists():
            examples = list(_read_file(path, wanted))
        elif (hub_id := _HUB_ID.fullmatch(source)) and not DATA_SUFFIXES & set(path.suffixes):
            examples = _read_hub(source, hub_id, training, wanted)
        else:
            raise InputError(f"data source {source!r}: no such file or folder; name {SOURCES}")
    if not examples:
        raise InputError(f"{printable(source)}: holds no questions; give a data set with at least one")
    ids: set[str] = set()
    for example in examples:
        if example.id in ids:
            raise InputError(
                f"{printable(source)}: question id {excerpt(example.id)} occurs twice; make every id unique"
            )
        ids.add(example.id)
    return examples


def _read_quickstart(source: str, training: bool, wanted: LabelOptions) -> list[Example]:
    from swep_ds.data.quickstart import DOMAINS, SOURCE, corpus

    name, _, place = source.partition(":")
    domain, _, split = place.partition(".")
    try:
        v2 = name == BUILT_IN[1]
        document = corpus(domain, split or ("train" if training else "test"), unanswerable=v2)
    except KeyError as error:
        raise InputError(
            f"{printable(source)}: the quick-start corpus has no such domain or split; name one of "
            f"{', '.join(DOMAINS)} for evaluation, {SOURCE} for training"
        ) from error
    return list(layouts.squad(source, document, wanted))


def _read_folder(folder: Path, training: bool, wanted: LabelOptions) -> list[Example]:
    if saved := _saved_folder(folder, training):
        source = printable(str(folder))
        return list(layouts.rows(source, table_rows(source, saved_contents(saved), labels=wanted.labels), wanted))
    return [example for file in _data_files(folder, training) for example in _read_file(file, wanted)]


def _saved_folder(folder: Path, training: bool) -> Path | None:
    """The folder of the wanted split, if the `datasets` library saved the data; else None."""
    if (folder / "state.json").is_file():
        return folder
    if not (folder / "dataset_dict.json").is_file():
        return None
    splits = saved_splits(folder)
    return splits[_default_split(printable(str(folder)), splits, training)]


def _data_files(folder: Path, training: bool) -> list[Path]:
    """The files of the wanted split, in name order."""
    source = printable(str(folder))
    with as_input_error(f"{source}: cannot be read", "check its permissions"):
        files = sorted(f for f in folder.iterdir() if f.suffix in DATA_SUFFIXES and f.is_file() and f.name[0] != ".")
    if not files:
        raise InputError(f"{source}: no data file in this folder; expected {', '.join(sorted(DATA_SUFFIXES))}")
    splits: dict[str | None, list[Path]] = {}
    for file in files:
        splits.setdefault(_split_of(file), []).append(file)
    if None in splits and len(splits) > 1:
        named = ", ".join(printable(file.name) for file in files)
        raise InputError(f"{source}: some files of this folder name a split and others do not ({named}): name one file")
    return splits[_default_split(source, splits, training)] if len(splits) > 1 else files


def _split_of(file: Path) -> str | None:
    """The split that a file's name says, as in train-00000-of-00001.parquet or dev-v1.1.json; None if it says none."""
    from datasets.data_files import SPLIT_KEYWORDS  # by which the library tells a folder's splits apart

    words = set(re.split(r"[^a-z]+", file.name.lower()))
    return next((str(split) for split, names in SPLIT_KEYWORDS.items() if words & set(names)), None)


def _read_hub(source: str, hub_id: re.Match[str], training: bool, wanted: LabelOptions) -> list[Example]:
    from datasets import Dataset, load_dataset

    from swep_ds.data.cache import CACHE_FIX

    fix = "correct the id, or download the data set and name its local file or folder instead"
    check_hub(hub_id["name"], "README.md", f"{source}: not a local file", "dataset")
    with as_input_error(f"{source}: not a local file, and the hub cannot give it", fix):
        try:
            loaded = load_dataset(hub_id["name"], hub_id["config"], split=hub_id["split"])
        except OSError as error:
            if error.errno is None or error.filename is None:  # a fault of the network or the hub
                raise
            raise InputError(f"{source}: cannot write {error.filename} ({error.strerror}): {CACHE_FIX}") from None
    if not isinstance(loaded, Dataset):
        loaded = loaded[_default_split(source, loaded, training)]
    return list(layouts.rows(source, memory_rows(source, loaded.with_format("arrow")[:], labels=wanted.labels), wanted))


def _default_split(source: str, splits: Any, training: bool) -> str:
    """The split that `read_examples` uses by default."""
    wanted = ("train",) if training else ("validation", "test")
    split = next((split for split in wanted if split in splits), None)
    if split is None:
        raise InputError(
            f"{source}: has no split {' or '.join(wanted)}, only {', '.join(map(printable, splits))}; name one (@split "
            "after a hub id, the split's folder, or its file)"
        )
    return split


def _read_file(path: Path, wanted: LabelOptions) -> Iterator[Example]:
    source = printable(str(path))
    with as_input_error(f"{source}: cannot be read", "name a file that fits into memory"):
        content = read_bytes(path, source)
    if content[:2] == b"\x1f\x8b":
        content = _unzipped(source, content)
    if is_table(content):
        return layouts.rows(source, table_rows(source, [content], labels=wanted.labels), wanted)
    return _read_text(source, content, wanted)


def _unzipped(source: str, packed: bytes) -> bytes:
    most = most_unpacked(len(packed))
    with as_input_error(f"{source}: damaged gzip file", "fetch it again"), gzip.open(io.BytesIO(packed)) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise InputError(
            f"{source}: its {len(packed)} bytes unpack to more than {most}; unpack it yourself if that is right"
        )
    return content


def _read_text(source: str, content: bytes, wanted: LabelOptions) -> Iterator[Example]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: neither UTF-8 text (byte {error.start}) nor Parquet or Arrow; save it as UTF-8"
        ) from None
    if delimiter := csv_delimiter(text):
        return layouts.rows(source, csv_rows(source, text, delimiter, labels=wanted.labels), wanted, csv_answers)
    values = _json_values(source, text)
    first = next(values, None)
    if first is None:
        raise InputError(f"{source}: is empty; give a data set with at least one question")
    _, value = first
    lines = itertools.chain([first], values)
    if isinstance(value, dict) and ("header" in value or "qas" in value):
        return layouts.mrqa(source, values if "header" in value else lines, wanted)
    if isinstance(value, dict) and "data" not in value:
        return layouts.rows(source, ((f"line {number}", row) for number, row in lines), wanted)
    if (extra := next(values, None)) is not None:
        raise InputError(f"{source}: line {extra[0]}: text after the end of the JSON document; remove it")
    if isinstance(value, dict):
        return layouts.squad(source, value, wanted)
    return layouts.rows(source, ((f"row {number}", row) for number, row in enumerate(value)), wanted)


def _json_values(source: str, text: str) -> Iterator[tuple[int, Any]]:
    """The JSON value of every line, or else of the whole text, each with the line it begins on."""
    lines = _lines(text)
    begin, number, line = next(lines, (0, 0, ""))
    if not line:
        return
    if line.lstrip()[0] not in "{[":
        raise InputError(
            f"{source}: holds neither JSON nor Parquet, Arrow or CSV (whose first line names the columns question, "
            f"context and answers), but begins with {excerpt(line.strip())}; save it as SQuAD or MRQA JSON, or as rows "
            "in one of these"
        )
    try:
        first = _json(source, line, number)
    except InputError:
        if next(lines, None) is None:
            raise
        yield number, _json(source, text[begin:], number)
        return
    yield number, first
    for _, number, line in lines:
        yield number, _json(source, line, number)


def _json(source: str, text: str, line: int) -> Any:
    try:
        return parse_json(text, source, unique_keys=False, line=line)
    except InputError as error:
        raise InputError(f"{error}; correct it or fetch the file again") from None


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Offset, number and text of every line that is not blank."""
    begin, number = 0, 1
    while begin < len(text):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        line = text[begin:end]
        if line and not line.isspace():
            yield begin, number, line
        begin, number = end + 1, number + 1
