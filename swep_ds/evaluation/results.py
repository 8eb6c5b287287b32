"""`results.json` (its schema, written and read), other files of a run, the printed table."""

import json
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from shutil import which
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.table import Table
from rich.text import Text

from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, write_atomically
from swep_ds.common.version import __version__
from swep_ds.evaluation.calibration import Calibrator
from swep_ds.evaluation.scores import METRICS

PACKAGES = ("torch", "deepspeed", "transformers", "datasets")
RESULTS = "results.json"
REMARKS = "remarks.jsonl"
OUT_OF_DOMAIN = "out-of-domain mean"
WITHHELD = "answers withheld"  # in place of scores and of scoring rules
# those of `Scorer.score`; of a test set also those of `calibration`, `calibrated_scores` and `Scorer.best_thresholds`
Score = dict[str, float | int]
Scores = dict[str, Score]  # by data set


class Checked(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)  # fields of later versions are ignored


@dataclass(frozen=True)
class Evaluated:
    """What testing a model gave, by data set."""

    scores: Scores
    scorers: dict[str, str]  # by data set: scoring rules
    null_threshold: float | None = None  # set for a model that may decline questions
    calibrator: Calibrator | None = None
    validation: Score | None = None  # on the validation half of a run with `eval.select_on`


class Selection(Checked):
    """The checkpoint that was chosen, and its score."""

    data_set: str
    update: int
    exact_match: float
    f1: float
    total: int | None = None
    checkpoints: Scores = {}  # by update


class Results(Checked):
    """`results.json` of a run."""

    method: str
    model: str
    seed: int
    world_size: int
    # examples, features, updates, seconds, cpu_seconds (of all ranks; with GPUs device_seconds), samples_per_second,
    # tokens_per_second, peak_memory_bytes (of the rank that took most)
    train: dict[str, Any] = {}
    # each source of a mix: source, share (of the windows of every update), questions and windows
    mix: list[dict[str, Any]] | None = None
    pretraining: dict[str, Any] | None = None  # the first stage's "data", and its section `train`
    selection: Selection | None = None
    eval: Scores  # the source domain first
    scorers: dict[str, str] = {}  # by data set: scoring rules
    null_threshold: float | None = None  # a model that may decline does so above it
    calibrator: Calibrator | None = None
    versions: dict[str, str]
    # results of earlier versions lack these
    threads: int | None = None  # PyTorch's in each rank: the order of sums on a CPU depends on their number
    inputs: dict[str, str] = {}  # by field: checksum of the local files that it names
    questions: dict[str, str] = {}  # by data set: `questions_checksum`, since its file may grow
    provenance: dict[str, str] = {}  # `provenance()`

    @property
    def scores(self) -> Scores:
        """The scores of data sets whose answers are not withheld."""
        return {name: score for name, score in self.eval.items() if is_scored(score)}

    @property
    def withheld(self) -> list[str]:
        """A sentence about each other data set."""
        others = self.eval.keys() - self.scores.keys()
        return [f"{name}: no scores, since its answers are withheld." for name in sorted(others)]


def is_scored(score: Score) -> bool:
    """Whether the data set has answers: one whose answers are withheld has only its number of questions."""
    return METRICS[0] in score


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """Writes `results.json`, the last file of a run: where it exists it is whole, and the run is done."""
    write_atomically(folder / RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def read_results(file: Path) -> Results:
    """Reads a run's `results.json`. Raises InputError: not JSON, or a field is missing or of another kind."""
    try:
        return Results.model_validate(read_json(file))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}" for fault in error.errors()[:3]]
        raise InputError(f"{file}: not of this version ({'; '.join(faults)}): run it again") from None


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    ours = {"python": platform.python_version(), "swep-ds": __version__}
    return ours | {name: version(name) for name in PACKAGES}


def provenance() -> dict[str, str]:
    """When ("date", UTC), where ("machine") and with which code ("commit", if git knows this package) the results are
    made."""
    from swep_ds.ranks import accelerator  # imports PyTorch, which readers of results need not

    made = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": accelerator.machine()}
    # a package in an environment inside a checkout of something else is not of that commit
    if which("git") and _git("ls-files", "__init__.py"):
        made["commit"] = _git("describe", "--always", "--dirty", "--exclude=*", "--abbrev=12")
    return made


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8").stdout.strip()


def out_of_domain_mean(scores: Scores) -> dict[str, float] | None:
    """Unweighted means over all data sets but the first, the source domain, of every score that all of them have. Those
    whose answers are withheld do not count. None if there are fewer than two others: the mean of one repeats it."""
    shifted = [score for score in list(scores.values())[1:] if is_scored(score)]
    if len(shifted) < 2:
        return None
    means = {}
    for name in shifted[0]:
        if all(name in score for score in shifted) and not name.endswith(("total", "threshold", "_low", "_high")):
            means[name] = sum(score[name] for score in shifted) / len(shifted)
    return means


def write_remarks(folder: Path, remarks: list[dict[str, str]], say: Callable[[str], None]) -> None:
    """Writes `REMARKS`: a JSON line with "field", "id" and "reason" for each question that was left out or moved when
    the data were read, or that is doubtful. Without any, an earlier file is deleted."""
    file = folder / REMARKS
    if remarks:
        write_atomically(file, (json.dumps(remark, ensure_ascii=False) + "\n" for remark in remarks))
        say(f"questions left out, moved or doubtful: {len(remarks)}, in {file}")
    else:
        file.unlink(missing_ok=True)


def read_predictions(folder: Path, name: str) -> dict[str, str]:
    """A run's answers by question id. Raises InputError: the file is missing or not JSON."""
    return read_json(folder / "predictions" / f"{name}.json")


def print_scores(scores: Scores, title: str, mean: bool = True) -> None:
    """A table in percent, the source domain first and the out-of-domain `mean`, if there is one, last."""
    table = Table(title=Text(title), title_justify="left")  # Text: brackets in a path are not markup
    table.add_column("data set")
    for column in ("EM", "F1", "questions"):
        table.add_column(column, justify="right")
    for name, score in scores.items():
        if not is_scored(score):
            table.add_row(name, WITHHELD, "", str(score["total"]))
            continue
        table.add_row(name, *_cells(score))
        for part, words in (("has_answer_", "  with an answer"), ("no_answer_", "  without an answer")):
            if f"{part}total" in score:
                table.add_row(words, *_cells(score, part))
    if mean and (shifted := out_of_domain_mean(scores)):
        table.add_section()
        table.add_row(OUT_OF_DOMAIN, *_cells(shifted))
    Console().print(table)


def _cells(score: Score, part: str = "") -> list[str]:
    return [f"{score[part + metric]:.2f}" for metric in METRICS] + [str(score.get(f"{part}total", ""))]
