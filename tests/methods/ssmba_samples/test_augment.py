"""swep-ds augment: one file whatever the ranks and the stops, whole chunks, refusals in one line."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from swep_ds.commands import augment as command
from swep_ds.common.console import Console
from swep_ds.data.readers import read_examples
from swep_ds.methods.ssmba_samples.augment import augment, read_answerable
from swep_ds.methods.ssmba_samples.reconstruct import AugmentSettings
from swep_ds.ranks.group import process_group
from tests.support import bad_input, tiny, tiny_masked_lm
from tests.support.bad_input import error_line
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import squad

AUGMENT = ROOT / "scripts" / "augment.py"
QUESTIONS = 96  # 3 chunks


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("samples", "0", "--samples: 0 must be at least 1"),
        ("share", "1.01", "--share 1.01: must be above 0"),
        ("data", "nowhere.json", "data source 'nowhere.json': no such file"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(monkeypatch, option, value, said):
    given = ["--data", "d", "--model", "m", "--output", "o.json", f"--{option}", value]
    monkeypatch.setattr(sys, "argv", ["augment.py", *given])
    assert said in bad_input.refused(command.augment)


@pytest.mark.parametrize(("choice", "spans"), [("first", [(0, 3), (4, 7)]), ("drop", [(4, 7)])])
def test_repeated_answers_are_settled_and_counted(tmp_path, capsys, choice, spans):
    rows = [{"question": "Who?", "context": "Ann Bob Ann", "answer": answer} for answer in ("Ann", "Bob")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    examples = read_answerable(str(tmp_path / "rows.json"), choice, Console())
    assert [example.span for example in examples] == spans
    said = f"1 questions have an answer that occurs several times in its context (--repeated_answers {choice})"
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_model_that_cannot_be_loaded_leaves_nothing_behind(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(squad(5)))
    with process_group():
        said = bad_input.refused(augment, str(tmp_path / "train.json"), "./no", tmp_path / "o", AugmentSettings())
    assert "--model ./no: " in said
    assert [file.name for file in tmp_path.iterdir()] == ["train.json"]


# Runs scripts/augment.py and kills it when it has written two chunks.
KILLED = f"""
import os, runpy, signal, sys
from swep_ds.common.console import Console
from swep_ds.data.chunks import Chunks
write, written = Chunks.write, []
def write_and_die(*arguments):
    write(*arguments)
    written.append(arguments)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Chunks.write = write_and_die
runpy.run_path({str(AUGMENT)!r}, run_name="__main__")
"""


def arguments(folder: Path, output: str, *more: str) -> list[str]:
    data, model = str(folder / "train.json"), str(folder / "model")
    return ["--data", data, "--model", model, "--output", str(folder / output), *more]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_file_of_two_ranks_which_is_training_data(tmp_path):
    tiny_masked_lm.save(tmp_path / "model", tiny.wordpiece())
    (tmp_path / "train.json").write_text(json.dumps(squad(QUESTIONS)))
    run_script(AUGMENT, *arguments(tmp_path, "two.json"), ranks=2)
    (tmp_path / "killed.py").write_text(KILLED)
    killed = run_script(tmp_path / "killed.py", *arguments(tmp_path, "one.json"), check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((tmp_path / "one.json.chunks").glob("0*.json"))) == 2
    assert not (tmp_path / "one.json").exists()

    other = run_script(AUGMENT, *arguments(tmp_path, "one.json"), "--seed", "1", check=False)
    assert other.returncode == 2
    assert "seed 0 " in error_line(other.stderr)
    resumed = run_script(AUGMENT, *arguments(tmp_path, "one.json")).stdout
    assert "2 of 3 chunks are done" in resumed
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert not list(tmp_path.glob("*.chunks"))

    samples = read_examples(str(tmp_path / "two.json"), training=True)
    originals = read_examples(str(tmp_path / "train.json"), training=True)
    assert {sample.id.rpartition("-ssmba")[0] for sample in samples} == {example.id for example in originals}
    document = json.loads((tmp_path / "two.json").read_text(encoding="utf-8"))["ssmba"]
    assert document["kept"] == len(samples)
    dropped = 8 * QUESTIONS - len(samples)
    assert document.get("dropped", 0) == dropped
    assert f"kept {len(samples)} samples of {QUESTIONS} questions, dropped {dropped} that" in resumed
    assert "RANK" not in os.environ
