"""The finding, the domains and another run's differences against hand calculation and a bootstrap of NumPy's."""

from dataclasses import replace

import numpy as np
import pytest

from swep_ds.analysis.answered import Answered
from swep_ds.analysis.domains import MEAN, changes, domains
from swep_ds.analysis.pages import template
from swep_ds.data.example import Example
from swep_ds.evaluation.results import Results
from swep_ds.evaluation.scores import SQUAD


def asked(right: list[int]) -> list[Answered]:
    """A question on a text of its own for each number, answered right (1) or wrong (0)."""
    examples = [Example(f"q{n}", "Who?", f"text {n} by Ada", ("Ada",), None, "t") for n in range(len(right))]
    return [Answered(of, "Ada" if v else "text", bool(v), 100.0 * v) for of, v in zip(examples, right, strict=True)]


def results(answered: dict[str, list[Answered]]) -> Results:
    scores = {}
    for name, items in answered.items():
        golds = {item.example.id: item.example.answers for item in items}
        scores[name] = SQUAD.score({item.example.id: item.predicted for item in items}, golds)
    return Results(method="swep", model="m", seed=0, world_size=1, eval=scores, versions={})


def bootstrap(*rights: list[int]) -> np.ndarray:
    """Means [4000, sets] of questions drawn with replacement, by another generator than the package's."""
    rng = np.random.default_rng(1)
    return np.stack([rng.choice(100.0 * np.array(right), (4000, len(right))).mean(1) for right in rights], axis=1)


def said(found: dict) -> tuple[str, str]:
    """The headline and the statement under it."""
    page = template("finding.html.jinja").module
    return page.headline(found).strip(), " ".join(page.statement(found).split())


def test_the_finding_and_its_interval():
    rights = {"wiki": [1] * 80 + [0] * 20, "news": [1] * 60 + [0] * 40, "forum": [1] * 20 + [0] * 80}
    answered = {name: asked(right) for name, right in rights.items()}
    found = domains(results(answered), answered)
    drawn = bootstrap(*rights.values())
    low, high = np.percentile(100 * (1 - drawn[:, 1:].mean(1) / drawn[:, 0]), [2.5, 97.5])
    assert found["loss"] == pytest.approx((50, low, high), abs=1.6)
    assert said(found) == (
        "On other domains the model loses 50 % of the exact answers that it gives at home.",
        "It answers 80.0 % of the questions of wiki, its source domain, exactly, and 40.0 % of those of 2 other "
        "domains on average. It does best on news (60.0 %) and worst on forum (20.0 %). The 95 % interval of the loss, "
        f"over questions, is {found['loss'].low:.0f} to {found['loss'].high:.0f} %.",
    )
    by_name = {row.name: row for row in found["rows"]}
    assert by_name["wiki"].gap is None
    assert by_name[MEAN].total is None
    assert by_name[MEAN].gap.value == pytest.approx(-40)
    gaps = np.percentile(drawn[:, 2] - drawn[:, 0], [2.5, 97.5])
    assert by_name["forum"].gap[1:] == pytest.approx(gaps, abs=1.6)
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
    found = domains(results(answered), answered)
    assert said(found)[0] == headline
    assert MEAN not in {row.name for row in found["rows"]}  # of a single other domain


def test_what_makes_intervals_missing_or_too_narrow_is_noted():
    answered = {"wiki": asked([1, 0] * 20), "news": asked([1, 0] * 20)}
    found = domains(results(answered), answered | {"news": asked([1] * 40)})
    [note] = found["notes"]
    assert note.startswith("news has no interval: on today's data its answers do not give the scores of the run")
    assert found["rows"][0].f1.low is not None
    assert found["rows"][1].f1.low is found["rows"][1].gap.low is found["loss"].low is None
    assert "interval of the loss" not in said(found)[1]
    answered = {name: asked([1, 0] * 10) for name in ("wiki", "news", "forum")}
    [note] = domains(results(answered), answered)["notes"]
    assert note.startswith("news, forum share question ids.")


def test_changes_are_paired_by_question():
    right, other = [1] * 50 + [0] * 50, [1] * 40 + [0] * 40 + [1] * 20
    items = [replace(item, other=there) for item, there in zip(asked(right), asked(other), strict=True)]
    answered = {name: items.copy() for name in ("wiki", "news", "forum")}
    rows = {row.name: row for row in changes(answered, list(answered))}
    assert (rows["news"].gained, rows["news"].lost) == (10, 20)
    assert (rows[MEAN].gained, rows[MEAN].lost) == (20, 40)
    assert rows["news"].f1.value == rows[MEAN].exact_match.value == pytest.approx(-10)
    [spread] = np.percentile(bootstrap([a - b for a, b in zip(right, other, strict=True)]), [2.5, 97.5], axis=0).T
    assert rows["news"].f1[1:] == pytest.approx(spread, abs=1.6)
    answered["news"][0] = asked([1])[0]  # which the other run did not answer
    assert [row.name for row in changes(answered, list(answered))] == ["wiki", "forum"]


def test_the_finding_counts_no_question_that_is_rightly_declined():
    """With the declined ones EM is 90 % at home and 67 % away, a loss of 26 %."""
    right = {"wiki": [1] * 80 + [0] * 20, "news": [1, 0, 0] * 40}
    lacking = [Example(f"n{n}", "Who?", f"text {n}", (), None, "t") for n in range(120)]
    declined = [Answered(example, "", True, 100.0) for example in lacking]
    answered = {"wiki": asked(right["wiki"]) + declined[:100], "news": asked(right["news"]) + declined}
    found = domains(results(answered), answered)
    drawn = [bootstrap(values)[:, 0] for values in right.values()]
    low, high = np.percentile(100 * (1 - drawn[1] / drawn[0]), [2.5, 97.5])
    assert found["loss"] == pytest.approx((100 * 7 / 12, low, high), abs=2)
    assert said(found)[1].startswith(
        "It answers 80.0 % of the questions with an answer of wiki, its source domain, exactly, and 33.3 % of those of "
        "news."
    )
    assert [row.exact_match.value for row in found["rows"]] == pytest.approx([80, 100 / 3])  # what the headline names
    assert [row.total for row in found["rows"]] == [100, 120]
    found = domains(results({"wiki": declined}), {})
    assert found["notes"] == ["No question of wiki, the source domain, has an answer."]
    assert found["rows"] == []
