"""The questions that a recipe trains on and tests on."""

from swep_ds.data.readers import Example, read_examples
from swep_ds.data.splits import halves, hold_out_articles, samples_of, subset
from swep_ds.errors import InputError
from swep_ds.recipe import HOLDOUT, DataSection, Recipe


def load_examples(
    recipe: Recipe, training_source: str = "data.train"
) -> tuple[list[Example], dict[str, list[Example]]]:
    """Training examples, augmented samples last, and test examples by data set, held-out articles first."""
    data: DataSection = recipe.data
    training, tests = _tests(data, _read(training_source, data.train, training=True))
    training = subset(training, data.train_fraction, data.max_train_examples, recipe.seed)
    if data.augmented:
        training += samples_of(training, _read("data.augmented", data.augmented, training=True))
    return training, tests


def reported_examples(recipe: Recipe) -> dict[str, list[Example]]:
    """The questions that a run's results are of, by data set: of `eval.select_on` the half that did not choose.

    Raises:
        InputError: a source cannot be read.
    """
    data: DataSection = recipe.data
    _, tests = _tests(data, _read("data.train", data.train, training=True) if data.holdout_fraction else [])
    if chosen_on := recipe.eval.select_on:
        _, tests[chosen_on] = halves(tests[chosen_on])
    return tests


def _tests(data: DataSection, training: list[Example]) -> tuple[list[Example], dict[str, list[Example]]]:
    """What is left to train on, and the test examples by data set, held-out articles first."""
    tests: dict[str, list[Example]] = {}
    if data.holdout_fraction:
        training, tests[HOLDOUT] = hold_out_articles(training, data.holdout_fraction)
    for name, source in data.eval.items():
        tests[name] = _read(f"data.eval.{name}", source, training=False)
    if data.max_eval_examples:
        tests = {name: subset(examples, 1.0, data.max_eval_examples, seed=0) for name, examples in tests.items()}
    return training, tests


def _read(field: str, source: str, *, training: bool) -> list[Example]:
    try:
        return read_examples(source, training=training)
    except InputError as error:
        raise InputError(f"{field}: {error}") from None
