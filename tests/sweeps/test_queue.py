"""The local queue, with a fake in place of scripts/train.py; tests/sweeps/test_sweep.py runs the real script."""

import fcntl
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps import queue as local_queue
from swep_ds.sweeps.sweep import Cell, last_attempt
from tests.pipeline.test_recipe import MINIMAL, write
from tests.support.fork_server import HANGS

# Called as: script --output_dir FOLDER --set do=BEHAVIOUR
FAKE_TRAIN = """
import os, pathlib, shutil, signal, subprocess, sys, time
folder, behaviour = pathlib.Path(sys.argv[2]), sys.argv[-1].partition("=")[2]
folder.mkdir(exist_ok=True)
print("threads", os.environ["OMP_NUM_THREADS"], flush=True)
if behaviour == "fail":
    print("error: data.train: gone.json: no such file", file=sys.stderr, flush=True)
    print("killing the others", flush=True)
    sys.exit(2)
if behaviour == "stop":
    sys.exit(75)
if behaviour == "save" and not (folder / "saved").exists():  # a child saves; this process ends at once
    if os.fork() == 0:
        first = os.getppid()
        def save(*_):
            while os.getppid() == first:
                time.sleep(0.05)
            (folder / "saved").touch()
            print("stopped: on request (SIGTERM) after update 4", flush=True)
            print("and a launcher's last words", flush=True)
            os._exit(75)
        signal.signal(signal.SIGTERM, save)
        (folder / "pids").write_text(str(os.getpid()))
    time.sleep(3600)
if behaviour in ("leave", "hang", "hang on"):
    if behaviour == "hang on":
        signal.signal(signal.SIGTERM, lambda *_: (folder / "asked").touch())
    child = subprocess.Popen(["sleep", "3600"])
    (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
    while behaviour != "leave":
        time.sleep(3600)
if behaviour == "meet":  # ends when the other one is there
    (folder / "here").touch()
    while len(list(folder.parent.glob("*/here"))) < 2:
        time.sleep(0.05)
if behaviour != "nothing":
    shutil.copy(folder.parent / "recipe.yaml", folder)
    (folder / "results.json").write_text('{"eval": {}}')
if behaviour == "die":
    os.kill(os.getpid(), signal.SIGABRT)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(local_queue, "GRACE_SECONDS", HANGS)  # no test depends on this time
    (tmp_path / "fake_train.py").write_text(FAKE_TRAIN)
    write(tmp_path / "recipe.yaml", MINIMAL)
    return tmp_path


def cells(folder: Path, *behaviours: str) -> list[Cell]:
    recipe = Recipe.load(str(folder / "recipe.yaml"))
    return [Cell(b, 0, recipe, (f"do={b}",), folder / f"{n}-{b.replace(' ', '-')}") for n, b in enumerate(behaviours)]


def run_queue(folder: Path, queued: list[Cell], jobs=1, ranks: int | None = 1) -> tuple[list[str], bool]:
    failed, stopped = local_queue.run_queue(queued, [str(folder / "fake_train.py")], jobs=jobs, ranks=ranks)
    return [cell.variant for cell in failed], stopped


def is_over(folder: Path) -> bool:
    deadline = time.monotonic() + HANGS
    for pid in map(int, (folder / "pids").read_text().split()):
        with suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
    return True


def test_a_failed_cell_is_reported_and_the_others_run(folder, capsys):
    queued = cells(folder, "work", "fail", "nothing", "die")
    assert run_queue(folder, queued) == (["fail", "nothing"], False)
    assert [cell.results() is not None for cell in queued] == [True, False, False, True]
    said = capsys.readouterr().out
    for part in (
        "1-fail: FAILED, exit code 2: error: data.train: gone.json: no such file",
        rf"the end of {folder}/1-fail\.log:\n(.*\n)*killing the others\n",
        "2-nothing: FAILED, exit code 0: threads",
        r"3-die: done in \d+:\d\d:\d\d, exit code 134 after its results",
    ):
        assert re.search(part, said)
    assert f"fake_train.py --output_dir {folder}/1-fail --set do=fail\n" in queued[1].log.read_text()
    # what is done is skipped, and a second attempt has its own fault
    assert run_queue(folder, queued[:2]) == (["fail"], False)
    assert [cell.log.read_text().count("$ ") for cell in queued[:2]] == [1, 2]
    assert queued[1].fault() == "exit code 2: error: data.train: gone.json: no such file"


def test_a_run_that_an_earlier_start_left_training_is_skipped(folder, capsys, monkeypatch):
    left, other = queued = cells(folder, "fail", "work")
    left.folder.mkdir()
    for held in (left.folder / ".lock", left.log):  # by the run, and by the queue of a sweep that has started it
        with held.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert run_queue(folder, queued) == ([], False)
            assert (left.log.exists(), other.results()) == (held == left.log, {"eval": {}})
            assert "0-fail: skipped, still running, started earlier" in capsys.readouterr().out
    with left.log.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # the run itself waits for the lock of a dead node
        run_queue(folder, queued)
        assert left.log.read_text().endswith("# exit code 2\n")


def test_jobs_run_at_the_same_time_share_the_threads_and_leave_nothing_behind(folder, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    queued = cells(folder, "meet", "meet", "leave")
    assert run_queue(folder, queued, jobs=2) == ([], False)
    assert all("threads 3\n" in cell.log.read_text() for cell in queued)
    assert is_over(queued[2].folder)


def stop(folder: Path, numbers: list[signal.Signals], behaviour: str) -> Cell:
    """Sends signals to this process: the first when a cell runs, the second when the cell was asked to stop."""
    queued = cells(folder, behaviour, "work")

    def send() -> None:
        for number, sign in zip(numbers, ("pids", "asked"), strict=False):
            while not (queued[0].folder / sign).is_file():
                time.sleep(0.05)
            os.kill(os.getpid(), number)

    # under nohup the signal is ignored, and the queue keeps it so
    before = signal.signal(numbers[0], signal.SIG_DFL)
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    assert run_queue(folder, queued) == ([], True)
    thread.join()
    assert signal.signal(numbers[0], before) is signal.SIG_DFL
    assert not queued[1].log.exists()
    assert is_over(queued[0].folder)
    return queued[0]


def test_every_process_of_a_run_has_time_to_save_and_the_run_resumes_next_time(folder, capsys):
    cell = stop(folder, [signal.SIGTERM], "save")
    assert cell.fault() == "exit code 143: stopped: on request (SIGTERM) after update 4"
    assert "FAILED" not in capsys.readouterr().out
    assert run_queue(folder, [cell]) == ([], False)
    assert cell.results() is not None


def test_signals_that_come_together_are_one_request():
    with local_queue._requests() as asked:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("behaviour", "limit", "seconds", "numbers", "code"),
    [
        ("hang", "REPEAT_SECONDS", 3600.0, [signal.SIGHUP], 143),
        ("hang on", "GRACE_SECONDS", 1.0, [signal.SIGTERM], 137),
        ("hang on", "REPEAT_SECONDS", 0.0, [signal.SIGINT, signal.SIGINT], 137),
    ],
)
def test_a_signal_stops_the_queue_and_its_runs(folder, monkeypatch, behaviour, limit, seconds, numbers, code):
    monkeypatch.setattr(local_queue, limit, seconds)
    assert stop(folder, numbers, behaviour).fault().startswith(f"exit code {code}: ")


def test_in_a_slurm_job_srun_starts_the_processes(folder, monkeypatch, capsys):
    srun = folder / "srun"
    srun.write_text('#!/bin/sh\necho "srun $*"\nexec "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # Slurm's own
    queued = cells(folder, "work", "stop")
    assert run_queue(folder, queued, ranks=None)[0] == ["stop"]
    log = queued[0].log.read_text()
    assert f"\nsrun {sys.executable} -u {folder}/fake_train.py --output_dir {folder}/0-work" in log
    assert "\nthreads 5\n" in log
    assert [last_attempt(cell.folder)[1] for cell in queued] == [0, 75]
    monkeypatch.chdir(queued[1].folder)
    assert last_attempt(Path("."))[1] == 75
    assert "1-stop: stopped, exit code 75: threads 5" in capsys.readouterr().out
