"""Prints and writes the table and curves of many runs, for `swep-ds table` and for the end of `swep-ds sweep`."""

from collections.abc import Sequence
from pathlib import Path

from swep_ds.analysis import curves, formats, robustness, table
from swep_ds.analysis.runs import RunRef
from swep_ds.common.console import Console


def publish(
    refs: Sequence[RunRef], folder: Path | None, against: str | None = None, line: robustness.Line | None = None
) -> table.Table:
    """Prints the table (`table.make`) and, if a run is finished and `folder` is given, writes it and its figures there.

    Raises:
        InputError: no row is called `against`, or the folder cannot be written to.
    """
    result = table.make(refs, against, line)
    result["notes"] += curves.notes(result)
    formats.show(result)
    if folder and any(row["scores"] for block in result["blocks"] for row in block["rows"]):
        formats.write(result, folder)
        figures = curves.draw(result, folder)
        if result["line"]:
            figures += robustness.draw(result["blocks"], robustness.Line(**result["line"]), folder)
        files = [f"table.{suffix}" for suffix in formats.SUFFIXES] + [file.name for file in figures]
        Console().print(f"in {folder}: {', '.join(files)}")
    return result
