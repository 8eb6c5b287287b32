"""Files of predictions that any program wrote: their scores and differences, with intervals over questions."""

import csv
import io
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from swep_ds.analysis.crossed import LEVEL, MIN_TEXTS, estimate, not_shown
from swep_ds.common.errors import InputError, as_input_error, at, excerpt
from swep_ds.common.files import read_json, read_text
from swep_ds.common.settings import validate
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns, name_of
from swep_ds.data.formats import json_items
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.results import print_scores
from swep_ds.pipeline.examples import read_reported
from swep_ds.pipeline.recipe import EvalSection
from swep_ds.ranks.environment import warn_once
from swep_ds.texts.folder import FolderTexts

FORMS = 'give {"ID": "ANSWER"}, {"ID": [{"text": "ANSWER"}]} or rows {"id": "ID", "prediction_text": "ANSWER"}'
OTHER_IDS = "its ids do not name the questions of --data"


def read_prediction_file(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """By question id the answers, and the questions of rows that have them. Raises InputError: a form that `swep-ds
    score --help` does not name, or a repeated id."""
    content = read_text(path)
    if path.suffix.lower() == ".csv":
        # not by the reader of data, to which a cell such as 7.0 is a number
        csv.field_size_limit(sys.maxsize)
        delimiter = max(",;\t", key=content.partition("\n")[0].count)
        with as_input_error(f"{path}: malformed CSV", "write it again"):
            rows = [*csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)]
    else:
        with at(str(path)):
            rows = [row for _, row in json_items(content, ())]
        if len(rows) == 1 and isinstance(rows[0], dict) and "id" not in rows[0]:
            rows = [{"id": id_, "answer": answer} for id_, answer in read_json(path).items()]  # refuses a repeated id
    predictions: dict[str, str] = {}
    questions: dict[str, str] = {}
    for row in rows:
        match row:
            case {"id": id_, "prediction_text": str(text)} | {"id": id_, "answer": str(text)} if name_of(id_):
                id_ = name_of(id_)
            case {"id": str(id_), "answer": [{"text": str(text)}, *_]}:
                pass
            case _:
                raise InputError(f"{path}: {excerpt(row)} is no prediction: {FORMS}, and name the data in --data")
        if id_ in predictions:
            raise InputError(f"{path}: the id {excerpt(id_)} is given twice: keep one")
        predictions[id_] = text
        if isinstance(row.get("question"), str):
            questions[id_] = row["question"]
    if not predictions:
        raise InputError(f"{path}: holds no prediction: {FORMS}")
    return predictions, questions


def _known(
    path: str, predictions: Mapping[str, str], questions: Mapping[str, str], asked: Mapping[str, str]
) -> dict[str, str]:
    """The predictions for the questions `asked`, by the ids that these have. Predictions are matched by question where
    each has one and their ids are unknown or name other questions: `swep-ds answer` may have numbered the rows of
    another file. Raises InputError: two of these questions are the same."""
    known = predictions.keys() & asked.keys()
    plain = {id_: " ".join(question.split()) for id_, question in questions.items()}
    wanted = {id_: " ".join(question.split()) for id_, question in asked.items()}
    if len(plain) < len(predictions) or (known and all(plain[id_] == wanted[id_] for id_ in known)):
        return {id_: text for id_, text in predictions.items() if id_ in known}
    counts = Counter(plain.values()), Counter(wanted.values())
    by_question = {plain[id_]: text for id_, text in predictions.items() if plain[id_] in counts[1]}
    for question in by_question:
        if max(count[question] for count in counts) > 1:
            fix = "ask the questions of --data itself"
            raise InputError(f"{path}: {OTHER_IDS}, and {excerpt(question)} is asked twice: {fix}")
    if by_question:
        warn_once(f"{path}: {OTHER_IDS}: its answers are matched by question")
    return {id_: by_question[question] for id_, question in wanted.items() if question in by_question}


def score_files(
    files: Sequence[Path], data: str, texts: FolderTexts | None, scorer: str, language: str, columns: Columns
) -> None:
    """Prints EM and F1 of each file on the questions of the source `data`, and those of each less the first file's.

    Several files are scored on the questions that all of them answer. In a single one a question without a prediction
    scores 0. `texts` has the documents that the questions name. `scorer` and `language` as in the recipe's section
    `eval`, `columns` as in `Choices`. Raises InputError: as `read_prediction_file`; the data cannot be read or have no
    answers; a file has no prediction for any question; or no question is answered in all files.
    """
    rules = validate(EvalSection, {"scorer": scorer, "language": language}, "--scorer").scorer_of(data)
    read = {str(file): read_prediction_file(file) for file in files}
    choices = Choices(unanswerable="train", columns=columns)
    if texts:
        from swep_ds.texts.pairs import PairLocator  # imports transformers

        choices = replace(choices, locate=PairLocator(texts))
    examples = read_reported("--data", data, choices, [], training=False)
    if examples[0].withheld:
        raise InputError(f"--data {data}: its answers are withheld: give data with answers")
    asked = {example.id: example.question for example in examples}
    golds = {example.id: example.answers for example in examples}
    if advice := rules.advice(data, golds):
        warn_once(advice)
    answers: dict[str, dict[str, str]] = {}
    for file, (predictions, questions) in read.items():
        answers[file] = _known(file, predictions, questions, asked)
        if not answers[file]:
            ids = f"{excerpt(next(iter(predictions)))} is not, {excerpt(next(iter(golds)))} is"
            raise InputError(f"{file}: none of its ids is one of --data {data} ({ids}): give the data that it answers")
        if len(answers[file]) < len(predictions):
            unknown = f"{len(predictions) - len(answers[file])} of {len(predictions)} predictions have no question"
            warn_once(f"{file}: {unknown}: left out")
    missing = {file: len(golds) - len(of_file) for file, of_file in answers.items()}
    if len(files) > 1:
        in_all = set.intersection(*map(set, answers.values()))
        if not in_all:
            raise InputError(f"no question of --data {data} is answered in all of these files: give fewer of them")
        if any(missing.values()):
            lacking = ", ".join(f"{file} lacks {count}" for file, count in missing.items() if count)
            print(f"compared over the {len(in_all)} of {len(golds)} questions that all files answer: {lacking}")
        examples = [example for example in examples if example.id in in_all]
        golds = {example.id: example.answers for example in examples}
    elif count := missing[str(files[0])]:
        warn_once(f"{files[0]}: no prediction for {count} of {len(golds)} questions: they score 0")
    points: dict[str, np.ndarray] = {}  # EM and F1 of each question [2, Q], in percent
    for file, of_file in answers.items():
        points[file] = 100 * np.array([*rules.by_question(of_file, golds).values()]).T
        print_scores({data: rules.score(of_file, golds)}, f"{file}, scoring rules {rules.name(golds)}")
    _print_intervals(points, clusters(examples))


def _print_intervals(points: dict[str, np.ndarray], cluster_Q: np.ndarray) -> None:
    if effective_clusters(cluster_Q) < MIN_TEXTS:
        print(f"no intervals: the questions are about fewer than {MIN_TEXTS} texts")
        return
    print(f"{LEVEL} % intervals over questions, those about one text together:")
    first, *others = points
    for name, values_2Q in points.items():
        print(f"    {name}: {_interval(values_2Q, cluster_Q, 0)[0]}")
    for other in others:
        text, clause = _interval(points[other] - points[first], cluster_Q, -100)
        print(f"    {other} less {first}: {text}")
        if clause:
            print(f"        {clause}")


def _interval(values_2Q: np.ndarray, cluster_Q: np.ndarray, lowest: int) -> tuple[str, str]:
    """The mean EM and F1 with their intervals and, of differences, p values, as a text; and what differences do not
    show. `lowest`: the least that they can be."""
    known = estimate([(values_2Q[:, None], cluster_Q)])
    low_2, high_2 = known.interval()
    shown = np.clip((low_2, high_2), lowest, 100)
    em, f1 = map("{:.2f} ({:.2f} to {:.2f})".format, known.mean, *shown)
    text = f"EM {em}, F1 {f1}"
    if lowest == 0:
        return text, ""
    text += ", p = {:.2g} and {:.2g}".format(*known.p())
    if not values_2Q[1].any():
        return text, f"each of these {len(cluster_Q)} questions has the same F1 in both files"
    return text, not_shown(len(cluster_Q), low_2[1], high_2[1], known.df[1])
