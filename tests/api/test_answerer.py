"""QuestionAnswerer against every span of every window, scored one by one with transformers' bare model."""

import csv
import io
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

from swep_ds.api import answerer
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.commands.answer import answer as answer_command
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.features import windows_to_answer as of_few
from swep_ds.data.windows import WindowCutter, WindowSettings
from swep_ds.evaluation.calibration import FEATURES, Calibrator, features
from swep_ds.evaluation.spans import Answer
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused
from tests.support.finished import write_reading
from tests.support.tiny_run import prepare

LONG = " ".join(tiny.SENTENCES)
ASKED = [
    ("Who founded it?", "It was founded in 1204 by an abbot."),
    ("When was it opened?", LONG),
    ("Who?", "An abbot."),
]
SIZES = {"max_length": 24, "doc_stride": 5, "max_query_length": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("answerer")
    prepare(folder)
    sizes = {"data": SIZES, "eval": {"max_answer_tokens": 4, "n_best": 5}}
    (folder / "model" / "reading.json").write_text(json.dumps(sizes))
    return str(folder / "model")


@torch.no_grad()
def by_hand(model: str, question: str, context: str, longest: int = 4) -> tuple[list[tuple], float]:
    """All allowed spans, best first, as (score, start, end, text), and the null score."""
    qa = AutoModelForQuestionAnswering.from_pretrained(model).eval()
    cutter = WindowCutter(tiny.wordpiece(), WindowSettings(**SIZES))
    tokens, text = cutter.encode(question).ids[:8], cutter.encode(context)
    spans, nulls = [], []
    for begin, end, own_begin, own_end in cutter.windows(len(tokens), len(text.ids)):
        ids = cutter.template.input_ids(tokens, text.ids[begin:end]).tolist()
        types = cutter.template.type_ids(len(tokens), end - begin).tolist()
        output = qa(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        starts, ends = output.start_logits[0].tolist(), output.end_logits[0].tolist()
        first = cutter.template.context_begin(len(tokens)) - begin
        nulls.append(starts[0] + ends[0])
        for a in range(own_begin, own_end):
            for b in range(a, min(a + longest, end)):
                start, stop = int(text.starts[a]), int(text.ends[b])
                spans.append((starts[first + a] + ends[first + b], start, stop, context[start:stop]))
    return sorted(spans, key=lambda span: -span[0]), min(nulls)


@pytest.mark.parametrize("asked", ASKED[:2])
def test_the_n_best_are_exact_and_the_null_score_declines_where_it_exceeds_the_best_by_the_threshold(model, asked):
    spans, null = by_hand(model, *asked)
    n = min(len(spans), 40)
    replies = QuestionAnswerer(model, batch_size=2)(*asked, n_best=n)
    assert [reply.score for reply in replies] == pytest.approx([score for score, *_ in spans[:n]], abs=1e-5)
    total = sum(math.exp(score) for score, *_ in spans)
    for reply in replies:
        assert reply.text == asked[1][reply.start : reply.end]
        assert reply.probability == pytest.approx(math.exp(reply.score) / total, rel=1e-4)
    assert (replies[0].start, replies[0].end) == spans[0][1:3]
    odds = null - spans[0][0]
    probability = pytest.approx(math.exp(null) / (math.exp(null) + total), rel=1e-4)
    for threshold, declined in ((odds - 0.01, True), (odds + 0.01, False)):
        asks = QuestionAnswerer(model, null_threshold=threshold)
        replies = asks(*asked, n_best=1 + len(spans))
        [place] = [i for i, reply in enumerate(replies) if not reply.text]
        confidence = probability if declined else None
        score, close = pytest.approx(null, abs=1e-5), pytest.approx(odds, abs=1e-5)
        assert replies[place] == Answer("", None, None, score, probability, close, confidence)
        assert place == (0 if declined else max(1, sum(score >= null for score, *_ in spans)))
        assert sum(reply.probability for reply in replies) == pytest.approx(1, rel=1e-4)
        [best] = asks(*asked)
        assert (best.text == "") == declined


@pytest.mark.parametrize("longest", [1, 9])
def test_the_longest_answer_can_be_another_than_the_models_own(model, longest):
    spans, _ = by_hand(model, *ASKED[1], longest)
    replies = QuestionAnswerer(model, max_answer_tokens=longest)(*ASKED[1], n_best=len(spans))
    assert [reply.score for reply in replies] == pytest.approx([score for score, *_ in spans], abs=1e-5)
    assert "max_answer_tokens 0: must be at least 1" in refused(lambda: QuestionAnswerer(model, max_answer_tokens=0))


def test_one_answer_is_the_first_of_many_and_batches_change_nothing(model, monkeypatch):
    single = QuestionAnswerer(Path(model))
    expected = [single(*asked, n_best=5) for asked in ASKED]
    monkeypatch.setattr(answerer, "QUESTIONS_AT_A_TIME", 4)
    monkeypatch.setattr(answerer, "CHARACTERS_AT_A_TIME", len(LONG))
    sizes = []
    monkeypatch.setattr(answerer, "windows_to_answer", lambda *given: sizes.append(len(given[0])) or of_few(*given))
    together = QuestionAnswerer(model, batch_size=7)
    for n in (1, 5):
        sizes.clear()
        replies = list(together.answer(iter(ASKED * 2), n_best=n))
        assert len(replies) == 6
        assert sizes == [1, 3, 2]  # a long text is in memory with few others
        for reply, other in zip(replies, expected * 2, strict=True):
            assert [r.text for r in reply] == [r.text for r in other[:n]]
            assert [r.probability for r in reply] == pytest.approx([r.probability for r in other[:n]], rel=1e-4)


def test_the_threshold_is_the_models_own_and_it_withholds_what_it_is_not_sure_of(model, tmp_path):
    plain = QuestionAnswerer(model, null_threshold=1e6)(*ASKED[0], n_best=100)
    [null] = [reply for reply in plain if not reply.text]
    declined, *others = QuestionAnswerer(model, null_threshold=1e6, min_confidence=1.0)(*ASKED[0], n_best=100)
    assert declined == replace(null, confidence=plain[0].confidence)
    assert [reply.text for reply in others] == [reply.text for reply in plain if reply.text]
    assert QuestionAnswerer(model)(*ASKED[0])[0].text
    other = shutil.copytree(model, tmp_path / "other")
    change_json(other / "reading.json", null_threshold=-1e6)
    assert QuestionAnswerer(other)(*ASKED[0])[0].text == ""
    assert QuestionAnswerer(other, null_threshold=1e6)(*ASKED[0])[0].text


def test_a_calibrator_sees_five_answers_and_an_answer_is_withheld_below_the_confidence_only(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    weights = {name: (30.0 if name.startswith("probability") else 0.1) for name in FEATURES}
    calibrator = Calibrator(kind="features", intercept=-1.0, weights=weights, log_loss={}, questions=40)
    change_json(other / "reading.json", calibrator=calibrator.model_dump(), null_threshold=1e6)
    spans, null = by_hand(model, *ASKED[1])
    total = math.exp(null) + sum(math.exp(score) for score, *_ in spans)
    best = [Answer(text, start, end, score, math.exp(score) / total) for score, start, end, text in spans[:5]]
    if null > best[-1].score:
        best.append(Answer("", None, None, null, math.exp(null) / total))
        best = best[:1] + sorted(best[1:], key=lambda answer: -answer.score)
    example = Example("1", *ASKED[1], (), None, "")
    asks = QuestionAnswerer(other)
    [reply] = asks(*ASKED[1])
    assert asks.calibrated
    assert reply.text == best[0].text
    expected = calibrator.confidence(np.array([features(example, best)])).item()
    assert reply.confidence == pytest.approx(expected, rel=1e-4)
    assert 0.1 < expected < 0.9
    asks.min_confidence = reply.confidence
    assert asks(*ASKED[1]) == [reply]
    asks.min_confidence = math.nextafter(reply.confidence, 1)
    [withheld] = asks(*ASKED[1])
    assert (withheld.text, withheld.confidence) == ("", reply.confidence)
    asks = QuestionAnswerer(other, null_threshold=1e5)  # at which it was not fitted
    assert not asks.calibrated
    assert QuestionAnswerer(other, max_answer_tokens=4).calibrated
    assert not QuestionAnswerer(other, max_answer_tokens=5).calibrated
    [reply] = asks(*ASKED[1])
    assert reply.confidence == reply.probability == pytest.approx(best[0].probability, rel=1e-4)


def test_a_generative_model_gives_one_answer(tmp_path):
    prepare(tmp_path, architecture="t5")
    write_reading(tmp_path / "model")
    generative = str(tmp_path / "model")
    asks = QuestionAnswerer(generative)
    [[reply], [other], _] = asks.answer(ASKED)
    assert (reply.start, other.end) == (None, None)
    assert reply.probability == pytest.approx(math.exp(reply.score))
    [single] = asks(*ASKED[0])
    assert single.text == reply.text
    assert single.score == pytest.approx(reply.score, rel=1e-6)  # other batch sizes round otherwise
    assert refused(asks, *ASKED[0], 3).startswith(f"n_best 3: {generative} gives one answer: set it to 1")
    assert QuestionAnswerer(generative, null_threshold=-1e6)(*ASKED[0])[0].text == ""
    [given] = QuestionAnswerer(generative, null_threshold=1e6)(*ASKED[0])
    assert (given.text, given.odds) == (reply.text, None)
    assert reply.text


def test_what_cannot_be_asked(model, tmp_path, monkeypatch):
    asks = QuestionAnswerer(model)
    assert "question 1: it or its text is empty" in refused(asks, " ", "text")
    assert "question 2: it or its text is empty" in refused(lambda: list(asks.answer([ASKED[0], ("Who?", "\n")])))
    assert "min_confidence 1.1: must be a probability" in refused(lambda: QuestionAnswerer(model, min_confidence=1.1))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    assert f"is the folder of a run: name its model, {tmp_path / 'model'}" in refused(QuestionAnswerer, tmp_path)
    foreign = [("\u8c01?", "\u4e0a\u6d77\u5e02\u5728\u4e2d\u56fd\u3002")] * 4
    asks = QuestionAnswerer(model)
    assert "its tokenizer knows" in refused(lambda: list(asks.answer(foreign)))
    monkeypatch.setattr(answerer, "FIRST_TEXTS", 4)  # only these are looked at
    monkeypatch.setattr(answerer, "QUESTIONS_AT_A_TIME", 2)
    assert len(list(asks.answer([ASKED[0], ASKED[0], *foreign]))) == 6


def test_a_question_that_is_longer_than_the_model_takes_is_cut_and_reported(model, tmp_path, caplog):
    long, short = "Who founded the old abbey on the hill above the town?", "Who?"
    list(QuestionAnswerer(model).answer([(long, LONG), (short, LONG)]))
    assert caplog.messages == ["a question is longer than 8 tokens, and what follows is not read"]
    tiny_models.model(vocab_size=200, max_position_embeddings=48).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    [reply] = QuestionAnswerer(tmp_path)("Who founded it " + "and who built it " * 20 + "?", LONG)
    assert reply.text == LONG[reply.start : reply.end] != ""


# The command


@pytest.fixture
def answer(model, tmp_path, monkeypatch):
    """Calls `swep-ds answer` on the rows of a file of questions."""

    def call(rows: list[dict], output: Path, *options: str) -> None:
        (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
        command = ["answer.py", model, "--questions", str(tmp_path / "asked.jsonl"), "--output", str(output), *options]
        monkeypatch.setattr(sys, "argv", command)
        answer_command()

    return call


ROWS = [{"id": f"q{i}", "question": question, "context": context} for i, (question, context) in enumerate(ASKED * 2)]


def test_a_file_of_questions_becomes_lines_of_answers(model, answer, tmp_path):
    output = tmp_path / "answers.jsonl"
    answer(ROWS[:3], output, "--n_best", "2")
    lines = map(json.loads, output.read_text().splitlines())
    for line, row, replies in zip(lines, ROWS[:3], QuestionAnswerer(model).answer(ASKED, 2), strict=True):
        assert (line["id"], line["question"], line["answer"]) == (row["id"], row["question"], replies[0].text)
        assert row["context"][line["start"] : line["end"]] == line["answer"] == line["answers"][0]["text"]
        assert [a["text"] for a in line["answers"]] == [r.text for r in replies]
    answer(ROWS[:3], tmp_path / "answers.csv", "--n_best", "2")
    text = (tmp_path / "answers.csv").read_text(encoding="utf-8-sig")
    written = list(csv.DictReader(io.StringIO(text, newline="")))
    for row, line in zip(written, map(json.loads, output.read_text().splitlines()), strict=True):
        assert json.loads(row.pop("answers")) == line.pop("answers")
        assert row == {name: "" if value is None else str(value) for name, value in line.items()}
    assert f"--output {output}: exists already: name another file" in refused(answer, ROWS, output)
    blank = [{"id": "blank", "question": "Who?", "context": "\u200b"}]
    assert "question 'blank': context is empty" in refused(answer, blank, tmp_path / "other.jsonl")


def test_answers_to_a_file_that_were_stopped_are_resumed(answer, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(answerer, "QUESTIONS_AT_A_TIME", 2)
    whole, output = tmp_path / "whole.jsonl", tmp_path / "answers.jsonl"
    answer(ROWS, whole)
    together, asked = QuestionAnswerer.answer_together, []

    def stopped(self, examples, n_best):
        asked.append([example.id for example in examples])
        if len(asked) == 2:
            raise KeyboardInterrupt
        yield from together(self, examples, n_best)

    monkeypatch.setattr(QuestionAnswerer, "answer_together", stopped)
    with pytest.raises(KeyboardInterrupt):
        answer(ROWS, output)
    assert not output.exists()
    with pytest.raises(InputError, match=r"other settings \(min_confidence 0\.0 "):  # `refused` would hold the lock
        answer(ROWS, output, "--min_confidence", "0.5")
    answer(ROWS, output)
    assert asked == [["q0", "q1"], ["q2", "q3"], ["q2", "q3"], ["q4", "q5"]]
    assert "resuming: 2 of 6 questions are answered" in capsys.readouterr().out
    assert output.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.chunks"))


@pytest.mark.slow
def test_a_question_from_python_prints_nothing(model):
    code = f"import swep_ds as sd; sd.QuestionAnswerer({model!r})('Who?', 'An abbot.')"
    env = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}  # DeepSpeed looks for a GPU
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
