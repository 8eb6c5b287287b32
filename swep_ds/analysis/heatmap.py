"""The paper's heat map: how far each word of question and context moves when its embedding is perturbed.

A word is a whitespace word of the text; its distance is the mean over its tokens of the l2 distance between e_t and
e~_t, for one draw of the noise (`SavedRun.perturb`), in the units of the word-embedding table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from swep_ds.analysis import plotting
from swep_ds.analysis.saved_run import SavedRun
from swep_ds.analysis.windows import AnswerWindow, answer_windows
from swep_ds.data.readers import Example

# of ColorBrewer, light to dark, as far as black text stays readable on it
COLOURS = ("ffffcc", "ffeda0", "fed976", "feb24c", "fd8d3c", "fc4e2a")
CHUNK = 8  # windows through the model at a time
STEPS = 24  # of the colour scale in HTML
LINE, CHARACTER = 100, 0.0797  # of the PNG: characters in a line, inches of one


@dataclass(frozen=True)
class Word:
    """A word of the question or of the context; `answer`: it is part of the answer."""

    text: str
    question: bool
    answer: bool
    distance: float


def word_distances(run: SavedRun, examples: Sequence[Example]) -> list[list[Word]]:
    """The words of each example, the question's first, as far as they are in the window that holds the answer.

    Raises:
        InputError: the run's method has no perturbation to look at, or an example no such window.
    """
    return distances_in(run, answer_windows(examples, run.tokenizer, run.windows))


def distances_in(run: SavedRun, windows: Sequence[AnswerWindow]) -> list[list[Word]]:
    """As `word_distances`, of windows that are there already."""
    found = []
    for at in range(0, len(windows), CHUNK):
        some = windows[at : at + CHUNK]
        before, made = run.perturb(run.batch(some))
        distance_NT = (made.embeddings - before).norm(dim=-1).tolist()
        for window, row in zip(some, distance_NT, strict=True):
            means = [float(np.mean([row[position] for position in word.positions])) for word in window.words]
            found.append(
                [Word(one.text, one.question, one.answer, mean) for one, mean in zip(window.words, means, strict=True)]
            )
    return found


def limits(texts: Sequence[Sequence[Word]]) -> tuple[float, float]:
    """Distances at the colour scale's ends: the 2nd and the 98th percentile, so that one word does not take it all."""
    distances = [word.distance for words in texts for word in words]
    low, high = np.percentile(distances, [2, 98])
    return float(low), float(high) if high > low else float(low) + 1.0


def fragment(words: Sequence[Word], scale: tuple[float, float] | None = None) -> str:
    """HTML of one example, to be put into any page: question, context and the colour scale. Needs no script.

    Args:
        scale: distances at the ends of the colour scale; None = those of these words (`limits`).
    """
    low, high = scale = scale or limits([words])
    parts = []
    for title, asked in (("Question", True), ("Context", False)):
        spans = " ".join(_span(word, scale) for word in words if word.question is asked)
        parts.append(f'<p style="line-height:1.9;margin:.4em 0"><b>{title}:</b> {spans}</p>')
    steps = ", ".join(_colour(step / (STEPS - 1)) for step in range(STEPS))
    bar = f"display:inline-block;width:12em;height:.9em;vertical-align:middle;background:linear-gradient(90deg,{steps})"
    parts.append(
        f'<p style="font-size:.85em;margin:.4em 0">l2 distance of a word\'s embedding before and after (mean over its '
        f'tokens): ≤ {low:.3g} <span style="{bar}"></span> ≥ {high:.3g}; the answer is underlined</p>'
    )
    return f'<div class="heatmap">{"".join(parts)}</div>'


def _span(word: Word, scale: tuple[float, float]) -> str:
    style = f"background:{_colour(_share(word.distance, scale))};color:#000;padding:.1em .2em;border-radius:.2em"
    style += ";text-decoration:underline;text-decoration-thickness:.15em" if word.answer else ""
    return f'<span style="{style}" title="{word.distance:.4f}">{escape(word.text)}</span>'


def _share(distance: float, scale: tuple[float, float]) -> float:
    return min(max((distance - scale[0]) / (scale[1] - scale[0]), 0.0), 1.0)


def _colour(share: float) -> str:
    anchors = np.array([[int(one[at : at + 2], 16) for at in (0, 2, 4)] for one in COLOURS])
    mixed = (np.interp(share * (len(anchors) - 1), range(len(anchors)), channel) for channel in anchors.T)
    return "#" + "".join(f"{round(value):02x}" for value in mixed)


def page(titles: Sequence[str], texts: Sequence[Sequence[Word]], heading: str) -> str:
    """A whole HTML page of several examples under one colour scale."""
    scale = limits(texts)
    body = "\n".join(
        f"<h2>{escape(title)}</h2>\n{fragment(words, scale)}" for title, words in zip(titles, texts, strict=True)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(heading)}</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #111;
  background: #fff }}
h1 {{ font-size: 1.3em }} h2 {{ font-size: 1em; margin: 1.6em 0 .2em; color: #444; font-weight: 600 }}
</style>
</head>
<body>
<h1>{escape(heading)}</h1>
{body}
</body>
</html>
"""


def png(titles: Sequence[str], texts: Sequence[Sequence[Word]], heading: str, file: Path) -> None:
    """The same as a picture: words on lines of about 100 characters."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Rectangle

    scale = limits(texts)
    rows = [row for title, words in zip(titles, texts, strict=True) for row in _rows(title, words)]
    width, height = CHARACTER * (LINE + 4), 0.26 * len(rows) + 1.3  # inches
    figure = plotting.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0.75 / height, 1, 1 - 1.2 / height))
    axes.set(xlim=(-2, LINE + 2), ylim=(len(rows), 0))
    axes.axis("off")
    font = {"family": "monospace", "fontsize": 9.5, "va": "center", "ha": "left"}
    for line, row in enumerate(rows):
        for column, word in row:
            if isinstance(word, str):
                axes.text(column, line + 0.5, word, **font | {"family": "sans-serif"}, weight="bold")
                continue
            box = Rectangle(
                (column - 0.3, line + 0.08), len(word.text) + 0.6, 0.84, color=_colour(_share(word.distance, scale))
            )
            axes.add_patch(box)
            axes.text(column, line + 0.5, word.text, **font, parse_math=False)
            if word.answer:
                axes.plot([column, column + len(word.text)], [line + 0.88] * 2, color="black", lw=1.5)
    figure.suptitle(heading, fontsize=11, y=1 - 0.2 / height, va="center", parse_math=False)
    bar = figure.add_axes((0.3, 0.5 / height, 0.4, 0.13 / height))
    colours = ListedColormap([_colour(step / 255) for step in range(256)])
    figure.colorbar(ScalarMappable(Normalize(*scale), colours), cax=bar, orientation="horizontal", extend="both")
    bar.set_xlabel(
        "l2 distance of a word's embedding before and after (mean over its tokens); answer underlined", size=9
    )
    bar.tick_params(labelsize=8)
    figure.savefig(file, dpi=150)


def _rows(title: str, words: Sequence[Word]) -> list[list[tuple[int, Word | str]]]:
    """Lines of (column, word), the title's first; question and context begin lines of their own."""
    rows: list[list[tuple[int, Word | str]]] = [[(0, title)]]
    for asked in (True, False):
        column = LINE
        for word in words:
            if word.question is not asked:
                continue
            if column + len(word.text) > LINE:
                rows.append([])
                column = 0
            rows[-1].append((column, word))
            column += len(word.text) + 1
    return [*rows, []]
