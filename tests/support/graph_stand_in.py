"""A substitute for CUDA graphs on machines without a GPU: a recording of the operations that PyTorch dispatches.

A replay runs them again, on the same tensors, without the function: what the host decided is frozen, as in a graph.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swep_ds.training.engine import Engine
from swep_ds.training.graphs import Graphs, can_replay


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, before in self.calls:
            after = func(*args, **kwargs)
            returned = zip(func._schema.returns, tree_leaves(before), tree_leaves(after), strict=False)
            for returns, mine, computed in returned:
                if returns.alias_info is None and isinstance(mine, Tensor):  # neither a view nor written in place
                    mine.copy_(computed)


def record(body: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Runs as often as a capture does."""
    body()
    with Tape() as tape:
        result = body()
    return tape.replay, result


@contextmanager
def stand_in_graphs(patience: int, record: Callable = record) -> Iterator[None]:
    """Engines that are built inside have graphs, of shapes that come for this time."""
    build = Engine.__init__

    def build_with_graphs(self, *arguments) -> None:
        build(self, *arguments)
        if can_replay(self.module):
            self.graphs = Graphs(self, record, patience)

    with mock.patch.object(Engine, "__init__", build_with_graphs):
        yield
