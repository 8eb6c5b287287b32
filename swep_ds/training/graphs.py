"""CUDA graphs of a micro-batch's passes: the GPU replays their forwards and backwards without waiting for the host.

A graph is captured for a shape of batches that has come a few times, and replayed for every later batch of the shape:

    copy the batch and the update's numbers (`Scalars`) into the graph's own tensors;  replay;  read the statistics

Gradients are left in the `FlatGradient`; what ranks send and the optimizer's step stay outside. Dropout is that of a
run without graphs: at a replay, PyTorch reads the generator's seed and offset anew.
"""

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from swep_ds import ranks
from swep_ds.common.errors import reason
from swep_ds.data.batches import Batch
from swep_ds.methods.base import MicroStep, Pass, Scalars
from swep_ds.methods.micro_steps import generator
from swep_ds.methods.objective import Objective

log = logging.getLogger(__name__)
PATIENCE = 3  # a shape is captured when it comes for this time: on an H200 a capture takes as long as five updates
MOST = 64  # graphs of a run; further shapes run without


Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]


@dataclass
class Graph:
    batch: Batch  # what the replay reads
    names: list[str]  # the statistics'
    statistics: Tensor  # [names] float64, what the replay writes
    replay: Callable[[], None]


def can_replay(objective: Objective) -> bool:
    """Whether what the host decides in a pass is the same in every update: a graph would freeze it."""
    config = objective.qa.model.config.to_dict()
    drops_layers = any(value for name, value in config.items() if name.endswith("layerdrop"))  # drawn on the host
    return vars(type(objective.method)).get("replayable", False) and not drops_layers


class Graphs:
    """The graphs of an `Engine` with a flat gradient. `record` runs a function and returns how to repeat it, and the
    tensor that holds its result after each repetition (`GraphRecorder`)."""

    def __init__(self, engine, record: Record, patience: int = PATIENCE):
        self._engine = engine
        self._record = record
        self._patience = patience
        self._graphs: dict[tuple, Graph] = {}
        self._seen: Counter[tuple] = Counter()
        self._refused: set[tuple[bool, bool]] = set()  # kinds of updates (measure, compare) that cannot be captured
        engine.flat.stays = True
        device = ranks.device()
        seed, draw = (torch.tensor(number, device=device) for number in (engine.module.seed, 0))
        passes = len(engine.module.method.passes(0.0))
        self._scalars = Scalars(seed, draw, torch.zeros(passes, dtype=torch.float64, device=device))

    def run(self, batch: Batch, step: MicroStep) -> dict[str, Tensor] | None:
        """What `Engine.run_passes` does and returns; None, and nothing done, where it has to do it without a graph."""
        passes = self._engine.module.method.passes(step.progress)
        key = self._key(batch, step, passes)
        self._seen[key] += 1
        if self._seen[key] == self._patience and len(self._graphs) < MOST and key[0] not in self._refused:
            self._capture(key, batch, step)
        graph = self._graphs.get(key)
        if graph is None:
            return None
        self._fill(step, passes)
        for mine, theirs in zip(graph.batch, batch, strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(theirs, non_blocking=True)
        graph.replay()
        self._engine.flat.begun = True
        values = graph.statistics.clone()  # the next replay writes there
        return dict(zip(graph.names, values.unbind(), strict=True))

    def _key(self, batch: Batch, step: MicroStep, passes: Sequence[Pass]) -> tuple:
        """All that decides which operations run, in which order and on which shapes. (Of `lengths`, only whether there
        is padding decides something.)"""
        kind = step.measure, step.compare
        shapes = tuple(field.shape if isinstance(field, Tensor) else None for field in batch)
        constant = tuple(replace(pass_, kl_weight=0.0) for pass_ in passes)
        return kind, shapes, batch.padding_mask is None, constant, self._engine.flat.begun

    def _fill(self, step: MicroStep, passes: Sequence[Pass]) -> None:
        perturbed = sum(pass_.perturb is not None for pass_ in passes)
        self._scalars.draw.fill_(step.update * perturbed)
        for weight, pass_ in zip(self._scalars.kl_weights, passes, strict=True):
            weight.fill_(pass_.kl_weight)

    def _capture(self, key: tuple, batch: Batch, step: MicroStep) -> None:
        """If it cannot be captured, a line says why, and no other update of its kind is tried."""
        began = time.perf_counter()
        engine = self._engine
        batch = batch.map(Tensor.clone)
        step = replace(step, scalars=self._scalars)
        names: list[str] = []
        random = generator(batch.input_ids.device)
        state = random.get_rng_state()
        begun = engine.flat.begun
        before = [group.whole.clone() for group in engine.flat.groups if begun]

        def body() -> Tensor:
            engine.flat.begun = begun
            statistics = engine.run_passes(batch, step)
            names[:] = statistics
            return torch.stack([value.double() for value in statistics.values()])

        shape = f"{batch.input_ids.shape[0]} windows of {batch.input_ids.shape[1]} tokens"
        try:
            replay, statistics = self._record(body)
        except RuntimeError as error:
            self._refused.add(key[0])
            why = _why(error)
            log.warning(f"train.cuda_graphs: {shape} cannot be captured ({why}): they and new shapes train without")
        else:
            self._graphs[key] = Graph(batch, names, statistics, replay)
            seconds = time.perf_counter() - began
            held = get_accelerator().memory_reserved() / 2**20
            log.info(f"CUDA graph {len(self._graphs)}: {shape}, {seconds:.1f} s; {held:,.0f} MiB are reserved")
        # as if nothing had run
        engine.module.zero_grad()
        random.set_rng_state(state)
        engine.flat.begun = begun
        for group, whole in zip(engine.flat.groups, before, strict=False):
            group.whole.copy_(whole)


def _why(error: RuntimeError) -> str:
    """The reason, and the operation that cannot be captured. (No variable of a caller may keep the failed passes.)"""
    cause = error.__context__ or error  # the end of a capture that failed raises, too
    at = traceback.extract_tb(cause.__traceback__)[-1]
    return f"{reason(cause)}; {at.name}, line {at.lineno} of {at.filename}"


class GraphRecorder:
    """Records functions as CUDA graphs, which share their memory, so they must run one after the other."""

    def __init__(self):
        self._begin()

    def _begin(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, body: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        activations = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        if free < 2 * activations:  # the graphs' memory may grow by one update's, and another one runs without graphs
            raise RuntimeError(f"{free / 2**20:,.0f} MiB are free, and {2 * activations / 2**20:,.0f} are needed")
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            body()  # compiles and plans kernels, which a capture cannot
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads pin memory for coming batches meanwhile
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                result = body()
        except BaseException:
            # PyTorch 2.11 to 2.13 leave the generator, the stream and the memory pool as in a capture
            device = self._stream.device
            fresh = torch.Generator(device).graphsafe_get_state()
            torch.cuda.default_generators[device.index].graphsafe_set_state(fresh)
            self._begin()
            raise
        return graph.replay, result
