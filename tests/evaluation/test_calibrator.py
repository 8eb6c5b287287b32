"""The calibrator against scikit-learn, a grid of temperatures and plain loops."""

import math

import numpy as np
import pytest

from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import FEATURES, Calibrator, _folds, calibration, features, fit
from swep_ds.evaluation.spans import Answer

EXAMPLE = Example("q", "Who?", "The tea. A tea", ("tea",), None, "a")


def spans(*answers: tuple[str, float]) -> list[Answer]:
    return [Answer(text, 0, len(text), 0.0, probability) for text, probability in answers]


def log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


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
    expected = [log_odds(0.4), log_odds(0.65), 0.2, 0.1, 0.05, 0.04, *map(math.log1p, (4, 14, 8))]
    assert dict(zip(FEATURES, seen, strict=True)) == pytest.approx(dict(zip(FEATURES, expected, strict=True)))
    declined = features(EXAMPLE, [Answer("", None, None, 0.0, 0.5, 1.0), *spans(("tea", 0.3))])
    assert declined[:3] == pytest.approx([0.0, 0.0, 0.3])
    assert declined[-1] == 0  # the length of ""
    generated = features(EXAMPLE, [Answer("tea", None, None, math.log(0.25), 0.25)])
    assert generated[:6] == pytest.approx([log_odds(0.25)] * 2 + [0.0] * 4)
    for answers in (spans(("tea", 0.0)), spans(("tea", 1.0)), []):
        assert np.isfinite(features(EXAMPLE, answers)).all()


def test_the_kind_that_predicts_best_is_chosen():
    effects = {"softmax": {"weight": 1.0}, "temperature": {}, "features": {"second": 20.0}}
    for kind, effect in effects.items():
        fitted = fit(*sample(1, **effect))
        assert fitted.kind == kind == min(fitted.log_loss, key=fitted.log_loss.get)
        assert fitted.questions == 600


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


def test_new_answers_are_calibrated_better_also_after_json():
    fitted = fit(*sample(0, second=20.0))
    assert Calibrator.model_validate_json(fitted.model_dump_json()) == fitted
    rows, right, _ = sample(1, second=20.0)
    before, after = (calibration(sure, right) for sure in (1 / (1 + np.exp(-rows[:, 0])), fitted.confidence(rows)))
    assert after["ece"] < before["ece"] / 2
    assert after["aurc"] < before["aurc"]


def test_too_few_answers_or_texts_give_no_calibrator():
    rows, right, clusters = sample(0)
    rare = (np.arange(600) < 19).astype(float)
    assert "19 right and 581 wrong answers about 150 texts are too few" in fit(rows, rare, clusters)
    assert "about 4 texts are too few" in fit(rows, right, clusters % 4)
