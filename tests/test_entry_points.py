"""Every script shows its help, and answers a wrong option with one line."""

import pytest

from tests.support.fork_server import ROOT, run_script

SCRIPTS = sorted([*(ROOT / "scripts").glob("*.py"), *(ROOT / "scripts" / "slurm").glob("*.py")])
COMMANDS = [(script, ()) for script in SCRIPTS]
ANALYSES = ("words", "heatmap", "tsne", "frequency")
COMMANDS += [(ROOT / "scripts" / "analyze.py", (name,)) for name in ANALYSES]
REQUIRED = {  # without these, what is missing would be the fault
    "analyze": ["RUN"],
    "answer": ["MODEL", "--question", "Who?"],
    "augment": ["--data", "DATA", "--model", "MODEL", "--output", "FILE.json"],
    "calibrate": ["RUN"],
    "convert_pairs": ["FILE", "FILE.jsonl"],
    "evaluate": ["MODEL", "--data", "NAME=SOURCE", "--output_dir", "FOLDER"],
    "pretrain_quickstart": ["FOLDER"],
    "random_model": ["bert", "FOLDER"],
    "report": ["RUN"],
    "same_numbers": ["HEAD"],
    "same_scores": ["SCORERS"],
    "soup": ["RUN", "RUN", "--output", "FOLDER"],
    "submit": ["train", "--gpus_per_node", "1"],
    "sweep": ["quickstart"],
    "table": ["FOLDER"],
}


@pytest.mark.parametrize(("script", "words"), COMMANDS, ids=[" ".join((s.stem, *w)) for s, w in COMMANDS])
def test_help_and_a_wrong_option(script, words):
    shown = run_script(script, *words, "--help")
    assert shown.stdout.startswith("usage: ")
    assert "--help" in shown.stdout
    if (script.stem, words) == ("analyze", ()):
        return  # its fault would be the missing name of an analysis
    refused = run_script(script, *words, *REQUIRED.get(script.stem, ()), "--no_such_option", check=False)
    assert refused.returncode == 2
    assert "--no_such_option" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
