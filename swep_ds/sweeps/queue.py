"""Runs the cells of a sweep on this machine, each as a separate process, `jobs` at a time.

Notable (DeepSpeed 0.19): a signal to the `deepspeed` command ends the command, but its ranks train on. So each run gets
its own process group, which is signalled and waited for; whatever is left of it in the end is killed.
"""

import fcntl
import math
import os
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import psutil

from swep_ds.common.console import Console, Progress
from swep_ds.common.errors import EXIT_STOPPED
from swep_ds.ranks.launcher import environments, launcher
from swep_ds.ranks.stopping import REPEAT_SECONDS
from swep_ds.sweeps.sweep import EXIT_LINE, START_LINE, Cell, is_running, last_attempt

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 60  # from SIGTERM to SIGKILL; a second signal shortens it
POLL_SECONDS = 0.2
LAST_LINES = 5  # lines of a failed run's log that are shown


class RunningCell:
    """A started cell: a process group whose output is appended to the cell's log."""

    def __init__(self, cell: Cell, command: Sequence[str], environment: dict[str, str]):
        self.cell = cell
        self.environment = environment
        self.began = time.monotonic()
        self.log = cell.log.open("ab", buffering=0)
        with suppress(OSError):  # after Slurm's restart a dead node may still hold it
            fcntl.flock(self.log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the run's processes inherit it
        # the output before it may end in the middle of a line
        self._note(f"{START_LINE}{shlex.join(command)}")
        streams = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, env=os.environ | environment, start_new_session=True, **streams)

    def alive(self) -> bool:
        """Whether any process of the group still runs; the first may end before the others."""
        for process in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError):
                if os.getpgid(process.pid) == self.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> int:
        """Kills what is left of the group. Returns the exit code, as a shell gives it: 128 + n for signal n."""
        self.send(signal.SIGKILL)
        code = self.process.wait()
        if code < 0:
            code = 128 - code
        self._note(f"{EXIT_LINE}{code}")
        with suppress(OSError):
            fcntl.flock(self.log, fcntl.LOCK_UN)
        self.log.close()
        return code

    def _note(self, line: str) -> None:
        with suppress(OSError):  # a full disk ends no queue
            self.log.write(f"\n{line}\n".encode())


class Queue:
    """The cells that wait, run and have failed."""

    def __init__(self, cells: Sequence[Cell], command: Sequence[str], free: list[dict[str, str]], ranks: int | None):
        self.command = command
        self.free = free
        self.ranks = ranks
        self.waiting = deque(cell for cell in cells if cell.results() is None)
        self.running: list[RunningCell] = []
        self.failed: list[Cell] = []
        self.console = Console()

    def start(self) -> None:
        """Starts the next cells, as many as there are free devices for."""
        while self.waiting and self.free:
            cell = self.waiting.popleft()
            if cell.results() is not None:  # another sweep in this folder has made the run
                continue
            # An earlier queue that was killed, or another sweep, started it. After Slurm's restart the run waits for
            # the lock of its dead node.
            if is_running(cell.folder) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
                self.console.print(f"{cell.name}: skipped, {cell.fault()}")
                continue
            command = [*launcher(self.ranks), *self.command, *cell.options()]
            self.running.append(RunningCell(cell, command, self.free.pop()))
            self.console.print(f"{cell.name}: started, its log is {cell.log}")

    def collect(self) -> None:
        """Reports the runs that have ended."""
        for run in [run for run in self.running if run.process.poll() is not None]:
            self.running.remove(run)
            self.free.append(run.environment)
            code = run.close()
            cell = run.cell
            if cell.results() is not None:
                seconds = round(time.monotonic() - run.began)
                after = f", exit code {code} after its results" if code else ""
                self.console.print(f"{cell.name}: done in {timedelta(seconds=seconds)}{after}")
                continue
            self.failed.append(cell)
            outcome = "stopped" if code == EXIT_STOPPED else "FAILED"
            self.console.print(f"{cell.name}: {outcome}, {cell.fault()}", style="bold red")
            lines, _ = last_attempt(cell.folder)
            self.console.print("\n".join([f"the end of {cell.log}:", *lines[-LAST_LINES:]]))


def run_queue(
    cells: Sequence[Cell], command: Sequence[str], *, jobs: int, ranks: int | None, sharing: int = 1
) -> tuple[list[Cell], bool]:
    """Runs the cells that have no results yet, `jobs` at a time. `command`: the script and options that all share.

    Args:
        ranks: processes of each cell, one per device; None = all tasks of the surrounding Slurm job.
        sharing: how many cells may share a device.

    Returns (cells whose run failed, whether SIGINT, SIGTERM or SIGHUP stopped the queue and its runs). A cell that an
    earlier queue left running is skipped, and not among them.

    Raises InputError: there are fewer devices than processes.
    """
    queue = Queue(cells, command, environments(jobs, ranks, sharing), ranks)
    bar = Progress(queue.console, "runs", len(cells), len(cells) - len(queue.waiting), line_seconds=math.inf)
    with _requests() as requests, bar as progress:
        try:
            while (queue.running or queue.waiting) and not requests:
                queue.start()
                queue.collect()
                names = ", ".join(run.cell.name for run in queue.running)
                progress.update(len(cells) - len(queue.waiting) - len(queue.running), names)
                time.sleep(POLL_SECONDS)
            return queue.failed, bool(requests)
        finally:
            for run in queue.running:
                run.send(signal.SIGTERM)  # on which it saves
            deadline = time.monotonic() + GRACE_SECONDS
            while any(run.alive() for run in queue.running) and time.monotonic() < deadline and len(requests) < 2:
                time.sleep(POLL_SECONDS)
            for run in queue.running:
                run.close()


@contextmanager
def _requests() -> Iterator[list[float]]:
    """The times at which signals asked the queue to stop; inside the block, `SIGNALS` do nothing else."""
    times: list[float] = []

    def note(*_) -> None:
        now = time.monotonic()
        if not times or now - times[-1] > REPEAT_SECONDS:  # a terminal that closes sends several signals at once
            times.append(now)

    handlers = {}
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            handlers[number] = signal.signal(number, note)
    try:
        yield times
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
