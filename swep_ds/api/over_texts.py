"""Scores a model that is asked about all texts of a folder, so that faults of search and of reading are told apart."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from swep_ds.analysis.crossed import LEVEL, MIN_TEXTS, estimate
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import write_atomically
from swep_ds.common.settings import validate
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns
from swep_ds.data.example import Example
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.predictions import Marking, write_predictions
from swep_ds.evaluation.results import versions, write_remarks, write_results
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.asked import apart
from swep_ds.pipeline.recipe import EvalSection
from swep_ds.pipeline.saved import TRAINED_ON, read_data_sets
from swep_ds.texts.answerer import TextsAnswerer
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.pairs import PairLocator, folded

# by name in results.json, what people read: of all questions, and of those with an answer
MEASURES = {"exact_match": "exact", "f1": "F1", "declined": "declined"}
OF_ANSWERABLE = {"passage_found": "passage found", "right_text": "right text", "exact_if_found": "exact, if found"}


def evaluate_over_texts(
    model: str,
    data: Sequence[str],
    texts: FolderTexts,
    output_dir: Path,
    *,
    passages: int,
    scorer: str,
    language: str,
    columns: Columns,
    **reading: Any,
) -> None:
    """Asks the questions of `name=source` data sets about all `texts`, and writes predictions, `answers/NAME.jsonl` and
    results.json into `output_dir`.

    `passages` are read for a question. `scorer` and `language` as in the recipe's section `eval`; `columns` as in
    `Choices`; `reading` as in `QuestionAnswerer`. Questions that the model was trained on are scored apart. Raises
    InputError: the model, the texts or the data cannot be read, or the data have no answers.
    """
    say = Console().print
    rules = validate(EvalSection, {"scorer": scorer, "language": language}, "--scorer").scorer_of("")
    remarks: list[dict[str, str]] = []
    choices = Choices(unanswerable="train", columns=columns, locate=PairLocator(texts))
    every = read_data_sets(data, choices, remarks)
    for name, examples in every.items():
        if examples[0].withheld:
            raise InputError(f"--data {name}: has no answers to score: add a column answer, or name yours in --columns")
    asks = QuestionAnswerer(model, **reading).over(texts, passages)
    names = set(texts.states())
    tests, known = apart(every, model)
    output_dir.mkdir(parents=True, exist_ok=True)
    scores = {"eval": {}, "trained_on": {}}
    for kind, part in (("eval", tests), ("trained_on", known)):
        for name, examples in part.items():
            title = name if kind == "eval" else f"{name}, of which the model was trained on these questions"
            say(f"{title}: {len(examples)} questions over {len(names)} texts")
            file = name if kind == "eval" else name + TRAINED_ON
            scores[kind][name] = _score(asks, names, examples, rules, passages, output_dir, file)
            for line in _lines(scores[kind][name]):
                say(f"    {line}")
    write_remarks(output_dir, remarks, say)
    write_results(output_dir, {"model": model, "texts": texts.what, **scores, "versions": versions()})
    say(f"answers in {output_dir / 'answers'}, results in {output_dir}")


def _score(
    asks: TextsAnswerer,
    names: set[str],
    examples: list[Example],
    rules: Scorer,
    passages: int,
    folder: Path,
    file: str,
) -> dict[str, Any]:
    """The measures of a test set, each [mean, low, high] in percent. Writes its files. `names`: all texts."""
    replies = asks.answer(example.question for example in examples)
    given = {example.id: best for example, [best] in zip(examples, replies, strict=True)}
    predictions = {id_: reply.text for id_, reply in given.items()}
    marking = Marking(examples, rules)
    exact_Q, f1_Q = marking.of(predictions)
    declined_Q = np.array([not text for text in predictions.values()])
    answerable_Q = np.array([bool(example.answers) for example in examples])
    documents = [example.article if example.article in names else None for example in examples]
    found = [_finds(asks, example, passages, name) for example, name in zip(examples, documents, strict=True)]
    found_Q = np.array(found)
    is_named_Q = np.array([document is not None for document in documents])
    right_Q = np.array([given[example.id].name == example.article for example in examples])
    cluster_Q = clusters(examples)
    measures = {"exact_match": exact_Q, "f1": f1_Q, "declined": declined_Q}
    score = {measure: _interval(values_Q, cluster_Q) for measure, values_Q in measures.items()}
    parts = {
        "passage_found": (found_Q, answerable_Q),
        "right_text": (right_Q, answerable_Q & is_named_Q & ~declined_Q),
        "exact_if_found": (exact_Q, answerable_Q & found_Q),
    }
    for measure, (values_Q, is_meant_Q) in parts.items():
        if is_meant_Q.any():
            _, cluster = np.unique(cluster_Q[is_meant_Q], return_inverse=True)
            score[measure] = _interval(values_Q[is_meant_Q], cluster)
    rows = []
    for number, example in enumerate(examples):
        reply = given[example.id]
        rows.append(
            {
                "id": example.id,
                "question": example.question,
                "accepted": example.answers,
                "document": documents[number],
                "answer": reply.text,
                "name": reply.name,
                "probability": reply.probability,
                "exact": bool(exact_Q[number]),
                "f1": round(float(f1_Q[number]), 4),
                "passage_found": bool(found_Q[number]) if answerable_Q[number] else None,
            }
        )
    write_predictions(folder, file, {"predictions": predictions}, marking)
    (folder / "answers").mkdir(exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_atomically(folder / "answers" / f"{file}.jsonl", lines)
    return score | {"total": len(examples)}


def _finds(asks: TextsAnswerer, example: Example, passages: int, document: str | None) -> bool:
    """Whether an accepted answer is in a passage that is read: of the `document` that the question names, if any."""
    pieces = asks.index.pieces(example.question, passages)
    texts = [folded(text) for piece, text in pieces if document in (None, piece.name)]
    return any(folded(answer) in text for text in texts for answer in example.answers)


def _interval(values_Q: np.ndarray, cluster_Q: np.ndarray) -> list[float]:
    """The mean and, over at least `MIN_TEXTS` texts, its interval [low, high], in percent."""
    percent_Q = 100.0 * values_Q
    if effective_clusters(cluster_Q) < MIN_TEXTS:
        return [float(percent_Q.mean())]
    known = estimate([(percent_Q[None], cluster_Q)])
    low, high = np.clip(known.interval(), 0, 100)
    return [float(known.mean), float(low), float(high)]


def _lines(score: dict[str, Any]) -> list[str]:
    lines = []
    for measure, title in (MEASURES | OF_ANSWERABLE).items():
        if measure in score:
            mean, *interval = score[measure]
            bounds = "" if not interval else " ({:.1f} to {:.1f})".format(*interval)
            lines.append(f"{title:16} {mean:5.1f} %{bounds}")
    bounded = any(len(score[measure]) > 1 for measure in MEASURES)
    said = (
        f"{LEVEL} % intervals over texts" if bounded else f"no intervals: questions about fewer than {MIN_TEXTS} texts"
    )
    return [*lines, said]
