"""Files of predictions that any program wrote: their scores and differences, with intervals over questions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swep_ds.analysis.crossed import LEVEL, MIN_TEXTS, estimate
from swep_ds.common.errors import InputError, excerpt
from swep_ds.common.files import read_json, read_text
from swep_ds.common.settings import validate
from swep_ds.data.choices import Choices
from swep_ds.data.columns import Columns, name_of
from swep_ds.data.formats import json_items
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.results import print_scores
from swep_ds.pipeline.examples import read_reported
from swep_ds.pipeline.recipe import EvalSection, warn_once

FORMS = 'give {"ID": "ANSWER"}, {"ID": [{"text": "ANSWER"}]} or rows {"id": "ID", "prediction_text": "ANSWER"}'


def read_prediction_file(path: Path) -> dict[str, str]:
    """Answers by question id. Raises InputError: a form that `swep-ds score --help` does not name, or a repeated id."""
    text = read_text(path)
    predictions: dict[str, str] = {}
    try:
        items = [item for _, item in json_items(text, ())]
        if len(items) == 1 and isinstance(items[0], dict) and "id" not in items[0]:
            items = read_json(path).items()  # refuses a repeated id
        for item in items:
            match item:
                case {"id": id_, "prediction_text": str(answer)} | {"id": id_, "answer": str(answer)}:
                    id_ = name_of(id_)
                case (id_, str(answer)) | (id_, [{"text": str(answer)}, *_]):
                    pass
                case _:
                    raise InputError(f"{excerpt(item)} is no prediction")
            if id_ in predictions:
                raise InputError(f"the id {excerpt(id_)} is given twice")
            predictions[id_] = answer
    except InputError as error:
        raise InputError(f"{path}: {error}: {FORMS}, and name the data in --data") from None
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
    cluster_Q = clusters(examples)
    if effective_clusters(cluster_Q) < MIN_TEXTS:
        print(f"no intervals: the questions are about fewer than {MIN_TEXTS} texts")
        return
    print(f"{LEVEL} % intervals over questions, those about one text together:")
    first, *others = points
    differences = {f"{other} less {first}": points[other] - points[first] for other in others}
    for name, values_2Q in (points | differences).items():
        known_2 = estimate([(values_2Q[:, None], cluster_Q)])
        low_2, high_2 = np.clip(known_2.interval(), -100 if name in differences else 0, 100)
        parts = []
        for metric, mean, low, high, p in zip(("EM", "F1"), known_2.mean, low_2, high_2, known_2.p(), strict=True):
            said = f", p = {p:.2g}" if name in differences else ""
            parts.append(f"{metric} {mean:.2f} ({low:.2f} to {high:.2f}{said})")
        print(f"    {name}: {', '.join(parts)}")
