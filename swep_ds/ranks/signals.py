"""SIGUSR1, SIGTERM and SIGINT (Ctrl-C) as requests to stop: with a checkpoint where there is something to save, else
at once.

In the training loop (`deferred`) a request waits for the end of an update, where all ranks save together. Before and
after it, in set-up, evaluation and export, nothing is to be saved: the last checkpoint is complete, and all ranks
leave. Both end with `EXIT_STOPPED`, and the same command goes on from there. A second signal leaves at once.

In a script that cannot be resumed SIGINT raises KeyboardInterrupt as ever, so that unfinished files are removed; where
that ends nothing soon, in a collective say, the process is ended. Its exit code is `EXIT_INTERRUPTED`.

Notable:
- Python runs a signal's handler between two steps of the main thread, so never while that waits in a collective. The
  number goes through a pipe (`signal.set_wakeup_fd`) to a thread, which does all that is done.
- The `deepspeed` command signals its ranks when it is signalled itself. In a process group that is signalled as a
  whole they have had it by then: what comes within `REPEAT_SECONDS` is the same request.
- The data loader reads in this process, tokenisers are threads, and a program that is started gets the signals' default
  actions back. So does a process that a library forks: its signals are not this one's.
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

from swep_ds.errors import EXIT_INTERRUPTED, EXIT_STOPPED
from swep_ds.ranks.launch import is_first_on_node
from swep_ds.terminal import on_one_line

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
REPEAT_SECONDS = 1.0
LEAVE_SECONDS = 5.0  # for the last words: nobody may read them
JOIN_SECONDS = 10.0  # for the other ranks to come, once a rank that waits for them is asked to stop
CAUGHT_UP = 255  # in the pipe: the thread has read all signals that came before; no signal has this number
UNWIND_SECONDS = 3.0  # for KeyboardInterrupt to end the script
GO_ON = "the same command goes on from there (--resume auto)"


class StopRequest:
    """The signals that this process got; `request` is the only one."""

    def __init__(self):
        self.number = 0  # of the first signal; 0: none yet
        self._came = 0.0
        self._deferred = self._served = False
        self._code: int | None = None
        self._leave: Callable[[str], None] | None = None
        self._pipe: tuple[int, int] | None = None
        self._handlers: dict[int, Callable] = {}
        self._caught_up = threading.Event()
        self.resumable, self._alone = True, False

    @property
    def exit_code(self) -> int:
        """Of a process that ends outside training, on request."""
        return EXIT_STOPPED if self.resumable else EXIT_INTERRUPTED

    def catch(self, *, stoppable: bool, alone: bool) -> None:
        """From now on the signals are requests. To be called early: the default action of most is to die.

        Args:
            stoppable: False = of SIGINT alone, in a script that cannot be resumed.
            alone: there are no other ranks.
        """
        self.resumable, self._alone = stoppable, alone
        self._pipe = read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in SIGNALS if stoppable else (signal.SIGINT,):
            if number == signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN:  # as of a shell's `&`
                continue
            self._handlers[number] = _keep if stoppable else signal.default_int_handler
            signal.signal(number, self._handlers[number])
            if stoppable:
                signal.siginterrupt(number, False)  # system calls of code that knows of no signals are restarted
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_forget)
        threading.Thread(target=self._listen, args=(read,), daemon=True, name="signals").start()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, the caller looks at `number` and serves the request; what is left of it at the end is served then.

        An exception leaves it to whoever ends the process.
        """
        self._deferred = True
        yield
        self._deferred = False
        self._wake()

    def joined(self, leave: Callable[[str], None]) -> None:
        """The ranks have found each other: a request that is not deferred is served by `leave(signal's name)`."""
        self._leave = leave
        self._wake()

    def serve(self) -> None:
        """Ends this process, of one rank, if it was asked to stop and that is not deferred.

        For an exception that nobody expected: a signal to the whole process group also killed what this one started.
        """
        self._wake(CAUGHT_UP)
        self._caught_up.wait()
        if self._due() is not None:
            leave_alone(signal.Signals(self.number).name)

    def end_by(self, number: signal.Signals) -> NoReturn:
        """Ends this process and the other ranks, at once."""
        self._served = True
        (self._leave or leave_alone)(number.name)
        time.sleep(LEAVE_SECONDS)  # the lifeline's thread ends the process
        leave(None, self.exit_code)

    def settle(self, code: int) -> None:
        """The process is about to end with this exit code, and will not be hurried to another one."""
        self._code = code

    def _listen(self, pipe: int) -> None:
        while True:
            due = self._due()
            wait = None if due is None else max(0.0, due - time.monotonic())
            if select.select([pipe], [], [], wait)[0]:
                for number in os.read(pipe, 64):
                    self._take(number)
            elif self._due() is not None:
                self._served = True
                (self._leave or leave_alone)(signal.Signals(self.number).name)

    def _take(self, number: int) -> None:
        now = time.monotonic()
        if number == CAUGHT_UP:
            self._caught_up.set()
        if number not in self._handlers or signal.getsignal(number) is not self._handlers[number]:
            return  # another handler is set for now, such as the queue's of a sweep
        if not self.number:
            self.number, self._came = number, now
        elif now - self._came > REPEAT_SECONDS:
            if self._code is not None:
                os._exit(self._code)
            text = f"stopped: at once, by a second signal ({signal.Signals(number).name})"
            leave(text if is_first_on_node() else None, 128 + number)

    def _due(self) -> float | None:
        """When the request is to be served; a rank's death comes first, in whose wake launchers send SIGTERM."""
        if not self.number or self._deferred or self._served or self._code is not None:
            return None
        if not self.resumable:
            return self._came + UNWIND_SECONDS
        return self._came + (REPEAT_SECONDS if self._leave or self._alone else JOIN_SECONDS)

    def _wake(self, why: int = 0) -> None:
        if self._pipe:
            os.write(self._pipe[1], bytes([why]))


def _keep(*_) -> None:
    """The handler of a request, which the thread serves."""


_forks = threading.local()  # the signals that a thread blocked before it forks


def _hold() -> None:
    """Until `_forget`, a signal to the child would go through the pipe of its parent."""
    _forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forks.mask)


def _forget() -> None:
    """In a forked process: signals have their default actions."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _release()


def leave_alone(name: str) -> NoReturn:
    """Ends this process, of one rank."""
    leave(f"stopped: {stopped_at_once(name)}" if is_first_on_node() else None, request.exit_code)


def leave(text: str | None, code: int) -> NoReturn:
    """Says why and ends the process, from any thread; the main one may wait in a collective for ever.

    It also ends where nothing can be said: stderr may be a file on a full disk, or a pipe that nobody reads.
    """
    try:
        exit_after(LEAVE_SECONDS, code)
        if text:
            print("\n".join(map(on_one_line, text.splitlines())), file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def exit_after(seconds: float, code: int) -> None:
    """Ends the process then, whatever its other threads wait for."""
    last = threading.Timer(seconds, os._exit, (code,))
    last.daemon = True
    last.start()


def stopped_at_once(by: str) -> str:
    if not request.resumable:
        return f"by {by}"
    return f"on request ({by}), outside training; checkpoints stay, and {GO_ON}"


request = StopRequest()
