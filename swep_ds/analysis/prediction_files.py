"""Files of predictions that any program wrote: their scores and differences, with intervals over questions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swep_ds.analysis.crossed import LEVEL, MIN_TEXTS, estimate
from swep_ds.common.errors import InputError, at, excerpt
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

FORMS = 'give {"ID": "ANSWER"}, {"ID": [{"text": "ANSWER"}]} or rows {"id": "ID", "prediction_text": "ANSWER"}'


def read_prediction_file(path: Path) -> dict[str, str]:
    """Answers by question id. Raises InputError: a form that `swep-ds score --help` does not name, or a repeated id."""
    content = read_text(path)
    with at(str(path)):
        rows = [row for _, row in json_items(content, ())]
    if len(rows) == 1 and isinstance(rows[0], dict) and "id" not in rows[0]:
        rows = [{"id": id_, "answer": answer} for id_, answer in read_json(path).items()]  # refuses a repeated id
    predictions: dict[str, str] = {}
    for row in rows:
        match row:
            case {"id": id_, "prediction_text": str(text)} | {"id": id_, "answer": str(text)}:
                id_ = name_of(id_)
            case {"id": str(id_), "answer": [{"text": str(text)}, *_]}:
                pass
            case _:
                raise InputError(f"{path}: {excerpt(row)} is no prediction: {FORMS}, and name the data in --data")
        if id_ in predictions:
            raise InputError(f"{path}: the id {excerpt(id_)} is given twice: keep one")
        predictions[id_] = text
    return predictions


def score_files(files: Sequence[Path], data: str, scorer: str, language: str, columns: Columns) -> None:
    """Prints EM and F1 of each file on the questions of the source `data`, and those of each less the first file's.

    `scorer` and `language` as in the recipe's section `eval`, `columns` as in `Choices`. A question without a
    prediction scores 0. Raises InputError: as `read_prediction_file`; the data cannot be read or have no answers; or a
    file has no prediction for any question.
    """
    rules = validate(EvalSection, {"scorer": scorer, "language": language}, "--scorer").scorer_of(data)
    predictions = {str(file): read_prediction_file(file) for file in files}
    examples = read_reported("--data", data, Choices(unanswerable="train", columns=columns), [], training=False)
    if examples[0].withheld:
        raise InputError(f"--data {data}: its answers are withheld: give data with answers")
    golds = {example.id: example.answers for example in examples}
    if advice := rules.advice(data, golds):
        warn_once(advice)
    points: dict[str, np.ndarray] = {}  # EM and F1 of each question [2, Q], in percent
    for file, answers in predictions.items():
        known = len(answers.keys() & golds.keys())
        if not known:
            ids = f"{excerpt(next(iter(answers), None))} is not, {excerpt(next(iter(golds)))} is"
            raise InputError(f"{file}: none of its ids is one of --data {data} ({ids}): give the data that it answers")
        if known < len(golds):
            warn_once(f"{file}: no prediction for {len(golds) - known} of {len(golds)} questions: they score 0")
        if known < len(answers):
            warn_once(f"{file}: {len(answers) - known} of {len(answers)} predictions have no question: left out")
        points[file] = 100 * np.array([*rules.by_question(answers, golds).values()]).T
        print_scores({data: rules.score(answers, golds)}, f"{file}, scoring rules {rules.name(golds)}")
    _print_intervals(points, clusters(examples))


def _print_intervals(points: dict[str, np.ndarray], cluster_Q: np.ndarray) -> None:
    if effective_clusters(cluster_Q) < MIN_TEXTS:
        print(f"no intervals: the questions are about fewer than {MIN_TEXTS} texts")
        return
    print(f"{LEVEL} % intervals over questions, those about one text together:")
    first, *others = points
    differences = {f"{other} less {first}": points[other] - points[first] for other in others}
    for name, values_2Q in (points | differences).items():
        known = estimate([(values_2Q[:, None], cluster_Q)])
        lowest, p = 0, ""
        if name in differences:
            lowest, p = -100, ", p = {:.2g} and {:.2g}".format(*known.p())
        em, f1 = map("{:.2f} ({:.2f} to {:.2f})".format, known.mean, *np.clip(known.interval(), lowest, 100))
        print(f"    {name}: EM {em}, F1 {f1}{p}")
