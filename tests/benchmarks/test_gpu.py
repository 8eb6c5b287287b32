"""The steps of the scripts for a machine with a GPU: they resume, fail and run out of time."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from tests.support.fork_server import ROOT

SCRIPTS = ROOT / "benchmarks" / "gpu"
ENV = os.environ | {"REHEARSE": "1", "PYTHON": sys.executable}


def steps(folder: Path, body: str) -> tuple[int, dict[str, str], Path]:
    """Exit code, state by step, and OUT of a script with these steps."""
    script = write_script(folder, body)
    code = subprocess.run(["bash", script], env=ENV, capture_output=True, check=False).returncode
    out = folder / "out" / "rehearsal"
    lines = (out / "steps.txt").read_text().splitlines()
    return code, {line.split()[0]: line.split(maxsplit=3)[3] for line in lines[1:]}, out


def write_script(folder: Path, body: str) -> Path:
    script = folder / "mine.sh"
    script.write_text(f'. {SCRIPTS}/steps.sh\nonly "$@"\nbegin {folder}/out\n{body}\nfinish\n')
    return script


def test_a_step_that_fails_loses_nothing_and_is_run_again(tmp_path):
    body = f"""
        step first 60 sh -c 'echo 1 >>{tmp_path}/first'
        step second 60 sh -c 'echo why >&2; exit 3'
        mkdir -p $out/models $out/runs/a
        step third 60 sh -c "echo 7 >$out/models/weights; echo 8 >$out/runs/a/results.json"
        skip fourth 'it needs a GPU'
        CPU_FACTOR=1
        step slow 1 sleep 60
    """
    code, states, out = steps(tmp_path, body)
    expected = {"first": "done", "second": "FAILED: exit code 3", "third": "done"}
    expected |= {"fourth": "skipped: it needs a GPU", "slow": "FAILED: exceeded 1 s"}
    assert (code, states) == (1, expected)
    with tarfile.open(out / "archive.tar.xz") as archive:
        names = set(archive.getnames())
        assert archive.extractfile("second.log").read() == b"why\n"
    assert {"steps.txt", "first.done", "runs/a/results.json"} <= names
    assert not any(name.startswith("models") or name == "second.done" for name in names)
    (out / "archive.tar.xz").unlink()
    code, states, _ = steps(tmp_path, body.replace("exit 3", "echo again; exit 0").replace("sleep 60", "true"))
    assert (code, states["second"]) == (0, "done")
    said, _, started, *again = (out / "second.log").read_text().splitlines()  # of all starts
    assert (said, again) == ("why", ["why", "again"])
    assert started.startswith("== started again, ")
    assert (tmp_path / "first").read_text() == "1\n"  # ran once
    assert (out / "archive.tar.xz").is_file()


def test_a_signal_ends_the_step_and_keeps_the_figures(tmp_path):
    script = write_script(tmp_path, "step slow 60 sleep 60\nstep next 60 true")
    process, out = subprocess.Popen(["bash", script], env=ENV), tmp_path / "out" / "rehearsal"
    while not (out / "slow.log").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    assert (out / "archive.tar.xz").is_file()
    assert not (out / "slow.done").exists()
    assert "stopped: resumes at the next start" in (out / "steps.txt").read_text()
