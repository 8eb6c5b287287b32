"""What a run's noise was and did to the answer (`swep_ds/methods/noise_effect.py`): statements in words, and a table.

The noise changes while it learns, so only the second half of the run counts. Each change is against noise from the
prior with the same eps, with the half-width of a 95 % interval over the lines of metrics.jsonl.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

ANSWERS = {"gold": "gold answer", "guess": "model's own guess"}
MIN_LINES = 4  # lines of metrics.jsonl; with fewer the interval is too wide to say anything
# what the last line that has these values says
LAST = {"size": ("mu", "sigma"), "kl": ("kl_per_window",), "words": ("words_changed", "words_changed_clean")}
Lines = Sequence[Mapping[str, Any]]  # metrics.jsonl


class NllChange(NamedTuple):
    """A mean change of the nll in nats, and the half-width of its 95 % interval."""

    mean: float
    margin: float

    @classmethod
    def of(cls, changes: np.ndarray) -> "NllChange":
        t = float(stdtrit(len(changes) - 1, 0.975))
        return cls(float(changes.mean()), t * float(changes.std(ddof=1)) / math.sqrt(len(changes)))

    def __str__(self) -> str:
        return f"{self.mean:+.3f} ± {self.margin:.3f}"

    @property
    def is_clear(self) -> bool:
        return abs(self.mean) > self.margin


Row = tuple[str, float, NllChange, NllChange]  # answer, nll under noise from the prior, changes: learned, shuffled


class NoiseEffect(NamedTuple):
    lines: int
    rows: list[Row]
    statement: str


def noise_effect(lines: Lines) -> NoiseEffect | None:
    """From metrics.jsonl; None where fewer than `MIN_LINES` lines of the second half hold the comparison."""
    names = [f"{answer}_nll_{noise}" for answer in ANSWERS for noise in ("learned", "shuffled", "prior")]
    known = [line for line in lines if _has(line, names) and 2 * line["update"] > lines[-1]["update"]]
    if len(known) < MIN_LINES:
        return None
    nll = {name: np.array([line[name] for line in known]) for name in names}
    rows = []
    for answer, title in ANSWERS.items():
        prior = nll[f"{answer}_nll_prior"]
        learned = NllChange.of(nll[f"{answer}_nll_learned"] - prior)
        rows.append((title, float(prior.mean()), learned, NllChange.of(nll[f"{answer}_nll_shuffled"] - prior)))
    gold, guess = (nll[f"{answer}_nll_learned"] - nll[f"{answer}_nll_prior"] for answer in ANSWERS)
    return NoiseEffect(len(known), rows, _statement(rows, NllChange.of(guess - gold)))


def noise_size(lines: Lines) -> dict[str, Mapping[str, Any] | None]:
    """The last line with each kind of `LAST`; None where there is no such line."""
    return {kind: next((line for line in reversed(lines) if _has(line, names)), None) for kind, names in LAST.items()}


def _has(line: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(name in line and math.isfinite(line[name]) for name in names)


def _statement(rows: Sequence[Row], favour: NllChange) -> str:
    """`favour`: by how much more learned noise changes the nll of the guess than that of the gold answer."""
    clear = [(title, learned, shuffled) for title, _, learned, shuffled in rows if learned.is_clear]
    if not clear:
        return "Learned noise does to the answer what noise from the prior does, as far as these updates can tell."
    effects = []
    for title, learned, _ in clear:
        verb = "lowers" if learned.mean < 0 else "raises"
        effects.append(f"{verb} the nll of the {title} by {abs(learned.mean):.3f} nats")
    effect = " and ".join(effects)
    if favour.is_clear and favour.mean < 0:
        effect += ", which favours what the model believes already over the gold answer"
    elif favour.is_clear:
        effect += ", which favours the gold answer over what the model believes already"
    title, _, shuffled = max(clear, key=lambda change: abs(change[1].mean))
    return f"Learned noise {effect}. Shuffled, it changes the nll of the {title} by {shuffled} nats."
