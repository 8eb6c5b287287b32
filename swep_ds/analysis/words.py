"""The paper's curve of changed words: tokens whose perturbed embedding is nearest to another word, over training.

A run logs the share at each line of metrics.jsonl (`Objective.forward`). SSMBA's texts are made once, before training:
its share is one number for the whole of it, of the tokens that differ between the samples and their questions.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from swep_ds.analysis import plotting
from swep_ds.analysis.charts import is_number
from swep_ds.analysis.plotting import COLOURS, MARKS
from swep_ds.errors import InputError
from swep_ds.files import read_json, read_lines
from swep_ds.recipe import Recipe

SHARES = ["words_changed", "words_changed_clean"]
COLUMNS = ["run", "method", "seed", "update", *SHARES]


def curves(folders: Sequence[Path]) -> pd.DataFrame:
    """The shares, in [0, 1], that runs logged: a row per run and logged update, with the columns `COLUMNS`.

    Raises:
        InputError: no run there, or one that logged no such share.
    """
    rows = []
    for folder in folders:
        recipe, file = Recipe.load(str(folder / "recipe.yaml")), folder / "metrics.jsonl"
        if not file.is_file():
            raise InputError(f"{file}: no such file: name the folder of a run that has begun to train")
        measured = [line for line in read_lines(file) if all(is_number(line.get(name)) for name in SHARES)]
        if not measured:
            raise InputError(
                f"{file}: holds no words_changed: {recipe.method.name} changes no embeddings, or an earlier version "
                "trained it: name a run of swep, prior_aug, adv_aug or the like"
            )
        about = {"run": str(folder), "method": recipe.method.name, "seed": recipe.seed}
        rows += [about | {name: line[name] for name in COLUMNS[3:]} for line in measured]
    return pd.DataFrame(rows, columns=COLUMNS)


def share_of_samples(file: Path) -> float:
    """Share of the tokens that differ between SSMBA's samples and what they were made from, as `augment.py` counted it.

    Samples that came back as their original, which the file leaves out, are counted, too.

    Raises:
        InputError: no such file, or one that `scripts/augment.py` did not write.
    """
    content = read_json(file, f"--augmented {file}", unique_keys=False)
    counts = content.get("ssmba") if isinstance(content, dict) else None
    changed, tokens = (counts.get(key) if isinstance(counts, dict) else None for key in ("changed", "tokens"))
    if not (type(changed) is int and type(tokens) is int and 0 <= changed <= tokens and tokens > 0):
        raise InputError(f"--augmented {file}: not written by scripts/augment.py: name a file of its samples")
    return changed / tokens


def draw(table: pd.DataFrame, samples: float | None, files: Sequence[Path]) -> None:
    """A line per run, broken where it is of the clean embeddings, and a level for SSMBA's texts; in percent."""
    figure = plotting.figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    names = _names(table)
    for number, (run, own) in enumerate(table.groupby("run", sort=False)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        few = marker if len(own) <= 40 else None
        axes.plot(
            own["update"], 100 * own["words_changed"], color=colour, marker=few, markersize=4, lw=1.8, label=names[run]
        )
        clean = f"{names[run]}, before perturbation"
        axes.plot(own["update"], 100 * own["words_changed_clean"], color=colour, ls=(0, (4, 3)), lw=1.2, label=clean)
    if samples is not None:
        axes.axhline(100 * samples, color="#555555", ls=":", lw=1.8, label="SSMBA's texts")
    axes.set(
        xlabel="update",
        ylabel="tokens nearest to another word (%)",
        title="Words changed by the perturbation, in training",
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    for file in files:
        figure.savefig(file, dpi=150)


def _names(table: pd.DataFrame) -> dict[str, str]:
    """A label for each run: the method where that tells them apart, else with the seed, else the folder."""
    runs = table.drop_duplicates("run").set_index("run")
    for labels in (runs["method"], runs["method"] + ", seed " + runs["seed"].astype(str)):
        if labels.is_unique:
            return labels.to_dict()
    return {run: run for run in runs.index}
