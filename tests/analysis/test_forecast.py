"""The forecast against the standard library's normal distribution, SciPy and a bootstrap of NumPy's; runs read from
folders; the measured correction against the page's cells."""

import json
import re
from dataclasses import replace
from itertools import combinations
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import swep_ds as sd
from swep_ds.analysis import domains, significance
from swep_ds.analysis import forecast as forecast_module
from swep_ds.analysis.answered import Answered, scored
from swep_ds.analysis.domains import Interval
from swep_ds.analysis.forecast import (
    MEASURED,
    MEASURED_DECLINING,
    Correction,
    Home,
    agreement,
    forecast,
    read_home,
    read_runs,
    unknown_share,
    words,
)
from swep_ds.analysis.forecast import line as probit_line
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.evaluation.predictions import Marking
from swep_ds.evaluation.scores import Scorer
from tests.support import fake_runs

NORMAL = NormalDist()
WORDS = ("red", "green", "blue", "")


def examples(name: str, count: int, unknown: int, gold: bool = True) -> list[Example]:
    """Questions about texts of ten words each, so many of which are not "known"; all answers are "red"."""
    text = " ".join(["known"] * (10 - unknown) + ["new"] * unknown)
    answers = ("red",) if gold else ()
    return [Example(f"{name}{i}", "known?", f"{text} known{i}", answers, None, f"{name}{i}") for i in range(count)]


def answered(asked: list[Example], texts: list[str], confidence=None) -> list[Answered]:
    """A run's answers to the questions."""
    given = {example.id: text for example, text in zip(asked, texts, strict=True)}
    items = scored(given, asked, Marking(asked, Scorer()).of(given)).values()
    values = [None] * len(texts) if confidence is None else confidence
    return [replace(item, confidence=value) for item, value in zip(items, values, strict=True)]


def drawn(count: int, chances: list[float], seed: int) -> list[str]:
    return np.random.default_rng(seed).choice(WORDS, size=count, p=chances).tolist()


def resample(monkeypatch, times: int):
    for module in (domains, significance):
        monkeypatch.setattr(module, "RESAMPLES", times)


@pytest.fixture(scope="module")
def case():
    """Three runs that are right in 7 of 10 cases at home and in 4 of 10 there."""
    home_texts = [drawn(200, [0.7, 0.1, 0.1, 0.1], seed) for seed in range(3)]
    there_texts = [drawn(120, [0.4, 0.2, 0.2, 0.2], seed) for seed in range(3, 6)]
    known = {"known", *(f"known{i}" for i in range(200))}
    home = Home("home", [answered(examples("h", 200, 1), texts) for texts in home_texts], known, Scorer())
    return SimpleNamespace(home=home, home_texts=home_texts, there_texts=there_texts)


def test_agreement_is_the_mean_over_pairs_of_runs():
    runs = [["the red fox", "", "a"], ["red fox", "", "b c"], ["red", "blue", "b"]]
    agreed = agreement(runs, Scorer())
    assert agreed[0] == pytest.approx([1 / 3, (1 + 2 / 3 + 2 / 3) / 3])  # articles do not count
    assert agreed[1] == pytest.approx([0, 0])  # two that decline have given no answer
    assert agreed[2] == pytest.approx([0, (0 + 0 + 2 / 3) / 3])
    assert agreement([["the"], ["a"]], Scorer()) == pytest.approx(np.ones((1, 2)))  # the same, if without a word


def test_unknown_words_are_counted_in_different_contexts_and_in_any_case():
    texts = ("Known NEW", "Known NEW", "new new known")
    asked = [Example(f"u{n}", "What?", text, (), None, "u") for n, text in enumerate(texts)]
    assert unknown_share(asked, {"known"}) == pytest.approx((1 + 2 + 0.5) / (2 + 3 + 1))
    assert words(asked) == {"known", "new", "what"}


def test_the_forecast_is_the_line_less_the_correction(case, monkeypatch):
    resample(monkeypatch, 2000)
    correction = Correction(mean=0.3, spread=0.1, sets=5, nearest=0.2, farthest=1.0)
    there = examples("t", 120, 3)
    monkeypatch.setattr(forecast_module, "MEASURED", correction)
    made = forecast(case.home, "there", [answered(there, texts) for texts in case.there_texts])

    def agreed(texts):  # answers of one word: EM and F1 are alike
        of_pairs = [zip(*pair, strict=True) for pair in combinations(texts, 2)]
        return np.mean([[a == b != "" for a, b in pair] for pair in of_pairs], axis=0)

    right_Q = np.mean([[text == "red" for text in texts] for texts in case.home_texts], axis=0)
    means = [right_Q.mean(), agreed(case.home_texts).mean(), agreed(case.there_texts).mean()]
    z = NORMAL.inv_cdf(means[0]) + NORMAL.inv_cdf(means[2]) - NORMAL.inv_cdf(means[1])
    assert made.at_home == pytest.approx([100 * means[0]] * 2)
    assert made.signal_there == pytest.approx([100 * means[2]] * 2)
    assert made.uncorrected == pytest.approx([100 * NORMAL.cdf(z)] * 2)
    shares = np.array([(200 + 0.5) / (200 * 11 + 1), (3 * 120 + 0.5) / (120 * 11 + 1)])
    assert made.unknown_words == pytest.approx(100 * shares)
    distance = np.log(shares[1] / shares[0])
    assert made.distance == pytest.approx(distance)
    assert made.f1.value == pytest.approx(100 * NORMAL.cdf(z - 0.3 * distance))

    rng = np.random.default_rng(0)
    sampled = []
    for _ in range(2000):
        rows, later = rng.integers(200, size=200), rng.integers(120, size=120)
        home_z = NORMAL.inv_cdf(right_Q[rows].mean()) - NORMAL.inv_cdf(agreed(case.home_texts)[rows].mean())
        sampled.append(home_z + NORMAL.inv_cdf(agreed(case.there_texts)[later].mean()))
    assert made.error == pytest.approx([np.std(sampled)] * 2, rel=0.1)
    half = np.hypot(stats.t.ppf(0.975, 4) * 0.1 * 1.2**0.5 * distance, 1.96 * made.error[1])
    expected = [100 * NORMAL.cdf(z - 0.3 * distance + sign * half) for sign in (-1, 1)]
    assert [made.f1.low, made.f1.high] == pytest.approx(expected, abs=0.01)
    assert made.exact_match == pytest.approx(made.f1)
    assert made.truth == pytest.approx([100 * np.mean([[t == "red" for t in texts] for texts in case.there_texts])] * 2)
    assert made.by_question[:, 0] == pytest.approx(agreed(case.there_texts))
    assert made.rests_on == "agreement"
    assert made.remarks == ["Farther from home than any set that was measured: the score may be below the interval."]


def test_answers_do_not_change_a_forecast_and_known_text_is_not_corrected(case, monkeypatch):
    resample(monkeypatch, 50)

    def there(asked):
        runs = [answered(asked, texts[: len(asked)]) for texts in case.there_texts]
        return forecast(case.home, "there", runs)

    made = there(examples("t", 120, 3, gold=False))
    assert made.truth is None
    assert made.f1 == there(examples("t", 120, 3)).f1
    near = there(examples("t", 120, 0))
    assert near.distance < 0
    assert near.f1.value == pytest.approx(near.uncorrected[1])
    assert near.remarks == []
    # its c is as uncertain as that of the nearest set that was measured
    of_c = stats.t.ppf(0.975, MEASURED.sets - 1) * MEASURED.spread * (1 + 1 / MEASURED.sets) ** 0.5 * MEASURED.nearest
    low, high = (NORMAL.inv_cdf(bound / 100) for bound in near.f1[1:])
    assert (high - low) / 2 == pytest.approx(np.hypot(of_c, NORMAL.inv_cdf(0.975) * near.error[1]))
    # where all answers agree at home, half a question of the smaller set does not
    for count in (200, 60):
        texts = [text or "green" for text in case.home_texts[0][:count]]
        certain = case.home._replace(runs=[answered(examples("h", count, 1), texts)] * 3)
        runs = [answered(examples("t", 120, 1), of_run) for of_run in case.there_texts]
        z = NORMAL.inv_cdf(np.mean([text == "red" for text in texts])) + NORMAL.inv_cdf(near.signal_there[1] / 100)
        z -= NORMAL.inv_cdf(1 - 0.5 / min(count, 120))
        assert forecast(certain, "there", runs).uncorrected[1] == pytest.approx(100 * NORMAL.cdf(z))
    few = there(examples("t", 5, 0))
    assert few.f1 == Interval(few.f1.value)
    assert few.remarks == ["No interval: these questions, or those at home, are about fewer than 10 texts."]


def test_one_run_is_forecast_from_its_confidences(case, monkeypatch):
    resample(monkeypatch, 50)
    rng = np.random.default_rng(0)
    sure, unsure = rng.uniform(0.5, 1, 200), rng.uniform(0.2, 0.8, 120)
    home = Home("home", [answered(examples("h", 200, 1), case.home_texts[0], sure)], case.home.known, Scorer())
    made = forecast(home, "there", [answered(examples("t", 120, 1), case.there_texts[0], unsure)])
    right = np.mean([text == "red" for text in case.home_texts[0]])
    means = [
        np.mean([c if text else 0 for text, c in pairs])
        for pairs in (zip(case.home_texts[0], sure, strict=True), zip(case.there_texts[0], unsure, strict=True))
    ]
    z = NORMAL.inv_cdf(right) + NORMAL.inv_cdf(means[1]) - NORMAL.inv_cdf(means[0])
    assert made.uncorrected == pytest.approx([100 * NORMAL.cdf(z)] * 2)
    assert made.rests_on == "confidence"
    assert made.remarks == []
    with pytest.raises(InputError, match="one run, and it wrote no confidences: name a second run"):
        forecast(home, "there", [answered(examples("t", 120, 1), case.there_texts[0])])
    assert np.isfinite(probit_line(np.ones(2), np.ones(2), np.zeros(2), 10)).all()


def test_questions_declined_rightly_are_as_many_as_at_home(monkeypatch):
    resample(monkeypatch, 50)
    asked = examples("h", 40, 1)
    asked[30:] = examples("n", 10, 1, gold=False)  # a quarter has no answer
    texts = [["red"] * 20 + ["blue"] * 8 + [""] * 2 + [""] * 9 + ["red"], ["red"] * 20 + ["green"] * 10 + [""] * 10]
    home = Home("home", [answered(asked, of_run) for of_run in texts], {"known"}, Scorer())
    there = [["red"] * 8 + ["blue"] * 4 + [""] * 28, ["red"] * 8 + ["green"] * 4 + [""] * 28]
    made = forecast(home, "there", [answered(examples("t", 40, 3, gold=False), of_run) for of_run in there])
    assert made.at_home == pytest.approx([100 * (20 + (9 + 10) / 2) / 40] * 2)
    z = NORMAL.inv_cdf(20 / 40) + NORMAL.inv_cdf(8 / 40) - NORMAL.inv_cdf(20 / 40)
    assert made.uncorrected == pytest.approx([100 * (NORMAL.cdf(z) + 9.5 / 40)] * 2)
    value = NORMAL.cdf(z - MEASURED_DECLINING.mean * made.distance) + 9.5 / 40
    assert made.f1.value == pytest.approx(100 * value)
    assert made.distance > 0
    assert made.f1.low > 100 * 9.5 / 40
    given = [float(number) for number in re.findall(r"\d+\.\d", made.remarks[0])]
    assert given == pytest.approx([bound - 100 * 9.5 / 40 for bound in made.f1], abs=0.06)
    assert made.remarks[0].startswith("As at home, 24 % of all questions are taken to be declined rightly. If all of")
    certain = forecast(home, "there", [answered(examples("s", 40, 1, gold=False), ["red"] * 40)] * 2)
    assert [*certain.f1, certain.uncorrected[1]] == [100] * 4  # 98.75 and 23.75 are more
    few = forecast(home, "there", [answered(examples("t", 5, 1, gold=False), of_run[:5]) for of_run in there])
    assert re.search(r"If all of them have an answer, F1 is \d+\.\d\.$", few.remarks[0])  # without an interval


def test_runs_are_read_from_their_folders(tmp_path):
    """Two runs that were trained and first tested on the same 12 questions."""
    cells = fake_runs.sweep(tmp_path, {"squad": 12, "far": 4}, right=4, variants={"MLE": {}}, seeds=[0, 1])
    folders = [cell.folder for cell in cells]
    changed = {"train": str(tmp_path / "squad.json")}
    for cell in cells:
        recipe = cell.recipe.model_copy(update={"data": cell.recipe.data.model_copy(update=changed)})
        (cell.folder / "recipe.yaml").write_text(recipe.dump())
    (folders[0] / "confidence").mkdir()
    (folders[0] / "confidence" / "squad.json").write_text(json.dumps({f"squad{i}": i / 12 for i in range(12)}))
    with pytest.raises(InputError, match=r"mle-seed0 and .*mle-seed0 are the same run: name runs that differ in their"):
        read_home([folders[0], folders[0]])
    home = read_home(folders)
    assert home.name == "squad"
    assert [len(run) for run in home.runs] == [12, 12]
    assert [item.predicted for item in home.runs[0]] == ["b"] * 4 + ["c"] * 8
    assert [item.confidence for item in home.runs[0]] == pytest.approx(np.arange(12) / 12)
    assert home.runs[1][0].confidence is None
    assert home.known == {"a", "b", "c", "which", *map(str, range(12))}
    with pytest.raises(InputError, match="no runs: name the folder"):
        read_home([])
    [made] = sd.forecast(folders).values()  # the set that they were tested on next
    assert made.truth == pytest.approx([100, 100])  # both runs have all four right
    assert json.loads((folders[0] / "forecast" / "far.json").read_text())["f1"][0] == made.f1.value
    for number, folder in enumerate(folders):  # as many questions, but others
        answers = json.loads((folder / "predictions" / "squad.json").read_text())
        del answers[f"squad{number}"]
        (folder / "predictions" / "squad.json").write_text(json.dumps(answers))
    with pytest.raises(InputError, match="squad: the runs have answered different questions: name runs"):
        read_runs(folders, "squad")
    recipe = cells[1].recipe
    other = recipe.data.model_copy(update=changed | {"eval": {"far": recipe.data.eval["far"]}})
    (folders[1] / "recipe.yaml").write_text(recipe.model_copy(update={"data": other}).dump())
    with pytest.raises(InputError, match="has another model, another method or other data at home than"):
        read_home(folders)
    (folders[1] / "results.json").unlink()
    with pytest.raises(InputError, match="finished run"):
        read_home(folders[1:])
