"""What finished runs will score on own text: without labels, and corrected by a few."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from swep_ds.analysis import labelled as labels
from swep_ds.analysis.forecast import Answers, Forecast, Home, read_home, score
from swep_ds.analysis.forecast import forecast as forecast_from
from swep_ds.api.answerer import QUESTIONS_AT_A_TIME, QuestionAnswerer
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_output, check_output_folder, read_json, user_path, write_atomically
from swep_ds.data.chunks import Chunks, digest
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.calibration import LEVEL
from swep_ds.evaluation.results import METRICS
from swep_ds.models.hub import model_checksum
from swep_ds.pipeline.folder import RunFolder


def forecast(
    runs: Sequence[str | Path],
    texts: Mapping[str, str],
    *,
    labelled: str | Path | None = None,
    suggest: int | None = None,
    output: str | Path | None = None,
    folder: str | Path | None = None,
) -> dict[str, Forecast]:
    """What runs that differ in their seed will score on texts, by name.

        print(sd.forecast(["runs/seed0", "runs/seed1"], {"news": "asked.jsonl"})["news"].f1)

    Args:
        runs: folders of finished runs; they answer all questions.
        texts: by name, sources of questions with contexts, as `read_examples` takes them. If all questions of one have
            answers, these only say what the score is (`Forecast.truth`).
        labelled: a file with some questions of the only text, answered (`analysis.labelled.read_labelled`).
        suggest: so many questions of the only text to label, which are written as CSV with the labels that are known.
        output: a new file for these.
        folder: for forecast.json and the answers, which are computed once. None = forecast/ in the first run's folder.

    Raises InputError: no runs, one that is not finished or whose model cannot be loaded, or runs of different data; a
    text that cannot be read, or has a question without context; labels that are not of the text; a file of `suggest`
    that exists or cannot be written, or a number that is too small or too large.
    """
    if (suggest is None) != (output is None):
        raise InputError("--suggest: give it with --output, a new file for the questions to label")
    if (labelled or suggest) and len(texts) > 1:
        raise InputError("--labelled and --suggest are about one text: give one --text")
    if output is not None:
        output = user_path(output)
        check_output("--output", output)
        if output.exists():
            raise InputError(f"--output {output}: exists already, and may hold labels: name another file")
    paths = [user_path(run) for run in runs]
    home = read_home(paths)
    folder = user_path(folder or paths[0] / "forecast")
    check_output_folder("--output_dir", folder)
    examples = {name: _read(name, source, home) for name, source in texts.items()}
    rows, answered, strata = np.empty(0, int), [], np.empty(0, int)
    if labelled:
        rows, answered, strata = labels.read_labelled(user_path(labelled), *examples.values())
    made = {}
    for name, asked in examples.items():
        answers = [_answers(path, name, asked, folder) for path in paths]
        one = forecast_from(home, name, asked, answers)
        if answered:
            chosen = [Answers([run.texts[row] for row in rows]) for run in answers]
            scores_n2 = 100 * np.mean([score(run, answered, home.scorer) for run in chosen], axis=0)
            columns = zip(METRICS, scores_n2.T, one.by_question.T, strict=True)
            corrected = {metric: labels.estimate(y, predicted, rows, strata) for metric, y, predicted in columns}
            one = replace(one, labelled=len(answered), with_labels=corrected)
        made[name] = one
    if suggest:
        chosen = labels.suggest(100 * one.by_question[:, METRICS.index("f1")], suggest)
        labels.write_suggested(output, asked, *chosen, {example.id: example.answers for example in answered})
    sets = {name: asdict(one) for name, one in made.items()}
    for values in sets.values():
        del values["by_question"]
    document = {"runs": list(map(str, paths)), "level": LEVEL, "data_sets": sets}
    write_atomically(folder / "forecast.json", json.dumps(document, indent=2, default=float) + "\n")
    return made


def _read(name: str, source: str, home: Home) -> list[Example]:
    """The questions of a text, with their answers if all have them."""
    examples = read_examples(source, training=False, labels=False)
    if without := [example.id for example in examples if not example.context]:
        raise InputError(f"--text {name}: question {without[0]!r} has no context: give the text that it is about")
    declines = any(not example.answers for example in home.examples)  # then a question may have no answer
    try:
        return read_examples(source, training=False, unanswerable=declines)
    except InputError:  # its answers are missing, or not of all: the forecast needs none
        return examples


def _answers(run: Path, name: str, examples: list[Example], folder: Path) -> Answers:
    """A run's answers, from `folder` if they are there."""
    model = str(RunFolder(run).model)
    setup = {"model": model_checksum(model, "model"), "questions": digest(examples)}
    file = folder / f"{hashlib.sha256(json.dumps(setup).encode()).hexdigest()[:16]}.json"
    if not file.exists():
        chunks = Chunks(file, math.ceil(len(examples) / QUESTIONS_AT_A_TIME))
        answerer = QuestionAnswerer(model)
        answerer.check(examples, 1)

        def ask(asked: list[Example]) -> Iterator[tuple[str, float]]:
            for [reply] in answerer.answer_together(asked):
                yield reply.text, reply.probability

        Console().print(f"{run.name} answers {len(examples)} questions of {name}")
        chunks.fill(setup, examples, QUESTIONS_AT_A_TIME, ask)
        chunks.finish([json.dumps(list(chunks.lines()))])
    texts, probabilities = zip(*read_json(file), strict=True)
    return Answers(texts, np.array(probabilities))
