"""The paired bootstrap against a plain loop, the binomial distribution and results worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from swep_ds.analysis import significance
from swep_ds.analysis.runs import find_runs, read_runs
from swep_ds.data.answers import normalize_answer
from swep_ds.recipe import Recipe
from tests.support import fake_runs

ids = st.text("abcdé 0", min_size=1, max_size=3)


@given(st.dictionaries(ids, st.tuples(st.sampled_from("bcd"), st.booleans()), min_size=1), st.randoms())
def test_questions_are_aligned_by_id_whatever_the_order_of_the_predictions(asked, rng):
    golds = dict.fromkeys(asked, ("b",))
    given_answers = [(id_, answer) for id_, (answer, answered) in asked.items() if answered]
    rng.shuffle(given_answers)
    scores = significance.per_question({**dict(given_answers), "of another set": "b"}, golds)
    expected = [100.0 * (answered and answer == "b") for answer, answered in asked.values()]
    assert list(scores.index) == list(golds)
    assert scores.to_numpy().tolist() == [[score, score] for score in expected]


def test_per_question_scores_are_percent_of_em_and_f1():
    scores = significance.per_question({"1": "the red cat", "2": "no"}, {"2": ["yes"], "1": ["red", "red dog"]})
    assert scores.to_numpy() == pytest.approx(np.array([[0, 0], [0, 200 / 3]]))


def test_golds_are_normalised_once_for_all_runs():
    golds = {str(number): ("gold", f"gold {number}") for number in range(20)}
    normalize_answer.cache_clear()
    for answer in ("gold", "other", "third"):
        significance.per_question(dict.fromkeys(golds, answer), golds)
    assert normalize_answer.cache_info().misses == 1 + 20 + 2


def test_the_interval_is_that_of_a_plain_loop(monkeypatch):
    values = np.random.default_rng(1).normal([2, -1], [30, 10], (57, 2))
    monkeypatch.setattr(significance, "ELEMENTS", 57 * 1000)  # in several parts
    samples = significance.resampled_means(values, "squad")
    assert samples.shape == (10_000, 2)
    low, high = significance.interval(samples)
    rng = np.random.default_rng(2)
    loop = []
    for _ in range(4000):
        drawn = [values[rng.integers(57)] for _ in range(57)]
        loop.append(sum(drawn) / 57)
    loop = np.array(loop)
    error = np.array([30, 10]) / 57**0.5
    assert np.abs(low - np.quantile(loop, 0.025, axis=0)).max() < 0.12 * error.max()
    assert (np.abs(high - np.quantile(loop, 0.975, axis=0)) < 0.12 * error).all()
    assert samples.mean(axis=0) == pytest.approx(values.mean(axis=0), abs=5 * error.max() / 100)
    assert (significance.resampled_means(values, "squad") == samples).all()  # seeded


def test_columns_share_their_draws():
    values = np.random.default_rng(0).normal(size=(40, 1))
    single, triple = significance.resampled_means(np.concatenate([values, 3 * values], axis=1), "x").T
    assert triple == pytest.approx(3 * single)


def test_a_share_of_questions_won_has_the_binomials_interval():
    # 60 of 200 questions are won and the others alike: a resample's mean is Binomial(200, 0.3) / 200
    values = np.repeat([[100.0], [0.0]], [60, 140], axis=0)
    bounds = significance.interval(significance.resampled_means(values, "squad")).ravel()
    expected = stats.binom(200, 0.3).ppf([0.025, 0.975]) / 2
    assert bounds == pytest.approx(expected, abs=0.5)  # 0.5 points: one question


@pytest.fixture
def runs(tmp_path) -> dict:
    sizes = {"squad": 20, "nyt": 10, "amazon": 30}
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}, "Same": {"method.name": "neftune"}}
    cells = fake_runs.sweep(tmp_path, sizes, variants=variants, seeds=[0, 1])
    for cell in cells:
        more = {"MLE": 0, "SWEP": 2 + 2 * cell.seed, "Same": 0}[cell.variant]
        fake_runs.finish(cell.folder, cell.recipe, dict.fromkeys(sizes, 5 + more))
    done, _ = read_runs(find_runs([tmp_path / "runs"]))
    return {name: [run for run in done if run.ref.variant == name] for name in variants}


def test_intervals_are_of_the_means_over_seeds_and_of_the_mean_over_data_sets(runs):
    scores = significance.QuestionScores()
    intervals = significance.intervals(runs, "MLE", ["squad", "nyt", "amazon"], scores)
    assert scores.notes == []
    assert list(intervals) == ["SWEP", "Same"]
    assert not np.any(list(intervals["Same"].values()))
    # by hand: SWEP's seeds win questions 5, 6 and 5, 6, 7, 8: on average 100 points on two, 50 points on two
    samples = {}
    for name, questions in (("squad", 20), ("nyt", 10), ("amazon", 30)):
        difference = np.array([[0.0]] * 5 + [[100.0]] * 2 + [[50.0]] * 2 + [[0.0]] * (questions - 9))
        samples[name] = significance.resampled_means(difference, name)
        expected = np.percentile(samples[name], [2.5, 97.5])
        assert intervals["SWEP"][name] == pytest.approx(np.stack([expected] * 2, axis=1))
    both = np.percentile((samples["nyt"] + samples["amazon"]) / 2, [2.5, 97.5])
    assert intervals["SWEP"][None] == pytest.approx(np.stack([both] * 2, axis=1))


def test_the_questions_of_one_test_are_read_once(runs, monkeypatch):
    from swep_ds.pipeline import examples as whole

    asked = []
    read_them = whole.reported_examples
    monkeypatch.setattr(
        whole, "reported_examples", lambda recipe, names: asked.extend(names) or read_them(recipe, names)
    )
    significance.intervals(runs, "MLE", ["squad", "nyt", "amazon"], significance.QuestionScores())
    assert asked == ["squad", "nyt", "amazon"]


def asked_on(run, nyt: Path, right: int):
    """The run, tested again on another file as nyt."""
    recipe = Recipe.load(str(run.ref.folder / "recipe.yaml"), [f"data.eval.nyt={nyt}"])
    fake_runs.finish(run.ref.folder, recipe, {"squad": 7, "nyt": right, "amazon": 7})
    [[again], _] = read_runs(find_runs([run.ref.folder]))
    return again


def test_runs_of_other_questions_under_one_name_have_no_interval(runs, tmp_path):
    fake_runs.data_set(tmp_path, "other", 10)
    runs["SWEP"][0] = other = asked_on(runs["SWEP"][0], tmp_path / "other.json", 7)
    scores = significance.QuestionScores()
    intervals = significance.intervals(runs, "MLE", ["squad", "nyt", "amazon"], scores)
    assert {name: list(columns) for name, columns in intervals.items()} == {
        "SWEP": ["squad", "amazon"],
        "Same": ["squad", "nyt", "amazon", None],
    }
    assert scores.notes == [
        f"No interval for SWEP on nyt: {other.ref.folder} answered other questions than "
        f"{runs['MLE'][0].ref.folder}, so the difference would not be that of the methods alone."
    ]


def test_the_same_questions_in_another_order_are_met_by_id(runs, tmp_path):
    asked = json.loads((tmp_path / "nyt.json").read_text())
    asked["data"][0]["paragraphs"][0]["qas"].reverse()
    (tmp_path / "backwards.json").write_text(json.dumps(asked))
    # the first 5 of the file and thus the last 5: the 10 differ in all, and by position in none
    runs = {"MLE": runs["MLE"][:1], "SWEP": [asked_on(runs["SWEP"][0], tmp_path / "backwards.json", 5)]}
    scores = significance.QuestionScores()
    [difference] = significance.question_differences(runs, "MLE", "nyt", scores).values()
    assert scores.notes == []
    assert difference[:, 0].tolist() == [-100.0] * 5 + [100.0] * 5


def test_what_cannot_be_read_is_named_and_leaves_the_others_their_intervals(runs, tmp_path):
    folder = runs["SWEP"][0].ref.folder / "predictions"
    (folder / "nyt.json").write_text("{")
    (runs["Same"][1].ref.folder / "predictions" / "amazon.json").unlink()
    answers = json.loads((runs["SWEP"][0].ref.folder / "predictions" / "squad.json").read_text())
    del answers["squad19"]  # which was wrong: the scores stay
    (folder / "squad.json").write_text(json.dumps(answers))
    scores = significance.QuestionScores()
    intervals = significance.intervals(runs, "MLE", ["squad", "nyt", "amazon"], scores)
    assert {name: list(columns) for name, columns in intervals.items()} == {
        "SWEP": ["squad", "amazon"],
        "Same": ["squad", "nyt"],
    }
    lacking, nyt, amazon = scores.notes
    assert lacking == f"{folder / 'squad.json'}: no answer to 1 of 20 questions, such as squad19: they count as wrong."
    assert nyt.startswith(f"No interval with {folder / 'nyt.json'}: not JSON: ")
    assert nyt.endswith(".")
    assert amazon.startswith("No interval with ")
    assert "no such file" in amazon


def test_other_data_than_the_results_are_of_is_noticed(runs, tmp_path):
    fake_runs.data_set(tmp_path, "squad", 40)
    scores = significance.QuestionScores()
    intervals = significance.intervals(runs, "MLE", ["squad", "nyt", "amazon"], scores)
    assert list(intervals["SWEP"]) == ["nyt", "amazon", None]  # None: the mean of the two
    assert "scores 12.50 / 12.50 on today's data, and 25.00 / 25.00 in results.json" in " ".join(scores.notes)
    Path(tmp_path / "amazon.json").unlink()
    scores = significance.QuestionScores()
    intervals = significance.intervals(runs, "MLE", ["squad", "nyt", "amazon"], scores)
    assert {name: list(columns) for name, columns in intervals.items()} == {"SWEP": ["nyt"], "Same": ["nyt"]}
    [note] = [note for note in scores.notes if "amazon" in note]
    assert note.startswith("No intervals on amazon: its questions cannot be read (data.eval.amazon: data source")
