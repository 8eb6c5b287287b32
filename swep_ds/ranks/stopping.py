"""SIGUSR1, SIGTERM and SIGINT (Ctrl-C) in the training loop as requests to stop: one to any rank waits for the end of
an update, where all ranks save a checkpoint together and end with `EXIT_STOPPED`. A second one, but SIGUSR1, kills."""

import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from swep_ds import ranks
from swep_ds.common.errors import RunExit, as_input_error

SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
# A second signal within this time counts as the same request: the `deepspeed` command forwards those that ranks have
# had, too, where a process group is signalled as a whole
REPEAT_SECONDS = 1.0
RESUMES = "the same command, with --resume auto, resumes from there"


class StopRequest:
    """The signals that this process got in the training loop."""

    def __init__(self):
        self.allowed = False  # whether signals are requests: in a script whose run can be resumed
        self.number = 0  # the first signal; 0: none yet
        self._came_at = 0.0

    def take(self, number: int, _) -> None:
        now = time.monotonic()
        if not self.number:
            self.number = number
            self._came_at = now
        elif number != signal.SIGUSR1 and now - self._came_at > REPEAT_SECONDS:  # Slurm and its script both send that
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


request = StopRequest()


class StopVote:
    """For the training loop: inside, signals are requests to stop. At the end of each update every rank casts its vote,
    and reads the result of an update earlier: votes travel over gloo while the next update computes. Collective. Raises
    InputError: the ranks cannot reach each other over gloo."""

    def __init__(self):
        self._group = None
        if ranks.world_size() > 1:
            self._group = ranks.on_all_ranks(_over_gloo)
            self._vote = torch.zeros((), dtype=torch.int32)
            self._cast = dist.all_reduce(self._vote, group=self._group, async_op=True)

    def __enter__(self) -> "StopVote":
        self._handlers = {}
        for number in SIGNALS:
            # a shell's `&` has a program ignore SIGINT
            if request.allowed and signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, request.take)
        return self

    def asked(self) -> int:
        """The signal by which any rank was asked to stop; 0 if none was. Collective, and the same on every rank."""
        if self._group is None:
            return request.number
        self._cast.wait()
        asked = int(self._vote)
        self._vote.fill_(request.number)
        self._cast = dist.all_reduce(self._vote, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return asked

    def __exit__(self, kind: type[BaseException] | None, *_) -> None:
        if kind and not issubclass(kind, RunExit):  # on this rank only: a vote of the others may never come
            return
        if self._group is not None:
            self._cast.wait()
            dist.destroy_process_group(self._group)
        if kind:  # the handlers stay: another signal must not change how this run ends
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if request.number:  # it came after the last vote
            signal.raise_signal(request.number)


def _over_gloo() -> dist.ProcessGroup:
    fix = "export GLOO_SOCKET_IFNAME on all nodes, as the name of the network interface between them (ip address)"
    with as_input_error("the ranks cannot reach each other over gloo", fix):
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
        dist.barrier(group)  # a rank with nothing left to train must not leave while another still connects
    return group
