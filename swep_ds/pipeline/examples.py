"""Recipe -> examples: the questions that a run trains on and tests on."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from swep_ds.common.errors import InputError
from swep_ds.data.example import Example
from swep_ds.data.layouts import settle_repeated
from swep_ds.data.readers import read_examples
from swep_ds.data.splits import halves, hold_out_articles, samples_of, subset
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.results import read_predictions
from swep_ds.pipeline.inputs import check_unchanged, source_of_test_set
from swep_ds.pipeline.recipe import HOLDOUT, DataSection, Recipe
from swep_ds.ranks.launch import is_first_on_node

log = logging.getLogger(__name__)


def load_examples(
    recipe: Recipe, training_source: str = "data.train"
) -> tuple[list[Example], dict[str, list[Example]]]:
    """Training examples, augmented samples last, and test examples by data set, held-out articles first.

    Raises InputError: a source cannot be read; or no training question has an answer.
    """
    data = recipe.data
    training = _read(data, training_source, data.train, training=True)
    training, tests = _tests(data, training, recipe.test_sets)
    if not any(example.answers for example in training):
        raise InputError(f"{training_source} {data.train}: no question has an answer: give some that have")
    training = subset(training, data.train_fraction, data.max_train_examples, recipe.seed)
    warn_of_known(training, tests, training_source)
    if data.augmented:
        training += samples_of(training, _read(data, "data.augmented", data.augmented, training=True))
    return training, tests


def reported_examples(recipe: Recipe, name: str) -> list[Example]:
    """The questions behind a run's results on one test set; of `Recipe.validation_set` only the reported half.

    The sources of other sets are not read.

    Raises:
        InputError: the source cannot be read, or the recipe has no test set of that name.
    """
    examples = _test(recipe, name)
    return halves(examples)[1] if name == recipe.validation_set else examples


def validation_examples(recipe: Recipe, run: Path) -> list[Example]:
    """The half of `Recipe.validation_set` that chooses; the recipe must have one.

    Args:
        run: folder of a finished run of the recipe.

    Raises:
        InputError: its source cannot be read or has changed since the run, or gives other questions than the run had,
            which then may have trained on this half.
    """
    name = recipe.validation_set
    field = source_of_test_set(name)
    check_unchanged(recipe, run, [field])
    chosen_by, reported = halves(_test(recipe, name))
    if [example.id for example in reported] != list(read_predictions(run, name)):
        raise InputError(
            f"{field} {recipe.data.train if name == HOLDOUT else recipe.data.eval[name]}: its questions are not those "
            f"that {run} reported: restore the data, or train again (an earlier version may have split them otherwise)"
        )
    return chosen_by


def _test(recipe: Recipe, name: str) -> list[Example]:
    """A whole test set, read once more."""
    data = recipe.data
    if name not in recipe.test_sets:
        known = ", ".join(recipe.test_sets) or "none"
        raise InputError(f"the recipe has no test set {name} (found: {known}): name another")
    training = _read(data, "data.train", data.train, training=True, warn=False) if name == HOLDOUT else []
    return _tests(data, training, [name], warn=False)[1][name]


def _tests(
    data: DataSection, training: list[Example], names: Sequence[str], *, warn: bool = True
) -> tuple[list[Example], dict[str, list[Example]]]:
    """The remaining training examples, and the test examples of these data sets, held-out articles first."""
    tests: dict[str, list[Example]] = {}
    if HOLDOUT in names:
        training, held = hold_out_articles(training, data.holdout_fraction)
        tests[HOLDOUT] = held
        total, asked = len(held) + len(training), data.holdout_fraction
        if warn and not asked / 2 <= len(held) / total <= 2 * asked:
            _warn(
                f"data.holdout_fraction {asked:g}: {len(held)} of {total} questions are held out, which is "
                f"{100 * len(held) / total:.2g} %: the articles are too large for a closer split"
            )
    for name, source in data.eval.items():
        if name in names:
            tests[name] = _read(data, f"data.eval.{name}", source, training=False, warn=warn)
    if data.max_eval_examples:
        tests = {name: subset(examples, 1.0, data.max_eval_examples, seed=0) for name, examples in tests.items()}
    return training, tests


def _read(data: DataSection, field: str, source: str, *, training: bool, warn: bool = True) -> list[Example]:
    """`warn`: whether the run has not said yet which questions are special, and how many."""
    try:
        examples = read_examples(
            source,
            training=training,
            unanswerable=data.unanswerable != "error",
            repeated=data.repeated_answers != "error",
        )
    except InputError as error:
        raise InputError(f"{field}: {error}") from None
    total, remarks = len(examples), {}  # number of questions by what they have
    if training:
        examples, repeated = settle_repeated(examples, data.repeated_answers)
        end = "are left out" if data.repeated_answers == "drop" else "are trained on its first place"
        remarks[f"an answer that occurs several times in its context, and {end} (data.repeated_answers)"] = repeated
    without = sum(not example.answers for example in examples)
    if data.unanswerable == "drop":
        examples = [example for example in examples if example.answers]
        remarks["no answer and are left out"] = without
    elif training:
        remarks["no answer and teach the model to decline (data.unanswerable)"] = without
    if not examples:
        raise InputError(
            f"{field}: {source}: all of its {total} questions are dropped (data.unanswerable, data.repeated_answers): "
            "name other data"
        )
    for remark, count in remarks.items():
        if count and warn:
            _warn(f"{field}: {count} of {total} questions have {remark}")
    return examples


# What a start warns of, once a node


def _warn(text: str) -> None:
    if is_first_on_node():
        log.warning("%s", text)


def warn_of_known(training: list[Example], tests: Mapping[str, list[Example]], training_source: str) -> None:
    """Warns of test questions that are trained on."""
    known = {(example.question, example.context) for example in training}
    for name, examples in tests.items():
        if count := sum((example.question, example.context) in known for example in examples):
            _warn(
                f"test set {name}: {count} of its {len(examples)} questions are in {training_source}, with the same "
                "contexts: its scores say little about new text"
            )


def warn_without_overlap(settings: WindowSettings) -> None:
    """Warns of windows that begin where the one before ends, or later."""
    if settings.doc_stride >= settings.max_length:
        _warn(
            f"doc_stride {settings.doc_stride}: windows of {settings.max_length} tokens then do not overlap, and an "
            "answer at the end of one is cut: lower it"
        )
