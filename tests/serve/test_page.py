"""The page in real Chromium, at the real server: with a mouse, a keyboard, a screen reader, on a phone, in the dark."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
import uvicorn

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import Answer
from swep_ds.serve.app import build
from swep_ds.serve.asking import Asking
from swep_ds.serve.labels import Labels
from swep_ds.serve.session import Session
from swep_ds.serve.shown import ShownTexts
from swep_ds.serve.verdicts import Verdicts
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex
from tests.support.browser import PATH, SHIFT, Browser
from tests.support.report_runs import contrast

pytestmark = pytest.mark.skipif(PATH is None, reason="no Chromium is installed")
HOSTILE = '<img src=x onerror="window.ran = 1">'
VISITORS, HISTORY, ATTACK, LONG = "visitors.txt", "history.txt", f"{HOSTILE}.txt", f"{'a-name-that-is-long-' * 9}.txt"
TEXTS = {
    VISITORS: "The entrance fee is £12.50 a day.\r\n\r\nTram 4 stops at the gate of the museum.\r\n",
    HISTORY: f"🏛️👩‍🚀 The museum was founded in 1852 by \n  Agnes Palder of Elbing  \nand grew.{' It grew.' * 3000}",
    ATTACK: f"The façade</textarea><script>window.ran = 1</script> was painted by {HOSTILE}.",
    LONG: "متى تأسس المتحف؟ تأسس المتحف عام 1852.",
}
FOUNDER, MOON = "Who founded the museum?", "Who flew to the moon of the museum?"
# by question the texts and words that the model answers with, best first; "" = declined
ANSWERS = {FOUNDER: [(HISTORY, "1852"), (HISTORY, "Agnes Palder"), (LONG, "1852")], HOSTILE: [(ATTACK, HOSTILE)]}
ANSWERS[MOON] = [(VISITORS, ""), (VISITORS, "Tram 4")]
QUESTIONS = 15
UNDO, NEXT = (f"document.activeElement.innerText === '{label}'" for label in ("Undo", "Next question"))
# What is seen: boxes that overlap, texts' colours with those behind them, and how wide all is
SEEN = """(() => {
  const root = document.querySelector("dialog[open]") ?? document.body, colours = new Set(), overlaps = [];
  const shown = [...root.querySelectorAll("*")].filter(e => e.checkVisibility());
  for (const e of shown.filter(e => !e.disabled && [...e.childNodes].some(node => node.data?.trim()))) {
    let behind = e;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    colours.add(`${getComputedStyle(e).color} on ${getComputedStyle(behind).backgroundColor}`);
  }
  const kinds = "p, h1, h2, h3, h4, label, summary, button, blockquote, input, textarea, progress, .bar, span, strong";
  const boxes = shown.filter(e => e.matches(`#list, :is(${kinds}):not(#list *)`) && e.offsetHeight);
  for (const a of boxes) for (const b of boxes.filter(b => !a.contains(b) && !b.contains(a))) {
    const [one, other] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
    if (wide > 1 && one.top <= other.top && one.bottom > other.top + 1) overlaps.push([a.outerHTML, b.outerHTML]);
  }
  const wide = Math.max(document.documentElement.scrollWidth, ...shown.map(e => e.getBoundingClientRect().right));
  return {overlaps, colours: [...colours], wide};
})()"""


class Page:
    """A session's page, in the window."""

    def __init__(self, window: Browser, session: Session, port: int):
        self.session, self.open = session, lambda: window.open(f"http://127.0.0.1:{port}/")
        self.run, self.wait, self.press, self.mouse = window.run, window.wait, window.press, window.mouse
        self.call = window.call

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({selector!r}).innerText")

    def click(self, label: str, root: str = "document") -> None:
        """A button by how its text begins."""
        button = (
            f"[...{root}.querySelectorAll('button')].find(e => e.offsetHeight && e.innerText.startsWith('{label}'))"
        )
        self.wait(f"{button} && !{button}.disabled")
        box = f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({button}.getBoundingClientRect())"
        place = self.run(f"{button}.scrollIntoView({{block: 'center'}}), {box}")
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, *place)

    def ask(self, question: str) -> None:
        self.open()
        self.wait("document.activeElement.id === 'question'")
        self.call("Input.insertText", text=question)
        self.press("Enter")
        self.wait("document.activeElement.matches('.card')")

    def filter_names(self, part: str) -> None:
        self.run("document.getElementById('part').focus()")
        self.call("Input.insertText", text=part)
        self.wait("document.getElementById('list-title').innerText === 'Texts'")

    def mark(self, before: int, count: int) -> None:
        """Marks so many characters, after so many behind the caret."""
        self.wait("document.activeElement.value")
        for number in range(before + count):
            self.press("ArrowRight", SHIFT if number >= before else 0)
        self.wait("!document.getElementById('mark').disabled")

    def rows(self) -> list[dict]:
        return list(map(json.loads, self.session.verdicts.path.read_text(encoding="utf-8").splitlines()))


def answers(question: str) -> list[Answer]:
    """What the model says, best first."""
    known = []
    for number, (name, words) in enumerate(ANSWERS[question], 1):
        start = TEXTS[name].index(words)
        place = (start, start + len(words)) if words else (None, None)
        known.append(Answer(words, *place, 0.0, 0.7 / number, odds=2.0, confidence=0.934, name=name))
    return known


def served(window: Browser, session: Session) -> Iterator[Page]:
    """The page, while the application runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(build(session), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield Page(window, session, server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Iterator[Browser]:
    with closing(Browser(tmp_path_factory.mktemp("browser") / "profile")) as window:
        yield window


@pytest.fixture(scope="module")
def asking(tmp_path_factory, window) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("museum")
    for name, text in TEXTS.items():
        (folder / name).write_text(text, newline="", encoding="utf-8")
    texts = FolderTexts(folder, "texts")
    session = Session("ask", "mine/model", texts, Verdicts(folder / "corrections.jsonl"))
    session.shown, session.most = ShownTexts(texts, TextIndex(texts)), 10
    asks = SimpleNamespace(answer=lambda questions, _: map(answers, questions), index=session.shown.index)
    session.asking = Asking(SimpleNamespace(null_threshold=1.0, min_confidence=0.0), asks, session.shown)
    yield from served(window, session)


@pytest.fixture(scope="module")
def labelling(tmp_path_factory, window) -> Iterator[Page]:
    """Questions about contexts of their own, and a run that answers all of them "Built"."""
    years = range(1800, 1800 + QUESTIONS)
    examples = [Example(f"q{year}", f"When, of {year}?", f"👷 Built in {year}.", (), None, "") for year in years]
    session = Session("label", "runs/a", None, Verdicts(tmp_path_factory.mktemp("labels") / "labels.jsonl"))
    session.labels = Labels(examples, {"runs/a": {e.id: ("Built", 0.25) for e in examples}}, Scorer())
    session.ready = True
    yield from served(window, session)


@pytest.fixture(autouse=True)
def _nothing_fails_and_no_other_host_is_asked(window):
    window.events.clear()
    yield
    assert not window.run("window.ran")
    for event in window.events:
        about, method = event.get("params"), event.get("method")
        assert method not in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"), about
        assert method != "Log.entryAdded" or about["entry"]["source"] == "network", about  # a reply that refuses
        if method == "Network.requestWillBeSent":
            assert re.match(r"http://127\.0\.0\.1:\d+/|data:,$", about["request"]["url"])


def test_an_answer_is_marked_in_its_passage(asking):
    asking.open()
    asking.wait("document.getElementById('loading').innerText && !document.getElementById('ask').checkVisibility()")
    asking.session.ready = True
    asking.ask(FOUNDER)
    marks = "[...document.querySelectorAll('mark')].map(mark => mark.previousSibling.data.slice(-3) + mark.innerText)"
    assert asking.run(marks) == ["in 1852", "\n  Agnes Palder", "ام 1852"]
    assert re.search("history.txt\n+confidence 93\xa0%(.|\n)*probability 35\xa0%", asking.text("#answers"))
    asking.click("Right")
    asking.wait(UNDO)
    row = asking.rows()[-1]
    assert (row["answers"]["text"], row["right"], row["said"]["confidence"]) == (["1852"], True, 0.934)
    asking.click("Open the text", "document.querySelectorAll('.card')[1]")
    asking.wait("document.getSelection().toString() === 'Agnes Palder'")


def test_html_in_questions_names_and_texts_is_shown_and_never_run(asking):
    asking.ask(HOSTILE)
    assert [asking.text(part) for part in (".card h2", ".meta span", "blockquote")] == [HOSTILE, ATTACK, TEXTS[ATTACK]]
    asking.click("Open the text")
    asking.wait(f"document.getElementById('text').value === {json.dumps(TEXTS[ATTACK])}")
    asking.filter_names("<IMG")
    assert [asking.text(part) for part in ("#name", "#viewer-question", "#list")] == [ATTACK, HOSTILE, ATTACK]
    assert asking.run("document.images.length + document.scripts.length") == 1


def test_a_declined_question_is_answered_by_mouse_in_a_text_that_is_chosen_by_its_name(asking):
    asking.ask(MOON)
    assert re.search("do not seem to answer(.|\n)*What it found anyhow\n+Tram 4", asking.text("#answers"))
    asking.click("Wrong")
    asking.filter_names("HIST")
    asking.click("history.txt")
    asking.wait("document.activeElement.value?.includes('Agnes')")
    left, top, right = asking.run("(({left, top, right}) => [left, top, right])(text.getBoundingClientRect())")
    for kind, x in (("mousePressed", left + 18), ("mouseMoved", right - 30), ("mouseReleased", right - 30)):
        asking.mouse(kind, x, top + 0.8 * 16 + 1.5 * 1.6 * 16)  # the second line
    asking.click("These words are the answer")
    asking.wait(UNDO)
    assert asking.rows()[-1]["answers"]["text"] == ["Agnes Palder of Elbing"]  # without the blanks around it


def test_words_are_marked_by_keyboard_and_called_saved_when_they_are_on_disk(asking, monkeypatch):
    add, goes_on, before = asking.session.verdicts.add, threading.Event(), asking.rows()
    asking.ask(FOUNDER)
    asking.click("Wrong", "document.querySelectorAll('.card')[1]")
    asking.mark(0, len("Agnes Palder"))
    asking.call("Input.insertText", text="typed")  # into a text that cannot be changed

    def fail(*_) -> str:
        raise InputError("no space: make room there")

    monkeypatch.setattr(asking.session.verdicts, "add", fail)
    for offline, said in ((True, "cannot be reached. Nothing was saved."), (False, "there. Nothing was saved.")):
        network = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        asking.call("Network.emulateNetworkConditions", **network)
        asking.click("These words")
        asking.wait(f"document.getElementById('viewer-fault').innerText.endsWith({said!r})")
    assert (asking.text("#marked"), asking.rows()) == ("Marked: “Agnes Palder”", before)
    monkeypatch.setattr(asking.session.verdicts, "add", lambda *row: goes_on.wait() and add(*row))
    asking.press("Enter")
    asking.wait("document.getElementById('saving').innerText")
    assert "Saved" not in asking.run("document.body.innerText")
    goes_on.set()
    asking.wait(UNDO)
    assert "Saved: the right words are “Agnes Palder”." in asking.text("#answers")
    assert asking.text("#count") == f"{len(before) + 1} verdicts in corrections.jsonl."
    row = asking.rows()[-1]
    start = row["answers"]["answer_start"][0]
    assert (row["title"], row["context"][start : start + 15], row["right"]) == (HISTORY, "Agnes Palder of", True)
    asking.press("Enter")
    asking.wait("document.activeElement.innerText === 'Right'")
    assert ("Saved" in asking.text("#answers"), asking.rows()) == (False, before)


def test_a_label_shows_what_the_model_said_and_moves_the_scores(labelling):
    labelling.open()
    for number in range(1, QUESTIONS + 1):
        labelling.wait("document.activeElement.value")
        assert "25\xa0%" not in labelling.run("document.documentElement.outerHTML")
        if number == 2:  # it comes back as the last one
            skipped = labelling.text("#task-question")
            labelling.click("Skip")
            labelling.wait(f"document.getElementById('task-question').innerText !== {skipped!r}")
        if number % 2:
            labelling.mark(len("👷 Built in "), len("1800"))
        labelling.click("These words" if number % 2 else "The text does not say")
        labelling.wait(NEXT)
        assert "runs/a: Built, 25\xa0%" in labelling.text("#revealed")
        assert labelling.text("#labelled") == f"{number} of {QUESTIONS} labelled"
        assert (f": {QUESTIONS - number} more." in labelling.text("#more")) == (number < QUESTIONS)
        labelling.press("Enter")
    labelling.wait("document.activeElement.innerText === 'All 15 questions are labelled'")
    assert re.match(r"Exact match\s+0.0 % \(0.0 to [\d.]+\)\s+F1\s+0.0 %", labelling.text("#intervals"))
    rows = labelling.rows()
    assert rows[-1]["question"] == skipped
    assert [row["answers"]["text"] for row in rows[::2]] == [[row["asked"].removeprefix("q")] for row in rows[::2]]
    assert not any(row["answers"]["text"] for row in rows[1::2])
    assert labelling.run("fetch(document.querySelector('#kept a').href).then(reply => reply.ok)")


def states(asking: Page, labelling: Page) -> Iterator[Page]:
    """What the page may look like, one after the other."""
    for question in (MOON, FOUNDER):
        asking.ask(question)
        yield asking
    asking.click("Wrong")
    asking.mark(0, 1)
    yield asking
    labelling.session.verdicts.undo(labelling.rows()[-1]["id"])
    labelling.open()
    labelling.mark(0, 1)
    yield labelling
    labelling.click("The text does not say")
    labelling.wait(NEXT)
    yield labelling


@pytest.mark.parametrize("width", [360, 1100])
def test_it_fits_can_be_read_and_everything_has_a_name(asking, labelling, width):
    """WCAG 2.2: 1.4.3, a contrast of at least 4.5; 1.4.10, 360 pixels are enough; 2.4.7, focus; 4.1.2, names."""
    asking.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    for page in states(asking, labelling):
        for scheme in ("light", "dark"):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            seen = page.run(SEEN)
            assert seen["overlaps"] == []
            assert seen["wide"] <= width
            for colours in seen["colours"]:
                hexes = ["#" + "".join(f"{int(n):02x}" for n in re.findall(r"\d+", c)) for c in colours.split(" on ")]
                assert contrast(*hexes) >= 4.5, colours
        for node in page.call("Accessibility.getFullAXTree")["nodes"]:
            if not node["ignored"] and node["role"]["value"] in ("button", "textbox", "searchbox", "link", "region"):
                assert node["name"]["value"]
        for _ in range(30):
            page.press("Tab")
            style = page.run("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.tagName")
            assert style.endswith("BODY") or not style.startswith("none"), style
