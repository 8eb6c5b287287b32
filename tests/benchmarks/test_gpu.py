"""The scripts for a machine with a GPU: steps that resume, fail and run out of time; their commands, on a CPU."""

import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from benchmarks.training.ways import read_ways
from tests import test_readme
from tests.support.fork_server import ROOT
from tests.support.tiny_run import prepare, squad

SCRIPTS = ROOT / "benchmarks" / "gpu"
ENV = os.environ | {"REHEARSE": "1", "PYTHON": sys.executable}


CLIENT = """#!{python} -ISs
import json, os, socket, sys
if sys.argv[1] == "-":
    os.execv("{python}", ["{python}", "-I", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect("{socket}")
    server.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, output = json.loads(server.makefile().readline())
print(output, end="")
sys.exit(code)
"""


@contextmanager
def stand_in(folder: Path, answer: Callable[[list[str]], tuple[int, str]]) -> Iterator[Path]:
    """A `python3` for shell scripts whose calls a function of this process answers, from the arguments to an exit code
    and output; what is read from the standard input, as in `python3 - ... <<EOF`, runs in a real interpreter."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(json.dumps(answer(json.loads(self.rfile.readline()))).encode() + b"\n")

    address, python = folder / "socket", folder / "python3"
    python.write_text(CLIENT.format(python=sys.executable, socket=address))
    python.chmod(0o755)
    with socketserver.ThreadingUnixStreamServer(str(address), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield python
        finally:
            server.shutdown()


def run(command: list[str | Path], **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, env=ENV | environment, capture_output=True, text=True, check=False)


def steps(folder: Path, body: str, *only: str, **environment: str) -> tuple[int, dict[str, str], Path]:
    """Exit code, state by step, and OUT of a script with these steps."""
    script = write_script(folder, body)
    code = run(["bash", script, *only], **environment).returncode
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
    said, _, started, *again = (out / "second.log").read_text().splitlines()  # lines of all starts
    assert (said, again) == ("why", ["why", "again"])
    assert started.startswith("== started again, ")
    assert (tmp_path / "first").read_text() == "1\n"  # ran once
    assert (out / "archive.tar.xz").is_file()


def test_some_steps_alone_and_a_limit_of_a_call_after_which_the_next_one_goes_on(tmp_path):
    body = "step a 60 true\nstep b 60 true\nskip c 'no reason'"
    assert steps(tmp_path, body, "b", "c")[:2] == (0, {"b": "done", "c": "skipped: no reason"})
    assert steps(tmp_path, body, "d")[:2] == (1, {"d": "FAILED: there is no such step"})
    body = "step quick 60 true\nSECONDS=${PASSED:-0}\nstep long 60 true\nstep short 1 true"
    code, states, out = steps(tmp_path, body, CALL_SECONDS="1000", PASSED="900")
    assert (code, states) == (75, {"quick": "done", "long": "waits for the next start", "short": "done"})
    assert not (out / "long.log").exists()
    assert steps(tmp_path, body)[:2] == (0, dict.fromkeys(["quick", "long", "short"], "done"))
    for left, most, ran, starts in (
        (600, 1200, True, True),
        (599, 1200, True, False),
        (1, 1200, False, True),  # else a start shorter than half of the limit would never run it
        (0, 1200, False, False),
    ):
        script = f". {SCRIPTS}/steps.sh; ran={'1' if ran else ''}; enough {left} {most}"
        assert (run(["bash", "-c", script]).returncode == 0) == starts


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


def test_a_missing_gpu_or_data_set_is_named_before_the_first_step(tmp_path):
    with stand_in(tmp_path, lambda words: (1, "")) as python:
        ended = run([SCRIPTS / "kernels.sh", tmp_path / "out"], REHEARSE="", PYTHON=str(python))
    assert ended.returncode == 2
    assert "PyTorch sees no GPU: REHEARSE=1 tries the steps on the CPU" in ended.stderr
    ended = run([SCRIPTS / "training.sh", tmp_path, tmp_path, tmp_path / "out"])
    assert ended.returncode == 2
    assert f"DATA {tmp_path}: has no " in ended.stderr
    assert not (tmp_path / "out").exists()


def make_inputs(folder: Path) -> tuple[Path, Path]:
    """(folder of a tiny encoder, folder of the data sets)."""
    prepare(folder)
    for name in ("new_wiki_v1.0.json.gz", "amazon_reviews_v1.0.json.gz", "squad_dev.jsonl.gz", "bioasq.jsonl.gz"):
        (folder / name).write_text(json.dumps(squad(40)))
    return folder / "model", folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path]:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


class Commands(list):
    """Answers every command of the package with success, and keeps its words."""

    def __call__(self, words: list[str]) -> tuple[int, str]:
        self.append(words)
        script, *options = words[1:] if words[0] == "-m" else words
        if script == "scripts/train.py" and "--output_dir" in options:
            folder = Path(options[options.index("--output_dir") + 1])
            (folder / "model").mkdir(parents=True, exist_ok=True)
            (folder / "model" / "model.safetensors").touch()
            results = {"train": {"samples_per_second": 9.0}, "eval": {"held_out": {"exact_match": 50.0, "f1": 60.0}}}
            (folder / "results.json").write_text(json.dumps(results))
        if "--json" in options:
            rows = [{"name": "swep", "peak_bytes": 2**30, "tokens_per_second": 5.0}]
            Path(options[options.index("--json") + 1]).write_text(json.dumps({"rows": rows}))
        return 0, ""

    def run(self, folder: Path, script: str | Path, *words: str | Path, **environment: str) -> str:
        """Runs a shell script to its end; checks that all that its commands name is there; returns what it prints."""
        with stand_in(folder, self) as python:
            ended = run([SCRIPTS / script, *words], PYTHON=str(python), **environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        for words in self:
            if words[0] == "scripts/train.py" or words[:2] in (["-m", "benchmarks.training"], ["-m", "swep_ds"]):
                test_readme.check(*test_readme.program(["python", *words]))
        return ended.stdout


def test_the_commands_of_training(tmp_path, inputs):
    commands = Commands()
    out = commands.run(tmp_path, "training.sh", *inputs, tmp_path / "out")
    assert out.count(" done") == 18
    assert re.findall(r"^(\S+) .*skipped: it needs a GPU", out, re.MULTILINE) == ["tf32"]
    measured = {Path(words[words.index("--json") + 1]).stem: words for words in commands if "--json" in words}
    first, *_, last = measured
    assert (first, last) == ("base", "fp32")
    assert "--operations" in measured["operations"]
    for words in measured.values():
        if "--ways" in words:
            methods, ways = (
                list(takewhile(lambda word: not word.startswith("--"), words[words.index(option) + 1 :]))
                for option in ("--methods", "--ways")
            )
            assert len(read_ways("quickstart", [], methods, ways, "zero1")) >= len(ways)
            assert not any("graphs" in way for way in ways)  # a CPU has none
    assert "9.0 samples/s  held_out 50.00/60.00" in out
