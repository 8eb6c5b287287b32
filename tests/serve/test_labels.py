"""Questions that are labelled over HTTP, and their scores, against `analysis.labelled` called by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from swep_ds.analysis.labelled import estimate, labelling_order, read_labelled, suggest
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.example import Example
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.asked import numbers, write_asked
from swep_ds.serve.app import build
from swep_ds.serve.exports import EXPORTS
from swep_ds.serve.labels import Labels, check_questions
from swep_ds.serve.session import Session
from swep_ds.serve.verdicts import Verdicts
from swep_ds.texts.folder import FolderTexts
from tests.serve.test_verdicts import read
from tests.support.bad_input import refused
from tests.support.finished import finished

COUNT = 40
EXAMPLES = [
    Example(f"q{n}", f"When, of {n}?", f"\U0001f3db Built in {1800 + n}.", (), None, f"t{n}") for n in range(COUNT)
]
# the words that are right, "" every third time, and what two runs say: EM and F1 are alike
TRUTHS = [str(1800 + n) if n % 3 else "" for n in range(COUNT)]
DRAWN = np.random.default_rng(4).random((2, COUNT))
SAID = [[truth if chance < 0.6 else "Built" for truth, chance in zip(TRUTHS, of_run, strict=True)] for of_run in DRAWN]
ANSWERS = {name: {f"q{n}": (text, 0.25) for n, text in enumerate(said)} for name, said in zip("ab", SAID, strict=True)}
RIGHT = 50.0 * np.array([(a == truth) + (b == truth) for a, b, truth in zip(*SAID, TRUTHS, strict=True)])
PREDICTED = np.array([100.0 * (a == b != "") for a, b in zip(*SAID, strict=True)])  # the runs agree on words
ORDER, STRATA = labelling_order(PREDICTED)


@pytest.fixture
def session(tmp_path) -> Session:
    verdicts = Verdicts(tmp_path / "labels.jsonl")
    return Session("label", ["a", "b"], None, verdicts, ready=True, labels=Labels(EXAMPLES, ANSWERS, Scorer()))


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


def test_questions_are_labelled_in_order_and_each_label_moves_the_scores(client, session, tmp_path):
    assert client.get("/state").json()["model"] == "the mean of a, b"
    scores = {"labelled": 0, "waiting": 0, "least": 15, "questions": COUNT, "exact_match": None, "f1": None}
    for labelled, row in enumerate(ORDER, 1):
        example, counts = EXAMPLES[row], {"verdicts": labelled - 1, "scores": scores}
        shown = {"asked": example.id, "question": example.question, "context": example.context}
        assert client.get("/next").json() == shown | counts  # and not what the runs said
        reply = label(client, row, TRUTHS[row])
        said = [{"run": name, "answer": SAID[n][row], "probability": 0.25} for n, name in enumerate("ab")]
        assert (reply["id"], reply["verdicts"], reply["said"]) == (example.id, labelled, said)
        scores = reply["scores"]
        assert (scores["labelled"], scores["least"], scores["questions"]) == (labelled, max(labelled, 15), COUNT)
        if labelled < 15:
            assert scores["f1"] is None
            continue
        assert np.bincount(STRATA[:labelled]).min() >= 3
        expected = estimate(RIGHT[ORDER[:labelled]], PREDICTED, ORDER[:labelled], STRATA[:labelled])
        assert scores["f1"] == scores["exact_match"]
        for name, value in scores["f1"].items():
            assert value == pytest.approx(getattr(expected, name))
        if labelled in (25, 31, 40):
            assert set(suggest(PREDICTED, labelled)[0]) == set(ORDER[:labelled])
    assert client.get("/next").json()["asked"] is None
    assert [scores["f1"][name] for name in ("mean", "low", "high")] == pytest.approx([RIGHT.mean()] * 3, abs=1e-3)
    (tmp_path / "pairs.csv").write_bytes(client.get("/exports/pairs.csv").content)
    for file in (session.verdicts.path, tmp_path / "pairs.csv"):
        labels = read_labelled(file, EXAMPLES)
        assert (labels.rows.tolist(), labels.strata.tolist()) == (ORDER.tolist(), STRATA.tolist())
        assert ["".join(example.answers) for example in labels.examples] == [TRUTHS[row] for row in ORDER]


def test_questions_are_skipped_and_the_marks_of_two_people_are_pooled(client):
    first, second, third = (f"q{row}" for row in ORDER[:3])
    assert client.get("/next", params={"skip": [first, third]}).json()["asked"] == second
    others = [example.id for example in EXAMPLES if example.id != third]
    assert client.get("/next", params={"skip": [third, *others]}).json()["asked"] == third  # it was skipped first
    for row in ORDER[:15]:
        before = label(client, row, TRUTHS[row])["scores"]
    row = next(row for row in ORDER[:15] if SAID[0][row] != TRUTHS[row] != "")
    other = label(client, row, SAID[0][row])
    assert other["id"].startswith(f"q{row} ")
    assert other["scores"]["labelled"] == 15
    assert other["scores"]["f1"]["mean"] > before["f1"]["mean"]
    assert client.delete(f"/verdicts/{other['id']}").json() == {"verdicts": 15, "scores": before}


def test_labels_behind_a_skipped_question_of_their_stratum_wait_for_it(client):
    """People skip what is hard: without this the scores of easy questions would be taken for those of all."""
    skipped = ORDER[15]  # the first after the three of each stratum
    of_stratum = [row for row, stratum in zip(ORDER, STRATA, strict=True) if stratum == STRATA[15]]
    for row in ORDER[:15]:
        before = label(client, row, TRUTHS[row])["scores"]
    behind = of_stratum[of_stratum.index(skipped) + 1]
    after = label(client, behind, TRUTHS[behind])["scores"]
    assert (after["f1"], after["labelled"], after["waiting"]) == (before["f1"], 16, 1)
    after = label(client, skipped, TRUTHS[skipped])["scores"]
    assert (after["f1"] != before["f1"], after["waiting"]) == (True, 0)


def test_a_question_that_was_skipped_holds_the_scores_up_alone(client):
    """However many are labelled behind it, one label more shows the scores."""
    for row in ORDER[1:16]:
        scores = label(client, row, TRUTHS[row])["scores"]
    of_first = sum(stratum == STRATA[0] for stratum in STRATA[1:16])
    assert (scores["f1"], scores["waiting"], scores["least"]) == (None, of_first, 16)
    assert label(client, ORDER[0], TRUTHS[ORDER[0]])["scores"]["f1"] is not None


def test_what_one_person_is_shown_another_is_not(client):
    first, second = (client.get("/next").json()["asked"] for _ in range(2))
    assert (first, second) == tuple(EXAMPLES[row].id for row in ORDER[:2])


def test_labels_that_do_not_fit_are_refused(client, session):
    for words, said in (
        ({"asked": "q99", "start": 0, "end": 1}, "asked: no question has the id 'q99'"),
        ({"asked": None}, "asked: no question has the id None"),
        ({"asked": "q1", "start": 8, "end": 900}, "characters 8 to 900: the text has no words there"),
        ({"asked": "q1", "start": 1, "end": 2}, "characters 1 to 2: the text has no words there"),  # a blank
        ({"asked": "q1", "start": 2}, "request: end: must be greater than start"),
    ):
        reply = client.post("/verdicts", json={"question": "When?", **words})
        assert (reply.status_code, reply.json()["detail"].startswith(said)) == (422, True), reply.text
    assert session.verdicts.rows == {}
    label(client, 1, "Built")
    for others in (EXAMPLES[2:], [replace(example, question="Why?") for example in EXAMPLES]):
        said = "F: the verdict 'q1' is about another set of questions: name another file"
        assert refused(check_questions, others, session.verdicts.rows, "F") == said
    assert refused(check_questions, EXAMPLES[:14], {}, "F") == "--label: 14 questions: give at least 15"


def test_a_file_of_labels_takes_no_corrections(client, session, tmp_path):
    label(client, ORDER[0], TRUTHS[ORDER[0]])
    said = refused(Session, "ask", ["model"], None, session.verdicts)
    assert said.endswith("holds labels of --label: name another file")


def test_no_reply_to_who_labels_says_where_this_machine_keeps_its_files(tmp_path):
    """Nor an export, though a text without a title is named by its file."""
    run = finished(tmp_path / "run", "mle")
    paragraphs = [{"context": e.context, "qas": [{"id": e.id, "question": e.question}]} for e in EXAMPLES]
    (tmp_path / "asked.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    session = Session("label", [str(run)], None, Verdicts(tmp_path / "labels.jsonl"))
    session.load_labels(session.read_questions(str(tmp_path / "asked.json"), ()))
    client = TestClient(build(session))
    texts = [json.dumps(label(client, 1, "Built"))]
    texts += [client.get(path).raise_for_status().text for path in ("/state", "/next", "/verdicts")]
    texts += [client.get(f"/exports/{name}").text for name in EXPORTS]
    assert not [text for text in texts if str(tmp_path) in text]
    assert [row["title"] for row in session.verdicts.rows.values()] == ["asked.json: data[0]"]


def test_a_run_is_not_scored_on_the_labels_that_it_was_trained_on(tmp_path, caplog):
    run = finished(tmp_path / "run", "mle")
    rows = [{"id": e.id, "question": e.question, "context": e.context, "title": e.article} for e in EXAMPLES]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    verdicts = Verdicts(tmp_path / "labels.jsonl")

    def opened() -> Session:
        session = Session("label", [str(run)], None, verdicts)
        session.load_labels(session.read_questions(str(tmp_path / "asked.jsonl"), ()))
        return session

    client = TestClient(build(opened()))
    earlier = 0
    for number in range(12):
        reply = label(client, number, TRUTHS[number])
        earlier += number >= 10 and reply["said"][0]["answer"] == TRUTHS[number]
    counts = reply["scores"]["labelled"], reply["scores"]["questions"]
    write_asked(run / "model", {"trained": numbers(read(tmp_path / "labels.jsonl")[:10]), "held_out": numbers([])})
    again = TestClient(build(opened()))
    assert "10 labels are training data of run: their questions are left out of the scores" in caplog.text
    scores = again.get("/next").json()["scores"]
    assert (counts, (scores["labelled"], scores["questions"])) == ((12, 40), (2, 30))
    right = []
    for number in range(12, 40):
        reply = label(again, number, TRUTHS[number])
        [said] = reply["said"]
        right.append(said["answer"] == TRUTHS[number])
    assert reply["scores"]["exact_match"]["mean"] == pytest.approx(100 * (sum(right) + earlier) / 30)


def test_questions_over_a_folder_are_labelled_anywhere_in_it(tmp_path):
    run = finished(tmp_path / "run", "mle")
    (tmp_path / "museum").mkdir()
    for n in range(3):
        text = f"The bridge {n} was founded by an abbot in {1850 + n}. {'It was old. ' * 200}Tram {n} stops."
        Path(tmp_path / "museum" / f"t{n}.txt").write_text(text)
    rows = [{"id": f"q{n}", "question": f"When was the bridge {n % 3} founded?"} for n in range(15)]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = FolderTexts(tmp_path / "museum", "texts")
    session = Session("label", [str(run)], texts, Verdicts(tmp_path / "labels.jsonl"))
    session.load_labels(session.read_questions(str(tmp_path / "asked.jsonl"), ()))
    client, text = TestClient(build(session)), texts["t1.txt"]
    place = {"text": "t1.txt", "start": text.index("Tram"), "end": text.index("Tram") + 6}
    marked = (
        rows[1]
        | place
        | {"asked": rows[1]["id"], "version": client.post("/text", json={"name": "t1.txt"}).json()["version"]}
    )
    del marked["id"]
    [said] = client.post("/verdicts", json=marked).json()["said"]
    [reply] = QuestionAnswerer(run / "model").over(texts)(rows[1]["question"])
    assert said == {"run": "run", "answer": reply.text, "probability": pytest.approx(reply.confidence, rel=1e-3)}
    client.post("/verdicts", json={"question": "When?", "asked": "q2"}).raise_for_status()
    words, none = read(session.verdicts.path)
    assert [(words.id, words.article, words.answers), (none.id, none.article, none.answers)] == [
        ("q1", "t1.txt", ("Tram 1",)),
        ("q2", "t2.txt", ()),
    ]
    assert words.context in text
    assert len(words.context) < len(text)
    assert none.context in texts["t2.txt"]
    (tmp_path / "museum" / "t1.txt").write_text(f"New. {text}")
    assert (client.post("/verdicts", json=marked).status_code, len(session.verdicts.rows)) == (409, 2)
    session.texts = None
    said = "asked.jsonl: question 'q0' has no context: give it, or --texts"
    assert refused(session.read_questions, str(tmp_path / "asked.jsonl"), ()).endswith(said)
