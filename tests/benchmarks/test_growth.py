"""The benchmark of growth: its figures, here of functions that are called in this process."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.growth import __main__ as growth
from benchmarks.growth import rows
from benchmarks.growth.measure import measure


def test_a_row_is_measured_at_two_sizes_beside_its_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["growth", "--rows", "batch_plan", "--json", str(tmp_path / "figures.json")])
    monkeypatch.setattr(import_module("benchmarks.growth.rows.batch_plan"), "SIZES", (300, 1200))
    monkeypatch.setattr(growth, "call", lambda *call: measure(*call[:3], Path(call[3])))
    growth.bench()
    assert "300 and 1,200 windows" in capsys.readouterr().out
    [row] = json.loads((tmp_path / "figures.json").read_text())["rows"].values()
    assert row["sizes"].keys() == {"300", "1200"}
    for at_size in row["sizes"].values():
        assert at_size.keys() == {"ours", "baseline"}
        assert all(figures.keys() == {"seconds", "mib"} for figures in at_size.values())


@pytest.mark.parametrize("name", growth.NAMES)
def test_a_row_says_what_grows_and_beside_what(name):
    row = import_module(f"{rows.__name__}.{name}")
    for small, large in (row.SIZES, row.LARGE):
        assert 0 < small < large
    assert all((row.UNIT, row.BASELINE, row.__doc__))
    assert all(map(callable, (row.prepare, row.ours, row.baseline)))
