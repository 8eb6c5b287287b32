"""A recipe made ready to train: what `build.py` builds, once `checks.py` has refused nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import at
from swep_ds.common.files import user_path
from swep_ds.data.batches import TrainingBatches
from swep_ds.data.example import Example
from swep_ds.data.features import Features
from swep_ds.data.splits import halves
from swep_ds.evaluation.evaluate import EvalSet, Evaluation
from swep_ds.evaluation.scores import Scorer
from swep_ds.methods.objective import Objective
from swep_ds.models.folders import resolve_model
from swep_ds.models.hub import pad_to_one_length
from swep_ds.pipeline.asked import numbers, read_asked
from swep_ds.pipeline.build import build_evaluation, build_objective, load_model, training_batches, training_features
from swep_ds.pipeline.checks import check_kernels, check_model, check_texts, resolve_ds_config, unreachable_training
from swep_ds.pipeline.examples import load_examples, warn_of_known
from swep_ds.pipeline.inputs import input_checksums
from swep_ds.pipeline.recipe import HOLDOUT, Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.environment import warn_once
from swep_ds.training.ds_config import read_ds_config, zero_stage


@dataclass(frozen=True)
class Prepared:
    """A recipe made ready to train, on this rank."""

    objective: Objective
    tokenizer: PreTrainedTokenizerFast
    config: dict[str, Any]  # the resolved ds_config
    features: Features  # the windows to train on
    unreachable: list[str]  # sentences about training answers that the model can never give
    batches: TrainingBatches
    tests: list[EvalSet]  # the source domain first
    validation: EvalSet | None  # scores the checkpoints, and chooses when to decline a question
    evaluation: Evaluation
    inputs: dict[str, str]  # `input_checksums`
    remarks: list[dict[str, str]]  # of `load_examples`
    asked: dict[str, np.ndarray]  # as of `write_asked`: what it and the model that it starts from were trained on


def prepare(
    recipe: Recipe, ds_config: str, start: str | None = None, tested_later: Mapping[str, list[Example]] | None = None
) -> Prepared:
    """Loads model and data. Everything that can be wrong is checked before the first long wait. Collective.

    The weights come from `start`, or else from `model.name`, which always gives the tokenizer. `tested_later` has the
    questions of a second stage, by data set, on which this stage should not train.
    """
    source = start or recipe.model.name
    remarks: list[dict[str, str]] = []

    def read() -> tuple[PreTrainedTokenizerFast, dict[str, Any], list[Example], dict[str, list[Example]]]:
        read_ds_config(ds_config)
        ranks.set_deterministic(recipe.train.deterministic)
        resolve_model(recipe.model.name)
        training, tests = load_examples(recipe, remarks)  # own files come before the hub
        tokenizer, unloaded = check_model(recipe)
        check_texts(recipe, tokenizer, training, tests)
        config = resolve_ds_config(ds_config, recipe, unloaded)
        check_kernels()
        return tokenizer, config, training, tests

    def load() -> Objective:
        mapped = zero_stage(config) == 3
        return build_objective(recipe, load_model(recipe, tokenizer, source, mapped=mapped))

    def tokenise() -> tuple[Features, list[EvalSet], list[EvalSet]]:
        features = training_features(recipe, tokenizer, training, Console(quiet=not ranks.is_main()))
        scorer_of = recipe.eval.scorer_of
        return features, evaluation.prepare(tests, scorer_of), evaluation.prepare(validation, scorer_of)

    # the cheapest come first: a missing file ends the run before gigabytes of weights are read
    together = ranks.on_all_ranks
    if recipe.data.texts is not None:
        together = ranks.local_rank_zero_first  # which keeps documents
    tokenizer, config, training, tests = together(read)
    warn_of_known(recipe, training, tested_later or {})
    trained = np.concatenate([numbers(training), read_asked(user_path(source), "trained")])
    asked = {"trained": trained, "held_out": numbers(tests.get(HOLDOUT, ()))}
    torch.manual_seed(recipe.seed)
    accelerator.lean_heap(True)
    with ranks.step("loading the model", lambda: sum(p.nbytes for p in objective.parameters())):
        objective = ranks.on_all_ranks(load)
    if ranks.from_rank0(lambda: objective.qa.model.pads):  # the rank that has tried a mapped model
        pad_to_one_length(tokenizer, objective.qa.model, recipe.data.max_length)
    validation = {}
    if name := recipe.validation_set:
        field = "data.holdout_fraction"
        if recipe.eval.select_on:
            field = "eval.select_on"
        with at(field):
            validation[name], tests[name] = halves(tests[name])
    evaluation = build_evaluation(recipe, tokenizer, training)
    ranks.progress("windows of all questions")
    features, test_sets, validation_sets = ranks.local_rank_zero_first(tokenise)
    for test in test_sets:
        if advice := test.scorer.advice(test.name, test.golds):
            warn_once(advice)
    scorer = next((test.scorer for test in test_sets), Scorer())
    return Prepared(
        objective=objective,
        tokenizer=tokenizer,
        config=config,
        features=features,
        unreachable=unreachable_training(recipe, features, training, scorer),
        batches=training_batches(recipe, tokenizer, features, ranks.rank(), ranks.world_size(), accelerator.on_gpu()),
        tests=test_sets,
        validation=next(iter(validation_sets), None),
        evaluation=evaluation,
        inputs=ranks.from_rank0(lambda: input_checksums(recipe)),
        remarks=remarks,
        asked=asked,
    )
