"""The leaderboard of two sources: means, differences and costs against NumPy, and what it leaves out."""

import numpy as np
import pandas as pd
import pytest

from swep_ds.analysis import leaderboard
from swep_ds.analysis.runs import find_runs
from swep_ds.commands import table as table_command
from swep_ds.evaluation.results import Results
from swep_ds.pipeline.recipe import Recipe
from tests.support import fake_runs
from tests.support.bad_input import change_json, refused

SIZES = {"squad": 30, "nyt": 30, "bio": 20}
RIGHT = {  # of 30 and 20 shifted questions, by source, method and seed
    ("first", "MLE"): [(10, 8), (12, 9), (14, 8)],
    ("first", "SWEP"): [(15, 9), (15, 11), (18, 10)],
    ("second", "MLE"): [(20, 4)],
}
SECONDS = {"first": 10.0, "second": 7.0}
GPU = "1 x NVIDIA H200, 139 GiB each"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Two sweeps; SWEP's runs of the second one are not there."""
    folder = tmp_path_factory.mktemp("leaderboard")
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}}
    for source in ("first", "second"):
        (folder / source).mkdir()
        fields = {"set": {"data.train": f"data/{source}.json"}, "variants": variants, "seeds": [0, 1, 2]}
        for cell in fake_runs.sweep(folder / source, SIZES, **fields):
            of_row = RIGHT.get((source, cell.variant), [])
            if cell.seed < len(of_row):
                right = {"squad": 30} | dict(zip(("nyt", "bio"), of_row[cell.seed], strict=True))
                fake_runs.finish(cell.folder, cell.recipe, right, world_size=2, threads=3)
                change_json(cell.folder / "results.json", "train", seconds=SECONDS[source] + cell.seed, updates=50)
                if cell.name == "swep-seed2":
                    change_json(cell.folder / "results.json", provenance={"machine": GPU})
    return [folder / source / "runs" for source in ("first", "second")]


def test_means_differences_and_costs(found):
    board = leaderboard.make(find_runs(found))
    entries = board.entries.set_index(["source", "method"])
    assert board.against == "MLE"
    assert [*entries.index] == [("first", "SWEP"), ("first", "MLE"), ("second", "MLE")]  # the best of a source first
    f1 = {}
    for key, of_row in RIGHT.items():
        f1[key] = np.array([50 * (nyt / 30 + bio / 20) for nyt, bio in of_row])  # an answer is right or 0
        assert entries.loc[key, "mean"] == pytest.approx(f1[key].mean())
        assert entries.loc[key, "runs"] == len(of_row)
    difference = entries.loc[("first", "SWEP"), "difference"]
    assert difference == pytest.approx(np.mean(f1["first", "SWEP"] - f1["first", "MLE"]))
    assert entries.loc[("first", "SWEP"), "difference_low"] < difference
    assert pd.isna(entries.loc[("second", "MLE"), "difference"])
    # two ranks of three threads each
    assert entries.loc[("first", "MLE"), "core-seconds"] == pytest.approx(2 * 3 * 11)
    assert entries.loc[("second", "MLE"), "core-seconds"] == pytest.approx(2 * 3 * 7)
    assert entries["updates"].tolist() == [50, 50, 50]
    assert entries["GPU-seconds"].isna().all()
    assert pd.isna(entries.loc[("first", "SWEP"), "core-seconds"])  # one of its runs had a GPU
    assert f"Machines: not known; {GPU}." in board.notes


def test_costs_have_the_unit_of_what_computed_and_count_a_first_stage():
    recipe = Recipe.model_validate(fake_runs.RECIPE | {"data": {"train": "t", "eval": {}}})

    def cost(**run) -> dict[str, float]:
        whole = fake_runs.results(recipe, {}) | {"train": {"updates": 50, "seconds": 10.0}} | run
        return leaderboard._cost(Results.model_validate(whole))

    assert cost(world_size=2, threads=8, provenance={"machine": GPU}) == {"updates": 50, "GPU-seconds": 20}
    cpu = {"machine": "CPU x86_64, 8 cores, 9 GiB"}
    assert cost(world_size=2, threads=3, provenance=cpu) == {"updates": 50, "core-seconds": 60}
    assert cost(world_size=2, provenance=cpu) == {"updates": 50, "process-seconds": 20}
    first = {"data": "x", "updates": 7, "seconds": 1.5}
    assert cost(threads=2, pretraining=first) == {"updates": 57, "core-seconds": 23}


def test_the_command_prints_and_writes_it(found, tmp_path, monkeypatch, capsys):
    words = ["table", *map(str, found), "--leaderboard", "--output", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", words)
    table_command.table()
    printed = capsys.readouterr().out
    page = (tmp_path / "out" / "leaderboard.md").read_text()
    assert "| F1 on shifted text / less MLE | first | second |" in page
    assert "| MLE | 50 updates / 66 core-seconds / 3 runs | 50 updates / 42 core-seconds / 1 run |" in page
    assert "core-seconds" in printed
    assert len(pd.read_csv(tmp_path / "out" / "leaderboard.csv")) == 3
    monkeypatch.setattr("sys.argv", [*words, "--line", "squadshifts"])
    assert "--leaderboard has no --line" in refused(lambda *_: table_command.table())
