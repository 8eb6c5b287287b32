"""Declining a question: null scores of spans and of generated answers, and the threshold on them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from swep_ds.data.example import Example
from swep_ds.data.windows import empty_answer
from swep_ds.evaluation.calibration import features, fit
from swep_ds.evaluation.evaluate import EvalSet, Evaluation, Predictions
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import Answer, with_confidence, with_null
from swep_ds.models.seq2seq import GenerativeQA
from tests.evaluation.test_spans import best_probabilities, best_texts, decode, window
from tests.support import tiny, tiny_batches, tiny_models

FIRST = {"start_logits": [1.0, 0.0, 2.0, 0.0, 9.0], "end_logits": [0.5, 0.0, 0.0, 1.0, 9.0]}  # null score 1.5
SECOND = {"start_logits": [-1.0, 0.0, 1.0, 0.0, 9.0], "end_logits": [0.0, 0.0, 0.5, 0.0, 9.0]}  # null score -1


def null(score: float, probability: float, odds: float) -> Answer:
    return Answer("", None, None, score, probability, odds)


def test_the_lowest_null_score_of_the_windows_competes_with_the_best_span():
    spans = [3.0, 2.0, 1.0, 1.0, 0.0, 0.0]  # start + end logits of the first window's six pairs; best: 2 + 1
    spans += [1.5, 1.0, 0.5, 0.0, 0.0, 0.0]  # and the second's
    total = math.log(sum(math.exp(score) for score in (-1.0, *spans)))
    for windows in ([window(**FIRST), window(**SECOND)], [window(**SECOND), window(**FIRST)]):
        for best_only in (True, False):
            both = decode(*windows, best_only=best_only, null=True)
            assert both.nulls() == {"id0": null(-1.0, pytest.approx(math.exp(-1.0 - total)), odds=-1.0 - 3.0)}
            assert best_texts(both) == {"id0": "cd ef"}
            assert best_probabilities(both) == {"id0": pytest.approx(math.exp(3.0 - total))}


def test_the_null_score_is_read_where_the_window_has_its_cls_token_and_only_if_it_counts():
    assert decode(window(**FIRST, null_position=4), null=True).nulls()["id0"].score == 18.0
    plain = decode(window(**FIRST))
    assert plain.nulls() == {}
    assert best_probabilities(plain)["id0"] > best_probabilities(decode(window(**FIRST), null=True))["id0"]


def test_null_scores_are_finite_whatever_the_logits():
    for extreme in (math.inf, -math.inf, math.nan):
        [answer] = decode(window(start_logits=[extreme, 0, 0, 0, 0]), null=True).nulls().values()
        assert math.isfinite(answer.odds)
        assert 0 <= answer.probability <= 1
    no_span = decode(window(start_logits=[0.0] + [-math.inf] * 4), null=True).nulls()["id0"]
    assert 1e29 < no_span.odds < math.inf


def predicted(texts: dict[str, str], odds: dict[str, float]) -> Predictions:
    n_best = {id_: [Answer(text, 0, 1, -1.0, 0.5)] for id_, text in texts.items()}
    return Predictions(n_best, {id_: null(0.0, 0.7, value) for id_, value in odds.items()})


def test_a_question_is_declined_above_the_threshold():
    predictions = predicted({"a": "x", "b": "y", "c": "z"}, {"a": 1.0, "b": 0.5, "c": -2.0})
    declining = predictions.declining(0.5)  # not at it, as in the official scorer
    assert declining.texts == {"a": "", "b": "y", "c": "z"}
    assert declining.confidences == {"a": 0.7, "b": 0.5, "c": 0.5}
    kept = {id_: [answer.text for answer in answers] for id_, answers in declining.n_best.items()}
    assert kept == {"a": ["", "x"], "b": ["y", ""], "c": ["z", ""]}  # never first unless the question is declined
    assert predictions.declining(None) == predictions
    answers = [Answer(text, 0, 1, score, 0.1) for text, score in (("x", 3.0), ("y", 2.0), ("z", 1.0))]
    for score, texts in ((4.0, ["x", "", "y", "z"]), (2.0, ["x", "y", "", "z"]), (0.0, ["x", "y", "z", ""])):
        none = null(score, 0.1, odds=score - 3.0)
        assert [answer.text for answer in with_null(answers, none, 1.0)] == texts
        assert [answer.text for answer in with_null(answers, none, -9.0)] == ["", "x", "y", "z"]
    assert with_null(answers, None, 0.0) == answers


def test_an_answer_below_the_least_confidence_is_withheld_and_follows_the_null_answer():
    answers = [Answer("x", 0, 1, 3.0, 0.6), Answer("y", 1, 2, 2.0, 0.3)]
    none = null(1.0, 0.1, -2.0)
    for replies in (answers, [answers[0], none, answers[1]]):
        assert with_confidence(replies, none, 0.6, 0.6, 2) == [replace(answers[0], confidence=0.6), replies[1]]
        assert with_confidence(replies, none, 0.6, 0.61, 9) == [replace(none, confidence=0.6), *answers]
    declined = [none, *answers]
    assert with_confidence(declined, none, 0.1, 0.9, 2) == [replace(none, confidence=0.1), answers[0]]


def test_the_threshold_with_the_best_f1_is_chosen_even_if_it_declines_all():
    evaluation = Evaluation(None, None, None, 1, 0.0)
    predictions = predicted({"a": "tea", "b": "red tea", "c": "x"}, {"a": -1.0, "b": 0.5, "c": 2.0})
    first, second, third = (Example(id_, "?", "tea", ("tea",), None, "a") for id_ in "abc")
    half = EvalSet("set", [first, second, replace(third, answers=())], None, Scorer())
    chosen, why = evaluation.with_threshold(predictions, half)
    assert (chosen.null_threshold, why) == (0.5, "the best by F1 on half of set")
    assert half.score(predictions)["f1"] == pytest.approx(100 * (2 + 2 / 3) / 3)
    kept, why = evaluation.with_threshold(predictions, EvalSet("set", half.examples[:2], None, Scorer()))
    assert kept is evaluation
    assert why == "half of set, which could choose another, has no question without an answer"
    odds = {"a": -1.0, "b": -5.0, "c": -3.0}
    predictions = predicted(dict.fromkeys(odds, "x"), odds)
    half = EvalSet("set", [first, replace(second, answers=()), replace(third, answers=())], None, Scorer())
    threshold = evaluation.with_threshold(predictions, half)[0].null_threshold
    assert predictions.declining(threshold).texts == dict.fromkeys(odds, "")
    official = half.best_thresholds(predictions)
    assert (official["best_f1"], official["best_f1_threshold"]) == (pytest.approx(200 / 3), 0.0)
    # with equal odds the official best is between two of them, where no threshold is
    predictions = predicted(dict.fromkeys("abc", "tea"), dict.fromkeys("abc", 1.0))
    assert half.best_thresholds(predictions)["best_f1"] == 100
    assert half.score(predictions) == {"exact_match": pytest.approx(200 / 3), "f1": pytest.approx(200 / 3), "total": 3}
    assert evaluation.with_threshold(predictions, half)[0].null_threshold < 1.0


def test_a_calibrator_is_fitted_to_the_answers_that_are_given():
    """Which are none where the model declines."""
    rng = np.random.default_rng(0)
    examples, n_best, nulls, rows, right = [], {}, {}, [], []
    for number in range(120):
        golds = ("tea",) if number % 3 else ()
        example = Example(f"q{number}", "Who?", f"a text {number}", golds, None, f"article {number // 4}")
        best = Answer("tea" if rng.random() < 0.5 else "coffee", 0, 1, -1.0, rng.random())
        none = null(-2.0, rng.random(), rng.normal())
        declined = none.odds > 0
        rows.append(features(example, [none, best] if declined else [best, none]))
        right.append(not golds if declined else (best.text,) == golds)
        examples.append(example)
        n_best[example.id] = [best]
        nulls[example.id] = none
    predictions = Predictions(n_best, nulls)
    evaluation = Evaluation(None, None, None, 1, null_threshold=0.0)
    chosen, said = evaluation.with_calibrator(predictions, EvalSet("half", examples, None, Scorer()))
    expected = fit(np.array(rows), right, [number // 4 for number in range(120)])
    assert expected.questions == 120
    assert chosen == replace(evaluation, calibrator=expected)
    assert said == str(expected)
    none, said = chosen.with_calibrator(predictions, EvalSet("half", examples[:30], None, Scorer()))
    assert none.calibrator is None
    assert "are too few to calibrate them" in said


@pytest.mark.parametrize("architecture", ["t5", "bart"])
@torch.no_grad()
def test_a_generative_model_gives_an_answer_and_the_probability_of_none(architecture):
    tokenizer = tiny.wordpiece()
    changes = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.sep_token_id}
    qa = GenerativeQA(tiny_models.model(architecture, 0.0, **changes).eval(), beams=2, max_answer_tokens=6)
    qa.empty_answer = empty_answer(tokenizer)  # [CLS] [SEP]
    assert qa.empty_answer == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    batch = tiny_batches.generative(dtype=torch.float32)
    head = qa.model.get_output_embeddings()
    head.weight[tokenizer.sep_token_id] = 0
    ids, _, null = qa.predict(batch)
    # the end of sequence is not among the first tokens, as many as the empty answer has
    assert not (ids[:, : len(qa.empty_answer)] == tokenizer.sep_token_id).any()
    decoder_ids = qa.model.prepare_decoder_input_ids_from_labels(labels=torch.tensor([qa.empty_answer] * 3))
    logits = qa.model(batch.input_ids, attention_mask=batch.attention_mask, decoder_input_ids=decoder_ids).logits
    log_p = logits.log_softmax(-1)
    expected = sum(log_p[:, k, token] for k, token in enumerate(qa.empty_answer))
    torch.testing.assert_close(null, expected)
