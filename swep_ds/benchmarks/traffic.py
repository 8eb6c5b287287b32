"""What DeepSpeed's collectives send and how long they take.

Its own timers cannot tell: `wall_clock_breakdown` counts what the hooks of ZeRO 1 to 3 reduce as backward. All of them
go through one object of `deepspeed.comm`, which is stood in for while they are watched.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from deepspeed.comm import comm
from torch import Tensor

from swep_ds import ranks

# name: the argument, by place and name, that is as large as all ranks' parts together
COLLECTIVES = {
    "all_reduce": (0, "tensor"),
    "reduce": (0, "tensor"),
    "broadcast": (0, "tensor"),
    "reduce_scatter": (1, "input_list"),
    "reduce_scatter_tensor": (1, "input_tensor"),
    "all_gather": (0, "tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_coalesced": (0, "output_tensors"),
}


class Traffic:
    """What was seen since the start: bytes and calls by collective, and seconds in all.

    Bytes are of the whole tensor, on every rank the same: a ring sends (w - 1) / w of them from each of w ranks, in
    an all-reduce twice that.
    """

    def __init__(self):
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.seconds = 0.0


class _Watched:
    """The backend, whose collectives are waited for one by one."""

    def __init__(self, backend, traffic: Traffic):
        self._backend, self._traffic = backend, traffic

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return self._watch(name, found) if name in COLLECTIVES else found

    def _watch(self, name: str, collective: Callable) -> Callable:
        place, argument = COLLECTIVES[name]
        traffic = self._traffic

        def watched(*args, **kwargs):
            whole = kwargs[argument] if argument in kwargs else args[place]
            traffic.bytes[name] += _size(whole)
            traffic.calls[name] += 1
            ranks.synchronize()
            began = time.perf_counter()
            work = collective(*args, **kwargs)
            if hasattr(work, "wait"):
                work.wait()
            ranks.synchronize()
            traffic.seconds += time.perf_counter() - began
            return work

        return watched


def _size(whole: Tensor | Sequence[Tensor]) -> int:
    return whole.nbytes if isinstance(whole, Tensor) else sum(one.nbytes for one in whole)


@contextmanager
def watch_traffic() -> Iterator[Traffic]:
    """Inside, what the collectives do is noted; nothing overlaps with them, which is how their time is known."""
    traffic = Traffic()
    with mock.patch.object(comm, "cdb", _Watched(comm.cdb, traffic)):
        yield traffic
