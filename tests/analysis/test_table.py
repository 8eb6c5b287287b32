"""Tables of many runs: figures against NumPy and against a table worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from swep_ds.analysis import table
from swep_ds.evaluation.results import Scores

percent = st.floats(0, 100)


def scores(**em_f1: tuple[float, float]) -> Scores:
    return {name: {"exact_match": em, "f1": f1, "total": 9} for name, (em, f1) in em_f1.items()}


RUNS = {
    "MLE": [scores(squad=(80, 90), wiki=(70, 80), bio=(40, 50)), scores(squad=(82, 90), wiki=(74, 81), bio=(41, 53))],
    "a|b": [scores(squad=(80.996, 88), wiki=(72, 84), bio=(42.5, 51))],
    "gone": [],
}


def test_a_table_worked_out_by_hand():
    made = table.aggregate(RUNS)
    assert made["columns"] == ["squad", "wiki", "bio", "out-of-domain mean"]
    mle, other, gone = made["rows"]
    assert (mle["runs"], other["runs"], gone["runs"]) == (2, 1, 0)
    assert mle["scores"]["squad"]["exact_match"] == {"mean": 81.0, "std": pytest.approx(2**0.5)}
    assert mle["scores"]["squad"]["f1"] == {"mean": 90.0, "std": 0.0}
    # each run's own mean first: EM (70 + 40) / 2 = 55 and 57.5, F1 65 and 67
    assert mle["scores"]["out-of-domain mean"]["exact_match"] == {"mean": 56.25, "std": pytest.approx(2.5 / 2**0.5)}
    assert mle["scores"]["out-of-domain mean"]["f1"] == {"mean": 66.0, "std": pytest.approx(2**0.5)}
    assert other["scores"]["bio"]["f1"] == {"mean": 51.0, "std": None}
    assert gone["scores"] == {}
    assert table.markdown(made) == (
        "| EM / F1 | squad | wiki | bio | out-of-domain mean | runs |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| MLE | **81.00 ± 1.41** / **90.00 ± 0.00** | **72.00 ± 2.83** / 80.50 ± 0.71 "
        "| 40.50 ± 0.71 / **51.50 ± 2.12** | 56.25 ± 1.77 / 66.00 ± 1.41 | 2 |\n"
        "| a\\|b | **81.00** / 88.00 | **72.00** / **84.00** | **42.50** / 51.00 | **57.25** / **67.50** | 1 |\n"
        "| gone | - | - | - | - | 0 |\n"
    )


@given(st.lists(st.lists(st.tuples(percent, percent), min_size=3, max_size=3), min_size=2, max_size=5))
def test_means_and_deviations_are_numpys(several):
    values = np.array(several)  # run, data set, metric
    [row] = table.aggregate({"row": [scores(a=one[0], b=one[1], c=one[2]) for one in several]})["rows"]
    expected = np.concatenate([values, values[:, 1:].mean(1, keepdims=True)], 1)
    for column, name in enumerate(["a", "b", "c", "out-of-domain mean"]):
        for metric, key in enumerate(["exact_match", "f1"]):
            found = row["scores"][name][key]
            assert found["mean"] == pytest.approx(expected[:, column, metric].mean())
            assert found["std"] == pytest.approx(expected[:, column, metric].std(ddof=1), abs=1e-9)


def test_a_single_row_is_not_called_the_best_and_a_single_data_set_has_no_mean_of_others():
    assert table.markdown(table.aggregate({"MLE": [scores(squad=(80, 90))], "gone": []})) == (
        "| EM / F1 | squad | runs |\n| --- | --- | --- |\n| MLE | 80.00 / 90.00 | 1 |\n| gone | - | 0 |\n"
    )


def test_no_run_at_all_still_makes_a_table():
    made = table.aggregate({"MLE": []})
    assert made == {"columns": [], "rows": [{"name": "MLE", "runs": 0, "scores": {}}]}
    assert "| MLE | 0 |" in table.markdown(made)


def test_the_terminal_shows_the_same_figures_and_takes_no_name_for_markup():
    console = Console(width=120, record=True, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table.for_terminal(table.aggregate({"[b]MLE[/b]": RUNS["MLE"], "two": RUNS["a|b"]})))
    shown = console.export_text(styles=True)
    assert "[b]MLE[/b]" in shown
    bold = [part.split("\x1b[0m")[0] for part in shown.split("\x1b[1m")[1:]]
    assert {"81.00 ± 1.41", "81.00", "42.50", "84.00", "67.50"} <= set(bold)
    assert not {"40.50 ± 0.71", "80.50 ± 0.71", "88.00"} & set(bold)


class Done:
    """What a table asks of a sweep's cell."""

    def __init__(self, variant: str, seed: int, results: dict | None):
        self.variant, self.seed, self.results, self.log = variant, seed, lambda: results, Path(f"{seed}.log")

    def conditions(self, results: dict) -> dict:
        return {"world_size": results["world_size"]}

    def fault(self) -> str:
        return "exit code 2: error: no room"


def test_a_sweeps_table_says_what_is_missing_and_why(tmp_path, capsys):
    runs = [{"eval": one, "world_size": 1} for one in RUNS["MLE"]]
    made = table.of_sweep([Done("B", 0, runs[0]), Done("A", 0, None), Done("B", 1, runs[1]), Done("A", 1, None)])
    assert [(row["name"], row["runs"]) for row in made["rows"]] == [("B", 2), ("A", 0)]
    assert [(one["name"], one["seed"], one["reason"], one["log"]) for one in made["missing"]] == [
        ("A", seed, "exit code 2: error: no room", f"{seed}.log") for seed in (0, 1)
    ]
    table.write(made, tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == made
    assert (
        (tmp_path / "table.md")
        .read_text()
        .endswith(
            "| A | - | - | - | - | 0 |\n\nMissing:\n\n- A, seed 0: exit code 2: error: no room\n"
            "- A, seed 1: exit code 2: error: no room\n"
        )
    )
    table.show(made)
    shown = capsys.readouterr().out
    assert "81.00 ± 1.41" in shown
    assert "missing: A, seed 1: exit code 2: error: no room (1.log)" in shown


def test_runs_under_other_conditions_are_not_mixed_in():
    one, two = ({"eval": RUNS["MLE"][0], "world_size": size} for size in (1, 2))
    made = table.of_sweep([Done("A", 0, two), Done("A", 1, one), Done("B", 0, one), Done("B", 1, None)])
    assert [(row["name"], row["runs"]) for row in made["rows"]] == [("A", 1), ("B", 1)]
    reasons = [(lack["name"], lack["seed"], lack["reason"]) for lack in made["missing"]]
    assert reasons == [
        ("A", 0, "trained otherwise than the others (world_size 2 there, 1 here)"),
        ("B", 1, "exit code 2: error: no room"),
    ]
