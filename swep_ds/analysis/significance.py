"""Is the difference between two methods larger than chance? Intervals for rows of runs, over the seeds in common.

There are two kinds. The crossed interval (`crossed.py`) says what other seeds and other questions would give. The
question bootstrap says what other questions would give for these trained models; it knows nothing of other seeds.
"""

import zlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from swep_ds.analysis.crossed import LEVEL, MIN_SEEDS, MIN_TEXTS, estimate
from swep_ds.analysis.runs import Run
from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.splits import clusters, effective_clusters
from swep_ds.evaluation.calibration import MIN_CLUSTERS
from swep_ds.evaluation.predictions import Marking
from swep_ds.evaluation.results import METRICS, OUT_OF_DOMAIN
from swep_ds.pipeline.examples import reported_examples, source_of_test_set
from swep_ds.pipeline.inputs import check_unchanged
from swep_ds.pipeline.recipe import HOLDOUT, Recipe

RESAMPLES = 10_000
ELEMENTS = 2**22  # the bootstrap's counts that are in memory at a time
ROUNDING = 0.01  # points by which scores computed again may differ from those in results.json
Rows = Mapping[str, Sequence[Run]]
Difference = dict[str, Any]
Place = tuple[str, str, str]  # row, data set, metric
# by row and data set: differences [S, Q, 2], each question's cluster [Q], resampled means [RESAMPLES, 2]
Known = dict[tuple[str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]


def note_on_shared_ids(ids: Mapping[str, Collection[str]]) -> list[str]:
    """A line if two data sets, whose mean has an interval, have more than half of their question ids in common, as
    translations of one set have."""
    parallel = []
    for name, other in combinations(ids, 2):
        shared = len(set(ids[name]) & set(ids[other]))
        if 2 * shared > min(len(ids[name]), len(ids[other])):
            parallel += [name, other]
    if not parallel:
        return []
    return [
        f"{', '.join(dict.fromkeys(parallel))} share question ids. The interval of the mean over data sets takes their "
        "questions as unrelated: if they are the same questions, it is too narrow, so read one of these sets."
    ]


class QuestionScores:
    """EM and F1 of each question of each run, as `Marking.read` has them by the answers of its recipe's data. `notes`:
    what could not be read or compared."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._read: dict[Hashable, Any] = {}

    def of(self, run: Run, data_set: str) -> np.ndarray | None:
        """[2, Q]: EM and F1 in percent, in the order of `examples`; 0 without a prediction. None if data or predictions
        cannot be read, have changed since the run, or do not give the scores in the results."""
        examples = self.examples(run.recipe, data_set)
        if not examples:
            return None
        scorer = run.recipe.eval.scorer_of(data_set)
        marking = self._once((id(examples), scorer), "", lambda: Marking(examples, scorer))
        return self._once((run.folder, data_set), "No interval with {}.", lambda: _scores(run, data_set, marking))

    def examples(self, recipe: Recipe, data_set: str) -> list[Example] | None:
        """The questions, read once for all runs that are tested on the same ones; None if they cannot be read."""
        data = recipe.data
        source = data.eval.get(data_set)
        if data_set == HOLDOUT:
            source = (data.sources[data.home_field], data.holdout_fraction)
        half = (recipe.validation_set == data_set, recipe.eval.select_on == data_set)
        key = (data_set, source, data.max_eval_examples, data.choices, half)
        note = f"No intervals on {data_set}: its questions cannot be read ({{}})."
        return self._once(key, note, lambda: reported_examples(recipe, data_set))

    def _once(self, key: Hashable, note: str, read: Callable[[], Any]) -> Any:
        if key not in self._read:
            self._read[key] = None
            try:
                self._read[key] = read()
            except InputError as error:
                self.notes.append(note.replace("{}", str(error)))
        return self._read[key]


def _scores(run: Run, data_set: str, marking: Marking) -> np.ndarray:
    check_unchanged(run.recipe, run.folder, [source_of_test_set(run.recipe, data_set)])
    scores_2Q = 100 * marking.read(run.folder, data_set)
    em, f1 = scores_2Q.mean(1)
    reported = run.results.eval[data_set]
    if not np.allclose((em, f1), (reported["exact_match"], reported["f1"]), atol=ROUNDING):
        raise InputError(
            f"{run.folder / 'predictions' / data_set}.json: it scores {em:.2f} / {f1:.2f} on today's data, and "
            f"{reported['exact_match']:.2f} / {reported['f1']:.2f} in results.json"
        )
    return scores_2Q


def compare(comparisons: Sequence[tuple[Rows, str | None]], scores: QuestionScores) -> list[dict[Place, Difference]]:
    """Differences of the rows with seeds in common to a base row, in points, over these seeds; of several rows and
    bases that were tested on the same questions. They share the bootstrap's draws, which take more time than the rest.

    Returns:
        For each comparison, by row, data set and metric: these as "method", "data_set" and "metric", "against": the
        base, "difference", "difference_n": seeds, "difference_std" from seed to seed; "difference_low", "_high" and
        "_p" of the crossed interval and "difference_no_difference": whether it is smaller than `MARGIN` by its test;
        "difference_bootstrap_low" and "_high". Those that are not known are left out. Two or more shifted sets also
        have their mean, `OUT_OF_DOMAIN`.
    """
    known: list[Known] = [{} for _ in comparisons]
    bases = [rows[base][0] for rows, base in comparisons if rows.get(base)]
    for column in dict.fromkeys(column for run in bases for column in run.results.scores):
        differences = [question_differences(rows, base, column, scores) for rows, base in comparisons]
        means = [np.concatenate([d.mean(0) for d in of_rows.values()], axis=1) for of_rows in differences if of_rows]
        if not means:
            continue
        clusters_Q = clusters(scores.examples(bases[0].recipe, column))
        samples = iter(resampled_means(means, clusters_Q, column))
        for of_comparison, of_rows in zip(known, differences, strict=True):
            parts = np.split(next(samples), len(of_rows), axis=1) if of_rows else []
            for (name, values_SQ2), of_row in zip(of_rows.items(), parts, strict=True):
                of_comparison[name, column] = (values_SQ2, clusters_Q, of_row)
    return [_entries(*each, of_each, scores) for each, of_each in zip(comparisons, known, strict=True)]


def _entries(rows: Rows, base: str | None, known: Known, scores: QuestionScores) -> dict[Place, Difference]:
    if not rows.get(base):
        return {}
    columns = list(rows[base][0].results.scores)  # the source domain first
    ids = {}
    for column in columns[1:]:
        if any(of_row == column for _, of_row in known):
            ids[column] = [example.id for example in scores.examples(rows[base][0].recipe, column)]
    scores.notes += note_on_shared_ids(ids)
    parts = {column: [column] for column in columns}
    if len(columns) > 2:
        parts[OUT_OF_DOMAIN] = columns[1:]
    base_seeds = {run.seed for run in rows[base]}
    result = {}
    for name, runs in rows.items():
        if name == base or base_seeds.isdisjoint(run.seed for run in runs):
            continue
        for part, data_sets in parts.items():
            bounds = {}
            if all((name, data_set) in known for data_set in data_sets):
                bounds = _intervals([known[name, data_set] for data_set in data_sets])
            for number, metric in enumerate(METRICS):
                entry = {"method": name, "against": base, "data_set": part, "metric": metric}
                entry |= _seed_figures(runs, rows[base], data_sets, metric)
                entry |= {f"difference_{bound}": of_metrics[number].item() for bound, of_metrics in bounds.items()}
                result[name, part, metric] = entry
    return result


def _seed_figures(runs: Sequence[Run], base: Sequence[Run], data_sets: Sequence[str], metric: str) -> Difference:
    """The difference in the mean over data sets, from the scores of the runs."""

    def by_seed(row: Sequence[Run]) -> dict[int, float]:
        scores = {run.seed: [run.results.scores[data_set][metric] for data_set in data_sets] for run in row}
        return {seed: sum(values) / len(values) for seed, values in scores.items()}

    of_row = by_seed(runs)
    of_base = by_seed(base)
    each = [of_row[seed] - of_base[seed] for seed in sorted(of_row) if seed in of_base]
    figures = {"difference": float(np.mean(each)), "difference_n": len(each)}
    if len(each) > 1:
        figures["difference_std"] = float(np.std(each, ddof=1))
    return figures


def _intervals(sets: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Bounds and tests, each of EM and F1, for the difference in the mean over data sets. `sets`: by data set, the
    differences [S, Q, 2], each question's cluster [Q], and resampled means [RESAMPLES, 2]."""
    bounds = {}
    texts = min(effective_clusters(clusters_Q) for _, clusters_Q, _ in sets)
    if texts >= MIN_CLUSTERS:
        bounds["bootstrap_low"], bounds["bootstrap_high"] = interval(np.mean([samples for *_, samples in sets], axis=0))
    if len(sets[0][0]) >= MIN_SEEDS and texts >= MIN_TEXTS:
        crossed = estimate([(np.moveaxis(values_SQ2, -1, 0), clusters_Q) for values_SQ2, clusters_Q, _ in sets])
        bounds["low"], bounds["high"] = crossed.interval()
        bounds |= {"p": crossed.p(), "no_difference": crossed.within()}
    return bounds


def question_differences(rows: Rows, base: str | None, column: str, scores: QuestionScores) -> dict[str, np.ndarray]:
    """By row, [S, Q, 2]: EM and F1 of the runs less those of the base's run with the same seed, in points, in the order
    of the seeds and of the questions of the base's first run. Rows without a seed in common, or that cannot be read,
    are missing; all are if a run of the base cannot be read."""
    if not rows.get(base):
        return {}
    asked = scores.examples(rows[base][0].recipe, column)

    def scores_of(run: Run) -> np.ndarray | None:
        scores_2Q = scores.of(run, column)
        examples = scores.examples(run.recipe, column)
        if scores_2Q is None or examples is asked:
            return scores_2Q
        place = {example.id: number for number, example in enumerate(examples)}
        return scores_2Q[:, [place[example.id] for example in asked]]

    base_scores = {run.seed: scores_of(run) for run in rows[base]}
    if any(of_run is None for of_run in base_scores.values()):
        return {}
    differences = {}
    for name, runs in rows.items():
        row_scores = {run.seed: scores_of(run) for run in runs if name != base and run.seed in base_scores}
        if row_scores and all(of_run is not None for of_run in row_scores.values()):
            by_seed = [row_scores[seed] - base_scores[seed] for seed in sorted(row_scores)]
            differences[name] = np.array(by_seed).transpose(0, 2, 1)
    return differences


def resampled_means(values: Sequence[np.ndarray], clusters: np.ndarray, data_set: str) -> list[np.ndarray]:
    """Means [RESAMPLES, k] of each of `values` [Q, k] if clusters of questions, numbered from 0 in `clusters` [Q], are
    drawn with replacement. All share the draws, which `data_set` seeds."""
    ones_Q = np.ones(len(clusters))
    sums = [np.stack([np.bincount(clusters, column) for column in (*each.T, ones_Q)], axis=1) for each in values]
    number = len(sums[0])
    rng = np.random.default_rng(zlib.crc32(data_set.encode()))
    chunk = max(1, ELEMENTS // number)
    means = [np.empty((RESAMPLES, each.shape[1])) for each in values]
    for begin in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - begin)
        drawn = rng.integers(number, size=(size, number)) + number * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * number).reshape(size, number).astype(float)
        for of_means, of_sums in zip(means, sums, strict=True):
            totals = counts @ of_sums
            of_means[begin : begin + size] = totals[:, :-1] / totals[:, -1:]
    return means


def interval(samples: np.ndarray) -> np.ndarray:
    """The percentile interval of `LEVEL` percent of each column: [2, k], low and high."""
    tail = (100 - LEVEL) / 2
    return np.percentile(samples, [tail, 100 - tail], axis=0)
