"""The paper's own numbers (`paper.yaml`), by model, method and data set as a run names them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Names = dict[str, str]  # `plain` name, as people may write it -> name in the file


@dataclass(frozen=True)
class PaperModel:
    """What the paper reports for one model."""

    label: str
    scores: dict[tuple[str, str], tuple[float, float]]  # (method, data set) -> EM and F1 in percent
    methods: Names
    data_sets: Names

    def score(self, method: str, data_set: str) -> tuple[float, float] | None:
        """EM and F1 in percent; None if the paper has no number."""
        return self.scores.get((self.methods.get(plain(method), ""), self.data_sets.get(plain(data_set), "")))

    def knows_method(self, method: str) -> bool:
        return any(name == self.methods.get(plain(method)) for name, _ in self.scores)

    def knows_data_set(self, data_set: str) -> bool:
        return plain(data_set) in self.data_sets


def plain(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold())


def paper_model(name: str) -> PaperModel | None:
    """The model of this label, hub id or local folder of that name; None if the paper has no such model."""
    models = _models()
    return models.get(plain(name)) or models.get(plain(Path(name).name))


def trained_on() -> str:
    return _tree()["trained_on"]


def was_trained_on(source: str) -> bool:
    """Whether a `data.train`, a hub id or a file, has the name of the paper's training data."""
    name = re.sub(r"(\.(jsonl?|parquet|arrow|gz))+$", "", Path(re.split("[:@]", source)[0]).name)
    return plain(name) in map(plain, _tree()["training_data"])


def data_set_name(name: str) -> str:
    """The paper's name of a data set, or its `plain` name if the paper does not have it."""
    return _names(_tree()["data_sets"]).get(plain(name), plain(name))


def frequency_table() -> dict[str, Any]:
    """The rows of the paper's table by word frequency (`swep_ds/analysis/frequency.py`), and its "model"."""
    return _tree()["by_frequency"]


@cache
def _tree() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))


@cache
def _models() -> dict[str, PaperModel]:
    """The models by each of their `plain` names."""
    tree = _tree()
    methods = {method for model in tree["models"].values() for table in model["tables"] for method in table["rows"]}
    method_names = _names({method: tree["methods"].get(method, []) for method in methods})
    models = {}
    for label, model in tree["models"].items():
        scores: dict[tuple[str, str], tuple[float, float]] = {}
        for table in model["tables"]:
            for method, row in table["rows"].items():
                for data_set, em_f1 in zip(table["columns"], row, strict=True):
                    scores.setdefault((method, data_set), tuple(em_f1))
        for name in (label, *model["also"]):
            models[plain(name)] = PaperModel(label, scores, method_names, _names(tree["data_sets"]))
    return models


def _names(aliases: dict[str, list[str]]) -> Names:
    return {plain(alias): name for name, others in aliases.items() for alias in (name, *others)}
