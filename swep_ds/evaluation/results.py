"""`results.json`, `predictions/<dataset>.json` and the printed table."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from rich.table import Table
from rich.text import Text

import swep_ds
from swep_ds.console import Console
from swep_ds.files import write_atomically

PACKAGES = ("torch", "deepspeed", "transformers", "datasets")
Score = dict[str, float | int]  # exact_match and f1 in percent, total
Scores = dict[str, Score]  # by data set
Percent = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Checked(BaseModel):
    """What a run wrote as JSON, typed when it is read; fields that a later version added are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class SetScore(Checked):
    """A `Score` as it is read."""

    exact_match: Percent
    f1: Percent
    total: Count


def versions() -> dict[str, str]:
    """Of Python and the packages that decide numbers."""
    ours = {"python": platform.python_version(), "swep-ds": swep_ds.__version__}
    return ours | {name: version(name) for name in PACKAGES}


def out_of_domain_mean(scores: Scores) -> dict[str, float] | None:
    """Unweighted mean over all data sets but the first, the source domain; None where there is no other."""
    shifted = list(scores.values())[1:]
    if not shifted:
        return None
    return {key: sum(s[key] for s in shifted) / len(shifted) for key in ("exact_match", "f1")}


def write_predictions(folder: Path, name: str, predictions: dict[str, str]) -> None:
    """`predictions/<name>.json`: question id -> answer, as the official scorers read it."""
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    file = folder / "predictions" / f"{name}.json"
    write_atomically(file, json.dumps(predictions, ensure_ascii=False, indent=0))


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """`results.json`, the last thing that a run writes: where it is there, it is whole, and the run is done."""
    write_atomically(folder / "results.json", json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def print_scores(scores: Scores, title: str) -> None:
    """A table in percent, the source domain first and the out-of-domain mean last."""
    table = Table(title=Text(title), title_justify="left")  # Text: brackets in a path are no markup
    table.add_column("data set")
    for column in ("EM", "F1", "questions"):
        table.add_column(column, justify="right")
    for name, s in scores.items():
        table.add_row(name, f"{s['exact_match']:.2f}", f"{s['f1']:.2f}", str(s["total"]))
    mean = out_of_domain_mean(scores)
    if mean:
        table.add_section()
        table.add_row("out-of-domain mean", f"{mean['exact_match']:.2f}", f"{mean['f1']:.2f}", "")
    Console().print(table)
