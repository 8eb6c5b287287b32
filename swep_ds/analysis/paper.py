"""The paper's own numbers (`paper.yaml`), found by model, method and data set as a run names them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("paper.yaml")
Names = dict[str, str]  # as people may write it, normalised -> as the file has it


@dataclass(frozen=True)
class PaperModel:
    """What the paper reports of one model."""

    label: str
    scores: dict[tuple[str, str], tuple[float, float]]  # (method, data set) -> EM and F1 in percent
    methods: Names
    data_sets: Names

    def score(self, method: str, data_set: str) -> tuple[float, float] | None:
        """EM and F1 in percent; None where the paper has no number."""
        return self.scores.get((self.methods.get(plain(method), ""), self.data_sets.get(plain(data_set), "")))

    def knows_method(self, method: str) -> bool:
        return any(one == self.methods.get(plain(method)) for one, _ in self.scores)

    def knows_data_set(self, data_set: str) -> bool:
        return plain(data_set) in self.data_sets


def plain(name: str) -> str:
    """A name without case, spaces and punctuation."""
    return re.sub(r"[\W_]", "", name.casefold())


def paper_model(name: str) -> PaperModel | None:
    """By label, hub id, or a local folder of that name; None where the paper has no such model."""
    models, also = _read()
    return models.get(also.get(plain(name), also.get(plain(Path(name).name), "")))


def trained_on() -> str:
    return _tree()["trained_on"]


def was_trained_on(source: str) -> bool:
    """Whether a `data.train` is called like the paper's, as a hub id or a file."""
    name = re.sub(r"(\.(jsonl?|parquet|arrow|gz))+$", "", Path(re.split("[:@]", source)[0]).name)
    return plain(name) in map(plain, _tree()["training_data"])


@cache
def _tree() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def frequency_table() -> dict[str, Any]:
    """The paper's rows of the table by word frequency (`swep_ds/analysis/frequency.py`), and of which "model"."""
    return _tree()["by_frequency"]


@cache
def _read() -> tuple[dict[str, PaperModel], Names]:
    tree = _tree()
    methods = {method for model in tree["models"].values() for table in model["tables"] for method in table["rows"]}
    method_names = _names({method: tree["methods"].get(method, []) for method in methods})
    data_sets = _names(tree["data_sets"])
    models = {}
    for label, model in tree["models"].items():
        scores: dict[tuple[str, str], tuple[float, float]] = {}
        for table in model["tables"]:
            for method, row in table["rows"].items():
                for data_set, both in zip(table["columns"], row, strict=True):
                    scores.setdefault((method, data_set), tuple(both))
        models[label] = PaperModel(label, scores, method_names, data_sets)
    return models, _names({label: model["also"] for label, model in tree["models"].items()})


def _names(also: dict[str, list[str]]) -> Names:
    return {plain(name): own for own, others in also.items() for name in (own, *others)}
