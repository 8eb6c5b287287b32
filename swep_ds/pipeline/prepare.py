"""A checked recipe made ready to train, by what `build.py` builds."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.files import user_path
from swep_ds.data.batches import TrainingBatches
from swep_ds.data.features import Features
from swep_ds.evaluation.evaluate import EvalSet, Evaluation
from swep_ds.evaluation.scores import Scorer
from swep_ds.methods.objective import Objective
from swep_ds.models.hub import pad_to_one_length
from swep_ds.pipeline.asked import HELD_OUT_ROWS, numbers, read_asked, row_numbers
from swep_ds.pipeline.build import (
    build_evaluation,
    build_objective,
    load_model,
    training_batches,
    training_features,
    unreachable_training,
)
from swep_ds.pipeline.checks import RunInputs
from swep_ds.pipeline.inputs import input_checksums
from swep_ds.pipeline.recipe import HOLDOUT
from swep_ds.ranks import accelerator
from swep_ds.ranks.environment import warn_once
from swep_ds.training.ds_config import zero_stage


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
    remarks: list[dict[str, str]]  # those of `load_examples`
    asked: dict[str, np.ndarray]  # for `write_asked`: numbers of the questions of this training and of its start's


def prepare(checked: RunInputs, start: str | None = None) -> Prepared:
    """Loads the model and cuts the windows. The weights come from `start`, or else from `model.name`. Collective."""
    recipe = checked.recipe
    tokenizer = checked.tokenizer
    training = checked.training
    source = start or recipe.model.name
    evaluation = build_evaluation(recipe, tokenizer, training)

    def load() -> Objective:
        qa = load_model(recipe, tokenizer, source, mapped=zero_stage(checked.config) == 3)
        return build_objective(recipe, qa)

    def tokenise() -> tuple[Features, list[EvalSet], list[EvalSet]]:
        features = training_features(recipe, tokenizer, training, Console(quiet=not ranks.is_main()))
        scorer_of = recipe.eval.scorer_of
        return features, evaluation.prepare(checked.tests, scorer_of), evaluation.prepare(checked.validation, scorer_of)

    held_out = [example for tests in (checked.validation, checked.tests) for example in tests.get(HOLDOUT, ())]
    trained = [numbers(training), read_asked(user_path(source), "trained")]
    asked = {"trained": np.concatenate(trained), "held_out": numbers(held_out), HELD_OUT_ROWS: row_numbers(held_out)}
    torch.manual_seed(recipe.seed)
    accelerator.lean_heap(True)
    with ranks.step("loading the model", lambda: sum(p.nbytes for p in objective.parameters())):
        objective = ranks.on_all_ranks(load)
    if ranks.from_rank0(lambda: objective.qa.model.pads):  # the rank that has tried a mapped model
        pad_to_one_length(tokenizer, objective.qa.model, recipe.data.max_length)
    ranks.progress("windows of all questions")
    features, test_sets, validation_sets = ranks.local_rank_zero_first(tokenise)
    for test in test_sets:
        if advice := test.scorer.advice(test.name, test.golds):
            warn_once(advice)
    on_gpu = accelerator.on_gpu()
    batches = training_batches(recipe, tokenizer, features, ranks.rank(), ranks.world_size(), on_gpu)
    scorer = next((test.scorer for test in test_sets), Scorer())
    return Prepared(
        objective=objective,
        tokenizer=tokenizer,
        config=checked.config,
        features=features,
        unreachable=unreachable_training(recipe, features, training, scorer),
        batches=batches,
        tests=test_sets,
        validation=next(iter(validation_sets), None),
        evaluation=evaluation,
        inputs=ranks.from_rank0(lambda: input_checksums(recipe)),
        remarks=checked.remarks,
        asked=asked,
    )
