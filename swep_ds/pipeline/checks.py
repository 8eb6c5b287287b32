"""What refuses a training before its first long wait: its data, its model, its ds_config and this machine."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from swep_ds import ranks
from swep_ds.common.errors import InputError, as_input_error, at
from swep_ds.data.example import Example
from swep_ds.kernels.op import implementation
from swep_ds.methods.objective import Objective
from swep_ds.models.folders import resolve_model
from swep_ds.models.hub import check_knows
from swep_ds.pipeline.build import build_objective, load_model, run_tokenizer
from swep_ds.pipeline.examples import by_source, divided, load_examples
from swep_ds.pipeline.folder import RunFolder
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.environment import warn_once
from swep_ds.training.ds_config import complete_ds_config, read_ds_config

log = logging.getLogger(__name__)
FIRST_STAGE = "first stage (pretrain)"  # in messages: its recipe is not the one that the user wrote


@dataclass(frozen=True)
class RunInputs:
    """A recipe with what its checks have read and resolved, on this rank."""

    recipe: Recipe
    tokenizer: PreTrainedTokenizerFast
    config: dict[str, Any]  # the resolved ds_config
    training: list[Example]
    tests: dict[str, list[Example]]  # by name, the source domain first
    validation: dict[str, list[Example]]  # the other half of one of them, if it can choose anything
    remarks: list[dict[str, str]]  # those of `load_examples`


def read_and_check(recipe: Recipe, ds_config: str) -> RunInputs:
    """Reads what a training needs but for the weights, the cheapest first: a missing file ends the run before gigabytes
    are read. Collective. Raises InputError: on all ranks, where anything does not fit."""
    remarks: list[dict[str, str]] = []

    def read() -> RunInputs:
        read_ds_config(ds_config)
        ranks.set_deterministic(recipe.train.deterministic)
        resolve_model(recipe.model.name)
        training, tests = load_examples(recipe, remarks)  # own files come before the hub
        tokenizer, unloaded = check_model(recipe)
        for field, examples in (by_source(recipe, training) | tests).items():
            contexts = (example.context for example in examples)
            check_knows(tokenizer, contexts, f"model.name {recipe.model.name}", field)
        config = resolve_ds_config(ds_config, recipe, unloaded)
        check_kernels()
        validation = {}
        if name := recipe.validation_set:
            with at("eval.select_on" if recipe.eval.select_on else "data.holdout_fraction"):
                chooses, tests[name] = divided(recipe, name, tests[name])
            if chooses:
                validation[name] = chooses
        return RunInputs(recipe, tokenizer, config, training, tests, validation, remarks)

    if recipe.data.texts is None:
        return ranks.on_all_ranks(read)
    return ranks.local_rank_zero_first(read)  # local rank 0 fills the cache of documents first


def check_model(recipe: Recipe) -> tuple[PreTrainedTokenizerFast, Objective]:
    """The tokenizer and, without weights, the objective of a model that fits the recipe as far as its config tells.
    Raises InputError: as `run_tokenizer`, `load_model` and `objective` of build.py."""
    tokenizer = run_tokenizer(recipe)
    qa = load_model(recipe, tokenizer, recipe.model.name, weights=False)
    return tokenizer, build_objective(recipe, qa)


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
        backwards=len(objective.parts(train.execution)),
        hidden_size=objective.qa.hidden_size,
    )
    if train.precision == "tf32" and not accelerator.has_tf32():
        device = accelerator.product_name()
        raise InputError(f"train.precision tf32: {device} has no TF32 (NVIDIA GPUs from Ampere on do): set it to fp32")
    if ranks.is_main() and train.precision == "bf16" and ranks.device().type == "cpu":
        log.warning(
            "train.precision bf16: on a CPU PyTorch adds up the gradients of LayerNorm and embeddings in bf16, and "
            "much of them is lost in large batches: set it to autocast or fp32"
        )
        if emulated:
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
