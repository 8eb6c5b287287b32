"""How many operations an update gives the device: all that PyTorch's dispatcher hands to it,
except views and allocations.

Their number does not depend on the width of the model or the batch: a narrow model on a CPU tells it. A foreach or
fused operation, a collective, and the perturbation in either direction count once.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from benchmarks.training.updates import plain_update
from swep_ds.data.batches import Batch
from swep_ds.kernels import op
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.training.instruments import add_up
from swep_ds.training.loop import observe, run_update
from swep_ds.training.settings import TrainSection

WARMUP = 3  # updates before the counted one; at ZeRO-3 they record the order of the modules
PLAIN = "PyTorch"  # the stage of the loop without an engine
PHASES = ("forward", "backward", "step", "statistics")
# and _unsafe_view, whose schema does not say that it is a view
ALLOCATIONS = ("empty", "new_empty", "record_stream", "set_", "resize_", "is_pinned", "is_same_size", "_unsafe_view")
READS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")  # the host waits for the device


class Launches(TorchDispatchMode):
    """Counts operations by phase."""

    def __init__(self):
        super().__init__()
        self.operations: dict[str, Counter[str]] = {name: Counter() for name in PHASES}
        self._phase: str | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts for this phase, if it is one of PHASES; as `run_update` takes it."""
        self._phase = name
        yield
        self._phase = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returns = [value.alias_info for value in func._schema.returns]
        is_view = bool(returns) and all(alias is not None and not alias.is_write for alias in returns)
        allocates = func._schema.name.split("::")[1].startswith(ALLOCATIONS)
        if self._phase in PHASES and not is_view and not allocates:
            self.operations[self._phase][func._schema.name] += 1
        return func(*args, **(kwargs or {}))

    def run_as_one(self, name: str, run: Callable, *args, **kwargs) -> Any:
        """Calls `run`, which counts as one operation."""
        self.operations[self._phase][name] += 1
        with _disable_current_modes():
            return run(*args, **kwargs)

    def totals(self) -> dict[str, int]:
        """Operations by phase, their sum as "all", and the number of "reads"."""
        counts = {name: counter.total() for name, counter in self.operations.items()}
        named = sum(self.operations.values(), Counter())
        reads = sum(number for name, number in named.items() if name.split("::")[1] in READS)
        return counts | {"all": named.total(), "reads": reads}


@contextmanager
def watch_launches() -> Iterator[Launches]:
    """Inside, operations are counted in the phases that the caller enters."""
    launches = Launches()
    real = op.implementation

    def counted(*args) -> SimpleNamespace:
        run = real(*args)
        return SimpleNamespace(
            forward=partial(launches.run_as_one, "swep_ds::perturb", run.forward),
            backward=partial(launches.run_as_one, "swep_ds::perturb_backward", run.backward),
        )

    with mock.patch.object(op, "implementation", counted), launches:
        yield launches


def count_launches(engine, batch: Batch) -> dict[str, int]:
    """The `Launches.totals` of an update that is not logged, as the training loop makes it without CUDA graphs."""
    engine.train()
    engine.graphs = None  # a replay hides the operations
    sums = {}

    def update(number: int, phase: Callable) -> None:
        statistics = run_update(engine, iter([batch]), 1, MicroStep(number), phase)
        with phase("statistics"):
            observe(engine.module.method, statistics)
            add_up(sums, statistics)

    return _count(update)


def count_plain_launches(objective: Objective, batch: Batch, train: TrainSection) -> dict[str, int]:
    """The same of `plain_update`."""
    update = plain_update(objective, train)
    return _count(lambda number, phase: update(batch, number, phase))


def _count(update: Callable) -> dict[str, int]:
    for number in range(WARMUP):
        update(number, nullcontext)
    with watch_launches() as launches:
        update(WARMUP, launches.phase)
    return launches.totals()
