"""tools/plant_mistakes.py: its lists fit the code, and it tells a mistake that tests see from one that they do not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fork_server import ROOT

sys.path.append(str(ROOT / "tools"))
import plant_mistakes

MISTAKES = plant_mistakes.read(ROOT)

SUMS = """
def mean(numbers):
    return sum(numbers) / len(numbers)


def largest(numbers):
    return sorted(numbers)[-1]


def smallest(numbers):
    return min(numbers)
"""
TESTS = """
from tiny.sums import largest, mean


def test_mean():
    assert mean([1, 2, 6]) == 3


def test_fails_by_itself():
    assert largest([1, 2]) == 1
"""
TESTS_OF_ANOTHER_ROOM = """
from tiny.sums import smallest


def test_smallest():
    assert smallest([2, 1]) == 1
"""
LISTS = """
- {file: tiny/sums.py, before: / len(numbers), after: / (len(numbers) - 1), harm: The mean is too large.}
- {file: tiny/sums.py, before: "numbers)[-1]", after: "numbers)[0]", harm: The largest number is the smallest.}
- {file: tiny/sums.py, before: sum(numbers), after: sum(list(numbers)), harm: No user is harmed., equivalent: Same sum.}
- {file: tiny/sums.py, before: min, after: max, harm: The smallest number is the largest., tests: [tests/test_all.py]}
"""


def test_every_mistake_fits_the_code_and_says_whom_it_harms():
    assert len(MISTAKES) >= 150
    for mistake in MISTAKES:
        plant_mistakes.planted(ROOT, mistake)
        assert re.fullmatch(r"[A-Z`0-9].{20,}\.", mistake.harm), mistake
        assert all((ROOT / test).is_file() for test in mistake.tests), mistake
    assert len({mistake[:4] for mistake in MISTAKES}) == len(MISTAKES), "a mistake is listed twice"


def write_checkout(folder: Path) -> None:
    files = {"tiny/sums.py": SUMS, "tests/sums/test_sums.py": TESTS, "tools/mistakes/sums.yaml": LISTS}
    files["tests/test_all.py"] = TESTS_OF_ANOTHER_ROOM
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)


def test_says_which_mistakes_survive_and_leaves_the_checkout_alone(tmp_path):
    write_checkout(tmp_path)
    command = f"import sys, plant_mistakes, pathlib; path = pathlib.Path({str(tmp_path)!r})\n"
    command += "sys.exit(plant_mistakes.main(path, ['--jobs', '2'], libraries=()))"
    env = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plug-ins take longer than the tests
    env.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT / "tools", capture_output=True, text=True, env=env
    )
    said = result.stdout
    assert result.returncode == 1, said + result.stderr
    assert "fails alone: tests/sums/test_sums.py::test_fails_by_itself" in said
    assert re.search(r"caught by tests/sums/test_sums.py::test_mean in \d+ s\n  tiny/sums.py: The mean is too", said)
    assert "SURVIVOR tiny/sums.py: The largest number is the smallest." in said
    assert "caught by tests/test_all.py::test_smallest" in said
    assert "2 of 3 caught (66.7%), 1 equivalent, 0 do not fit" in said
    assert "SURVIVOR tiny/sums.py: No user" not in said
    assert (tmp_path / "tiny/sums.py").read_text() == SUMS


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [("return", "yield", "3 times"), ("median", "mean", "0 times"), ("[-1]", "[-1] ", "stays the same")],
)
def test_a_mistake_that_does_not_fit_is_refused(tmp_path, before, after, message):
    write_checkout(tmp_path)
    with pytest.raises(ValueError, match=message):
        plant_mistakes.planted(tmp_path, plant_mistakes.Mistake("sums", "tiny/sums.py", before, after, "None."))
