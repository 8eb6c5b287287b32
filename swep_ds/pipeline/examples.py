"""Recipe -> examples: the questions that a run trains on and tests on."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from swep_ds.common.errors import InputError
from swep_ds.data.layouts import settle_repeated
from swep_ds.data.readers import Example, read_examples
from swep_ds.data.splits import halves, hold_out_articles, samples_of, subset
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.results import read_predictions
from swep_ds.pipeline.inputs import check_unchanged, source_of_test_set
from swep_ds.pipeline.recipe import HOLDOUT, DataSection, Recipe
from swep_ds.ranks.environment import is_first_on_node

log = logging.getLogger(__name__)


def load_examples(
    recipe: Recipe, training_source: str = "data.train"
) -> tuple[list[Example], dict[str, list[Example]]]:
    """Training examples, augmented samples last, and test examples by data set, held-out articles first.

    Raises InputError: a source cannot be read; or no training question has an answer.
    """
    data: DataSection = recipe.data
    training, tests = _tests(data, _read(data, training_source, data.train, training=True), recipe.test_sets)
    if not any(example.answers for example in training):
        raise InputError(f"{training_source} {data.train}: no question has an answer: give some that have")
    training = subset(training, data.train_fraction, data.max_train_examples, recipe.seed)
    warn_of_known(training, tests, training_source)
    if data.augmented:
        training += samples_of(training, _read(data, "data.augmented", data.augmented, training=True))
    return training, tests


def warn_of_known(training: list[Example], tests: Mapping[str, list[Example]], training_source: str) -> None:
    """Warns, once a node, of test questions that are trained on."""
    if not (tests and is_first_on_node()):
        return
    known = {(example.question, example.context) for example in training}
    for name, examples in tests.items():
        if count := sum((example.question, example.context) in known for example in examples):
            log.warning(
                "test set %s: %d of its %d questions are in %s, with the same contexts: its scores say little about "
                "new text",
                name,
                count,
                len(examples),
                training_source,
            )


def reported_examples(recipe: Recipe, name: str) -> list[Example]:
    """The questions behind a run's results on one test set; of `Recipe.validation_set` only the reported half.

    The sources of other sets are not read.

    Raises:
        InputError: the source cannot be read, or the recipe has no test set of that name.
    """
    data: DataSection = recipe.data
    if name not in (known := recipe.test_sets):
        raise InputError(f"the recipe has no test set {name} (found: {', '.join(known) or 'none'}): name another")
    training = _read(data, "data.train", data.train, training=True, warn=False) if name == HOLDOUT else []
    _, tests = _tests(data, training, [name], warn=False)
    return halves(tests[name])[1] if name == recipe.validation_set else tests[name]


def validation_examples(recipe: Recipe, run: Path) -> list[Example]:
    """The half of `Recipe.validation_set` that chooses; the recipe must have one.

    Args:
        run: folder of a finished run of the recipe.

    Raises:
        InputError: its source cannot be read or has changed since the run, or gives other questions than the run had,
            which then may have trained on this half.
    """
    data, name = recipe.data, recipe.validation_set
    check_unchanged(recipe, run, [source_of_test_set(name)])
    held_out = name == HOLDOUT
    training = _read(data, "data.train", data.train, training=True, warn=False) if held_out else []
    _, tests = _tests(data, training, [name], warn=False)
    chosen_by, reported = halves(tests[name])
    if [example.id for example in reported] != list(read_predictions(run, name)):
        field, source = ("data.train", data.train) if held_out else (f"data.eval.{name}", data.eval[name])
        raise InputError(
            f"{field} {source}: its questions are not those that {run} reported: restore the data, or train again (an "
            "earlier version may have split them otherwise)"
        )
    return chosen_by


def _tests(
    data: DataSection, training: list[Example], names: Sequence[str], *, warn: bool = True
) -> tuple[list[Example], dict[str, list[Example]]]:
    """The remaining training examples, and the test examples of these data sets, held-out articles first."""
    tests: dict[str, list[Example]] = {}
    if HOLDOUT in names:
        training, tests[HOLDOUT] = hold_out_articles(training, data.holdout_fraction)
        if warn:
            _warn_of_another_share(len(tests[HOLDOUT]), len(training), data.holdout_fraction)
    for name, source in data.eval.items():
        if name in names:
            tests[name] = _read(data, f"data.eval.{name}", source, training=False, warn=warn)
    if data.max_eval_examples:
        tests = {name: subset(examples, 1.0, data.max_eval_examples, seed=0) for name, examples in tests.items()}
    return training, tests


def warn_of_unequal_halves(name: str, choosing: int, reported: int) -> None:
    """Warns if one of the `halves` of a data set has less than a third of its questions."""
    if 3 * min(choosing, reported) < choosing + reported and is_first_on_node():
        log.warning(
            "%s: %d questions choose, and %d are reported: its articles are too large for equal halves",
            name,
            choosing,
            reported,
        )


def warn_without_overlap(settings: WindowSettings) -> None:
    """Warns, once a node, of windows of which the next begins where the one before ends, or later."""
    if settings.doc_stride >= settings.max_length and is_first_on_node():
        log.warning(
            "doc_stride %d: windows of %d tokens then do not overlap, and an answer at the end of one is cut: lower it",
            settings.doc_stride,
            settings.max_length,
        )


def _warn_of_another_share(held: int, kept: int, fraction: float) -> None:
    share = held / (held + kept)
    if not fraction / 2 <= share <= 2 * fraction and is_first_on_node():
        log.warning(
            "data.holdout_fraction %g: %d of %d questions are held out, which is %.2g %%: the articles are too large "
            "for a closer split",
            fraction,
            held,
            held + kept,
            100 * share,
        )


def _read(data: DataSection, field: str, source: str, *, training: bool, warn: bool = True) -> list[Example]:
    """`warn`: whether the run has not said yet which questions are special, and how many."""
    counts: list[tuple[int, str]] = []
    try:
        examples = read_examples(
            source,
            training=training,
            unanswerable=data.unanswerable != "error",
            repeated=data.repeated_answers != "error",
        )
    except InputError as error:
        raise InputError(f"{field}: {error}") from None
    total = len(examples)
    if training:
        examples, repeated = settle_repeated(examples, data.repeated_answers)
        end = "are left out" if data.repeated_answers == "drop" else "are trained on its first place"
        what = f"an answer that occurs several times in its context, and {end} (data.repeated_answers)"
        counts.append((repeated, what))
    without = sum(not example.answers for example in examples)
    if data.unanswerable == "drop":
        examples = [example for example in examples if example.answers]
        counts.append((without, "no answer and are left out"))
    elif training:
        counts.append((without, "no answer and teach the model to decline (data.unanswerable)"))
    if not examples:
        raise InputError(
            f"{field}: {source}: all of its {total} questions are dropped (data.unanswerable, data.repeated_answers): "
            "name other data"
        )
    for count, what in counts:
        if count and warn and is_first_on_node():
            log.warning("%s: %d of %d questions have %s", field, count, total, what)
    return examples
