"""Numbers that are not finite, and statistics that survive a stop between two lines."""

import math

import pytest
import torch

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.training.metrics import Meter, Stopwatch, check_finite, first_not_finite


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
    monkeypatch.setattr("swep_ds.training.metrics.get_accelerator", lambda: type("Cuda", (), {"Event": Event}))
    watch = Stopwatch()
    for update, passes in ((1, 5), (2, 2)):
        watch.next_update(update)
        for _ in range(passes):
            with watch.phase("forward"):
                pass
    assert watch.read()[2] == 2.0
    assert Event.waited == 1


def test_what_is_not_finite_names_its_ranks_and_its_update():
    check_finite(7, {"loss": 1.0}, [], None)
    with pytest.raises(TrainingDiverged, match=r"by update 7 \(loss nan, .* not finite on rank 2, host b\): lower"):
        check_finite(7, {"loss": math.nan}, [2], None)
    with pytest.raises(TrainingDiverged, match=r"gradient norm 3\.0, the gradient not finite first in update 5\): "):
        check_finite(7, {"loss": 1.0, "grad_norm": 3.0}, [], 5)
    assert first_not_finite({}) is None
    assert first_not_finite({3: torch.tensor(2.0)}) is None
    assert first_not_finite({3: torch.tensor(2.0), 5: math.inf, 6: torch.tensor(math.nan)}) == 5


class Everyone(Meter):
    """A meter whose other ranks are given."""

    others: tuple = ()

    def _gather(self, more):
        names = sorted(self.sums)
        rows = [[float(self.sums[name]) for name in names] + list(more), *self.others]
        return {name: [row[k] for row in rows] for k, name in enumerate(names)}, [row[len(names) :] for row in rows]


OWN = [1.0, 0.1, 0.2, 500.123456]


def losses(*values: float) -> list[dict[str, torch.Tensor]]:
    return [{"loss": torch.tensor(value)} for value in values]


def test_a_meter_continues_from_the_state_of_another(monkeypatch):
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    first = Everyone(1, {})
    assert first.state() == {}
    first.add([{"loss": torch.tensor(1.0), "mu": torch.tensor(5.0)}, *losses(2.0)])
    first.others = ([7.0, 9.0, *OWN, 1.0],)
    means, line = first.read(OWN, True)
    assert means == {"loss": (3 + 7) / 2 / 2, "mu": (5 + 9) / 2}
    numbers = {"step_seconds": [1.0] * 2, "data_seconds": [0.1] * 2, "forward_seconds": [0.2] * 2}
    assert line == numbers | {"memory_mib": [500.1] * 2, "not_finite": []}
    state = first.state()
    assert state == {"accumulation": 1, "counts": {"loss": 2, "mu": 1}, "sums": {"loss": [3, 7], "mu": [5, 9]}}

    same = Everyone(1, state)
    same.add(losses(4.0))
    same.others = ([8.0, 9.0, *OWN, 1.0],)
    assert same.read(OWN, True)[0] == {"loss": (7 + 8) / 2 / 3, "mu": 7.0}
    same.others = ([math.inf, 9.0, *OWN, 1.0],)
    assert same.read(OWN, True)[1]["not_finite"] == [1]
    same.others = ([8.0, 9.0, *OWN, 0.0],)  # its loss was finite before its weights ceased to be
    assert same.read(OWN, True)[1]["not_finite"] == [1]

    monkeypatch.setattr(ranks, "world_size", lambda: 1)
    single = Everyone(2, state)  # the same global batch: one rank, twice the micro-batches
    single.add(losses(4.0, 1.0))
    assert single.read(OWN, True)[0] == {"loss": ((3 + 7) / 2 + (4 + 1) / 2) / 3, "mu": 7.0}
