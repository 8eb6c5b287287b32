"""Turns start and end logits, or generated token ids, into answer texts, over the windows of a context.

The rule is that of Google's BERT for SQuAD: every window pairs its `n_best` best starts with its `n_best` best ends,
keeps the pairs with start <= end < start + max_answer_tokens, and scores them by start logit + end logit; the pairs of
all windows of an example compete. A start counts only in the window that owns its token (the maximum-context rule), so
no pair of tokens competes twice. A span's probability is its share of the sum of exp(score) over all allowed spans of
its example, whatever `n_best`. No span begins or ends at a token of white space: an answer is never blank. With
`whole_words` a word starts with the highest start logit of its tokens, and ends with their highest end logit.

A model that was trained with unanswerable questions points at the null position where a window has no answer: at [CLS],
which XLNet has at its end, or at a decoder's first token, which is the question's if the tokenizer begins with no
special token. A window's null score is the sum of both logits there; that of a question is the lowest of its windows
(BERT for SQuAD v2.0). Its probability counts together with those of the spans.

Shapes: B windows of at most T tokens; their N best starts with M ends within reach, P = N * M pairs; K = `n_best`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from swep_ds.data.batches import IGNORED
from swep_ds.data.example import Example
from swep_ds.data.windows import decoded
from swep_ds.evaluation.bounds import best_of_words, bounds

Columns = Mapping[str, np.ndarray | pa.ListArray]  # the windows' columns by name; lists stay in Arrow

NEVER = np.float32(-np.inf)
LIMIT = 1e30  # in place of infinity: two of them add up to a float32
LOWEST = -1e30  # in place of a log probability that is not a finite number: its answer never wins
MIN_PROBABILITY = 1e-30  # that of all answers but the empty one may round to 0


@dataclass(frozen=True)
class SpanSettings:
    n_best: int = 20  # starts, ends and answers per window
    max_answer_tokens: int = 30
    whole_words: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A span, characters [start, end) of the context; or, without a place, a generated text or the null answer ""."""

    text: str
    start: int | None
    end: int | None
    score: float  # start logit + end logit; of a generated answer the log probability
    probability: float  # among all spans of this question; of a generated answer the whole sequence's, given its window
    # only of the null answer: its score less that of the best one: the higher, the likelier that the context holds none
    odds: float | None = None
    confidence: float | None = None  # only in the first answer of a `QuestionAnswerer`, which says what it is
    name: str | None = None  # only of answers from many texts: that of the text, of which start and end are characters
    page: int | None = None  # if the document has pages, counted from 1
    heading: str | None = None  # the last one before the answer


def with_null(answers: Sequence[Answer], null: Answer | None, threshold: float | None) -> list[Answer]:
    """Adds the null answer, if there is one and a threshold, to the others, best first. With odds above the threshold
    it comes first and declines the question; else its score places it, but never first."""
    if null is None or threshold is None:
        return [*answers]
    better = 0
    if null.odds <= threshold:
        better = max(1, sum(answer.score >= null.score for answer in answers))
    return [*answers[:better], null, *answers[better:]]


def with_confidence(
    answers: Sequence[Answer], null: Answer, confidence: float, least: float, count: int
) -> list[Answer]:
    """The first `count` answers, of which the first has this confidence. Where it is below `least`, the null answer
    comes first and declines the question."""
    if confidence < least and answers[0].text:
        answers = [null, *(answer for answer in answers if answer.text)]
    return [replace(answers[0], confidence=confidence), *answers[1:count]]


def window_candidates(
    start_score_BT: np.ndarray, end_score_BT: np.ndarray, settings: SpanSettings, *, best_only: bool
) -> tuple[np.ndarray, ...]:
    """The C best spans by the module's rule, at most K per window, or one if `best_only`: their windows, scores, and
    first and last positions, each [C]; ties go to the earlier start, then end.

    Logits are float32, and -inf where no span may start or end.
    """
    count, width = start_score_BT.shape
    reach = min(settings.max_answer_tokens, width)
    best = min(settings.n_best, width)
    start_BN = np.sort(_top(start_score_BT, best))  # from left to right: equal pairs are then in the order of ties
    end_BN = _top(end_score_BT, best)
    best_ends_BT = np.full_like(end_score_BT, NEVER)
    np.put_along_axis(best_ends_BT, end_BN, np.take_along_axis(end_score_BT, end_BN, axis=1), axis=1)
    padded = np.pad(best_ends_BT, ((0, 0), (0, reach - 1)), constant_values=NEVER)
    within_reach_BTM = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=1)
    end_score_BNM = within_reach_BTM[np.arange(count)[:, None], start_BN]
    score_BP = np.take_along_axis(start_score_BT, start_BN, axis=1)[:, :, None] + end_score_BNM
    score_BP = score_BP.reshape(count, -1)
    if best_only:
        pair_BK = score_BP.argmax(axis=1, keepdims=True)  # the first of equals
    else:
        pair_BK = _top(score_BP, min(settings.n_best, score_BP.shape[1]))
    window, k = np.nonzero(np.take_along_axis(score_BP, pair_BK, axis=1) > NEVER)
    pair = pair_BK[window, k]
    number, length = np.divmod(pair, reach)
    start = start_BN[window, number]
    return window, score_BP[window, pair], start, start + length


def log_normaliser(start_score_BT: np.ndarray, end_score_BT: np.ndarray, max_answer_tokens: int) -> np.ndarray:
    """log of the sum of exp(start logit + end logit) over the allowed spans of each window: [B] float64, -inf without
    any. Logits are as in `window_candidates`."""
    start_BT, highest_start_B = _weights(start_score_BT)
    end_BT, highest_end_B = _weights(end_score_BT)
    positions = start_BT.shape[1]
    reach = min(max_answer_tokens, positions)
    ahead_BT = np.pad(end_BT, ((0, 0), (0, reach - 1)))
    ends_BT = sum(ahead_BT[:, k : k + positions] for k in range(reach))  # those that each start may have
    with np.errstate(divide="ignore"):
        return np.log((start_BT * ends_BT).sum(axis=1)) + highest_start_B + highest_end_B


def _weights(logits_BT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(logit - the window's highest) [B, T], and the highest [B]."""
    score_BT = logits_BT.astype(np.float64)
    highest_B = np.maximum(score_BT.max(axis=1), -LIMIT)  # inf - inf would be NaN
    return np.exp(score_BT - highest_B[:, None]), highest_B


def _top(score: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` largest float32 values of every row, best first; ties go to the first columns."""
    # each value becomes a distinct integer with the same order, so that one partition resolves ties as well
    bits = (score + np.float32(0)).view(np.int32)  # -0.0 + 0 is 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
    width = score.shape[1]
    key = (ordered.astype(np.int64) << 32) | np.arange(width - 1, -1, -1)
    key.partition(width - count, axis=1)
    best = key[:, width - count :]
    best.sort(axis=1)
    return width - 1 - (best[:, ::-1] & 0xFFFFFFFF)


class SpanDecoder:
    """Collects the windows of `examples`, batch by batch and in any order, and answers the examples seen so far.

    With `best_only` it keeps one candidate of a window, which is faster, for `n_best(1)`. With `null` the model may
    decline a question: probabilities count the null answer, and `nulls` gives it.
    """

    def __init__(
        self, examples: Sequence[Example], settings: SpanSettings, *, best_only: bool = False, null: bool = False
    ):
        self.examples = examples
        self.settings = settings
        self.best_only = best_only
        self.null = null
        self.log_sums: dict[int, float] = {}  # by example: log of the sum of exp(score) over its spans so far
        self._null_scores: dict[int, float] = {}  # the lowest of an example's windows so far
        empty = {"example": np.int64, "score": np.float32, "begin": np.int32, "end": np.int32}
        self._parts = [pd.DataFrame({name: np.empty(0, dtype) for name, dtype in empty.items()})]

    def add(self, columns: Columns, start_logits_BT: Tensor, end_logits_BT: Tensor) -> None:
        """Adds B windows, each of them once: their evaluation columns (`Windows.columns`) and logits [B, T], of any
        float dtype, on any device, padded on the right to any T."""
        rows = columns["example"].tolist()
        logits_2BT = torch.stack((start_logits_BT, end_logits_BT)).cpu().float()
        logits_2BT = logits_2BT.nan_to_num(nan=-math.inf, posinf=LIMIT, neginf=-math.inf)
        if self.null:
            null_2B = logits_2BT[:, torch.arange(len(rows)), torch.tensor(columns["null_position"].tolist())]
            null_2B = null_2B.double().clamp(min=-LIMIT)
            for row, null in zip(rows, null_2B.sum(0).tolist(), strict=True):
                self._null_scores[row] = min(self._null_scores.get(row, null), null)
        score_2BT = self._allowed(columns, logits_2BT.numpy())
        log_sum_B = log_normaliser(*score_2BT, self.settings.max_answer_tokens)
        for row, log_sum in zip(rows, log_sum_B.tolist(), strict=True):
            self.log_sums[row] = float(np.logaddexp(self.log_sums.get(row, -np.inf), log_sum))
        window, score, start, end = window_candidates(*score_2BT, self.settings, best_only=self.best_only)
        spans = {"example": columns["example"][window], "score": score}
        spans["begin"] = _characters(columns, "offset_start", window, start)
        spans["end"] = _characters(columns, "offset_end", window, end)
        self._parts.append(pd.DataFrame(spans))

    def _allowed(self, columns: Columns, logits_2BT: np.ndarray) -> np.ndarray:
        """The logits, which it may change, where the spans of the windows may start and end, else -inf: [2, B, T]."""
        position_T = np.arange(logits_2BT.shape[-1])
        starts_BT = (position_T >= columns["own_begin"][:, None]) & (position_T < columns["own_end"][:, None])
        ends_BT = (position_T >= columns["context_begin"][:, None]) & (position_T < columns["context_end"][:, None])
        allowed_2BT = np.stack((starts_BT, ends_BT))
        tokens = zip(columns["context_begin"], columns["offset_start"], columns["offset_end"], strict=True)
        for window, (begin, starts, ends) in enumerate(tokens):
            visible_before, whole = bounds(self.examples[columns["example"][window]].context)
            start_T, end_T = starts.values.to_numpy(), ends.values.to_numpy()
            here = np.s_[:, window, begin : begin + len(start_T)]
            allowed_2BT[here] &= visible_before[end_T] > visible_before[start_T]
            if self.settings.whole_words:
                start_score_T, end_score_T = logits_2BT[here]
                start_score_T[:] = best_of_words(start_score_T, whole[start_T])
                end_score_T[::-1] = best_of_words(end_score_T[::-1], whole[end_T][::-1])
        return np.where(allowed_2BT, logits_2BT, NEVER)

    def nulls(self) -> dict[str, Answer]:
        """The null answer by example id; none unless they count."""
        best = pd.concat(self._parts).groupby("example")["score"].max().to_dict()
        nulls = {}
        for row, score in sorted(self._null_scores.items()):
            probability = min(1.0, float(np.exp(score - self._log_sum(row))))
            odds = score - best.get(row, -4 * LIMIT)
            nulls[self.examples[row].id] = Answer("", None, None, score, probability, odds)
        return nulls

    def _log_sum(self, row: int) -> float:
        """log of the sum of exp(score) over an example's spans and, if it counts, the null answer."""
        if self.null:
            return float(np.logaddexp(self.log_sums[row], self._null_scores[row]))
        return self.log_sums[row]

    def n_best(self, count: int) -> dict[str, list[Answer]]:
        """At most `count` answers by example id, best first."""
        answers: dict[str, list[Answer]] = {self.examples[row].id: [] for row in sorted(self.log_sums)}
        spans = pd.concat(self._parts)
        spans = spans.sort_values(["example", "score", "begin", "end"], ascending=[True, False, True, True])
        # a byte-level tokenizer makes several tokens of one character, and all have its place
        spans = spans.drop_duplicates(["example", "begin", "end"])
        spans = spans[spans.groupby("example").cumcount() < count]
        log_sum = np.array([self._log_sum(row) for row in spans["example"]])
        spans["probability"] = np.exp(np.minimum(0.0, spans["score"].to_numpy(np.float64) - log_sum))
        for row, score, begin, end, probability in spans.itertuples(index=False):
            source = self.examples[row]
            text = source.context[begin:end]
            start = begin + len(text) - len(text.lstrip())
            text = text.strip()
            answers[source.id].append(Answer(text, start, start + len(text), score, probability))
        return answers


def _characters(columns: Columns, name: str, window: np.ndarray, position: np.ndarray) -> np.ndarray:
    """The offsets in the column `name` of the tokens at `position` [C] of `window` [C]."""
    first = columns[name].offsets.to_numpy()[:-1] - columns["context_begin"]  # token t of window b: flat[first[b] + t]
    flat = columns[name].values.to_numpy()
    return flat[first[window] + position]


class GeneratedAnswers:
    """As `SpanDecoder`, for answers that a model generates. Of the windows' answers the one with the largest mean log
    probability wins; ties go to the alphabet. A blank text wins only where no window wrote another: one part of a
    context may well hold no answer.

    A model that was trained with unanswerable questions gives each window's probability p of the empty answer. The
    lowest p decides, since all windows must find no answer: log p is the null score, log(p / (1 - p)) the null odds.
    """

    def __init__(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast):
        self.examples = examples
        self.tokenizer = tokenizer
        # by example: whether it is blank, negative log probability per token, text, tokens
        self._best: dict[int, tuple[bool, float, str, int]] = {}
        self._null: dict[int, float] = {}  # by example: the lowest log probability of the empty answer
        self.log_sums: dict[int, float] = {}  # by example: the log probability there of all other answers together

    def add(self, columns: Columns, token_ids_NK: Tensor, score_N: Tensor, null_N: Tensor | None = None) -> None:
        """Adds N windows: their evaluation columns (`Windows.columns`), and the output of `GenerativeQA.predict`."""
        rows = [int(row) for row in columns["example"]]
        ids = token_ids_NK.masked_fill(token_ids_NK == IGNORED, self.tokenizer.pad_token_id)
        texts = decoded(self.tokenizer, ids.tolist())
        counts = (token_ids_NK != IGNORED).sum(1).tolist()
        for row, text, score, count in zip(rows, texts, _finite(score_N), counts, strict=True):
            proposal = (not text, -score, text, count)
            self._best[row] = min(self._best.get(row, proposal), proposal)
        if null_N is not None:
            for row, null in zip(rows, _finite(null_N), strict=True):
                self._null[row] = min(self._null.get(row, null), null)
                self.log_sums[row] = math.log(max(-math.expm1(self._null[row]), MIN_PROBABILITY))

    def nulls(self) -> dict[str, Answer]:
        """The empty answer by example id."""
        nulls = {}
        for row, log_p in sorted(self._null.items()):
            nulls[self.examples[row].id] = Answer("", None, None, log_p, math.exp(log_p), log_p - self.log_sums[row])
        return nulls

    def n_best(self, count: int) -> dict[str, list[Answer]]:
        """The best answer by example id, in a list as from `SpanDecoder`, whatever `count`."""
        answers = {}
        for row, (_, loss, text, tokens) in sorted(self._best.items()):
            log_p = -loss * tokens
            answers[self.examples[row].id] = [Answer(text, None, None, log_p, math.exp(log_p))]
        return answers


def _finite(log_probability_N: Tensor) -> list[float]:
    return log_probability_N.double().nan_to_num(nan=LOWEST, neginf=LOWEST).tolist()
