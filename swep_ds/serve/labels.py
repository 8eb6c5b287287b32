"""Questions to label, one at a time, and what finished runs score on all of them by the labels so far."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from swep_ds.analysis.forecast import scores, signal
from swep_ds.analysis.labelled import MIN_IN_STRATUM, STRATA, estimate, labelling_order, stratum_names
from swep_ds.api.forecast import answered
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.evaluation.results import METRICS
from swep_ds.evaluation.scores import Scorer

RESERVED = 120  # seconds for which a question is left to the person to whom it was shown


def check_questions(examples: Sequence[Example], rows: Mapping[str, dict[str, Any]], what: str) -> None:
    """Raises InputError: the questions are too few to label, or a row of `what` is no label of them."""
    if len(examples) < STRATA * MIN_IN_STRATUM:
        raise InputError(f"--label: {len(examples)} questions: give at least {STRATA * MIN_IN_STRATUM}")
    question_of = {example.id: example.question for example in examples}
    for id_, row in rows.items():
        if question_of.get(row.get("asked")) != row["question"]:
            raise InputError(f"{what}: the verdict {id_!r} is about another set of questions: name another file")


class Labels:
    """The questions `examples`. `answers` has by run what it replied: (text, probability) by question id. A label is a
    verdict's row with the id of its question as `asked`."""

    def __init__(
        self, examples: Sequence[Example], answers: Mapping[str, Mapping[str, tuple[str, float]]], scorer: Scorer
    ):
        self._examples = examples
        self._row_of = {example.id: row for row, example in enumerate(examples)}
        self._answers = answers
        self._scorer = scorer
        self._shown: dict[str, float] = {}  # when each question was, last
        self._predicted_N2 = 100 * signal([answered(of_run, examples, scorer) for of_run in answers.values()], scorer)
        rows, self._strata = labelling_order(self._predicted_N2[:, METRICS.index("f1")])
        self._order = [examples[row].id for row in rows]
        names = stratum_names(len(examples))
        self.stratum_of = {id_: names[stratum] for id_, stratum in zip(self._order, self._strata, strict=True)}

    def example(self, id_: str | None) -> Example:
        """Raises InputError: no question has the id."""
        if id_ not in self._row_of:
            raise InputError(f"asked: no question has the id {id_!r}")
        return self._examples[self._row_of[id_]]

    def next(self, labelled: Collection[str], skipped: Sequence[str]) -> Example | None:
        """The next question that has no label; those shown to another person within `RESERVED` come later, and skipped
        ones last, in their order. None if all are labelled."""
        left = [id_ for id_ in self._order if id_ not in labelled]
        if not left:
            return None
        for id_ in skipped:
            self._shown.pop(id_, None)
        recently = time.monotonic() - RESERVED
        place_of = {id_: place for place, id_ in enumerate(skipped, 1)}
        left.sort(key=lambda id_: (place_of.get(id_, 0), self._shown.get(id_, recently) > recently))
        self._shown[left[0]] = time.monotonic()
        return self.example(left[0])

    def said(self, id_: str) -> list[dict[str, Any]]:
        """What each run replied to a question."""
        replies = [(run, *answers[id_]) for run, answers in self._answers.items()]
        return [dict(zip(("run", "answer", "probability"), reply, strict=True)) for reply in replies]

    def scores(self, rows: Collection[dict[str, Any]]) -> dict[str, Any]:
        """The mean scores of the runs by the verdicts `rows`, whose accepted answers to a question are pooled. Labels
        that follow a question of their stratum without one do not count: those that people skip are the hard ones."""
        given: dict[str, tuple[str, ...]] = {}
        for row in rows:
            if row["asked"] not in self._row_of:  # a run was trained on it
                continue
            given[row["asked"]] = (*given.get(row["asked"], ()), *row["answers"]["text"])
        labelled, strata, waits = [], [], set()
        passed = [0] * STRATA
        missing = 0  # among the first questions of each stratum
        for id_, stratum in zip(self._order, self._strata, strict=True):
            passed[stratum] += 1
            if id_ not in given:
                waits.add(stratum)
                missing += passed[stratum] <= MIN_IN_STRATUM
            elif stratum not in waits:
                labelled.append(id_)
                strata.append(stratum)
        shown = {"labelled": len(given), "waiting": len(given) - len(labelled), "questions": len(self._examples)}
        shown["least"] = len(given) + missing
        if missing:
            return shown | dict.fromkeys(METRICS)
        examples = [replace(self.example(id_), answers=given[id_]) for id_ in labelled]
        runs = [answered(of_run, examples, self._scorer) for of_run in self._answers.values()]
        true_2n = 100 * scores(runs).mean(0).T
        rows_n = np.array([self._row_of[id_] for id_ in labelled])
        for metric, true_n, predicted_N in zip(METRICS, true_2n, self._predicted_N2.T, strict=True):
            of_all = estimate(true_n, predicted_N, rows_n, np.array(strata))
            bounds = {name: float(getattr(of_all, name)) for name in ("mean", "low", "high")}
            shown[metric] = bounds | {"more_labels": of_all.more_labels}
        return shown
