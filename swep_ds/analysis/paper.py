"""The paper's own numbers (`paper.yaml`), by model, method and data set as a run names them."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PAPER: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
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


def data_set_name(name: str) -> str:
    """The paper's name of a data set, or its own `plain` name if the paper does not have it."""
    return _names("data_sets").get(plain(name), plain(name))


def was_trained_on(source: str) -> bool:
    """Whether a `data.train`, a hub id or a file, has the name of the paper's training data."""
    name = re.sub(r"(\.(jsonl?|parquet|arrow|gz))+$", "", Path(re.split("[:@]", source)[0]).name)
    return plain(name) in map(plain, PAPER["training_data"])
