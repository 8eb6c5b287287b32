"""How cost grows with the work: each row of `rows/` at two sizes, beside a baseline that does the least there is to do.

    python -m benchmarks.growth
    python -m benchmarks.growth --rows batch_plan index --turns 3
    python -m benchmarks.growth --large --json growth.json

Each measurement is a process of its own, ours and the baseline's in turns. Seconds are CPU seconds, those of child
processes included; memory is the peak above what the process had before. Both are the lowest of --turns. The exponent e
says that a row's seconds grow as its size to the power of e. "x" is ours relative to the baseline, at the larger size.
--large takes sizes of real work: some rows then need several GB and minutes. --json keeps the figures.
"""

import json
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from benchmarks.growth import rows
from swep_ds.commands.cli import Parser, at_least, main
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_output, user_path, write_atomically
from swep_ds.evaluation.results import provenance, versions

NAMES = sorted(file.stem for file in Path(rows.__file__).parent.glob("[a-z]*.py"))
Figures = dict[str, float]  # "seconds" and "mib"


def bench() -> None:
    options = Parser(description=__doc__)
    options.add_argument("--rows", nargs="+", metavar="ROW", choices=NAMES, default=NAMES, help=", ".join(NAMES))
    options.add_argument("--large", action="store_true", help="sizes of real work")
    options.add_argument("--turns", type=at_least(1), default=1, help="measurements of each size")
    options.add_argument("--json", type=user_path, help="also write the figures here")
    given = options.parse_args()
    check_output("--json", given.json)
    console = Console()
    measured = {}
    lines = []
    for name in given.rows:
        module = import_module(f"{rows.__name__}.{name}")
        sizes = module.LARGE if given.large else module.SIZES
        at_size = {size: side_by_side(name, size, given.turns) for size in sizes}
        measured[name] = {"unit": module.UNIT, "baseline": module.BASELINE, "sizes": at_size}
        lines.append(line(name, module, at_size))
        console.print(f"{name}: {' '.join(lines[-1][1:])}")
    header = ["row", "sizes", "seconds", "MiB", "e", "baseline", "seconds", "MiB", "x"]
    console.print("\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *lines]))
    if given.json:
        figures = {"made": provenance(), "versions": versions(), "turns": given.turns, "rows": measured}
        write_atomically(given.json, json.dumps(figures, indent=2) + "\n")


def side_by_side(name: str, size: int, turns: int) -> dict[str, Figures]:
    """The lowest figures of ours and of the baseline at a size."""
    least: dict[str, Figures] = {}
    with TemporaryDirectory() as folder:
        call(name, "prepare", size, folder)
        for _ in range(turns):
            for side in ("ours", "baseline"):
                figures = call(name, side, size, folder)
                earlier = least.get(side, figures)
                least[side] = {key: min(value, earlier[key]) for key, value in figures.items()}
    return least


def call(name: str, function: str, size: int, folder: str) -> Figures:
    """Calls a function of a row in a process of its own; returns what it took."""
    command = [sys.executable, "-m", "benchmarks.growth.measure", name, function, str(size), folder]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    if done.returncode:
        raise InputError(f"`{' '.join(command)}` failed: {done.stderr.splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def line(name: str, module: ModuleType, at_size: dict[int, dict[str, Figures]]) -> list[str]:
    """The cells of a row of the table."""
    small, large = at_size
    ours, baseline = at_size[large]["ours"], at_size[large]["baseline"]
    grown = ours["seconds"] / at_size[small]["ours"]["seconds"]
    exponent = math.log(grown) / math.log(large / small)
    return [
        name.replace("_", " "),
        f"{small:,} and {large:,} {module.UNIT}",
        f"{ours['seconds']:.3g}",
        f"{ours['mib']:.0f}",
        f"{exponent:.2f}",
        module.BASELINE,
        f"{baseline['seconds']:.3g}",
        f"{baseline['mib']:.0f}",
        f"{ours['seconds'] / baseline['seconds']:.3g}",
    ]


if __name__ == "__main__":
    main(bench)
