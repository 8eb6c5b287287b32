"""The page in real Chromium, at the real server: with a mouse, a keyboard, a screen reader, on a phone, in the dark."""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import product
from unittest.mock import Mock

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
from swep_ds.serve.verdicts import Verdicts, row_of
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex
from tests.support.browser import PATH, SHIFT, WAITS, Browser
from tests.support.report_runs import contrast

pytestmark = pytest.mark.skipif(PATH is None, reason="no Chromium is installed")
HOSTILE = '<img src=x onerror="window.ran = 1">'
VISITORS, HISTORY, ATTACK, LONG = "visitors.txt", "history.txt", f"{HOSTILE}.txt", f"{'a_name_that_is_long_' * 9}.txt"
TEXTS = {
    VISITORS: "The entrance fee is £12.50 a day.\r\n\r\nTram 4 stops at the gate of the museum.\r\n",
    HISTORY: f"🏛️👩‍🚀\r\nThe museum was founded in 1852 by \n  Agnes Palder of Elbing  \nand grew.{' It grew.' * 3000}",
    ATTACK: f"The façade</textarea><script>window.ran = 1</script> was painted by {HOSTILE}.",
    LONG: "متى تأسس المتحف؟ تأسس المتحف عام 1852.",
}
YEARS, FOUNDER, MOON = range(1800, 1815), "Who founded the museum?", "Who flew to the moon of the museum?"
# by question the texts and words that the model answers with, best first; "" = declined
ANSWERS = {FOUNDER: [(HISTORY, "1852"), (HISTORY, "Agnes Palder"), (LONG, "1852")], HOSTILE: [(ATTACK, HOSTILE)]}
ANSWERS[MOON] = [(VISITORS, ""), (VISITORS, "Tram 4")]
SECOND = "document.querySelectorAll('.card')[1]"
UNDO = "document.activeElement.innerText === 'Undo'"
# What is seen: boxes that overlap, texts' colours and those behind them, and how wide it is
SEEN = """(() => {
  const root = document.querySelector("dialog[open]") ?? document.body, style = e => getComputedStyle(e);
  const shown = [...root.querySelectorAll("*")].filter(e => e.checkVisibility());
  const behind = e => style(e).backgroundColor.startsWith("rgba") ? behind(e.parentElement) : style(e).backgroundColor;
  const texts = shown.filter(e => !e.disabled && [...e.childNodes].some(node => node.data?.trim()));
  const boxes = shown.filter(e => e.offsetHeight && style(e).display !== "inline" && !e.matches("#list *"));
  const pairs = boxes.flatMap(a => boxes.filter(b => !a.contains(b) && !b.contains(a)).map(b => [a, b]));
  const overlaps = pairs.filter(pair => {
    const [a, b] = pair.map(e => e.getBoundingClientRect());
    return Math.min(a.right, b.right) > Math.max(a.left, b.left) + 1 && a.top <= b.top && a.bottom > b.top + 1;
  });
  const colours = texts.map(e => [style(e).color, behind(e)]);
  return {colours, overlaps: overlaps.map(pair => pair.map(e => e.outerHTML)),
    wide: Math.max(document.documentElement.scrollWidth, ...shown.map(e => e.getBoundingClientRect().right))};
})()"""


class Window(Browser):
    """`pages` has by mode the session and the address of its page."""

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({selector!r}).innerText")

    def click(self, label: str, root: str = "document") -> None:
        named = f"e => e.offsetHeight && e.innerText.startsWith('{label}')"
        button = f"[...{root}.querySelectorAll('button')].find({named})"
        self.wait(f"{button} && !{button}.disabled")
        box = f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({button}.getBoundingClientRect())"
        place = self.run(f"{button}.scrollIntoView({{block: 'center'}}), {box}")
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, *place)

    def ask(self, question: str) -> None:
        self.open(self.pages["ask"][1])
        self.wait("document.activeElement.id === 'question'")
        self.call("Input.insertText", text=question)
        self.press("Enter")
        self.wait("document.activeElement.matches('.card')")

    def mark(self, before: int, count: int) -> None:
        """Marks so many characters, after so many behind the caret."""
        self.wait("document.activeElement.value")
        for number in range(before + count):
            self.press("ArrowRight", SHIFT if number >= before else 0)
        self.wait("!document.getElementById('mark').disabled")

    def check(self) -> None:
        """WCAG 2.2: 1.4.3, a contrast of at least 4.5; 1.4.10, 360 pixels are enough; 2.4.7, focus; 4.1.2, names."""
        for width, scheme in product((360, 1100), ("light", "dark")):
            self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            seen = self.run(SEEN)
            assert (seen["overlaps"], seen["wide"] <= width) == ([], True)
            for colours in seen["colours"]:
                channels = [map(int, re.findall(r"\d+", colour)) for colour in colours]
                assert contrast(*("#{:02x}{:02x}{:02x}".format(*rgb) for rgb in channels)) >= 4.5, colours
        for node in self.call("Accessibility.getFullAXTree")["nodes"]:
            if not node["ignored"] and node["role"]["value"] in ("button", "textbox", "searchbox", "link", "region"):
                assert node["name"]["value"]
        for _ in range(30):
            self.press("Tab")
            style = self.run("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.tagName")
            assert style.endswith("BODY") or not style.startswith("none"), style

    def rows(self, mode: str = "ask") -> list[dict]:
        return list(map(json.loads, self.pages[mode][0].verdicts.path.open(encoding="utf-8")))


@contextmanager
def served(session: Session) -> Iterator[tuple[Session, str]]:
    server = uvicorn.Server(uvicorn.Config(build(session), port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield session, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def is_now(shown: str) -> bool:
    """Whether a page's time is of the last minutes."""
    return 0 <= (datetime.now() - datetime.strptime(shown, "%d %B %Y at %H:%M:%S")).total_seconds() < 10 * WAITS


def answers(question: str) -> Iterator[Answer]:
    for number, (name, words) in enumerate(ANSWERS[question], 1):
        start = TEXTS[name].index(words)
        place = (start, start + len(words)) if words else (None, None)
        yield Answer(words, *place, 0.0, 0.7 / number, odds=2.0, confidence=0.934, name=name)


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Iterator[Window]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "museum").mkdir()
    for name, text in TEXTS.items():
        (folder / "museum" / name).write_text(text, newline="", encoding="utf-8")
    (folder / "museum" / os.fsdecode(b"caf\xe9.txt")).write_text("Coffee.")  # no UTF-8
    texts = FolderTexts(folder / "museum", "texts")
    asking = Session("ask", ["mine/model"], texts, Verdicts(folder / "corrections.jsonl"), most=10)
    asking.shown = ShownTexts(texts, TextIndex(texts))
    asks = Mock(answer=lambda asked, _: map(list, map(answers, asked)), index=asking.shown.index)
    asking.asking = Asking(Mock(null_threshold=1.0, min_confidence=0.0, remark=lambda _: None), asks, asking.shown)
    examples = [Example(f"q{year}", f"When, of {year}?", f"👷 Built in {year}.", (), None, "") for year in YEARS]
    labelling = Session("label", ["runs/a"], None, Verdicts(folder / "labels.jsonl"), ready=True)
    labelling.labels = Labels(examples, {"runs/a": {e.id: ("Built", 0.25) for e in examples}}, Scorer())
    with closing(Window(folder / "profile")) as window, served(asking) as asks, served(labelling) as labels:
        window.pages = {"ask": asks, "label": labels}
        yield window


@pytest.fixture(autouse=True)
def _nothing_fails_and_no_other_host_is_asked(window):
    window.events.clear()
    yield
    assert not window.run("window.ran")
    for method, about in ((event["method"], event["params"]) for event in window.events if "method" in event):
        assert method not in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"), about
        assert method != "Log.entryAdded" or about["entry"]["source"] == "network", about  # a reply that refuses
        assert method != "Network.requestWillBeSent" or re.match(r"http://127\.0|data:,$", about["request"]["url"])


def test_an_answer_is_marked_in_its_passage(window):
    window.open(window.pages["ask"][1])
    window.wait("document.getElementById('loading').innerText && !document.getElementById('ask').checkVisibility()")
    window.pages["ask"][0].ready = True
    window.ask(FOUNDER)
    marks = "[...document.querySelectorAll('mark')].map(mark => mark.previousSibling.data.slice(-3) + mark.innerText)"
    assert window.run(marks) == ["in 1852", "\n  Agnes Palder", "ام 1852"]
    window.check()
    assert re.search("history.txt\n+confidence 93\xa0%(.|\n)*probability 35\xa0%", window.text("#answers"))
    window.click("Right")
    window.wait(UNDO)
    row = window.rows()[-1]
    assert (row["answers"]["text"], row["right"], row["said"]["confidence"]) == (["1852"], True, 0.934)
    assert "Right" not in window.text("#answers")  # a question gets one verdict
    window.click("Open the text", SECOND)
    window.wait("document.getSelection().toString() === 'Agnes Palder'")


def test_html_in_questions_names_and_texts_is_shown_and_never_run(window):
    window.ask(HOSTILE)
    assert [window.text(part) for part in (".card h2", ".meta span", "blockquote")] == [HOSTILE, ATTACK, TEXTS[ATTACK]]
    window.click("Open the text")
    window.wait(f"document.getElementById('text').value === {json.dumps(TEXTS[ATTACK])}")
    window.run("document.getElementById('part').focus()")
    window.call("Input.insertText", text="<IMG")
    window.wait("document.getElementById('list-title').innerText === 'Texts and passages'")
    assert [window.text(part) for part in ("#name", "#viewer-question", "#list li")] == [ATTACK, HOSTILE, ATTACK]
    assert window.text("#list li + li").split("\n") == [ATTACK, TEXTS[ATTACK]]
    assert window.run("document.images.length + document.scripts.length") == 1


def test_a_text_whose_name_is_no_utf_8_is_opened(window):
    window.ask(FOUNDER)
    window.click("Open the text")
    window.wait("document.getElementById('text').value")
    window.run("document.getElementById('part').focus()")
    window.call("Input.insertText", text="caf")
    window.click("caf", "document.getElementById('list')")
    window.wait("document.getElementById('text').value === 'Coffee.'")


def test_a_text_is_also_found_by_its_words(window):
    window.ask(MOON)
    window.click("Wrong")
    window.wait("document.activeElement.value")
    for part, names, note in (
        ("tram stops", [VISITORS], "0 texts by name, 1 passage by words."),
        ("hist", [HISTORY, HISTORY], "1 text by name, 1 passage by words."),
        (" zebra ", [], "0 texts by name, 0 passages by words."),
    ):
        window.run("part.value = '', part.focus()")
        window.call("Input.insertText", text=part)
        window.wait(f"document.getElementById('list-note').innerText === {note!r}")
        assert window.run("[...document.querySelectorAll('#list strong')].map(name => name.innerText)") == names
    window.run("document.getElementById('part').value = ''")
    window.call("Input.insertText", text=" ")  # no word
    window.wait("document.getElementById('list-title').innerText === 'Passages found for the question'")


def test_marked_words_are_whole_and_have_no_comma_or_lone_bracket_at_their_ends(window):
    """Each text has its selection between bars."""
    window.ask(MOON)
    window.click("Wrong")
    window.wait("document.activeElement.value")
    for text, words in (
        ("by B|alder Energ|ie in 1852", "Balder Energie"),
        ("of |a stiff neck, |he said", "a stiff neck"),
        ("in 18|5|2: cold", "1852"),
        ("Μο|υσεί|ο", "Μουσείο"),
        ("в Му|зе|й", "Музей"),
        ("de|\u0301ja|\u0300 vu", "de\u0301ja\u0300"),
        ("(in |(Bonn| or) Berlin", "Bonn"),
        ("the |“stiff neck”,| a", "“stiff neck”"),
        ('the "|stiff neck",| a', "stiff neck"),
        ("f|(x), |y", "(x)"),
        ("|f(x), |y", "f(x)"),
        ("博物館于18|5|2年成立", "1852"),
        ("博物館|于1852年|成立", "于1852年"),
        ("สวัส|ดี|ครับ", "ดี"),
        ("no wo|,|rd", None),
        ("no wo|rd|", "word"),
        ("wo||rd", None),
    ):
        before, selected, _ = parts = text.split("|")
        span = (len(before), len(before) + len(selected))
        window.run(f"show(null, null, {json.dumps(''.join(parts))}, {span[0]}, {span[1]})")
        assert window.text("#marked") == (f"Marked: “{words}”" if words else "Nothing is marked yet.")
        assert window.run("document.getElementById('mark').disabled") == (words is None)
    for number, said in ((30, "Marked: "), (31, "That is long: mark as few words as answer it. Marked: ")):
        window.run(f"show(null, null, {json.dumps('word ' * 40)}, 0, {5 * number})")
        assert window.text("#marked") == f"{said}“{('word ' * number).strip()}”"
        assert not window.run("document.getElementById('mark').disabled")
        window.check()
    rows = window.rows()
    window.run(f"openText({VISITORS!r}, 6, 10)")  # trance entr
    window.wait("document.getElementById('marked').innerText === 'Marked: “entrance”'")
    window.click("These words")
    window.wait(UNDO)
    [*before, row] = window.rows()
    assert (before, row["answers"]["text"], row["answers"]["answer_start"]) == (rows, ["entrance"], [4])


def test_a_question_that_is_too_long_keeps_the_answers(window):
    window.ask(FOUNDER)
    answers = window.text("#answers")
    window.run("question.value = 'x'.repeat(1001), question.focus()")
    window.press("Enter")
    said = "The question is too long: 1,000 characters at most."
    window.wait(f"document.getElementById('fault').innerText === {said!r}")
    assert window.text("#answers") == answers


def test_a_declined_question_is_answered_with_the_mouse(window):
    window.ask(MOON)
    assert re.search("do not seem to answer(.|\n)*What it found anyway\n+Tram 4", window.text("#answers"))
    window.check()
    window.click("Wrong")
    window.click("history.txt")
    window.wait("document.activeElement.value?.includes('Agnes')")
    left, top, right = window.run("(({left, top, right}) => [left, top, right])(text.getBoundingClientRect())")
    for kind, x in (("mousePressed", left + 18), ("mouseMoved", right - 30), ("mouseReleased", right - 30)):
        window.mouse(kind, x, top + 0.8 * 16 + 2.5 * 1.6 * 16)  # the third line
    window.click("These words are the answer")
    window.wait(UNDO)
    assert window.rows()[-1]["answers"]["text"] == ["Agnes Palder of Elbing"]  # without the blanks around it


def test_a_verdict_that_the_texts_do_not_say_names_the_text_of_its_passage(window):
    window.ask(MOON)
    window.click("The texts do not say")
    window.wait(UNDO)
    said = f"Saved beside the earlier verdicts?, with a passage of {window.rows()[-1]['title']} as its text[.]"
    assert re.fullmatch(said, window.text(".saved strong"))


def test_words_are_marked_by_keyboard_and_called_saved_when_they_are_on_disk(window, monkeypatch):
    verdicts, goes_on, before = window.pages["ask"][0].verdicts, threading.Event(), window.rows()
    window.ask(FOUNDER)
    window.click("Wrong", SECOND)
    window.mark(0, len("Agnes Palder"))
    window.call("Input.insertText", text="typed")  # into a text that cannot be changed
    add = verdicts.add
    monkeypatch.setattr(verdicts, "add", Mock(side_effect=InputError("no space: make room there")))
    for offline, said in ((True, "or not: look at the list of verdicts."), (False, "there. Nothing has changed.")):
        window.call("Network.setBlockedURLs", urls=["*"] * offline)
        window.click("These words")
        window.wait(f"document.getElementById('viewer-fault').innerText.endsWith({said!r})")
    window.check()
    assert (window.text("#marked"), window.rows()) == ("Marked: “Agnes Palder”", before)
    monkeypatch.setattr(verdicts, "add", lambda *row: goes_on.wait(WAITS) and add(*row))
    window.click("These words")
    window.wait("document.getElementById('saving').innerText")
    assert "Saved" not in window.text("body")
    goes_on.set()
    window.wait(UNDO)
    title, words, time, *buttons = window.run(f"{SECOND}.lastChild.innerText.split(/\\n+/).filter(Boolean)")
    assert (words, is_now(time), buttons) == ("The right words are “Agnes Palder”.", True, ["Undo", "Open the text"])
    earlier = min(2, sum(row["question"] == FOUNDER for row in before))
    said = ("Saved.", "Saved beside the earlier verdict.", "Saved beside the earlier verdicts.")
    assert title == said[earlier]
    assert window.text("#count") == f"{len(before) + 1} verdicts in corrections.jsonl"
    [start] = (row := window.rows()[-1])["answers"]["answer_start"]
    assert (row["title"], row["context"][start : start + 15], row["right"]) == (HISTORY, "Agnes Palder of", True)
    window.press("Enter")
    window.wait("document.activeElement.innerText === 'Right'")
    assert ("Saved" in window.text("#answers"), window.rows()) == (False, before)


def test_earlier_verdicts_are_shown_and_taken_back_after_a_reload(window):
    session, address = window.pages["ask"]
    other, mine = (row_of(question, HISTORY, TEXTS[HISTORY], None, None) for question in (HOSTILE, FOUNDER.upper()))
    before, same = len(window.rows()), sum(row["question"] == FOUNDER for row in window.rows())
    ids = [session.verdicts.add(row) for row in (other, mine)]  # by another person, or before the server's start
    window.ask(FOUNDER)
    *judged, time = window.text(".card .given").split("\n")[:3]
    assert (judged, is_now(time)) == (["Judged before.", "The texts do not say."], True)
    assert window.run(f"{SECOND}.innerText.includes('before')") is False
    window.click("Right")
    window.wait(UNDO)
    title, words, time, _ = window.text(".saved").split("\n")
    assert title == f"Saved beside the earlier verdict{'s' * (same > 0)}."
    assert (words, is_now(time)) == ("The right words are “1852”.", True)
    assert window.run("document.activeElement.closest('[aria-live=polite]') !== null")
    older = session.verdicts.add(row_of(FOUNDER, HISTORY, TEXTS[HISTORY], None, None))
    window.ask(FOUNDER)
    window.click("Right")
    window.wait(UNDO)
    again = list(session.verdicts.rows)[-1]
    for id_, focused in ((older, "count"), (again, "")):  # the buttons of a verdict are hidden, and then shown
        window.run(f"document.querySelector('.given [data-id=\"{id_}\"] button').focus()")
        window.press("Enter")
        window.wait(f"!document.querySelector('[data-id=\"{id_}\"]')")
        assert window.run("document.activeElement.id") == focused
    assert window.run("document.activeElement.innerText") == "Right"
    window.open(address)
    window.wait("document.activeElement.id === 'question'")
    assert window.text("#count") == f"{before + 3} verdicts in corrections.jsonl"
    window.run("document.getElementById('count').focus()")
    window.press("Enter")
    window.wait("document.getElementById('latest').children.length")
    shown = window.run("[...document.querySelectorAll('#latest li')].map(item => item.innerText.split(/\\n+/))")
    assert [item[:2] for item in shown[:3]] == [
        [FOUNDER, "The right words are “1852”."],
        [FOUNDER.upper(), "The texts do not say."],
        [HOSTILE, "The texts do not say."],
    ]
    assert len(shown) == before + 3
    window.check()
    named = {"list": "verdicts in corrections.jsonl", "button": f"{shown[2][2]} on {HOSTILE}"}
    nodes = [node for node in window.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    for role, name in named.items():
        assert any(node["role"]["value"] == role and node["name"]["value"].endswith(name) for node in nodes), role
    window.ask(FOUNDER)  # a reload: the list is closed
    window.run("document.getElementById('count').focus()")
    window.press("Enter")
    window.wait("document.getElementById('latest').children.length")
    for _ in range(2):
        window.press("Tab")
    window.press("Enter")  # on the second one: the other person's, which the answer shows, too
    window.wait("document.activeElement.id === 'count'")
    assert ids[1] not in [row["id"] for row in window.rows()]
    assert window.run("document.querySelectorAll('.card .given li').length") == same + 1
    assert window.text("#count") == f"{before + 2} verdicts in corrections.jsonl"
    window.click("Right")  # once more
    window.wait(f"document.querySelectorAll('#latest li').length === {before + 3} && {UNDO}")
    window.press("Enter")
    window.wait("document.activeElement.innerText === 'Right'")
    window.click("Undo", "document.querySelector('.card')")
    window.wait(f"document.querySelectorAll('.card .given li').length === {same}")
    assert window.run("document.activeElement.innerText") == "Right"
    assert [row["id"] for row in window.rows()[before:]] == ids[:1]
    session.verdicts.undo(ids[0])
    window.click("Undo", "document.getElementById('latest')")
    window.wait("document.getElementById('fault').innerText.startsWith('this verdict was removed before')")


def test_what_is_not_read_of_a_question_is_said_beside_the_answer(window, monkeypatch):
    remark = "The question is longer than 8 tokens: the model does not read 'museum?'."
    asking = window.pages["ask"][0].asking
    monkeypatch.setattr(asking._answerer, "remark", lambda _: remark)
    asking._kept.clear()
    window.ask(FOUNDER)
    asking._kept.clear()
    assert remark in window.text(".card.best")
    assert window.run(f"{SECOND}.innerText").count("longer") == 0


def test_a_label_shows_what_the_model_said_and_moves_the_scores(window):
    window.open(window.pages["label"][1])
    for number in range(1, len(YEARS) + 1):
        window.wait("document.activeElement.value")
        assert "25\xa0%" not in window.run("document.documentElement.outerHTML")
        if number == 2:
            window.check()
        for _ in range({2: 1, 14: 3}.get(number, 0)):  # who skips all that are left begins anew
            skipped = window.text("#task-question")
            window.click("Skip")
            window.wait(f"document.getElementById('task-question').innerText !== {skipped!r}")
        if number % 2:
            window.mark(len("👷 Built in "), len("1800"))
        window.click("These words" if number % 2 else "The text does not say")
        window.wait("document.activeElement.innerText === 'Next question'")
        assert window.text("#revealed h3 + ul li") == "runs/a: Built, 25\xa0%"
        assert window.text("#labelled") == f"{number} of {len(YEARS)} labelled"
        assert (" more." in window.text("#more")) == (number < len(YEARS))
        window.press("Enter")
    window.wait("document.activeElement.innerText === 'All 15 questions are labelled'")
    window.check()
    assert re.match(r"Exact match\s+0.0 % \(0.0 to [\d.]+\)\s+F1\s+0.0 %", window.text("#intervals"))
    for number, row in enumerate(window.rows("label"), 1):
        assert row["answers"]["text"] == ([row["asked"].removeprefix("q")] if number % 2 else [])
    assert row["question"] == skipped
