"""A command that reads and prints little: `swep-ds table` of a folder without runs."""

import subprocess
import sys
from pathlib import Path

SIZES = (1, 4)
LARGE = (5, 20)
UNIT = "starts of `swep-ds table`"
BASELINE = "importing what a table is computed and printed with"
NEEDS = "import jinja2, numpy, pandas, pyarrow, pydantic, rich.table, scipy.special, yaml"


def prepare(size: int, folder: Path) -> None:
    (folder / "empty").mkdir()


def ours(size: int, folder: Path) -> None:
    for _ in range(size):
        # exit code 2: the folder holds no run
        ended = subprocess.run([sys.executable, "-m", "swep_ds", "table", folder / "empty"], capture_output=True)
        assert ended.returncode == 2


def baseline(size: int, folder: Path) -> None:
    for _ in range(size):
        subprocess.run([sys.executable, "-c", NEEDS], check=True)
