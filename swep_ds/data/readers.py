"""Question-answering examples from the hub, local files, the quick-start corpus or a registered reader."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError, as_input_error, at, excerpt, reason
from swep_ds.common.files import check_hub, read_json
from swep_ds.common.plugins import check_free, load_entry_points
from swep_ds.common.spreadsheets import SUFFIXES, split_sheet
from swep_ds.data.choices import STRICT, Choices, Remark
from swep_ds.data.columns import Columns
from swep_ds.data.example import Example
from swep_ds.data.formats import Items, document_items, file_items, numbered, table_rows
from swep_ds.data.questions import Judged, judged_items
from swep_ds.data.quickstart import corpus

QUICKSTART = ("quickstart:", "quickstart_v2:")  # the second with unanswerable questions, as SQuAD v2.0 has them
DATA_SUFFIXES = {".json", ".jsonl", ".parquet", ".arrow", ".csv", ".tsv", ".gz", *SUFFIXES}
MAX_NAMED = 100  # faulty questions of a file, or repeated ids, that a message names
GROUP = "swep_ds.readers"  # the entry points' group

_HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(:(?P<config>[^@]+))?(@(?P<split>.+))?")

Reader = Callable[[str], Iterable[dict[str, Any]]]
_readers: dict[str, Reader] = {}


def read_examples(
    source: str,
    *,
    training: bool,
    choices: Choices = STRICT,
    labels: bool | None = True,
    remark: Callable[[Remark], None] = lambda _: None,
) -> list[Example]:
    """Reads the examples of `source`, in its order.

    Args:
        source: a hub id `owner/name[:config][@split]`, a local file, a sheet `FILE.xlsx#SHEET`, a folder (saved by
            `Dataset.save_to_disk`, or else its data files in name order, whose names may tell splits apart),
            `quickstart:<domain>[.<split>]`, `quickstart_v2:...` with unanswerable questions, or `NAME:ADDRESS` of a
            registered reader. Of named splits it gives "train" for training, else "validation" or, without it, "test".
        training: the first answer of each question must be at its offset or, without one, occur in the context once;
            it becomes `Example.span`.
        choices: what becomes of questions that are unanswerable or whose answer is repeated or misplaced, and which
            columns the files have for the fields.
        labels: False reads only questions and contexts. Answers need not be there; nor contexts, which are then "".
            None reads those answers that are there, and then a question may also have none if its row says so, by
            is_impossible or an empty list.
        remark: called for every question that a choice leaves out or moves, or that is doubtful.

    A test set without any answer, none of whose questions says that it has none, keeps its answers secret: its examples
    are `withheld`.

    Raises InputError: a missing or malformed source, faults of its questions, repeated ids, no example, or answers to
    train on that are withheld.
    """
    parts = []
    remarks: list[Remark] = []
    for name, items in _parts(source, training, choices.columns):
        with at(name):
            judged, noted = judged_items(name, items, choices, training=training, labels=labels)
        parts.append((name, judged))
        remarks += noted
    every = [judged for _, questions in parts for judged in questions]
    if not every:
        reasons = Counter(remark.reason for remark in remarks)
        why = "".join(f"; {count} with the remark {reason!r}" for reason, count in reasons.items())
        raise InputError(f"{source}: holds no questions{why}; give a data set with at least one")
    silent = [judged for judged in every if judged.is_silent and judged.example]
    all_silent = bool(labels and silent) and all(judged.is_silent for judged in every)
    if all_silent and training and choices.unanswerable == "train":
        raise InputError(
            f"{source}: none of its questions has an answer, and none says so: do not train on withheld answers, or "
            "set is_impossible to true where there is none"
        )
    if all_silent and not training:
        examples = [replace(judged.example, withheld=True) for judged in silent]
        every = [judged for judged in every if not judged.example]
    else:
        for name, questions in parts:
            with at(name):
                _check_faults(questions)
        examples = [judged.example for judged in every if not judged.left_out]
    for judged in every:
        if judged.remark:
            remarks.append(Remark(judged.id, judged.remark, judged.left_out, judged.passage))
    for told in remarks:
        remark(told)
    _check_ids(source, examples)
    return examples


def _check_faults(questions: list[Judged]) -> None:
    """Raises InputError for all faulty questions of a file."""
    faulty = [judged for judged in questions if judged.fault]
    if faulty:
        message = f"question {excerpt(faulty[0].id)}: {faulty[0].fault}"
        if len(faulty) > 1:
            ids = ", ".join(excerpt(judged.id) for judged in faulty[1:MAX_NAMED])
            message += f"; {len(faulty) - 1} more of this file's questions have faults: {ids}"
        raise InputError(message)


def _check_ids(source: str, examples: list[Example]) -> None:
    """Raises InputError: ids are repeated."""
    repeated = [id_ for id_, count in Counter(example.id for example in examples).items() if count > 1]
    if repeated:
        ids = ", ".join(map(excerpt, repeated[:MAX_NAMED]))
        raise InputError(
            f"{source}: question ids that occur more than once: {len(repeated)} ({ids}): make every id unique, or set "
            "data.columns.id to null (--columns id=), and the place of each question in its file becomes its id"
        )


def _parts(source: str, training: bool, columns: Columns) -> Iterator[tuple[str, Items]]:
    """The files of a source, or all that another source holds, each with its name for messages and its items."""
    name, _, address = source.partition(":")
    path, sheet = split_sheet(source)
    if source.startswith(QUICKSTART):
        yield source, _quickstart_items(name, address, training)
    elif read := find_reader(source):
        yield source, _registered_rows(name, address, read)
    elif files := _files(path, source, training):
        for file in files:
            yield source if sheet else str(file), file_items(file, columns, sheet)
    else:
        yield source, _hub_rows(source, _hub_id(source), training, columns)


def check_source(source: str, *, training: bool) -> None:
    """Raises InputError: there is no such source of data, as far as one can tell without reading it."""
    if not (source.startswith(QUICKSTART) or find_reader(source) or local_files(source, training=training)):
        _hub_id(source)


def _hub_id(source: str) -> re.Match:
    """Raises InputError: it is the name of a file, or no id."""
    hub_id = _HUB_ID.fullmatch(source)
    if hub_id is None or DATA_SUFFIXES & set(Path(source).suffixes):
        raise InputError(
            f"data source {source!r}: no such file or folder in {Path.cwd()}; name a local file or folder, a hub id "
            "owner/name[:config][@split], quickstart:<domain> or quickstart_v2:<domain>, or NAME:ADDRESS of a reader"
        )
    return hub_id


def local_files(source: str, *, training: bool) -> tuple[Path, ...]:
    """The files that a local file or folder is read from, with `training` as in `read_examples`; none for another
    source. Raises InputError: the folder has no such split."""
    return _files(split_sheet(source)[0], source, training)


def _files(path: Path, source: str, training: bool) -> tuple[Path, ...]:
    if path.is_file():  # no pipe, which every rank would read a part of
        return (path,)
    if not path.is_dir():
        return ()
    saved_splits = path / "dataset_dict.json"
    if saved_splits.is_file():
        path /= _default_split(source, read_json(saved_splits)["splits"], training)
    saved = path / "state.json"
    if saved.is_file():  # by `datasets`, which keeps its caches there, too
        return tuple(path / file["filename"] for file in read_json(saved)["_data_files"])
    return _data_files(path, training)


def reader(name: str) -> Callable[[Reader], Reader]:
    """Registers a function as the reader of all sources `name:ADDRESS`, in recipes and commands: `@sd.reader("faq")`.

    It gets ADDRESS and yields rows as those of a file: question and context (str), answers {"text": [str],
    "answer_start": [int]}, and if wanted id and title (str), which groups questions of one article. An OSError,
    ValueError, LookupError or csv.Error that it raises is reported as a fault of the source.

    Raises TypeError: the name is taken, or is not a name.
    """
    if not (isinstance(name, str) and name.isidentifier()) or f"{name}:" in QUICKSTART:
        raise TypeError(f'reader {name!r}: write @sd.reader("NAME") with a free name of letters, digits and "_"')

    def register(function: Reader) -> Reader:
        check_free(name, _readers.get(name), function)
        _readers[name] = function
        return function

    return register


def find_reader(source: str) -> Reader | None:
    name, colon, _ = source.partition(":")
    if not colon or not name.isidentifier():
        return None
    load_entry_points(GROUP)
    return _readers.get(name)


def _quickstart_items(name: str, address: str, training: bool) -> Items:
    domain, _, split = address.partition(".")
    split = split or ("train" if training else "test")
    yield from document_items(corpus(domain, split, unanswerable=name == "quickstart_v2"))


def _registered_rows(name: str, address: str, read: Reader) -> Items:
    try:
        yield from numbered(read(address))
    except (OSError, ValueError, LookupError, csv.Error, SystemExit) as error:
        raise InputError(f"its reader {name} cannot read it ({reason(error)}): correct the data") from error


def _hub_rows(source: str, hub_id: re.Match, training: bool, columns: Columns) -> Items:
    from datasets import DatasetDict, load_dataset

    check_hub(hub_id["name"], "README.md", f"{source}: not a local file", "dataset")
    fix = "correct the id, or download the data set and name its local file or folder instead"
    with as_input_error(f"{source}: not a local file, and the hub cannot give it", fix):
        loaded = load_dataset(hub_id["name"], hub_id["config"], split=hub_id["split"])
    if isinstance(loaded, DatasetDict):
        loaded = loaded[_default_split(source, loaded, training)]
    return numbered(table_rows(loaded.with_format("arrow")[:], columns))


def _data_files(folder: Path, training: bool) -> tuple[Path, ...]:
    """The files of the wanted split, in name order."""
    from datasets.data_files import SPLIT_KEYWORDS  # by which the library tells a folder's splits apart

    splits: dict[str, list[Path]] = {}  # by the split that names say, as in train-00000-of-00001.parquet; "" if none
    for file in sorted(folder.iterdir()):
        if file.suffix in DATA_SUFFIXES and file.is_file() and not file.name.startswith((".", "~$")):
            words = set(re.split(r"[^a-z]+", file.name.lower()))
            split = next((str(split) for split, names in SPLIT_KEYWORDS.items() if words & set(names)), "")
            splits.setdefault(split, []).append(file)
    if not splits:
        raise InputError(f"{folder}: no data file in this folder; expected {', '.join(sorted(DATA_SUFFIXES))}")
    if len(splits) == 1:
        [split] = splits
    elif "" in splits:
        raise InputError(f"{folder}: some files name a split and {splits[''][0].name} does not: name one file")
    else:
        split = _default_split(str(folder), splits, training)
    return tuple(splits[split])


def _default_split(source: str, splits: Iterable[str], training: bool) -> str:
    wanted = ["train"] if training else ["validation", "test"]
    for split in wanted:
        if split in splits:
            return split
    raise InputError(
        f"{source}: has no split {' or '.join(wanted)}, only {', '.join(splits)}; name one (@split after a hub id, the "
        "split's folder, or its file)"
    )
