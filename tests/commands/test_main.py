"""The command `swep-ds`: its sub-commands, help and mistakes."""

import argparse
import json
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest

from swep_ds import __main__ as command
from swep_ds.commands import cli
from swep_ds.common.files import PACKAGE
from tests.support.fork_server import ROOT

# Runs scripts, one after the other, and prints their exit codes
WITHOUT_TORCH = """
import json, sys
sys.modules |= dict.fromkeys(["torch", "transformers", "deepspeed", "datasets"])  # importing one of them raises
import runpy
for words in json.loads(sys.argv[1]):
    sys.argv[:] = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        print(end.code)
"""
TRAIN = str(ROOT / "scripts" / "train.py")
SWEP_DS = str(PACKAGE / "__main__.py")


@pytest.fixture
def swep_ds(monkeypatch, capsys):
    """Calls `swep-ds` in this process; returns (exit code, stdout, stderr)."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["swep-ds", *words])
        with pytest.raises(SystemExit) as end:
            command.main()
        return (end.value.code or 0, *capsys.readouterr())

    return call


def test_every_module_of_the_room_is_a_command_and_the_help_lists_it(swep_ds):
    modules = {file.stem for file in (PACKAGE / "commands").glob("*.py")} - {"__init__", "cli"}
    assert modules == set(command.COMMANDS)
    for words in ([], ["--help"]):
        code, out, _ = swep_ds(*words)
        assert code == 0
        assert all(f"    {name} " in out and text in out for name, text in command.COMMANDS.items())
    for name in command.COMMANDS:
        code, out, _ = swep_ds(name, "--help")
        assert code == 0
        assert out.startswith(f"usage: swep-ds {name} ")


def test_the_rank_that_a_launcher_puts_before_the_command_is_no_command(swep_ds):
    """As `deepspeed --module swep_ds recipes` calls it; tests/test_wheel.py starts that launcher."""
    code, out, _ = swep_ds("--local_rank=1", "recipes")
    assert code == 0
    assert "bert_base_squad" in out


def test_a_mistake_is_one_line_and_exit_code_2(swep_ds):
    for words, said in (
        (["trian"], "error: trian: no such command; did you mean 'train'?\n"),
        (["--recipe", "quickstart"], "error: unrecognized arguments: --recipe: --help lists the options\n"),
        (["analyze", "heat", "RUN"], "invalid choice: 'heat' (choose from"),
        (["train", "--epochs", "3"], "error: unrecognized arguments: --epochs: --set SECTION.FIELD=VALUE sets a fi"),
        (["train", "--rank", "8"], "error: unrecognized arguments: --rank; did you mean --ranks?\n"),
        (["train", "--ranks", "0"], "error: argument --ranks: 0 must be at least 1: --help lists the options\n"),
        (["train", "--plan", "--ranks", "2"], "error: --ranks: --plan takes the number of devices as its value, su"),
        (["answer", "m", "--questions", "q", "--text", "t", "--output", "o"], "--questions has texts in its file"),
        (["trim", "m", "--output", "o"], "no text says which words to keep: give --texts, --data or both\n"),
        (["answer", "m", "--questions", "q"], "give --questions with --output, a new file for the answers; "),
        (["answer", "m", "--question", "q"], "give --question with --text, --text_file or --te"),
        (["answer", "m", "--question", "q", "--text", "t", "--passages", "3"], "--passages are those of --texts: "),
        (["answer", "m", "--question", "q", "--text", "t", "--output", "o"], "; --question has none\n"),
    ):
        code, _, err = swep_ds(*words)
        assert (code, len(err.splitlines())) == (2, 1)
        assert said in err


def test_the_least_value_of_an_option_is_taken():
    assert [cli.at_least(2)(text) for text in ("2", "3")] == [2, 3]
    with pytest.raises(argparse.ArgumentTypeError, match="1 must be at least 2"):
        cli.at_least(2)("1")


def test_a_folder_that_the_system_closes_is_one_line_and_exit_code_2(swep_ds, monkeypatch):
    module = Mock(table=Mock(side_effect=PermissionError(13, "Permission denied", "runs")))
    monkeypatch.setattr(command.importlib, "import_module", lambda _: module)
    said = "error: runs: Permission denied: change its permissions, or its folder's\n"
    assert swep_ds("table") == (2, "", said)


def test_a_typo_or_a_folder_of_others_is_answered_before_pytorch_is_imported(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: quickstart\ntrain: {epochs: two}")
    (tmp_path / "sweep.yaml").write_text("variants: {MLE: {method.name: mle}, SWEP: {method.betta: 1}}")
    (tmp_path / "two.yaml").write_text("variants: {MLE: {method.name: mle}, SWEP: {}}")
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    cases = [
        ([TRAIN, "--recipe", "mine.yaml"], "train.epochs: 'two': must be a valid number"),
        ([TRAIN, "--ds_config", "zer2"], "--ds_config zer2: no such file"),
        ([SWEP_DS, "train", "--plan", "--output_dir", "."], "--output_dir .: holds files that belong to no run ("),
        ([SWEP_DS, "train", "--output_dir", "mine.yaml/run"], "mine.yaml is not a folder: name another one"),
        (
            [SWEP_DS, "sweep", "two.yaml", "--plan", "--set", "data.eval.x=y.json"],
            "mle-seed0: data.eval.x: data source",
        ),
        ([SWEP_DS, "sweep", "sweep.yaml"], "method.betta is not a field; did you mean 'method.beta'?"),
        (
            [SWEP_DS, "submit", "train", "--gpus_per_node", "1", "--", "--set", "methd.name=swep"],
            "did you mean 'method'?",
        ),
    ]
    for program, env in ((TRAIN, os.environ | rank), (SWEP_DS, os.environ)):
        calls = [(words, said) for words, said in cases if words[0] == program]
        command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps([words for words, _ in calls])]
        run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert run.stdout == "2\n" * len(calls)
        for (_, said), line in zip(calls, run.stderr.splitlines(), strict=True):
            assert said in line
