"""The paper's heat map: how far each word of question and context moves when its embedding is perturbed.

A word is a whitespace word of the text. Its distance is the mean over its tokens of the l2 distance between e_t and
e~_t, and over draws of the noise (`SavedRun.draws`), in the units of the word-embedding table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from swep_ds.analysis.saved_run import SavedRun
from swep_ds.analysis.windows import AnswerWindow

# ColorBrewer's YlOrRd, light to dark, up to where black text stays readable
COLOURS = ("ffffcc", "ffeda0", "fed976", "feb24c", "fd8d3c", "fc4e2a")
BATCH = 8  # windows
STEPS = 24  # colours of the scale


@dataclass(frozen=True)
class Word:
    """A word of the question or of the context."""

    text: str
    question: bool
    answer: bool  # whether it is part of the answer
    distance: float


def word_distances(run: SavedRun, windows: Sequence[AnswerWindow]) -> list[list[Word]]:
    """The words of each window, the question's first.

    Raises:
        InputError: the run's method has no perturbation to look at.
    """
    texts = []
    for begin in range(0, len(windows), BATCH):
        batch = windows[begin : begin + BATCH]
        before, draws = run.perturb_often(run.batch(batch), run.draws)
        distance_NT = (sum((draw.embeddings - before).norm(dim=-1) for draw in draws) / run.draws).tolist()
        for window, row in zip(batch, distance_NT, strict=True):
            means = [float(np.mean([row[position] for position in word.positions])) for word in window.words]
            words = zip(window.words, means, strict=True)
            texts.append([Word(word.text, word.question, word.answer, mean) for word, mean in words])
    return texts


def limits(texts: Sequence[Sequence[Word]]) -> tuple[float, float]:
    """The ends of the colour scale: the 2nd and 98th percentile of the distances, so outliers do not stretch it."""
    low, high = np.percentile([word.distance for words in texts for word in words], [2, 98])
    return float(low), float(high) if high > low else float(low) + 1.0


def fragment(words: Sequence[Word], scale: tuple[float, float], around: int | None = None) -> str:
    """One example as HTML for any page, without scripts: question and context.

    Args:
        scale: distances at the ends of the colour scale (`limits`).
        around: words of the context that are shown before and after the answer; None = all.
    """
    parts = []
    for title, question in (("Question", True), ("Context", False)):
        shown = [word for word in words if word.question is question]
        before = after = ""
        if around is not None and not question:
            answer = [number for number, word in enumerate(shown) if word.answer] or [0]
            begin, end = max(0, answer[0] - around), answer[-1] + 1 + around
            before, after, shown = "… " * (begin > 0), " …" * (end < len(shown)), shown[begin:end]
        spans = " ".join(_span(word, scale) for word in shown)
        parts.append(f'<p style="line-height:1.9;margin:.4em 0"><b>{title}:</b> {before}{spans}{after}</p>')
    return f'<div class="heatmap">{"".join(parts)}</div>'


def legend(scale: tuple[float, float], draws: int) -> str:
    """The colour scale of fragments, as HTML for any page."""
    steps = ", ".join(_colour(step / (STEPS - 1)) for step in range(STEPS))
    bar = f"display:inline-block;width:12em;height:.9em;vertical-align:middle;background:linear-gradient(90deg,{steps})"
    mean = f"mean over its tokens and over {draws} draws" if draws > 1 else "mean over its tokens, one draw"
    return (
        f'<p style="font-size:.85em;margin:.4em 0">l2 distance of a word\'s embedding before and after ({mean}): ≤ '
        f'{scale[0]:.3g} <span style="{bar}"></span> ≥ {scale[1]:.3g}; the answer is underlined</p>'
    )


def _span(word: Word, scale: tuple[float, float]) -> str:
    share = (word.distance - scale[0]) / (scale[1] - scale[0])
    style = f"background:{_colour(share)};color:#000;padding:.1em .2em;border-radius:.2em"
    style += ";text-decoration:underline;text-decoration-thickness:.15em" if word.answer else ""
    return f'<span style="{style}" title="{word.distance:.4f}">{escape(word.text)}</span>'


def _colour(share: float) -> str:
    """Linear between the anchors; the first below 0 and the last above 1."""
    anchors = np.array([[int(colour[k : k + 2], 16) for k in (0, 2, 4)] for colour in COLOURS])
    channels = (np.interp(share * (len(anchors) - 1), range(len(anchors)), channel) for channel in anchors.T)
    return "#" + "".join(f"{round(value):02x}" for value in channels)


def page(titles: Sequence[str], texts: Sequence[Sequence[Word]], heading: str, draws: int) -> str:
    """An HTML page of several examples under one colour scale."""
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
  background: #fff; print-color-adjust: exact; -webkit-print-color-adjust: exact }}
h1 {{ font-size: 1.3em }} h2 {{ font-size: 1em; margin: 1.6em 0 .2em; color: #444; font-weight: 600 }}
</style>
</head>
<body>
<h1>{escape(heading)}</h1>
{legend(scale, draws)}
{body}
</body>
</html>
"""
