"""Prints and writes the table and curves of many runs, for scripts/table.py and for the end of scripts/sweep.py."""

from collections.abc import Sequence
from pathlib import Path

from swep_ds.analysis import curves, formats, table
from swep_ds.analysis.runs import RunRef
from swep_ds.console import Console


def publish(refs: Sequence[RunRef], folder: Path | None, against: str | None = None) -> table.Table:
    """Prints the table (`table.make`) and, if a run is finished and `folder` is given, writes it and its curves there.

    Raises:
        InputError: no row is called `against`, or the folder cannot be written to.
    """
    result = table.make(refs, against)
    result["notes"] += curves.notes(result)
    formats.show(result)
    if folder and any(row["scores"] for block in result["blocks"] for row in block["rows"]):
        formats.write(result, folder)
        files = [f"table.{suffix}" for suffix in formats.SUFFIXES] + [file.name for file in curves.draw(result, folder)]
        Console().print(f"in {folder}: {', '.join(files)}")
    return result
