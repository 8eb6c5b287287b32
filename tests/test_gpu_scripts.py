"""The scripts for a machine with a GPU: steps that resume, fail and run out of time; their commands, on a CPU."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from swep_ds.sweeps.sweep import read_sweep
from tests import test_readme
from tests.support.fork_server import ROOT, run_script
from tests.support.stand_in_python import stand_in
from tests.support.tiny_run import prepare, squad

SCRIPTS = ROOT / "scripts"
TINY_T5 = {"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
TINY_T5 |= {"decoder_start_token_id": 0}


def run(command: list[str | Path], **environment: str) -> subprocess.CompletedProcess:
    env = os.environ | {"REHEARSE": "1", "PYTHON": sys.executable} | environment
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, check=False)


def steps(folder: Path, body: str, *only: str, **environment: str) -> tuple[int, dict[str, str], Path]:
    """Exit code, state by step, and OUT of a script with these steps."""
    script = folder / "mine.sh"
    script.write_text(f'. {SCRIPTS}/gpu_steps.sh\nonly "$@"\nbegin {folder}/out\n{body}\nfinish\n')
    code = run(["bash", script, *only], **environment).returncode
    out = folder / "out" / "rehearsal"
    lines = (out / "steps.txt").read_text().splitlines()
    return code, {line.split()[0]: line.split(maxsplit=3)[3] for line in lines[1:]}, out


# Steps


def test_a_step_that_fails_loses_nothing_and_is_run_again(tmp_path):
    body = f"""
        step first 60 sh -c 'echo 1 >>{tmp_path}/first'
        step second 60 sh -c 'echo why >&2; exit 3'
        mkdir -p $out/models $out/runs/a
        step third 60 sh -c "echo 7 >$out/models/weights; echo 8 >$out/runs/a/results.json"
        skip fourth 'it needs a GPU'
    """
    code, states, out = steps(tmp_path, body)
    assert code == 1
    assert states == {
        "first": "done",
        "second": "FAILED: exit code 3",
        "third": "done",
        "fourth": "skipped: it needs a GPU",
    }
    with tarfile.open(out / "archive.tar.xz") as archive:
        names = set(archive.getnames())
        assert archive.extractfile("second.log").read() == b"why\n"
    assert {"steps.txt", "first.done", "runs/a/results.json"} <= names
    assert not any(name.startswith("models") or name == "second.done" for name in names)
    (out / "archive.tar.xz").unlink()
    code, states, _ = steps(tmp_path, body.replace("exit 3", "exit 0"))
    assert (code, states["second"]) == (0, "done")
    assert (tmp_path / "first").read_text() == "1\n"  # ran once
    assert (out / "archive.tar.xz").is_file()


def test_a_step_has_a_limit(tmp_path):
    code, states, _ = steps(tmp_path, "CPU_FACTOR=1\nstep slow 1 sleep 60\nstep next 60 true")
    assert (code, states) == (1, {"slow": "FAILED: exceeded 1 s", "next": "done"})


def test_a_call_has_a_limit_and_the_next_one_goes_on(tmp_path):
    body = """
        AT_THE_END=0
        step quick 60 true
        [ -z "${CALL_SECONDS:-}" ] || SECONDS=998  # two are left
        step slow 60 sleep ${NAP:-0}
        step next 60 true
    """
    code, states, _ = steps(tmp_path, body, CALL_SECONDS="1000", NAP="60")
    assert code == 75
    # on a busy machine the two seconds pass before it starts
    assert states.pop("slow") in ("stopped: resumes at the next start", "waits for the next start")
    assert states == {"quick": "done", "next": "waits for the next start"}
    assert steps(tmp_path, body)[:2] == (0, dict.fromkeys(["quick", "slow", "next"], "done"))


def test_a_signal_ends_the_step_and_keeps_the_figures(tmp_path):
    script = tmp_path / "mine.sh"
    script.write_text(
        f". {SCRIPTS}/gpu_steps.sh\nbegin {tmp_path}/out\nstep slow 60 sleep 60\nstep next 60 true\nfinish\n"
    )
    process = subprocess.Popen(["bash", script], env=os.environ | {"REHEARSE": "1", "PYTHON": sys.executable})
    while not (tmp_path / "out" / "rehearsal" / "slow.log").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    out = tmp_path / "out" / "rehearsal"
    assert (out / "archive.tar.xz").is_file()
    assert not (out / "slow.done").exists()
    assert "stopped: resumes at the next start" in (out / "steps.txt").read_text()


def test_some_steps_alone(tmp_path):
    body = "step a 60 true\nstep b 60 true\nskip c 'no reason'"
    assert steps(tmp_path, body, "b", "c")[:2] == (0, {"b": "done", "c": "skipped: no reason"})
    assert steps(tmp_path, body, "d")[:2] == (1, {"d": "FAILED: there is no such step"})


def test_without_a_gpu_nothing_is_measured(tmp_path):
    with stand_in(tmp_path, lambda words: (1, "")) as python:
        ended = run([SCRIPTS / "gpu_kernels.sh", tmp_path / "out"], REHEARSE="", PYTHON=str(python))
    assert ended.returncode == 2
    assert "PyTorch sees no GPU: REHEARSE=1 tries the steps on the CPU" in ended.stderr
    assert not (tmp_path / "out").exists()
    assert run([SCRIPTS / "gpu_prepare.sh", tmp_path], CALL_SECONDS="soon").returncode == 2


@pytest.mark.parametrize("name", ["gpu_training.sh", "gpu_science.sh"])
def test_missing_data_is_named_before_the_first_step(tmp_path, name):
    ended = run([SCRIPTS / name, tmp_path, tmp_path, tmp_path / "out"])
    assert ended.returncode == 2
    assert f"DATA {tmp_path}: has no " in ended.stderr
    assert not (tmp_path / "out").exists()


# The scripts


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path, Path]:
    """(folder of a tiny encoder, folder of the data sets, config of a tiny T5)."""
    folder = tmp_path_factory.mktemp("inputs")
    prepare(folder)
    encoder, config = folder / "model", folder / "tiny.json"
    config.write_text(json.dumps(TINY_T5))
    for name in ("new_wiki_v1.0.json.gz", "amazon_reviews_v1.0.json.gz", "squad_dev.jsonl.gz", "bioasq.jsonl.gz"):
        (folder / name).write_text(json.dumps(squad(40)))
    return encoder, folder, config


class Commands:
    """Answers every command of the package with success, and keeps it."""

    def __init__(self, *real: str):
        self.words: list[list[str]] = []
        self.real = real  # the scripts that are run

    def __call__(self, words: list[str]) -> tuple[int, str]:
        self.words.append(words)
        script, *options = words
        if script.removeprefix("scripts/") in self.real:
            ended = run_script(ROOT / script, *options, check=False)
            return ended.returncode, ended.stdout + ended.stderr
        if script == "scripts/random_model.py":
            Path(options[1]).mkdir(parents=True, exist_ok=True)
        if script == "scripts/train.py":
            model = Path(options[options.index("--output_dir") + 1], "model")
            model.mkdir(parents=True, exist_ok=True)
            (model / "model.safetensors").touch()
        return 0, ""

    def check(self) -> None:
        """Every command has options, recipes, fields and ds_configs that are there."""
        for script, *options in self.words:
            if script.startswith("scripts/"):
                test_readme.check(script, options)


def test_the_commands_that_prepare_run_at_every_start(tmp_path):
    commands = Commands()
    with stand_in(tmp_path, commands) as python:
        for _ in range(2):
            ended = run([SCRIPTS / "gpu_prepare.sh", tmp_path / "out", tmp_path], PYTHON=str(python))
            assert ended.returncode == 0, ended.stdout + ended.stderr
    commands.check()
    first, second = commands.words[:7], commands.words[7:]
    assert sorted(first) == sorted(second)
    assert first[0][:3] == ["-m", "pip", "install"]
    compile(first[2][1], "kernels", "exec")
    stages = {words[words.index("--ds_config") + 1] for words in first[3:]}
    assert stages == {f"ds_configs/zero{stage}.json" for stage in range(4)}


def test_the_commands_of_the_kernels(tmp_path):
    commands = Commands()
    with stand_in(tmp_path, commands) as python:
        ended = run([SCRIPTS / "gpu_kernels.sh", tmp_path / "out"], PYTHON=str(python))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    commands.check()
    assert commands.words[0][:2] == ["-m", "pytest"]
    assert all((ROOT / word).is_file() for word in commands.words[0] if word.startswith("tests/"))
    assert "skipped: it needs a GPU" in (tmp_path / "out" / "rehearsal" / "steps.txt").read_text()


def test_nothing_is_measured_after_a_wrong_kernel(tmp_path):
    with stand_in(tmp_path, lambda words: (int(words[0] == "-m"), "")) as python:
        ended = run([SCRIPTS / "gpu_kernels.sh", tmp_path / "out"], PYTHON=str(python))
    assert ended.returncode == 1
    states = dict(line.split()[:4:3] for line in ended.stdout.splitlines() if " s  " in line)
    assert states["test"] == "FAILED:"
    assert states["bfloat16"] == states["host"] == "skipped:"


def test_the_commands_of_training(tmp_path, inputs):
    commands = Commands()
    encoder, data, _ = inputs
    with stand_in(tmp_path, commands) as python:
        ended = run([SCRIPTS / "gpu_training.sh", encoder, data, tmp_path / "out"], PYTHON=str(python))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    commands.check()
    assert ended.stdout.count(" done") == 17
    skipped = [line.split()[0] for line in ended.stdout.splitlines() if "skipped: it needs a GPU" in line]
    assert skipped == ["tf32"]
    measured = {Path(words[words.index("--json") + 1]).stem: words for words in commands.words if "--json" in words}
    assert "--operations" in measured["operations"]
    assert [word for word in measured["stacked"] if word.startswith("prior_aug:")][-1] == "prior_aug:stacked"


def test_the_commands_of_the_experiment(tmp_path, inputs):
    commands = Commands()
    encoder, data, _ = inputs
    with stand_in(tmp_path, commands) as python:
        ended = run([SCRIPTS / "gpu_science.sh", encoder, data, tmp_path / "out"], PYTHON=str(python))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    commands.check()
    [[_, sweep, *options]] = commands.words
    overrides = [value for name, value in pairwise(options) if name == "--set"]
    _, cells = read_sweep(sweep, tmp_path, overrides)
    assert len(cells) == 8
    assert {cell.seed for cell in cells} == {0}
    assert all(Path(source).is_file() for source in (cells[0].recipe.data.train, *cells[0].recipe.data.eval.values()))
    _, cells = read_sweep("learned_noise_gpu", tmp_path)
    assert len(cells) == 8 * 16
    assert cells[0].recipe.data.max_eval_examples is None


@pytest.mark.slow
def test_large_models_are_planned_before_a_weight_is_written(tmp_path, inputs):
    commands = Commands("random_model.py", "train.py", "bench_training.py")
    with stand_in(tmp_path, commands) as python:
        ended = run([SCRIPTS / "gpu_large.sh", tmp_path / "out", inputs[2]], PYTHON=str(python))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    scripts = [Path(words[0]).stem for words in commands.words]
    assert scripts == ["random_model", "train", "train", "train", "random_model", "bench_training", "bench_training"]
    plans = [(tmp_path / "out" / "rehearsal" / f"tiny-{step}.log").read_text() for step in ("plan", "plan-swep")]
    counts = [next(line for line in plan.splitlines() if line.startswith("parameters:")) for plan in plans]
    assert counts[0] == counts[1]
    [swep] = [line for line in ended.stdout.splitlines() if line.startswith("tiny ") and " swep " in line]
    assert "GiB, planned" in swep
    assert not list((tmp_path / "out" / "rehearsal" / "models").iterdir())


@pytest.mark.slow
def test_training_is_measured_and_scored(tmp_path, inputs):
    commands = Commands("random_model.py", "train.py", "bench_training.py")
    encoder, data, _ = inputs
    with stand_in(tmp_path, commands) as python:
        words = [SCRIPTS / "gpu_training.sh", encoder, data, tmp_path / "out", "base", "profile-base", "mle"]
        ended = run(words, PYTHON=str(python))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    out = tmp_path / "out" / "rehearsal"
    assert {row["name"] for row in json.loads((out / "base.json").read_text())["rows"]} >= {"mle", "swep:split"}
    assert (out / "profile-base.json").is_file()
    assert "samples/s  held_out " in ended.stdout


def test_a_rehearsal_of_the_kernels_gives_its_commands_values_that_they_take(tmp_path):
    """argparse checks the values before it comes to --help."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = - ] && exec {sys.executable} "$@"\nexec {sys.executable} "$@" --help\n')
    python.chmod(0o755)
    ended = run(["bash", SCRIPTS / "gpu_kernels.sh", tmp_path / "out"], PYTHON=str(python))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "report" in (tmp_path / "out" / "rehearsal" / "steps.txt").read_text()
