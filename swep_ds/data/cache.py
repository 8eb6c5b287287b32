"""The cache of tokenised windows: an Arrow stream and, written last, a small JSON file with its size and counts."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pyarrow as pa
from datasets import Dataset

from swep_ds.common.errors import InputError, reason


def save(cached: Path, batches: Iterator[pa.RecordBatch], counts: Mapping[str, int]) -> None:
    """Writes the windows, then their size and `counts`, which `batches` fills.

    Raises InputError: there is no window, or the folder cannot be written.
    """
    first = next(batches, None)
    if first is None:
        raise InputError(
            "no window holds its whole answer, and windows without it are dropped; raise data.max_length or, for "
            "extractive answers, keep such windows (data.windows_without_answer: cls)"
        )
    folder = cached.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
            windows = Path(temporary, "windows")
            facts = Path(temporary, "facts")
            with pa.OSFile(str(windows), "wb") as sink, pa.ipc.new_stream(sink, first.schema) as writer:
                for batch in chain([first], batches):
                    writer.write_batch(batch)
            facts.write_text(json.dumps({"bytes": windows.stat().st_size, **counts}), encoding="utf-8")
            if load(cached) is None:  # else another node has made it, too: on NFS a new file would take it away
                os.replace(windows, cached)
                os.replace(facts, cached.with_suffix(".json"))
    except OSError as error:  # most often a full disk or quota, of which Arrow's error names no file
        raise InputError(
            f"{folder}: tokenised windows cannot be written ({reason(error)}): make room there, or name another "
            "folder in HF_DATASETS_CACHE (or HF_HOME)"
        ) from error


def load(cached: Path) -> tuple[Dataset, dict[str, int]] | None:
    """The cached windows and their counts; None if there are none, or if a part of them is missing."""
    file = cached.with_suffix(".json")
    if not (cached.exists() and file.exists()):
        return None
    facts = json.loads(file.read_text(encoding="utf-8"))
    if facts.pop("bytes") != cached.stat().st_size:
        return None
    return Dataset.from_file(str(cached)), facts
