"""What a run's noise was and did to the answer (`swep_ds/methods/noise_effect.py`), in numbers.

The noise changes while it learns, so only the second half of the run counts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from swep_ds.analysis.crossed import Estimate

ANSWERS = {"gold": "gold answer", "guess": "model's own guess"}
MIN_LINES = 4  # lines of metrics.jsonl; with fewer the interval is too wide to say anything
# what the last line that has these values says
LAST = {"size": ("mu", "sigma"), "kl": ("kl_per_window",), "words": ("words_changed", "words_changed_clean")}
Lines = Sequence[Mapping[str, Any]]  # metrics.jsonl


def noise_effect(lines: Lines) -> dict[str, Any] | None:
    """From metrics.jsonl; None where fewer than `MIN_LINES` lines of the second half hold the comparison.

    "lines": their number. "rows": of each answer its title, "prior", the nll under noise from the prior, and the
    changes against it, with the same eps, by the "learned" noise and by the same "shuffled". "changed": the rows that
    learned noise changes for certain; "largest": the one that it changes most. "favour": by how much more it changes
    the nll of the guess than that of the gold answer.
    """
    names = [f"{answer}_nll_{noise}" for answer in ANSWERS for noise in ("learned", "shuffled", "prior")]
    known = [line for line in lines if _has(line, names) and 2 * line["update"] > lines[-1]["update"]]
    if len(known) < MIN_LINES:
        return None
    nll = {name: np.array([line[name] for line in known]) for name in names}
    learned = {}
    rows = []
    for answer, title in ANSWERS.items():
        prior = nll[f"{answer}_nll_prior"]
        learned[answer] = nll[f"{answer}_nll_learned"] - prior
        shuffled = nll[f"{answer}_nll_shuffled"] - prior
        changes = {"learned": _mean(learned[answer]), "shuffled": _mean(shuffled)}
        rows.append({"title": title, "prior": prior.mean(), **changes})
    changed = [row for row in rows if abs(row["learned"].mean) > row["learned"].margin()]
    largest = max(changed, key=lambda row: abs(row["learned"].mean), default=None)
    favour = _mean(learned["guess"] - learned["gold"])
    return {"lines": len(known), "rows": rows, "changed": changed, "largest": largest, "favour": favour}


def _mean(changes: np.ndarray) -> Estimate:
    """The mean change of the nll in nats, over the lines of metrics.jsonl."""
    return Estimate(changes.mean(), changes.var(ddof=1) / len(changes), len(changes) - 1)


def noise_size(lines: Lines) -> dict[str, Mapping[str, Any] | None]:
    """The last line with each kind of `LAST`; None where there is no such line."""
    return {kind: next((line for line in reversed(lines) if _has(line, names)), None) for kind, names in LAST.items()}


def late_noise(lines: Lines) -> dict[str, float]:
    """The means over the last tenth of the updates of what `dose` takes, as far as the lines have it."""
    late = [line for line in lines if line["update"] > 0.9 * lines[-1]["update"]]
    means = {}
    for name in ("kl_per_window", "sigma_spread", "mu_spread"):
        if known := [line[name] for line in late if _has(line, [name])]:
            means[name] = sum(known) / len(known)
    return means


def _has(line: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(name in line and math.isfinite(line[name]) for name in names)
