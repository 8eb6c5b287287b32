"""Every format holds the same numbers, can be parsed, and treats names as text; figures have the table's points."""

import csv
import io
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from swep_ds.analysis import figures, formats, table
from swep_ds.analysis.runs import Run
from swep_ds.commands.table import table as command
from swep_ds.evaluation.calibration import CALIBRATION
from tests.analysis.test_table import RUNS, cells_of
from tests.support import fake_runs
from tests.support.bad_input import refused

NAMES = ["MLE", "a|b & <i>50 %</i>_[x]", "gone"]
KNOWN = {"difference": 1.0, "difference_std": 0.5, "difference_n": 3, "difference_low": -0.25, "difference_high": 2.0}
KNOWN |= {"difference_p": 0.04, "difference_holm": 0.08, "difference_significant": False}
KNOWN |= {"difference_bootstrap_low": 0.5, "difference_bootstrap_high": 1.5}
UNKNOWN = {"difference": 1.0, "difference_n": 1, "difference_significant": False}
CLEAR = {"difference": -3.0, "difference_holm": 0.0001, "difference_significant": True}


def example() -> table.Table:
    """A table whose differences are written by hand, without an interval in the last columns."""
    about = {"block": "small & 5 %", "model": "small & 5 %", "labels": {"share": "5 %"}}
    names = dict(zip(RUNS, NAMES, strict=True))
    cells = [about | cell | {"method": names[cell["method"]]} for cell in cells_of(RUNS)]
    cells[1]["paper"] = 89.5
    for cell in cells:
        cell["cpu_seconds"] = 1234.4 if cell["method"] == "MLE" else np.nan
    known = {"squad": KNOWN | {"difference_no_difference": False}}
    known["wiki"] = KNOWN | CLEAR | {"difference_no_difference": True}
    for cell in cells:
        if cell["method"] == NAMES[1] and cell["metric"] == "f1":
            cell |= {"against": "MLE"} | UNKNOWN | known.get(cell["data_set"], {})
    mle = about | {"method": "MLE", "runs": 2}
    for metric, number in zip(CALIBRATION, (5, 20, 60), strict=True):
        cells.append(mle | {"data_set": "squad", "metric": metric, "mean": number})
    cells.append(mle | {"data_set": "wiki", "metric": "above_line", "mean": 1.5, "std": 0.5})
    contrast = about | UNKNOWN | CLEAR | {"method": NAMES[1], "against": "gone", "data_set": "wiki", "metric": "f1"}
    missing = [Run(Path("gone"), "gone", 0, "m", reason="no_room")]
    primary = table.frame_of([contrast], table.CONTRAST)
    secondary = table.frame_of([contrast | {"metric": "exact_match"}], table.CONTRAST)
    return table.Table(table.frame_of(cells, table.CELL), primary, secondary, "MLE", None, missing, [], ["A note_."])


def test_markdown():
    name = r"a\|b & \<i>50 %\</i>\_\[x\]"
    heads = "data set | difference | 95 %: other seeds and questions | p (Holm) | no difference | SD over seeds | n "
    heads += "| 95 %: these models, other questions"
    assert formats.markdown(example()) == (
        "**small & 5 %**\n\n"
        "| EM / F1 | squad | wiki | bio | out-of-domain mean | runs | CPU s per run |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| MLE | 81.00 ± 1.41 (-) / 90.00 ± 0.00 (89.50) | 72.00 ± 2.83 (-) / 80.50 ± 0.71 (-) "
        "| 40.50 ± 0.71 (-) / 51.50 ± 2.12 (-) | 56.25 ± 1.77 (-) / 66.00 ± 1.41 (-) | 2 | 1,234 |\n"
        f"| {name} | 81.00 (-) / 88.00 (-) | 72.00 (-) / 84.00 (-) "
        "| 42.50 (-) / 51.00 (-) | 57.25 (-) / 67.50 (-) | 1 | - |\n"
        "| gone | - | - | - | - | 0 | - |\n\n"
        "| ECE / AURC / coverage | squad | runs |\n"
        "| --- | --- | --- |\n"
        "| MLE | 5.00 / 20.00 / 60.00 | 2 |\n"
        f"| {name} | - | 1 |\n"
        "| gone | - | 0 |\n\n"
        "| F1 above the line | wiki | runs |\n"
        "| --- | --- | --- |\n"
        "| MLE | +1.50 ± 0.50 | 2 |\n"
        f"| {name} | - | 1 |\n"
        "| gone | - | 0 |\n\n"
        f"| F1 less MLE | {heads} |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {name} | squad | +1.00 | \\[-0.25, +2.00\\] | 0.080 |  | 0.50 | 3 | \\[+0.50, +1.50\\] |\n"
        f"| {name} | wiki | -3.00\\* | \\[-0.25, +2.00\\] | \\< 0.001 | yes | 0.50 | 3 | \\[+0.50, +1.50\\] |\n"
        f"| {name} | bio | +1.00 | n/a | n/a | n/a | n/a | 1 | n/a |\n"
        f"| {name} | out-of-domain mean | +1.00 | n/a | n/a | n/a | n/a | 1 | n/a |\n\n"
        f"| primary comparison | {heads.replace('p (Holm)', 'p')} |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {name} less gone, F1 | wiki | -3.00\\* | n/a | \\< 0.001 | n/a | n/a | 1 | n/a |\n\n"
        f"| secondary comparison | {heads} |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {name} less gone, EM | wiki | -3.00\\* | n/a | \\< 0.001 | n/a | n/a | 1 | n/a |\n"
        "\n- A note\\_.\n\nMissing:\n\n- gone, seed 0: no\\_room (gone)\n"
    )


def test_csv_has_a_line_per_figure():
    lines = list(csv.DictReader(io.StringIO(formats.csv(example()))))
    assert len(lines) == 2 * 4 * 2 + 3 + 1
    assert {(line["model"], line["share"]) for line in lines} == {("small & 5 %", "5 %")}
    first = lines[1]
    shown = ("method", "data_set", "metric", "runs", "mean", "std", "paper", "against", "difference", "difference_low")
    assert [first[key] for key in shown] == ["MLE", "squad", "f1", "2", "90.0", "0.0", "89.5", "", "", ""]
    assert [float(line["mean"]) for line in lines if line["metric"] in CALIBRATION] == [5, 20, 60]
    [other] = [line for line in lines if (line["method"], line["data_set"], line["metric"]) == (NAMES[1], "wiki", "f1")]
    keys = [f"difference_{key}" for key in ("n", "low", "high", "p", "holm", "bootstrap_low", "bootstrap_high")]
    assert [float(other[key]) for key in ("difference", *keys)] == [-3, 3, -0.25, 2, 0.04, 0.0001, 0.5, 1.5]
    assert other["difference_no_difference"] == "True"
    # an axis may have the name of a column
    whole = example()
    whole.cells["labels"] = [{"data_set": "mine"}] * len(whole.cells)
    for line, plain in zip(csv.DictReader(io.StringIO(formats.csv(whole))), lines, strict=True):
        assert (line["axis_data_set"], line["data_set"]) == ("mine", plain["data_set"])


def test_latex_has_as_many_cells_in_each_line_as_columns():
    pages = formats.latex(example())
    assert [*pages] == ["notes.tex", "table-1-small-5.tex"]
    text = pages["table-1-small-5.tex"]
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) == 6
    for layout, body in tables:
        assert body.startswith("\\toprule")
        for line in body.splitlines():
            if line not in (r"\toprule", r"\midrule", r"\bottomrule"):
                assert len(re.findall(r"(?<!\\)&", line)) + 1 == len(layout), line
    scores, _, _, differences, *_ = tables
    assert scores[0] == "l" + 6 * "r"  # a column for both metrics
    assert r"\shortstack[r]{81.00 $\pm$ 1.41 (-)\\{}90.00 $\pm$ 0.00 (89.50)} &" in scores[1]
    assert text.count(r"\resizebox{\ifdim\width>\textwidth") == 6
    assert r"a\textbar{}b \& \textless{}i\textgreater{}50 \%\textless{}/i\textgreater{}\_[x] &" in scores[1]
    shown = r"& wiki & $-$3.00* & [$-$0.25, +2.00] & \textless{} 0.001 & yes & 0.50 & 3 & [+0.50, +1.50] \\"
    assert shown in differences[1]
    assert r"95 \%: other seeds and questions" in differences[1]
    said = ["A note\\_.", "missing: gone, seed 0: no\\_room (gone)"]
    assert pages["notes.tex"].splitlines() == [rf"{{\footnotesize\noindent {line}\par}}" for line in said]
    bracket = replace(example(), cells=example().cells.replace("MLE", "[x]"))
    assert "\n{}[x] &" in formats.latex(bracket)["table-1-small-5.tex"]  # no option of the line break before it
    labels = [rf"\label{{tab:1-small-5-{number}}}" for number in range(1, 7)]
    assert re.findall(r"\\label\{.*\}", text) == labels
    head, body = text.split("\n", 1)
    assert head == r"% \usepackage{booktabs,graphicx}"
    assert not re.search(r"(?<!\\)%(?!$)", body, re.MULTILINE)  # nothing in comments


def test_the_command_prints_writes_and_names_what_is_missing(tmp_path, monkeypatch, capsys):
    def table_of(*words) -> None:
        monkeypatch.setattr(sys, "argv", ["table", *map(str, words)])
        command()

    across = {"share": {"5 %": {"data.train_fraction": 0.05}, "100 %": {}}}
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}}
    cells = fake_runs.sweep(tmp_path, {"squad": 10, "nyt": 10}, variants=variants, across=across, seeds=[0, 1])
    for cell in cells[:-1]:
        fake_runs.finish(cell.folder, cell.recipe, {"squad": 3 + cell.seed, "nyt": 3})
    with pytest.raises(SystemExit, match="1"):
        table_of(tmp_path / "runs", "--output", tmp_path / "out")
    said = capsys.readouterr().out
    assert "35.00 ± 7.07" in said
    assert f"missing: SWEP, 100 %, seed 1: not run ({cells[-1].folder})" in said
    files = ["table.md", "table.csv", "table.json", "notes.tex"]
    files += [
        f"table-{number}-google-electra-small-discriminator-share-{share}.tex" for number, share in ((1, 5), (2, 100))
    ]
    files += [f"curve-share-{metric}.{suffix}" for metric in ("em", "f1") for suffix in ("png", "svg", "pdf")]
    assert {file.name for file in (tmp_path / "out").iterdir()} == set(files)
    assert f"in {tmp_path / 'out'}: {', '.join(files)}" in said
    fake_runs.finish(cells[-1].folder, cells[-1].recipe, {"squad": 4, "nyt": 3})
    table_of(tmp_path / "runs")
    whole = json.loads((tmp_path / "out" / "table.json").read_text())
    runs = {(cell["block"], cell["method"]): cell["runs"] for cell in whole["cells"]}
    assert list(runs.values()) == [2, 2, 2, 1]
    assert whole["cells"][0]["mean"] == 35.0
    assert whole["cells"][0]["difference"] is None
    (tmp_path / "file").write_text("")
    assert "is not a folder: name another one" in refused(table_of, tmp_path / "runs", "--output", tmp_path / "file")


def test_a_name_stays_text_in_its_cell(monkeypatch):
    odd = "=1 + 2\nb|c\x1b[31m[bold]`code"

    def named(frame):
        texts = frame.map(lambda value: f"{odd}{value}" if isinstance(value, str) else value)
        return texts.assign(metric=frame["metric"], labels=[{f"{odd}axis": f"{odd}label"}] * len(frame))

    plain = example()
    missing = [replace(run, variant=f"{odd}gone") for run in plain.missing]
    frames = {name: named(getattr(plain, name)) for name in ("cells", "primary", "secondary")}
    odd_table = replace(plain, **frames, against=f"{odd}MLE")
    odd_table = replace(odd_table, missing=missing, notes=[f"{odd}A note"])

    assert len(formats.markdown(odd_table).splitlines()) == len(formats.markdown(plain).splitlines())
    for odd_page, page in zip(formats.latex(odd_table).values(), formats.latex(plain).values(), strict=True):
        assert len(odd_page.splitlines()) == len(page.splitlines())
    bars = [line.replace("\\|", "").count("|") for line in formats.markdown(plain).splitlines()]
    assert [line.replace("\\|", "").count("|") for line in formats.markdown(odd_table).splitlines()] == bars
    lines = list(csv.reader(io.StringIO(formats.csv(odd_table))))
    for cell in [cell for line in lines for cell in line]:
        assert cell.isprintable()
        assert not re.match(r"\s*[=@＝]|[+-](?!\d+\.\d+$)", cell)
    numbers = list(csv.reader(io.StringIO(formats.csv(plain))))
    assert [line[5:9] for line in lines[1:]] == [line[5:9] for line in numbers[1:]]  # no number changed
    # the terminal has the same numbers
    shown = []
    for shown_table in (plain, odd_table):
        console = Console(width=200, record=True, file=io.StringIO())
        monkeypatch.setattr(formats, "Console", lambda console=console, **options: console)
        formats.show(shown_table)
        shown.append(console.export_text())
    assert all(text in shown[0] for text in ("<i>50 %</i>_[x]", "(89.50)", " -3.00* ", "seed 0: no_room"))
    assert all(line.isprintable() for line in shown[1].splitlines())


def block(model: str, labels: dict, f1: float | None, std: float | None = 1.0) -> list[dict]:
    about = {"block": f"{model}, {labels}", "model": model, "labels": labels}
    cells = [about | {"method": "SWEP", "runs": 0}]
    for data_set in ("squad", "nyt", "out-of-domain mean") if f1 is not None else ():
        cell = about | {"method": "MLE", "data_set": data_set, "runs": 2}
        cells += [cell | {"metric": metric, "mean": f1, "std": std} for metric in ("exact_match", "f1")]
    return cells


def frame(blocks: list[list[dict]]) -> pd.DataFrame:
    return table.frame_of([cell for cells in blocks for cell in cells], table.CELL).dropna(subset="data_set")


def plotted(blocks: list[list[dict]], axis: str) -> Figure:
    """The only curve over this axis."""
    [points] = figures._curves(frame(blocks), axis).values()
    return figures.plot_curve(axis, "A", points, "f1")


def test_a_curve_per_axis_of_numbers_and_model_and_a_forest_plot_of_each_other_block(tmp_path, monkeypatch):
    blocks = [block(model, {"share": share}, 3) for model in ("A", "B/c") for share in ("100 %", "10 %")]
    for name in ("plot_curve", "plot_forest"):
        monkeypatch.setattr(figures, name, lambda *_: Figure())  # a quarter of a second each
    blocks += [block("C", {"share": "10 %"}, 3), block("C", {"share": "20 %"}, None)]
    blocks += [block("A", {"kind": kind}, 3) for kind in ("模", "型", "0,5 %", "inf", "-inf", "", "1")]
    files = figures.draw(table.Table(frame(blocks), frame([]), frame([]), None, None, [], [], []), tmp_path)
    # the numbers are the blocks' places, as other scripts and marks leave no name
    ends = ("5-c-share-10", "6-a-kind-模", "7-a-kind-型", "8-a-kind-0-5", "9-a-kind-inf", "10-a-kind-inf", "11-a-kind")
    forests = [f"forest-{re.sub('-[模型]', '', end)}" for end in (*ends, "12-a-kind-1")]
    assert [file.name for file in files] == [
        f"{name}-{metric}.{suffix}"
        for name in ("curve-share-a", "curve-share-b-c", *forests)
        for metric in ("em", "f1")
        for suffix in ("png", "svg", "pdf")
    ]
    ElementTree.parse(files[1])


def test_points_bands_and_axes_are_the_tables():
    blocks = [
        block("A", {"share of questions": share}, f1, std)
        for share, f1, std in (("8e1%", 60, None), ("50 %", None, None), ("9 %", 40, 2))
    ]
    figure = plotted(blocks, "share of questions")
    panels = figure.axes
    assert [panel.get_title() for panel in panels] == ["squad", "nyt", "out-of-domain mean"]
    [line] = panels[0].lines  # SWEP has no run
    assert line.get_xydata().tolist() == [[9, 40], [80, 60]]
    [band] = panels[0].collections
    assert {(9, 38), (9, 42)} <= set(map(tuple, band.get_paths()[0].vertices))
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("share of questions (%)", "F1 (%)")
    assert panels[0].get_xscale() == "linear"
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["9", "8e1"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["MLE"]
    figure.draw_without_rendering()
    below = legend.get_window_extent().y1
    assert all(panel.get_window_extent().y0 > below for panel in panels)


def test_a_forest_plot_has_the_differences_and_intervals_or_else_scores_and_deviations():
    cells = example().cells
    drawn = cells[cells["metric"] == "f1"]
    with mpl.rc_context({"text.parse_math": False}):
        figure = figures.plot_forest("A", drawn.replace("wiki", "$w^$"), "F1", "MLE")
    [panel] = figure.axes
    points, zero = panel.lines
    assert points.get_xdata().tolist() == [1, -3, 1, 1]
    assert points.get_ydata().tolist() == [0, 1, 2, 3]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["squad", "$w^$", "bio", "out-of-domain mean"]
    assert zero.get_xdata() == [0, 0]
    for lines, ends in zip(panel.collections, ([-0.25, 2], [0.5, 1.5]), strict=True):
        assert [line[:, 0].tolist() for line in lines.get_segments()[:2]] == [ends, ends]
        assert [len(line) for line in lines.get_segments()[2:]] == [0, 0]  # no interval
    assert panel.get_xlabel().startswith("F1 less MLE (points), 95 % intervals\nthin: other seeds and questions\nthick")
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{NAMES[1]} (n = 3)"]
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    for text in (panel.title, panel.xaxis.label, *panel.get_yticklabels(), *legend.get_texts()):
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height
    # without a base
    [panel] = figures.plot_forest("A", drawn.assign(difference=np.nan), "F1", None).axes
    shown = [points.get_xdata().tolist() for points in panel.lines]
    assert shown == [pytest.approx([90, 80.5, 51.5, 66]), pytest.approx([88, 84, 51, 67.5])]
    deviations, _ = panel.collections
    assert deviations.get_segments()[1][:, 0].tolist() == pytest.approx([80.5 - 0.5**0.5, 80.5 + 0.5**0.5])
    assert panel.get_xlabel() == "F1 (%), ± one standard deviation over seeds"


def test_far_numbers_stand_on_a_logarithmic_axis_but_not_with_zero():
    for labels, scale in ((("1000", "20000"), "log"), (("0", "20000"), "linear")):
        [panel, *_] = plotted([block("A", {"pairs": label}, 5) for label in labels], "pairs").axes
        assert (panel.get_xscale(), panel.get_xlabel()) == (scale, "pairs")
