"""Labels that correct a forecast: simulations of the interval, the questions that are suggested, the file of labels."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit
from scipy.stats import rankdata

from swep_ds.analysis import labelled
from swep_ds.analysis.labelled import estimate, read_labelled, suggest, write_suggested
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example

QUESTIONS, SAMPLES = 1000, 1000
# the chance of a right answer -> what the model says
CONFIDENCES = {
    "calibrated": lambda chance, rng: chance,
    "over-confident": lambda chance, rng: expit(3 * logit(chance) + 4),
    "useless": lambda chance, rng: rng.permutation(chance),
    "misleading": lambda chance, rng: 1 - chance,
}


def text_set(right: float, confidence: str) -> tuple[np.ndarray, np.ndarray]:
    """EM and F1 [2, N] in points, and the predictions [N]. `right`: roughly the share of exact answers."""
    rng = np.random.default_rng(3)
    chance = expit(logit(right) + 2 * rng.normal(size=QUESTIONS))
    em = (rng.random(QUESTIONS) < chance).astype(float)
    overlap = rng.choice([0.2, 1 / 3, 0.5, 2 / 3, 0.8], QUESTIONS) * (rng.random(QUESTIONS) < 0.45)
    return 100 * np.stack([em, np.where(em > 0, 1, overlap)]), 100 * CONFIDENCES[confidence](chance, rng)


def samples(rng: np.random.Generator, rows: np.ndarray, count: int) -> np.ndarray:
    """[SAMPLES, count] of the rows, in each sample without replacement."""
    return rng.permuted(np.tile(rows.astype(np.int16), (SAMPLES, 1)), axis=1)[:, :count]


def test_intervals_hold_the_mean_and_are_no_wider_than_those_of_the_labels():
    rng = np.random.default_rng(5)
    coverages, ratios = {}, {}
    for confidence, right in (
        ("calibrated", 0.85),
        ("over-confident", 0.6),
        ("useless", 0.35),
        ("useless", 0.85),
        ("misleading", 0.35),
    ):
        scores, predicted = text_set(right, confidence)
        mean = scores.mean(1)[:, None]
        every_row, stratum_N = suggest(predicted, QUESTIONS)
        for count in (25, 50, 100, 400):
            at_random = samples(rng, np.arange(QUESTIONS), count)
            alone = estimate(scores[:, at_random], np.zeros(QUESTIONS), at_random, np.zeros(count, int))
            assert (alone.weight == 0).all()
            counts = np.bincount(suggest(predicted, count)[1])
            chosen = [samples(rng, every_row[stratum_N == h], taken) for h, taken in enumerate(counts)]
            stratum_n = np.repeat(np.arange(len(counts)), counts)
            for strata, rows in (np.zeros(count, int), at_random), (stratum_n, np.concatenate(chosen, axis=1)):
                result = estimate(scores[:, rows], predicted, rows, strata)
                cell = (confidence, right, count, strata.max())
                coverages[cell] = 100 * ((result.low <= mean) & (mean <= result.high)).mean(1)
                ratios[cell] = (result.high - result.low).mean(1) / (alone.high - alone.low).mean(1)
                assert np.abs(result.mean.mean(1) - mean[:, 0]).max() < 5 / count**0.5  # points
    coverage = np.array(list(coverages.values()))
    assert coverage.min() >= 93, coverages
    assert coverage.max() <= 97.5, coverages  # 97, give or take the error of the simulation, which is 0.7
    assert 94.5 < coverage.mean() < 96
    assert max(ratio.max() for ratio in ratios.values()) < 1.05, ratios
    told = [ratio for (confidence, *_), ratio in ratios.items() if confidence != "useless"]
    assert np.max(told) < 0.93  # 0.76 to 0.92


def test_the_estimate_is_that_of_least_squares_and_the_interval_wilsons():
    rng = np.random.default_rng(1)
    predicted = rng.random(60)
    stratum_n = np.repeat([0, 1], [8, 12])  # drawn from two strata of 30
    rows = rng.permutation(60)[:20]
    scores = rng.choice([0, 40, 100], 20)
    result = estimate(scores, predicted, rows, stratum_n)
    # each question's weight makes least squares minimise the variance of drawing without replacement
    counts = [8, 12]
    of_stratum = [0.5**2 * (1 - counts[h] / 30) / counts[h] / (counts[h] - 1) for h in stratum_n]
    ranks = rankdata(predicted) / 60
    columns = np.column_stack([stratum_n == 0, stratum_n == 1, ranks[rows]])
    root = np.sqrt(of_stratum)[:, None]
    level_0, level_1, weight = np.linalg.lstsq(columns * root, scores * root[:, 0])[0]
    mean = (level_0 + level_1) / 2 + weight * ranks.mean()
    assert (result.weight, result.mean) == pytest.approx((weight, mean))
    # Wilson's ends p solve (mean - p)^2 = t^2 p (1 - p) / n
    residuals = scores - columns @ [level_0, level_1, weight]
    m, most = mean / 100, mean / 100 * (1 - mean / 100)
    variance = of_stratum @ residuals**2 / 100**2 * 18 / 17
    share = variance / (most * (1 - 20 / 60) / 19)
    share = (4 * 20 * most * share + 1) / (4 * 20 * most + 1)
    square = stats.t.ppf(0.975, 17) ** 2 * share * (1 - 20 / 60) / 19
    assert share < 1
    assert [result.low, result.high] == pytest.approx(100 * np.sort(np.roots([1 + square, -2 * m - square, m**2])))


def test_scores_that_are_all_alike_and_sets_with_all_labels():
    rows = np.arange(30)
    result = estimate(np.full(30, 100), np.arange(2000), rows, np.zeros(30, int))
    assert result.mean == result.high == 100
    assert 85 < result.low < 92  # by the rule of three 90
    scores = np.random.default_rng(0).choice([0, 50, 100], 30)
    result = estimate(scores, np.arange(30), rows, np.zeros(30, int))
    assert [result.low, result.high] == pytest.approx([scores.mean()] * 2, abs=0.01)
    assert result.more_labels == 0


def test_as_many_more_labels_as_it_says_make_the_interval_narrow_enough():
    scores, predicted = text_set(0.6, "calibrated")
    halves = []
    for seed in range(40):
        rows, strata = suggest(predicted, 100, seed)
        result = estimate(scores[1, rows], predicted, rows, strata)
        assert result.high - result.low > 2 * labelled.AIM
        more, strata = suggest(predicted, 100 + result.more_labels, seed)
        assert set(rows) < set(more)  # nothing that was labelled is lost
        result = estimate(scores[1, more], predicted, more, strata)
        halves.append((result.high - result.low) / 2)
    assert np.mean(halves) == pytest.approx(labelled.AIM, abs=0.1)


def test_suggested_questions_are_drawn_at_random_with_more_where_scores_vary_more():
    predicted = np.r_[np.full(200, 2.0), np.full(200, 20.0), np.full(200, 50.0), np.full(200, 80.0), np.full(200, 98.0)]
    drawn = np.zeros(1000)
    for seed in range(300):
        rows, strata = suggest(predicted, 100, seed)
        drawn[rows] += 1
    counts = np.bincount(strata)
    need = np.sqrt([0.15 * 0.85, 0.2 * 0.8, 0.5 * 0.5, 0.8 * 0.2, 0.85 * 0.15])
    assert np.abs(counts - 100 * need / need.sum()).max() < 1
    expected = counts[[0, 1, 2, 3, 4]].repeat(200) * 300 / 200
    assert stats.chisquare(drawn, expected).pvalue > 0.001
    assert not (np.diff(strata) >= 0).all()  # whoever stops early has labelled some of each stratum
    rows, strata = suggest(predicted[::25], 40)  # all of them
    assert sorted(rows) == [*range(40)]
    assert np.bincount(strata).tolist() == [8] * 5


def test_labels_of_suggested_questions_estimate_without_bias_where_predictions_tie():
    """As the agreement of two runs, whose values are few and mostly 0."""
    rng = np.random.default_rng(8)
    chance = expit(logit(0.4) + 2 * rng.normal(size=QUESTIONS))
    scores = 100.0 * (rng.random(QUESTIONS) < chance)
    predicted = np.where(rng.random(QUESTIONS) < 0.9 - 0.6 * chance, 0.0, rng.choice([100 / 3, 100.0], QUESTIONS))
    for count in (50, 100, 400):
        estimates = []
        for seed in range(400):
            rows, strata = suggest(predicted, count, seed)
            estimates.append(estimate(scores[rows], predicted, rows, strata))
        means = np.array([made.mean for made in estimates])
        assert abs(means.mean() - scores.mean()) < 4 * means.std() / 400**0.5
        held = np.mean([made.low <= scores.mean() <= made.high for made in estimates])
        assert 0.92 < held < 0.985, count  # 95 %, give or take three errors of the simulation


# The file


CONTEXT = 'Der Maler Łukasz, "Luk" genannt,\nlebte 1852; er starb in the Red House.'


@pytest.fixture
def asked() -> list[Example]:
    return [Example(f"q{n}", f"Who, or what, is {n}?", CONTEXT, (), None, "a") for n in range(200)]


def table(path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def save(path, rows: list[dict[str, str]], delimiter: str = ","):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8", newline="")


def test_what_is_suggested_is_labelled_in_a_spreadsheet_and_read_back(asked, tmp_path):
    file = tmp_path / "label.csv"
    rows, strata = suggest(np.arange(200) / 2, 40)
    write_suggested(file, asked, rows, strata, [])
    written = table(file)
    assert [row["id"] for row in written] == [f"q{row}" for row in rows]
    assert {row["context"] for row in written} == {CONTEXT}
    answers = ["1852", "no answer", "łukasz", "the  red House", "", '["1852", "Luk"]'] * 6
    answers += ["1852", "N/A.", "łukasz", "the  red House", "", '["1852", "Luk"]']
    for row, answer in zip(written, answers, strict=False):
        assert row["answer"] == ""
        row["answer"] = answer
    save(file, written, ";")  # as Excel does in half of Europe
    given = [n for n in range(40) if answers[n]]
    read_rows, examples, read_strata = read_labelled(file, asked)
    assert read_rows.tolist() == rows[given].tolist()
    assert [example.id for example in examples] == [f"q{row}" for row in read_rows]
    accepted = [("1852",), (), ("łukasz",), ("the  red House",), None, ("1852", "Luk")] * 7
    assert [example.answers for example in examples] == [accepted[n] for n in given]
    assert read_strata.tolist() == strata[given].tolist()
    with pytest.raises(InputError, match=r"the stratum '\d of 5 \(200 questions\)' is none of this text"):
        read_labelled(file, [*asked, replace(asked[0], id="q200")])  # another size has other strata
    # a second round keeps the answers
    more, strata = suggest(np.arange(200) / 2, 90)
    write_suggested(file, asked, more, strata, examples)
    kept = {row["id"]: row["answer"] for row in table(file)}
    assert [kept[f"q{row}"] for row in rows[:6]] == answers[:6]


def test_labels_of_any_table_are_a_simple_random_sample(asked, tmp_path):
    file = tmp_path / "mine.jsonl"
    lines = [{"id": f"q{n}", "question": asked[n].question, "answers": ["1852"] * (n > 3)} for n in range(15)]
    lines[0]["is_impossible"] = True
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    rows, examples, strata = read_labelled(file, asked)
    assert rows.tolist() == [0, *range(4, 15)]
    assert [example.answers for example in examples] == [(), *[("1852",)] * 11]
    assert strata.tolist() == [0] * 12


def change(column: str, value: str):
    return lambda rows: rows[3].update({column: value})


FAULTS = {
    "row 5: the id 'p7' is no such question of this text": change("id", "p7"),
    "row 5: the id '.+' is no such question of this text, or": change("question", "Why?"),
    "row 5: the answer '1853' is not in its context: copy it, or write 'no answer'": change("answer", "1853"),
    "row 5: the answer 'null' is not in its context": change("answer", "null"),
    r"row 5: the stratum '2 of 5 \(20 questions\)' is none of this text": change("stratum", "2 of 5 (20 questions)"),
    "row 5: the stratum '' is none of this text": change("stratum", ""),
    "row 42: the id '.+' is no such question of this text, or occurs twice; spreadsheets drop": lambda rows: (
        rows.append(rows[0])
    ),
    "0 rows have an answer: fill in 10 or more": lambda rows: [row.update(answer="") for row in rows],
    "a stratum has 0 rows with an answer: fill in 3 or more of each": lambda rows: [
        row.update(answer="") for row in rows if row["stratum"].startswith("2")
    ],
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_of_the_file_is_one_line(asked, tmp_path, message):
    file = tmp_path / "label.csv"
    write_suggested(
        file, asked, *suggest(np.arange(200) / 2, 40), [replace(example, answers=("Luk",)) for example in asked]
    )
    rows = table(file)
    FAULTS[message](rows)
    save(file, rows)
    with pytest.raises(InputError, match=f"^--labelled {file}: {message}"):
        read_labelled(file, asked)


def test_a_file_that_does_not_exist(asked, tmp_path):
    with pytest.raises(InputError, match=r"label\.csv: no such file"):
        read_labelled(tmp_path / "label.csv", asked)


def test_the_first_labels_have_some_of_each_stratum_however_sure_predictions_are():
    predicted = np.repeat([0.0, 50.0, 50.0, 50.0, 100.0], 40)
    rows, strata = labelled.labelling_order(predicted)
    assert sorted(rows) == list(range(200))
    assert np.bincount(strata[:15]).tolist() == [3] * 5
