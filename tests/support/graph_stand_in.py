"""Stands in for CUDA graphs where there is no GPU: a function that runs again is the replay. The batch and the update's
numbers then still reach it only through the graph's own tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from torch import Tensor


def record(body: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Runs as often as a capture does, and again at each replay."""
    body()
    result = body()
    return lambda: result.copy_(body()), result


@contextmanager
def stand_in_graphs(patience: int) -> Iterator[None]:
    """Engines that are built inside have graphs, of shapes that come for this time."""
    with (
        mock.patch("swep_ds.training.engine.recorder", return_value=record),
        mock.patch("swep_ds.training.graphs.PATIENCE", patience),
    ):
        yield
