"""Turns start and end logits into answer texts: n-best span decoding over the windows of a context.

The rule is that of Google's BERT for SQuAD: every window pairs its `n_best` best starts with its `n_best` best ends,
keeps the pairs with start <= end < start + max_answer_tokens, and scores them by start logit + end logit; the pairs of
all windows of an example compete. A start counts only in the window that owns its token (the maximum-context rule,
columns own_begin and own_end), so no pair of tokens competes twice. A span's probability is its share of the sum of
exp(score) over all allowed spans of its example, in all windows and whatever `n_best`. No span begins or ends at a
token that holds only white space, such as a byte-level tokenizer's second space in a row: an answer is never blank.

A model that was trained with unanswerable questions points at the null position where a window has no answer: at [CLS],
which XLNet has at its end, or at a decoder's first token, which is the question's if the tokenizer begins with no
special token. A window's null score is the sum of both logits there; that of a question is the lowest of its windows
(BERT for SQuAD v2.0). Its probability counts beside those of the spans.

Shapes: B windows of at most T tokens, W in all; K = `n_best` candidates each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from swep_ds.data.example import Example

LOW = 0xFFFFFFFF  # the low 32 bits
NEVER = np.float32(-np.inf)
MAX_FLOAT32 = float(np.finfo(np.float32).max)
LOWEST = -4 * MAX_FLOAT32  # below any span's score
OFFSETS = ("offset_start", "offset_end")  # columns: each context token's characters
BLANK = np.array([chr(point).isspace() for point in range(0x3001)] + [False])  # by code point; there are none above


@dataclass(frozen=True)
class SpanSettings:
    n_best: int = 20  # starts, ends and answers per window, and answers per question
    max_answer_tokens: int = 30


class Candidates(NamedTuple):
    """The C best spans, by window, best first; ties go to the earlier start, then the earlier end."""

    window: np.ndarray  # [C] int64
    score: np.ndarray  # [C] float32, start logit + end logit
    start: np.ndarray  # [C] int64, position in input_ids
    end: np.ndarray  # [C] int64, inclusive


@dataclass(frozen=True, slots=True)
class Answer:
    """Characters [start, end) of the context, which read `text`."""

    text: str
    start: int
    end: int
    score: float  # start logit + end logit
    probability: float  # among all spans of this question


class Null(NamedTuple):
    """The answer that the context holds none."""

    score: float
    probability: float
    odds: float  # its score less that of the best answer: the higher, the likelier that there is none

    @property
    def text(self) -> str:
        return ""


def with_null(answers: Sequence, null: Null | None, threshold: float | None) -> list:
    """Adds the null answer to the others, best first. If its odds are above the threshold, it comes first and declines
    the question; else its score places it, but never first. Without a null answer or a threshold nothing changes."""
    if null is None or threshold is None:
        return [*answers]
    better = 0 if null.odds > threshold else max(1, sum(answer.score >= null.score for answer in answers))
    return [*answers[:better], null, *answers[better:]]


def window_candidates(
    start_logits_BT: Tensor,
    end_logits_BT: Tensor,
    own_begin_B: np.ndarray,
    own_end_B: np.ndarray,
    context_begin_B: np.ndarray,
    context_end_B: np.ndarray,
    settings: SpanSettings,
    *,
    best_only: bool = False,
) -> Candidates:
    """At most K spans per window by the module's rule; with `best_only` all spans with the window's highest score.

    Logits [B, T] of any float dtype, on any device, are scored in float32 on the host. The integer arrays [B] are
    positions, `end` exclusive.
    """
    score_2BT = torch.cat((start_logits_BT, end_logits_BT)).cpu().float().numpy()
    begin_2B = np.concatenate((own_begin_B, context_begin_B)).astype(np.int32)
    end_2B = np.concatenate((own_end_B, context_end_B)).astype(np.int32)
    position_T = np.arange(score_2BT.shape[1], dtype=np.int32)
    inside_2BT = (position_T >= begin_2B[:, None]) & (position_T < end_2B[:, None])
    score_2BT = np.where(inside_2BT & ~np.isnan(score_2BT), score_2BT, NEVER)
    count, width = len(start_logits_BT), score_2BT.shape[1]
    best = min(settings.n_best, width)
    if best == width:  # all starts and ends: of each start, only the ends within reach are looked at
        reach = min(settings.max_answer_tokens, width)
        start_BN, start_score_BN = np.broadcast_to(np.arange(width), (count, width)), score_2BT[:count]
        beyond = np.full((count, reach - 1), NEVER)
        end_score_BT = np.concatenate((score_2BT[count:], beyond), axis=1)
        end_score_BNM = np.lib.stride_tricks.sliding_window_view(end_score_BT, reach, axis=1)
        end_BNM = start_BN[:, :, None] + np.arange(reach)
    else:
        position_2BN = np.sort(_top(score_2BT, best))  # from left to right: equal pairs are then in the order of ties
        best_2BN = np.take_along_axis(score_2BT, position_2BN, axis=1)
        start_BN, start_score_BN = position_2BN[:count], best_2BN[:count]
        end_score_BNM = np.broadcast_to(best_2BN[count:, None], (count, best, best))
        end_BNM = np.broadcast_to(position_2BN[count:, None], (count, best, best))

    with np.errstate(over="ignore", invalid="ignore"):  # infinite logits
        score_BNM = start_score_BN[:, :, None] + end_score_BNM
    length_BNM = end_BNM - start_BN[:, :, None]  # less one; as unsigned, a negative length is very long
    allowed_BNM = (length_BNM.view(np.uint64) < settings.max_answer_tokens) & (score_BNM > -np.inf)  # also no NaN
    score_BP = np.where(allowed_BNM, score_BNM, NEVER).reshape(count, -1)  # P = N * M pairs
    if best_only:
        unbeaten_BP = (score_BP == score_BP.max(axis=1, keepdims=True)) & (score_BP > -np.inf)
        window, pair = np.divmod(np.flatnonzero(unbeaten_BP), score_BP.shape[1])
    else:
        pair_BK = _top(score_BP, min(settings.n_best, score_BP.shape[1]))
        window, k = np.nonzero(np.take_along_axis(score_BP, pair_BK, axis=1) > -np.inf)
        pair = pair_BK[window, k]
    start, end = np.divmod(pair, end_BNM.shape[2])
    return Candidates(window, score_BP[window, pair], start_BN[window, start], end_BNM[window, start, end])


def log_normaliser(
    start_logits_BT: Tensor,
    end_logits_BT: Tensor,
    own_begin_B: np.ndarray,
    own_end_B: np.ndarray,
    context_begin_B: np.ndarray,
    context_end_B: np.ndarray,
    settings: SpanSettings,
) -> np.ndarray:
    """log of the sum of exp(start logit + end logit) over the allowed spans of each window: [B] float64.

    -inf for a window without an allowed span. Arguments are those of `window_candidates`.
    """
    position_T = np.arange(start_logits_BT.shape[1])

    def weights(logits_BT: Tensor, begin_B: np.ndarray, end_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """exp(logit - the window's highest), 0 outside; and the highest."""
        score_BT = logits_BT.cpu().double().numpy().clip(-MAX_FLOAT32, MAX_FLOAT32)  # inf - inf would be NaN
        inside_BT = (position_T >= begin_B[:, None]) & (position_T < end_B[:, None]) & ~np.isnan(score_BT)
        score_BT = np.where(inside_BT & (score_BT > -MAX_FLOAT32), score_BT, -np.inf)
        highest_B = np.maximum(score_BT.max(axis=1), -MAX_FLOAT32)
        return np.exp(score_BT - highest_B[:, None]), highest_B

    start_BT, start_B = weights(start_logits_BT, own_begin_B, own_end_B)
    end_BT, end_B = weights(end_logits_BT, context_begin_B, context_end_B)
    width = min(settings.max_answer_tokens, len(position_T))
    ahead_BT = np.pad(end_BT, ((0, 0), (0, width - 1)))
    reach_BT = sum(ahead_BT[:, k : k + len(position_T)] for k in range(width))  # ends that each start may have
    with np.errstate(divide="ignore"):
        return np.log((start_BT * reach_BT).sum(axis=1)) + start_B + end_B


def _blank_tokens(context: str, starts_T: np.ndarray, ends_T: np.ndarray) -> list[int]:
    """Those of T >= 1 tokens whose characters [start, end) are only white space, or none."""
    begin = int(starts_T.min())
    points = np.frombuffer(context[begin : int(starts_T.max()) + 1].encode("utf-32-le"), np.uint32)
    first_T = points[np.minimum(starts_T - begin, len(points) - 1)]
    # most tokenizers give a token no white space, so that its first character decides; a loop would take four times as
    # long
    perhaps_T = BLANK[np.minimum(first_T, len(BLANK) - 1)] | (starts_T == ends_T)
    return [t for t in np.flatnonzero(perhaps_T).tolist() if not context[starts_T[t] : ends_T[t]].strip()]


def _top(score: np.ndarray, count: int) -> np.ndarray:
    """Columns of the `count` largest float32 values of every row, best first; ties go to the first columns.

    Each value becomes a distinct integer with the same order, so that one partition resolves ties as well.
    """
    bits = (score + np.float32(0)).view(np.int32)  # -0.0 + 0 is 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
    width = score.shape[1]
    key = (ordered.astype(np.int64) << 32) | np.arange(width - 1, -1, -1)
    key.partition(width - count, axis=1)
    best = key[:, width - count :]
    best.sort(axis=1)
    return width - 1 - (best[:, ::-1] & LOW)


class SpanDecoder:
    """Collects the windows of `examples`, batch by batch and in any order, and answers the examples seen so far.

    Ties go to the answer that starts, then ends, earlier in the context. An example whose best starts and best ends
    form no allowed pair in any window gets none.

    Args:
        best_only: keeps only the best candidates, which is faster: `n_best` has one answer.
        null: the model may decline a question: probabilities count the null answer, and `nulls` gives its own.
    """

    def __init__(
        self, examples: Sequence[Example], settings: SpanSettings, *, best_only: bool = False, null: bool = False
    ):
        self.examples, self.settings, self.best_only, self.null = examples, settings, best_only, null
        self._log_sums: dict[int, float] = {}  # log of the sum of exp(score) over an example's spans so far
        self._null_scores: dict[int, float] = {}  # the lowest of an example's windows seen so far
        # per batch: its candidates' example, score, first and end character
        self._parts = [(np.empty(0, np.int64), np.empty(0, np.float32), *np.empty((2, 0), np.int32))]

    def add(
        self, columns: Mapping[str, np.ndarray | pa.ListArray], start_logits_BT: Tensor, end_logits_BT: Tensor
    ) -> None:
        """Adds B windows, each of them once: their evaluation columns (`read_columns`) and logits [B, T].

        The logits may have any float dtype, be on any device, and be padded on the right to any T.
        """
        bounds = [columns[name] for name in ("own_begin", "own_end", "context_begin", "context_end")]
        logits = torch.stack((start_logits_BT, end_logits_BT)).cpu()
        self._exclude_blanks(columns, logits)
        window, score, *spans = window_candidates(*logits, *bounds, self.settings, best_only=self.best_only)
        characters = []
        for name, position in zip(OFFSETS, spans, strict=True):
            # token t of window b is flat[first[b] + t]
            first = columns[name].offsets.to_numpy()[:-1] - columns["context_begin"]
            flat = columns[name].values.to_numpy()
            characters.append(flat[first[window] + position])
        log_sums = log_normaliser(*logits, *bounds, self.settings).tolist()
        for row, log_sum in zip(columns["example"].tolist(), log_sums, strict=True):
            self._log_sums[row] = float(np.logaddexp(self._log_sums.get(row, -np.inf), log_sum))
        if self.null:
            position_B = torch.tensor(columns["null_position"].tolist())
            null_2B = logits[:, torch.arange(len(position_B)), position_B].double()
            null_2B = null_2B.nan_to_num(nan=-MAX_FLOAT32).clamp(-MAX_FLOAT32, MAX_FLOAT32)
            for row, null in zip(columns["example"].tolist(), null_2B.sum(0).tolist(), strict=True):
                self._null_scores[row] = min(self._null_scores.get(row, null), null)
        self._parts.append((columns["example"][window], score, *characters))

    def _exclude_blanks(self, columns: Mapping[str, np.ndarray | pa.ListArray], logits_2BT: Tensor) -> None:
        """Sets the logits of tokens that hold only white space, or nothing, to -inf."""
        bounds = [(columns[name].offsets.to_numpy(), columns[name].values.to_numpy()) for name in OFFSETS]
        for window, row in enumerate(columns["example"].tolist()):
            starts, ends = (flat[places[window] : places[window + 1]] for places, flat in bounds)
            for token in _blank_tokens(self.examples[row].context, starts, ends):
                logits_2BT[:, window, columns["context_begin"][window] + token] = -torch.inf

    def nulls(self) -> dict[str, Null]:
        """The null answer by example id."""
        best = np.full(len(self.examples), LOWEST)
        for example, score, *_ in self._parts:
            np.maximum.at(best, example, score)
        return {
            self.examples[row].id: Null(
                null, min(1.0, float(np.exp(null - self._log_sum(row)))), odds=null - float(best[row])
            )
            for row, null in sorted(self._null_scores.items())
        }

    def _log_sum(self, row: int) -> float:
        """log of the sum of exp(score) over an example's spans and, if it counts, the null answer."""
        spans = self._log_sums[row]
        return float(np.logaddexp(spans, self._null_scores[row])) if self.null else spans

    def _probabilities(self, example: np.ndarray, score: np.ndarray) -> np.ndarray:
        """The probabilities [C], float64, of candidates with these scores [C] of these examples [C]."""
        log_sum = np.array([self._log_sum(row) for row in example.tolist()])
        finite = score.astype(np.float64).clip(-2 * MAX_FLOAT32, 2 * MAX_FLOAT32)  # two infinite logits add up to inf
        return np.exp(np.minimum(0.0, finite - log_sum))

    def n_best(self, count: int | None = None) -> dict[str, list[Answer]]:
        """At most `count` answers by example id, best first; a single one if the decoder is `best_only`.

        Args:
            count: None = `settings.n_best`.
        """
        count = 1 if self.best_only else count or self.settings.n_best
        answers: dict[str, list[Answer]] = {self.examples[row].id: [] for row in sorted(self._log_sums)}
        example, score, begin, end = self._distinct()
        _, first, group = np.unique(example, return_index=True, return_inverse=True)
        kept = np.arange(len(group)) - first[group] < count
        probability = self._probabilities(example, score)
        for i in np.flatnonzero(kept).tolist():
            source = self.examples[int(example[i])]
            start = int(begin[i])
            text = source.context[start : int(end[i])]
            start += len(text) - len(text.lstrip())
            text = text.strip()
            answers[source.id].append(Answer(text, start, start + len(text), float(score[i]), float(probability[i])))
        return answers

    def _distinct(self) -> list[np.ndarray]:
        """The candidates' example, score, first and end character, by example, best first.

        Without candidates that repeat the characters of a better one: a byte-level tokenizer makes several tokens of
        one character, and all have its place.
        """
        columns = [np.concatenate(parts) for parts in zip(*self._parts, strict=True)]
        example, score, begin, end = columns
        order = np.lexsort((end, begin, -score, example))
        columns = example, _, begin, end = [column[order] for column in columns]
        order = np.lexsort((end, begin, example))  # stable: the best of equal ones comes first
        places = np.stack((example, begin, end))[:, order]
        repeats = (places[:, 1:] == places[:, :-1]).all(axis=0)
        return [np.delete(column, order[1:][repeats]) for column in columns]
