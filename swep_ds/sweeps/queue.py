"""Runs the cells of a sweep on this machine, each as a separate process, `jobs` at a time.

Notable (DeepSpeed 0.19): a signal to the `deepspeed` command ends the command, but its ranks train on. So each run gets
its own process group, which is signalled and waited for; whatever is left of it in the end is killed.
"""

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
from swep_ds.common.errors import EXIT_BAD_INPUT, EXIT_STOPPED, InputError
from swep_ds.ranks.environment import slurm_restarts
from swep_ds.ranks.launcher import environments, launcher
from swep_ds.ranks.stopping import REPEAT_SECONDS
from swep_ds.sweeps.sweep import EXIT_LINE, START_LINE, Cell, last_attempt

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 60  # from SIGTERM to SIGKILL; a second signal shortens it
POLL_SECONDS = 0.2
LAST_LINES = 5  # lines of a failed run's log that are shown


class Job:
    """A started cell: a process group whose output is appended to the cell's log."""

    def __init__(self, cell: Cell, command: Sequence[str], environment: dict[str, str]):
        self.cell, self.environment, self.began = cell, environment, time.monotonic()
        self.log = cell.log.open("ab", buffering=0)
        self._write(START_LINE + shlex.join(command))
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
        """Signals every process of the group that is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> int:
        """Kills what is left of the group. Returns the exit code, as a shell gives it: 128 + n for signal n."""
        self.send(signal.SIGKILL)
        code = self.process.wait()
        code = code if code >= 0 else 128 - code
        self._write(f"{EXIT_LINE}{code}")
        self.log.close()
        return code

    def _write(self, line: str) -> None:
        with suppress(OSError):  # a full disk ends no queue
            # the output before it may end in the middle of a line
            self.log.write(f"\n{line}\n".encode(errors="backslashreplace"))


def run_queue(
    cells: Sequence[Cell], command: Sequence[str], *, jobs: int, ranks: int | None, sharing: int = 1
) -> tuple[list[Cell], bool]:
    """Runs the cells that have no results yet; one that fails does not stop the others, unless it is the first to end
    and ends for bad input.

    Args:
        command: script and options that all cells share.
        cells: their folders are in one that exists (`describe`).
        jobs: how many cells run at a time.
        ranks: processes of each cell, one per device; None = all tasks of the surrounding Slurm job.
        sharing: at most so many cells share a device.

    Returns:
        (cells whose run failed, whether SIGINT, SIGTERM or SIGHUP stopped the queue and its runs). A cell that an
        earlier queue left running is skipped, and not among them.

    Raises:
        InputError: there are fewer devices than processes; or the first run that ended did so for bad input, and others
            wait. Those that had started run to their end.
    """
    console = Console()
    free = environments(jobs, ranks, sharing)
    waiting = deque(cell for cell in cells if cell.results() is None)
    running: list[Job] = []
    failed: list[Cell] = []
    ended = 0
    refused: Cell | None = None
    bar = Progress(console, "runs", len(cells), len(cells) - len(waiting), line_seconds=math.inf)
    with _requests() as requests, bar as progress:
        try:
            while (running or (waiting and not refused)) and not requests:
                while waiting and free and not refused:
                    cell = waiting.popleft()
                    if cell.results() is not None:  # by another queue, since `waiting` was made
                        continue
                    if cell.still_running() and slurm_restarts() == 0:  # else the run waits for its dead node's lock
                        console.print(f"{cell.name}: skipped, {cell.fault()}")
                        continue
                    words = [*launcher(ranks), *command, *cell.options()]
                    try:
                        running.append(Job(cell, words, free[-1]))
                    except OSError as error:
                        failed.append(cell)
                        console.print(f"{cell.name}: FAILED, it cannot be started ({error})", style="bold red")
                        continue
                    free.pop()
                    console.print(f"{cell.name}: started, its log is {cell.log}")
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    free.append(job.environment)
                    code, cell = job.close(), job.cell
                    ended += 1
                    if cell.results() is not None:
                        seconds = round(time.monotonic() - job.began)
                        after = f", exit code {code} after its results" if code else ""
                        console.print(f"{cell.name}: done in {timedelta(seconds=seconds)}{after}")
                    elif cell.still_running():  # by another process, which took the lock after `still_running` above
                        console.print(f"{cell.name}: skipped, {cell.fault()}")
                    else:
                        failed.append(cell)
                        _report_failure(console, cell, code)
                        if code == EXIT_BAD_INPUT and ended == 1:
                            refused = cell
                names = ", ".join(job.cell.name for job in running)
                progress.update(len(cells) - len(waiting) - len(running), names)
                time.sleep(POLL_SECONDS)
            if refused and waiting and not requests:
                raise InputError(
                    f"{refused.name}: bad input, as the {len(waiting)} runs that wait may have: correct it, and start "
                    "the sweep again"
                )
            return failed, bool(requests)
        finally:
            _end(running, requests)


@contextmanager
def _requests() -> Iterator[list[float]]:
    """The times at which signals asked the queue to stop; inside the block, `SIGNALS` do nothing else."""
    times: list[float] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: _note(times, time.monotonic()))
    try:
        yield times
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _note(times: list[float], now: float) -> None:
    if not times or now - times[-1] > REPEAT_SECONDS:  # a terminal that closes sends several signals at once
        times.append(now)


def _report_failure(console: Console, cell: Cell, code: int) -> None:
    outcome = "stopped" if code == EXIT_STOPPED else "FAILED"
    console.print(f"{cell.name}: {outcome}, {cell.fault()}", style="bold red")
    console.print("\n".join([f"the end of {cell.log}:", *last_attempt(cell.folder)[-LAST_LINES:]]))


def _end(running: Sequence[Job], requests: Sequence[float]) -> None:
    """Stops runs: SIGTERM, on which they save; SIGKILL after `GRACE_SECONDS` or at the user's second signal."""
    for job in running:
        job.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(job.alive() for job in running) and time.monotonic() < deadline and len(requests) < 2:
        time.sleep(POLL_SECONDS)
    for job in running:
        job.close()
