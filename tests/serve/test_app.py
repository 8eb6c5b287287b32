"""Questions over HTTP, against the answerer asked alone; texts that change, bad requests, hostile names."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.common.errors import InputError
from swep_ds.data.choices import Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.serve.app import HEADERS, build
from swep_ds.serve.session import Session
from swep_ds.serve.verdicts import Verdicts
from swep_ds.texts.folder import FolderTexts
from tests.support.finished import write_reading
from tests.support.tiny_run import prepare

TEXTS = {
    "abbey.txt": "\U0001f3db The abbey was founded in 1204 by an abbot.\n\nIt was built again in 1250. " * 9,
    "college.md": "# College\n\nThe college was opened by the king, and the abbot founded the library in 1300.",
    "<b>.txt": "<script>The bridge over the river</script> was built in 1998 by the abbot.",
    "none.txt": "?!",
}
JSON = {"content-type": "application/json"}
LATIN = os.fsdecode(b"caf\xe9.txt")
QUESTIONS = [
    f"{word} {verb} the {what}?"
    for word in ("Who", "When")
    for verb in ("founded", "built")
    for what in ("abbey", "college", "bridge", "library", "river", "abbot")
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    prepare(folder)
    write_reading(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def module_session(model, tmp_path_factory) -> Session:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "texts").mkdir()
    (folder / "secret.txt").write_text("The abbot founded a secret.")
    (folder / "texts" / "link.txt").symlink_to(folder / "secret.txt")
    for name, text in TEXTS.items():
        (folder / "texts" / name).write_text(text)
    texts = FolderTexts(folder / "texts", "texts", links_out=False)
    session = Session("ask", str(model), texts, Verdicts(folder / "corrections.jsonl"))
    session.load_model()
    return session


@pytest.fixture
def session(module_session) -> Iterator[Session]:
    """With its first texts, and nothing that was asked before."""
    yield module_session
    for name, text in TEXTS.items():
        (module_session.texts.folder / name).write_text(text)
    module_session.asking._refresh()
    module_session.asking._known.clear()


@pytest.fixture
def client(session) -> Iterator[TestClient]:
    """Each reply has the headers."""

    def check(response) -> None:
        assert HEADERS.items() <= {name: response.headers.get(name) for name in HEADERS}.items()

    with TestClient(build(session), raise_server_exceptions=False) as client:
        client.event_hooks["response"] = [check]
        yield client


def ask(client: TestClient, question: str, n_best: int = 3) -> dict:
    reply = client.post("/answer", json={"question": question, "n_best": n_best})
    assert reply.status_code == 200, reply.text
    return reply.json()


def read(file: Path) -> list[Example]:
    return read_examples(str(file), training=True, choices=Choices(unanswerable="train"))


def check_places(session: Session, reply: dict) -> None:
    for place in (reply, *reply["others"]):
        text = (session.texts.folder / place["text"]).read_text()
        assert text[place["start"] : place["end"]] == place["answer"] != ""
        begin = place["start"] - place["passage_start"]
        assert place["passage"][begin : begin + len(place["answer"])] == place["answer"]
        assert text[place["passage_start"] :].startswith(place["passage"])


def test_many_at_once_are_answered_as_each_alone(client, session, model):
    alone = QuestionAnswerer(model).over(session.texts)
    asked = QUESTIONS[:20] * 3
    with ThreadPoolExecutor(60) as threads:
        replies = list(threads.map(lambda question: ask(client, question), asked))
    for question, reply in zip(asked, replies, strict=True):
        assert reply["question"] == question
        expected = alone(question, 3)
        places = [
            (place["text"], place["start"], place["end"], place["page"], place["heading"])
            for place in (reply, *reply["others"])
        ]
        assert places == [(answer.name, answer.start, answer.end, answer.page, answer.heading) for answer in expected]
        numbers = [reply["confidence"], *(place["probability"] for place in (reply, *reply["others"]))]
        assert numbers == pytest.approx(
            [expected[0].confidence, *(answer.probability for answer in expected)], rel=1e-3
        )
        check_places(session, reply)
    assert ask(client, asked[0], 1)["others"] == []


def test_why_a_question_is_declined(client, session, monkeypatch):
    reply = ask(client, "zebra")
    assert (reply["answer"], reply["text"], reply["others"]) == ("", None, [])
    assert reply["declined"] == "no passage of the texts shares a word with the question"
    for settings, question, said in (
        ({"min_confidence": 0.999}, QUESTIONS[0], "the confidence in the best answer is below 0.999"),
        ({"null_threshold": -1e9}, QUESTIONS[1], "the passages that were read do not seem to answer it"),
    ):
        with monkeypatch.context() as patched:
            for name, value in settings.items():
                patched.setattr(session.asking._answerer, name, value)
            reply = ask(client, question)
        assert (reply["answer"], reply["text"], reply["declined"]) == ("", None, said)
        assert len(reply["others"]) == 2
        check_places(session, reply["others"][0] | {"others": reply["others"]})


def test_a_changed_text_is_never_answered_with_its_old_places(client, session):
    question = "Who founded the abbey, the college or the bridge?"
    names = {"college.md", "<b>.txt", "abbey.txt"}
    first = ask(client, question, 9)
    assert {place["text"] for place in (first, *first["others"])} == names
    for name in names:
        (session.texts.folder / name).write_text(f"New. {TEXTS[name]}")
        check_places(session, ask(client, question, 9))
    verdict = {"question": question, **{name: first[name] for name in ("text", "version", "start", "end")}}
    reply = client.post("/verdicts", json=verdict)
    assert reply.status_code == 409
    assert reply.json()["detail"].startswith(f"{first['text']} has changed since it was shown: ask again")
    (session.texts.folder / "college.md").unlink()
    reply = ask(client, question, 9)
    assert {place["text"] for place in (reply, *reply["others"])} == names - {"college.md"}


def test_a_question_is_asked_again_once_the_texts_hold_more(client, session):
    assert ask(client, "Patients?")["text"] is None
    (session.texts.folder / "college.md").write_text("The king received patients in the college.")
    ask(client, "Who opened the college?")  # which indexes what has changed
    session.asking._looked -= 11
    assert ask(client, "Patients?")["text"] == "college.md"


def test_bad_requests_get_a_sentence_and_not_their_words(client, session):
    for field, sent in (
        ("question", {"question": " \n"}),
        ("question", {"question": "secretword " * 100}),
        ("question", '{"question": "secretword \\ud800"}'),
        ("n_best", {"question": "Who?", "n_best": 11}),
        ("extra", {"question": "Who?", "extra": "secretword"}),
        ("", '{"question": secretword}'),
    ):
        content = {"content": sent, "headers": JSON} if isinstance(sent, str) else {"json": sent}
        reply = client.post("/answer", **content)
        assert reply.status_code == 422
        assert reply.json()["detail"].startswith(field)
        assert "secretword" not in reply.text
    large = b'{"question": "' + b"x" * 10**7
    for content in (large, iter([large[:1000], large[1000:]])):
        reply = client.post("/answer", content=content)
        assert (reply.status_code, reply.json()["detail"][:44]) == (413, "the request is larger than 1,048,576 bytes: ")
    for method, path, said in (
        ("GET", "/next", "no questions are labelled here: give --label"),
        ("GET", "/exports/x.csv", "x.csv: is none of squad.json, pairs.csv, label-studio.json"),
        ("GET", "/none", "Not Found"),
        ("GET", "/page.py", "kind"),
        ("DELETE", "/verdicts/..%2fx", "this verdict was removed before"),
    ):
        assert client.request(method, path).json()["detail"].startswith(said)
    for path in ("/", "/page.css", "/page.js", "/state", "/openapi.json", "/exports/squad.json"):
        client.get(path).raise_for_status()


def test_nothing_is_answered_before_it_is_ready(tmp_path):
    client = TestClient(build(Session("ask", "m", None, Verdicts(tmp_path / "c.jsonl"))))
    for reply in (client.post("/answer", json={"question": "Who?"}), client.get("/text?name=a"), client.get("/next")):
        assert reply.status_code == 503
        assert reply.json()["detail"].startswith("not ready yet: ")
    assert client.get("/state").json()["ready"] is False


def test_no_file_outside_of_the_folder_is_read(client, session):
    inside = session.texts.folder
    for name in (
        "../secret.txt",
        str(inside / "abbey.txt"),
        str(inside.parent / "secret.txt"),
        "link.txt",
        "./abbey.txt",
        "",
    ):
        verdict = {"question": "Who?", "text": name, "version": "", "start": 0, "end": 3}
        for reply in (client.get("/text", params={"name": name}), client.post("/verdicts", json=verdict)):
            assert reply.status_code == 422
            assert "no such text" in reply.json()["detail"]
    assert client.get("/texts").json() == {"names": sorted(TEXTS), "count": 4}
    assert client.get("/texts", params={"part": "<B"}).json()["names"] == ["<b>.txt"]
    assert client.get("/text", params={"name": "<b>.txt"}).json()["text"] == TEXTS["<b>.txt"]


def test_a_name_that_is_no_utf_8_breaks_nothing(client, session):
    file = session.texts.folder / LATIN
    file.write_text("Patients received 10 mg of the drug twice daily.")
    session.asking._refresh()
    try:
        reply = ask(client, "Patients twice daily?", 1)
        assert (reply["text"], reply["answer"] != "") == (LATIN, True)
        assert client.get("/texts").json()["names"][-1] != ""
        assert client.get("/passages", params={"question": "drug"}).json()["passages"][0]["text"] == LATIN
        marked = {name: reply[name] for name in ("text", "version", "start", "end")}
        for verdict in (marked, {}):
            content = json.dumps({"question": "Patients twice daily?", **verdict})
            client.post("/verdicts", content=content, headers=JSON).raise_for_status()
        assert [example.article for example in read(session.verdicts.path)[-2:]] == [LATIN] * 2
        client.get("/exports/squad.json").raise_for_status()
    finally:
        file.unlink()


def test_a_fault_of_one_question_fails_no_other(client, session, monkeypatch):
    answer = session.asking._asks.answer

    def faulty(questions, n_best):
        if QUESTIONS[0] in questions:
            raise RuntimeError("no luck")
        if QUESTIONS[1] in questions:
            raise InputError("not this one")
        return answer(questions, n_best)

    monkeypatch.setattr(session.asking._asks, "answer", faulty)
    together = [session.asking.ask(question, 1) for question in QUESTIONS[:12]]
    with ThreadPoolExecutor(12) as threads:
        replies = list(threads.map(lambda q: client.post("/answer", json={"question": q}), QUESTIONS[:12]))
    assert [reply.status_code for reply in replies] == [500, 422, *[200] * 10]
    assert replies[0].json()["detail"] == "the server failed (RuntimeError: no luck): its terminal says more"
    assert [future.exception() is None for future in together] == [False, False, *[True] * 10]


def test_corrections(client, session):
    reply = ask(client, QUESTIONS[0], 1)
    said = {name: reply[name] for name in ("answer", "probability", "confidence", "text", "start", "end", "version")}
    place = {name: reply[name] for name in ("text", "version", "start", "end")}
    for verdict in (place, place | {"start": 0, "end": 1}, {}):
        client.post("/verdicts", json={"question": QUESTIONS[0], "said": said, **verdict}).raise_for_status()
    right, wrong, none = list(session.verdicts.rows.values())[-3:]
    assert (right["right"], wrong["right"], none["right"]) == (True, False, False)
    for row in (right, none):
        assert row["context"][row["said"]["start"] : row["said"]["end"]] == reply["answer"]
    assert (wrong["answers"], none["answers"]["text"]) == ({"text": ["\U0001f3db"], "answer_start": [0]}, [])
    for bad in (said | {"end": None}, said | {"text": None}, said | {"start": 10**6, "end": 10**6 + 1}):
        assert client.post("/verdicts", json={"question": "Who?", "said": bad}).status_code == 422
    bad = {"question": "Who?", "text": "none.txt", "version": client.get("/text?name=none.txt").json()["version"]}
    assert client.post("/verdicts", json=bad | {"start": 0, "end": 1}).status_code == 422


def test_a_generative_model_gives_one_answer(tmp_path):
    prepare(tmp_path, architecture="t5")
    write_reading(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(TEXTS["college.md"])
    session = Session(
        "ask", str(tmp_path / "model"), FolderTexts(tmp_path / "texts", "t"), Verdicts(tmp_path / "c.jsonl")
    )
    session.load_model(null_threshold=1e6)
    client = TestClient(build(session))
    assert ask(client, "Who founded it?", 1)["declined"] is None
    reply = client.post("/answer", json={"question": "Who?", "n_best": 2})
    assert (reply.status_code, reply.json()["detail"]) == (422, "n_best: this model gives 1: ask for no more")
