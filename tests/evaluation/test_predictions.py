"""Scores that a run wrote of its questions, and when they are made again."""

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

from swep_ds.data.example import Example
from swep_ds.evaluation import predictions as evaluation_predictions
from swep_ds.evaluation.predictions import Marking, write_predictions
from swep_ds.evaluation.scores import Scorer


def test_scores_are_read_only_if_they_are_of_these_predictions_answers_and_rules(tmp_path, monkeypatch):
    examples = [Example(f"q{n}", "Who?", "Ann met Bob", ("Ann", "the Ann")[: 1 + n % 2], None, "t") for n in range(4)]
    predictions = {"q2": "Bob", "q0": "Ann met", "q1": "ann"}
    marking = Marking(examples, Scorer())
    expected = marking.of(predictions)
    assert expected.tolist() == [[0, 1, 0, 0], [2 / 3, 1, 0, 0]]
    write_predictions(tmp_path, "news", {"predictions": predictions}, marking)
    scored = mock.Mock(wraps=Scorer.by_question)
    monkeypatch.setattr(Scorer, "by_question", lambda *arguments: scored(*arguments))

    def read(marking: Marking = marking) -> bool:
        """Whether the scores are read, and not made again."""
        before = scored.call_count
        assert (marking.read(tmp_path, "news") == Marking(marking.examples, marking.scorer).of(answered())).all()
        return scored.call_count == before + 1  # that of the line above

    def answered() -> dict[str, str]:
        return json.loads((tmp_path / "predictions" / "news.json").read_text())

    assert read()
    others = [*examples[:-1], replace(examples[-1], answers=("Bob",))]
    assert not read(Marking(others, Scorer()))
    assert not read(Marking(examples[::-1], Scorer()))
    assert not read(Marking(examples, Scorer("mlqa de")))
    monkeypatch.setattr(evaluation_predictions, "CODE", (Path(__file__),))
    assert not read(Marking(examples, Scorer()))
    monkeypatch.undo()
    monkeypatch.setattr(Scorer, "by_question", lambda *arguments: scored(*arguments))
    for file, edited in (("scores", ("1.0", "0.5")), ("predictions", ('"Bob"', '"Ann"'))):
        path = tmp_path / file / "news.json"
        text = path.read_text()
        path.write_text(text.replace(*edited))
        assert not read()
        path.write_text(text)
        assert read()
    (tmp_path / "scores" / "news.json").unlink()
    assert not read()
