"""Calibration scores against plain loops, and the calibrator against scikit-learn and a grid of temperatures."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import (
    CALIBRATED,
    CHANGES,
    FEATURES,
    Calibrator,
    _folds,
    calibrated_scores,
    calibration,
    features,
    fit,
)
from swep_ds.evaluation.spans import Answer


@pytest.fixture
def resamples(monkeypatch) -> int:
    """Fewer than a run takes, as all of them are made alike."""
    monkeypatch.setattr("swep_ds.evaluation.calibration.RESAMPLES", 100)
    return 100


answers = st.lists(
    st.tuples(st.sampled_from([0.0, 0.125, 0.25, 0.5, 0.75, 1.0]), st.booleans()), min_size=1, max_size=6
)


def risk_coverage(pairs) -> tuple[float, float]:
    """(area, coverage at 80 %) of (confidence, right) in this order."""
    risks, coverage = [], 0.0
    for n in range(1, len(pairs) + 1):
        wrong = sum(not right for _, right in pairs[:n])
        risks.append(wrong / n)
        if (n - wrong) / n >= 0.8:
            coverage = n / len(pairs)
    return 100 * sum(risks) / len(risks), 100 * coverage


def test_scores_by_loops_without_ties():
    rng = np.random.default_rng(0)
    for total in (1, 7, 15, 16, 200):
        confidence = rng.random(total)
        right = rng.random(total) < confidence**0.3
        pairs = sorted(zip(confidence.tolist(), right.tolist(), strict=True), reverse=True)
        error, begin = 0.0, 0
        for number in range(min(15, total)):
            size = total // min(15, total) + (number < total % min(15, total))
            rows, begin = pairs[begin : begin + size], begin + size
            gap = sum(confident for confident, _ in rows) / size - sum(is_right for _, is_right in rows) / size
            error += size / total * abs(gap)
        area, coverage = risk_coverage(pairs)
        expected = {"ece": 100 * error, "aurc": area, "coverage_at_80": coverage}
        assert calibration(confidence, right) == pytest.approx(expected)


@given(answers)
def test_the_order_of_equal_confidences_does_not_count(pairs):
    confidence, right = zip(*pairs, strict=True)
    scores = calibration(confidence, right)
    assert calibration(confidence[::-1], right[::-1]) == pytest.approx(scores)
    # the mean over all orders in which equal confidences can come
    orders = [order for order in permutations(pairs) if [c for c, _ in order] == sorted(confidence, reverse=True)]
    assert scores["aurc"] == pytest.approx(np.mean([risk_coverage(order)[0] for order in orders]))


def test_intervals_of_what_a_calibrator_changes_by_loops(resamples):
    rng = np.random.default_rng(1)
    cluster = np.repeat(np.arange(14), rng.integers(2, 6, 14))
    before, after = (rng.integers(1, 5, len(cluster)) / 5 for _ in range(2))
    right = (rng.random(len(cluster)) < before).astype(float)
    scores = calibrated_scores(before, after, right, cluster)
    assert [scores[name] for name in CALIBRATED] == pytest.approx(list(calibration(after, right).values()))
    drawn, changes = np.random.default_rng(0), []
    for _ in range(resamples):
        chosen = drawn.integers(14, size=14)
        rows = np.concatenate([np.flatnonzero(cluster == number) for number in chosen])
        old, new = (calibration(values[rows], right[rows]) for values in (before, after))
        changes.append([new[name] - old[name] for name in CHANGES])
    assert len(scores) == len(CALIBRATED) + 2 * len(CHANGES)
    for name, values in zip(CHANGES, np.transpose(changes), strict=True):
        bounds = [scores[f"{name}_change_{side}"] for side in ("low", "high")]
        assert bounds == pytest.approx(np.percentile(values, [2.5, 97.5]).tolist())


@pytest.mark.parametrize(("sizes", "enough"), [([2] * 9, False), ([2] * 10, True), ([11] + [1] * 9, False)])
def test_questions_about_few_texts_or_mostly_about_one_have_no_interval(sizes, enough, resamples):
    total = sum(sizes)
    confidence = np.random.default_rng(0).random((2, total))
    scores = calibrated_scores(*confidence, [0, 1] * (total // 2), np.repeat(np.arange(len(sizes)), sizes))
    assert (list(scores) != list(CALIBRATED)) == enough


def test_coverage_is_not_lost_to_rounding():
    assert calibration([0.5] * 10, [1] * 8 + [0] * 2)["coverage_at_80"] == 100  # 0.8 ten times is 7.999999999999999


# Calibrators

EXAMPLE = Example("q", "Who?", "The tea. A tea", ("tea",), None, "a")


def spans(*answers: tuple[str, float]) -> list[Answer]:
    return [Answer(text, 0, len(text), 0.0, probability) for text, probability in answers]


def sample(seed: int, count: int = 600, *, weight: float = 0.3, second: float = 0.0) -> tuple[np.ndarray, ...]:
    """Features, exact matches and clusters of 4: overconfident log odds, and an effect of the second probability."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, len(FEATURES)))
    rows[:, 0] = rng.normal(1, 3, count)
    rows[:, 1] = rows[:, 0] + rng.random(count)
    rows[:, 2:6] = np.sort(rng.random((count, 4)) / 4)[:, ::-1]
    rows[:, 6:] = rng.normal(4, 1, (count, 3))
    truth = weight * rows[:, 0] - second * (rows[:, 2] - 0.2)
    return rows, (rng.random(count) < 1 / (1 + np.exp(-truth))).astype(float), np.arange(count) // 4


def test_features_are_of_the_answer_that_is_given():
    seen = features(EXAMPLE, spans(("The tea.", 0.4), ("tea", 0.2), ("Who", 0.1), ("A tea", 0.05), ("x", 0.04)))
    expected = [math.log(0.4 / 0.6), math.log(0.65 / 0.35), 0.2, 0.1, 0.05, 0.04, *map(math.log1p, (4, 14, 8))]
    assert dict(zip(FEATURES, seen, strict=True)) == pytest.approx(dict(zip(FEATURES, expected, strict=True)))
    declined = features(EXAMPLE, [Answer("", None, None, 0.0, 0.5, 1.0), *spans(("tea", 0.3))])
    assert declined[:3] == pytest.approx([0.0, 0.0, 0.3])
    assert declined[-1] == 0  # the length of ""
    generated = features(EXAMPLE, [Answer("tea", None, None, math.log(0.25), 0.25)])
    assert generated[:6] == pytest.approx([math.log(1 / 3)] * 2 + [0.0] * 4)
    for answers in (spans(("tea", 0.0)), spans(("tea", 1.0)), []):
        assert np.isfinite(features(EXAMPLE, answers)).all()


def test_the_kind_that_predicts_best_is_chosen_and_calibrates_new_answers():
    effects = {"softmax": {"weight": 1.0}, "temperature": {}, "features": {"second": 20.0}}
    for kind, effect in effects.items():
        fitted = fit(*sample(1, **effect))
        assert fitted.kind == kind == min(fitted.log_loss, key=fitted.log_loss.get)
    assert fitted.questions == 600
    assert Calibrator.model_validate_json(fitted.model_dump_json()) == fitted
    rows, right, _ = sample(0, second=20.0)  # new answers
    before, after = (calibration(sure, right) for sure in (1 / (1 + np.exp(-rows[:, 0])), fitted.confidence(rows)))
    assert after["ece"] < before["ece"] / 2
    assert after["aurc"] < before["aurc"]


def test_the_regression_is_scikit_learns():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rows, right, clusters = sample(3, second=20.0)
    rows[:, 5] = 0.25  # constant, as all but the first probability of generated answers are
    fitted = fit(rows, right, clusters)
    scaled = (rows - rows.mean(0)) / np.where(rows.std(0) > 1e-12, rows.std(0), 1)
    expected = linear_model.LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(scaled, right)
    np.testing.assert_allclose(fitted.confidence(rows), expected.predict_proba(scaled)[:, 1], atol=1e-5)
    assert "probability_5" not in fitted.weights


def test_the_temperature_is_the_best_of_a_grid_and_its_log_loss_is_of_texts_that_were_left_out():
    rows, right, clusters = sample(0)
    fitted, fold = fit(rows, right, clusters), _folds(clusters.tolist())
    assert all(len(set(fold[clusters == number])) == 1 for number in range(150))
    assert np.bincount(fold).tolist() == [120] * 5
    odds, inverses = rows[:, 0], np.linspace(0.25, 0.4, 1500)

    def losses(inverse: float, chosen: np.ndarray) -> np.ndarray:
        return np.log1p(np.exp(-inverse * np.where(right > 0, odds, -odds)))[chosen]

    left_out = []
    for number in range(5):
        best = min(inverses, key=lambda inverse: losses(inverse, fold != number).sum())
        left_out += losses(best, fold == number).tolist()
    assert fitted.log_loss["temperature"] == pytest.approx(np.mean(left_out), rel=1e-5)
    assert fitted.log_loss["softmax"] == pytest.approx(losses(1.0, fold >= 0).mean())
    [(name, weight)] = fitted.weights.items()
    assert (name, fitted.intercept) == ("log_odds", 0.0)
    best = min(inverses, key=lambda inverse: losses(inverse, fold >= 0).sum())
    assert weight == pytest.approx(best, abs=1e-3)


def test_folds_have_equally_many_questions_where_texts_have_not():
    """As near as whole texts allow: the fold with the most has no text more than the one with the fewest."""
    clusters = np.repeat(np.arange(60), [12 if number % 6 == 0 else 1 for number in range(60)])
    assert np.ptp(np.bincount(_folds(clusters.tolist()), minlength=5)) <= 12


def test_too_few_answers_or_texts_give_no_calibrator():
    rows, right, clusters = sample(0)
    rare = (np.arange(600) < 19).astype(float)
    assert "19 right and 581 wrong answers about 150 texts are too few" in fit(rows, rare, clusters)
    assert "about 4 texts are too few" in fit(rows, right, clusters % 4)
    assert fit(rows, np.arange(600) >= 580, clusters % 5).questions == 600
