"""The KL and the effects of noise in the runs of learned_noise, and their points above the line of published models.

    python studies/learned_noise/effects.py runs/learned_noise

For each run of SWEP, from its `metrics.jsonl`: the mean KL a window over the last tenth of the updates, and the nll
under learned and shuffled noise less that under noise from the prior, mean ± standard error over the batches of the
second half at which the noise was compared. Then means over the runs of an arm, ± the standard error over seeds. The
last table has points above the line, seeds 0 to 5 with the last weights. Intervals are Student's t over seeds, 95 %.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from scipy import stats

from swep_ds.analysis.noise_report import late_noise
from swep_ds.analysis.robustness import ABOVE, add_points, published
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, read_lines

EFFECTS = tuple((answer, noise) for answer in ("gold", "guess") for noise in ("learned", "shuffled"))
ARMS = ("swep", "swep-shuffled")
OTHERS = ("prior-aug-0-1", "prior-aug-0-333", "mle-two-dropout-masks", "mle-equal-compute")
SEEDS = 6  # seeds behind the points above the line


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    return ["", line(*cells), line(*["---"] * len(cells))]


def mean_and_error(values: np.ndarray) -> str:
    return f"{values.mean():+.4f} ± {stats.sem(values):.4f}"


def difference(name: str, values: np.ndarray, digits: int) -> str:
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return f"{name}: {values.mean():+.{digits}f}, 95 % {low:+.{digits}f} to {high:+.{digits}f}"


def effects_of(run: Path) -> tuple[float, np.ndarray]:
    """The KL over the last tenth, and the effects [batches, 4] in the order of `EFFECTS`."""
    metrics = read_lines(file := run / "metrics.jsonl")
    if not metrics:
        raise InputError(f"{file}: has no lines: unpack the run's archive again")
    compared = [entry for entry in metrics if 2 * entry["update"] > metrics[-1]["update"] and "gold_nll_prior" in entry]
    effects = [[entry[f"{a}_nll_{n}"] - entry[f"{a}_nll_prior"] for a, n in EFFECTS] for entry in compared]
    return late_noise(metrics)["kl_per_window"], np.array(effects)


def noise(folder: Path) -> list[str]:
    lines = []
    for arm in ARMS:
        lines += head("run", "KL, last tenth", *(", ".join(effect) for effect in EFFECTS))
        seeds = []
        for run in sorted(folder.glob(f"{arm}-seed[0-9]*")):
            kl, effects = effects_of(run)
            seeds.append(effects.mean(0))
            lines.append(line(run.name, f"{kl:.1f}", *map(mean_and_error, effects.T)))
        if len(seeds) < 2:
            raise InputError(f"{folder}: has no two runs of {arm}: unpack the archives there")
        lines.append(line(f"{arm}, mean over {len(seeds)} seeds", "", *map(mean_and_error, np.transpose(seeds))))
        by_effect = dict(zip(EFFECTS, np.transpose(seeds), strict=True))
        lines.append("")
        for a, b in ((("guess", "learned"), ("gold", "learned")), (("guess", "learned"), ("guess", "shuffled"))):
            lines.append(difference(f"{arm}, {' '.join(a)} less {' '.join(b)}", by_effect[a] - by_effect[b], 4))
    return lines


def robustness(folder: Path) -> list[str]:
    fitted = published("squadshifts")
    lines, points = head("points above the line, Amazon", "mean ± SD"), {}
    for arm in (*ARMS, *OTHERS):
        scores = [read_json(folder / f"{arm}-seed{s}" / "unaveraged" / "results.json")["eval"] for s in range(SEEDS)]
        points[arm] = above = np.array([add_points(score, fitted)["amazon"][ABOVE] for score in scores])
        lines.append(line(arm, f"{above.mean():+.1f} ± {above.std(ddof=1):.1f}"))
    stronger = points["prior-aug-0-333"] - points["prior-aug-0-1"]
    return [*lines, "", difference("Prior-Aug 0.333 less Prior-Aug 0.1", stronger, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="folder of the sweep's runs")
    folder = parser.parse_args().sweep
    try:
        print("\n".join([*noise(folder), *robustness(folder)]))
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
