"""What finished runs will score on own text: without labels, and corrected by a few."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from swep_ds.analysis.answered import Answered, scored
from swep_ds.analysis.forecast import Forecast, read_home, read_runs, scores
from swep_ds.analysis.forecast import forecast as forecast_from
from swep_ds.analysis.labelled import MIN_SUGGESTED, estimate, read_labelled, write_suggested
from swep_ds.analysis.labelled import suggest as choose
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_output, public_name, read_json, user_path, write_atomically
from swep_ds.data.choices import Choices
from swep_ds.data.chunks import Chunks, digest
from swep_ds.data.columns import Columns
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.calibration import LEVEL
from swep_ds.evaluation.predictions import Marking
from swep_ds.evaluation.results import METRICS
from swep_ds.evaluation.scores import Scorer
from swep_ds.models.folders import model_checksum
from swep_ds.pipeline.folder import RunFolder

if TYPE_CHECKING:
    from swep_ds.texts.index import TextIndex  # takes seconds


def forecast(
    runs: Sequence[str | Path],
    text: str | None = None,
    *,
    labelled: str | Path | None = None,
    suggest: int | None = None,
    output: str | Path | None = None,
) -> dict[str, Forecast]:
    """What finished runs that differ in their seed will score on a text, by its name.

        [news] = sd.forecast(["runs/seed0", "runs/seed1"], "news.csv").values()

    They go to forecast/NAME.json in the first run's folder, for its report. So do the answers, which are computed once.

    Args:
        text: a source of questions with contexts. Its answers only say what the score is (`Forecast.truth`). None = the
            other sets that the runs were tested on, by the answers kept.
        labelled: a file with some questions of the text, answered (`analysis.labelled.read_labelled`).
        suggest: so many questions of the text to label.
        output: a new CSV file for these, and the labels that are known.

    Raises InputError: runs, text, labels or a number that cannot be used; or the output exists.
    """
    if (suggest is None) != (output is None):
        raise InputError("--suggest: give it with --output, a new file for the questions to label")
    if (labelled or suggest) and text is None:
        raise InputError("--labelled and --suggest are about questions of a text: give --text")
    if output is not None:
        output = user_path(output)
        check_output("--output", output)
        if output.exists():
            raise InputError(f"--output {output}: exists already, and may hold labels: name another file")
    paths = [user_path(run) for run in runs]
    home = read_home(paths)
    folder = RunFolder(paths[0]).forecasts
    folder.mkdir(exist_ok=True)  # before the work
    made = {}
    if text is None:
        for name in RunFolder(paths[0]).read_recipe().test_sets[1:]:
            made[name] = forecast_from(home, name, read_runs(paths, name))
    else:
        columns = RunFolder(paths[0]).read_recipe().data.choices.columns
        examples = _read(text, suggest, columns)
        labels = read_labelled(user_path(labelled), examples, columns) if labelled else None
        if labels and not labels.strata.any():
            Console().print(f"{labelled}: without the column stratum its questions count as drawn at random")
        answers = [answers_of(path, examples, folder / "answers") for path in paths]
        name = public_name(text)
        made[name] = forecast_from(home, name, [answered(of_run, examples, home.scorer) for of_run in answers])
        signal_N2 = made[name].by_question
        if labels:
            true_n2 = 100 * scores([answered(of_run, labels.examples, home.scorer) for of_run in answers]).mean(0)
            with_labels = {}
            for metric, true_n, signal_N in zip(METRICS, true_n2.T, signal_N2.T, strict=True):
                with_labels[metric] = estimate(true_n, signal_N, labels.rows, labels.strata)
            made[name] = replace(made[name], labelled=len(labels.rows), with_labels=with_labels)
        if suggest:
            chosen = choose(100 * signal_N2[:, METRICS.index("f1")], suggest)
            if labels and (lost := set(labels.rows.tolist()) - set(chosen[0].tolist())):
                raise InputError(
                    f"--suggest {suggest}: leaves out {len(lost)} labelled questions: name the runs that they were "
                    "suggested for, or a larger number"
                )
            write_suggested(output, examples, *chosen, labels.examples if labels else [])
    for name, result in made.items():
        values = {"name": name, "questions": len(result.by_question), "runs": list(map(str, paths)), "level": LEVEL}
        values |= asdict(result)
        del values["by_question"]
        file_name = re.sub(r"[^\w.-]", "-", name)
        write_atomically(folder / f"{file_name}.json", json.dumps(values, indent=2, default=float) + "\n")
    return made


def _read(text: str, suggest: int | None, columns: Columns) -> list[Example]:
    """The questions of a text, whose columns have the names of the runs' data. They have answers only if each has one
    or says that there is none."""
    choices = Choices(unanswerable="train", columns=columns)
    examples = read_examples(text, training=False, choices=choices, labels=None)
    if no_context := [example.id for example in examples if not example.context]:
        raise InputError(f"--text {text}: question {no_context[0]!r} has no context: give the text that it is about")
    if suggest and not MIN_SUGGESTED <= suggest <= len(examples):
        raise InputError(f"--suggest {suggest}: give {MIN_SUGGESTED} to {len(examples):,}, the number of questions")
    given = {bool(example.answers) for example in examples}
    if len(given) > 1:
        try:
            read_examples(text, training=False, choices=Choices(columns=columns), labels=None)
        except InputError:  # some have none, and nothing says that there is none
            examples = [replace(example, answers=()) for example in examples]
            Console().print(f"{text}: not all questions have an answer: the forecast is not compared with those given")
    return examples


def answers_of(
    run: Path, examples: list[Example], folder: Path, index: "TextIndex | None" = None
) -> dict[str, tuple[str, float]]:
    """A run's answers and their probabilities by question id, from `folder` if they are there. Of questions about all
    texts of an `index` these are the confidences, which sum those of all answers that say the same."""
    model = str(RunFolder(run).model)
    setup = {"model": model_checksum(model, "model"), "questions": digest(examples)}
    if index:
        setup["texts"] = index.checksum
    file = folder / f"{hashlib.sha256(json.dumps(setup).encode()).hexdigest()[:16]}.json"
    if not file.exists():
        from swep_ds.api.answerer import QUESTIONS_AT_A_TIME, QuestionAnswerer  # takes seconds

        chunks = Chunks(file, math.ceil(len(examples) / QUESTIONS_AT_A_TIME))
        answerer = QuestionAnswerer(model)
        if index:
            asks = answerer.over(index)
        else:
            answerer.check(examples, 1)

        def ask(asked: list[Example]) -> Iterator[tuple[str, tuple[str, float]]]:
            if index:
                for example, [reply] in zip(asked, asks.answer(example.question for example in asked), strict=True):
                    yield example.id, (reply.text, reply.confidence)
            else:
                for example, [reply] in zip(asked, answerer.answer_together(asked), strict=True):
                    yield example.id, (reply.text, reply.probability)

        Console().print(f"{run.name} answers {len(examples)} questions")
        chunks.fill(setup, examples, QUESTIONS_AT_A_TIME, ask)
        chunks.finish([json.dumps(dict(chunks.lines()))])
    return read_json(file)


def answered(answers: Mapping[str, tuple[str, float]], examples: Sequence[Example], scorer: Scorer) -> list[Answered]:
    """The examples with a run's answers and their probabilities, by question id, and the scores of these."""
    texts = {example.id: answers[example.id][0] for example in examples}
    items = scored(texts, examples, Marking(list(examples), scorer).of(texts))
    return [replace(item, confidence=answers[id_][1]) for id_, item in items.items()]
