"""The paper's own numbers (`paper.yaml`), by model, method and data set as a run names them."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

EmF1 = tuple[float, float]  # in percent
Scores = dict[tuple[str, str], EmF1]  # by the `plain` names of method and data set: all that the paper knows them by


def plain(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold())


def paper_scores(name: str) -> Scores | None:
    """The scores of the model of this label, hub id or local folder of that name; None if the paper has no such
    model."""
    models = _models()
    return models.get(plain(name)) or models.get(plain(Path(name).name))


def paper_score(scores: Scores, method: str, data_set: str) -> EmF1 | None:
    """None if the paper has no number."""
    return scores.get((_names("methods").get(plain(method), plain(method)), data_set_name(data_set)))


def trained_on() -> str:
    return _tree()["trained_on"]


def was_trained_on(source: str) -> bool:
    """Whether a `data.train`, a hub id or a file, has the name of the paper's training data."""
    name = re.sub(r"(\.(jsonl?|parquet|arrow|gz))+$", "", Path(re.split("[:@]", source)[0]).name)
    return plain(name) in map(plain, _tree()["training_data"])


def data_set_name(name: str) -> str:
    """The paper's `plain` name of a data set, or its own if the paper does not have it."""
    return _names("data_sets").get(plain(name), plain(name))


def frequency_table() -> dict[str, Any]:
    """The rows of the paper's table by word frequency (`swep_ds/analysis/frequency.py`), and its "model"."""
    return _tree()["by_frequency"]


@cache
def _tree() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))


@cache
def _names(kind: str) -> dict[str, str]:
    """`plain` name in the file by each other `plain` name."""
    return {plain(alias): plain(name) for name, others in _tree()[kind].items() for alias in (name, *others)}


@cache
def _models() -> dict[str, Scores]:
    """The scores by each `plain` name of a model."""
    models = {}
    for label, model in _tree()["models"].items():
        scores: Scores = {}
        for table in model["tables"]:
            for method, row in table["rows"].items():
                for data_set, em_f1 in zip(table["columns"], row, strict=True):
                    scores.setdefault((plain(method), plain(data_set)), tuple(em_f1))
        for name in (label, *model["also"]):
            models[plain(name)] = scores
    return models
