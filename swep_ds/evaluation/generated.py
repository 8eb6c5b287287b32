"""Turns generated token ids into answer texts: the most probable answer of a context's windows wins.

A blank text wins only where no window wrote another: one part of a context may well hold no answer.

A model that was trained with unanswerable questions gives each window's probability p of the empty answer. The lowest p
decides, since all windows must find no answer: log p is the null score, and log(p / (1 - p)) the null odds.
"""

import math
from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerFast

from swep_ds.data.batches import IGNORED
from swep_ds.data.example import Example
from swep_ds.evaluation.spans import Answer, Columns

LOWEST = -1e30  # in place of a log probability that is not a finite number: its answer never wins
MIN_PROBABILITY = 1e-30  # of all answers but the empty one: next to that theirs may round to 0


class GeneratedAnswers:
    """Collects the windows of `examples`, batch by batch and in any order, and answers the examples seen so far. Of the
    windows' answers the one with the largest mean log probability wins; ties go to the alphabet."""

    def __init__(self, examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast):
        self.examples = examples
        self.tokenizer = tokenizer
        # by example: whether it is blank, negative log probability per token, text, tokens
        self._best: dict[int, tuple[bool, float, str, int]] = {}
        self._null: dict[int, float] = {}  # by example: the lowest log probability of the empty answer
        self.log_sums: dict[int, float] = {}  # by example: the log probability there of all other answers together

    def add(self, columns: Columns, token_ids_NK: Tensor, score_N: Tensor, null_N: Tensor | None = None) -> None:
        """Adds N windows: their evaluation columns (`read_columns`), and the output of `GenerativeQA.predict`."""
        rows = [int(row) for row in columns["example"]]
        ids = token_ids_NK.masked_fill(token_ids_NK == IGNORED, self.tokenizer.pad_token_id)
        # whatever the tokenizer's configuration says: cleaning up would join " 's" to the word before
        texts = self.tokenizer.batch_decode(ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        counts = (token_ids_NK != IGNORED).sum(1).tolist()
        for row, text, score, count in zip(rows, texts, _finite(score_N), counts, strict=True):
            proposal = (not text.strip(), -score, text.strip(), count)
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
