"""Every script answers a wrong option with one line, and shows its help (tests/commands/test_main.py: a command's)."""

import pytest

from swep_ds import __main__ as package
from tests.support.fork_server import ROOT, run_script

SCRIPTS = sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "scripts" / "slurm").glob("*.py")])
COMMANDS = [(script, ()) for script in SCRIPTS if script.stem != "analyze"]  # whose fault would be the missing name
ANALYSES = ("words", "heatmap", "tsne", "frequency")
COMMANDS += [(ROOT / "scripts" / "analyze.py", (name,)) for name in ANALYSES]
OF_ONE_NAME = ("analyze", "pretrain_quickstart", "report", "same_numbers", "same_scores", "sweep", "table")
REQUIRED = dict.fromkeys(OF_ONE_NAME, ("NAME",)) | {  # without these, what is missing would be the fault
    "answer": ["MODEL", "--question", "Who?"],
    "augment": ["--data", "DATA", "--model", "MODEL", "--output", "FILE.json"],
    "convert_pairs": ["FILE", "FILE.jsonl"],
    "evaluate": ["MODEL", "--data", "NAME=SOURCE", "--output_dir", "FOLDER"],
    "random_model": ["bert", "FOLDER"],
    "soup": ["RUN", "RUN", "--output", "FOLDER"],
    "submit": ["train", "--gpus_per_node", "1"],
}


@pytest.mark.parametrize(("script", "words"), COMMANDS, ids=[" ".join((s.stem, *w)) for s, w in COMMANDS])
def test_help_and_a_wrong_option(script, words):
    if words or script.stem not in package.COMMANDS:
        assert run_script(script, *words, "--help").stdout.startswith("usage: ")
    refused = run_script(script, *words, *REQUIRED.get(script.stem, ()), "--no_such_option", check=False)
    assert refused.returncode == 2
    assert "--no_such_option" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
