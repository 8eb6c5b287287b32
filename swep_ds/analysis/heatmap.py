"""The paper's heat map and its Figure 1: how far each word moves when its embedding is perturbed, and to which word.

A word is a whitespace word of the text. Its distance is the mean over its tokens of the l2 distance between e_t and
e~_t, and over draws of the noise (`TrainedRun.draws`), in the units of the word-embedding table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from swep_ds.analysis.answered import Answered, in_fixed_order
from swep_ds.analysis.pages import template
from swep_ds.analysis.trained_run import AnswerWindow, TrainedRun, windows_if_any
from swep_ds.common.errors import InputError
from swep_ds.methods.noise_effect import nearest
from swep_ds.pipeline.recipe import Recipe

# ColorBrewer's YlOrRd, light to dark, up to where black text stays readable
COLOURS = ((255, 255, 204), (255, 237, 160), (254, 217, 118), (254, 178, 76), (253, 141, 60), (252, 78, 42))
BATCH = 8  # windows
STEPS = 24  # colours of the scale
COLUMNS = ["question_id", "part", "word", "token", "nearest_before", "nearest_after"]  # of `nearest_words`
AROUND = 20  # words of the text that a report shows before and after the answer
MAX_BYTES = 4 * 10**9  # of a model that is loaded for a report
TRIED = 50  # questions of a data set that are looked at for windows with the answer
Scale = tuple[float, float]  # distances at the ends of the colour scale


@dataclass(frozen=True)
class Word:
    """A word of the text. `part`: "question", "context" or "answer"."""

    text: str
    part: str
    distance: float

    def colour(self, scale: Scale) -> str:
        return _colour((self.distance - scale[0]) / (scale[1] - scale[0]))


def _colour(share: float) -> str:
    """Linear between the anchors; the first below 0 and the last above 1."""
    channels = [
        np.interp(share * (len(COLOURS) - 1), range(len(COLOURS)), channel) for channel in zip(*COLOURS, strict=True)
    ]
    return "#" + "".join(f"{round(value):02x}" for value in channels)


def word_distances(run: TrainedRun, windows: Sequence[AnswerWindow]) -> list[list[Word]]:
    """The words of each window, the question's first.

    Raises InputError: the run's method has no perturbation to look at.
    """
    texts = []
    for begin in range(0, len(windows), BATCH):
        batch = windows[begin : begin + BATCH]
        before, draws = run.perturb(run.batch(batch), run.draws)
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

    Nearest is meant as in `swep_ds/methods/noise_effect.py`, and not all words are nearest to themselves before the
    perturbation. A token is changed where `nearest_after` differs from it.

    Raises InputError: the run's method has no perturbation to look at.
    """
    vocabulary = run.qa.model.get_input_embeddings().num_embeddings
    rows = []
    for window in windows:
        batch = run.batch([window])

        def look_up(ids: Tensor) -> Tensor:
            return run.qa.embed(batch._replace(input_ids=ids[None]))[0]  # noqa: B023 (called in this iteration)

        before, [perturbed] = run.perturb(batch)
        nearest_before = nearest(before[0], look_up, vocabulary)
        nearest_after = nearest(perturbed.embeddings[0], look_up, vocabulary)
        ids = (batch.input_ids[0], nearest_before, nearest_after)
        tokens = [run.tokenizer.convert_ids_to_tokens(row.tolist()) for row in ids]
        for word in window.words:
            for at in word.positions:
                rows.append((window.example.id, word.part, word.text, *(row[at] for row in tokens)))
    return pd.DataFrame(rows, columns=COLUMNS)


# On a page (`heatmap.html.jinja`)


def limits(texts: Sequence[Sequence[Word]]) -> Scale:
    """The ends of the colour scale: the 2nd and 98th percentile of the distances, so outliers do not stretch it."""
    low, high = np.percentile([word.distance for words in texts for word in words], [2, 98])
    return float(low), float(high) if high > low else float(low) + 1.0


def scale_colours() -> list[str]:
    return [_colour(step / (STEPS - 1)) for step in range(STEPS)]


class Shown(NamedTuple):
    """The words that a page shows; `before` and `after` are … where the context is cut."""

    question: list[Word]
    context: list[Word]
    before: str = ""
    after: str = ""


def shown(words: Sequence[Word], around: int | None = None) -> Shown:
    """The words of a window, at most `around` of the context before and after the answer."""
    question = [word for word in words if word.part == "question"]
    context = [word for word in words if word.part != "question"]
    if around is None:
        return Shown(question, context)
    answer = [number for number, word in enumerate(context) if word.part == "answer"] or [0]
    begin = max(0, answer[0] - around)
    end = answer[-1] + 1 + around
    before = "… " if begin > 0 else ""
    after = " …" if end < len(context) else ""
    return Shown(question, context[begin:end], before, after)


def page(titles: Sequence[str], texts: Sequence[Sequence[Word]], heading: str, draws: int) -> str:
    """An HTML page of several examples under one colour scale."""
    titled = [(title, shown(words)) for title, words in zip(titles, texts, strict=True)]
    macros = template("heatmap.html.jinja").module
    return str(macros.page(heading, titled, limits(texts), draws, scale_colours()))


# In a report


class HeatMaps(NamedTuple):
    """maps: (data set, (question, its words)); scale: of their colours; missing: why there are none."""

    maps: Sequence[tuple[str, list[tuple[Answered, Shown]]]] = ()
    scale: Scale = (0.0, 1.0)
    draws: int = 1
    missing: str = ""
    colours: Sequence[str] = ()


def heat_maps(folder: Path, recipe: Recipe, answered: dict[str, list[Answered]]) -> HeatMaps:
    """Heat maps of a question that was answered right and one that was answered wrong by data set, under one scale."""
    if not answered:
        return HeatMaps(missing="There are no questions to show.")
    size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    if size > MAX_BYTES:
        return HeatMaps(missing="The model is not loaded again, since it is large. `swep-ds analyze` makes heat maps.")
    try:
        run = TrainedRun.load(folder)
    except InputError as error:
        return HeatMaps(missing=str(error))
    if not run.perturbs:
        return HeatMaps(missing=f"{recipe.method.name} has no perturbation that can be looked at after training.")
    chosen = []
    for name, questions in answered.items():
        for right in (True, False):
            pool = [item for item in in_fixed_order(questions) if item.right == right][:TRIED]
            by_id = {item.example.id: item for item in pool}
            # an answer may be in the text only after normalisation, or in no window
            for window in islice(windows_if_any([item.example for item in pool], run.tokenizer, run.windows), 1):
                chosen.append((name, by_id[window.example.id], window))
    if not chosen:
        return HeatMaps(missing="No window holds an answer.")
    texts = word_distances(run, [window for *_, window in chosen])
    maps: dict[str, list[tuple[Answered, Shown]]] = {}
    for (name, item, _), words in zip(chosen, texts, strict=True):
        maps.setdefault(name, []).append((item, shown(words, AROUND)))
    return HeatMaps(list(maps.items()), limits(texts), run.draws, colours=scale_colours())
