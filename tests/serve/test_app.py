"""Questions over HTTP, against the answerer asked alone; changed texts, bad requests, hostile names; the command."""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from swep_ds import __main__ as command
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.common.errors import InputError
from swep_ds.evaluation.spans import Answer
from swep_ds.serve.app import HEADERS, build
from swep_ds.serve.asking import _Asked
from swep_ds.serve.session import Session
from swep_ds.serve.verdicts import Verdicts
from swep_ds.texts.folder import FolderTexts
from tests.serve.test_verdicts import read
from tests.support.finished import finished, write_reading
from tests.support.fork_server import free_port
from tests.support.tiny_run import prepare

TEXTS = {
    "<b>.txt": "<script>The bridge over the river</script> was built in 1998 by the abbot.",
    "abbey.txt": "\U0001f3db The abbey was founded in 1204 by an abbot.\n\nIt was built again in 1250. " * 9,
    "college.md": "# College\n\nThe college was opened by the king, and the abbot founded the library in 1300.",
    "none.txt": "?!",
}
WITH_WORDS = {name for name in TEXTS if name != "none.txt"}
WHATS = ("abbey", "college", "bridge", "library", "river")
QUESTIONS = [f"{word} {verb} the {what}?" for word, verb, what in product(("Who", "When"), ("founded", "built"), WHATS)]
JSON = {"content-type": "application/json"}
PLACE = ("text", "version", "start", "end")


def made_session(folder: Path, architecture: str, **settings) -> Session:
    """Serves a tiny model over the folder's texts."""
    prepare(folder, architecture=architecture)
    write_reading(folder / "model")
    (folder / "texts").mkdir()
    for name, text in TEXTS.items():
        (folder / "texts" / name).write_text(text)
    (folder / "secret.txt").write_text("The abbot founded a secret.")
    (folder / "texts" / "link.txt").symlink_to(folder / "secret.txt")
    texts = FolderTexts(folder / "texts", "texts", links_out=False)
    (folder / "kept").mkdir()
    session = Session("ask", [str(folder / "model")], texts, Verdicts(folder / "kept" / "corrections.jsonl"))
    session.load_model(**settings)
    return session


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> Session:
    return made_session(tmp_path_factory.mktemp("app"), "bert")


@pytest.fixture
def session(loaded) -> Iterator[Session]:
    """With its first texts, and nothing that was asked before."""
    yield loaded
    for name, text in TEXTS.items():
        (loaded.texts.folder / name).write_text(text)
    loaded.shown.index.refresh()
    loaded.asking._kept.clear()


@pytest.fixture
def client(session) -> Iterator[TestClient]:
    """Each reply has the headers, and none says where this machine keeps its files."""

    def check(response) -> None:
        assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
        response.read()
        assert str(session.texts.folder.parent) not in response.text

    with TestClient(build(session), raise_server_exceptions=False) as client:
        client.event_hooks["response"] = [check]
        yield client


def ask(client: TestClient, question: str, n_best: int = 3) -> dict:
    reply = client.post("/answer", json={"question": question, "n_best": n_best})
    assert reply.status_code == 200, reply.text
    return reply.json()


def opened(client: TestClient, name: str) -> dict:
    return client.post("/text", content=json.dumps({"name": name}), headers=JSON).raise_for_status().json()


def checked(session: Session, places: list[dict]) -> set[str]:
    """The texts of answers, each of which says there now what the answer says."""
    for place in places:
        text = (session.texts.folder / place["text"]).read_text()
        assert text[place["start"] : place["end"]] == place["answer"] != ""
        assert place["passage"][place["start"] - place["passage_start"] :].startswith(place["answer"])
        assert text[place["passage_start"] :].startswith(place["passage"])
    return {place["text"] for place in places}


def test_many_at_once_are_answered_as_each_alone(client, session):
    alone = QuestionAnswerer(session.served[0]).over(session.texts)
    with ThreadPoolExecutor(60) as threads:
        replies = list(threads.map(lambda question: ask(client, question), QUESTIONS * 3))
    expected_of = {question: alone(question, 3) for question in QUESTIONS}
    for question, reply in zip(QUESTIONS * 3, replies, strict=True):
        expected, places = expected_of[question], [reply, *reply["others"]]
        assert reply["question"] == question
        for answer, place in zip(expected, places, strict=True):
            fields = (place["text"], place["start"], place["end"], place["page"], place["heading"])
            assert fields == (answer.name, answer.start, answer.end, answer.page, answer.heading)
            assert place["probability"] == pytest.approx(answer.probability, rel=1e-3)  # other batches round otherwise
        assert reply["confidence"] == pytest.approx(expected[0].confidence, rel=1e-3)
        checked(session, places)
    assert ask(client, QUESTIONS[0], 1)["others"] == []


def test_a_declined_question_says_why(client, session, monkeypatch):
    reply = ask(client, "zebra")
    assert (reply["declined"], reply["others"]) == ("no passage of the texts shares a word with the question", [])
    for question, name, value, said in (
        (QUESTIONS[0], "min_confidence", 0.999, "the confidence in the best answer is below 0.999"),
        (QUESTIONS[1], "null_threshold", -1e9, "the passages that were read do not seem to answer it"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(session.asking._answerer, name, value)
            reply = ask(client, question)
        assert (reply["answer"], reply["text"], reply["declined"]) == ("", None, said)
        assert len(reply["others"]) == 2
        checked(session, reply["others"])


def test_a_question_that_is_too_long_says_what_is_not_read(client, session):
    limit, question = session.asking._answerer._saved.windows.max_query_length, "Who founded the college? " * 20
    assert ask(client, QUESTIONS[0])["remark"] is None
    tokenizer = AutoTokenizer.from_pretrained(session.served[0])
    encoded = tokenizer(question.strip(), add_special_tokens=False, return_offsets_mapping=True)
    rest = question.strip()[encoded["offset_mapping"][limit][0] :]
    said = f"The question is longer than {limit} tokens: the model does not read “"
    assert ask(client, question)["remark"] == f"{said}{rest[:60]}…”."
    part = question[: len(question.strip()) - len(rest) + 20].strip()
    assert ask(client, part)["remark"] == f"{said}{rest[:20].strip()}”."
    exact = tokenizer.decode(encoded["input_ids"][:limit])
    assert ask(client, exact)["remark"] is None


def test_a_question_that_was_judged_before_says_so(client, session):
    before = client.get("/verdicts").json()["latest"]
    question = "Who opened the college?"
    reply = ask(client, question)
    assert reply["judged"] == []
    place = {name: reply[name] for name in PLACE}
    saved = [client.post("/verdicts", json={"question": question, **at}).json() for at in ({}, place)]
    assert (saved[0]["text"] in WITH_WORDS, saved[1]["text"]) == (True, None)
    ids = [verdict["id"] for verdict in saved]
    assert ask(client, QUESTIONS[0])["judged"] == [given for given in before if given["question"] == QUESTIONS[0]]
    for again in ("Who opened the college", "who opened the college ?!", "Who opened the colleges?"):
        same = ids[::-1] if "colleges" not in again else []
        assert [given["id"] for given in ask(client, again)["judged"]] == same
    judged = ask(client, " who  opened the COLLEGE?")["judged"]  # also where the reply is kept
    assert [given["id"] for given in judged] == ids[::-1]
    assert [given["words"] for given in judged] == [reply["answer"], None]
    for given in judged:
        assert (given["question"], given["time"]) == (question, session.verdicts.rows[given["id"]]["time"])
    assert client.get("/verdicts").json()["latest"] == [*judged, *before]
    client.delete(f"/verdicts/{ids[1]}").raise_for_status()
    assert ask(client, question)["judged"] == judged[1:]


def test_a_changed_text_is_never_answered_with_its_old_places(client, session):
    question = "Who founded the abbey, the college or the bridge?"
    first = ask(client, question, 9)
    assert checked(session, [first, *first["others"]]) == WITH_WORDS
    for name in WITH_WORDS:
        (session.texts.folder / name).write_text(f"New. {TEXTS[name]}")
        again = ask(client, question, 9)
        checked(session, [again, *again["others"]])
    reply = client.post("/verdicts", json={"question": question, **{name: first[name] for name in PLACE}})
    assert (reply.status_code, "has changed since it was shown: ask again" in reply.json()["detail"]) == (409, True)
    assert ask(client, "Patients?")["text"] is None
    (session.texts.folder / "abbey.txt").unlink()
    (session.texts.folder / "college.md").write_text("The king received patients in the college.")
    again = ask(client, question, 9)  # which indexes what has changed
    assert checked(session, [again, *again["others"]]) == {"<b>.txt", "college.md"}
    session.shown._looked -= 11
    assert ask(client, "Patients?")["text"] == "college.md"


def test_bad_requests_get_a_sentence_and_not_their_words(client, tmp_path):
    for field, sent in (
        ("question", '{"question": " \\n"}'),
        ("question", '{"question": "secretword \\ud800"}'),
        ("n_best", '{"question": "secretword", "n_best": 11}'),
        ("extra", '{"question": "Who?", "extra": "secretword"}'),
        ("", '{"question": secretword}'),
    ):
        reply = client.post("/answer", content=sent, headers=JSON)
        assert (reply.status_code, reply.json()["detail"].startswith(field)) == (422, True)
        assert "secretword" not in reply.text
    for path in ("/answer", "/verdicts"):
        assert client.post(path, json={"question": "x" * 1000}).status_code == 200
        reply = client.post(path, json={"question": "x" * 1001})
        said = {"detail": "The question is too long: 1,000 characters at most."}
        assert (reply.status_code, reply.json()) == (422, said)
    large = b'{"question": "' + b"x" * 10**7
    for content in (large, iter([large[:1000], large[1000:]])):
        reply = client.post("/answer", content=content)
        assert (reply.status_code, reply.json()["detail"][:43]) == (413, "the request is larger than 1,048,576 bytes,")
    for path, said in (
        ("/next", "no questions are labelled here: give --label"),
        ("/none", "Not Found"),
    ):
        reply = client.get(path)
        assert (reply.status_code, reply.json()["detail"]) == (404, said)
    reply = client.get("/exports/x.csv")
    assert (reply.status_code, reply.json()["detail"].startswith("name: Input should be 'squad.json'")) == (422, True)
    for path in ("/", "/page.css", "/page.js", "/state", "/openapi.json", "/exports/squad.json"):
        client.get(path).raise_for_status()
    loading = TestClient(build(Session("ask", ["m"], None, Verdicts(tmp_path / "c.jsonl"))))
    for reply in (
        loading.post("/answer", json={"question": "Who?"}),
        loading.post("/text", json={"name": "a"}),
        loading.post("/verdicts", json={"question": "Who?"}),
        loading.get("/next"),
    ):
        assert (reply.status_code, reply.json()["detail"][:15]) == (503, "not ready yet: ")


def test_no_file_outside_of_the_folder_is_read(client, session):
    inside = str(session.texts.folder / "abbey.txt")
    for name in ("../secret.txt", inside, "link.txt", "./abbey.txt", ""):
        verdict = {"question": "Who?", "text": name, "version": "", "start": 0, "end": 3}
        for reply in (client.post("/text", json={"name": name}), client.post("/verdicts", json=verdict)):
            assert (reply.status_code, "no such text" in reply.json()["detail"]) == (422, True)
    assert client.get("/texts").json() == {"names": list(TEXTS), "count": 4}
    assert client.get("/texts", params={"part": "<B"}).json() == {"names": ["<b>.txt"], "count": 1}
    assert opened(client, "<b>.txt")["text"] == TEXTS["<b>.txt"]


def test_a_name_that_is_no_utf_8_breaks_nothing(client, session):
    file = session.texts.folder / os.fsdecode(b"caf\xe9.txt")
    file.write_text("Patients received 10 mg of the drug twice daily.")
    session.shown.index.refresh()
    reply = ask(client, "Patients twice daily?", 1)
    assert checked(session, [reply]) == {file.name}
    assert client.get("/passages?question=drug").json()["passages"][0]["text"] == file.name
    assert opened(client, file.name)["text"] == file.read_text()
    for verdict in ({name: reply[name] for name in PLACE}, {}):
        content = json.dumps({"question": "Patients twice daily?", **verdict})
        client.post("/verdicts", content=content, headers=JSON).raise_for_status()
    assert [example.article for example in read(session.verdicts.path)[-2:]] == [file.name] * 2
    client.get("/exports/squad.json").raise_for_status()
    file.unlink()


def test_a_fault_of_one_question_fails_no_other(client, session, monkeypatch):
    answer, faults = (
        session.asking._asks.answer,
        {QUESTIONS[2]: RuntimeError("no luck"), QUESTIONS[5]: InputError("no!")},
    )

    def faulty(questions: list[str], n_best: int) -> Iterator:
        for question in faults.keys() & questions:
            raise faults[question]
        return answer(questions, n_best)

    monkeypatch.setattr(session.asking._asks, "answer", faulty)
    with ThreadPoolExecutor(12) as threads:
        replies = list(threads.map(lambda q: client.post("/answer", json={"question": q}), QUESTIONS[:12]))
    assert [reply.status_code for reply in replies] == [200, 200, 500, 200, 200, 422, *[200] * 6]
    assert replies[2].json()["detail"] == "the server failed (RuntimeError: no luck): its terminal says more"


def test_corrections_hold_what_the_model_said(client, session):
    reply = ask(client, QUESTIONS[0], 1)
    said = {name: reply[name] for name in (*PLACE, "answer", "probability", "confidence")}
    place = {name: reply[name] for name in PLACE}
    for verdict in (place, place | {"start": 0, "end": 1}, {}):
        client.post("/verdicts", json={"question": QUESTIONS[0], "said": said, **verdict}).raise_for_status()
    right, wrong, none = list(session.verdicts.rows.values())[-3:]
    assert (right["right"], wrong["right"], none["right"]) == (True, False, False)
    for row in (right, none):
        assert row["context"][row["said"]["start"] : row["said"]["end"]] == reply["answer"]
    verdict = {"question": QUESTIONS[0], "said": said | {"answer": "else"}, **place}
    client.post("/verdicts", json=verdict).raise_for_status()
    row = list(session.verdicts.rows.values())[-1]
    assert (row["said"]["answer"], row["said"]["start"], row["right"]) == ("else", None, False)
    assert (wrong["answers"]["text"], none["answers"]["text"]) == ([TEXTS[reply["text"]][0]], [])
    version = opened(client, "none.txt")["version"]
    for bad in (
        {"said": said | {"end": None}},
        {"said": said | {"text": None}},
        {"said": said | {"start": 10**6, "end": 10**6 + 1}},
        {"text": "none.txt", "version": version, "start": 0, "end": 1},
    ):
        assert client.post("/verdicts", json={"question": "zebra", **bad}).status_code == 422
    unplaced = client.post("/verdicts", json={"question": "zebra", "start": 0, "end": 1})
    assert "give those of the text in which the words are marked" in unplaced.json()["detail"]


def test_a_correction_late_in_a_long_text_has_its_places_in_the_context(client, session):
    text = "It was old. " * 200 + "The abbot built the mill."
    (session.texts.folder / "college.md").write_text(text)
    session.shown.index.refresh()
    version = opened(client, "college.md")["version"]
    place = {"text": "college.md", "version": version, "start": text.index("abbot"), "end": text.index(" built")}
    said = place | {"answer": "abbot", "probability": 0.5, "confidence": 0.5}
    verdict = {"question": "Who built the mill?", "said": said, **place}
    client.post("/verdicts", json=verdict).raise_for_status()
    row = list(session.verdicts.rows.values())[-1]
    assert len(row["context"]) < 1200
    assert [row["context"][start : start + 5] for start in (row["said"]["start"], *row["answers"]["answer_start"])] == [
        "abbot",
        "abbot",
    ]


def test_a_question_that_is_asked_again_for_more_answers_gets_them(client):
    assert len(ask(client, QUESTIONS[1], 1)["others"]) == 0
    assert len(ask(client, QUESTIONS[1], 3)["others"]) == 2
    assert len(ask(client, QUESTIONS[1], 2)["others"]) == 1


def test_a_verdict_that_no_text_answers_needs_no_word_of_the_texts(client, session):
    reply = client.post("/verdicts", json={"question": "zebra"}).json()
    row = list(session.verdicts.rows.values())[-1]
    assert (row["id"], row["title"]) == (reply["id"], reply["text"])
    text = (session.texts.folder / row["title"]).read_text()
    assert (row["title"] in WITH_WORDS, row["context"] in text, row["answers"]["text"]) == (True, True, [])


def test_no_reply_says_where_this_machine_keeps_its_files(client, session):
    folder = session.texts.folder
    (folder / "bad.pdf").write_text("x")
    (folder / "college.md").write_bytes(b"\xff")
    (folder / "abbey.txt").rename(folder / "away.txt")
    session.shown.index.refresh()
    left_out = client.get("/state").json()["left_out"]
    assert {sentence.partition(":")[0] for sentence in left_out} >= {"bad.pdf", "college.md"}
    (folder / "away.txt").unlink()
    reply = client.post("/text", json={"name": "away.txt"})
    assert reply.json()["detail"] == "away.txt: is no longer in the folder: put it back, or ask again"
    assert client.post("/verdicts", json={"question": "Who built the bridge?"}).status_code == 200
    content = session.verdicts.path.read_bytes()
    session.verdicts.path.write_text("else")
    reply = client.post("/verdicts", json={"question": "Who built the bridge?"})
    session.verdicts.path.write_bytes(content)
    assert reply.json()["detail"] == "corrections.jsonl: another program has changed it: start the server again"
    assert client.get("/state").json()["model"] == "model"
    (folder / "bad.pdf").unlink()


def test_a_file_that_becomes_a_link_out_is_not_read(client, session):
    link = session.texts.folder / "college.md"
    link.unlink()
    link.symlink_to(session.texts.folder.parent / "secret.txt")
    reply = client.post("/text", json={"name": "college.md"})
    link.unlink()
    assert (reply.status_code, "leads out of the folder" in reply.json()["detail"]) == (422, True)


def test_another_name_that_leads_to_this_machine_is_refused(session):
    client = TestClient(build(session, ["localhost"]), base_url="http://localhost:8000")
    assert client.get("/state").status_code == 200
    assert client.get("/state", headers={"host": "evil.example"}).status_code == 400


def test_a_generative_model_gives_one_answer(tmp_path):
    session = made_session(tmp_path, "t5", null_threshold=1e6)
    client = TestClient(build(session))
    assert ask(client, QUESTIONS[0], 1)["text"] in WITH_WORDS
    together = [_Asked(QUESTIONS[1], n_best, Future()) for n_best in (1, 2)]
    session.asking._answer(together)  # the second request's fault is not the first one's
    assert [asked.reply.exception() is None for asked in together] == [True, False]
    blank = Answer("", None, None, -1.0, 0.9)  # written by the model, and not its null answer
    assert session.asking._declined(blank) == "the passages that were read do not seem to answer it"
    reply = client.post("/answer", json={"question": "Who?", "n_best": 2})
    assert (reply.status_code, "n_best 2: model gives one answer: set it to 1" in reply.json()["detail"]) == (422, True)


# The command


@pytest.fixture
def serve(tmp_path, monkeypatch, capsys):
    """Calls it in this process; returns (exit code, stdout, the line that ends it)."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("texts/abbey.txt").write_text(TEXTS["abbey.txt"])

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["swep-ds", "serve", *words])
        with pytest.raises(SystemExit) as end:
            command.main()
        out, err = capsys.readouterr()
        [line] = [line for line in err.splitlines() if line.startswith(("error: ", "stopped: "))]
        return end.value.code, out, line

    return call


def test_what_cannot_be_served_is_one_line(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, line = serve("no/model", "texts", "--port", port)  # before the model is loaded
        assert (code, line[:46]) == (2, f"error: --host 127.0.0.1 --port {port}: cannot be used ("[:46])
        fix = re.search("give --port ([0-9]+), or another --host$", line)
        assert 8000 <= int(fix[1]) < 9000
        for words, said in (
            (["./model", "texts"], "model ./model: no such folder"),
            (["run", "--label", "../asekd.csv"], "run: holds no results.json"),
        ):
            code, _, line = serve(*words, "--port", port)
            assert (code, line.startswith(f"error: {said}")) == (2, True), line
    for words, said in (
        (["model"], "give a model and a folder of texts; or finished runs and --label QUESTIONS"),
        (["model", "none"], "texts none: no such folder"),
        (["model", "texts/abbey.txt"], "texts texts/abbey.txt: is a file: name the folder that holds it"),
        (["model", "texts", "--columns", "id=nr"], "--texts and --columns are those of --label: "),
        (["run", "--label", "a.csv", "--min_confidence", "0.5"], "--null_threshold and --min_confidence: labels are "),
    ):
        code, _, line = serve(*words)
        assert (code, line.startswith(f"error: {said}")) == (2, True), line
    assert not list(Path().glob("*.jsonl"))


def test_the_server_ends_where_what_it_serves_cannot_be_loaded(serve):
    code, out, line = serve("no/model", "texts", "--port", "0")
    assert (code, "no/model" in line, Path("corrections.jsonl").exists()) == (2, True, False)
    assert out.startswith("http://127.0.0.1:")
    assert out.endswith(": verdicts go to corrections.jsonl\n")


def test_what_cannot_be_labelled_is_one_line_before_the_address(serve, tmp_path):
    finished(tmp_path / "run", "mle")
    Path("few.csv").write_text("question,context\nWho?,Ada built it.\n")
    Path("one.csv").write_text("Frage\nWho, and when?\n")
    Path("two.csv").write_text("Frage,Text\nWho?,Ada built it.\n")
    fix = "rename yours, or name it in data.columns (--columns), as in question=NAME"
    for run, file, said in (
        ("no/run", "few.csv", "no/run"),
        ("run/model", "few.csv", "run/model: holds no results.json: name the run, run"),
        ("run", "no.csv", "data source 'no.csv': no such file"),
        ("run", "few.csv", "--label: 1 questions: give at least 15"),
        ("run", "one.csv", f"one.csv: row 2: has no column question (found: ['Frage']): {fix}"),
        ("run", "two.csv", f"two.csv: row 2: has no column question (found: ['Frage', 'Text']): {fix}"),
    ):
        code, out, line = serve(
            run, "--label", file, "--port", "0", "--output", f"{file}-{run.replace('/', '-')}.jsonl"
        )
        assert (code, out, line.startswith(f"error: {said}")) == (2, "", True), line
        assert not line.partition(fix)[2]
    assert not list(Path().glob("*.jsonl"))


def test_a_model_is_served_until_it_is_interrupted(serve, tmp_path):
    prepare(tmp_path)
    write_reading(tmp_path / "model")
    port, replies = free_port(), []

    def request(path: str, **fields) -> dict:
        content = json.dumps(fields).encode() if fields else None
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", content, JSON)
        with urllib.request.urlopen(asked) as reply:
            return json.load(reply)

    def visit() -> None:
        try:
            while not request("state")["ready"]:
                time.sleep(0.1)
            replies.append(request("answer", question=QUESTIONS[0]))
            request("verdicts", question=QUESTIONS[1])
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    visitor = threading.Timer(1, visit)
    visitor.start()
    assert serve("model", "texts", "--port", str(port), "--output", "my.jsonl")[::2] == (130, "stopped: by SIGINT")
    visitor.join()
    assert [reply["text"] for reply in replies] == ["abbey.txt"]
    assert [example.question for example in read(Path("my.jsonl"))] == [QUESTIONS[1]]
