"""The profile of an update: the ranking of events with given times; in a real profile, the calls of each operation.

No test depends on how long anything takes.
"""

import io
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from swep_ds import ranks
from swep_ds.common.errors import InputError
from swep_ds.cost import profile
from swep_ds.cost.profile import SHOWN, rank_events


def event(key: str, kind: DeviceType, microseconds: float, count: int = 4, annotation: bool = False) -> SimpleNamespace:
    """An event as the profiler sums them up: on a GPU, `self_cpu_time_total` of a kernel is 0."""
    times = {"self_cpu_time_total": 0.0, "self_device_time_total": 0.0}
    times["self_device_time_total" if kind == DeviceType.CUDA else "self_cpu_time_total"] = microseconds
    return SimpleNamespace(key=key, device_type=kind, count=count, is_user_annotation=annotation, **times)


def operation(key: str, microseconds: float, count: int = 4, annotation: bool = False) -> SimpleNamespace:
    return event(key, DeviceType.CPU, microseconds, count, annotation)


def test_operations_are_ranked_by_their_time_per_update():
    events = [operation("aten::mm", 100.0, 6), operation("span", 600.0, 2, annotation=True), operation("add", 300.0, 8)]
    assert rank_events(events, 2, on_gpu=False) == [
        {"name": "span", "seconds": pytest.approx(3e-4), "calls": 1, "share": pytest.approx(0.6)},
        {"name": "add", "seconds": pytest.approx(1.5e-4), "calls": 4, "share": pytest.approx(0.3)},
        {"name": "aten::mm", "seconds": pytest.approx(0.5e-4), "calls": 3, "share": pytest.approx(0.1)},
    ]


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 50)), min_size=1, max_size=40))
def test_the_slowest_are_shown_and_all_others_are_one_row(recorded):
    events = [operation(f"o{number}", time, count) for number, (time, count) in enumerate(recorded)]
    rows = rank_events(events, 2, on_gpu=False)
    ordered = sorted((time for time, _ in recorded), reverse=True)
    assert len(rows) == min(len(recorded), SHOWN + 1)
    seconds = [pytest.approx(time / 2e6) for time in ordered]
    assert [row["seconds"] for row in rows[:SHOWN]] == seconds[:SHOWN]
    for row in rows[:SHOWN]:  # each row is one of the events, whole
        time, count = recorded[int(row["name"][1:])]
        assert (row["seconds"], row["calls"]) == (pytest.approx(time / 2e6), count / 2)
    assert sum(row["calls"] for row in rows) == pytest.approx(sum(count for _, count in recorded) / 2)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    if len(recorded) > SHOWN:
        assert rows[-1]["name"] == f"{len(recorded) - SHOWN} others"
        assert rows[-1]["seconds"] == pytest.approx(sum(ordered[SHOWN:]) / 2e6)


def test_on_a_gpu_kernels_count_and_neither_launches_nor_annotations():
    events = [
        operation("aten::mm", 900.0),  # what launched the kernel
        event("gemm", DeviceType.CUDA, 600.0),
        event("Memcpy HtoD", DeviceType.CUDA, 200.0),
        event("Optimizer.step", DeviceType.CUDA, 800.0, annotation=True),
    ]
    assert rank_events(events, 2, on_gpu=True) == [
        {"name": "gemm", "seconds": pytest.approx(3e-4), "calls": 2, "share": 0.75},
        {"name": "Memcpy HtoD", "seconds": pytest.approx(1e-4), "calls": 2, "share": 0.25},
    ]


def test_a_profiler_that_may_not_read_the_gpu_is_bad_input():
    with pytest.raises(InputError, match="recorded nothing: allow it to read this GPU's performance counters"):
        rank_events([operation("aten::mm", 900.0)], 2, on_gpu=True)


def test_a_real_updates_operations_are_counted():
    left, bias = torch.randn(4, 4), torch.randn(4)
    calls = []

    def update() -> None:
        calls.append(1)
        for _ in range(3):
            torch.mm(left, left)
        for _ in range(2):
            torch.addmm(bias, left, left)

    rows = profile.profile_updates(update, 4)
    assert len(calls) == 5  # one to warm up
    assert len(rows) <= SHOWN  # all of them, whatever each took
    counted = {row["name"]: row["calls"] for row in rows}
    assert counted["aten::mm"] == 3
    assert counted["aten::addmm"] == 2


def test_on_a_gpu_its_kernels_are_recorded_after_a_wait_for_the_device(monkeypatch):
    steps = []

    class Profiler:
        def __init__(self, activities):
            assert activities == [ProfilerActivity.CPU, ProfilerActivity.CUDA]

        def __enter__(self):
            steps.append("record")
            return self

        def __exit__(self, *_):
            steps.append("end")

        def key_averages(self):
            return [event("gemm", DeviceType.CUDA, 600.0)]

    monkeypatch.setattr(profile, "profile", Profiler)
    monkeypatch.setattr(ranks, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(ranks, "synchronize", lambda: steps.append("wait"))
    [row] = profile.profile_updates(lambda: steps.append("update"), 2)
    assert row["name"] == "gemm"
    assert steps == ["update", "wait", "record", "update", "update", "wait", "end"]


def test_the_table_shows_names_as_they_are():
    console = Console(width=170, record=True, file=io.StringIO())
    console.print(profile.table("mle", rank_events([operation("slow [x]", 2000.0)], 2, on_gpu=False)))
    text = " ".join(console.export_text().split())  # the title is broken over lines
    assert "mle: operations by their own time, 1.0 ms per update in total" in text
    assert "slow [x]" in text
