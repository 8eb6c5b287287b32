"""SIGUSR1, SIGTERM and SIGINT (Ctrl-C) as requests to stop.

In the training loop (`deferred`) a request waits for the end of an update, where all ranks save a checkpoint together.
Before and after it, in set-up, evaluation and export, there is nothing to save, and all ranks leave at once. Both end
with `EXIT_STOPPED`, and the same command resumes. A second signal ends the process at once.

In a script that cannot be resumed SIGINT raises KeyboardInterrupt as usual, so that unfinished files are removed. If
that does not end the script soon, in a collective for instance, the process is ended with `EXIT_INTERRUPTED`.

Notable:
- Python runs a signal's handler between two steps of the main thread, so never while that waits in a collective.
  `signal.set_wakeup_fd` therefore sends each number through a pipe to a thread, which serves the request.
- The `deepspeed` command forwards the signals that it gets. In a process group that is signalled as a whole its ranks
  have had them by then: a signal within `REPEAT_SECONDS` counts as the same request.
- A program that is started gets the default actions back, and so does a process that a library forks.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from swep_ds.common.errors import EXIT_INTERRUPTED, EXIT_STOPPED, printable
from swep_ds.ranks.launch import is_first_on_node

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
REPEAT_SECONDS = 1.0
LEAVE_SECONDS = 5.0  # for a process to unwind, or to print its last lines: a full pipe blocks
JOIN_SECONDS = 10.0  # for the other ranks to join, once a rank that waits for them is asked to stop
RESUMES = "the same command, with --resume auto, resumes from there"


class StopRequest:
    """The signals that this process got; `request` is the only instance."""

    def __init__(self):
        self.number = 0  # the first signal; 0: none yet
        self.resumable = True
        self._came = 0.0
        self._handled = 0  # the last signal whose handler has run; 0: none yet
        self._deferred = self._served = False
        self._code: int | None = None
        self._leave: Callable[[str], None] = exit_single_rank
        self._joined = False  # no other rank waits for this one to join
        self._pipe: tuple[int, int] | None = None
        self._handler = self._handle  # one object, to compare with

    @property
    def exit_code(self) -> int:
        """The exit code of a process that stops outside training."""
        return EXIT_STOPPED if self.resumable else EXIT_INTERRUPTED

    @property
    def caught(self) -> bool:
        """Whether signals are requests; otherwise this process belongs to another program."""
        return self._pipe is not None

    def catch(self, *, stoppable: bool, alone: bool) -> None:
        """Turns signals into requests from now on. Call it early: the default action of most is to die.

        Args:
            stoppable: False: catch SIGINT only, in a script that cannot be resumed.
            alone: there are no other ranks.
        """
        self.resumable, self._joined = stoppable, alone
        self._pipe = read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in SIGNALS if stoppable else (signal.SIGINT,):
            if number == signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:  # set by a shell's `&`
                continue
            signal.signal(number, self._handler)
            if stoppable:
                signal.siginterrupt(number, False)  # libraries do not expect system calls to be interrupted
        os.register_at_fork(before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_forget)
        threading.Thread(target=self._listen, args=(read,), daemon=True, name="signals").start()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, the caller watches `number` and serves the request; one left over is served at the end.

        After an exception it is left to whoever ends the process.
        """
        self._deferred = True
        yield
        self._deferred = False
        self._wake()

    def joined(self, leave: Callable[[str], None]) -> None:
        """The ranks are connected: `leave(name of the signal)` serves a request that is not deferred."""
        self._leave, self._joined = leave, True
        self._wake()

    def serve(self) -> None:
        """After an unexpected exception: ends this process of one rank if it was asked to stop.

        A signal to the whole process group may have killed a child process, which caused the exception.
        """
        if self._handled and not self._deferred and self._code is None:
            exit_single_rank(signal.Signals(self._handled).name)

    def interrupt(self) -> NoReturn:
        """Ends this process and the other ranks, at once, on SIGINT."""
        self._served = True
        self._leave(signal.SIGINT.name)
        time.sleep(LEAVE_SECONDS)  # the heartbeat's thread ends the process
        exit_process(None, self.exit_code)

    def fix_exit_code(self, code: int) -> None:
        """The process is about to end with this exit code; no request changes it any more."""
        self._code = code

    def _handle(self, number: int, _) -> None:
        self._handled = number
        if not self.resumable:
            raise KeyboardInterrupt

    def _listen(self, pipe: int) -> None:
        while True:
            due = self._due()
            wait = None if due is None else max(0.0, due - time.monotonic())
            if select.select([pipe], [], [], wait)[0]:
                for number in os.read(pipe, 64):
                    self._take(number)
            elif self._due() is not None:
                self._served = True
                self._leave(signal.Signals(self.number).name)

    def _take(self, number: int) -> None:
        if number not in SIGNALS or signal.getsignal(number) is not self._handler:
            return  # another handler is set for now, such as that of a sweep's queue
        now = time.monotonic()
        if not self.number:
            self.number, self._came = number, now
        elif now - self._came > REPEAT_SECONDS:
            if self._code is not None:
                os._exit(self._code)
            text = f"stopped: at once, by a second signal ({signal.Signals(number).name})"
            exit_process(text if is_first_on_node() else None, 128 + number)

    def _due(self) -> float | None:
        """When to serve the request. It waits for a rank's death to be reported, which makes launchers send SIGTERM."""
        if not self.number or self._deferred or self._served or self._code is not None:
            return None
        if not self.resumable:
            return self._came + LEAVE_SECONDS
        return self._came + (REPEAT_SECONDS if self._joined else JOIN_SECONDS)

    def _wake(self) -> None:
        if self._pipe:
            os.write(self._pipe[1], b"\0")


_forks = threading.local()  # the signal mask of a thread that forks


def _block_signals() -> None:
    """A signal to the child before `_forget` would go through its parent's pipe."""
    _forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forks.mask)


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _unblock_signals()


def exit_single_rank(name: str) -> NoReturn:
    """Ends this process of one rank on a signal of that name."""
    exit_process(f"stopped: {stopped_at_once(name)}" if is_first_on_node() else None, request.exit_code)


def exit_process(text: str | None, code: int) -> NoReturn:
    """Prints why and ends the process, from any thread; the main thread may wait in a collective forever.

    The process ends even if stderr is a file on a full disk, or a full pipe without a reader.
    """
    try:
        last = threading.Timer(LEAVE_SECONDS, os._exit, (code,))
        last.daemon = True
        last.start()
        if text:
            print("\n".join(map(printable, text.splitlines())), file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def stopped_at_once(by: str) -> str:
    if not request.resumable:
        return f"by {by}"
    return f"on request ({by}), outside training; checkpoints stay, and {RESUMES}"


request = StopRequest()
