"""Every script shows its help, and answers a wrong option with one line."""

import pytest

from tests.support.fork_server import ROOT, run_script

SCRIPTS = sorted((ROOT / "scripts").glob("**/*.py"))
COMMANDS = [(script, ()) for script in SCRIPTS]
COMMANDS += [(ROOT / "scripts" / "analyze.py", (name,)) for name in ("words", "heatmap", "tsne", "frequency")]


@pytest.mark.parametrize(("script", "words"), COMMANDS, ids=[" ".join((s.stem, *w)) for s, w in COMMANDS])
def test_help_and_a_wrong_option(script, words):
    shown = run_script(script, *words, "--help")
    assert shown.stdout.startswith("usage: ")
    assert "--help" in shown.stdout
    refused = run_script(script, *words, "--no_such_option", check=False)
    assert refused.returncode == 2
    assert "--no_such_option" in refused.stderr.splitlines()[-1] or "required" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
