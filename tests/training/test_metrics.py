"""A line of metrics and one of health, and numbers that are not finite."""

import math
from types import SimpleNamespace

import pytest
import torch

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.instruments import Instruments
from swep_ds.training.metrics import NUMBERS, Stopwatch
from swep_ds.training.settings import TrainSection


@pytest.fixture(autouse=True)
def _four_ranks(monkeypatch):
    monkeypatch.setattr("swep_ds.ranks.group._hosts", ["a", "a", "b", "b"])
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    monkeypatch.setattr(ranks, "rank", lambda: 0)
    monkeypatch.setattr(ranks, "device", lambda: torch.device("cpu"))


class Event:
    """An event of a device whose clock ticks with every event; only `synchronize` waits for the device."""

    ticks, waited = 0, 0

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self) -> None:
        Event.ticks += 1
        self.at = Event.ticks

    def synchronize(self) -> None:
        Event.waited += 1

    def elapsed_time(self, later: "Event") -> float:  # ms
        assert Event.waited
        return 1000.0 * (later.at - self.at)


def test_on_a_gpu_the_logged_updates_passes_are_timed_by_events(monkeypatch):
    monkeypatch.setattr(ranks, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr("swep_ds.training.metrics.get_accelerator", lambda: SimpleNamespace(Event=Event))
    watch = Stopwatch()
    for update, passes in ((1, 5), (2, 2)):
        watch.next_update(update)
        for _ in range(passes):
            with watch.phase("forward"):
                pass
    assert watch.read()[2] == 2.0
    assert Event.waited == 1


@pytest.fixture
def instruments(monkeypatch):
    """Of rank 0; `gathered` are all ranks' numbers, and the others' differ from its own by `others`."""
    monkeypatch.setattr(ranks, "synchronize", lambda: None)
    method = SimpleNamespace(remark=lambda means, progress: None)
    engine = SimpleNamespace(learning_rate=0.5, grad_norm=None, module=SimpleNamespace(method=method))
    engine.read = lambda: {"grad_norm": 3.0, "noise_grad_norm": math.inf}
    engine.has_finite_weights = lambda: True
    tracker = SimpleNamespace(lines=[], health=[])
    tracker.log = lambda state, means, remark: tracker.lines.append(means)
    tracker.log_health = lambda update, line: tracker.health.append(line)
    made = Instruments(engine, SimpleNamespace(updates=9), TrainSection(), tracker, TrainState())
    made.engine, made.tracker, made.others = engine, tracker, [{}, {}, {}]
    monkeypatch.setattr(made.watch, "read", lambda: [1.0, 0.1, 0.2, 500.123456])

    def gather(everyone: torch.Tensor, mine: torch.Tensor) -> None:
        names = [*sorted(made._sums), *NUMBERS, "finite"]
        rows = [[rank.get(name, own) for name, own in zip(names, mine.tolist(), strict=True)] for rank in made.others]
        everyone.copy_(torch.tensor([mine.tolist(), *rows], dtype=mine.dtype).flatten())

    monkeypatch.setattr("torch.distributed.all_gather_into_tensor", gather)
    return made


def update(instruments, number: int, *losses: float, saves: bool = False, norm: float | None = None, **more) -> dict:
    """The line of an update with micro-batches of these losses."""
    instruments.begin(number)
    instruments.engine.grad_norm = norm
    first, *others = [{"loss": torch.tensor(loss)} for loss in losses]
    instruments.add([first | {name: torch.tensor(value) for name, value in more.items()}, *others])
    instruments.report(TrainState(number), saves, None)
    return instruments.tracker.lines[-1]


def test_a_line_has_the_means_over_ranks_and_updates_since_the_line_before(instruments):
    instruments.others[0] = {"loss": 6.0, "mu": 9.0, "data_seconds": 0.3}
    instruments.begin(1)
    instruments.add([{"loss": torch.tensor(1.0)}])
    line = update(instruments, 2, 2.0, mu=5.0)
    assert line == {"loss": (3 * 3 + 6) / 4 / 2, "mu": (3 * 5 + 9) / 4, "learning_rate": 0.5, "grad_norm": 3.0}
    health = {"step_seconds": [1.0] * 4, "data_seconds": [0.1, 0.3, 0.1, 0.1], "forward_seconds": [0.2] * 4}
    assert instruments.tracker.health == [health | {"memory_mib": [500.1] * 4, "not_finite": []}]
    instruments.others[0] = {}
    assert update(instruments, 3, 4.0, 2.0)["loss"] == 3.0


def test_what_is_not_finite_names_its_rank_and_its_update(instruments):
    instruments.others[1] = {"loss": math.nan}
    with pytest.raises(TrainingDiverged, match=r"by update 7 \(loss nan, .* not finite on rank 2, host b\): lower"):
        update(instruments, 7, 1.0)
    assert instruments.tracker.health[0]["not_finite"] == [2]
    instruments.others[1] = {"finite": 0.0}  # its loss was finite before its weights ceased to be
    with pytest.raises(TrainingDiverged, match="not finite on rank 2, host b"):
        update(instruments, 7, 1.0, saves=True)
    instruments.others[1] = {}
    with pytest.raises(TrainingDiverged, match=r"gradient norm 3\.0, the gradient not finite first in update 6\): "):
        update(instruments, 6, 1.0, norm=math.inf)
    assert instruments.tracker.lines == []
