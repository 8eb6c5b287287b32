"""A few labels that count: the mean score of N questions from predictions for all of them and the true scores of n.

Prediction-powered inference (Angelopoulos et al., Science 2023) with the power-tuning weight lambda (PPI++, 2311.01453)
in its stratified form (Fisch et al., 2406.04291). In stratum h, n_h of N_h questions are drawn at random and labelled:

    mean = sum over h of N_h / N (mean y - lambda mean x), over the labelled, + lambda (mean x over all N)

for scores y and predictions x. Lambda minimises the variance, that of drawing without replacement. A simple random
sample is one stratum. x is the rank of a prediction: the few low ones of an over-confident model would else settle
lambda, and the interval would be too narrow.

The interval is Wilson's at the effective number of labels (Kott and Carr 1997; Korn and Graubard 1998) with Student's
t; mean +- t errors fails near 0 and 100. It is about these N questions and these runs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from swep_ds.analysis.crossed import AIM
from swep_ds.common.errors import InputError, at, excerpt
from swep_ds.common.files import write_atomically
from swep_ds.common.spreadsheets import split_sheet
from swep_ds.data.answers import answer_pairs, field, is_blank, says_impossible
from swep_ds.data.columns import ANSWERED, Columns, known_fields, name_of
from swep_ds.data.example import Example
from swep_ds.data.formats import file_items
from swep_ds.evaluation.calibration import LEVEL

MIN_LABELLED = 10
MIN_SUGGESTED = 25
STRATA = 5  # suggested questions, by prediction, equally large
MIN_IN_STRATUM = 3  # labelled questions
BELIEVED = (15.0, 85.0)  # points: predictions beyond them do not lower a stratum's share of the labels further
NO_ANSWER = "no answer"  # written as the answer of a question that its context does not answer


@dataclass(frozen=True)
class Estimate:
    """A mean score and its interval of `LEVEL` percent, in points: arrays [...] or scalars."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    weight: np.ndarray  # lambda: by how many points the score of the highest prediction is above that of the lowest
    more_labels: int | None  # labels, drawn in the same way, until the interval is +- `AIM`


def estimate(scores: np.ndarray, predicted_N: np.ndarray, rows: np.ndarray, stratum_n: np.ndarray) -> Estimate:
    """The mean score of N questions.

    Args:
        scores: [..., n] true scores of the labelled questions, 0 to 100: EM or F1; n >= `MIN_LABELLED`.
        predicted_N: what is expected of each question, on any scale. If all are alike, only the labels count.
        rows: [..., n] which of the N questions are labelled, none twice.
        stratum_n: the stratum of each labelled question, from 0, as `suggest` makes them, with `MIN_IN_STRATUM` or
            more in each; all 0 for a simple random sample.
    """
    questions = len(predicted_N)
    labelled = len(stratum_n)
    _, place_N, counts = np.unique(predicted_N, return_inverse=True, return_counts=True)
    rank_N = (np.cumsum(counts) - (counts - 1) / 2)[place_N] / questions  # equals share their mean rank
    y = np.asarray(scores) / 100
    x = rank_N[rows]
    counts_H = np.bincount(stratum_n)
    strata = len(counts_H)
    counts_n = counts_H[stratum_n]
    chance_n = counts_n / _sizes(questions, strata)[stratum_n]
    share_n = 1 / chance_n / questions  # questions of the set for which a labelled question stands
    mean_nH = (stratum_n[:, None] == np.arange(strata)) / counts_H
    centred_y = y - (y @ mean_nH)[..., stratum_n]
    centred_x = x - (x @ mean_nH)[..., stratum_n]
    with_replacement_n = share_n**2 * counts_n / (counts_n - 1)
    cost_n = with_replacement_n * (1 - chance_n)
    squares = (cost_n * centred_x**2).sum(-1)
    helps = squares > 1e-12 * cost_n.sum()  # not if all predictions are alike
    weight = np.where(helps, (cost_n * centred_x * centred_y).sum(-1) / np.where(helps, squares, 1), 0)
    mean = np.clip((share_n * y).sum(-1) + weight * (rank_N.mean() - (share_n * x).sum(-1)), 0, 1)
    df = labelled - strata - helps
    squared = (centred_y - weight[..., None] * centred_x) ** 2 * ((labelled - strata) / df)[..., None]
    variance = (with_replacement_n * squared).sum(-1)
    less = (with_replacement_n * chance_n * squared).sum(-1)  # by drawing without replacement

    def interval(labels: Any) -> tuple[np.ndarray, np.ndarray]:
        of_mean = np.maximum(variance * labelled / labels - less, 0)
        return _wilson(mean, of_mean, labels, questions, df + labels - labelled)

    more_labels = None
    if mean.ndim == 0:
        low, high = interval(np.arange(labelled, questions + 1))
        more_labels = int(np.argmax(50 * (high - low) <= AIM))
    low, high = interval(labelled)
    return Estimate(100 * mean, 100 * low, 100 * high, 100 * weight, more_labels)


def _wilson(mean: Any, variance: Any, labels: Any, questions: int, df: Any) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a mean in [0, 1]. Its variance counts as a share of the greatest with this mean, that of scores
    of 0 and 1. Scores that are nearly all alike underestimate the share: one label more counts, whose share is 1."""
    most = mean * (1 - mean)
    per_label = np.maximum(1 - labels / questions, 1e-12) / (labels - 1)
    share = np.minimum(variance / np.maximum(most * per_label, 1e-15), 1)
    known = 4 * labels * most
    share = (known * share + 1) / (known + 1)
    scale = stdtrit(df, 0.5 + LEVEL / 200) ** 2 * share * per_label
    half = np.sqrt(scale * most + scale**2 / 4) / (1 + scale)
    centre = (mean + scale / 2) / (1 + scale)
    return np.minimum(centre - half, mean), np.maximum(centre + half, mean)  # but for rounding the same


def suggest(predicted_N: np.ndarray, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The rows [count] of the questions to label, in random order, and their strata [count]: the first `count` of
    `labelling_order`, at least `MIN_SUGGESTED`."""
    rows, stratum_n = labelling_order(predicted_N, seed)
    at_random_n = np.argsort(np.random.default_rng(seed).permutation(len(predicted_N))[rows[:count]])
    return rows[:count][at_random_n], stratum_n[:count][at_random_n]


def labelling_order(predicted_N: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """All rows [N] in the order in which they should be labelled, and their strata [N]: at any point from
    `MIN_IN_STRATUM` of each stratum on, those before it are a stratified random sample. `predicted_N`: scores, 0 to
    100. By Neyman's allocation a stratum gets labels by its size times the standard deviation of scores of 0 and 100
    with the predicted mean."""
    questions = len(predicted_N)
    rng = np.random.default_rng(seed)
    place_N = rng.permutation(questions)
    tie_N = rng.permutation(questions)  # not `place_N`: within a stratum all predictions must have equal chances
    sizes_H = _sizes(questions, STRATA)
    stratum_N = np.empty(questions, int)
    stratum_N[np.lexsort((tie_N, predicted_N))] = np.arange(STRATA).repeat(sizes_H)
    mean_H = np.clip(np.bincount(stratum_N, predicted_N) / sizes_H, *BELIEVED)
    need_H = sizes_H * np.sqrt(mean_H * (100 - mean_H))
    number_N = np.empty(questions, int)  # each question's place within its stratum
    for h, size in enumerate(sizes_H):
        of_stratum = np.flatnonzero(stratum_N == h)
        number_N[of_stratum[np.argsort(place_N[of_stratum])]] = np.arange(size)
    priority_N = need_H[stratum_N] / (number_N + 0.5)  # by its stratum's first, second, ... label: Webster's method
    priority_N[number_N < MIN_IN_STRATUM] = np.inf
    rows = np.lexsort((stratum_N, number_N, -priority_N))
    return rows, stratum_N[rows]


def _sizes(questions: int, strata: int) -> np.ndarray:
    return np.bincount(np.arange(questions) * strata // questions)


def stratum_names(questions: int) -> list[str]:
    """What strata are called in a file, so that labels for a set of another size are none for this one."""
    return [f"{number} of {STRATA} ({questions} questions)" for number in range(1, STRATA + 1)]


def write_suggested(
    path: Path, examples: Sequence[Example], rows: np.ndarray, stratum_n: np.ndarray, labelled: Sequence[Example]
) -> None:
    """Writes suggested questions as CSV that a spreadsheet opens, with the answers of those that are labelled."""
    names = stratum_names(len(examples))
    known = {example.id: example.answers or (NO_ANSWER,) for example in labelled}
    table = []
    for row, stratum in zip(rows, stratum_n, strict=True):
        example = examples[row]
        answer, *others = known.get(example.id, [""])
        if others:
            answer = json.dumps([answer, *others], ensure_ascii=False)
        table.append((example.id, example.question, example.context, answer, names[stratum]))
    frame = pd.DataFrame(table, columns=["id", "question", "context", "answer", "stratum"])
    write_atomically(path, frame.to_csv(index=False).encode("utf-8-sig"))  # Excel needs the mark


class Labels(NamedTuple):
    """n questions that are labelled."""

    rows: np.ndarray  # [n] where they are in the set
    examples: list[Example]
    strata: np.ndarray  # [n]


def read_labelled(path: Path, examples: Sequence[Example], columns: Columns = ()) -> Labels:
    """The labelled questions of `examples`. The file is one of `write_suggested`, or rows of any format with id,
    question and answer: a simple random sample. An empty answer is not given yet; `NO_ANSWER` or is_impossible says
    that the context has none. `columns` as in `Choices`. Raises InputError: a row is not of `examples`, its answer is
    not in its context, or too few rows have answers."""
    row_of = {example.id: row for row, example in enumerate(examples)}
    names: list[str | None] = []  # the strata's
    labelled: dict[int, Example] = {}
    strata = []
    with at(f"--labelled {path}"):
        path, sheet = split_sheet(path)
        if not path.is_file():
            raise InputError("no such file")
        for place, item in file_items(path, columns, sheet):
            with at(place):
                fields = known_fields(item, columns)
                id_ = name_of(field(fields, "id"))
                row = row_of.pop(id_, None)
                if row is None or field(fields, "question", str).split() != examples[row].question.split():
                    raise InputError(
                        f"the id {excerpt(id_)} is no such question of this text, or occurs twice; spreadsheets drop "
                        "zeros at the front"
                    )
                stratum = fields.get("stratum")
                names = names or ([None] if stratum is None else stratum_names(len(examples)))
                if stratum not in names:
                    raise InputError(f"the stratum {stratum!r} is none of this text: copy it as it was suggested")
                answers = _answers(fields, examples[row].context)
                if answers is not None:
                    labelled[row] = replace(examples[row], answers=answers)
                    strata.append(stratum)
        stratum_n = np.array([names.index(stratum) for stratum in strata], int)
        fewest = np.bincount(stratum_n, minlength=len(names) or 1).min()
        if len(labelled) < MIN_LABELLED:
            raise InputError(f"{len(labelled)} rows have an answer: fill in {MIN_LABELLED} or more")
        if fewest < MIN_IN_STRATUM:
            raise InputError(f"a stratum has {fewest} rows with an answer: fill in {MIN_IN_STRATUM} or more of each")
    return Labels(np.array(list(labelled)), list(labelled.values()), stratum_n)


def _answers(fields: dict[str, Any], context: str) -> tuple[str, ...] | None:
    """The accepted answers of a row; None if they are not given yet."""
    if ANSWERED.isdisjoint(fields):
        raise InputError(f"has no column answer (found: {excerpt(list(fields))}): rename yours")
    answers = tuple(text for text, _ in answer_pairs(fields, context))
    if not answers and says_impossible(fields | {"context": context}):
        return ()
    given = fields.get("answer")
    if not answers and isinstance(given, str) and not is_blank(given):
        answers = (given,)  # null and the like, which are no answers elsewhere, say here neither no nor not yet
    if not answers:
        return None
    for answer in answers:
        if " ".join(answer.lower().split()) not in " ".join(context.lower().split()):
            raise InputError(f"the answer {excerpt(answer)} is not in its context: copy it, or write {NO_ANSWER!r}")
    return answers
