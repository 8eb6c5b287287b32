"""The paper's heat map and its Figure 1: how far each word moves when its embedding is perturbed, and to which word.

A word is a whitespace word of the text. Its distance is the mean over its tokens of the l2 distance between e_t and
e~_t, and over draws of the noise (`TrainedRun.draws`), in the units of the word-embedding table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
from torch import Tensor

from swep_ds.analysis.answer_windows import AnswerWindow
from swep_ds.analysis.trained_run import TrainedRun
from swep_ds.methods.nearest import nearest

# ColorBrewer's YlOrRd, light to dark, up to where black text stays readable
COLOURS = ("ffffcc", "ffeda0", "fed976", "feb24c", "fd8d3c", "fc4e2a")
BATCH = 8  # windows
STEPS = 24  # colours of the scale
COLUMNS = ["question_id", "part", "word", "token", "nearest_before", "nearest_after"]  # of `nearest_words`
Scale = tuple[float, float]  # distances at the ends of the colour scale


@dataclass(frozen=True)
class Word:
    """A word of the text. `part`: "question", "context" or "answer"."""

    text: str
    part: str
    distance: float


def word_distances(run: TrainedRun, windows: Sequence[AnswerWindow]) -> list[list[Word]]:
    """The words of each window, the question's first.

    Raises InputError: the run's method has no perturbation to look at.
    """
    texts = []
    for begin in range(0, len(windows), BATCH):
        batch = windows[begin : begin + BATCH]
        before, draws = run.perturb_often(run.batch(batch), run.draws)
        distance_NT = (sum((draw.embeddings - before).norm(dim=-1) for draw in draws) / run.draws).tolist()
        for window, distance_T in zip(batch, distance_NT, strict=True):
            words = []
            for word in window.words:
                mean = np.mean([distance_T[position] for position in word.positions])
                words.append(Word(word.text, word.part, float(mean)))
            texts.append(words)
    return texts


def nearest_words(run: TrainedRun, windows: Sequence[AnswerWindow]) -> pd.DataFrame:
    """The paper's Figure 1: a row with `COLUMNS` for each token of the windows' words, the question's first.

    Nearest is meant as in `swep_ds/methods/nearest.py`: by the largest inner product with the word-embedding table. Not
    all words are nearest to themselves before the perturbation, so a column says what they were nearest to then.

    part: "question", "context" or "answer".
    word: the whitespace word of the text; token: the tokenizer's.
    nearest_before, nearest_after: tokens; the token is changed where `nearest_after` differs from `token`.

    Raises InputError: the run's method has no perturbation to look at.
    """
    vocabulary, rows = run.qa.model.get_input_embeddings().num_embeddings, []
    for window in windows:
        batch = run.batch([window])

        def look_up(ids: Tensor) -> Tensor:
            return run.qa.embed(batch._replace(input_ids=ids[None]))[0]  # noqa: B023 (called in this iteration)

        before, perturbed = run.perturb(batch)
        nearest_before = nearest(before[0], look_up, vocabulary)
        nearest_after = nearest(perturbed.embeddings[0], look_up, vocabulary)
        ids = (batch.input_ids[0], nearest_before, nearest_after)
        tokens = [run.tokenizer.convert_ids_to_tokens(row.tolist()) for row in ids]
        for word in window.words:
            for at in word.positions:
                rows.append((window.example.id, word.part, word.text, *(row[at] for row in tokens)))
    return pd.DataFrame(rows, columns=COLUMNS)


def limits(texts: Sequence[Sequence[Word]]) -> Scale:
    """The ends of the colour scale: the 2nd and 98th percentile of the distances, so outliers do not stretch it."""
    low, high = np.percentile([word.distance for words in texts for word in words], [2, 98])
    return float(low), float(high) if high > low else float(low) + 1.0


def fragment(words: Sequence[Word], scale: Scale, around: int | None = None) -> str:
    """A question and its context as HTML for any page, without scripts.

    Args:
        around: words of the context that are shown before and after the answer; None = all.
    """
    question = [word for word in words if word.part == "question"]
    context = [word for word in words if word.part != "question"]
    before = after = ""
    if around is not None:
        answer = [number for number, word in enumerate(context) if word.part == "answer"] or [0]
        begin, end = max(0, answer[0] - around), answer[-1] + 1 + around
        if begin > 0:
            before = "… "
        if end < len(context):
            after = " …"
        context = context[begin:end]
    lines = _line("Question", question, scale) + _line("Context", context, scale, before, after)
    return f'<div class="heatmap">{lines}</div>'


def _line(title: str, words: Sequence[Word], scale: Scale, before: str = "", after: str = "") -> str:
    spans = " ".join(_span(word, scale) for word in words)
    return f'<p style="line-height:1.9;margin:.4em 0"><b>{title}:</b> {before}{spans}{after}</p>'


def legend(scale: Scale, draws: int) -> str:
    """The colour scale of fragments, as HTML for any page."""
    steps = ", ".join(_colour(step / (STEPS - 1)) for step in range(STEPS))
    bar = f"display:inline-block;width:12em;height:.9em;vertical-align:middle;background:linear-gradient(90deg,{steps})"
    mean = f"mean over its tokens and over {draws} draws" if draws > 1 else "mean over its tokens, one draw"
    return (
        f'<p style="font-size:.85em;margin:.4em 0">l2 distance of a word\'s embedding before and after ({mean}): ≤ '
        f'{scale[0]:.3g} <span style="{bar}"></span> ≥ {scale[1]:.3g}; the answer is underlined</p>'
    )


def _span(word: Word, scale: Scale) -> str:
    share = (word.distance - scale[0]) / (scale[1] - scale[0])
    style = f"background:{_colour(share)};color:#000;padding:.1em .2em;border-radius:.2em"
    if word.part == "answer":
        style += ";text-decoration:underline;text-decoration-thickness:.15em"
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
