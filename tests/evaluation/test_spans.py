"""Span decoding against the rule written as loops over every pair; test_windows.py of data decodes gold answers."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from swep_ds.data.example import Example
from swep_ds.evaluation.evaluate import Predictions
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings

CONTEXT = "ab cd ef gh ij kl mn op"
ASKED = [Example(f"id{i}", "?", CONTEXT, ("ab",), None, "a") for i in (0, 1)]
NAMES = ("own_begin", "own_end", "context_begin", "context_end")
LOGITS = ("start_logits", "end_logits")
logit = st.sampled_from([-math.inf, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0])  # few values: many ties


@st.composite
def decodings(draw):
    """Settings, and windows of two examples: bounds, characters of the context tokens, logits."""
    # also more than a window has tokens
    sizes = SpanSettings(draw(st.integers(1, 10)), draw(st.integers(1, 4)), draw(st.booleans()))
    windows = []
    for example in (0, 1):
        character = 0  # tokens of later windows start after those that earlier ones own
        for _ in range(draw(st.integers(0 if example else 1, 3))):
            question, context = draw(st.integers(0, 3)), draw(st.integers(1, 5))
            part = st.tuples(*[st.integers(question, question + context)] * 2).map(sorted)
            drawn = draw(st.just((question, question + context)) | part)
            bounds = dict(zip(NAMES, (*drawn, question, question + context), strict=True))
            start = [character + i for i in range(context)]
            ends = itertools.accumulate((s + 1 + draw(st.integers(0, 2)) for s in start), max)
            places = {"offset_start": start, "offset_end": list(ends)}
            total = question + context + 1
            logits = {name: draw(st.lists(logit, min_size=total, max_size=total)) for name in LOGITS}
            windows.append({"example": example, **bounds, **places, **logits})
            character += context
    return sizes, windows


def candidates_by_loops(window, sizes):
    """(score, start, end) of one window, best first."""

    def best(logits, begin, end):
        return sorted(range(begin, end), key=lambda t: (-logits[t], t))[: sizes.n_best]

    starts = best(window["start_logits"], window["own_begin"], window["own_end"])
    ends = best(window["end_logits"], window["context_begin"], window["context_end"])
    pairs = [(start, end) for start in starts for end in ends if start <= end < start + sizes.max_answer_tokens]
    candidates = [(window["start_logits"][start] + window["end_logits"][end], start, end) for start, end in pairs]
    candidates = [candidate for candidate in candidates if candidate[0] > -math.inf]
    return sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))[: sizes.n_best]


def allowed(window, sizes):
    """The same window, -inf where no span begins or ends: at spaces and, with whole words, but at a word's first token,
    which then has the highest start logit of the word, or its last one, likewise."""
    first = window["context_begin"]
    tokens = list(zip(window["offset_start"], window["offset_end"], strict=True))
    blank = [not CONTEXT[start:end].strip() for start, end in tokens]
    cuts = [[f"{CONTEXT} "[place - 1 : place + 1].isalpha() for place in places] for places in tokens]
    changed = {name: list(window[name]) for name in LOGITS}
    for token in range(len(tokens)):
        word = [first + token]
        if sizes.whole_words:
            word += itertools.takewhile(lambda t: cuts[t - first][0], range(first + token + 1, first + len(tokens)))
        changed["start_logits"][first + token] = max(window["start_logits"][t] for t in word)
        word = [first + token]
        if sizes.whole_words:
            word += itertools.takewhile(lambda t: cuts[t - first][1], range(first + token - 1, first - 1, -1))
        changed["end_logits"][first + token] = max(window["end_logits"][t] for t in word)
    for token in range(len(tokens)):
        for side, logits in enumerate(changed.values()):
            if blank[token] or (sizes.whole_words and cuts[token][side]):
                logits[first + token] = -math.inf
    return window | changed


def answers_by_loops(windows, sizes, example):
    spans, windows = [], [allowed(window, sizes) for window in windows if window["example"] == example]
    for window in windows:
        for score, start, end in candidates_by_loops(window, sizes):
            begin = window["offset_start"][start - window["context_begin"]]
            stop = window["offset_end"][end - window["context_begin"]]
            spans.append((score, begin, stop))
    spans = sorted(spans, key=lambda c: (-c[0], c[1], c[2]))
    spans = [span for i, span in enumerate(spans) if span[1:] not in {other[1:] for other in spans[:i]}][: sizes.n_best]
    total = sum(
        math.exp(window["start_logits"][start] + window["end_logits"][end])
        for window in windows
        for start in range(window["own_begin"], window["own_end"])
        for end in range(start, min(start + sizes.max_answer_tokens, window["context_end"]))
    )
    return [(CONTEXT[b:e].strip(), score, math.exp(score) / total) for score, b, e in spans]


def logits_of(windows, fill=9.0):
    """Padded [B, T]; the filling would win if it were read."""
    longest = max(len(window["start_logits"]) for window in windows)
    return tuple(
        torch.tensor([window[name] + [fill] * (longest - len(window[name])) for window in windows]) for name in LOGITS
    )


def columns_of(windows):
    columns = {name: [window[name] for window in windows] for name in (*NAMES, "example", "offset_start", "offset_end")}
    columns["null_position"] = np.array([window.get("null_position", 0) for window in windows])
    return {name: pa.array(values) if "offset" in name else np.array(values) for name, values in columns.items()}


@settings(deadline=None, phases=(Phase.explicit, Phase.generate))  # making a failing case smaller takes minutes
@given(decoding=decodings(), batch=st.integers(1, 4), seed=st.integers(0, 99))
def test_decoder_equals_the_loops_in_any_order_of_windows(decoding, batch, seed):
    sizes, windows = decoding
    shuffled = random.Random(seed).sample(windows, len(windows))
    decoder, best = SpanDecoder(ASKED, sizes), SpanDecoder(ASKED, sizes, best_only=True)
    for i in range(0, len(shuffled), batch):
        some = shuffled[i : i + batch]
        decoder.add(columns_of(some), *logits_of(some))
        best.add(columns_of(some), *logits_of(some))
    n_best = decoder.n_best(sizes.n_best)
    assert best.n_best(1) == {id_: answers[:1] for id_, answers in n_best.items()}
    seen = sorted({window["example"] for window in windows})
    assert list(n_best) == [f"id{i}" for i in seen]
    for i, answers in zip(seen, n_best.values(), strict=True):
        expected = answers_by_loops(windows, sizes, i)
        assert [(a.text, a.score) for a in answers] == [(text, score) for text, score, _ in expected]
        assert [a.probability for a in answers] == pytest.approx([p for _, _, p in expected])
        assert all(CONTEXT[a.start : a.end] == a.text for a in answers)


def window(**changes):
    """One window over all of "ab cd ef": a question token, three context tokens, a separator."""
    bounds = {"example": 0, "context_begin": 1, "context_end": 4, "own_begin": 1, "own_end": 4}
    places = {"offset_start": [0, 2, 5], "offset_end": [2, 5, 8]}  # the space before a word belongs to its token
    logits = {"start_logits": [50.0, 0.0, 2.0, 0.0, 50.0], "end_logits": [50.0, 0.0, 0.0, 1.0, 50.0]}
    return bounds | places | logits | changes


def decode(*windows, sizes=SpanSettings(), asked=ASKED, dtype=torch.float32, **options):  # noqa: B008 (is frozen)
    decoder = SpanDecoder(asked, sizes, **options)
    for each in windows:
        decoder.add(columns_of([each]), *(logits.to(dtype) for logits in logits_of([each])))
    return decoder


def best_texts(decoder) -> dict[str, str]:
    return Predictions(decoder.n_best(1), {}).texts


def best_probabilities(decoder) -> dict[str, float]:
    return Predictions(decoder.n_best(1), {}).confidences


def test_a_token_of_spaces_is_not_an_answer_and_neither_begins_nor_ends_one():
    context = "ab \u3000cd\U0001f600 ef"
    asked = [replace(ASKED[0], context=context)]
    tokens = {"offset_start": [0, 2, 3, 4, 6, 7], "offset_end": [2, 3, 4, 6, 7, 10]}
    logits = {name: [9.0, 0.0, 9.0, 9.0, 1.0, 2.0, 0.0, 9.0] for name in LOGITS}
    window_of_spaces = window(context_end=7, own_end=7, **tokens, **logits)
    for n_best in (20, 1):
        answers = decode(window_of_spaces, sizes=SpanSettings(n_best, 2), asked=asked).n_best(n_best)["id0"]
        texts = [answer.text for answer in answers]
        assert texts == ["\U0001f600", "cd\U0001f600", "cd", "\U0001f600 ef", "ab", "ef"][:n_best]
    only_spaces = window(context_begin=1, context_end=3, own_end=3, offset_start=[2, 3], offset_end=[3, 4])
    nothing = decode(only_spaces, asked=asked)
    assert (best_texts(nothing), best_probabilities(nothing)) == ({"id0": ""}, {"id0": 0.0})


def test_half_precision_logits_are_added_in_float32():
    # 256 + 1 is 256 in bfloat16: the sums would tie and the earlier "ab" would win
    logits = {"start_logits": [0.0, 256.0, 256.0, 0.0, 0.0], "end_logits": [0.0, 0.0, 1.0, 0.0, 0.0]}
    best = decode(window(**logits), sizes=SpanSettings(20, 1), dtype=torch.bfloat16).n_best(20)["id0"][0]
    assert (best.text, best.score) == ("cd", 257.0)


def test_tokens_of_one_character_give_an_answer_once():
    decoder = decode(window(offset_start=[0, 0, 5], offset_end=[5, 5, 8]))  # as the bytes of a character
    answers = [(answer.text, answer.score) for answer in decoder.n_best(20)["id0"]]
    assert answers == [("ab cd ef", 3.0), ("ab cd", 2.0), ("ef", 1.0)]
    assert [answer.text for answer in decoder.n_best(2)["id0"]] == ["ab cd ef", "ab cd"]  # repeats take no place


def test_logits_that_are_not_finite():
    unknown = {"start_logits": [0.0, -math.nan, 2.0, 1.0, 0.0], "end_logits": [0.0, math.nan, math.nan, 2.0, 0.0]}
    answers = decode(window(**unknown)).n_best(20)["id0"]
    assert [answer.text for answer in answers] == ["cd ef", "ef"]  # NaN is not an answer
    assert best_texts(decode(window(**unknown), sizes=SpanSettings(1))) == {"id0": "cd ef"}  # nor does it displace one
    sure = {"start_logits": [0.0, math.inf, 2.0, 1.0, 0.0], "end_logits": [0.0, math.inf, 0.0, 2.0, 0.0]}
    best, *others = decode(window(**sure)).n_best(20)["id0"]
    assert (best.text, best.probability) == ("ab", 1)  # it begins and ends where both are infinite
    assert [answer.probability for answer in others] == [0] * 5
