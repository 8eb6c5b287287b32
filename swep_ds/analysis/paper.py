"""The paper's own numbers (`paper.yaml`), by model, method and data set as a run names them."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from swep_ds.pipeline.folder import UNAVERAGED

PAPER: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
SQUAD = (*PAPER["training_data"], *PAPER["other_squad"])
Scores = dict[str, dict[str, list[float]]]  # [EM, F1] in percent by method and data set, as paper.yaml names them


def plain(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold())


@cache
def _names(kind: str) -> dict[str, str]:
    """The name in the file by each `plain` name."""
    return {plain(alias): name for name, others in PAPER[kind].items() for alias in (name, *others)}


def paper_scores(name: str) -> Scores | None:
    """The scores of the model of this label, hub id or local folder of that name; None if the paper has no such
    model."""
    names = _names("models")
    return PAPER["scores"].get(names.get(plain(name)) or names.get(plain(Path(name).name)))


def paper_score(scores: Scores, method: str, data_set: str) -> list[float] | None:
    """[EM, F1]; None if the paper has no number."""
    return scores.get(_names("methods").get(plain(method)), {}).get(data_set_name(data_set))


def paper_effects(counted: Scores | None, method: str, against: str, data_sets: Sequence[str]) -> dict[str, np.ndarray]:
    """By model, [EM, F1] of the method less those of `against` in the paper's tables, in points, the mean over the data
    sets. `counted`: the scores of the only model that counts; None = all three do. Models without all of these numbers
    are missing. Rows of last weights count as their methods, and `stand_ins` as theirs."""
    rows = [name.removesuffix(f", {UNAVERAGED}") for name in (method, against)]
    rows = [_names("stand_ins").get(plain(name), name) for name in rows]
    effects = {}
    for model, scores in PAPER["scores"].items():
        known = [[paper_score(scores, row, data_set) for data_set in data_sets] for row in rows]
        # two rows of one method are no difference of the paper's
        if counted in (None, scores) and None not in known[0] + known[1] and known[0] != known[1]:
            effects[model] = np.subtract(*known).mean(0)
    return effects


def data_set_name(name: str) -> str:
    """The paper's name of a data set, or its own `plain` name if the paper does not have it."""
    return _names("data_sets").get(plain(name), plain(name))


def was_trained_on(source: str | list, names: Sequence[str] = PAPER["training_data"]) -> bool:
    """Whether a `data.train` is a hub id or a file of one of these names, by default the paper's training data."""
    return isinstance(source, str) and plain(source_name(source)) in map(plain, names)


def source_name(source: str) -> str:
    """The name of a hub id or a file without folder, split and suffix."""
    return re.sub(r"(\.(jsonl?|parquet|arrow|gz))+$", "", Path(re.split("[:@]", source)[0]).name)
