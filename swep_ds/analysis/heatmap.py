"""The paper's heat map and its Figure 1: how far each word moves when its embedding is perturbed, and to which word.

A word is a whitespace word of the text. Its distance is the mean over its tokens of the l2 distance between e_t and
e~_t, and over draws of the noise (`TrainedRun.draws`), in the units of the word-embedding table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex, to_rgb

from swep_ds.analysis.answered import Answered, in_fixed_order
from swep_ds.analysis.trained_run import AnswerWindow, TextWord, TrainedRun, answer_windows
from swep_ds.common.errors import InputError
from swep_ds.common.pages import template
from swep_ds.methods.noise_effect import nearest

AROUND = 20  # words of the text that a report shows before and after the answer
MAX_BYTES = 4 * 10**9  # of a model that is loaded for a report
TRIED = 50  # questions of a data set that are looked at for windows with the answer


class Scale(NamedTuple):
    """The distances of the first and of the last colour; what lies beyond has their colours."""

    low: float
    high: float
    # ColorBrewer's YlOrRd, light to dark, up to where black text stays readable
    colours = ("#ffffcc", "#ffeda0", "#fed976", "#feb24c", "#fd8d3c", "#fc4e2a")

    @classmethod
    def of(cls, texts: Sequence[Sequence[TextWord]]) -> "Scale":
        """From the 2nd to the 98th percentile, so outliers do not stretch it."""
        low, high = np.percentile([word.distance for words in texts for word in words], [2, 98]).tolist()
        return cls(low, high if high > low else low + 1.0)

    def colour(self, distance: float) -> str:
        stops = np.linspace(self.low, self.high, len(self.colours))
        channels = np.transpose([to_rgb(colour) for colour in self.colours])
        return to_hex([np.interp(distance, stops, channel) for channel in channels])


def word_distances(run: TrainedRun, windows: Sequence[AnswerWindow]) -> list[list[TextWord]]:
    """The words of each window with their distances. Raises InputError as `TrainedRun.perturb`."""
    texts = []
    for window in windows:
        before, draws = run.perturb(run.batch([window]), run.draws)
        distance_NT = sum((draw.embeddings - before).norm(dim=-1) for draw in draws) / run.draws
        distance_T = distance_NT[0].double().cpu().numpy()
        texts.append([word._replace(distance=distance_T[word.positions].mean()) for word in window.words])
    return texts


def nearest_words(run: TrainedRun, windows: Sequence[AnswerWindow]) -> pd.DataFrame:
    """The paper's Figure 1: question_id, part, word, token, nearest_before and nearest_after of each token of the
    windows' words. A token is changed where `nearest_after` differs from it.

    By `nearest`, a word need not be nearest to itself. Raises InputError as `TrainedRun.perturb`.
    """
    rows = []
    for window in windows:
        before, [perturbed] = run.perturb(run.batch([window]))
        ids = [window.input_ids]
        for embeddings in (before, perturbed.embeddings):
            ids.append(nearest(embeddings[0], run.qa.words, run.qa.words.num_embeddings).tolist())
        tokens = [run.tokenizer.convert_ids_to_tokens(row) for row in ids]
        for word in window.words:
            for at in word.positions:
                rows.append((window.example.id, word.part, word.text, *(row[at] for row in tokens)))
    return pd.DataFrame(rows, columns=["question_id", "part", "word", "token", "nearest_before", "nearest_after"])


def page(titles: Sequence[str], texts: Sequence[Sequence[TextWord]], heading: str, draws: int) -> str:
    """An HTML page of several examples under one colour scale."""
    macros = template("analysis/heatmap.html.jinja").module
    return str(macros.page(heading, list(zip(titles, texts, strict=True)), Scale.of(texts), draws))


def heat_maps(folder: Path, answered: Mapping[str, Sequence[Answered]]) -> dict[str, Any]:
    """Heat maps of a question that was answered right and one that was answered wrong by data set.

    "maps": by data set, these questions with their words; "missing": why there are none. Where there are some, "scale",
    of all of them, and "draws".
    """
    size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    if size > MAX_BYTES:
        missing = "The model is not loaded again, since it is large. `swep-ds analyze` makes heat maps."
        return {"maps": {}, "missing": missing}
    maps = {}
    texts = []
    try:
        run = TrainedRun.load(folder)
        for name, items in answered.items():
            for right in (True, False):
                pool = {item.example: item for item in in_fixed_order(items) if item.right == right}
                # an answer may be in the text only after normalisation, or in no window
                window = next(answer_windows(list(pool)[:TRIED], run.tokenizer, run.windows), None)
                if window:
                    texts += word_distances(run, [window])
                    maps.setdefault(name, []).append((pool[window.example], _near_answer(texts[-1])))
    except InputError as error:
        return {"maps": {}, "missing": str(error)}
    if not maps:
        return {"maps": {}, "missing": "No window holds an answer."}
    return {"maps": maps, "missing": "", "scale": Scale.of(texts), "draws": run.draws}


def _near_answer(words: Sequence[TextWord]) -> list[TextWord]:
    """The question's words, and at most `AROUND` of the context before and after the answer."""
    question = [word for word in words if word.part == "question"]
    context = words[len(question) :]
    in_answer = [number for number, word in enumerate(context) if word.part == "answer"]
    return question + context[max(0, in_answer[0] - AROUND) : in_answer[-1] + 1 + AROUND]
