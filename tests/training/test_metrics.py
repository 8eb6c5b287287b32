"""Which ranks stand out, and statistics that survive a stop between two lines."""

import math

import pytest
import torch

from swep_ds import ranks
from swep_ds.common.errors import TrainingDiverged
from swep_ds.training.metrics import Health, Meter, Outliers, Stopwatch, check_finite, columns, first_not_finite


@pytest.fixture(autouse=True)
def _hosts(monkeypatch):
    monkeypatch.setattr("swep_ds.ranks.group._hosts", ["a", "a", "b", "b"])


def health(data: list[float], forward: list[float]) -> list[Health]:
    return [Health(1.0, *seconds, 500.123456, True) for seconds in zip(data, forward, strict=True)]


ALIKE = health([0.01] * 4, [0.4, 0.41, 0.39, 0.4])


def test_a_rank_that_is_slow_twice_in_a_row_is_named_once():
    outliers = Outliers(forward=True)
    slow = health([0.01] * 4, [0.4] * 3 + [0.7])
    news = ["rank 3 (b) is slow in its forward passes: 0.7 s an update, others 0.4 s"]
    assert [outliers.news(slow), outliers.news(slow), outliers.news(slow)] == [[], news, []]


def test_one_slow_line_or_a_small_share_or_waiting_for_others_is_nothing():
    outliers = Outliers(forward=True)
    for line in (ALIKE, health([0.01] * 4, [0.4, 0.4, 0.4, 0.9]), ALIKE, health([0.05, 0.01, 0.01, 0.01], [0.4] * 4)):
        assert outliers.news(line) == []
    at_zero_3 = Outliers(forward=False)
    for _ in range(3):
        assert at_zero_3.news(health([0.01] * 4, [0.4, 0.4, 0.4, 0.9])) == []
    waits = health([0.01, 0.6, 0.01, 0.01], [0.4] * 4)
    assert at_zero_3.news(waits) == []
    assert at_zero_3.news(waits) == ["rank 1 (a) waits for data: 0.6 s an update, others 0.01 s"]


def test_a_line_has_a_list_over_ranks_for_each_number_and_names_ranks_that_are_not_finite():
    line = columns([*ALIKE[:3], ALIKE[3]._replace(finite=False)])
    assert line == {
        "step_seconds": [1.0] * 4,
        "data_seconds": [0.01] * 4,
        "forward_seconds": [0.4, 0.41, 0.39, 0.4],
        "memory_mib": [500.1] * 4,
        "not_finite": [3],
    }


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


def test_a_loss_that_is_not_finite_names_the_ranks_it_began_on():
    check_finite(7, {"loss": 1.0}, ALIKE, None)
    with pytest.raises(TrainingDiverged, match=r"by update 7 \(loss nan, .* not finite on rank 2, host b\): lower"):
        check_finite(7, {"loss": math.nan}, [rank._replace(finite=k != 2) for k, rank in enumerate(ALIKE)], None)


def test_a_gradient_that_is_not_finite_names_its_update(monkeypatch):
    monkeypatch.setattr(ranks, "device", lambda: torch.device("cpu"))
    assert first_not_finite({}) is None
    assert first_not_finite({3: torch.tensor(2.0)}) is None
    gradient = first_not_finite({3: torch.tensor(2.0), 5: math.inf, 6: torch.tensor(math.nan)})
    assert gradient == 5
    with pytest.raises(TrainingDiverged, match=r"gradient norm 3\.0, the gradient not finite first in update 5\): "):
        check_finite(7, {"loss": 1.0, "grad_norm": 3.0}, ALIKE, gradient)


class Everyone(Meter):
    """A meter whose other ranks are given."""

    others: tuple = ()

    def _gather(self, more):
        names = sorted(self.sums)
        rows = [[float(self.sums[name]) for name in names] + list(more), *self.others]
        return {name: [row[k] for row in rows] for k, name in enumerate(names)}, [row[len(names) :] for row in rows]


def meter(monkeypatch, world: int, accumulation: int, state: dict) -> Everyone:
    monkeypatch.setattr(ranks, "world_size", lambda: world)
    monkeypatch.setattr(ranks, "rank", lambda: 0)
    monkeypatch.setattr(ranks, "device", lambda: torch.device("cpu"))
    return Everyone(accumulation, state)


OWN = [1.0, 0.1, 0.2, 300.0]


def test_a_meter_continues_from_the_state_of_another(monkeypatch):
    first = meter(monkeypatch, 2, 1, {})
    first.add([{"loss": torch.tensor(1.0), "mu": torch.tensor(5.0)}, {"loss": torch.tensor(2.0)}])
    first.others = ([7.0, 9.0, *OWN, 1.0],)
    means, everyone = first.read(OWN, True)
    assert means == {"loss": (3 + 7) / 2 / 2, "mu": (5 + 9) / 2}
    assert everyone == [Health(*OWN, True)] * 2
    state = first.state()
    assert state == {"accumulation": 1, "counts": {"loss": 2, "mu": 1}, "sums": {"loss": [3, 7], "mu": [5, 9]}}

    same = meter(monkeypatch, 2, 1, state)
    same.add([{"loss": torch.tensor(4.0)}])
    same.others = ([8.0, 9.0, *OWN, 1.0],)
    assert same.read(OWN, True)[0] == {"loss": (7 + 8) / 2 / 3, "mu": 7.0}

    alone = meter(monkeypatch, 1, 2, state)  # the same global batch: one rank, twice the micro-batches
    alone.add([{"loss": torch.tensor(value)} for value in (4.0, 1.0)])
    assert alone.read(OWN, True)[0] == {"loss": ((3 + 7) / 2 + (4 + 1) / 2) / 3, "mu": 7.0}


def test_an_empty_meter_has_no_state_and_a_rank_of_its_own_may_be_not_finite(monkeypatch):
    first = meter(monkeypatch, 2, 1, {})
    first.add([{"loss": torch.tensor(1.0)}])
    first.others = ([math.inf, *OWN, 1.0],)
    means, everyone = first.read(OWN, True)
    assert math.isinf(means["loss"])
    assert [rank.finite for rank in everyone] == [True, False]
    first.others = ([2.0, *OWN, 0.0],)  # its loss was finite before its weights ceased to be
    means, everyone = first.read(OWN, True)
    with pytest.raises(TrainingDiverged, match="not finite on rank 1, host a"):
        check_finite(7, means, everyone, None)
    first.empty()
    assert first.state() == {}
