"""t-SNE of the tokens of a few questions, before and after perturbation together, in two spaces."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from swep_ds.analysis.figures import COLOURS, save
from swep_ds.analysis.trained_run import AnswerWindow, TrainedRun
from swep_ds.common.errors import InputError

SPACES = {"word": "Word embeddings", "contextual": "Contextual embeddings (last hidden state)"}
WHEN = {"before": COLOURS[0], "after": COLOURS[1]}
MAX_TOKENS = 500
PERPLEXITY = 30.0
LABELLED = 12  # tokens with their text, at most


def coordinates(run: TrainedRun, windows: Iterable[AnswerWindow]) -> pd.DataFrame:
    """Two rows, "before" and "after", for each token and space: space, when, question, position, token, x, y.

    The tokens are those of question and context, without special ones; if there are more than `MAX_TOKENS`, a
    random part of them. The perplexity is 30, or a third of the points if that is less. Raises InputError:
    scikit-learn is not installed; as `TrainedRun.perturb`.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise InputError("scikit-learn is not installed: pip install scikit-learn") from None
    tokens = []
    vectors = {space: {when: [] for when in WHEN} for space in SPACES}
    for window in windows:
        batch = run.batch([window])
        before, [perturbed] = run.perturb(batch)
        texts = run.tokenizer.convert_ids_to_tokens(window.input_ids)
        tokens += [(window.example.id, position, texts[position]) for position in window.positions]
        for when, embeddings in (("before", before), ("after", perturbed.embeddings)):
            for space, values in (("word", embeddings), ("contextual", run.hidden(embeddings, batch))):
                vectors[space][when].append(values[0, window.positions].cpu().numpy())
    count = min(len(tokens), MAX_TOKENS)
    kept = np.sort(np.random.default_rng(0).choice(len(tokens), count, replace=False))
    about = pd.DataFrame(tokens, columns=["question", "position", "token"]).iloc[kept]
    tables = []
    for space, by_time in vectors.items():
        points = np.concatenate([np.concatenate(parts)[kept] for parts in by_time.values()])
        perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
        embedded = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
        for when, part in zip(WHEN, np.split(embedded, len(WHEN)), strict=True):
            tables.append(about.assign(space=space, when=when, x=part[:, 0], y=part[:, 1]))
    return pd.concat(tables, ignore_index=True)[["space", "when", *about, "x", "y"]]


def draw(table: pd.DataFrame, heading: str, folder: Path) -> None:
    """A square panel per space: a dot before joined to a triangle after. The tokens that move farthest carry texts."""
    figure = Figure(layout="constrained", figsize=(11, 5.4), dpi=150)
    panels = figure.subplots(1, len(SPACES))
    for axes, letter, (space, title) in zip(panels, "ab", SPACES.items(), strict=True):
        of_space = table[table["space"] == space]
        ends = [of_space.loc[of_space["when"] == when, ["x", "y"]].to_numpy() for when in WHEN]
        axes.add_collection(LineCollection(np.stack(ends, 1), colors="#999999", linewidths=0.6, alpha=0.6, zorder=1))
        for points, (when, colour), marker in zip(ends, WHEN.items(), "o^", strict=True):
            style = {"s": 16, "color": colour, "alpha": 0.75, "linewidths": 0, "zorder": 2}
            axes.scatter(*points.T, marker=marker, label=f"{when} perturbation", **style)
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2", box_aspect=1)
        axes.set_aspect("equal", adjustable="datalim")  # every panel is a square with one scale on both axes
        axes.set_title(f"{letter}  {title}", loc="left", fontsize=11)
        _label(axes, *ends, of_space.loc[of_space["when"] == "after", "token"].tolist())
    figure.suptitle(f"{heading} ({len(ends[0])} tokens)", fontsize=12, parse_math=False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(figure, folder, "tsne", dpi="figure")


def _label(axes: Axes, before: np.ndarray, after: np.ndarray, tokens: list[str]) -> None:
    apart = np.ptp(after, axis=0).max() / 4  # so that no text covers another
    labelled: list[int] = []
    for number in np.argsort(-np.linalg.norm(after - before, axis=1), kind="stable"):
        if len(labelled) < LABELLED and (abs(after[labelled] - after[number]).max(1) > apart).all():
            labelled.append(number)
            side, shift = ("right", -3) if after[number, 0] > after[:, 0].max() - apart else ("left", 3)
            style = {"fontsize": 8, "ha": side, "textcoords": "offset points", "parse_math": False}
            axes.annotate(tokens[number], after[number], (shift, 3), in_layout=False, **style)
