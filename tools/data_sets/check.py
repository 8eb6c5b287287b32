"""What this package reads of a published set with the settings of its entry, against a plain reading of the files."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from swep_ds.common.errors import InputError
from swep_ds.data.choices import Choices
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.scores import Scorer
from tools.data_sets.plain import Row, count, read_rows

SETS = Path(__file__).with_name("sets.yaml")
Entry = dict[str, Any]  # a set of sets.yaml


@dataclass
class Seen:
    """What was seen in the files of a set."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)  # what the two readings do not agree on, or what is refused


def load_sets(path: Path = SETS) -> list[Entry]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def is_training_file(file: Path) -> bool:
    return "train" in file.name.lower()


def scorer_of(entry: Entry) -> Scorer:
    """The rules that the entry names, or SQuAD's."""
    settings = entry.get("official") or entry.get("fitting") or {"scorer": "squad"}
    return Scorer(" ".join(settings.values()))


def check(entry: Entry, folder: Path) -> Seen:
    """Reads all files of a set, which are below `folder` as `git clone` puts them: OWNER/NAME/PATH."""
    seen = Seen()
    for path in entry["files"]:
        file = folder / entry["repository"] / path
        if not file.is_file():
            seen.problems.append(f"{path}: not there: git clone https://github.com/{entry['repository']} {file.parent}")
        elif "not_read" in entry:
            _check_refusal(file, seen)
        else:
            _check_file(entry, file, seen)
    return seen


def _check_refusal(file: Path, seen: Seen) -> None:
    try:
        examples = read_examples(str(file), training=False, choices=Choices(unanswerable="train"))
    except InputError:
        examples = []
    if not examples or examples[0].withheld:  # its answers are in no field that is known
        seen.counts["files refused"] += 1
    else:
        seen.problems.append(f"{file.name}: is read, and the entry says that it is not")


def _check_file(entry: Entry, file: Path, seen: Seen) -> None:
    settings = dict(entry.get("data", {}))
    columns = settings.pop("columns", {})
    choices = Choices(**settings, columns=tuple(columns.items()))
    rows = list(read_rows(file, columns))
    counts = count(rows)
    if is_training_file(file):
        counts["questions of training files"] = len(rows)
    try:
        tested, _ = _read(file, choices, rows, counts, seen, training=False)
        if counts["withheld"]:
            if not all(example.withheld for example in tested):
                seen.problems.append(f"{file.name}: its answers are withheld, and it would get a score")
        else:
            _count_scores(scorer_of(entry), tested, counts)
            trained, left_out = _read(file, choices, rows, counts, seen, training=True)
            counts["trained"] = len(trained)
            counts["left out of training"] = left_out
            _check_spans(file, rows, trained, seen)
    except InputError as error:
        seen.problems.append(f"{file.name}: refused: {error}")
    seen.counts += counts


def _read(
    file: Path, choices: Choices, rows: list[Row], counts: Counter[str], seen: Seen, *, training: bool
) -> tuple[list[Example], int]:
    """The examples and how many questions were left out. Together they are the questions of the file."""
    remarks = []
    examples = read_examples(str(file), training=training, choices=choices, remark=remarks.append)
    left_out = sum(remark.left_out for remark in remarks)
    what = "for training" if training else "for testing"
    if len(examples) + left_out != len(rows):
        read = f"{len(examples)} read and {left_out} left out"
        seen.problems.append(f"{file.name}: {len(rows)} questions, but {what} {read}")
    with_answers = sum(bool(example.answers) for example in examples)
    if not training and with_answers != counts["with answers"]:
        seen.problems.append(f"{file.name}: {counts['with answers']} questions with answers, but {with_answers} {what}")
    counts[f"files {what}"] += 1
    return examples, left_out


def _count_scores(scorer: Scorer, tested: list[Example], counts: Counter[str]) -> None:
    """How the first accepted answers score as predictions. Where a scorer's rules leave nothing of an answer, its F1 is
    0, and another accepted answer may make its exact match 0."""
    golds = {example.id: example.answers for example in tested}
    predictions = {id_: next(iter(answers), "") for id_, answers in golds.items()}
    scores = scorer.by_question(predictions, golds).values()
    counts["golds with EM 0"] = sum(exact == 0 for exact, _ in scores)
    counts["golds with F1 0"] = sum(f1 == 0 for _, f1 in scores)
    counts["files with EM 100"] = int(scorer.score(predictions, golds)["exact_match"] == 100.0)


def _check_spans(file: Path, rows: list[Row], trained: list[Example], seen: Seen) -> None:
    """A first answer that is at its offset is trained there, without the blanks at its ends."""
    spans = Counter((example.question, example.context, example.span) for example in trained)
    expected: Counter[tuple[str, str, tuple[int, int]]] = Counter()
    for row in rows:
        if not row.is_blank and row.answers and not row.impossible and row.begin is not None:
            text = row.answers[0][0]
            begin = row.begin + len(text) - len(text.lstrip())
            expected[row.question, row.context, (begin, begin + len(text.strip()))] += 1
    if elsewhere := (expected - spans).total():
        seen.problems.append(f"{file.name}: {elsewhere} answers at their offset are not trained there")
