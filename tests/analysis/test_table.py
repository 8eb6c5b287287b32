"""Tables of many runs: figures against NumPy and against tables worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swep_ds.analysis import table
from swep_ds.analysis.crossed import estimate, holm
from swep_ds.analysis.runs import Run, find_runs
from swep_ds.common.errors import InputError
from swep_ds.evaluation.results import Results, Scores
from swep_ds.pipeline.recipe import Recipe
from tests.support import fake_runs


def scores(**em_f1: tuple[float, float]) -> Scores:
    return {name: {"exact_match": em, "f1": f1, "total": 9} for name, (em, f1) in em_f1.items()}


RUNS = {
    "MLE": [scores(squad=(80, 90), wiki=(70, 80), bio=(40, 50)), scores(squad=(82, 90), wiki=(74, 81), bio=(41, 53))],
    "a|b": [scores(squad=(80.996, 88), wiki=(72, 84), bio=(42.5, 51))],
    "gone": [],
}


def block_of(runs_by_row: dict[str, list[Scores]]) -> table.Block:
    """The block of runs that have these scores."""
    recipe = Recipe.model_validate(fake_runs.RECIPE | {"data": {"train": "t", "eval": {}}})
    rows: dict[str, list[Run]] = {}
    for name, runs in runs_by_row.items():
        rows[name] = []
        for seed, of_run in enumerate(runs):
            results = Results.model_validate(fake_runs.results(recipe, of_run))
            rows[name].append(Run(Path("none"), name, seed, "m", recipe=recipe, results=results))
    return table.score_block("small & 5 %", {"share": "5 %"}, rows, None)


def test_a_table_worked_out_by_hand():
    result = block_of(RUNS)
    assert result["columns"] == ["squad", "wiki", "bio", "out-of-domain mean"]
    mle, other, gone = (row["scores"] for row in result["rows"])
    assert mle["squad"]["exact_match"] == {"mean": 81.0, "std": pytest.approx(2**0.5)}
    assert mle["squad"]["f1"] == {"mean": 90.0, "std": 0.0}
    # each run's own mean first: EM (70 + 40) / 2 = 55 and 57.5, F1 65 and 67
    mean = mle["out-of-domain mean"]
    assert mean["exact_match"] == {"mean": 56.25, "std": pytest.approx(2.5 / 2**0.5)}
    assert mean["f1"] == {"mean": 66.0, "std": pytest.approx(2**0.5)}
    assert other["bio"]["f1"] == {"mean": 51.0, "std": None}
    assert gone == {}


def test_differences_by_hand_over_models_and_missing_seeds(tmp_path):
    across = {"model": {"ELECTRA-small": {}, "Mine": {"model.name": "mine"}}}
    variants = {"mle": {}, "SWEP": {"method.name": "swep"}, "R-Drop": {"method.name": "r_drop"}}
    cells = fake_runs.sweep(tmp_path, {"squad": 10, "nyt": 20}, across=across, variants=variants, seeds=[0, 1, 2])
    for cell in cells:
        if (cell.variant, cell.labels["model"]) in (("mle", "Mine"), ("R-Drop", "ELECTRA-small")):
            continue
        right = {"mle": 4, "SWEP": 5 + cell.seed, "R-Drop": 4}[cell.variant]
        if (cell.variant, cell.seed) != ("mle", 2):
            fake_runs.finish(cell.folder, cell.recipe, {"squad": right, "nyt": right})
    result = table.make(find_runs([tmp_path / "runs"]))
    assert (result["against"], result["line"]) == ("mle", None)
    electra, mine = result["blocks"]
    assert [(block["title"], block["labels"]) for block in (electra, mine)] == [("ELECTRA-small", {}), ("Mine", {})]
    assert [row["seeds"] for row in electra["rows"]] == [[0, 1], [0, 1, 2], []]
    mle, swep, r_drop = electra["rows"]
    assert mle["differences"] == r_drop["differences"] == r_drop["scores"] == {}
    assert list(swep["differences"]) == ["squad", "nyt"]  # no mean over a single shifted set
    # 5, 6, 7 of 10 right against 4, 4: the seeds in common differ by 10 and 20 points, and two have no interval
    difference = swep["differences"]["squad"]["f1"]
    assert (difference["mean"], difference["std"]) == pytest.approx((15, 50**0.5))
    assert 0 <= difference.pop("bootstrap_low") < 15 < difference.pop("bootstrap_high") < 60
    absent = dict.fromkeys(("low", "high", "p", "holm", "no_difference"))
    assert difference == {"mean": 15, "std": difference["std"], "n": 2, "significant": False} | absent
    assert (
        "ELECTRA-small: SWEP is compared with mle over the 2 seeds that both have run; left out: 2." in result["notes"]
    )
    # the paper's beside, and what it lacks
    assert swep["scores"]["squad"]["f1"]["paper"] == 85.86
    assert swep["scores"]["nyt"]["exact_match"]["paper"] == 75.18
    assert mine["rows"][1]["scores"]["squad"]["f1"]["paper"] is None
    notes = "\n".join(result["notes"])
    assert "The paper's number, for models trained on SQuAD v1.1, is in round brackets" in notes
    assert "The paper has no numbers for Mine." in notes
    assert [row["differences"] for row in mine["rows"]] == [{}, {}, {}]  # the base has no run there
    assert len(result["missing"]) == 1 + 3 + 3
    against = table.make(find_runs([tmp_path / "runs"]), "r-drop")["blocks"][1]["rows"][1]["differences"]
    assert against["nyt"]["exact_match"]["mean"] == pytest.approx(10)
    with pytest.raises(InputError, match=r"--against Adv-Aug: no row\(s\) of that name; the rows are 'mle', 'SWEP'"):
        table.make(find_runs([tmp_path / "runs"]), "Adv-Aug")


def test_intervals_are_crossed_and_p_is_adjusted_for_the_number_of_differences(tmp_path):
    """Four seeds and 40 questions: "Better" always wins 8 more, "Same" answers as MLE does."""
    sizes = {"squad": 40, "nyt": 40}
    variants = {"MLE": {}, "Better": {"method.name": "swep"}, "Same": {"method.name": "neftune"}}
    fields = {"variants": variants, "seeds": [0, 1, 2, 3], "primary": ["Better", "Same", "f1", "nyt"]}
    for cell in fake_runs.sweep(tmp_path, sizes, **fields):
        right = 20 + cell.seed + (8 if cell.variant == "Better" else 0)
        fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(sizes, right))
    [block] = table.make(find_runs([tmp_path / "runs"]))["blocks"]
    _, better, same = block["rows"]
    won = np.zeros((4, 40))
    for seed in range(4):
        won[seed, 20 + seed : 28 + seed] = 100
    expected = estimate([(won, np.arange(40))])
    entries = [better["differences"][column][metric] for column in block["columns"] for metric in table.METRICS]
    for entry in entries:
        assert (entry["low"], entry["high"]) == pytest.approx(expected.interval())
        assert entry["p"] == pytest.approx(expected.p())
        assert not entry["no_difference"]
    equal = [same["differences"][column][metric] for column in block["columns"] for metric in table.METRICS]
    # 40 questions that are alike do not show that there is no difference
    assert all((entry["p"], entry["no_difference"], entry["significant"]) == (1, False, False) for entry in equal)
    tests = entries + equal
    assert [entry["holm"] for entry in tests] == pytest.approx(holm([entry["p"] for entry in tests]))
    assert all(entry["significant"] == (entry["holm"] < 0.05) for entry in entries)
    assert entries[0]["holm"] > entries[0]["p"]
    # the sweep's primary comparison is tested alone
    [primary] = block["primary"]
    assert [primary[key] for key in ("row", "base", "column", "metric", "n")] == ["Better", "Same", "nyt", "f1", 4]
    of_nyt = better["differences"]["nyt"]["f1"]
    assert (primary["mean"], primary["p"], primary["holm"]) == pytest.approx((of_nyt["mean"], of_nyt["p"], of_nyt["p"]))


def test_a_primary_comparison_with_the_base_row_is_not_adjusted_among_the_others(tmp_path):
    fields = {"variants": {"MLE": {}, "SWEP": {"method.name": "swep"}}, "seeds": [0, 1, 2]}
    primary = ["SWEP", "MLE", "exact_match", "shifted"]
    for cell in fake_runs.sweep(tmp_path, {"squad": 30, "nyt": 30}, primary=primary, **fields):
        fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(("squad", "nyt"), 9 if cell.variant == "MLE" else 14))
    for base, other in ((None, 1), ("SWEP", 0)):  # in the other direction, too
        [block] = table.make(find_runs([tmp_path / "runs"]), against=base)["blocks"]
        differences = block["rows"][other]["differences"]
        [entry] = block["primary"]
        assert entry["column"] == "nyt"  # the only shifted set
        assert differences["nyt"]["exact_match"]["holm"] == entry["holm"] == entry["p"]
        assert differences["squad"]["f1"]["holm"] == pytest.approx(min(1, 3 * differences["squad"]["f1"]["p"]))


def test_primary_comparisons_of_several_sweeps_are_adjusted_with_the_others(tmp_path):
    fields = {"variants": {"MLE": {}, "SWEP": {"method.name": "swep"}}, "seeds": [0, 1, 2]}
    primary = ("SWEP", "MLE", "f1", "nyt")
    for cell in fake_runs.sweep(tmp_path, {"squad": 30, "nyt": 30}, primary=list(primary), **fields):
        right = 9 if cell.variant == "MLE" else 14
        fake_runs.finish(cell.folder, cell.recipe, {"squad": right, "nyt": right + cell.seed})
    refs = find_runs([tmp_path / "runs"])
    refs[-1] = replace(refs[-1], primary=("SWEP", "MLE", "exact_match", "nyt"))  # as of another sweep
    [block] = table.make(refs)["blocks"]
    assert [entry["metric"] for entry in block["primary"]] == ["f1", "exact_match"]
    differences = block["rows"][1]["differences"]
    entries = [differences[column][metric] for column in ("squad", "nyt") for metric in table.METRICS]
    assert [entry["holm"] for entry in entries] == pytest.approx(holm([entry["p"] for entry in entries]))
    for entry in block["primary"]:
        assert entry["holm"] == differences["nyt"][entry["metric"]]["holm"] > entry["p"]


def test_a_primary_comparison_may_be_that_of_the_last_weights_of_runs_with_an_average(tmp_path):
    variants = {"MLE": {"train.average": "ema"}, "SWEP": {"train.average": "ema", "method.name": "swep"}}
    fields = {"variants": variants, "seeds": [0, 1, 2], "primary": ["SWEP, unaveraged", "MLE, unaveraged", "f1", "nyt"]}
    for cell in fake_runs.sweep(tmp_path, {"squad": 30, "nyt": 30}, **fields):
        fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(("squad", "nyt"), 9))
        right = dict.fromkeys(("squad", "nyt"), 9 if cell.variant == "MLE" else 12)
        fake_runs.finish(cell.folder / "unaveraged", cell.recipe.unaveraged(), right)
    [primary] = table.make(find_runs([tmp_path / "runs"]))["blocks"][0]["primary"]
    assert (primary["n"], primary["mean"]) == (3, pytest.approx(10))


def test_calibration_is_shown_where_all_runs_of_a_row_have_it():
    new = {"ece": 5.0, "aurc": 20.0, "coverage_at_80": 60.0}
    runs = [scores(a=(80, 90), b=(70, 80), c=(70, 80)), scores(a=(82, 90), b=(74, 81), c=(74, 81))]
    with_all = [{name: score | new for name, score in run.items()} for run in runs]
    rows = block_of({"old": [runs[0], with_all[1]], "new": with_all})["rows"]
    assert set(rows[0]["scores"]["a"]) == {"exact_match", "f1"}
    assert rows[1]["scores"]["out-of-domain mean"]["aurc"] == {"mean": 20.0, "std": 0.0}


def test_the_base_row_is_the_one_that_is_named():
    rows = ["beta 1e4", "beta 1e-4", "模型", "MLE", "m l e"]
    for against, row in (("beta 1e-4", "beta 1e-4"), ("Beta_1e4", "beta 1e4"), ("模型", "模型"), (None, "MLE")):
        assert table._base_row(rows, against) == row
    with pytest.raises(InputError, match="--against beta 1e-4: no row"):
        table._base_row(["beta 1e4", "MLE"], "beta 1e-4")
    with pytest.raises(InputError, match="no row"):
        table._base_row(rows, "数据")
    with pytest.raises(InputError, match="--against R_DROP: 2 row"):
        table._base_row(["R-Drop", "r drop"], "R_DROP")
    assert table._base_row(["SWEP"], None) is None


def test_the_papers_mean_is_of_the_same_data_sets_and_a_gap_is_named(tmp_path):
    def made(folder, *data_sets: str) -> table.Table:
        variants = {"MLE": {}, "R-Drop": {"method.name": "r_drop"}}
        folder.mkdir()
        for cell in fake_runs.sweep(folder, dict.fromkeys(data_sets, 10), variants=variants):
            fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(data_sets, 3))
        return table.make(find_runs([folder / "runs"]))

    result = made(tmp_path / "with", "squad", "nyt", "bioasq", "hotpot")
    mle, r_drop = result["blocks"][0]["rows"]
    papers = {column: cell["f1"]["paper"] for column, cell in mle["scores"].items()}
    assert papers == {"squad": 84.92, "nyt": 82.93, "bioasq": 54.32, "hotpot": None, "out-of-domain mean": None}
    assert {cell["f1"]["paper"] for cell in r_drop["scores"].values()} == {None}
    assert any("in round brackets; a dash: it has none." in note for note in result["notes"])
    result = made(tmp_path / "without", "squad", "nyt", "bioasq")
    mean = result["blocks"][0]["rows"][0]["scores"]["out-of-domain mean"]
    assert mean["f1"]["paper"] == pytest.approx((82.93 + 54.32) / 2)
    assert mean["exact_match"]["paper"] == pytest.approx((73.68 + 38.63) / 2)


def test_titles_and_rows_name_no_local_path(tmp_path):
    across = {"share": {"5 %": {}}}
    variants = {"MLE": {}, "Other": {"data.train": f"{tmp_path}/other.json"}}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        model = {"model.name": f"/models/{name}/minilm"}
        fields = {"set": model, "variants": variants, "across": across}
        for cell in fake_runs.sweep(tmp_path / name, {"squad": 10}, **fields):
            fake_runs.finish(cell.folder, cell.recipe, {"squad": 3})
    runs = [tmp_path / name / "runs" for name in ("a", "b")]
    blocks = table.make(find_runs(runs))["blocks"]
    assert [(block["title"], block["model"]) for block in blocks] == [
        ("a/minilm, share 5 %", "a/minilm"),
        ("b/minilm, share 5 %", "b/minilm"),
    ]
    (runs[0] / "sweep.json").unlink()
    [block] = table.make(find_runs(runs[:1]))["blocks"]
    assert [row["name"] for row in block["rows"]] == ["mle", "mle, train other.json"]
    assert block["title"] == "minilm"


def test_runs_on_a_part_of_the_questions_or_on_more_have_no_number_of_the_papers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake_runs.data_set(tmp_path, "other", 10)
    settings = [
        {"data.train_fraction": 0.1},
        {"data.max_train_examples": 9},
        {"data.max_eval_examples": 9},
        {"data.holdout_fraction": 0.5, "data.eval": {"squad": "other.json"}},
        {"data.augmented": "samples.json"},
        {"train.max_updates": 5},
        {"eval.select_on": "squad"},
        {"pretrain.train": "pairs.json"},
        {"train.average": "ema"},
    ]
    for number, setting in enumerate(settings):
        folder = tmp_path / str(number)
        folder.mkdir()
        [cell] = fake_runs.sweep(folder, {"squad": 10}, variants={"SWEP": {}}, across={"share": {"10 %": setting}})
        fake_runs.finish(cell.folder, cell.recipe, {"squad": 3})
        result = table.make(find_runs([folder / "runs"]))
        [row] = result["blocks"][0]["rows"]
        assert row["scores"]["squad"]["f1"]["paper"] is None, setting
        said = "its models trained on all of SQuAD v1.1 and on nothing else, averaged no weights, and"
        assert any(said in note for note in result["notes"])
    assert "No differences: there is no row MLE; --against names another one." in result["notes"]


def test_training_data_that_is_not_called_squad_is_named(tmp_path):
    variants = {"MLE": {}, "SSMBA": {"data.train": "data/nyt.json", "data.augmented": "s.json", "method.name": "ssmba"}}
    cells = fake_runs.sweep(tmp_path, {"squad": 10}, variants=variants)
    for cell in cells:
        fake_runs.finish(cell.folder, cell.recipe, {"squad": 3})
    result = table.make(find_runs([tmp_path / "runs"]))
    assert result["blocks"][0]["rows"][1]["scores"]["squad"]["f1"]["paper"] == 85.81
    assert (
        "These models were trained on data.train data/nyt.json, which is not known to be SQuAD v1.1." in result["notes"]
    )
    assert any('data.train is "squad.json" in MLE; "data/nyt.json" in SSMBA.' in note for note in result["notes"])
