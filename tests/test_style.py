"""Linting and formatting are part of the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_too_long():
    sources = [f for room in ("swep_ds", "kernels", "scripts", "tests") for f in (ROOT / room).rglob("*.py")]
    assert not [str(f) for f in sources if len(f.read_text().splitlines()) > 500]
