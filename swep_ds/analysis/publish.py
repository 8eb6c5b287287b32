"""Table and curves of many runs, printed and written: what scripts/table.py does, and scripts/sweep.py at its end."""

from collections.abc import Sequence
from pathlib import Path

from swep_ds.analysis import curves, formats, table
from swep_ds.analysis.runs import Place
from swep_ds.console import Console


def publish(places: Sequence[Place], folder: Path | None, against: str | None = None) -> table.Table:
    """Prints the table (`table.make`) and, where a run is done, writes it and its curves into the folder, if any.

    Raises:
        InputError: no row is called `against`, or the folder cannot be written to.
    """
    made = table.make(places, against)
    made["notes"] += curves.left_out(made)
    formats.show(made)
    if folder and any(row["scores"] for block in made["blocks"] for row in block["rows"]):
        formats.write(made, folder)
        drawn = curves.draw(made, folder)
        names = ", ".join([f"table.{suffix}" for suffix in formats.SUFFIXES] + [file.name for file in drawn])
        Console().print(f"in {folder}: {names}")
    return made
