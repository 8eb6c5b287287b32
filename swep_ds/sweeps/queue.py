"""Runs the cells of a sweep on this machine, each as a process of its own, some at a time.

Notable (DeepSpeed 0.19): a signal to the `deepspeed` command ends the command and leaves its ranks training on, so each
run gets a process group: the group is signalled and waited for, and what is left of it in the end is killed.
"""

import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import torch
from deepspeed.accelerator import get_accelerator

from swep_ds.console import Console, Progress
from swep_ds.errors import EXIT_STOPPED, InputError
from swep_ds.ranks.group import free_port
from swep_ds.ranks.launch import visible_devices
from swep_ds.ranks.signals import REPEAT_SECONDS
from swep_ds.sweeps.sweep import EXIT_LINE, START_LINE, Cell

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 60  # from SIGTERM to SIGKILL; a second signal cuts it short
POLL_SECONDS = 0.2
LAST_LINES = 5  # of a failed run's log, shown


class Run:
    """A started cell: a process group whose output goes to the end of the cell's log."""

    def __init__(self, cell: Cell, command: Sequence[str], place: dict[str, str]):
        self.cell, self.place, self.began = cell, place, time.monotonic()
        self.log = cell.log.open("ab", buffering=0)
        self._note(START_LINE + shlex.join(command))
        streams = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, env=os.environ | place, start_new_session=True, **streams)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def ended(self) -> bool:
        return self.process.poll() is not None

    def alive(self) -> bool:
        """Whether any process of the group still runs; the first one may end before the others."""
        for process in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError):
                if os.getpgid(process.pid) == self.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def send(self, number: signal.Signals) -> None:
        """To all processes of the group that are left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> int:
        """Kills what is left of the group; returns the exit code, that of a shell where a signal ended the run."""
        self.send(signal.SIGKILL)
        code = self.process.wait()
        code = code if code >= 0 else 128 - code
        self._note(f"{EXIT_LINE}{code}")
        self.log.close()
        return code

    def _note(self, line: str) -> None:
        with suppress(OSError):  # a full disk ends no queue
            self.log.write(f"{line}\n".encode(errors="backslashreplace"))


def places(jobs: int, ranks: int | None) -> list[dict[str, str]]:
    """For each of `jobs` runs at a time what it adds to the environment: its devices, or its processes' threads.

    `ranks` as of `run_queue`; Slurm gives each run its own.

    Raises:
        InputError: there are fewer devices than processes.
    """
    if ranks is None:
        return [{}] * jobs
    accelerator, processes = get_accelerator(), jobs * ranks
    if accelerator.device_name() == "cpu":
        return [{"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // processes))}] * jobs
    count, variable = accelerator.device_count(), accelerator.visible_devices_envs()[0]
    if processes > count:
        raise InputError(f"--jobs {jobs} x --num_accelerators {ranks}: there are {count} devices: lower one of them")
    devices = visible_devices(variable, count)
    return [{variable: ",".join(devices[job * ranks : (job + 1) * ranks])} for job in range(jobs)]


def launcher(ranks: int | None) -> list[str]:
    """What stands before a script to start it: `python` for one process, the `deepspeed` command for more.

    `ranks` as of `run_queue`.
    """
    if ranks is None:
        return ["srun", sys.executable, "-u"]
    if ranks == 1:
        return [sys.executable, "-u"]
    options = ["-q", "--master_port", str(free_port())]
    if get_accelerator().device_name() == "cpu":  # elsewhere it takes the devices that it sees: those of the place
        options += ["--num_accelerators", str(ranks)]
    return [sys.executable, "-u", "-m", "deepspeed.launcher.runner", *options]


def run_queue(
    cells: Sequence[Cell], command: Sequence[str], folder: Path, *, jobs: int, ranks: int | None
) -> tuple[list[Cell], bool]:
    """Runs the cells that have no results yet, and goes on where one fails.

    Args:
        command: script and options that all cells share.
        folder: of the sweep; made if it is not there.
        jobs: runs at a time.
        ranks: processes of each, one per device; None = all tasks of the Slurm job that this is part of.

    Returns:
        (cells whose run failed, whether SIGINT, SIGTERM or SIGHUP stopped the queue and its runs). A cell whose run of
        an earlier start still trains is skipped, and not among them.

    Raises:
        InputError: there are fewer devices than processes, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir {folder}: cannot be written to ({error.strerror})") from None
    console = Console()
    free = places(jobs, ranks)
    waiting = deque(cell for cell in cells if cell.results() is None)
    running: list[Run] = []
    failed: list[Cell] = []
    took: list[float] = []
    asked: list[float] = []  # when a signal came; a terminal that goes sends several at once
    former = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if former[number] is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda *_: _note(asked, time.monotonic()))
    try:
        with Progress(console, "runs", len(cells), len(cells) - len(waiting), line_seconds=math.inf) as progress:
            while (waiting or running) and not asked:
                while waiting and free:
                    cell = waiting.popleft()
                    if cell.still_running():
                        console.print(f"{cell.name}: skipped, {cell.fault()}")
                        continue
                    words = [*launcher(ranks), *command, *cell.options()]
                    try:
                        run = Run(cell, words, free[-1])
                    except OSError as error:
                        failed.append(cell)
                        console.print(f"{cell.name}: FAILED, it cannot be started ({error})", style="bold red")
                        continue
                    free.pop()
                    running.append(run)
                    console.print(f"{cell.name}: started, its log is {cell.log}")
                for run in [run for run in running if run.ended()]:
                    running.remove(run)
                    free.append(run.place)
                    code, name, seconds = run.close(), run.cell.name, run.seconds
                    if code == 0 and run.cell.results() is not None:
                        took.append(seconds)
                        console.print(f"{name}: done in {timedelta(seconds=round(seconds))}")
                    elif run.cell.still_running():  # by a process that had not got to its folder yet
                        console.print(f"{name}: skipped, {run.cell.fault()}")
                    else:
                        failed.append(run.cell)
                        how = "stopped" if code == EXIT_STOPPED else "FAILED"
                        console.print(f"{name}: {how}, {run.cell.fault()}", style="bold red")
                        console.print(f"the end of {run.cell.log}:")
                        said = run.cell.log.read_text(encoding="utf-8", errors="replace")
                        console.print("\n".join(said.splitlines()[-LAST_LINES:]))
                names = ", ".join(run.cell.name for run in running)
                left = _time_left(took, running, len(waiting), jobs)
                progress.update(len(cells) - len(waiting) - len(running), f"{left}  {names}")
                time.sleep(POLL_SECONDS)
        return failed, bool(asked)
    finally:
        _end(running, asked)
        for number in SIGNALS:
            signal.signal(number, former[number])


def _time_left(took: Sequence[float], running: Sequence[Run], waiting: int, jobs: int) -> str:
    """From the mean of the runs that are done."""
    if not took:
        return ""
    mean = statistics.mean(took)
    seconds = mean * waiting + sum(max(0.0, mean - run.seconds) for run in running)
    return f"{timedelta(seconds=round(seconds / jobs))} left"


def _note(asked: list[float], now: float) -> None:
    if not asked or now - asked[-1] > REPEAT_SECONDS:
        asked.append(now)


def _end(running: Sequence[Run], asked: Sequence[float]) -> None:
    """Stops runs: SIGTERM, so that they can save; SIGKILL after a while or at the user's second signal."""
    for run in running:
        run.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(run.alive() for run in running) and time.monotonic() < deadline and len(asked) < 2:
        time.sleep(POLL_SECONDS)
    for run in running:
        run.close()
