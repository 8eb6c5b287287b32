"""The files of `predictions/` and its neighbours. A test writes EM and F1 of each question, so that tables and reports
need not score its answers again."""

import json
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from xxhash import xxh3_64_hexdigest

from swep_ds.common.files import content_checksum, read_json, read_sealed, read_text, sealed, write_atomically
from swep_ds.data import answers
from swep_ds.data.example import Example
from swep_ds.evaluation import scores, scoring_rules
from swep_ds.evaluation.scores import METRICS, Scorer

BY_TEST = ("predictions", "scores", "confidence", "n_best", "calibrated", "null_odds")  # a file for each test set
CODE = tuple(Path(module.__file__) for module in (scores, scoring_rules, answers))  # whose change may change a score


@dataclass(frozen=True)
class Marking:
    """The questions of a test set, and the rules by which predictions are compared with their accepted answers."""

    examples: list[Example]
    scorer: Scorer

    def of(self, predictions: dict[str, str]) -> np.ndarray:
        """[2, Q]: EM and F1 in [0, 1] of each question; 0 without a prediction."""
        golds = {example.id: example.answers for example in self.examples}
        return np.array([*self.scorer.by_question(predictions, golds).values()]).T

    def read(self, folder: Path, name: str) -> np.ndarray:
        """As `of`, from `scores/` of a run's folder if they are of its predictions, these answers and these rules, else
        from its predictions. Raises InputError: these are missing or not JSON."""
        predictions = folder / "predictions" / f"{name}.json"
        made_of = self.checksum(read_text(predictions))
        with suppress(OSError, ValueError):  # an earlier run wrote no scores; damaged ones are made again
            known = read_sealed(folder / "scores" / f"{name}.json")
            if known["made_of"] == made_of:
                return np.array([known[metric] for metric in METRICS])
        return self.of(read_json(predictions))

    def checksum(self, predictions: str) -> str:
        """That of all that the scores of a file of predictions are made of."""
        return xxh3_64_hexdigest((self._checksum + predictions).encode())

    @cached_property
    def _checksum(self) -> str:
        golds = [(example.id, example.answers) for example in self.examples]
        rules = [self.scorer.row, content_checksum(CODE), unicodedata.unidata_version]
        return xxh3_64_hexdigest(json.dumps([golds, rules]).encode())


def write_predictions(
    folder: Path, name: str, contents: dict[str, dict[str, Any]], marking: Marking | None = None
) -> None:
    """`<kind>/<name>.json` of each kind of content, by question id; official scorers read `predictions/`. With
    `marking` also the predictions' scores. Kinds of `BY_TEST` without content lose the file that an earlier test left.
    """
    lines = json.JSONEncoder(ensure_ascii=False, separators=(",\n", ": "))  # with `indent` it takes three times as long
    texts = {kind: lines.encode(content) for kind, content in contents.items()}
    if marking:
        values = zip(METRICS, marking.of(contents["predictions"]).tolist(), strict=True)
        texts["scores"] = sealed(json.dumps({"made_of": marking.checksum(texts["predictions"]), **dict(values)}))
    for kind in BY_TEST:
        file = folder / kind / f"{name}.json"
        if kind in texts:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, texts[kind])
        else:
            file.unlink(missing_ok=True)
