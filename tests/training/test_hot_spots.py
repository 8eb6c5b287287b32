"""The profile of an update: what a known one is made of, and a GPU's kernels without what else the profiler reports."""

import io
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch.autograd import DeviceType
from torch.profiler import record_function

from swep_ds import distributed
from swep_ds.training import hot_spots


def test_a_known_updates_operations_are_counted_and_timed():
    left, bias = torch.randn(40, 40), torch.randn(40)
    calls = []

    def update() -> None:
        calls.append(1)
        for _ in range(3):
            torch.mm(left, left)
        for _ in range(2):
            torch.addmm(bias, left, left)
        with record_function("around"), record_function("slow [x]"):
            time.sleep(0.02)

    began = time.perf_counter()
    rows = hot_spots.hot_spots(update, 4)
    took = time.perf_counter() - began
    found = {row["name"]: row for row in rows}
    assert len(calls) == 5  # one to warm up
    assert found["aten::mm"]["calls"] == 3
    assert found["aten::addmm"]["calls"] == 2
    assert rows[0]["name"] == "slow [x]"
    assert found["around"]["seconds"] < 0.01  # its own
    assert 0.02 <= rows[0]["seconds"] < sum(row["seconds"] for row in rows) < took / 4
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    console = Console(width=170, record=True, file=io.StringIO())
    console.print(hot_spots.table("mle", rows))
    text = console.export_text()
    assert "mle: operations" in text
    assert "slow [x]" in text


def test_operations_behind_the_first_are_one_row():
    functions = [torch.sin, torch.cos, torch.tan, torch.exp, torch.sqrt, torch.abs, torch.neg, torch.floor, torch.ceil]
    functions += [torch.round, torch.sigmoid, torch.tanh, torch.log2, torch.log1p, torch.expm1, torch.erf, torch.sinh]

    def update() -> None:
        for function in functions:
            function(torch.ones(2000))

    rows = hot_spots.hot_spots(update, 2)
    assert len(rows) == hot_spots.SHOWN + 1
    assert [row["seconds"] for row in rows[:-1]] == sorted((row["seconds"] for row in rows[:-1]), reverse=True)
    assert rows[-1]["name"].endswith(" others")
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_on_a_gpu_kernels_count_and_neither_launches_nor_annotations(monkeypatch):
    def event(key, kind, microseconds, annotation=False):
        return SimpleNamespace(
            key=key, device_type=kind, self_device_time_total=microseconds, count=4, is_user_annotation=annotation
        )

    events = [
        event("aten::mm", DeviceType.CPU, 600.0),  # what it launched
        event("gemm", DeviceType.CUDA, 600.0),
        event("Memcpy HtoD", DeviceType.CUDA, 200.0),
        event("Optimizer.step", DeviceType.CUDA, 800.0, annotation=True),
    ]

    def profiled(activities):
        assert torch.profiler.ProfilerActivity.CUDA in activities
        return nullcontext(SimpleNamespace(key_averages=lambda: events))

    monkeypatch.setattr(hot_spots, "profile", profiled)
    monkeypatch.setattr(distributed, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(distributed, "synchronize", lambda: None)
    rows = hot_spots.hot_spots(lambda: None, 2)
    assert rows == [
        {"name": "gemm", "seconds": pytest.approx(3e-4), "calls": 2, "share": 0.75},
        {"name": "Memcpy HtoD", "seconds": pytest.approx(1e-4), "calls": 2, "share": 0.25},
    ]
