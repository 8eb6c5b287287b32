"""The paper's curve of changed words (Eq. 6): tokens whose perturbed embedding is nearest to another word, in training.

A run logs the share in each line of metrics.jsonl. SSMBA's texts are made once, before training, so its share is one
number: of the tokens that differ between the samples and their questions.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from swep_ds.analysis.figures import COLOURS, MARKS, save
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, read_lines
from swep_ds.pipeline.folder import METRICS_FILE, RunFolder

SHARES = ["words_changed", "words_changed_clean"]
MAX_MARKS = 40  # a line with more points has no marks


def curves(folders: Sequence[Path]) -> pd.DataFrame:
    """The shares, in [0, 1], that runs logged: run, method, seed, update and `SHARES` of each logged update. Raises
    InputError: a folder without a run, or a run that logged no such share."""
    tables = []
    for folder in folders:
        recipe = RunFolder(folder).read_recipe()
        table = pd.DataFrame(read_lines(folder / METRICS_FILE), columns=["run", "method", "seed", "update", *SHARES])
        table = table.assign(run=str(folder), method=recipe.method.name, seed=recipe.seed).dropna()
        if table.empty:
            raise InputError(
                f"{folder / METRICS_FILE}: holds no words_changed: {recipe.method.name} changes no embeddings, or the "
                "run has not begun to train: name a run of swep, prior_aug, adv_aug or the like"
            )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def share_of_samples(file: Path) -> float:
    """The share of tokens that differ between SSMBA's samples and their questions. The count of `swep-ds augment` has
    the samples that came back unchanged. Raises InputError: no such file, or one that it did not write."""
    content = read_json(file, f"--augmented {file}", unique_keys=False)
    if not isinstance(content, dict) or "ssmba" not in content:
        raise InputError(f"--augmented {file}: not written by `swep-ds augment`: name a file of its samples")
    return content["ssmba"]["changed"] / content["ssmba"]["tokens"]


def draw(table: pd.DataFrame, samples: float | None, folder: Path) -> None:
    """A line per run, a broken one for its clean embeddings, and a level for SSMBA's texts; in percent."""
    figure = Figure(layout="constrained", figsize=(7.2, 4.4))
    axes = figure.subplots()
    runs = table.groupby(["run", "method"], sort=False)
    for ((run, method), lines), colour, mark in zip(runs, cycle(COLOURS), cycle(MARKS), strict=False):
        label = method
        if table.loc[table["method"] == method, "run"].nunique() > 1:
            label = f"{method}, {run}"
        marker = mark if len(lines) <= MAX_MARKS else None
        changed, clean = (100 * lines[name] for name in SHARES)
        axes.plot(lines["update"], changed, marker=marker, markersize=4, lw=1.8, label=label, color=colour)
        label += ", before perturbation"
        axes.plot(lines["update"], clean, ls=(0, (4, 3)), lw=1.2, label=label, color=colour)
    if samples is not None:
        axes.axhline(100 * samples, color="#555555", ls=":", lw=1.8, label="SSMBA's texts")
    axes.set(xlabel="update", ylabel="tokens nearest to another word (%)", ylim=(0, None))
    axes.set_title("Words changed by the perturbation, in training")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, folder, "words", dpi=150)
