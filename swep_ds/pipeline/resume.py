"""What a checkpoint and the start that resumes from it must share, and all ranks of a start."""

import json
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME, cached_file

from swep_ds import ranks
from swep_ds.common.errors import InputError
from swep_ds.common.settings import differences, flatten
from swep_ds.methods.objective import Objective
from swep_ds.pipeline.examples import source_of_test_set
from swep_ds.pipeline.folder import resume_fingerprint
from swep_ds.pipeline.prepare import Prepared
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.checkpoint_files import read_manifest
from swep_ds.training.settings import REPORTS, SPREAD
from swep_ds.training.zero.flats import parameter_shapes

# in a model's config.json: who wrote it and how it is loaded, not what it computes
NOT_COMPUTED = ("_name_or_path", "architectures", "dtype", "tie_word_embeddings", "transformers_version", "use_cache")


def check_setup(recipe: Recipe, prepared: Prepared, tags: list[Path]) -> dict[str, Any]:
    """What a checkpoint must share with this run. Collective. Raises InputError: the setup differs on one of the ranks,
    or in the first of the checkpoints `tags`."""
    setup = resume_setup(recipe, prepared)
    check_alike(setup | {"zero_optimization": prepared.config.get("zero_optimization", {})})
    if tags:  # before the engine is built, which takes seconds
        ranks.on_all_ranks(lambda: read_manifest(tags[0]).check_fits(tags[0], setup))
    return setup


def resume_setup(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """What a run must share with the checkpoint it resumes from."""
    config = dict(prepared.config)
    # whether DeepSpeed or instruments.py notices an overflow changes no number
    config["bf16"] = {key: value for key, value in config["bf16"].items() if key != "check_grad_overflow"}
    setup = resume_fingerprint(recipe) | architecture(prepared.objective)
    setup |= {f"ds_config {name}": value for name, value in config.items() if name not in (*REPORTS, *SPREAD)}
    setup["updates"] = prepared.batches.updates
    setup["global batch"] = prepared.batches.global_batch
    if recipe.train.max_tokens and prepared.batches.pad_to_multiple_of > 1:  # fewer windows then fit into an update
        setup["widths rounded up to"] = prepared.batches.pad_to_multiple_of
    parts = prepared.features.parts or [prepared.features]
    for (field, source), part in zip(recipe.data.sources.items(), parts, strict=True):
        content = f"content of {recipe.as_named(field)} {source}"
        if recipe.data.augmented:
            content += f" or data.augmented {recipe.data.augmented}"
        setup[content] = part.fingerprint
    setup["files of model.name"] = prepared.inputs.get("model.name")
    if recipe.train.freeze_embeddings and not setup["files of model.name"]:  # each start takes them from this commit
        setup["files of model.name"] = Path(cached_file(recipe.model.name, CONFIG_NAME)).parent.name
    if prepared.validation:
        field = source_of_test_set(recipe, prepared.validation.name)
        setup[f"content of {field} {recipe.sources[field]}, selection"] = prepared.validation.features.fingerprint
    return setup


def architecture(objective: Objective) -> dict[str, Any]:
    """What decides the meaning of the weights: the parameters' shapes and the model's config, flat."""
    config = flatten(json.loads(objective.qa.model.config.to_json_string(use_diff=True)))
    shapes = {f"parameter {name}": list(shape) for name, shape in parameter_shapes(objective).items()}
    return {f"model config {name}": value for name, value in config.items() if name not in NOT_COMPUTED} | shapes


def check_alike(setup: dict[str, Any]) -> None:
    """Raises InputError on all ranks if one of them would train under another `setup`. Collective."""
    first, *others = ranks.gather(setup)
    for number, other in enumerate(others, 1):
        if differing := differences(first, other, most=5):
            raise InputError(
                f"rank {number} (here, host {ranks.host(number)}) starts with other settings than rank 0 (there, host "
                f"{ranks.host(0)}): {differing}: give all nodes the same versions, recipe, data and ds_config"
            )
