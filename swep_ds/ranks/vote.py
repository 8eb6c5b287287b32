"""The vote to stop: all ranks stop at the same update, whichever of them was asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from swep_ds import ranks
from swep_ds.common.errors import RunExit, as_input_error
from swep_ds.ranks.signals import request

CONNECT = timedelta(seconds=60)


class StopVote:
    """At the end of each update every rank casts its vote, and reads the result of an update earlier.

    So no rank waits: votes travel over gloo, from memory to memory, while the next update computes.

    Raises InputError: the ranks cannot reach each other over gloo.
    """

    def __init__(self):
        self._group = ranks.on_all_ranks(_over_gloo) if ranks.world_size() > 1 else None
        self._vote = torch.zeros((), dtype=torch.int32)
        self._cast: dist.Work | None = None

    def asked(self) -> int:
        """The signal by which any rank was asked to stop; 0 if none was. Collective, and the same on all ranks."""
        if self._group is None:
            return request.number
        if self._cast:
            self._cast.wait()
        asked = int(self._vote)
        self._vote.fill_(request.number)
        self._cast = dist.all_reduce(self._vote, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return asked

    def close(self) -> None:
        if self._cast:
            self._cast.wait()
        if self._group is not None:
            dist.destroy_process_group(self._group)


def _over_gloo() -> dist.ProcessGroup:
    interface = "the name of the network interface between them (ip address lists them)"
    fix = f"export GLOO_SOCKET_IFNAME on all nodes, as {interface}"
    with as_input_error("the ranks cannot reach each other over gloo", fix):
        group = dist.new_group(backend="gloo", timeout=CONNECT)
        dist.barrier(group)  # a rank with nothing left to train must not leave while another still connects
    return group


@contextmanager
def stop_vote() -> Iterator[StopVote]:
    """For the training loop: inside, requests to stop wait for the end of an update. Collective."""
    vote = StopVote()
    try:
        with request.deferred():
            yield vote
    except RunExit:  # raised on all ranks; after any other exception some would wait for votes that never come
        vote.close()
        raise
    vote.close()
