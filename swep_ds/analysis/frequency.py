"""The paper's table by word frequency: how isolated a word's embedding is, and how far the noise moves it.

Words are tokens, ranked by how often they occur in the distinct questions and contexts of the training data. Each band
of ranks has
  5-NN distance   mean over its words of the mean l2 distance to the 5 nearest other rows of the embedding table
  before / after  mean over its words in the perturbed windows of a word's mean l2 distance between e and e~
  mean mu         likewise, the mean over dimensions of mu, for methods that learn it
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from swep_ds.analysis.paper import PAPER
from swep_ds.analysis.trained_run import AnswerWindow, TrainedRun, answer_windows
from swep_ds.common.errors import InputError
from swep_ds.common.pages import template
from swep_ds.data.example import Example
from swep_ds.data.windows import plain_backend

BANDS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))  # ranks (first, last], as in the paper
NEIGHBOURS = 5
BATCH = 8  # windows
TEXTS = 1024  # that are tokenised at a time
COLUMNS = ["neighbour_distance", "moved_distance", "mu"]
ROWS = 256  # words whose distances to the whole table are in memory at a time


def by_frequency(run: TrainedRun, examples: Sequence[Example], max_windows: int) -> dict[str, Any]:
    """The table: {"bands": [{"ranks": [first, last], "words", "words_seen", *COLUMNS}], "windows", "method",
    "beta_schedule"}. A value is None if a band has no words, or the method no mu.

    `examples` are the training questions; windows of `max_windows` of them, evenly spaced, are perturbed. Raises
    InputError as `TrainedRun.perturb`.
    """
    chosen = [examples[k] for k in np.unique(np.linspace(0, len(examples) - 1, max_windows).astype(int))]
    windows = list(answer_windows(chosen, run.tokenizer, run.windows))
    if not windows:
        raise InputError(f"{run.folder}: no window holds an answer to {len(chosen)} questions: raise --windows")
    ranked = ranking(run, examples)[: BANDS[-1][1]]
    words = _means_by_word(run, windows).reindex(index=ranked, columns=COLUMNS)
    words["neighbour_distance"] = neighbour_distance(run.qa.model.get_input_embeddings().weight, ranked)
    bands = []
    for first, last in BANDS:
        of_band = words.iloc[first:last]
        seen = int(of_band["moved_distance"].count())
        means = {name: None if np.isnan(mean) else mean for name, mean in of_band.mean().items()}
        bands.append({"ranks": [first + 1, last], "words": len(of_band), "words_seen": seen} | means)
    table = {"bands": bands, "windows": len(windows), "method": run.recipe.method.name}
    if run.recipe.method.name == "swep":
        table["beta_schedule"] = run.recipe.method.beta_schedule
    return table


def ranking(run: TrainedRun, examples: Sequence[Example]) -> list[int]:
    """Ids of the tokens in the distinct questions and contexts, the most frequent first; ties by smaller id."""
    backend = plain_backend(run.tokenizer)
    texts = list(dict.fromkeys(text for example in examples for text in (example.question, example.context)))
    counts = Counter()
    for begin in range(0, len(texts), TEXTS):
        for encoding in backend.encode_batch_fast(texts[begin : begin + TEXTS], add_special_tokens=False):
            counts.update(encoding.ids)
    return sorted(counts, key=lambda token: (-counts[token], token))


@torch.no_grad()
def neighbour_distance(table: Tensor, words: Sequence[int]) -> np.ndarray:
    """Mean l2 distance of the rows `words` to their `NEIGHBOURS` nearest other rows, [len(words)] float64."""
    table = table.double()
    means = []
    for ids in torch.tensor(words, device=table.device).split(ROWS):
        distance = torch.cdist(table[ids], table)
        distance[torch.arange(len(ids)), ids] = torch.inf  # a row is not its own neighbour
        means.append(distance.topk(NEIGHBOURS, largest=False).values.mean(1).cpu())
    return torch.cat(means).numpy()


def _means_by_word(run: TrainedRun, windows: list[AnswerWindow]) -> pd.DataFrame:
    """By the id of each token in the windows: its mean l2 distance before and after, and its mean mu if any."""
    windows = sorted(windows, key=lambda window: len(window.input_ids))
    frames = []
    for begin in range(0, len(windows), BATCH):
        batch = windows[begin : begin + BATCH]
        before, [perturbed] = run.perturb(run.batch(batch))
        values = {"moved_distance": (perturbed.embeddings - before).norm(dim=-1)}
        statistics = perturbed.measure()
        if "mu" in statistics:
            values["mu"] = statistics["mu"]
        for row, window in enumerate(batch):
            of_words = {name: value[row, window.positions].double().cpu().numpy() for name, value in values.items()}
            frames.append(pd.DataFrame(of_words, index=np.array(window.input_ids)[window.positions]))
    return pd.concat(frames).groupby(level=0).mean()


def markdown(table: dict[str, Any], title: str) -> str:
    """The table with the paper's rows; a dash marks a missing value."""
    return template("analysis/frequency.md.jinja").render(table, title=title, paper=PAPER["by_frequency"])
