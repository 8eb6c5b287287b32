"""What is wrong with an answer, and where answers are in the text; confidences against loops; the finding, the domains
and another run's differences against hand calculation and a bootstrap of NumPy's."""

from dataclasses import replace

import numpy as np
import pytest

from swep_ds.analysis import charts
from swep_ds.analysis.answered import KINDS, Answered, _occurrences, by_kind, in_fixed_order
from swep_ds.analysis.charts import OTHERS, confidence
from swep_ds.analysis.domains import MEAN, changes, domains, resampled
from swep_ds.analysis.significance import resampled_means
from swep_ds.common.pages import template
from swep_ds.data.example import Example
from swep_ds.evaluation.calibration import calibration
from swep_ds.evaluation.results import Results
from swep_ds.evaluation.scores import Scorer

TEXT = "The battle of Lund was fought in 1676. The battle of Narva was fought in 1700 by the king of Sweden."
TWICE = "In 1700 nothing happened. The battle of Narva was fought in 1700."


def item(predicted: str, *accepted: str, text: str = TEXT) -> Answered:
    example = Example(text, "When?", text, accepted, None, "a")
    accepted = accepted or ("",)
    right = bool(Scorer().exact_match(predicted, accepted))
    return Answered(example, predicted, right, 100 * Scorer().f1(predicted, accepted))


@pytest.mark.parametrize(
    ("predicted", "accepted", "kind"),
    [
        ("the king of sweden", ("king of Sweden",), "right"),
        ("king", ("king of Sweden",), "boundary"),
        ("Narva was fought in 1700", ("battle of Narva", "1700"), "boundary"),
        ("battle of Narva", ("battle of Lund",), "other"),  # shared words, another place
        ("1676", ("1700",), "other"),
        ("00", ("17",), "other"),  # they touch
        (" ", ("1700",), "none"),
        ("the monarch of Sweden", ("king of Sweden",), "boundary"),  # generated: not in the text, but shared words
        ("a monarch", ("king of Sweden",), "other"),
        ("1700", (), "unanswerable"),
        ("", (), "right"),
    ],
)
def test_kinds(predicted, accepted, kind):
    answer = item(predicted, *accepted)
    assert answer.kind == kind
    assert by_kind([answer]) == {name: [answer] if name == kind else [] for name in KINDS}


def marked(answer: Answered) -> str:
    """The excerpt with the accepted answer in [] and the predicted one in {}."""
    shown = ""
    for text, accepted, predicted in answer.excerpt:
        if accepted:
            text = f"[{text}]"
        if predicted:
            text = f"{{{text}}}"
        shown += text
    return shown


def test_both_answers_are_marked_where_they_are_nearest_or_where_the_run_pointed():
    pointed = replace(item("1700", "fought in 1700", text=TWICE), place=range(3, 7))
    assert pointed.kind == "other"
    assert marked(pointed) == "In {1700} nothing happened. The battle of Narva was [fought in 1700]."
    assert marked(item("fought in 1700", "1700", text=TWICE)) == (
        "In 1700 nothing happened. The battle of Narva was {fought in }{[1700]}."
    )
    assert marked(item("Lund", "Narva")) == TEXT.replace("Lund", "{Lund}").replace("Narva", "[Narva]")
    assert marked(item("the monarch", "Narva")) == TEXT.replace("Narva", "[Narva]")
    assert marked(item("", "LUND")) == TEXT.replace("Lund", "[Lund]")  # in any case


def test_a_long_text_is_cut_around_both_answers():
    text = "start " + "word " * 200 + "Ada " + "word " * 200 + "Bob " + "word " * 200 + "end"
    shown = marked(item("Ada", "Bob", text=text))
    assert shown.count("…") == 3  # before, between and after
    assert len(shown) < 600
    assert set(shown.replace("…", " ").split()) == {"word", "{Ada}", "[Bob]"}  # no word is cut
    shown = marked(item("上海", "北京", text="字" * 5000 + "北京在北方,上海在南方" + "字" * 5000))
    assert "[北京]在北方,{上海}在南方" in shown
    assert len(shown) < 400


def answers(seed: int, calibrated: bool = False) -> list[Answered]:
    rng = np.random.default_rng(seed)
    items = []
    for sure, other in rng.random((60, 2)).tolist():
        right = bool(rng.random() < sure)
        items.append(replace(item("", "a"), right=right, confidence=sure, calibrated=other if calibrated else None))
    return items


def test_curves_and_rows_with_and_without_a_calibrator(monkeypatch):
    monkeypatch.setattr(charts, "RISK_POINTS", 25)
    answered = {name: answers(seed, calibrated=True) for seed, name in enumerate(("wiki", "news", "forum"))}
    told = confidence(answered)
    reliability, risk = told["charts"]
    groups = {"wiki": answered["wiki"], OTHERS: answered["news"] + answered["forum"]}
    names = [name + suffix for suffix in ("", ", calibrated") for name in groups]
    assert list(risk.curves) == list(reliability.curves) == names
    tables = {"confidence": told["rows"] + told["groups"], "calibrated": told["calibrated"] + told["calibrated_groups"]}
    for (kind, table), suffix in zip(tables.items(), ("", ", calibrated"), strict=True):
        assert [row[0] for row in table] == [*answered, *groups]
        for (_, sure, right, *scores), items in zip(table, [*answered.values(), *groups.values()], strict=True):
            values = [(getattr(item, kind), item.right) for item in items]
            assert scores == [*calibration(*zip(*values, strict=True)).values()]
            assert (sure, right) == pytest.approx(tuple(100 * np.mean(values, axis=0)))
        for name, items in groups.items():
            values = np.array(sorted(((getattr(item, kind), item.right) for item in items), reverse=True))
            wrong = np.cumsum(1 - values[:, 1]) / np.arange(1, len(items) + 1)
            covered, share = risk.curves[name + suffix]
            rows = np.rint(covered * len(items) / 100).astype(int) - 1
            np.testing.assert_allclose(share, 100 * wrong[rows], atol=1e-12)
            assert rows[-1] == len(items) - 1
            least_confident = 100 * values[-(len(items) // 15) :].mean(0)
            assert [bins[0] for bins in reliability.curves[name + suffix]] == pytest.approx(least_confident)


def test_runs_without_confidences_or_a_calibrator():
    old = [item("1676", "1676")]
    assert confidence({}) is None
    assert confidence({"wiki": old, "news": answers(1)}) is None
    told = confidence({"wiki": answers(1), "news": old})
    assert [row[0] for row in told["rows"]] == [row[0] for row in told["groups"]] == ["wiki"]
    assert told["calibrated"] == told["calibrated_groups"] == []


def asked(right: list[int]) -> list[Answered]:
    """A question on a text of its own for each number, answered right (1) or wrong (0), which gives an F1 of 2 / 3."""
    return [item("Ada" if value else "by Ada", "Ada", text=f"text {n} by Ada") for n, value in enumerate(right)]


def results(answered: dict[str, list[Answered]]) -> Results:
    scores = {}
    for name, items in answered.items():
        golds = {item.example.id: item.example.answers for item in items}
        scores[name] = Scorer().score({item.example.id: item.predicted for item in items}, golds)
    return Results(method="swep", model="m", seed=0, world_size=1, eval=scores, versions={})


def bootstrap(*rights: list[int]) -> np.ndarray:
    """Means [4000, sets] of questions drawn with replacement, by another generator than the package's."""
    rng = np.random.default_rng(1)
    return np.stack([rng.choice(100.0 * np.array(right), (4000, len(right))).mean(1) for right in rights], axis=1)


def said(made: dict) -> tuple[str, str]:
    """The headline and the statement under it."""
    page = template("analysis/finding.html.jinja").module
    return page.headline(made).strip(), " ".join(page.statement(made).split())


def test_the_finding_and_its_interval():
    rights = {"wiki": [1] * 80 + [0] * 20, "news": [1] * 60 + [0] * 40, "forum": [1] * 20 + [0] * 80}
    answered = {name: asked(right) for name, right in rights.items()}
    made = domains(results(answered), answered)
    drawn = bootstrap(*rights.values())
    low, high = np.percentile(100 * (1 - drawn[:, 1:].mean(1) / drawn[:, 0]), [2.5, 97.5])
    assert made["loss"] == pytest.approx((50, low, high), abs=1.6)
    assert said(made) == (
        "On other domains the model loses 50 % of the exact answers that it gives at home.",
        "It answers 80.0 % of the questions of wiki, its source domain, exactly, and 40.0 % of those of 2 other "
        "domains on average. It does best on news (60.0 %) and worst on forum (20.0 %). The 95 % interval of the loss, "
        f"over questions, is {made['loss'].low:.0f} to {made['loss'].high:.0f} %.",
    )
    by_name = {row.name: row for row in made["rows"]}
    assert by_name["wiki"].gap is None
    assert by_name[MEAN].total is None
    assert by_name[MEAN].gap.value == pytest.approx(-40 / 3)  # F1 is 2/3 where EM is 0
    gaps = np.percentile(drawn[:, 2] - drawn[:, 0], [2.5, 97.5]) / 3
    assert by_name["forum"].gap[1:] == pytest.approx(gaps, abs=0.6)
    assert by_name["forum"].f1.value == pytest.approx(20 + 80 * 2 / 3)
    assert by_name["news"].exact_match[1:] == pytest.approx(np.percentile(drawn[:, 1], [2.5, 97.5]), abs=1.6)


@pytest.mark.parametrize(
    ("home", "away", "headline"),
    [
        ([1, 0] * 30, None, "The model answers 50.0 % of the questions of wiki exactly."),
        ([1, 0] * 30, [1, 0] * 30, "These questions do not show that the model loses exact answers on other domains."),
        ([1, 0] * 3, [1, 0] * 3, "These results do not say whether the model loses exact answers on other domains."),
        ([0] * 40, [1, 0] * 20, "The model answers no question of wiki, its source domain, exactly."),
        ([1, 0] * 30, [1] * 60, "On other domains the model gives 100 % more exact answers than at home."),
    ],
)
def test_other_findings(home, away, headline):
    answered = {"wiki": asked(home)} | ({"news": asked(away)} if away else {})
    made = domains(results(answered), answered)
    assert said(made)[0] == headline
    assert MEAN not in {row.name for row in made["rows"]}  # there is a single other domain


def test_what_makes_intervals_missing_or_too_narrow_is_noted():
    answered = {"wiki": asked([1, 0] * 20), "news": asked([1, 0] * 20)}
    made = domains(results(answered), answered | {"news": asked([1] * 40)})
    [note] = made["notes"]
    assert note.startswith("news has no interval: on today's data its answers do not give the scores of the run")
    assert made["rows"][0].f1.low is not None
    assert made["rows"][1].f1.low is made["rows"][1].gap.low is made["loss"].low is None
    assert "interval of the loss" not in said(made)[1]
    answered = {name: asked([1, 0] * 10) for name in ("wiki", "news", "forum")}
    [note] = domains(results(answered), answered)["notes"]
    assert note.startswith("news, forum share question ids.")
    # a set about 10 texts, on one of which are most questions, is worth two
    items = [item("Ada", "Ada", text=f"text {max(0, n - 30)} by Ada") for n in range(40)]
    assert np.isnan(resampled([100], np.full((40, 1), 100.0), items, "news")[1:]).all()
    assert (resampled([100], np.full((10, 1), 100.0), items[30:], "news") == 100).all()
    # two questions of a text are drawn together
    items = [item("Ada", "Ada", text=f"text {n // 2} by Ada") for n in range(40)]
    values = np.arange(40.0)[:, None]
    [means] = resampled_means([values], np.arange(40) // 2, "news")
    assert (resampled([19.5], values, items, "news")[1:] == means).all()


def test_the_same_questions_come_first_in_every_report():
    items = asked([1, 0] * 10)
    assert in_fixed_order(items) == in_fixed_order(items[::-1]) != items
    assert set(map(id, in_fixed_order(items))) == set(map(id, items))


def test_changes_are_paired_by_question():
    right, other = [1] * 50 + [0] * 50, [1] * 40 + [0] * 40 + [1] * 20
    items = [replace(here, other=there) for here, there in zip(asked(right), asked(other), strict=True)]
    items[60] = replace(items[60], other=replace(items[60].other, f1=0.0))  # better in F1, and wrong as before
    answered = {name: items.copy() for name in ("wiki", "news", "forum")}
    rows = {row.name: row for row in changes(answered, list(answered))}
    assert (rows["news"].gained, rows["news"].lost) == (10, 20)
    assert (rows[MEAN].gained, rows[MEAN].lost) == (20, 40)
    assert (rows["news"].f1.value, rows[MEAN].exact_match.value) == pytest.approx((-10 / 3 + 2 / 3, -10))
    exact = [a - b for a, b in zip(right, other, strict=True)]
    overlap = [change / 3 for change in exact]
    overlap[60] = 2 / 3
    of_em, of_f1 = np.percentile(bootstrap(exact, overlap), [2.5, 97.5], axis=0).T
    assert rows["news"].exact_match[1:] == pytest.approx(of_em, abs=1.6)
    assert rows["news"].f1[1:] == pytest.approx(of_f1, abs=0.6)
    answered["news"][0] = asked([1])[0]  # which the other run did not answer
    assert [row.name for row in changes(answered, list(answered))] == ["wiki", "forum"]


def test_the_finding_counts_no_question_that_is_rightly_declined():
    """With the declined ones EM is 90 % at home and 67 % away, a loss of 26 %."""
    right = {"wiki": [1] * 80 + [0] * 20, "news": [1, 0, 0] * 40}
    lacking = [Example(f"n{n}", "When?", f"text {n}", (), None, "a") for n in range(120)]
    declined = [Answered(example, "", True, 100.0) for example in lacking]
    answered = {"wiki": asked(right["wiki"]) + declined[:100], "news": asked(right["news"]) + declined}
    made = domains(results(answered), answered)
    drawn = [bootstrap(values)[:, 0] for values in right.values()]
    low, high = np.percentile(100 * (1 - drawn[1] / drawn[0]), [2.5, 97.5])
    assert made["loss"] == pytest.approx((100 * 7 / 12, low, high), abs=2)
    assert said(made)[1].startswith(
        "It answers 80.0 % of the questions with an answer of wiki, its source domain, exactly, and 33.3 % of those of "
        "news."
    )
    assert [row.exact_match.value for row in made["rows"]] == pytest.approx([80, 100 / 3])  # what the headline names
    assert [row.total for row in made["rows"]] == [100, 120]
    made = domains(results({"wiki": declined}), {})
    assert made["notes"] == ["No question of wiki, the source domain, has an answer."]
    assert made["rows"] == []


def test_places_are_found_whatever_their_case_and_do_not_overlap():
    assert _occurrences(" aba ", "ABAba, aBa") == [range(0, 3), range(7, 10)]
    assert _occurrences("a.b", "a.b axb") == [range(3)]
    assert _occurrences(" ", "a b") == []
    assert len(_occurrences("a", "a" * 60)) == 50
