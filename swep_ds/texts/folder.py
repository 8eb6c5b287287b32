"""The texts of a folder, which stay on disk until they are read. Those of documents are kept in the cache."""

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import read_sealed, sealed, write_atomically
from swep_ds.texts.documents import PLAIN, SUFFIXES, Document, read_document
from swep_ds.texts.reader import Died, from_json, read_documents

log = logging.getLogger(__name__)
FORMAT_VERSION = 1  # part of every document's state: raise it when their texts change
SETTLED = 2 * 10**9  # ns after which a file's times have changed if its content has; some file systems keep 2 s
_TOLD: set[str] = set()  # why files are left out, as far as this process has said it
_DIED: dict[tuple[Path, str], str] = {}  # for documents that ended their reader: others may find the machine less busy


class FolderTexts:
    """The texts of the `SUFFIXES` files of a folder and its subfolders, by name relative to the folder, in name order.

    Each is read when it is asked for: a document only if it has changed since it was last read. Hidden files are left
    out. So are files that cannot be read, which a warning names once. Links to files are followed, those to folders
    are not; without `links_out` nor are those to files outside of it. `what` is how the user named it. Raises
    InputError: no such folder; when texts are listed, none can be read; when one is read, as `read_document`.
    """

    def __init__(self, folder: Path, what: str, *, links_out: bool = True):
        self.folder = folder
        self.what = what
        self._links_out = links_out
        self.left_out: list[str] = []  # why files are, when the texts were last listed
        self.check()

    def check(self) -> None:
        if self.folder.is_file():
            raise InputError(f"{self.what}: is a file: name the folder that holds it")
        if not self.folder.is_dir():
            raise InputError(f"{self.what}: no such folder")

    def names(self) -> list[str]:
        """The files that may be texts, in name order; none of them is read."""
        return list(self._listed()[0])

    def states(self, known: Mapping[str, str] | None = None) -> dict[str, str]:
        """By name the size and the times of the file, in ns, of which one changes whenever its content does. They are
        left out, "", where the file changed a moment ago, as a second change might leave the same times. Files in a
        `known` state are taken to be readable."""
        states, others = self._listed()
        records = self._records()
        gone = {*records.glob("*.json")}.difference(records / _record_name(name) for name in states)
        if gone:  # listings with links, or with more kinds of documents, keep records as well
            files = self.folder.rglob("*")
            gone.difference_update(records / _record_name(str(file.relative_to(self.folder))) for file in files)
        for record in gone:
            record.unlink(missing_ok=True)
        known = known or {}
        unknown = {name: state for name, state in states.items() if not state or known.get(name) != state}
        left_out = {name: outcome for name, outcome in self._read(unknown) if isinstance(outcome, str)}
        states = {name: state for name, state in states.items() if name not in left_out}
        count = len(left_out) + sum(others.values())
        reasons = list(left_out.values())
        if others:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
            reasons.append(f"{self.what}: other kinds than {' '.join(SUFFIXES)}: {kinds}")
        self.left_out = reasons
        new = [reason for reason in reasons if reason not in _TOLD]
        if new:
            log.warning("%s: texts read: %d, other files left out: %d", self.what, len(states), count)
        for reason in new:
            log.warning("left out: %s", reason)
        _TOLD.update(new)
        if not states:
            raise InputError(f"{self.what}: holds no text that can be read: put {', '.join(SUFFIXES)} files into it")
        return states

    def document(self, name: str) -> Document:
        path = self.folder / name
        if not self._links_out and not _is_in(self.folder, str(path)):
            raise InputError(f"{path}: leads out of the folder: copy the file into it")
        if not path.exists():
            raise InputError(f"{path}: is no longer in the folder: put it back, or ask again")
        with as_input_error(f"{path}: cannot be read", "change its permissions"):
            state = _state(path.stat(), name)
        [(_, outcome)] = self._read({name: state})
        if isinstance(outcome, str):
            raise InputError(outcome)
        return outcome

    def __getitem__(self, name: str) -> str:
        return self.document(name).text

    def _read(self, states: dict[str, str]) -> Iterator[tuple[str, Document | str]]:
        """By name each document, or why it cannot be read. Both are kept in the cache, unless the reader ended."""
        unread = {}
        for name, state in states.items():
            try:
                if _is_plain(name):
                    yield name, read_document(self.folder / name)
                else:
                    record = self._records() / _record_name(name)
                    yield name, _DIED.get((record, state)) or _kept(record, state)
            except InputError as error:
                yield name, str(error)
            except (OSError, ValueError):
                unread[name] = state
        if not unread:
            return
        outcomes = read_documents(self.folder / name for name in unread)
        with Progress(Console(stderr=True), "documents read", len(unread)) as progress:
            for number, (name, outcome) in enumerate(zip(unread, outcomes, strict=True), 1):
                record = self._records() / _record_name(name)
                if isinstance(outcome, Died):
                    _DIED[record, unread[name]] = outcome
                else:
                    record.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(record, sealed(json.dumps([unread[name], outcome])))
                if isinstance(outcome, Document) and outcome.remarks:
                    log.warning("%s: %s", self.folder / name, "; ".join(outcome.remarks))
                progress.update(number)
                yield name, outcome

    def _listed(self) -> tuple[dict[str, str], Counter[str]]:
        """The states of files that may be texts, in name order, and how many others there are by kind."""
        self.check()
        states = {}
        kinds: Counter[str] = Counter()
        suffixes = PLAIN
        if find_spec("pypdfium2") and find_spec("lxml"):
            suffixes = SUFFIXES
        folders = [os.fspath(self.folder)]
        while folders:
            for entry in os.scandir(folders.pop()):
                suffix = os.path.splitext(entry.name)[1].lower()
                if entry.name.startswith((".", "~$")):  # the second: Word's lock of a document that is open
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not self._links_out and entry.is_symlink() and not _is_in(self.folder, entry.path):
                    kinds["links out of the folder"] += 1
                elif entry.is_file() and suffix in suffixes:
                    states[entry.path] = _state(entry.stat(), entry.name)
                elif entry.is_dir():
                    kinds["links to folders"] += 1
                else:
                    kind = suffix or "without a suffix"
                    if suffix in SUFFIXES:
                        kind += " (which need pip install '.[documents]' in a checkout)"
                    kinds[kind] += 1
        start = len(os.path.join(self.folder, ""))
        return {path[start:]: states[path] for path in sorted(states)}, kinds

    def _records(self) -> Path:
        """The folder of the files that keep documents, each named by `_record_name`."""
        from swep_ds.evaluation.evaluate import CACHE  # takes seconds

        return CACHE / "documents" / xxh3_64_hexdigest(os.fsencode(self.folder.resolve()))


def _is_in(folder: Path, path: str) -> bool:
    return Path(path).resolve().is_relative_to(folder.resolve())


def _record_name(name: str) -> str:
    return f"{xxh3_64_hexdigest(os.fsencode(name))}.json"


def _is_plain(name: str) -> bool:
    return name.lower().endswith(PLAIN)


def _state(stat: os.stat_result, name: str) -> str:
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) <= SETTLED:
        return ""
    state = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    if not _is_plain(name):
        state += f" {FORMAT_VERSION}"
    return state


@lru_cache(16)
def _kept(record: Path, state: str) -> Document | str:
    """A document, or why it cannot be read. Raises OSError or ValueError: it is not kept, or not in this state."""
    former, outcome = read_sealed(record)
    if not state or former != state:
        raise ValueError(f"{record.name} has another state")
    return from_json(outcome)
