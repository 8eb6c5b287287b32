"""Recipe -> examples: the questions that a run trains on and tests on, and whether its files have changed since."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations, groupby
from pathlib import Path

from swep_ds.common.errors import InputError, at
from swep_ds.data.answers import normalize_answer
from swep_ds.data.choices import Choices, Remark
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.data.splits import clusters, halves, hold_out_again, hold_out_articles, samples_of, subset, texts
from swep_ds.evaluation.calibration import FOLDS, MIN_OF_EACH
from swep_ds.evaluation.results import RESULTS, read_predictions, read_results
from swep_ds.pipeline.asked import held_out_by
from swep_ds.pipeline.inputs import check_unchanged, questions_checksum
from swep_ds.pipeline.recipe import HOLDOUT, DataSection, Recipe
from swep_ds.ranks.environment import warn_once

Remarks = list[dict[str, str]]  # rows of remarks.jsonl
ABOUT_HELD_OUT = "about a held-out article: left out"
CONTRADICTED = "another row gives a different answer from the same text, and both are trained on: remove the wrong one"
MOST_COMPARED = 20  # questions with the same words about one text, of which generated data may have many
AROUND = 40  # characters on either side of an answer, by which its place is known in another passage of its text


def load_examples(recipe: Recipe, remarks: Remarks | None = None) -> tuple[list[Example], dict[str, list[Example]]]:
    """Training examples, none of them on held-out articles, those of a mix in the order of its sources and augmented
    samples last; and test examples by data set, held-out articles first.

    `remarks` gets the "field", "id" and "reason" of every question that is left out, moved or doubtful, and warnings
    count them. None = the run has said it all."""
    data = recipe.data
    parts = {}
    for field, source in data.sources.items():
        parts[field] = read_reported(recipe.as_named(field), source, data.choices, remarks, training=True)
    home = parts[data.home_field]
    parts[data.home_field], tests = _tests(data, home, recipe.test_sets, remarks)
    for name in {*recipe.test_sets[:1], *filter(None, [recipe.eval.select_on])}:
        if name in tests and tests[name][0].withheld:
            raise InputError(
                f"data.eval.{name}: its answers are withheld, and the first test set and that of eval.select_on need "
                "them: name another one"
            )
    held_out = texts(home) - texts(parts[data.home_field])
    training = []
    for number, (field, part) in enumerate(parts.items()):
        kept = [example for example in part if held_out.isdisjoint((example.context, example.article))]
        if not kept:
            raise InputError(f"{field}: all of its questions are about held-out articles: take it out of data.train")
        others = [example for example in part if not held_out.isdisjoint((example.context, example.article))]
        if remarks is not None:
            told = [Remark(example.id, ABOUT_HELD_OUT, True) for example in others]
            _report(field, told, len(part), remarks)
        chosen = subset(kept, data.train_fraction, data.max_train_examples, recipe.seed)
        training += [replace(example, source=number) for example in chosen]
    if not any(example.answers for example in training):
        raise InputError(f"{recipe.training_field} {data.trained_on()}: no question has an answer: give some with one")
    if remarks is not None:
        warn_of_known(recipe, training, tests)
        contradicted = _contradicted(training)
        for number, field in enumerate(parts):
            told = [Remark(example.id, CONTRADICTED, False) for example in contradicted if example.source == number]
            _report(recipe.as_named(field), told, sum(example.source == number for example in training), remarks)
    if data.augmented:
        named = data.model_copy(update={"columns": {}})  # `swep-ds augment` names its columns itself
        samples = read_reported("data.augmented", data.augmented, named.choices, remarks, training=True)
        training += samples_of(training, samples)
    return training, tests


def _contradicted(training: list[Example]) -> list[Example]:
    """Those that another answers otherwise, as people's verdicts may: with the same words, about the same text, where
    the context of either has the place that answers the other. Those with the same words follow each other."""
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, example in enumerate(training):
        alike[normalize_answer(example.question), example.article].append(place)
    places: dict[int, None] = {}
    for group in alike.values():
        for pair in combinations(group[:MOST_COMPARED], 2):
            if _contradict(*(training[place] for place in pair)):
                places |= dict.fromkeys(pair)
    return [training[place] for place in places]


def _contradict(example: Example, other: Example) -> bool:
    """Whether no answer of either is within one of the other, although a context has the place of both."""
    if not (_says(example, other.context) or _says(other, example.context)):
        return False
    words = [[f" {normalize_answer(text)} " for text in each.answers] for each in (example, other)]
    return not any(here in there or there in here for here in words[0] for there in words[1])


def _says(example: Example, context: str) -> bool:
    """Whether a context has the place of the example's answer: with the text around it, or else all of its context."""
    place = example.context
    if example.span:
        start, end = example.span
        place = place[max(0, start - AROUND) : end + AROUND]
    return bool(example.answers) and place in context


def by_source(recipe: Recipe, training: list[Example]) -> dict[str, list[Example]]:
    """The training questions of each source, by the field that the user named it in."""
    fields = [recipe.as_named(field) for field in recipe.data.sources]
    parts = groupby(training, key=lambda example: example.source)
    return {field: list(part) for field, (_, part) in zip(fields, parts, strict=True)}


def reported_examples(recipe: Recipe, name: str) -> list[Example]:
    """The questions behind a run's results on one test set, the only one that is read, as
    `divided`. Raises InputError: the source cannot be read."""
    data = recipe.data
    home = data.home_field
    training = []
    if name == HOLDOUT:
        training = read_reported(home, data.sources[home], data.choices, None, training=True)
    return divided(recipe, name, _tests(data, training, [name], None)[1][name])[1]


def answered_examples(recipe: Recipe, run: Path, name: str) -> list[Example]:
    """The questions of a test set that the finished run in the folder `run` answered. Where its file has changed, as
    one does to which rows were added, they are taken from it by their ids, if they are all there and hold what they
    held. Raises InputError: they are not, or the source cannot be read."""
    field = source_of_test_set(recipe, name)
    try:
        check_unchanged(recipe, run, [field])
    except InputError:
        known = read_results(run / RESULTS).questions.get(name)
        if known is None:  # an earlier version made the run
            raise
        source = recipe.data.eval.get(name) or recipe.data.sources[field]
        training = name == HOLDOUT
        by_id = {each.id: each for each in read_reported(field, source, recipe.data.choices, None, training=training)}
        examples = [by_id[id_] for id_ in read_predictions(run, name) if id_ in by_id]
        if questions_checksum(examples) != known:
            raise
        return examples
    return reported_examples(recipe, name)


def divided(recipe: Recipe, name: str, examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """A test set's questions that choose a checkpoint, a threshold or a calibrator; and those that are reported: all,
    if the half that would choose can choose nothing. Raises InputError: as `halves`."""
    if name != recipe.validation_set:
        return [], examples
    chooses, reported = halves(examples)
    few = len(chooses) < 2 * MIN_OF_EACH or len(set(clusters(chooses).tolist())) < FOLDS
    if recipe.eval.select_on is None and few and all(example.answers for example in chooses):
        return [], examples
    return chooses, reported


def _tests(
    data: DataSection, training: list[Example], names: Collection[str], remarks: Remarks | None
) -> tuple[list[Example], dict[str, list[Example]]]:
    """The remaining training examples, and the test examples of these data sets, held-out articles first."""
    tests: dict[str, list[Example]] = {}
    if HOLDOUT in names:
        training, tests[HOLDOUT] = _held_out(data, training, remarks)
    for name, source in data.eval.items():
        if name in names:
            tests[name] = read_reported(f"data.eval.{name}", source, data.choices, remarks, training=False)
    if data.max_eval_examples:
        tests = {name: subset(examples, 1.0, data.max_eval_examples, seed=0) for name, examples in tests.items()}
    return training, tests


def _held_out(
    data: DataSection, training: list[Example], remarks: Remarks | None
) -> tuple[list[Example], list[Example]]:
    """The training examples that are kept, and those held out."""
    if data.holdout_of is None:
        return hold_out_articles(training, data.holdout_fraction)
    kept, held_out = hold_out_again(training, held_out_by(data.holdout_of, training))
    for examples, what in ((held_out, "is in"), (kept, "is not in")):
        if not examples:
            raise InputError(f"data.holdout_of {data.holdout_of}: each question of data.train {what} its held-out part")
    if remarks is not None:
        used = {example.id for example in (*kept, *held_out)}
        told = [Remark(each.id, ABOUT_HELD_OUT, True) for each in training if each.id not in used]
        _report(data.home_field, told, len(training), remarks)
    return kept, held_out


def read_reported(
    field: str, source: str, choices: Choices, remarks: Remarks | None, *, training: bool
) -> list[Example]:
    """The examples of the source that a field or an option names, with `remarks` as in `load_examples`. Raises
    InputError: as `read_examples`, or none is left."""
    told: list[Remark] = []
    with at(field):
        examples = read_examples(source, training=training, choices=choices, remark=told.append)
    if remarks is not None:
        _report(field, told, len(examples) + sum(remark.left_out for remark in told), remarks)
        if examples and examples[0].withheld:
            warn_once(f"{field}: none of its questions has an answer: taken as withheld, and without a score")
    if not examples:
        raise InputError(f"{field}: {source}: all of its questions are left out: the warnings above say why")
    without = sum(not example.answers for example in examples)
    if training and without and remarks is not None:
        taught = "have no answer and teach the model to decline (data.unanswerable)"
        warn_once(f"{field}: {without} of {len(examples)} questions {taught}")
    return examples


def _report(field: str, told: list[Remark], total: int, remarks: Remarks) -> None:
    """Warns of each reason with its number, and adds to the rows of the file of remarks."""
    for remark in told:
        if remark.id is None:
            warn_once(f"{field}: {remark.reason}")
    of_questions = [remark for remark in told if remark.id is not None]
    for reason, count in Counter(remark.reason for remark in of_questions).items():
        warn_once(f"{field}: {count} of {total} questions: {reason}")
    for remark in of_questions:
        remarks.append({"field": field, "id": remark.id, "reason": remark.reason})
        if remark.passage:
            remarks[-1]["passage"] = remark.passage


def warn_of_known(recipe: Recipe, training: list[Example], tests: Mapping[str, list[Example]]) -> None:
    """Warns of test questions that are trained on, and of a domain that counts as another one but is trained on."""
    known = {(example.question, example.context) for example in training}
    for name, examples in tests.items():
        count = sum((example.question, example.context) in known for example in examples)
        if count:
            warn_once(
                f"test set {name}: {count} of its {len(examples)} questions are in {recipe.training_field}, with the "
                "same contexts: its scores say little about new text"
            )
        elif recipe.data.eval.get(name) in recipe.data.shares and name != recipe.test_sets[0]:
            warn_once(f"data.eval.{name} counts as out of domain, but {recipe.data.eval[name]} is also in data.train")


def source_of_test_set(recipe: Recipe, name: str) -> str:
    """The field that names the source of a run's test set."""
    return recipe.data.home_field if name == HOLDOUT else f"data.eval.{name}"
