"""Tables of many runs: figures against NumPy and against tables worked out by hand; the paper's numbers in them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from swep_ds.analysis import table
from swep_ds.analysis.crossed import holm
from swep_ds.analysis.paper import paper_score, paper_scores, plain, was_trained_on
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


def cells_of(runs_by_row: dict[str, list[Scores]]) -> list[dict]:
    """The cells of runs that have these scores."""
    recipe = Recipe.model_validate(fake_runs.RECIPE | {"data": {"train": "t", "eval": {}}})
    rows: dict[str, list[Run]] = {name: [] for name in runs_by_row}
    for name, runs in runs_by_row.items():
        for seed, of_run in enumerate(runs):
            results = Results.model_validate(fake_runs.results(recipe, of_run))
            rows[name].append(Run(Path("none"), name, seed, "m", recipe=recipe, results=results))
    return table.score_cells(rows, None)


def lines(cells: pd.DataFrame, metric: str = "f1", **values: str) -> pd.DataFrame:
    """Those with this metric and these values, by data set."""
    for name, value in values.items():
        cells = cells[cells[name] == value]
    return cells[cells["metric"] == metric].set_index("data_set")


def test_a_table_worked_out_by_hand():
    cells = pd.DataFrame(cells_of(RUNS)).set_index(["method", "data_set", "metric"])[["mean", "std"]]
    assert list(cells.index.unique("data_set"))[:4] == ["squad", "wiki", "bio", "out-of-domain mean"]
    assert cells.loc["MLE", "squad", "exact_match"].tolist() == [81.0, pytest.approx(2**0.5)]
    assert cells.loc["MLE", "squad", "f1"].tolist() == [90.0, 0.0]
    # each run's own mean first: EM (70 + 40) / 2 = 55 and 57.5, F1 65 and 67
    mean = ("MLE", "out-of-domain mean")
    assert cells.loc[(*mean, "exact_match")].tolist() == [56.25, pytest.approx(2.5 / 2**0.5)]
    assert cells.loc[(*mean, "f1")].tolist() == [66.0, pytest.approx(2**0.5)]
    assert cells.loc["a|b", "bio", "f1"].tolist() == [51.0, pytest.approx(np.nan, nan_ok=True)]
    assert cells_of(RUNS)[-1] == {"method": "gone", "runs": 0}


def test_differences_by_hand_over_models_and_missing_seeds(tmp_path):
    across = {"model": {"ELECTRA-small": {}, "Mine": {"model.name": "mine"}}}
    variants = {"mle": {}, "SWEP": {"method.name": "swep"}, "R-Drop": {"method.name": "r_drop"}}
    fields = {"across": across, "variants": variants, "seeds": [0, 1, 2]}
    for cell in fake_runs.sweep(tmp_path, {"squad": 10, "nyt": 20}, **fields):
        right = 5 + cell.seed if cell.variant == "SWEP" else 4
        absent = (cell.variant, cell.labels["model"]) in (("mle", "Mine"), ("R-Drop", "ELECTRA-small"))
        if not absent and (cell.variant, cell.seed) != ("mle", 2):
            fake_runs.finish(cell.folder, cell.recipe, {"squad": right, "nyt": right})
        if cell.variant == "SWEP":
            late = {"kl_per_window": 1000.0 * (cell.seed + 1)} | ({"sigma_spread": 0.018} if cell.seed else {})
            metrics = [
                {"update": 90, "kl_per_window": 1e6, "sigma_spread": 1.0},
                {"update": 99} | late,
                {"update": 100},
            ]
            (cell.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    result = table.make(find_runs([tmp_path / "runs"]))
    assert (result.against, result.line) == ("mle", None)
    dose = (
        "the learned noise over the last tenth of the updates: SWEP 2,000 nats per window (sigma varies by +- 1.8 %)."
    )
    assert f"Mine: {dose}" in result.notes
    runs = result.cells.groupby(["block", "method"], sort=False)["runs"].first()
    assert runs["ELECTRA-small"].to_dict() == {"mle": 2, "SWEP": 3, "R-Drop": 0}
    assert list(result.cells["labels"]) == [{}] * len(result.cells)  # a model is the block's title
    swep = lines(result.cells, block="ELECTRA-small", method="SWEP")
    assert list(swep.index) == ["squad", "nyt"]  # no mean over a single shifted set
    assert set(result.cells[result.cells["difference"].notna()]["method"]) == {"SWEP"}  # elsewhere the base has no run
    # 5, 6, 7 of 10 right against 4, 4: the seeds in common differ by 10 and 20 points, and two have no interval
    difference = swep.loc["squad"]
    assert (difference["difference"], difference["difference_std"]) == pytest.approx((15, 50**0.5))
    assert 0 <= difference["difference_bootstrap_low"] < 15 < difference["difference_bootstrap_high"] < 60
    assert (difference["difference_n"], difference["difference_significant"]) == (2, False)
    assert difference[["difference_low", "difference_high", "difference_p", "difference_holm"]].isna().all()
    assert "ELECTRA-small: SWEP is compared with mle over the 2 seeds that both have run; left out: 2." in result.notes
    # the paper's beside, and what it lacks
    assert lines(result.cells, "exact_match", block="ELECTRA-small", method="SWEP")["paper"]["nyt"] == 75.18
    assert lines(result.cells, block="Mine")["paper"].isna().all()
    assert "The paper has no numbers for Mine." in result.notes
    assert len(result.missing) == 1 + 3 + 3
    against = table.make(find_runs([tmp_path / "runs"]), "r-drop").cells
    assert lines(against, "exact_match", block="Mine", method="SWEP")["difference"]["nyt"] == pytest.approx(10)
    with pytest.raises(InputError, match=r"--against Adv-Aug: no row of that name; the rows are 'mle', 'SWEP'"):
        table.make(find_runs([tmp_path / "runs"]), "Adv-Aug")


def test_p_is_adjusted_for_the_number_of_differences_but_not_that_of_a_primary_comparison(tmp_path):
    variants = {"MLE": {"train.average": "ema"}, "SWEP": {"train.average": "ema", "method.name": "swep"}}
    fields = {"variants": variants, "seeds": [0, 1, 2], "primary": ["SWEP", "MLE", "exact_match", "shifted"]}
    for cell in fake_runs.sweep(tmp_path, {"squad": 40, "nyt": 40}, **fields):
        right, last = (9, 9) if cell.variant == "MLE" else (19, 20)
        fake_runs.finish(cell.folder, cell.recipe, {"squad": right, "nyt": right + cell.seed})
        fake_runs.finish(cell.folder / "unaveraged", cell.recipe.unaveraged(), {"squad": right, "nyt": last})
    refs = find_runs([tmp_path / "runs"])

    def made(refs: list[Run], base: str | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
        result = table.make(refs, against=base)
        tests = result.cells[result.cells["difference"].notna()]
        assert (tests["difference_significant"] == (tests["difference_holm"] < 0.05)).all()
        assert not tests["difference_no_difference"].any()  # which 40 questions do not show, even if all are alike
        return tests, result.primary

    for base, other in ((None, "SWEP"), ("SWEP", "MLE")):  # in the other direction, too
        tests, primary = made(refs, base)
        [entry] = primary.to_dict("records")
        assert entry["data_set"] == "nyt"  # the only shifted set
        nyt = lines(tests, "exact_match", method=other).loc["nyt"]
        assert nyt["difference_holm"] == entry["difference_holm"] == entry["difference_p"]
        assert set(tests["difference_significant"]) == {True, False}
        others = tests[(tests["method"] != other) | (tests["data_set"] != "nyt") | (tests["metric"] != "exact_match")]
        assert others["difference_holm"].tolist() == pytest.approx(holm(others["difference_p"].tolist()))
    # one of two other rows, here of last weights, is tested alone; those of several sweeps are adjusted with the others
    last_weights = [replace(run, primary=("SWEP, unaveraged", "MLE, unaveraged", "f1", "nyt")) for run in refs]
    tests, primary = made(last_weights)
    assert primary[["method", "against", "metric", "data_set"]].to_numpy().tolist() == [[*last_weights[0].primary]]
    assert primary.loc[0, ["difference_n", "difference"]].tolist() == [
        3,
        pytest.approx(27.5),
    ]  # 20 and 9 of 40 are right
    assert primary["difference_holm"][0] == primary["difference_p"][0]
    assert tests["difference_holm"].tolist() == pytest.approx(holm(tests["difference_p"].tolist()))
    tests, primary = made([*refs[:-1], last_weights[-1]])
    assert primary["metric"].tolist() == ["exact_match", "f1"]
    all_p = [*tests["difference_p"], primary["difference_p"][1]]
    assert [*tests["difference_holm"], primary["difference_holm"][1]] == pytest.approx(holm(all_p))
    assert (primary["difference_holm"] > primary["difference_p"]).all()
    # secondary comparisons are adjusted together, and the others without them
    family = (("SWEP", "MLE", "f1", "nyt"), ("SWEP, unaveraged", "MLE", "f1", "nyt"))
    result = table.make([replace(run, secondary=family) for run in refs])
    assert result.secondary[["method", "against", "metric", "data_set"]].to_numpy().tolist() == [*map(list, family)]
    assert result.secondary["difference_holm"].tolist() == holm(result.secondary["difference_p"].tolist())
    tests = result.cells[result.cells["difference"].notna()]
    place = tests[["method", "metric", "data_set"]].apply(tuple, axis=1)
    registered = place.isin([("SWEP", metric, "nyt") for metric in ("exact_match", "f1")])
    registered |= place == ("SWEP, unaveraged", "f1", "nyt")
    assert registered.sum() == 3
    others = tests[~registered]
    assert others["difference_holm"].tolist() == pytest.approx(holm(others["difference_p"].tolist()))


def test_calibration_is_shown_where_all_runs_of_a_row_have_it():
    new = {"ece": 5.0, "aurc": 20.0, "coverage_at_80": 60.0}
    with_all = [{name: score | new for name, score in run.items()} for run in RUNS["MLE"]]
    mixed = {"old": [RUNS["MLE"][0], with_all[1]], "older": [with_all[0], RUNS["MLE"][1]]}
    cells = pd.DataFrame(cells_of(mixed | {"new": with_all}))
    assert set(cells[cells["method"].isin(mixed)]["metric"]) == {"exact_match", "f1"}
    assert lines(cells, "aurc", method="new").loc["out-of-domain mean", ["mean", "std"]].tolist() == [20.0, 0.0]


def test_the_base_row_is_the_one_that_is_named():
    rows = ["Beta 1e4", "beta 1e-4", "mle", "MLE"]
    for against, row in (("beta 1e-4", "beta 1e-4"), ("beta 1E4", "Beta 1e4"), ("mle", "mle"), (None, "MLE")):
        assert table.base_row(rows, against) == row
    assert table.base_row(["mle"], None) == "mle"
    assert table.base_row(["SWEP"], None) is None


def test_the_papers_mean_is_of_the_same_data_sets_and_a_gap_is_named(tmp_path):
    known = {"squad": 84.92, "nyt": 82.93, "bioasq": 54.32}
    mean = {"out-of-domain mean": pytest.approx((82.93 + 54.32) / 2)}
    for sets, expected in (([*known], known | mean), ([*known, "hotpot"], known)):
        folder = tmp_path / f"{len(sets)}"
        folder.mkdir()
        variants = {"MLE": {}, "R-Drop": {"method.name": "r_drop"}}
        fake_runs.sweep(folder, dict.fromkeys(sets, 10), 3, variants=variants)
        result = table.make(find_runs([folder / "runs"]))
        papers = lines(result.cells, method="MLE")["paper"]
        assert list(papers.index) == [*sets, "out-of-domain mean"]
        assert papers.dropna().to_dict() == expected
        assert lines(result.cells, method="R-Drop")["paper"].isna().all()
        assert any("in round brackets; a dash: it has none." in note for note in result.notes)


def test_titles_and_rows_name_no_local_path(tmp_path):
    variants = {"MLE": {}, "Other": {"data.train": f"{tmp_path}/other.json"}}
    runs = [tmp_path / name / "runs" for name in ("a", "b")]
    for folder in runs:
        folder.parent.mkdir()
        fields = {"set": {"model.name": f"/models/{folder.parent.name}/minilm"}, "across": {"share": {"5 %": {}}}}
        fake_runs.sweep(folder.parent, {"squad": 10}, 3, variants=variants, **fields)
    cells = table.make(find_runs(runs)).cells
    assert cells["block"].unique().tolist() == ["a/minilm, share 5 %", "b/minilm, share 5 %"]
    assert cells["model"].unique().tolist() == ["a/minilm", "b/minilm"]
    (runs[0] / "sweep.json").unlink()
    cells = table.make(find_runs(runs[:1])).cells
    assert cells["method"].unique().tolist() == ["mle", "mle, train other.json"]
    assert cells["block"].unique().tolist() == ["minilm"]


def test_runs_on_a_part_of_the_questions_or_on_more_have_no_number_of_the_papers(tmp_path):
    fake_runs.sweep(tmp_path, {"squad": 10}, variants={"SWEP": {}})

    def as_in_paper(*settings: str) -> bool:
        recipe = Recipe.load(str(tmp_path / "recipe.yaml"), settings)
        return table._as_in_paper(Run(tmp_path, "SWEP", 0, "m", recipe=recipe))

    assert as_in_paper()
    assert as_in_paper("method.name=ssmba", "data.augmented=samples.json")
    more = ["data.train_fraction=0.1", "data.max_train_examples=9", "data.max_eval_examples=9", "data.train=nyt.json"]
    more += ["data.augmented=some.json", "train.max_updates=5", "train.average=ema", "eval.select_on=squad"]
    for setting in (*more, "train.label_smoothing=0.1", "pretrain={train: pairs.json}"):
        assert not as_in_paper(setting), setting
    assert not as_in_paper("data.holdout_fraction=0.5", "data.eval={nyt: nyt.json}")
    fake_runs.sweep(tmp_path, {"squad": 10}, 3, variants={"SWEP": {"data.train_fraction": 0.1}})
    result = table.make(find_runs([tmp_path / "runs"]))
    assert result.cells["paper"].isna().all()
    assert any("its models trained on all of SQuAD v1.1 and on nothing else, averaged no" in n for n in result.notes)
    assert "No differences to a base row: there is no row MLE; --against names another one." in result.notes


def test_numbers_are_the_papers():
    # typed by hand from the paper's tables
    spots = (
        ("google-bert/bert-base-uncased", "MLE", "squad", (81.32, 88.62)),
        ("BERT-base", "SWEP", "amazon", (62.42, 76.84)),
        ("/models/bert-base-uncased", "adv_aug", "new_wiki", (77.29, 88.38)),
        ("google/electra-small-discriminator", "swep", "NYT", (75.18, 84.18)),
        ("ELECTRA-small", "SWEP", "amazon_reviews", (60.89, 74.06)),  # the main table's, not the ablations'
        ("ELECTRA-small", "SWEP, additive", "nyt", (73.87, 83.1)),
        ("ELECTRA-small", "without KL", "Amazon", (59.10, 72.74)),
        ("ELECTRA-small", "SWEP, no L_MLE", "bioasq", (37.89, 53.80)),
        ("google-t5/t5-small", "Gaussian-Dropout", "wiki", (72.56, 83.69)),
    )
    for model, method, data_set, both in spots:
        assert paper_score(paper_scores(model), method, data_set) == [*both]
    for name, size in (("BERT-base", 48), ("ELECTRA-small", 48 + 6 * 3), ("T5-small", 48)):
        em, f1 = np.array([score for row in paper_scores(name).values() for score in row.values()]).T
        assert len(em) == size
        assert (em < f1).all()
    # sums of BERT-base's columns MLE and SWEP, added up by hand
    for method, total in (("MLE", 405.30), ("SWEP", 414.57)):
        assert sum(em for em, _ in paper_scores("BERT-base")[method].values()) == pytest.approx(total)


def test_what_the_paper_does_not_have():
    assert paper_scores("roberta-base") is None
    electra = paper_scores("ELECTRA-small")
    for method, data_set in (("SWEP, additive", "squad"), ("NEFTune", "squad"), ("SWEP", "hotpot")):
        assert paper_score(electra, method, data_set) is None
    assert paper_score(paper_scores("BERT-base"), "SWEP, no KL", "nyt") is None
    assert plain("模型 1") != plain("数据 1") != plain("1")  # names in other scripts stay apart


def test_what_the_papers_training_data_is_called():
    for name in ("rajpurkar/squad", "squad:plain_text@train", "data/SQuAD.train.jsonl.gz", "train-v1.1.json"):
        assert was_trained_on(name), name
    for name in ("train-v2.0.json", "squad_v2", "squadshifts:nyt", "data/new_wiki_v1.0.json"):
        assert not was_trained_on(name), name


def test_the_papers_effects_are_of_runs_that_all_trained_on_squad():
    for trains, shown in ((["squad.json", "squad.json"], True), (["squad.json", "other.json"], False)):
        runs = []
        for train in trains:
            recipe = Recipe.model_validate(fake_runs.RECIPE | {"data": {"train": train, "eval": {}}})
            results = Results.model_validate(fake_runs.results(recipe, {}))
            runs.append(Run(Path("none"), "SWEP", len(runs), "Mine", recipe=recipe, results=results))
        difference = {"method": "SWEP", "against": "Prior-Aug", "data_set": "new_wiki", "metric": "f1"}
        table._add_paper([], [difference], "Mine", {"SWEP": runs})
        assert bool(difference.get("difference_paper")) == shown


def test_the_papers_effects_are_beside_differences_and_inside_or_outside(tmp_path):
    """The paper has SWEP 0.45, 0.18 and 0.17 F1 above Prior-Aug on New-Wikipedia, and 0.62, 0.95 and -0.18 on Amazon,
    for BERT-base, ELECTRA-small and T5-small."""
    across = {"model": {"ELECTRA-small": {}, "Mine": {"model.name": "mine"}}}
    variants = {"Prior-Aug 0.1": {"method.name": "prior_aug"}, "SWEP": {"method.name": "swep"}}
    variants["MLE, two dropout masks"] = {"method.name": "r_drop"}
    sizes = {"home": 30, "new_wiki": 30, "amazon": 30}
    for cell in fake_runs.sweep(tmp_path, sizes, across=across, variants=variants, seeds=[0, 1, 2]):
        right = 10 + cell.seed + 5 * (cell.variant == "SWEP")
        fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(sizes, right))
    result = table.make(find_runs([tmp_path / "runs"]), against="Prior-Aug 0.1")
    for block, mean in (
        ("ELECTRA-small", ["0.56"]),  # (0.18 + 0.95) / 2 = 0.565
        ("Mine", ["0.53", "0.56", "-0.00"]),
    ):
        of_block = lines(result.cells, method="SWEP", block=block)["difference_paper"]
        wiki = ["+0.18"] if block == "ELECTRA-small" else ["+0.45", "+0.18", "+0.17"]
        # SWEP is 16.7 points above in every seed, so that the interval holds none of the paper's
        assert of_block["new_wiki"] == " / ".join(f"no: {effect}" for effect in wiki)
        said = [part.removeprefix("no: ") for part in of_block["out-of-domain mean"].split(" / ")]
        assert [float(effect) for effect in said] == pytest.approx([float(effect) for effect in mean], abs=0.011)
        assert pd.isna(of_block["home"])
    other = lines(result.cells, method="MLE, two dropout masks", block="ELECTRA-small")["difference_paper"]
    assert other["new_wiki"] == "yes: -0.72"  # the paper's MLE stands for it; 30 equal answers exclude no such effect
