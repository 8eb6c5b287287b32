"""Many texts: how they are cut, and the replies against every span of every passage."""

import csv
import json
import math
import re
import sys
import unicodedata
from types import SimpleNamespace

import numpy as np
import pytest

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.commands.answer import answer as answer_command
from swep_ds.commands.evaluate import evaluate as evaluate_command
from swep_ds.data.answers import normalize_answer
from swep_ds.data.example import Example
from swep_ds.evaluation.spans import Answer
from swep_ds.texts import answerer as module
from swep_ds.texts import passages
from swep_ds.texts.answerer import TextsAnswerer
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.index import TextIndex
from swep_ds.texts.passages import Passage, cut, joined
from swep_ds.texts.words import words as words_of
from tests.api.test_answerer import by_hand, model  # noqa: F401 (a fixture)
from tests.support.bad_input import refused
from tests.support.documents import write_pdf
from tests.support.finished import write_reading
from tests.support.fork_server import ROOT
from tests.support.tiny_run import prepare

TEXTS = {
    "abbey.txt": "The old abbey was founded in 1204 by an abbot. It was founded again in 1250.\n\nWho knows why?",
    "college.md": "The college was opened by the king, and the abbot founded the library (in 1300).",
    "none.txt": "?!",
}
QUESTION = "Who founded it?"


@pytest.fixture
def short(monkeypatch):
    """Passages of 6 words, 3 apart, and all of their spans."""
    monkeypatch.setattr(passages, "WORDS", 6)
    monkeypatch.setattr(passages, "STEP", 3)
    monkeypatch.setattr(module, "FROM_EACH", 1000)


def passages_of(name: str) -> list[Passage]:
    return [Passage(name, begin, end) for begin, end, _, _ in cut(TEXTS[name])]


def test_passages_overlap_and_cover_the_text(short):
    first, second, third, fourth = passages_of("abbey.txt")[:4]
    contents = [TEXTS[name][begin:end] for name, begin, end in (first, second)]
    assert contents == ["The old abbey was founded in ", "was founded in 1204 by an "]
    for name in ("abbey.txt", "college.md"):
        assert joined(passages_of(name)) == [Passage(name, 0, len(TEXTS[name]))]
    # the third touches the first
    assert (joined([third, first]), joined([first, fourth])) == ([Passage("abbey.txt", 0, third.end)], [first, fourth])
    assert passages_of("none.txt") == []
    assert joined([Passage("b", 5, 9), Passage("a", 8, 9), Passage("a", 0, 4), Passage("b", 2, 6)]) == [
        Passage("a", 0, 4),
        Passage("a", 8, 9),
        Passage("b", 2, 9),
    ]


def test_passages_have_a_hundred_words_and_begin_fifty_apart():
    numbers = [str(number) for number in range(250)]
    text = " ".join(numbers)
    read = [text[begin:end].split() for begin, end, _, _ in cut(text)]
    assert read == [numbers[first : first + 100] for first in (0, 50, 100, 150)]


@pytest.mark.parametrize(
    ("text", "words", "question"),
    [
        ("\u4e0a\u6d77\u5728\u30fb\u4e2d\u3002", ["\u4e0a", "\u6d77", "\u5728", "\u4e2d"], "\u6d77?"),  # Chinese
        ("\u0e40\u0e1b\u0e47\u0e19 \u0e3f5", ["\u0e40", "\u0e1b\u0e47", "\u0e19", "5"], "\u0e1b\u0e47"),  # Thai
        ("다리는 1931년", [*"다리는", "1931", "년"], "다리를"),  # Korean, whose particles differ
        (unicodedata.normalize("NFD", "다리는"), [unicodedata.normalize("NFD", word) for word in "다리는"], "다리"),
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940, \u0939\u0948",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u0948"],
            "\u0939\u0948?",
        ),  # Hindi
        (
            "Die Mu\u0308ller_GmbH",
            ["Die", "Mu\u0308ller", "GmbH"],
            "M\u00dcLLER",
        ),  # NFD in the text, NFC in the question
    ],
)
def test_words_keep_their_marks_and_compare_in_nfc(text, words, question):
    assert words_of(text) == [unicodedata.normalize("NFC", word.casefold()) for word in words]
    assert TextIndex({"a": text, "b": "other"}).best(question, 2)[0] == ("a", 0, len(text))


def test_scores_are_log_odds_and_the_best_of_all_texts_wins(model, short):  # noqa: F811
    pieces = joined(TextIndex(TEXTS).best(QUESTION, 9))
    assert len({piece.name for piece in pieces}) == 2
    expected = []
    for name, begin, end in pieces:
        spans, null = by_hand(model, QUESTION, TEXTS[name][begin:end])
        expected += [(span - null, name, begin + start, begin + stop) for span, start, stop, _ in spans]
    expected.sort(key=lambda span: -span[0])
    check_replies(model, expected)
    declining = QuestionAnswerer(model, min_confidence=1.0).over(TEXTS, 9)
    assert [reply.text == "" for reply in declining(QUESTION, 2)] == [True, False]
    assert declining("zebra", 2) == [Answer("", None, None, None, 0.0, confidence=0.0)]


def check_replies(folder: str, expected: list[tuple]) -> None:
    """The model is in `folder`. `expected` are all spans, best first: score, name, start, end."""
    total = sum(math.exp(score) for score, *_ in expected)
    apart = []
    for span in expected:
        if not any(span[1] == name and span[2] < end and start < span[3] for _, name, start, end in apart):
            apart.append(span)
    count = len(apart)
    replies = TextsAnswerer(QuestionAnswerer(folder), TEXTS, 9)(QUESTION, len(expected))
    assert [reply.score for reply in replies] == pytest.approx([score for score, *_ in apart], abs=1e-5)
    assert (replies[0].name, replies[0].start, replies[0].end) == expected[0][1:]
    said = replies[0].text.lower().replace(".", "")
    same = [span for span in expected if TEXTS[span[1]][span[2] : span[3]].lower().strip(" .") == said]
    assert replies[0].confidence == pytest.approx(sum(math.exp(score) for score, *_ in same) / total, rel=1e-4)
    for reply in replies:
        assert reply.text == TEXTS[reply.name][reply.start : reply.end]
        assert reply.probability == pytest.approx(math.exp(reply.score) / total, rel=1e-4)
    for threshold in (-expected[0][0] - 0.01, -expected[0][0] + 0.01):
        asks = QuestionAnswerer(folder, null_threshold=threshold)
        replies = TextsAnswerer(asks, TEXTS, 9)(QUESTION, count + 1)
        [place] = [number for number, reply in enumerate(replies) if not reply.text]
        null = replies[place]
        assert (place == 0) == (null.odds > threshold)
        assert null.odds == pytest.approx(-expected[0][0], abs=1e-5)
        assert (null.name, null.probability) == (None, pytest.approx(1 / (1 + total), rel=1e-4))
        share = (1 + sum(math.exp(score) for score, *_ in apart)) / (1 + total)
        assert sum(reply.probability for reply in replies) == pytest.approx(share, rel=1e-4)


def test_questions_are_answered_together_in_the_fewest_forward_passes(model, short, monkeypatch, caplog):  # noqa: F811
    cut = "Who founded the old abbey on the hill above the town?"  # longer than the model takes
    questions = [QUESTION, "zebra", "The king?", cut, "When?", QUESTION]  # the second and fifth are in no text
    asks = QuestionAnswerer(model, null_threshold=0.5, batch_size=4)
    over = asks.over(TEXTS, 9)
    expected = [over(question, 3) for question in questions]
    assert caplog.messages[-1] == "a question is longer than 8 tokens, and what follows is not read"
    lengths = []
    predict = type(asks._saved.qa).predict

    def counted(qa, batch):
        lengths.append(batch.lengths)
        return predict(qa, batch)

    monkeypatch.setattr(type(asks._saved.qa), "predict", counted)
    replied = list(over.answer(iter(questions), 3))
    windows = [length for of_batch in lengths for length in of_batch]
    assert len(windows) > 8
    assert len(lengths) == math.ceil(len(windows) / 4)
    assert windows == sorted(windows, reverse=True)  # so that padding is least
    assert caplog.messages[-1] == "a question is longer than 8 tokens, and what follows is not read"
    monkeypatch.setattr(module, "QUESTIONS_OF_TEXTS_AT_A_TIME", 2)
    for replies in (replied, list(over.answer(questions, 3))):
        assert len(replies) == len(questions)
        for given, alone in zip(replies, expected, strict=True):
            places = [[(reply.name, reply.start, reply.end, reply.text) for reply in each] for each in (given, alone)]
            assert places[0] == places[1]
            numbers = [[(r.probability, r.confidence or 0, r.odds or 0) for r in each] for each in (given, alone)]
            # batches of another width round otherwise
            assert np.array(numbers[0]) == pytest.approx(np.array(numbers[1]), rel=1e-4, abs=1e-5)
    assert "question 3 is empty: give at least one word" in refused(lambda: list(over.answer([QUESTION, "Who?", " "])))


def test_a_users_search_replaces_the_index(model, short):  # noqa: F811
    index = TextIndex(TEXTS)

    def query(question, limit):
        pieces = index.pieces(question, limit)
        return [{"name": piece.name, "text": text, "begin": piece.begin} for piece, text in pieces]

    asks = QuestionAnswerer(model)
    code = re.search(r"```python\n(def search.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)[1]
    exec(code, names := {"engine": SimpleNamespace(query=query), "qa": asks})
    assert names["reply"] == asks.over(TEXTS)(QUESTION)[0]
    assert asks.over(names["search"], 9)(QUESTION, 5) == asks.over(TEXTS, 9)(QUESTION, 5)
    [reply] = asks.over(lambda question, count: [("a", "The king."), ("b", " ")])(QUESTION)
    assert (reply.name, reply.text) == ("a", "The king."[reply.start : reply.end])
    said = "the search gives 'The king.': give (name, text) or (name, text, begin) of a passage"
    assert refused(asks.over(lambda question, count: ["The king."]), QUESTION) == said


def test_a_score_over_all_texts_tells_search_from_reading(model, tmp_path, monkeypatch, capsys):  # noqa: F811
    (tmp_path / "docs").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / "docs" / name).write_text(text)
    rows = [
        ("Who founded it?", "an abbot", "abbey"),
        ("Who opened the college?", "the king", "college"),
        ("When was it founded?", "1204", "abbey.txt"),
        ("zebra", "1300", "college"),  # which no passage is like
        ("Who knows?", "", "college"),
    ]
    expected = [QuestionAnswerer(model).over(FolderTexts(tmp_path / "docs", "docs"))(row[0])[0] for row in rows]
    rows[0] = (*rows[0][:1], expected[0].text, expected[0].name)  # one that is right
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("question", "answer", "document"), *rows])
    words = ["swep-ds", "--data", "p=pairs.csv", "--texts", "docs", "--output_dir", "scores"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*words[:1], model, *words[1:]])
    searched = []
    pieces = TextIndex.pieces
    monkeypatch.setattr(TextIndex, "pieces", lambda index, *asked: searched.append(asked) or pieces(index, *asked))
    evaluate_command()
    assert searched == [(row[0], 10) for row in rows]  # once for each question
    score = json.loads((tmp_path / "scores/results.json").read_text())["eval"]["p"]
    answers = [json.loads(line) for line in (tmp_path / "scores/answers/p.jsonl").read_text().splitlines()]
    assert [answer["answer"] for answer in answers] == [reply.text for reply in expected]
    exact = [
        normalize_answer(reply.text) == normalize_answer(row[1]) for reply, row in zip(expected, rows, strict=True)
    ]
    assert [answer["exact_match"] for answer in answers] == exact
    assert exact[0]
    places = [(answer["name"], answer["page"], answer["heading"], answer["start"]) for answer in answers]
    assert places == [(reply.name, reply.page, reply.heading, reply.start) for reply in expected]
    assert score["exact_match"] == [100 * sum(exact) / 5]
    assert score["declined"] == [100 * sum(not reply.text for reply in expected) / 5]
    assert score["passage_found"] == [75.0]
    assert score["exact_if_found"] == [pytest.approx(100 * sum(exact[:3]) / 3)]
    given = [(reply.name, row[2]) for reply, row in zip(expected[:4], rows, strict=False) if reply.text]
    right = [name.startswith(document.split(".")[0]) for name, document in given]
    assert score["right_text"] == [pytest.approx(100 * sum(right) / len(right))]
    assert "passage found     75.0 %" in capsys.readouterr().out


def test_probabilities_are_right_where_every_passage_rejects(model):  # noqa: F811
    spans = [Answer(f"{n}", n, n + 1, -24.0, 0.0) for n in range(20)]
    null = Answer("", None, None, 0.0, 1.0, 24.0)
    pieces = [Passage("abbey.txt", begin, begin + 20) for begin in (0, 30, 60)]
    readings = [(piece, spans, null, math.log(20) - 24) for piece in pieces]
    asks = QuestionAnswerer(model)
    replies = asks.over(TEXTS).compare(readings, 60)
    assert [reply.probability for reply in replies] == pytest.approx([1 / 60] * 60)
    # three passages say the same up to normalisation, and none of them alone is sure enough
    said = [Answer(text, 0, 3, math.log(19), 0.0) for text in ("7", "The 7!", "a 7")]
    readings = [(piece, [answer], null, math.log(20)) for piece, answer in zip(pieces, said, strict=True)]
    asks.min_confidence = 0.9
    [best] = asks.over(TEXTS).compare(readings, 1)
    assert (best.text, best.probability) == ("7", pytest.approx(19 / 60))
    assert best.confidence == pytest.approx(57 / 60)


def test_a_generative_model_is_compared_by_its_null_answer(tmp_path):
    prepare(tmp_path, architecture="t5")
    write_reading(tmp_path / "model")
    asks = QuestionAnswerer(tmp_path / "model", null_threshold=1e6)
    scores, odds = {}, {}
    for name in ("abbey.txt", "college.md"):
        [best, *_] = asks(QUESTION, TEXTS[name], 1)
        [(_, null, _)] = asks.read([Example(name, QUESTION, TEXTS[name], (), None, "")], 1, null=True)
        scores[name] = best.score - null.score
        odds[name] = math.log(null.probability / (1 - null.probability))
    [reply] = asks.over(TEXTS)(QUESTION)
    best = max(scores, key=scores.get)
    assert (reply.name, reply.score) == (best, pytest.approx(scores[best], rel=1e-4))
    total = sum(math.exp(-odd) for odd in odds.values())
    assert reply.probability == pytest.approx(math.exp(reply.score) / (1 + total), rel=1e-4)
    for threshold in (min(odds.values()) - 0.01, min(odds.values()) + 0.01):
        asks.null_threshold = threshold
        [reply] = asks.over(TEXTS)(QUESTION)
        assert (reply.text == "") == (reply.name is None) == (min(odds.values()) > threshold)
    asks.null_threshold = None
    assert "generates and never declines: its answers to texts" in refused(asks.over, TEXTS)


def test_the_command_names_the_text_and_what_is_wrong_with_a_folder(
    model,  # noqa: F811
    tmp_path,
    monkeypatch,
    capsys,
    caplog,
):
    folder = tmp_path / "articles"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "abbey.TXT").write_text(TEXTS["abbey.txt"])
    (folder / "college.md").write_text(TEXTS["college.md"])
    (folder / "table.csv").write_text("a;b")
    (folder / ".hidden.txt").write_text("Who founded it?")
    (folder / "~$article.docx").write_text("the lock of a document that is open")
    (folder / "empty.txt").write_text(" \n")

    def answer(*options: str, question: tuple[str, ...] = ("--question", QUESTION)) -> None:
        monkeypatch.setattr(sys, "argv", ["answer.py", model, *question, *options])
        answer_command()

    answer("--texts", str(folder), "--passages", "5", "--n_best", "2")
    no_threshold, left_out = caplog.messages[:2]
    assert left_out == f"--texts {folder}: texts read: 3, other files left out: 1"
    assert caplog.messages[2].endswith(": 1 .csv")
    assert no_threshold.startswith(f"{model} has no null threshold: its odds against no answer were never trained")
    lines = capsys.readouterr().out.splitlines()
    for line, reply in zip(lines, QuestionAnswerer(model).over(folder, 5)(QUESTION, 2), strict=True):
        assert reply.name in ("old/abbey.TXT", "college.md")
        assert line.startswith(f"{reply.probability:6.1%}  ")
        assert f"  {reply.name}:    ..." in line
    answer("--texts", str(folder), question=("--question", "zebra"))
    assert capsys.readouterr().out == "  0.0%  no passage shares a word with the question\n"
    (tmp_path / "asked.csv").write_text(f"question\n{QUESTION}\nzebra\n")
    output = tmp_path / "answers.jsonl"
    asked = ("--questions", str(tmp_path / "asked.csv"), "--output", str(output))
    assert "asked.csv-2': context is empty: give it, or --texts" in refused(answer, question=asked)
    answer("--texts", str(folder), "--n_best", "2", question=asked)
    answered, nothing = map(json.loads, output.read_text().splitlines())
    replies = QuestionAnswerer(model).over(folder)(QUESTION, 2)
    assert [answered[name] for name in ("question", "answer", "name")] == [QUESTION, replies[0].text, replies[0].name]
    assert [(each["name"], each["start"], each["end"]) for each in answered["answers"]] == [
        (reply.name, reply.start, reply.end) for reply in replies
    ]
    assert (nothing["answer"], nothing["name"], nothing["confidence"]) == ("", None, 0.0)
    missing = tmp_path / "missing"
    assert refused(answer, "--texts", str(missing)) == f"--texts {missing}: no such folder"
    (tmp_path / "bare").mkdir()
    assert "holds no text that can be read: put .txt, .md" in refused(answer, "--texts", str(tmp_path / "bare"))
    asks = QuestionAnswerer(model)
    assert "texts: none of them has a word" in refused(asks.over, {"none.txt": "?!"})
    assert "passages 0: must be at least 1" in refused(asks.over, TEXTS, 0)
    assert "question 1 is empty: give at least one word" in refused(asks.over(TEXTS), " ")
    monkeypatch.setitem(sys.modules, "tantivy", None)
    assert refused(asks.over, TEXTS) == "asking many texts needs tantivy: pip install '.[texts]' in a checkout"


def test_answers_have_the_page_or_the_heading_of_their_place(model, tmp_path, monkeypatch, capsys):  # noqa: F811
    write_pdf(tmp_path / "market.pdf", [["The old abbey was founded."], ["The market was founded by the king."]])
    (tmp_path / "college.html").write_text(
        "<h1>Old</h1><p>The college was founded.</p><h2>New</h2><p>The king opened it."
    )
    replies = QuestionAnswerer(model).over(tmp_path)(QUESTION, 40)
    placed = {(reply.page, reply.heading) for reply in replies}
    assert placed == {(1, None), (2, None), (None, "Old"), (None, "New")}
    texts = FolderTexts(tmp_path, "")
    for reply in replies:
        text = texts[reply.name]
        assert text[reply.start : reply.end] == reply.text
        if reply.name == "market.pdf":
            assert reply.page == 1 + (reply.start >= text.index("The market"))
        else:
            assert reply.heading == ("New" if reply.start >= text.index("New") else "Old")
    monkeypatch.setattr(
        sys, "argv", ["answer.py", model, "--question", QUESTION, "--texts", str(tmp_path), "--n_best", "40"]
    )
    answer_command()
    said = capsys.readouterr().out
    assert "  market.pdf: page 2:  " in said
    assert "  college.html: New:  " in said
