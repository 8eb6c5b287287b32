"""Every program beside the package answers a wrong option with one line, and shows its help
(tests/commands/test_main.py: those of `swep-ds`)."""

import pytest

from tests.support.fork_server import ROOT, run_script

PROGRAMS = {  # by the words without which something that is missing would be the fault
    ROOT / "scripts" / "train.py": [],
    ROOT / "tools" / "same_numbers.py": ["NAME"],
    "tools.quickstart": ["encoder", "FOLDER"],
    "benchmarks.training": [],
    "benchmarks.kernels": [],
    "benchmarks.kernels.tune": [],
    "benchmarks.kernels.report": [],
    "benchmarks.texts": ["NAME"],
    "benchmarks.random_model": ["bert", "FOLDER"],
    "benchmarks.shapes": [],
}


@pytest.mark.parametrize(("program", "words"), PROGRAMS.items(), ids=str)
def test_help_and_a_wrong_option(program, words):
    assert run_script(program, "--help").stdout.startswith("usage: ")
    refused = run_script(program, *words, "--no_such_option", check=False)
    assert refused.returncode == 2
    assert "--no_such_option" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
