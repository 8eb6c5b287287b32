"""The cache of tokenised windows: an Arrow stream and a small JSON file, written last, with its checksum and counts."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from swep_ds.common.errors import InputError, as_input_error, reason
from swep_ds.common.files import open_input, read_json

UNFINISHED = ".unfinished-"  # begins the name of a folder in which windows are written
ABANDONED_SECONDS = 86400.0  # since its last change: its process was killed
CACHE_FIX = "make room there or give permission, or name another folder in HF_DATASETS_CACHE (or HF_HOME)"

logger = logging.getLogger(__name__)


def save(cached: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], counts: Mapping[str, int]) -> None:
    """Writes the windows, then the checksum that makes them valid and `counts`, which `batches` fills.
    Raises InputError: there is no window, or the folder cannot be written."""
    folder = cached.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(folder)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as temporary:
            windows, facts = Path(temporary, "windows"), Path(temporary, "facts")
            rows = 0
            with pa.OSFile(str(windows), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    rows += batch.num_rows
            if rows == 0:
                raise InputError(
                    "no window holds its whole answer, and windows without it are dropped; raise data.max_length or, "
                    "for extractive answers, keep such windows (data.windows_without_answer: cls)"
                )
            digest = checksum(windows)
            facts.write_text(json.dumps({"sha256": digest, **counts}), encoding="utf-8")
            if not _holds(cached, digest):  # another node may have mapped it: on NFS replacing it would take it away
                os.replace(windows, cached)
            os.replace(facts, cached.with_suffix(".json"))
    except OSError as error:
        raise InputError(f"{folder}: tokenised windows cannot be written ({reason(error)}): {CACHE_FIX}") from error


def _delete_abandoned(folder: Path) -> None:
    """Deletes the leftovers of processes that were killed or stopped while they wrote windows."""
    for left in folder.glob(f"{UNFINISHED}*"):
        with suppress(OSError):  # its process ends just now, another one deletes it, or it is another user's
            if time.time() - max(path.stat().st_mtime for path in (left, *left.iterdir())) > ABANDONED_SECONDS:
                shutil.rmtree(left)


def _holds(cached: Path, digest: str) -> bool:
    try:
        return cached.is_file() and checksum(cached) == digest
    except InputError:  # it cannot be read
        return False


def load(cached: Path, schema: pa.Schema, counts: Mapping[str, int]) -> tuple[Dataset, dict[str, int]] | None:
    """The cached windows and their counts; None if there are none, or if they are damaged, which is logged.

    Args:
        counts: its keys name the counts that the file must hold.
    """
    facts_file = cached.with_suffix(".json")
    try:
        if not (cached.exists() and facts_file.exists()):
            return None
        facts = read_json(facts_file)
        if not isinstance(facts, dict) or facts.pop("sha256", None) != checksum(cached):
            raise InputError("it does not match its checksum")
        if facts.keys() != counts.keys() or not all(type(value) is int for value in facts.values()):
            raise InputError(f"{facts_file.name} holds different counts")
        with as_input_error("no Arrow stream", "make it again"):
            windows = Dataset.from_file(str(cached))
            if not windows.data.schema.equals(schema):
                raise InputError("it holds different columns")
            windows.data.table.validate(full=True)
    except (InputError, OSError) as error:
        logger.warning("%s cannot be used (%s): tokenising again", cached, error)
        return None
    return windows, facts


def checksum(*files: Path) -> str:
    """SHA-256 over the bytes of the files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with open_input(file) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
