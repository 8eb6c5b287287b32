"""Figures of a table: which there are, and that their points and bands are the table's."""

import xml.etree.ElementTree as ElementTree

import pandas as pd
from matplotlib.figure import Figure

from swep_ds.analysis import figures
from swep_ds.analysis.table import CELL, Table, frame_of


def block(model: str, labels: dict, f1: float | None, std: float | None = 1.0) -> list[dict]:
    about = {"block": f"{model}, {labels}", "model": model, "labels": labels}
    cells = [about | {"method": "SWEP", "runs": 0}]
    for data_set in ("squad", "nyt", "out-of-domain mean") if f1 is not None else ():
        cell = about | {"method": "MLE", "data_set": data_set, "runs": 2}
        cells += [cell | {"metric": metric, "mean": f1, "std": std} for metric in ("exact_match", "f1")]
    return cells


def frame(blocks: list[list[dict]]) -> pd.DataFrame:
    return frame_of([cell for cells in blocks for cell in cells], CELL).dropna(subset="data_set")


def plotted(blocks: list[list[dict]], axis: str) -> Figure:
    """The only curve over this axis."""
    [points] = figures._curves(frame(blocks), axis).values()
    return figures.plot_curve(axis, "A", points, "f1")


def test_a_curve_per_axis_of_numbers_and_model(tmp_path, monkeypatch):
    blocks = [block(model, {"share": share}, 3) for model in ("A", "B/c") for share in ("100 %", "10 %")]
    monkeypatch.setattr(figures, "plot_curve", lambda *_: Figure())  # a quarter of a second each
    blocks += [block("C", {"share": "10 %"}, 3), block("C", {"share": "20 %"}, None)]
    blocks += [block("A", {"kind": kind}, 3) for kind in ("x", "y", "0,5 %", "inf", "-inf", "", "1")]
    files = figures.draw(Table(frame(blocks), frame([]), None, None, [], []), tmp_path)
    assert [file.name for file in files] == [
        f"curve-share-{model}-{metric}.{suffix}"
        for model in ("a", "b-c")
        for metric in ("em", "f1")
        for suffix in ("png", "svg")
    ]
    ElementTree.parse(files[1])


def test_points_bands_and_axes_are_the_tables():
    blocks = [
        block("A", {"share of questions": share}, f1, std)
        for share, f1, std in (("10 %", 40, 2), ("50 %", None, None), ("8e1%", 60, None))
    ]
    figure = plotted(blocks, "share of questions")
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == ["squad", "nyt", "out-of-domain mean"]
    [line] = panels[0].lines  # of SWEP there is no run
    assert line.get_xydata().tolist() == [[10, 40], [80, 60]]
    [band] = panels[0].collections
    assert {(10, 38), (10, 42)} <= set(map(tuple, band.get_paths()[0].vertices))
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("share of questions (%)", "F1 (%)")
    assert panels[0].get_xscale() == "linear"
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["10", "8e1"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["MLE"]
    figure.draw_without_rendering()
    below = legend.get_window_extent().y1
    assert all(panel.get_window_extent().y0 > below for panel in panels)


def test_far_numbers_stand_on_a_logarithmic_axis_but_not_with_zero():
    for labels, scale in ((("1000", "20000"), "log"), (("0", "20000"), "linear")):
        [panel, *_] = plotted([block("A", {"pairs": label}, 5) for label in labels], "pairs").axes
        assert (panel.get_xscale(), panel.get_xlabel()) == (scale, "pairs")
