"""Scores a model on questions about all texts of a folder, and separates search errors from reading errors."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from swep_ds.analysis.crossed import LEVEL, MIN_TEXTS, estimate
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import write_atomically
from swep_ds.common.settings import validate
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.predictions import Marking, write_predictions
from swep_ds.evaluation.results import versions, write_remarks, write_results
from swep_ds.pipeline.asked import apart
from swep_ds.pipeline.recipe import EvalSection
from swep_ds.pipeline.saved import TRAINED_ON, read_data_sets
from swep_ds.texts.answerer import TextsAnswerer
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.pairs import PairLocator, folded
from swep_ds.texts.passages import Piece

# by name in results.json and in answers/NAME.jsonl, where a question for which it does not count has none: its title
MEASURES = {
    "exact_match": "exact",
    "f1": "F1",
    "declined": "declined",
    "passage_found": "passage found",  # over questions with an answer
    "right_text": "right text",  # over those that name a document and are not declined
    "exact_if_found": "exact, if found",
}
REPLIED = ("name", "page", "heading", "start", "end", "probability")  # fields of an answer, in answers/NAME.jsonl


def evaluate_over_texts(
    model: str,
    data: Sequence[str],
    texts: FolderTexts,
    output_dir: Path,
    *,
    passages: int,
    scorer: str | None,
    language: str | None,
    columns: Columns,
    **reading: Any,
) -> None:
    """Asks the questions of `name=source` data sets about all `texts`, and writes predictions, `answers/NAME.jsonl` and
    results.json into `output_dir`.

    `passages` are read for a question. `scorer` and `language` as in the recipe's section `eval`, None = its defaults;
    `columns` as in `Choices`; `reading` as in `QuestionAnswerer`. Questions that the model was trained on are scored
    apart. Raises InputError: the model, the texts or the data cannot be read, or the data have no answers.
    """
    say = Console().print
    rules = validate(EvalSection, {"scorer": scorer or "squad", "language": language or "en"}, "--scorer").scorer_of("")
    remarks: list[dict[str, str]] = []
    choices = Choices(unanswerable="train", columns=columns, locate=PairLocator(texts))
    every = read_data_sets(data, choices, remarks)
    for name, examples in every.items():
        if examples[0].withheld:
            raise InputError(f"--data {name}: has no answers to score: add a column answer, or name yours in --columns")
    asks = QuestionAnswerer(model, **reading).over(texts, passages)
    output_dir.mkdir(parents=True, exist_ok=True)
    scores: dict[str, dict[str, Any]] = {}
    for kind, ending, tests in zip(("eval", "trained_on"), ("", TRAINED_ON), apart(every, model), strict=True):
        scores[kind] = {}
        for name, examples in tests.items():
            say(f"{name}{ending}: {len(examples)} questions over {len(asks.index.names)} texts")
            marking = Marking(examples, rules)
            table = _asked(asks, marking)
            scores[kind][name] = _score(table, clusters(examples), say)
            predictions = dict(zip(table["id"], table["answer"], strict=True))
            write_predictions(output_dir, f"{name}{ending}", {"predictions": predictions}, marking)
            (output_dir / "answers").mkdir(exist_ok=True)
            rows = table.astype(object).where(table.notna(), None).to_dict("records")
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            write_atomically(output_dir / "answers" / f"{name}{ending}.jsonl", lines)
    write_remarks(output_dir, remarks, say)
    write_results(output_dir, {"model": model, "texts": str(texts.folder), **scores, "versions": versions()})
    say(f"answers in {output_dir / 'answers'}, results in {output_dir}")


def _asked(asks: TextsAnswerer, marking: Marking) -> pd.DataFrame:
    """A row for each question, with its reply and the `MEASURES`, from 0 to 1."""
    rows = []
    names = asks.index.names
    examples = marking.examples
    answered = asks.search_and_read(example.question for example in examples)
    for example, ([reply], pieces) in zip(examples, answered, strict=True):
        row = {"id": example.id, "question": example.question, "accepted": example.answers, "answer": reply.text}
        row |= {name: getattr(reply, name) for name in REPLIED} | {"document": None, "declined": not reply.text}
        if example.article in names:
            row["document"] = example.article
        if example.answers:
            row["passage_found"] = _hold(pieces, example.answers, row["document"])
        if example.answers and reply.text and row["document"]:
            row["right_text"] = reply.name == row["document"]
        rows.append(row)
    table = pd.DataFrame(rows, columns=list(dict.fromkeys([*rows[0], *MEASURES])), dtype=object)
    table["exact_match"], table["f1"] = marking.of(dict(zip(table["id"], table["answer"], strict=True)))
    table["exact_if_found"] = table["exact_match"].where(table["passage_found"].eq(True))
    return table


def _hold(pieces: list[Piece], answers: Sequence[str], document: str | None) -> bool:
    """Whether an accepted answer is in a piece that was read: of the `document` that the question names, if any."""
    texts = [folded(text) for piece, text in pieces if document in (None, piece.name)]
    return any(folded(answer) in text for text in texts for answer in answers)


def _score(table: pd.DataFrame, cluster_Q: np.ndarray, say: Callable[[str], None]) -> dict[str, Any]:
    """Each measure as [mean] or, over at least `MIN_TEXTS` texts, [mean, low, high] in percent."""
    score: dict[str, Any] = {}
    for measure, title in MEASURES.items():
        counts_Q = table[measure].notna()
        if not counts_Q.any():
            continue
        percent_Q = 100 * table.loc[counts_Q, measure].to_numpy(float)
        _, text_Q = np.unique(cluster_Q[counts_Q], return_inverse=True)
        score[measure] = [float(percent_Q.mean())]
        line = f"    {title:16} {percent_Q.mean():5.1f} %"
        if effective_clusters(text_Q) >= MIN_TEXTS:
            low, high = np.clip(estimate([(percent_Q[None], text_Q)]).interval(), 0, 100)
            score[measure] += [float(low), float(high)]
            line += f" ({low:.1f} to {high:.1f})"
        say(line)
    say(f"    in brackets {LEVEL} % intervals over texts, where these are at least {MIN_TEXTS}")
    return score | {"total": len(table)}
