"""The page in real Chromium, at the real server: with a mouse, a keyboard, a screen reader, on a phone, in the dark."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import uvicorn

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.evaluation.scores import Scorer
from swep_ds.serve.app import build
from swep_ds.serve.labels import Labels
from swep_ds.serve.session import Session
from swep_ds.serve.shown import ShownTexts
from swep_ds.serve.verdicts import Verdicts
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex
from tests.support import browser
from tests.support.report_runs import contrast

pytestmark = pytest.mark.skipif(browser.PATH is None, reason="no Chromium is installed")
HOSTILE = '<img src=x onerror="window.ran = 1">'
TEXTS = {
    "guides/visitors.txt": "The entrance fee is £12.50 a day.\r\n\r\nTram 4 stops at the gate of the museum.\r\n",
    "history.txt": "🏛️👩‍🚀 The museum was founded in 1852 by \n  Agnes Palder of Elbing  \nand opened in 1871.\n"
    + "It grew.\n" * 300,
    f"{HOSTILE.replace('/', '')}.txt": f"The façade</textarea><script>window.ran = 1</script> was painted by {HOSTILE}.",
    f"{'a-name-that-is-long-and-has-no-blank-' * 5}.txt": "متى تأسس المتحف؟ تأسس المتحف عام 1852.",
}
VISITORS, HISTORY, ATTACK, LONG = TEXTS
FOUNDER = "Who founded the museum?"
# by question the text and the words that the model answers with, best first; "" = declined
ANSWERS = {
    FOUNDER: [(HISTORY, "1852"), (HISTORY, "Agnes Palder"), (LONG, "1852")],
    HOSTILE: [(ATTACK, HOSTILE)],
    "Who flew to the moon?": [None, (VISITORS, "Tram 4")],
}
QUESTIONS = 15


def asked_of(session: Session, question: str, n_best: int) -> Future:
    """The reply of a model that knows the `ANSWERS`."""
    replies = []
    for number, place in enumerate(ANSWERS[question][:n_best]):
        shown = dict.fromkeys(("text", "start", "end", "page", "heading", "passage", "passage_start", "version"))
        if place:
            start = TEXTS[place[0]].index(place[1])
            shown = session.shown.quoted(place[0], start, start + len(place[1]))
        replies.append(shown | {"answer": place[1] if place else "", "probability": 0.7 / (number + 1)})
    best, *others = replies
    declined = None if best["answer"] else "the confidence is too low"
    reply = Future()
    reply.set_result({"question": question, **best, "confidence": 0.934, "declined": declined, "others": others})
    return reply


@contextmanager
def served(session: Session) -> Iterator[str]:
    """The page's address, while the application runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(build(session), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Iterator[browser.Browser]:
    with browser.opened(tmp_path_factory.mktemp("browser") / "profile") as window:
        yield window


@pytest.fixture(scope="module")
def asking(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """The page that answers, its session and its address."""
    folder = tmp_path_factory.mktemp("texts") / "museum"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, newline="")
    texts = FolderTexts(folder, "texts")
    session = Session("ask", "mine/model", texts, Verdicts(folder.parent / "corrections.jsonl"))
    with served(session) as address:
        session.shown = ShownTexts(texts, TextIndex(texts))
        session.asking = SimpleNamespace(ask=lambda question, n_best: asked_of(session, question, n_best))
        session.most, session.ready = 10, True
        yield SimpleNamespace(session=session, address=address)


@pytest.fixture(scope="module")
def labelling(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """The page that labels questions about contexts."""
    examples = [
        Example(f"q{n}", f"When was number {n} built?", f"👷 Built in {1800 + n}.", (), None, "")
        for n in range(QUESTIONS)
    ]
    session = Session("label", "runs/a", None, Verdicts(tmp_path_factory.mktemp("labels") / "labels.jsonl"))
    answers = {"runs/a": {example.id: ("Built", 0.25) for example in examples}}
    with served(session) as address:
        session.labels = Labels(examples, answers, Scorer())
        session.ready = True
        yield SimpleNamespace(session=session, address=address)


@pytest.fixture(autouse=True)
def _nothing_runs_and_no_other_host_is_asked(window):
    """Of all pages: no exception, no error but replies that refuse, and requests to the server alone."""
    window.events.clear()
    yield
    assert not window.run("window.ran")
    for event in window.events:
        method, about = event["method"], event["params"]
        assert method not in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"), about
        assert method != "Log.entryAdded" or about["entry"]["source"] == "network", about
        if method == "Network.requestWillBeSent":
            assert re.match(r"http://127\.0\.0\.1:\d+/|data:,$", about["request"]["url"])


def find(what: str, root: str = "document") -> str:
    """The script of a visible button by its label's beginning, or of an element by its CSS selector."""
    if what[0] in "#.[":
        return f"{root}.querySelector({what!r})"
    return f"[...{root}.querySelectorAll('button')].find(e => e.checkVisibility() && e.innerText.startsWith({what!r}))"


def click(window, what: str, root: str = "document") -> None:
    element = find(what, root)
    window.wait(f"{element}?.checkVisibility() && !{element}.disabled")
    window.run(f"{element}.scrollIntoView({{block: 'center'}})")
    box = window.run(
        f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({element}.getBoundingClientRect())"
    )
    window.mouse("mousePressed", *box)
    window.mouse("mouseReleased", *box)


def text(window, what: str) -> str:
    return window.run(f"{find(what)}.innerText")


def ask(window, asking, question: str) -> None:
    """Types a question and presses Enter."""
    window.open(asking.address)
    window.wait("document.activeElement.id === 'question'")
    window.call("Input.insertText", text=question)
    window.press("Enter")
    window.wait("document.activeElement.matches('.card')")


def mark_with_keys(window, count: int) -> None:
    """Extends the selection by some characters."""
    for _ in range(count):
        window.press("ArrowRight", browser.SHIFT)
    window.wait("!document.getElementById('mark').disabled")


def correct_the_founder(window, asking) -> None:
    """Marks "Agnes Palder" by keyboard: the second answer's place, and its twelve characters."""
    ask(window, asking, FOUNDER)
    click(window, "Wrong", "document.querySelectorAll('.card')[1]")
    window.wait("document.activeElement.value?.includes('Agnes')")
    mark_with_keys(window, len("Agnes Palder"))


def last(session: Session) -> dict:
    """The last line of the verdicts' file."""
    return json.loads(session.verdicts.path.read_text(encoding="utf-8").splitlines()[-1])


def test_an_answer_is_marked_in_its_passage(window, asking):
    ask(window, asking, FOUNDER)
    cards = window.run("[...document.querySelectorAll('.card')].map(card => card.innerText)")
    marks = window.run(
        "[...document.querySelectorAll('mark')].map(mark => [mark.innerText, mark.previousSibling.data.slice(-3)])"
    )
    assert marks == [["1852", "in "], ["Agnes Palder", "\n  "], ["1852", "ام "]]
    assert [part in cards[0] for part in (HISTORY, "confidence 93\xa0%", "1852 by")] == [True] * 3
    assert "probability 35\xa0%" in cards[1]
    assert text(window, "#title") == "Ask the texts of museum"
    click(window, "Right", "document.querySelector('.card')")
    window.wait("document.activeElement.innerText === 'Undo'")
    row = last(asking.session)
    assert (row["answers"]["text"], row["right"], row["said"]["confidence"]) == (["1852"], True, 0.934)
    click(window, "Open the text", "document.querySelectorAll('.card')[1]")
    window.wait("document.getSelection().toString() === 'Agnes Palder'")


def test_what_is_declined_shows_what_was_found_anyhow(window, asking):
    ask(window, asking, "Who flew to the moon?")
    assert "the confidence is too low" in text(window, ".card")
    assert "What it found anyhow\nTram 4" in re.sub("\n+", "\n", text(window, "#answers"))
    click(window, "The texts do not say")
    window.wait("document.activeElement.innerText === 'Undo'")
    assert (last(asking.session)["is_impossible"], last(asking.session)["right"]) == (True, True)


def test_html_in_questions_names_and_texts_is_shown_and_never_run(window, asking):
    ask(window, asking, HOSTILE)
    card = text(window, ".card")
    assert card.startswith(HOSTILE)
    assert ATTACK in card
    assert "</textarea><script>window.ran = 1</script>" in card
    click(window, "Open the text")
    window.wait(f"document.getElementById('text').value === {json.dumps(TEXTS[ATTACK])}")
    assert (text(window, "#name"), text(window, "#viewer-question")) == (ATTACK, HOSTILE)
    click(window, "#part")
    window.call("Input.insertText", text="<IMG")
    window.wait("document.getElementById('list-title').innerText === 'Texts'")
    assert text(window, "#list") == ATTACK
    assert window.run("document.images.length + document.scripts.length") == 1


def test_words_are_marked_by_keyboard(window, asking):
    correct_the_founder(window, asking)
    assert text(window, "#marked") == "Marked: “Agnes Palder”"
    window.call("Input.insertText", text="typed")
    for _ in range(2):
        window.press("Tab")
    window.wait("document.activeElement.id === 'silent'")
    window.press("Tab", browser.SHIFT)
    window.press("Enter")
    window.wait("document.activeElement.innerText === 'Undo'")
    row = last(asking.session)
    assert (row["answers"]["text"], row["title"], row["said"]["answer"]) == (["Agnes Palder"], HISTORY, "Agnes Palder")
    assert row["context"][row["answers"]["answer_start"][0] :].startswith("Agnes Palder of")
    assert "Saved: the right words are “Agnes Palder”." in text(window, "#answers")
    assert text(window, "#count") == f"{len(asking.session.verdicts.rows)} verdicts in corrections.jsonl."
    before = len(asking.session.verdicts.rows)
    window.press("Enter")
    window.wait("document.activeElement.innerText === 'Right'")
    assert len(asking.session.verdicts.rows) == before - 1
    assert "Saved" not in text(window, "#answers")


def test_a_line_is_marked_by_mouse_without_its_blanks_in_a_text_that_is_chosen_by_its_name(window, asking):
    ask(window, asking, "Who flew to the moon?")
    click(window, "Wrong", "document.querySelector('.card')")
    window.wait("document.activeElement.value")
    click(window, "#part")
    window.call("Input.insertText", text="HIST")
    window.wait("document.getElementById('list-title').innerText === 'Texts'")
    click(window, "history.txt")
    window.wait("document.activeElement.value?.includes('Agnes')")
    assert window.run("document.getElementById('mark').disabled")
    left, top, right = window.run(
        "(({left, top, right}) => [left, top, right])(document.getElementById('text').getBoundingClientRect())"
    )
    second_line = top + 0.8 * 16 + 1.5 * 1.6 * 16
    window.mouse("mousePressed", left + 18, second_line)
    window.mouse("mouseMoved", right - 30, second_line)
    window.mouse("mouseReleased", right - 30, second_line)
    click(window, "These words are the answer")
    window.wait("document.activeElement.innerText === 'Undo'")
    assert last(asking.session)["answers"]["text"] == ["Agnes Palder of Elbing"]


def test_saved_is_said_when_it_is_on_disk_and_a_failure_keeps_what_was_marked(window, asking, monkeypatch):
    session, goes_on = asking.session, threading.Event()
    correct_the_founder(window, asking)
    rows = list(session.verdicts.rows)

    def fail(*_) -> str:
        raise InputError("corrections.jsonl: the verdict is not saved (No space left on device): make room there")

    with monkeypatch.context() as patch:
        patch.setattr(session.verdicts, "add", fail)
        click(window, "These words")
        window.wait("document.getElementById('viewer-fault').innerText.includes('make room there. Nothing was saved.')")
    window.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    click(window, "These words")
    window.wait("document.getElementById('viewer-fault').innerText.includes('cannot be reached. Nothing was saved.')")
    window.call(
        "Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1
    )
    assert (text(window, "#marked"), list(session.verdicts.rows)) == ("Marked: “Agnes Palder”", rows)
    add = session.verdicts.add
    monkeypatch.setattr(session.verdicts, "add", lambda *row: goes_on.wait() and add(*row))
    click(window, "These words")
    window.wait("document.getElementById('saving').innerText")
    assert "Saved" not in window.run("document.body.innerText")
    goes_on.set()
    window.wait("document.activeElement.innerText === 'Undo'")
    assert "Saved: the right words" in text(window, "#answers")


def test_a_label_shows_what_the_model_said_and_moves_the_scores(window, labelling):
    window.open(labelling.address)
    for number in range(1, QUESTIONS + 1):
        window.wait("document.activeElement.value")
        assert "25\xa0%" not in window.run("document.documentElement.outerHTML")
        if number == 2:  # skipped: it comes back
            first = text(window, "#task-question")
            click(window, "Skip")
            window.wait(f"document.getElementById('task-question').innerText !== {first!r}")
        if number % 2:  # past "👷 Built in "
            for _ in range(11):
                window.press("ArrowRight")
            mark_with_keys(window, 4)
            click(window, "These words are the answer")
        else:
            click(window, "The text does not say")
        window.wait("document.activeElement.innerText === 'Next question'")
        assert "runs/a: “Built”, 25\xa0%" in text(window, "#revealed")
        assert text(window, "#labelled") == f"{number} of {QUESTIONS} labelled"
        left = QUESTIONS - number
        assert (f"after 15 labels: {left} more." in text(window, "#more")) == (left > 0)
        window.press("Enter")
    window.wait("document.activeElement.innerText === 'All 15 questions are labelled'")
    assert re.sub(r"\s+", " ", text(window, "#intervals")).startswith("Exact match 0.0 % (0.0 to ")
    labels = {row["question"]: row["answers"]["text"] for row in labelling.session.verdicts.rows.values()}
    assert len(labels) == QUESTIONS
    for question, answers in labels.items():
        year = str(1800 + int(re.search(r"\d+", question)[0]))
        assert answers in ([], [year])
    assert sum(map(len, labels.values())) == 8
    assert window.run("fetch(document.querySelector('#kept a').href).then(reply => reply.ok)")
