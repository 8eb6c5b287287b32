"""The question bootstrap against a plain loop and the binomial distribution; what rows are compared over."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from swep_ds.analysis import significance
from swep_ds.analysis.crossed import estimate
from swep_ds.analysis.runs import find_runs, read_runs
from swep_ds.analysis.significance import QuestionScores, note_on_shared_ids
from swep_ds.evaluation.results import METRICS, OUT_OF_DOMAIN, RESULTS, read_results
from swep_ds.pipeline.examples import reported_examples
from swep_ds.pipeline.recipe import HOLDOUT, Recipe
from tests.support import fake_runs
from tests.support.bad_input import change_json


def test_the_interval_is_that_of_a_plain_loop(monkeypatch):
    values = np.random.default_rng(1).normal([60, -40, 0, 70], [30, 10, 0, 0], (57, 4))
    values[:, 2] = 3 * values[:, 1]
    monkeypatch.setattr(significance, "ELEMENTS", 57 * 1000)  # in several parts
    _, clusters = np.unique(np.random.default_rng(3).integers(20, size=57), return_inverse=True)
    [samples] = significance.resampled_means([values], clusters, "squad")
    assert samples.shape == (10_000, 4)
    assert samples[:, 3] == pytest.approx(70)  # however many questions the drawn clusters have
    low, high = significance.interval(samples[:, :3])
    number = clusters.max() + 1
    loop = []
    for chosen in np.random.default_rng(2).integers(number, size=(4000, number)):
        loop.append(np.concatenate([values[clusters == c, :3] for c in chosen]).mean(axis=0))
    error = np.array([30, 10, 30]) / 57**0.5
    assert (np.abs([low, high] - np.quantile(loop, [0.025, 0.975], axis=0)) < 0.12 * error).all()
    again, part = significance.resampled_means([values, values[:, :1]], clusters, "squad")
    assert (again == samples).all()  # seeded
    assert part == pytest.approx(samples[:, :1])  # all share their draws
    assert (significance.resampled_means([values], clusters, "nyt")[0][:, 0] != samples[:, 0]).any()  # by the data set
    assert samples[:, 2] == pytest.approx(3 * samples[:, 1])  # columns share their draws


SIZES = {"squad": 20, "nyt": 12, "amazon": 30}


@pytest.fixture
def runs(tmp_path) -> dict:
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}, "Same": {"method.name": "neftune"}}
    for cell in fake_runs.sweep(tmp_path, SIZES, variants=variants, seeds=[0, 1, 2]):
        more = {"MLE": cell.seed, "SWEP": 2 + 3 * cell.seed, "Same": cell.seed}[cell.variant]
        fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(SIZES, 5 + more))
    done, _ = read_runs(find_runs([tmp_path / "runs"]))
    return {name: [run for run in done if run.variant == name] for name in variants}


def known(compared: dict) -> dict:
    """The data sets with a bootstrap, by row."""
    sets = {}
    for (name, column, metric), entry in compared.items():
        if metric == "f1" and "difference_bootstrap_low" in entry:
            sets.setdefault(name, []).append(column)
    return sets


def bounds(entry: dict, kind: str = "bootstrap_") -> tuple[float, float]:
    return entry[f"difference_{kind}low"], entry[f"difference_{kind}high"]


def test_differences_are_of_the_seeds_in_common_and_of_the_mean_over_data_sets(runs, tmp_path, monkeypatch):
    fake_runs.data_set(tmp_path, "amazon", SIZES["amazon"], of_text=2)
    read_them = mock.Mock(wraps=significance.reported_examples)
    monkeypatch.setattr(significance, "reported_examples", read_them)
    scores = QuestionScores()
    of_three = significance.compare([(runs, "MLE")], scores)[0]
    runs["MLE"] = [run for run in runs["MLE"] if run.seed != 0][::-1]
    compared = significance.compare([(runs, "MLE")], scores)[0]
    assert [call.args[1] for call in read_them.call_args_list] == ["squad", "nyt", "amazon"]  # once for all runs
    assert scores.notes == []
    assert known(compared) == {name: ["squad", "nyt", "amazon", OUT_OF_DOMAIN] for name in ("SWEP", "Same")}
    for entry in (entry for (name, *_), entry in compared.items() if name == "Same"):
        assert (*bounds(entry), entry["difference"], entry["difference_n"]) == (0, 0, 0, 2)
        assert "difference_p" not in entry  # two seeds give none
    # by hand: seed 0 wins questions 5 and 6, seed 1 wins 6 to 9, seed 2 wins 7 to 12
    samples, sets = {}, {}
    for name, questions in SIZES.items():
        won = np.zeros((3, questions))
        for seed in range(3):
            won[seed, 5 + seed : 5 + 2 + 3 * seed] = 100
        texts = np.arange(questions) // (1 + (name == "amazon"))
        [samples[name]] = significance.resampled_means([won[1:].mean(axis=0)[:, None]], texts, name)
        sets[name] = [(won, texts)]
    samples[OUT_OF_DOMAIN] = (samples["nyt"] + samples["amazon"]) / 2
    sets[OUT_OF_DOMAIN] = sets["nyt"] + sets["amazon"]
    for (name, drawn), metric in product(samples.items(), METRICS):
        assert bounds(compared["SWEP", name, metric]) == pytest.approx(np.percentile(drawn, [2.5, 97.5]))
        entry, expected = of_three["SWEP", name, metric], estimate(sets[name])
        assert bounds(entry, "") == pytest.approx(expected.interval())
        assert (entry["difference"], entry["difference_p"]) == pytest.approx((expected.mean, expected.p()))
        by_seed = np.mean([won.mean(1) for won, _ in sets[name]], axis=0)
        assert (entry["difference_n"], entry["difference_std"]) == (3, pytest.approx(by_seed.std(ddof=1)))


def test_few_texts_have_no_interval(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(significance, "RESAMPLES", 100)
    for texts in (4, 5, 9, 10):
        fake_runs.data_set(tmp_path, "few", texts)
        rows = {name: [asked_on(run, tmp_path / "few.json", 2) for run in runs[name]] for name in ("MLE", "SWEP")}
        compared = significance.compare([(rows, "MLE")], QuestionScores())[0]
        for data_set in ("nyt", OUT_OF_DOMAIN):  # few texts in one set are too few for the mean
            entry = compared["SWEP", data_set, "f1"]
            assert ("difference_low" in entry) == (texts >= 5)
            assert ("difference_bootstrap_low" in entry) == (texts >= 10)


def asked_on(run, nyt: Path, right: int):
    """The run, tested again on another file as nyt."""
    data = run.recipe.data
    data = data.model_copy(update={"eval": data.eval | {"nyt": str(nyt)}})
    recipe = run.recipe.model_copy(update={"data": data})
    fake_runs.finish(run.folder, recipe, {"squad": 7, "nyt": right, "amazon": 7})
    return replace(run, recipe=recipe, results=read_results(run.folder / RESULTS))


def test_questions_are_read_again_where_a_setting_makes_them_others(tmp_path):
    rows = []
    for n in range(60):
        text = f"Ann met {'Ann' if n % 4 == 1 else 'Bob'} {n}"
        rows.append({"id": f"q{n}", "question": "Who?", "context": text, "answer": "Ann" if n % 3 else ""})
    for name, asked in (("home", rows), ("news", rows[:30]), ("other", rows[10:50])):
        (tmp_path / f"{name}.json").write_text(json.dumps(asked))
    plain = ["model.name=m", "data.unanswerable=train", "data.repeated_answers=first", "data.holdout_fraction=0.3"]
    plain += [f"data.train={tmp_path / 'home.json'}", f"data.eval={{news: {tmp_path / 'news.json'}}}"]
    drops = ["data.unanswerable=drop", "data.repeated_answers=drop"]
    scores = QuestionScores()
    for data_set, changes in (
        ("news", ["eval.select_on=news", "data.max_eval_examples=3", f"data.eval.news={tmp_path / 'other.json'}"]),
        (HOLDOUT, ["data.holdout_fraction=0.6", "data.max_eval_examples=3", drops[1]]),
    ):
        recipes = [Recipe.load("quickstart", [*plain, *change]) for change in ([], [drops[0]], *([c] for c in changes))]
        expected = [reported_examples(recipe, data_set) for recipe in recipes]
        assert [scores.examples(recipe, data_set) for recipe in recipes] == expected
        assert len({tuple(example.id for example in examples) for examples in expected}) == len(recipes)
    assert scores.notes == []


def test_a_mean_over_translations_is_questioned(runs, tmp_path):
    ids = {"de": ["a", "b", "c"], "other": ["c", "x", "y", "z"], "es": ["b", "c", "d", "e", "f"], "none": []}
    [note] = note_on_shared_ids(ids)
    assert note.startswith("de, es share question ids. ")
    assert note_on_shared_ids({name: ids[name] for name in ("de", "other", "none")}) == []
    # nyt and amazon in all runs: the same questions, which `fake_runs` names by their file
    scores = QuestionScores()
    rows = {name: [asked_on(run, tmp_path / "amazon.json", 7) for run in runs[name]] for name in ("MLE", "SWEP")}
    significance.compare([(rows, "MLE")], scores)
    [note] = scores.notes
    assert note.startswith("nyt, amazon share question ids.")


def test_the_same_questions_in_another_order_are_met_by_id(runs, tmp_path):
    asked = json.loads((tmp_path / "nyt.json").read_text())
    asked["data"][0]["paragraphs"].reverse()
    (tmp_path / "backwards.json").write_text(json.dumps(asked))
    # the first 6 of the file and thus the last 6, where MLE has the first 5: in position they agree in all but one
    runs = {"MLE": runs["MLE"][:1], "SWEP": [asked_on(runs["SWEP"][0], tmp_path / "backwards.json", 6)]}
    scores = QuestionScores()
    [difference] = significance.question_differences(runs, "MLE", "nyt", scores).values()
    assert scores.notes == []
    assert difference[0, :, 0].tolist() == [-100.0] * 5 + [0.0] + [100.0] * 6


def test_what_cannot_be_read_or_has_changed_is_named_and_leaves_the_others_their_intervals(runs, tmp_path):
    broken, changed = runs["SWEP"][:2]
    (broken.folder / "predictions" / "nyt.json").write_text("{")
    change_json(changed.folder / "results.json", inputs={"data.eval.squad": "of other bytes"})
    (runs["Same"][1].folder / "predictions" / "amazon.json").unlink()
    scores = QuestionScores()
    compared = significance.compare([(runs, "MLE")], scores)[0]
    assert known(compared) == {"SWEP": ["amazon"], "Same": ["squad", "nyt"]}
    squad, nyt, amazon = scores.notes
    assert squad.startswith(f"No interval with data.eval.squad {tmp_path / 'squad.json'}: has changed since ")
    assert nyt.startswith(f"No interval with {broken.folder / 'predictions' / 'nyt.json'}: not JSON: ")
    assert "no such file" in amazon
    # other data than the results are of
    fake_runs.data_set(tmp_path, "squad", 40)
    (tmp_path / "amazon.json").unlink()
    scores = QuestionScores()
    assert known(significance.compare([(runs, "MLE")], scores)[0]) == {"Same": ["nyt"]}
    assert "scores 12.50 / 12.50 on today's data, and 25.00 / 25.00 in results.json" in " ".join(scores.notes)
    assert "No intervals on amazon: its questions cannot be read (data.eval.amazon: " in " ".join(scores.notes)
