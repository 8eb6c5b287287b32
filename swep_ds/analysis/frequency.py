"""The paper's table by word frequency: how isolated a word's embedding is, and how far the noise moves it.

Words are tokens, ranked by how often they occur in the distinct questions and contexts of the training data. Each band
of ranks has
  5-NN distance   mean over its words of the mean l2 distance to the 5 nearest other rows of the embedding table
  before / after  mean over its words in the perturbed windows of a word's mean l2 distance between e and e~
  mean mu         likewise, the mean over dimensions of mu, for methods that learn it
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from swep_ds.analysis.formats import markdown_table
from swep_ds.analysis.paper import frequency_table
from swep_ds.analysis.trained_run import TrainedRun, windows_if_any
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.windows import plain_backend

BANDS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))  # ranks (first, last], as in the paper
NEIGHBOURS = 5
BATCH = 8  # windows
ROWS = 256  # words whose distances to the whole table are in memory at a time
TITLES = {
    "neighbour_distance": "5-NN l2 distance",
    "moved_distance": "l2 distance before / after",
    "mu": "mean mu",
}


def by_frequency(run: TrainedRun, examples: Sequence[Example], max_windows: int) -> dict[str, Any]:
    """The table: {"bands": [{"ranks": [first, last], "words", "words_seen", "neighbour_distance", "moved_distance",
    "mu"}], "windows", "method", "beta_schedule"}. A value is None if a band has no words, or the method no mu.

    Args:
        examples: the training questions; windows of `max_windows` of them, evenly spaced, are perturbed.

    Raises InputError: a method without perturbation, or no window holds a whole answer.
    """
    ranked = ranking(run, examples)[: BANDS[-1][1]]
    isolation = neighbour_distance(run.qa.model.get_input_embeddings().weight, ranked)
    chosen = [examples[k] for k in np.unique(np.linspace(0, len(examples) - 1, max_windows).astype(int))]
    windows = list(windows_if_any(chosen, run.tokenizer, run.windows))
    if not windows:
        raise InputError(f"{run.folder}: no window of {run.windows.max_length} tokens holds an answer of its data")
    means = _means_by_word(run, windows)

    def mean(values: np.ndarray | pd.Series) -> float | None:
        return float(values.mean()) if len(values) else None

    bands = []
    for first, last in BANDS:
        words = ranked[first:last]
        seen = means.loc[[word for word in words if word in means.index]]
        bands.append(
            {
                "ranks": [first + 1, last],
                "words": len(words),
                "words_seen": len(seen),
                "neighbour_distance": mean(isolation[first:last]),
                "moved_distance": mean(seen["moved"]),
                "mu": mean(seen["mu"]) if "mu" in seen else None,
            }
        )
    method = run.recipe.method
    annealed = {"beta_schedule": method.beta_schedule} if method.name == "swep" else {}
    return {"bands": bands, "windows": len(windows), "method": method.name, **annealed}


def ranking(run: TrainedRun, examples: Sequence[Example]) -> np.ndarray:
    """Ids of the tokens in the distinct questions and contexts, the most frequent first; ties by smaller id."""
    backend = plain_backend(run.tokenizer)
    texts = list(dict.fromkeys(text for example in examples for text in (example.question, example.context)))
    counts = np.zeros(len(run.tokenizer), np.int64)
    for begin in range(0, len(texts), 1024):
        for encoding in backend.encode_batch_fast(texts[begin : begin + 1024], add_special_tokens=False):
            np.add.at(counts, encoding.ids, 1)
    return np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]


@torch.no_grad()
def neighbour_distance(table: Tensor, words: np.ndarray) -> np.ndarray:
    """Mean l2 distance of the rows `words` to their `NEIGHBOURS` nearest other rows, [len(words)] float64.

    It is computed in float64 on the table's device, for `ROWS` words at a time.
    """
    table = table.double()
    means = []
    for ids in torch.from_numpy(words).to(table.device).split(ROWS):
        distance = torch.cdist(table[ids], table)
        distance[torch.arange(len(ids)), ids] = torch.inf  # a row is not its own neighbour
        means.append(distance.topk(NEIGHBOURS, largest=False).values.mean(1).cpu())
    return torch.cat(means).numpy()


def _means_by_word(run: TrainedRun, windows: list) -> pd.DataFrame:
    """By the id of each token in the windows: "moved", its mean l2 distance before and after; and mean "mu", if any."""
    windows = sorted(windows, key=lambda window: len(window.input_ids))
    frames = []
    for begin in range(0, len(windows), BATCH):
        batch = windows[begin : begin + BATCH]
        before, [perturbed] = run.perturb(run.batch(batch))
        values = {"moved": (perturbed.embeddings - before).norm(dim=-1)}
        if perturbed.measure and "mu" in (statistics := perturbed.measure()):
            values["mu"] = statistics["mu"]
        values = {name: value.cpu().double().numpy() for name, value in values.items()}
        for row, window in enumerate(batch):
            of_words = {name: value[row, window.positions] for name, value in values.items()}
            frames.append(pd.DataFrame(of_words, index=np.array(window.input_ids)[window.positions]))
    return pd.concat(frames).groupby(level=0).mean()


def markdown(table: dict[str, Any], title: str) -> str:
    """The table with the paper's rows; a dash marks a missing value."""

    def text(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    heads = [f"({band['ranks'][0] - 1}, {band['ranks'][1]}]" for band in table["bands"]]
    heads[0] = f"[1, {table['bands'][0]['ranks'][1]}]"
    paper = frequency_table()
    lines = []
    for key, row_title in TITLES.items():
        lines.append([row_title, *(text(band[key]) for band in table["bands"])])
        lines.append([f"{row_title}, paper ({paper['model']})", *map(text, paper[key])])
    for key, row_title in (("words", "words"), ("words_seen", "words in the windows")):
        lines.append([row_title, *(str(band[key]) for band in table["bands"])])
    schedule = f", beta {table['beta_schedule']}" if "beta_schedule" in table else ""
    return f"""# By word frequency: {title}

{table["method"]}{schedule}; {table["windows"]} training windows. The paper annealed beta in the second of two
epochs, as `method.beta_schedule=zero_in_second_half` does.

{markdown_table(["frequency rank", *heads], lines)}"""
