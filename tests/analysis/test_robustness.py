"""Points above the line of in-domain F1: fitted, published, drawn."""

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from swep_ds.analysis import figures, table
from swep_ds.analysis.robustness import ABOVE, add_points, fitted, in_domain_f1, published
from swep_ds.analysis.runs import find_runs
from tests.support import fake_runs
from tests.support.bad_input import refused


def scores(**f1: float) -> dict:
    return {name: {"exact_match": 0.0, "f1": value, "total": 9} for name, value in f1.items()}


def test_the_line_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    x = rng.uniform(50, 90, 12)
    y = 1.2 * x - 20 + rng.normal(0, 1, 12)
    runs = [scores(squad=a, nyt=b, same=7.0) for a, b in zip(x, y, strict=True)]
    line, fault = fitted(runs, "MLE")
    design = np.stack([x, np.ones(12)], axis=1)
    expected = np.linalg.lstsq(design, y, rcond=None)[0]
    assert (line.shifted["nyt"].slope, line.shifted["nyt"].intercept) == pytest.approx(expected)
    assert (line.in_domain, line.fitted_over, fault) == ("squad", (min(x), max(x)), "")
    residuals = [add_points(run, line)["nyt"][ABOVE] for run in runs]
    assert residuals == pytest.approx(y - design @ expected)
    assert ABOVE not in add_points(runs[0], line)["squad"]


def test_why_runs_have_no_line_is_said():
    for low, high, number in ((50, 90, 7), (80, 89, 20)):
        runs = [scores(squad=x, nyt=x) for x in np.linspace(low, high, number)]
        fault = f"{number} run(s) of MLE, but a line takes 8, with F1 over 10 points in domain"
        assert fitted(runs, "MLE") == (None, fault)
    runs[0]["nyt"]["total"] += 1
    assert fitted(runs, "MLE") == (None, "runs of MLE were tested on different data")
    assert fitted([], "MLE") == fitted([scores(squad=1.0)] * 9, "MLE") == (None, "")


def test_the_published_line_is_found_by_any_name_of_a_data_set():
    line = published("squadshifts")
    run = scores(squad=90.0, wiki=80.0, New_York_Times=80.0, bioasq=50.0, **{"amazon_reviews_v1.0": 60.0})
    points = {name: score[ABOVE] for name, score in add_points(run, line).items() if ABOVE in score}
    assert points == pytest.approx(
        {"New_York_Times": 80 - (1.110 * 80 - 11.29), "amazon_reviews_v1.0": 60 - (1.436 * 80 - 51.73)}
    )
    assert in_domain_f1(line, [run, scores(new_wiki=50.0)]) == [80.0, 50.0]
    assert in_domain_f1(line, [scores(squad=90.0, amazon=60.0)]) == []
    assert add_points(scores(squad=90.0, amazon=60.0), line) == scores(squad=90.0, amazon=60.0)  # no New-Wikipedia
    # sets that are the same by another name keep their lines apart
    runs = [scores(squad=x, nyt=x - 10, new_york_times=20.0) for x in np.linspace(50, 70, 9)]
    line, _ = fitted(runs, "MLE")
    points = [add_points(run, line)[name][ABOVE] for run in runs for name in ("nyt", "new_york_times")]
    assert points == pytest.approx([0.0] * 18, abs=1e-9)
    assert line.of("New-York-Times") is None  # either could be meant


def test_a_bad_line_is_one_line(tmp_path):
    assert refused(published, "nope").startswith("--line nope: no such line; known are squadshifts")
    file = tmp_path / "line.yaml"
    file.write_text("source: s\nin_domain: squad\nfitted_over: [1, 2]\nshifted: {nyt: {slope: steep}}")
    assert re.search(r"line\.yaml: .*slope.*shifted\.nyt\.intercept is required", refused(published, str(file)))


def test_the_table_has_points_above_the_line_and_a_figure_of_it(tmp_path, monkeypatch):
    shares = {f"{share} %": {"data.train_fraction": share / 100} for share in (10, 40, 70, 100)}
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}}
    fields = {"variants": variants, "across": {"questions": shares}, "seeds": [0, 1]}
    for cell in fake_runs.sweep(tmp_path, {"squad": 20, "nyt": 20}, **fields):
        right = 4 + 4 * list(shares).index(cell.labels["questions"]) + cell.seed
        shifted = right // 2 + 2 * (cell.variant == "SWEP")
        fake_runs.finish(cell.folder, cell.recipe, {"squad": right, "nyt": shifted})
    result = table.make(find_runs([tmp_path / "runs"]))
    line = result.line
    assert line.source == "least squares over the 8 runs of MLE"
    above = result.cells[(result.cells["metric"] == ABOVE) & (result.cells["data_set"] == "nyt")]
    mle, swep = (above[above["method"] == name]["mean"].to_numpy() for name in variants)
    assert mle.mean() == pytest.approx(0, abs=1e-9)
    assert swep - mle == pytest.approx([10] * 4)  # 2 of 20 questions
    assert any(f"nyt: {line.shifted['nyt'].slope:.3f} x" in note for note in result.notes)
    [panel] = figures.plot_line(result.cells.dropna(subset="data_set"), line).axes
    *points, drawn = [drawn.get_xydata() for drawn in panel.lines]
    f1 = result.cells[result.cells["metric"] == "f1"]
    expected = [f1[f1["data_set"] == name]["mean"] for name in ("squad", "nyt")]
    assert np.concatenate(points) == pytest.approx(np.stack(expected, axis=1))
    assert drawn[:, 1] == pytest.approx(line.shifted["nyt"].predict(drawn[:, 0]))
    monkeypatch.setattr(figures, "plot_curve", lambda *_: Figure())
    assert {"robustness.png", "robustness.svg"} <= {file.name for file in figures.draw(result, tmp_path)}
    with_published = table.make(find_runs([tmp_path / "runs"]), line=published("squadshifts"))
    assert ABOVE not in set(with_published.cells["metric"])
    sets = "new_wiki and on one of nyt, reddit, amazon"
    assert with_published.notes[-1] == f"Points above the line: n/a (no run was tested both on {sets})."
    narrow = line.model_copy(update={"fitted_over": (30.0, 40.0)})
    *_, about, extrapolated = table.make(find_runs([tmp_path / "runs"]), line=narrow).notes
    assert about.endswith("(least squares over the 8 runs of MLE, with x from 30 to 40).")
    assert extrapolated == "The line is extrapolated: here x is from 20.00 to 85.00."
