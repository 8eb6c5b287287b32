"""What refuses a training before its first long wait: its model, its text, its ds_config and this machine."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.errors import InputError, as_input_error, at
from swep_ds.data.example import Example
from swep_ds.data.features import Features
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.unreachable import unreachable
from swep_ds.kernels.op import implementation
from swep_ds.methods.objective import Objective
from swep_ds.models.hub import check_knows
from swep_ds.pipeline.build import build_objective, load_model, run_tokenizer
from swep_ds.pipeline.examples import by_source
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.environment import warn_once
from swep_ds.training.ds_config import complete_ds_config

log = logging.getLogger(__name__)
FIRST_STAGE = "first stage (pretrain)"  # in messages: its recipe is not the one that the user wrote


def check_model(recipe: Recipe) -> tuple[PreTrainedTokenizerFast, Objective]:
    """The tokenizer and, without weights, the objective of a model that fits the recipe as far as its config tells.
    Raises InputError: as `run_tokenizer`, `load_model` and `build_objective`."""
    tokenizer = run_tokenizer(recipe)
    return tokenizer, build_objective(recipe, load_model(recipe, tokenizer, recipe.model.name, weights=False))


def check_texts(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, training: list[Example], tests: Mapping[str, list[Example]]
) -> None:
    """Raises InputError: the tokenizer hardly knows the letters of a source or a test set."""
    for field, examples in (by_source(recipe, training) | tests).items():
        contexts = (example.context for example in examples)
        check_knows(tokenizer, contexts, f"model.name {recipe.model.name}", field)


def resolve_ds_config(source: str, recipe: Recipe, objective: Objective) -> dict[str, Any]:
    """The ds_config, completed for the ranks of this process group. A processor without instructions for bf16 trains in
    float32 in place of autocast. Raises InputError: as `complete_ds_config`, or this GPU has no TF32."""
    train = recipe.train
    emulated = accelerator.emulates(torch.bfloat16)
    if train.precision == "autocast" and emulated:
        warn_once("train.precision autocast: this processor has no instructions for bf16: it trains in float32")
        train = train.model_copy(update={"precision": "fp32"})
    config = complete_ds_config(
        source,
        train,
        world_size=ranks.world_size(),
        on_cpu=ranks.device().type == "cpu",
        micro_steps=len(objective.parts(train.execution)),
        hidden_size=objective.qa.hidden_size,
    )
    if train.precision == "tf32" and not accelerator.has_tf32():
        device = accelerator.product_name()
        raise InputError(f"train.precision tf32: {device} has no TF32 (NVIDIA GPUs from Ampere on do): set it to fp32")
    if ranks.is_main() and train.precision == "bf16" and emulated:
        log.warning("train.precision bf16: this processor has no instructions for bf16, fp32 is faster")
    return config


def check_kernels() -> None:
    """Raises InputError: this rank's machine cannot run the perturbation kernels."""
    fix = "install what the reason names, such as a C compiler and Python's headers, or set SWEP_KERNELS to torch"
    with as_input_error("SWEP_KERNELS: the perturbation kernels cannot run", fix):
        kernels = implementation(ranks.device().type, torch.float32)
        if hasattr(kernels, "check_driver"):
            kernels.check_driver()


def check_ds_config(recipe: Recipe, ds_config: str, folder: Path, world_size: int, *, on_cpu: bool) -> Recipe:
    """Checks the ds_config against each stage of a run in `folder`, which may have begun elsewhere. Reads no model.

    Returns the recipe with the run's global batch split over the ranks. Raises InputError: as `complete_ds_config`; or
    the run cannot continue on so many ranks.
    """
    began = RunFolder(folder).read_batch([])
    if began:
        recipe = began.split(recipe, world_size)
    elif recipe.pretrain:
        with at(FIRST_STAGE):
            complete_ds_config(ds_config, recipe.first_stage().train, world_size=world_size, on_cpu=on_cpu)
    complete_ds_config(ds_config, recipe.train, world_size=world_size, on_cpu=on_cpu)
    return recipe


def unreachable_training(recipe: Recipe, features: Features, examples: list[Example], scorer: Scorer) -> list[str]:
    """As `unreachable`, for the answers of training, which have only the text that is learned."""
    golds = []
    for example in examples:
        gold = ()
        if example.span:
            gold = (example.context[slice(*example.span)],)
        golds.append(gold)
    option = "eval.max_answer_tokens"
    if recipe.task == "generative":
        option = f"data.max_target_length and {option}"
    return unreachable(features, golds, scorer, recipe.eval.max_answer_tokens, option)
