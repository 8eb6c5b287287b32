"""EM and F1 of each question of a test set: written when a run is tested, so that tables and reports need not score its
answers again."""

import json
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_hexdigest

from swep_ds.common.files import content_checksum, read_json, read_sealed, read_text, sealed
from swep_ds.data import answers
from swep_ds.data.example import Example
from swep_ds.evaluation import scores, scoring_rules
from swep_ds.evaluation.scores import METRICS, Golds, Scorer

CODE = tuple(Path(module.__file__) for module in (scores, scoring_rules, answers))  # whose change may change a score


@dataclass(frozen=True)
class Marking:
    """The accepted answers of a test set, and the rules by which predictions are compared with them."""

    scorer: Scorer
    golds: Golds

    def of(self, predictions: dict[str, str]) -> np.ndarray:
        """[2, Q]: EM and F1 in [0, 1] of each question, in the order of `golds`; 0 without a prediction."""
        return np.array([*self.scorer.by_question(predictions, self.golds).values()]).T

    def to_text(self, predictions: dict[str, str], file: str) -> str:
        """`scores/<data set>.json` for predictions that are written as the text `file`."""
        values = zip(METRICS, self.of(predictions).tolist(), strict=True)
        return sealed(json.dumps({"made_of": self._made_of(file), **dict(values)}))

    def read(self, folder: Path, name: str) -> np.ndarray:
        """As `of`, from `scores/` of a run's folder if they are of its predictions, these answers and these rules, else
        from its predictions. Raises InputError: these are missing or not JSON."""
        predictions = folder / "predictions" / f"{name}.json"
        made_of = self._made_of(read_text(predictions))
        with suppress(OSError, ValueError):  # an earlier run wrote no scores; damaged ones are made again
            known = read_sealed(folder / "scores" / f"{name}.json")
            if known["made_of"] == made_of:
                return np.array([known[metric] for metric in METRICS])
        return self.of(read_json(predictions))

    def _made_of(self, file: str) -> str:
        return xxh3_64_hexdigest((self._checksum + file).encode())

    @cached_property
    def _checksum(self) -> str:
        made_of = [self.scorer.row, list(self.golds.items()), content_checksum(CODE), unicodedata.unidata_version]
        return xxh3_64_hexdigest(json.dumps(made_of).encode())


def marking_of(examples: Iterable[Example], scorer: Scorer) -> Marking:
    return Marking(scorer, {example.id: example.answers for example in examples})
