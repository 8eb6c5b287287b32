"""The paper's table by word frequency: how lonely a word's embedding is, and how far the noise moves it.

Words are tokens, ranked by how often they stand in the distinct questions and contexts of the training data. Of each
band of ranks:
  5-NN distance   mean over its words of the mean l2 distance to the 5 nearest other rows of the embedding table
  before / after  mean over its words that the looked-at windows hold of a word's mean l2 distance between e and e~
  mean mu         likewise, of the mean over dimensions of mu; for methods that learn it
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swep_ds.analysis.paper import frequency_table
from swep_ds.analysis.saved_run import SavedRun
from swep_ds.analysis.windows import windows_if_any
from swep_ds.data.readers import Example
from swep_ds.errors import InputError

BANDS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))  # ranks (first, last], as in the paper
NEIGHBOURS = 5
WINDOWS_AT_A_TIME, ROWS, COLUMNS = 8, 256, 2**15  # of windows; of words and of the table, whose distances are made
TITLES = {
    "neighbour_distance": "5-NN l2 distance",
    "moved_distance": "l2 distance before / after",
    "mu": "mean mu",
}


def by_frequency(run: SavedRun, examples: Sequence[Example], max_windows: int) -> dict[str, Any]:
    """The table: {"bands": [{"ranks": [first, last], "words", "words_seen", "neighbour_distance", "moved_distance",
    "mu"}], "windows", "method", "beta_schedule"}; None where a band has no words, or the method no mu.

    Args:
        examples: the training questions; windows of `max_windows` of them, spread evenly, are perturbed.

    Raises:
        InputError: a method without perturbation, or no whole answer in any window.
    """
    ranked = ranking(run, examples)[: BANDS[-1][1]]
    table = run.qa.model.get_input_embeddings().weight
    lonely = neighbour_distance(table, ranked)
    chosen = [examples[k] for k in np.unique(np.linspace(0, len(examples) - 1, max_windows).astype(int))]
    moved, mu, windows = _means_by_word(run, chosen, len(table))
    bands = []
    for first, last in BANDS:
        words = ranked[first:last]
        seen = words[~np.isnan(moved[words])]
        band = {"ranks": [first + 1, last], "words": len(words), "words_seen": len(seen)}
        band["neighbour_distance"] = _mean(lonely[first:last])
        band |= {"moved_distance": _mean(moved[seen]), "mu": None if mu is None else _mean(mu[seen])}
        bands.append(band)
    method = run.recipe.method
    annealed = {"beta_schedule": method.beta_schedule} if method.name == "swep" else {}
    return {"bands": bands, "windows": windows, "method": method.name, **annealed}


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def ranking(run: SavedRun, examples: Sequence[Example]) -> np.ndarray:
    """Ids of the tokens in the distinct questions and contexts, the most frequent first, the smaller id of equals."""
    backend = copy.deepcopy(run.tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    texts = list(dict.fromkeys(text for example in examples for text in (example.question, example.context)))
    counts = np.zeros(len(run.tokenizer), np.int64)
    for at in range(0, len(texts), 1024):
        for encoding in backend.encode_batch_fast(texts[at : at + 1024], add_special_tokens=False):
            np.add.at(counts, encoding.ids, 1)
    return np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]


@torch.no_grad()
def neighbour_distance(table: Tensor, words: np.ndarray, count: int = NEIGHBOURS) -> np.ndarray:
    """Mean l2 distance of the rows `words` to their `count` nearest other rows, [len(words)] float64.

    On the table's device, in float64, of at most `ROWS` x `COLUMNS` distances at a time.
    """
    found = []
    for ids in torch.from_numpy(words).to(table.device).split(ROWS):
        own, nearest = table[ids].double(), []
        for begin in range(0, len(table), COLUMNS):
            part = table[begin : begin + COLUMNS].double()
            distance = torch.cdist(own, part)
            place = ids - begin
            here = (place >= 0) & (place < len(part))
            distance[here.nonzero()[:, 0], place[here]] = torch.inf
            nearest.append(distance.topk(min(count, len(part)), largest=False).values)
        found.append(torch.cat(nearest, 1).topk(count, largest=False).values.mean(1).cpu())
    return torch.cat(found).numpy()


def _means_by_word(
    run: SavedRun, examples: Sequence[Example], vocabulary: int
) -> tuple[np.ndarray, np.ndarray | None, int]:
    """By token id, NaN where it was not seen: mean l2 distance before and after, and mean mu; the windows looked at."""
    windows = [one for one in windows_if_any(examples, run.tokenizer, run.windows) if one]
    if not windows:
        raise InputError(f"{run.folder}: no window of {run.windows.max_length} tokens holds an answer of its data")
    windows.sort(key=lambda one: len(one.input_ids))
    sums = {"count": np.zeros(vocabulary), "moved": np.zeros(vocabulary), "mu": np.zeros(vocabulary)}
    learned = False
    for at in range(0, len(windows), WINDOWS_AT_A_TIME):
        some = windows[at : at + WINDOWS_AT_A_TIME]
        before, made = run.perturb(run.batch(some))
        values = {"moved": (made.embeddings - before).norm(dim=-1)}
        statistics = made.measure() if made.measure else {}
        if learned := "mu" in statistics:
            values["mu"] = statistics["mu"]
        values = {name: value.cpu().double().numpy() for name, value in values.items()}
        for row, window in enumerate(some):
            positions = np.array([position for word in window.words for position in word.positions])
            ids = np.array(window.input_ids)[positions]
            np.add.at(sums["count"], ids, 1)
            for name, value in values.items():
                np.add.at(sums[name], ids, value[row, positions])
    with np.errstate(invalid="ignore"):
        moved, mu = sums["moved"] / sums["count"], sums["mu"] / sums["count"]
    return moved, mu if learned else None, len(windows)


def markdown(table: dict[str, Any], name: str) -> str:
    """The table beside the paper's; a dash where there is nothing to tell."""
    heads = [f"({band['ranks'][0] - 1}, {band['ranks'][1]}]" for band in table["bands"]]
    heads[0] = f"[1, {table['bands'][0]['ranks'][1]}]"
    lines, paper = [["frequency rank", *heads], ["---"] * (len(heads) + 1)], frequency_table()
    for key, title in TITLES.items():
        lines.append([title, *(_text(band[key]) for band in table["bands"])])
        lines.append([f"{title}, paper ({paper['model']})", *map(_text, paper[key])])
    lines.append(["words", *(str(band["words"]) for band in table["bands"])])
    lines.append(["words seen in the windows", *(str(band["words_seen"]) for band in table["bands"])])
    schedule = f", beta {table['beta_schedule']}" if "beta_schedule" in table else ""
    rows = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"""# By word frequency: {name}

{table["method"]}{schedule}; {table["windows"]} training windows. The paper annealed beta to zero in the second of two
epochs, as `method.beta_schedule=second_half_to_zero` does.

{rows}"""


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
