"""What DeepSpeed's collectives send and how long they take.

DeepSpeed's own timers cannot tell: `wall_clock_breakdown` counts the reductions in the hooks of ZeRO 1 to 3 as
backward. All collectives go through one object of `deepspeed.comm`, which is replaced while they are watched.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from deepspeed.comm import comm
from torch import Tensor

from swep_ds import ranks

# collective -> position and name of the argument that is as large as all ranks' parts together
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
    """Bytes and calls by collective since the start, and the seconds of all of them.

    Bytes count the whole tensor, the same on every rank: in a ring each of w ranks sends (w - 1) / w of them, and twice
    that in an all-reduce.
    """

    def __init__(self):
        self.bytes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.seconds = 0.0


class _Watched:
    """The backend; each of its collectives is waited for."""

    def __init__(self, backend, traffic: Traffic):
        self._backend, self._traffic = backend, traffic

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._backend, name)
        return partial(self._call, name, attribute) if name in COLLECTIVES else attribute

    def _call(self, name: str, collective: Callable, *args, **kwargs) -> Any:
        position, argument = COLLECTIVES[name]
        whole = kwargs[argument] if argument in kwargs else args[position]
        self._traffic.bytes[name] += sum(part.nbytes for part in ([whole] if isinstance(whole, Tensor) else whole))
        self._traffic.calls[name] += 1
        ranks.synchronize()
        began = time.perf_counter()
        work = collective(*args, **kwargs)
        if hasattr(work, "wait"):
            work.wait()
        ranks.synchronize()
        self._traffic.seconds += time.perf_counter() - began
        return work


@contextmanager
def watch_traffic() -> Iterator[Traffic]:
    """Inside, collectives are counted; nothing overlaps with them, so that their time is known."""
    traffic = Traffic()
    with mock.patch.object(comm, "cdb", _Watched(comm.cdb, traffic)):
        yield traffic
