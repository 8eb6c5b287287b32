"""Evaluates a model on any number of data sets: windows, predictions, scores, files.

The questions are spread over the ranks: exactly one rank answers each of them.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from huggingface_hub.constants import HF_HOME
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.console import Console, Progress
from swep_ds.data.batches import Batch, padded_inputs
from swep_ds.data.example import Example
from swep_ds.data.features import Features, build_features
from swep_ds.data.splits import clusters
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.calibration import N_BEST, Calibrator, calibrated_scores, calibration, features, fit
from swep_ds.evaluation.predictions import Marking, write_predictions
from swep_ds.evaluation.results import WITHHELD, Score, Scores
from swep_ds.evaluation.scores import METRICS, Scorer
from swep_ds.evaluation.spans import Answer, Columns, GeneratedAnswers, SpanDecoder, SpanSettings, with_null
from swep_ds.evaluation.unreachable import unreachable
from swep_ds.ranks import accelerator
from swep_ds.ranks.writing import write_on_rank0

CACHE = Path(os.environ.get("HF_DATASETS_CACHE", Path(HF_HOME, "datasets"))) / "swep_ds"  # tokenised windows
Predict = Callable[[Batch], tuple[Tensor, ...]]  # a model's `predict`
Decoder = SpanDecoder | GeneratedAnswers


@dataclass(frozen=True)
class Predictions:
    """By question id, in the order of the examples: the `N_BEST` best answers and, if the model may decline, the null
    answer."""

    n_best: dict[str, list[Answer]]
    nulls: dict[str, Answer]

    @property
    def texts(self) -> dict[str, str]:
        return {id_: answers[0].text if answers else "" for id_, answers in self.n_best.items()}

    @property
    def confidences(self) -> dict[str, float]:
        return {id_: answers[0].probability if answers else 0.0 for id_, answers in self.n_best.items()}

    @property
    def odds(self) -> dict[str, float]:
        return {id_: null.odds for id_, null in self.nulls.items()}

    def declining(self, threshold: float | None) -> "Predictions":
        """The same predictions, after `with_null` has decided which questions to decline."""
        given = {id_: with_null(answers, self.nulls.get(id_), threshold) for id_, answers in self.n_best.items()}
        return Predictions({id_: answers[:N_BEST] for id_, answers in given.items()}, self.nulls)

    def features(self, examples: list[Example]) -> np.ndarray:
        """What a calibrator sees of their answers: [N, F]."""
        return np.array([features(example, self.n_best[example.id]) for example in examples])


@dataclass(frozen=True)
class EvalSet:
    """A tokenised test set."""

    name: str
    examples: list[Example]
    features: Features
    scorer: Scorer

    @property
    def rules(self) -> str:
        """Whose rules score it, for people."""
        return WITHHELD if self.withheld else self.scorer.name(self.golds)

    @property
    def withheld(self) -> bool:
        """Whether its answers are not known."""
        return self.examples[0].withheld

    @property
    def golds(self) -> dict[str, tuple[str, ...]]:
        return {example.id: example.answers for example in self.examples}

    def right(self, predictions: Predictions) -> list[float]:
        """The exact match of each question."""
        return [em for em, _ in self.scorer.by_question(predictions.texts, self.golds).values()]

    def best_thresholds(self, predictions: Predictions, *, reachable: bool = False) -> dict[str, float]:
        """As `Scorer.best_thresholds`."""
        return self.scorer.best_thresholds(predictions.texts, self.golds, predictions.odds, reachable=reachable)

    def score(self, predictions: Predictions) -> Score:
        """EM, F1 and total of what `Evaluation.predict` gave; at the threshold with the best F1 if the model may
        decline."""
        if predictions.nulls:
            best = self.best_thresholds(predictions, reachable=True)
            predictions = predictions.declining(best["best_f1_threshold"])
        score = self.scorer.score(predictions.texts, self.golds)
        return {name: score[name] for name in (*METRICS, "total")}


@dataclass(frozen=True)
class Evaluation:
    """Tokenises, predicts, decides when to decline, and scores, with one set of windows and thresholds."""

    tokenizer: PreTrainedTokenizerFast
    windows: WindowSettings
    spans: SpanSettings
    batch_size: int  # windows per rank
    null_threshold: float | None = None  # a question with null odds above this is declined; None = never
    calibrator: Calibrator | None = None

    def prepare(self, tests: dict[str, list[Example]], scorer_of: Callable[[str], Scorer]) -> list[EvalSet]:
        """Tokenises data sets by name, each with its `Scorer`. On several ranks call it inside
        `local_rank_zero_first`, for the cache."""
        build = partial(build_features, training=False, cache_dir=CACHE, console=Console(quiet=not ranks.is_main()))
        sets = []
        for name, examples in tests.items():
            windows = build(examples, self.tokenizer, self.windows)
            sets.append(EvalSet(name, examples, windows, scorer_of(name)))
        return sets

    def run(self, predict: Predict, tests: list[EvalSet], folder: Path, say: Callable[[str], None]) -> Scores:
        """Scores by data set, in order, on every rank; rank 0 writes the folders `BY_TEST`. Collective.

        Raises WriteFailed: on all ranks.
        """
        scores: Scores = {}
        for test in tests:
            windows = test.features
            cut = f", {windows.questions_cut} questions cut" if windows.questions_cut else ""
            say(f"evaluating {test.name}: {windows.examples} questions in {len(windows.dataset)} windows{cut}")
            golds = list(test.golds.values())
            for line in unreachable(windows, golds, test.scorer, self.spans.max_answer_tokens, "max_answer_tokens"):
                say(f"  {line}")
            predictions = self.predict(predict, test)
            given = predictions.declining(self.null_threshold)
            n_best = {id_: [_fields(answer) for answer in answers] for id_, answers in given.n_best.items()}
            contents = {"predictions": given.texts, "confidence": given.confidences, "n_best": n_best}
            if self.calibrator:
                sure = self.calibrator.confidence(given.features(test.examples)).tolist()
                contents["calibrated"] = dict(zip(given.texts, sure, strict=True))
            if predictions.nulls:
                contents["null_odds"] = predictions.odds
            scores[test.name] = self._score(test, predictions, given, contents.get("calibrated"))
            marking = None if test.withheld else Marking(test.examples, test.scorer)
            write_on_rank0(partial(write_predictions, folder, test.name, contents, marking), folder)
        return scores

    def _score(
        self, test: EvalSet, predictions: Predictions, given: Predictions, calibrated: dict[str, float] | None
    ) -> Score:
        """The scores of the answers that were `given`, of the `predictions` before any was declined."""
        if test.withheld:
            return {"total": len(test.examples)}
        right = test.right(given)
        softmax = list(given.confidences.values())
        score = test.scorer.score(given.texts, test.golds) | calibration(softmax, right)
        if calibrated:
            score |= calibrated_scores(softmax, list(calibrated.values()), right, clusters(test.examples))
        if predictions.nulls and not all(test.golds.values()):
            score |= test.best_thresholds(predictions)
        return score

    def predict(self, predict: Predict, test: EvalSet) -> Predictions:
        """The best answers to each question, none declined, on every rank. Collective."""
        if self.windows.task == "generative":
            decoder = GeneratedAnswers(test.examples, self.tokenizer)
        else:
            decoder = SpanDecoder(test.examples, self.spans, null=self.null_threshold is not None)
        decode(predict, decoder, test.features.dataset, self.tokenizer, self.batch_size)
        n_best, nulls = {}, {}
        for n_best_of_rank, nulls_of_rank in ranks.gather((decoder.n_best(N_BEST), decoder.nulls())):
            n_best |= n_best_of_rank
            nulls |= nulls_of_rank
        ids = [example.id for example in test.examples]
        return Predictions({id_: n_best[id_] for id_ in ids}, {id_: nulls[id_] for id_ in ids if id_ in nulls})

    def with_threshold(self, predictions: Predictions, test: EvalSet) -> tuple["Evaluation", str]:
        """The evaluation at the threshold with the best F1 on `test`, half of a data set; and why."""
        if all(test.golds.values()):
            return self, f"half of {test.name}, which could choose another, has no question without an answer"
        best = test.best_thresholds(predictions, reachable=True)
        return replace(self, null_threshold=best["best_f1_threshold"]), f"the best by F1 on half of {test.name}"

    def with_calibrator(self, predictions: Predictions, test: EvalSet) -> tuple["Evaluation", str]:
        """The evaluation with a calibrator fitted to these answers, if there are enough; and a line for the log."""
        given = predictions.declining(self.null_threshold)
        fitted = fit(given.features(test.examples), test.right(given), clusters(test.examples).tolist())
        calibrator = fitted if isinstance(fitted, Calibrator) else None
        return replace(self, calibrator=calibrator), str(fitted)


def _fields(answer: Answer) -> dict[str, Any]:
    fields = {"text": answer.text, "probability": answer.probability, "score": answer.score}
    if answer.start is not None:
        fields |= {"start": answer.start, "end": answer.end}
    return fields


@torch.no_grad()
def decode(predict: Predict, decoder: Decoder, features, tokenizer, batch_size: int) -> None:
    """Runs this rank's share of the windows through a model in evaluation mode, and adds the outputs to the decoder.

    Collective. A rank without windows left repeats one and drops the result: ZeRO-3 needs calls on all ranks.
    """
    windows = Windows(features.data.table)
    batches = windows.batches(batch_size, ranks.rank(), ranks.world_size())
    calls = max(ranks.gather(len(batches)))
    padded = batches + [np.array([0])] * (calls - len(batches))
    with Progress(Console(quiet=not ranks.is_main()), "batches", calls) as progress:
        for number, rows in enumerate(padded, 1):
            ranks.progress(f"evaluation, batch {number}")
            columns = windows.columns(rows)
            result = predict(_batch(columns, tokenizer).to(ranks.device()))
            if number <= len(batches):
                decoder.add(columns, *result)
            progress.update(number)


@torch.no_grad()
def decode_alone(predict: Predict, decoder: Decoder, table: pa.Table, tokenizer, batch_size: int) -> None:
    """As `decode`, in a process that need not be a rank."""
    windows = Windows(table)
    for rows in windows.batches(batch_size, rank=0, world_size=1):
        columns = windows.columns(rows)
        decoder.add(columns, *predict(_batch(columns, tokenizer).to(accelerator.device())))


class Windows:
    """The windows of a table, by row. It stays in its chunks: `Table.take` joins them all at every call."""

    def __init__(self, table: pa.Table):
        self.table = table
        self.chunks = table.to_batches()
        self.begins = np.cumsum([0, *map(len, self.chunks)])  # row of each chunk's first window

    def batches(self, batch_size: int, rank: int, world_size: int) -> list[np.ndarray]:
        """A rank's rows: all windows of every `world_size`-th question, longest first so that memory peaks at once."""
        example, length = (self.table[name].to_numpy() for name in ("example", "length"))
        rows = np.flatnonzero(example % world_size == rank)
        rows = rows[np.argsort(-length[rows], kind="stable")]
        return [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]

    def columns(self, rows: np.ndarray) -> Columns:
        """Copies of these rows, by column."""
        chunk = np.searchsorted(self.begins, rows, side="right") - 1
        places = zip(chunk.tolist(), (rows - self.begins[chunk]).tolist(), strict=True)
        batch = pa.concat_batches([self.chunks[number].slice(row, 1) for number, row in places])
        columns = {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            columns[field.name] = column if pa.types.is_list(field.type) else column.to_numpy()
        return columns


def _batch(columns: Columns, tokenizer) -> Batch:
    inputs = {"input_ids", "token_type_ids"} & columns.keys()
    rows = {name: [row.values.to_numpy() for row in columns[name]] for name in inputs}
    lengths = tuple(columns["length"].tolist())
    return Batch(**padded_inputs(tokenizer, rows, max(lengths)), lengths=lengths)
