"""From start and end logits to answer texts: n-best span decoding over the windows of a context.

The rule, that of Google's BERT for SQuAD: in every window take the `n_best` best starts and the `n_best` best
ends, keep the pairs with start <= end < start + max_answer_tokens, score = start logit + end logit, and let the
best pairs of all windows of an example compete. A start counts only in the window that owns its token (the
maximum-context rule, columns own_begin and own_end), so no pair of tokens competes twice.

Shapes: B windows of at most T tokens, K = `n_best` candidates each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from swep_ds.data.readers import Example


@dataclass(frozen=True)
class SpanSettings:
    """Starts, ends and answers considered per window, and the longest answer."""

    n_best: int = 20
    max_answer_tokens: int = 30


class Candidates(NamedTuple):
    """The K best spans of B windows, best first; ties: the earlier start, then the earlier end.

    Where a window has fewer than K, the rest has score -inf and no meaning.
    """

    score: Tensor  # [B, K] float32, start logit + end logit
    start: Tensor  # [B, K] int64, position in input_ids
    end: Tensor  # [B, K] int64, inclusive


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to a question: characters [start, end) of the context, which read `text`."""

    text: str
    start: int
    end: int
    score: float  # start logit + end logit
    probability: float  # softmax of the scores over the n best of this question


def window_candidates(
    start_logits_BT: Tensor,
    end_logits_BT: Tensor,
    own_begin_B: Tensor,
    own_end_B: Tensor,
    context_begin_B: Tensor,
    context_end_B: Tensor,
    settings: SpanSettings,
) -> Candidates:
    """The best spans of every window by the module's rule, on the device of the logits.

    Logits of any float type [B, T] are scored in float32; the integer tensors [B] are positions, `end` exclusive.
    """
    best = min(settings.n_best, start_logits_BT.shape[1])
    start_score_BN, start_BN = _best_positions(start_logits_BT, own_begin_B, own_end_B, best)
    end_score_BN, end_BN = _best_positions(end_logits_BT, context_begin_B, context_end_B, best)
    length_BNN = end_BN[:, None, :] - start_BN[:, :, None]  # tokens less one
    allowed_BNN = (length_BNN >= 0) & (length_BNN < settings.max_answer_tokens)
    score_BNN = start_score_BN[:, :, None] + end_score_BN[:, None, :]
    score_BP = score_BNN.masked_fill(~allowed_BNN, -torch.inf).flatten(1)  # P = N * N, by start, then by end
    score_BP = torch.nn.functional.pad(score_BP, (0, max(settings.n_best - best * best, 0)), value=-torch.inf)
    score_BK, pair_BK = _stable_top(score_BP, settings.n_best)
    pair_BK = pair_BK.clamp(max=best * best - 1)  # what pads up to K points anywhere
    return Candidates(score_BK, start_BN.gather(1, pair_BK // best), end_BN.gather(1, pair_BK % best))


def _best_positions(logits_BT: Tensor, begin_B: Tensor, end_B: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Scores and positions, from left to right, of the `count` best positions in [begin, end); -inf outside."""
    position_T = torch.arange(logits_BT.shape[1], device=logits_BT.device)
    inside_BT = (position_T >= begin_B[:, None]) & (position_T < end_B[:, None])
    score_BT = logits_BT.float().masked_fill(~inside_BT, -torch.inf)
    position_BN = _stable_top(score_BT, count)[1].sort(dim=1).values
    return score_BT.gather(1, position_BN), position_BN


def _stable_top(score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Like `torch.topk`, which leaves open which of equal values it returns: here the first ones."""
    values, indices = score.sort(dim=1, descending=True, stable=True)
    return values[:, :count], indices[:, :count]


class SpanDecoder:
    """Collects the windows of `examples` batch by batch, in any order, and answers those it has seen windows of.

    Ties of score go to the answer that starts, then ends, earlier in the context. An example without an answer,
    because its best starts and its best ends form no allowed pair in any window, gets "".
    """

    def __init__(self, examples: Sequence[Example], settings: SpanSettings):
        self.examples, self.settings = examples, settings
        self._seen: set[int] = set()
        self._parts = [np.empty((4, 0))]  # rows: example, score, first and end character of every candidate

    def add(self, columns: Mapping[str, Sequence], start_logits_BT: Tensor, end_logits_BT: Tensor) -> None:
        """Takes in B windows that were not added before.

        `columns` are their evaluation columns (`Features.dataset`); the logits [B, T] may be of any float type, on
        any device, and padded on the right to any T.
        """
        names = ("own_begin", "own_end", "context_begin", "context_end")
        bounds = (torch.as_tensor(columns[name], device=start_logits_BT.device) for name in names)
        candidates = window_candidates(start_logits_BT, end_logits_BT, *bounds, self.settings)
        score_BK, start_BK, end_BK = (part.cpu().numpy() for part in candidates)
        window, k = np.nonzero(score_BK > -np.inf)
        example = np.asarray(columns["example"])

        # characters of token t of window b: flat[first[b] + t]
        first = np.cumsum([0, *map(len, columns["offset_start"][:-1])]) - np.asarray(columns["context_begin"])
        begin = np.concatenate(columns["offset_start"])[first[window] + start_BK[window, k]]
        end = np.concatenate(columns["offset_end"])[first[window] + end_BK[window, k]]
        self._seen.update(example.tolist())
        self._parts.append(np.stack([example[window], score_BK[window, k].astype(np.float64), begin, end]))

    def answers(self) -> dict[str, str]:
        """The best answer's text by example id."""
        return {id_: best[0].text if best else "" for id_, best in self._best(1).items()}

    def n_best(self) -> dict[str, list[Answer]]:
        """At most `settings.n_best` answers by example id, best first."""
        return self._best(self.settings.n_best)

    def _best(self, count: int) -> dict[str, list[Answer]]:
        answers: dict[str, list[Answer]] = {self.examples[row].id: [] for row in sorted(self._seen)}
        example, score, begin, end = found = np.concatenate(self._parts, axis=1)
        example, score, begin, end = found[:, np.lexsort((end, begin, -score, example))]
        _, first, group = np.unique(example, return_index=True, return_inverse=True)
        kept = np.arange(len(group)) - first[group] < count
        weight = np.where(kept, np.exp(score - score[first][group]), 0.0)  # relative to the best, so none overflows
        probability = weight / np.bincount(group, weight)[group]
        for i in np.flatnonzero(kept).tolist():
            source = self.examples[int(example[i])]
            start = int(begin[i])
            text = source.context[start : int(end[i])]
            start += len(text) - len(text.lstrip())
            text = text.strip()
            answers[source.id].append(Answer(text, start, start + len(text), float(score[i]), float(probability[i])))
        return answers
