"""Questions that are labelled over HTTP, and their scores, against `analysis.labelled` called by hand."""

import csv
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from swep_ds.analysis.labelled import estimate, labelling_order, read_labelled, suggest
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.choices import Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.scores import Scorer
from swep_ds.serve.app import build
from swep_ds.serve.labels import Labels
from swep_ds.serve.session import Session
from swep_ds.serve.verdicts import Verdicts
from swep_ds.texts.folder import FolderTexts
from tests.support.bad_input import refused
from tests.support.finished import finished

COUNT = 40
EXAMPLES = [
    Example(f"q{n}", f"When, of {n}?", f"\U0001f3db Built in {1800 + n}.", (), None, f"t{n}") for n in range(COUNT)
]
# the words that are right, without an answer every third time, and what two runs say: EM and F1 are alike
TRUTHS = [str(1800 + n) if n % 3 else "" for n in range(COUNT)]
DRAWN = np.random.default_rng(4).random((2, COUNT))
SAID = [[truth if chance < 0.6 else "Built" for truth, chance in zip(TRUTHS, of_run, strict=True)] for of_run in DRAWN]
ANSWERS = {
    f"runs/{run}": {f"q{n}": (text, 0.25) for n, text in enumerate(texts)}
    for run, texts in zip("ab", SAID, strict=True)
}
# the runs agree, and do not decline
PREDICTED = np.array([100.0 * (a == b != "") for a, b in zip(*SAID, strict=True)])
ORDER, STRATA = labelling_order(PREDICTED)


@pytest.fixture
def session(tmp_path) -> Session:
    verdicts = Verdicts(tmp_path / "labels.jsonl")
    return Session("label", "runs", None, verdicts, ready=True, labels=Labels(EXAMPLES, ANSWERS, Scorer()))


@pytest.fixture
def client(session) -> TestClient:
    return TestClient(build(session))


def label(client: TestClient, number: int, words: str) -> dict:
    """The reply to a label; no words: the context does not say."""
    verdict = {"question": EXAMPLES[number].question, "asked": f"q{number}"}
    if words:
        start = EXAMPLES[number].context.index(words)
        verdict |= {"start": start, "end": start + len(words)}
    return client.post("/verdicts", json=verdict).raise_for_status().json()


def by_hand(labelled: int) -> dict:
    """The scores after so many labels of the order."""
    rows = ORDER[:labelled]
    true_n = 50.0 * np.array([sum(said[row] == TRUTHS[row] for said in SAID) for row in rows])
    expected = estimate(true_n, PREDICTED, rows, STRATA[:labelled])
    bounds = {name: pytest.approx(float(getattr(expected, name))) for name in ("mean", "low", "high")}
    return bounds | {"more_labels": expected.more_labels}


def test_all_questions_are_labelled_in_order_and_each_label_moves_the_scores(client, session, tmp_path):
    for labelled, row in enumerate(ORDER, 1):
        asked = client.get("/next").json()
        example = EXAMPLES[row]
        shown = {"asked": example.id, "question": example.question, "context": example.context}
        assert asked == shown | {"labelled": labelled - 1, "of": COUNT}
        reply = label(client, row, TRUTHS[row])
        said = [{"run": f"runs/{run}", "answer": SAID[n][row], "probability": 0.25} for n, run in enumerate("ab")]
        assert (reply["id"], reply["verdicts"], reply["said"]) == (example.id, labelled, said)
        counts = np.bincount(STRATA[:labelled], minlength=5)
        assert reply["scores"] == client.get("/scores").json()
        assert reply["scores"]["labelled"] == labelled
        assert reply["scores"]["least"] == max(labelled, 15)
        if labelled < 15:
            assert reply["scores"]["f1"] is None
        else:
            assert counts.min() >= 3
            assert reply["scores"]["f1"] == reply["scores"]["exact_match"] == by_hand(labelled)
        if labelled in (25, 31, 40):
            assert set(suggest(PREDICTED, labelled)[0]) == set(ORDER[:labelled])
    assert client.get("/next").json()["asked"] is None
    score = reply["scores"]["exact_match"]
    plain = 100 * np.mean([[text == truth for text, truth in zip(said, TRUTHS, strict=True)] for said in SAID])
    assert [score[name] for name in ("mean", "low", "high")] == pytest.approx([plain] * 3, abs=1e-3)
    (tmp_path / "pairs.csv").write_bytes(client.get("/exports/pairs.csv").content)
    for file in (session.verdicts.path, tmp_path / "pairs.csv"):
        labels = read_labelled(file, EXAMPLES)
        assert (labels.rows.tolist(), labels.strata.tolist()) == (ORDER.tolist(), STRATA.tolist())
        assert [example.answers for example in labels.examples] == [(TRUTHS[row],) * bool(TRUTHS[row]) for row in ORDER]


def test_skipped_questions_come_last(client):
    first, second, third = (f"q{row}" for row in ORDER[:3])
    assert client.get("/next", params={"skip": [first, third]}).json()["asked"] == second
    assert client.get("/next", params={"skip": [example.id for example in EXAMPLES]}).json()["asked"] == first


def test_what_two_people_mark_is_pooled_and_undone(client, session):
    for row in ORDER[:15]:
        before = label(client, row, TRUTHS[row])["scores"]
    row = next(row for row in ORDER[:15] if SAID[0][row] != TRUTHS[row] != "")
    other = label(client, row, SAID[0][row])
    assert other["scores"]["labelled"] == 15
    assert other["scores"]["f1"]["mean"] > before["f1"]["mean"]
    assert other["id"].startswith(f"q{row} ")
    assert client.delete(f"/verdicts/{other['id']}").json() == {"verdicts": 15, "scores": before}
    assert "was removed before" in client.delete(f"/verdicts/{other['id']}").json()["detail"]
    assert len(session.verdicts.rows) == 15


def test_labels_that_do_not_fit_are_refused(client, session):
    for words, said in (
        ({"asked": "q99", "start": 0, "end": 1}, "asked: no question has the id 'q99'"),
        ({"asked": None}, "asked: no question has the id None"),
        ({"asked": "q1", "start": 8, "end": 900}, "mark words of it"),
        ({"asked": "q1", "start": 1, "end": 2}, "mark words of it"),  # a blank
        ({"asked": "q1", "start": 2, "end": 2}, "must be greater than start"),
        ({"asked": "q1", "start": 2}, "must be greater than start"),
    ):
        reply = client.post("/verdicts", json={"question": "When?", **words})
        assert reply.status_code == 422
        assert said in reply.json()["detail"]
    assert session.verdicts.rows == {}
    label(client, 1, "Built")
    said = "labels.jsonl: the verdict 'q1' is about another set of questions: name another file"
    for others in (EXAMPLES[2:], EXAMPLES[:30]):
        assert refused(Labels(others, ANSWERS, Scorer()).check, session.verdicts.rows, "labels.jsonl") == said
    assert refused(Labels, EXAMPLES[:14], ANSWERS, Scorer()) == "--label: 14 questions: give at least 15"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return finished(tmp_path_factory.mktemp("labels") / "run", "mle")


def test_questions_over_a_folder_are_labelled_anywhere_in_it(run, tmp_path):
    (tmp_path / "museum").mkdir()
    for n in range(3):
        text = f"The bridge {n} was founded by an abbot in {1850 + n}. {'It was old. ' * 200}Tram {n} stops."
        (tmp_path / "museum" / f"t{n}.txt").write_text(text)
    rows = [(f"q{n}", f"When was the bridge {n % 3} founded?") for n in range(15)]
    with (tmp_path / "asked.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "question"), *rows])
    texts = FolderTexts(tmp_path / "museum", "texts")
    session = Session("label", "runs", texts, Verdicts(tmp_path / "labels.jsonl"))
    client = TestClient(build(session))
    assert client.get("/next").status_code == 503
    session.load_labels([run], str(tmp_path / "asked.csv"), ())
    client.get("/next").raise_for_status()
    [replies] = (QuestionAnswerer(run / "model").over(texts)(rows[1][1]),)
    name, text = "t1.txt", texts["t1.txt"]
    version = client.get("/text", params={"name": name}).json()["version"]
    start = text.index("Tram")
    marked = {"text": name, "version": version, "start": start, "end": start + 6}
    said = client.post("/verdicts", json={"question": rows[1][1], "asked": "q1", **marked}).json()["said"]
    assert (said[0]["run"], said[0]["answer"]) == (str(run), replies[0].text)
    assert said[0]["probability"] == pytest.approx(replies[0].confidence, rel=1e-3)
    client.post("/verdicts", json={"question": rows[2][1], "asked": "q2"}).raise_for_status()
    examples = read_examples(str(session.verdicts.path), training=True, choices=Choices(unanswerable="train"))
    assert [(example.id, example.article) for example in examples] == [("q1", name), ("q2", "t2.txt")]
    [words, none] = examples
    assert words.context[slice(*words.span)] == "Tram 1"
    assert words.context in text
    assert len(words.context) < len(text)
    assert none.span is None
    assert none.context in texts["t2.txt"]
    (tmp_path / "museum" / name).write_text(f"New. {text}")
    reply = client.post("/verdicts", json={"question": rows[1][1], "asked": "q1", **marked})
    assert (reply.status_code, len(session.verdicts.rows)) == (409, 2)
    session.texts = None
    said = f"--label {tmp_path}/asked.csv: question 'q0' has no context: give it, or --texts"
    assert refused(session.load_labels, [run], str(tmp_path / "asked.csv"), ()) == said
