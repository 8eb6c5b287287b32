"""A soup: the uniform mean of the models that runs exported (Wortsman et al., ICML 2022, arXiv 2203.05482).

The mean of models means something only where they lie in one basin: all runs must have started from the same weights
(`model.name`). They may differ in seed, method and data. One weight of each run is in memory at a time, and one file of
the soup.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils import CONFIG_NAME

from swep_ds.common.errors import InputError
from swep_ds.common.files import new_model_folder
from swep_ds.common.settings import differences, flatten, without
from swep_ds.evaluation.results import Results, read_results
from swep_ds.models.folders import weight_files
from swep_ds.models.trials import all_finite
from swep_ds.pipeline.export import card, card_head
from swep_ds.pipeline.folder import READING, RunFolder
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import ReadingSettings


@dataclass(frozen=True)
class Ingredient:
    """A finished run and its exported model."""

    run: Path
    recipe: Recipe
    results: Results
    reading: ReadingSettings
    weights: dict[str, Path]  # by name, the file
    traits: dict[str, Any]  # by name: what all ingredients must share


def make_soup(runs: Sequence[Path], output: Path) -> None:
    """Writes the mean of the runs' models as a plain Hugging Face folder. It declines questions at the mean of their
    thresholds, and has no calibrator: theirs were fitted to their own answers. Raises InputError: fewer than two runs;
    or a run that is not finished, or unlike the first in task, start, windows, or in a weight's name, shape or dtype.
    """
    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        raise InputError(f"RUN {' '.join(map(str, runs))}: a soup is made of two or more different runs: name them")
    ingredients = [_read(run) for run in runs]
    first = ingredients[0]
    for other in ingredients[1:]:
        if differing := differences(first.traits, other.traits, most=3):
            raise InputError(f"{other.run}: is unlike {first.run} ({differing}): leave that run out")
    with new_model_folder(output) as folder:
        _write(ingredients, folder)


def _read(run: Path) -> Ingredient:
    folder = RunFolder(run)
    folder.check_finished()
    recipe = folder.read_recipe()
    results = read_results(folder.results)
    reading = ReadingSettings.load(folder.model / READING)
    traits = {"task": recipe.task, "model.name": recipe.model.name}
    traits["files of model.name"] = results.inputs.get("model.name")
    traits |= without(flatten(reading.model_dump(include={"data", "eval"})), ("eval.select_on", "eval.batch_size"))
    traits["null_threshold, whether there is one"] = reading.null_threshold is not None
    weights = {}
    for file in weight_files(folder.model):
        with safe_open(file, "pt") as content:
            names = content.keys()
            for name in names:
                part = content.get_slice(name)
                weights[name] = file
                traits[name] = f"{part.get_dtype()} {list(part.get_shape())}"
    return Ingredient(run, recipe, results, reading, weights, traits)


def _write(ingredients: Sequence[Ingredient], folder: Path) -> None:
    first = ingredients[0]
    files = set(first.weights.values())
    for file in RunFolder(first.run).model.iterdir():
        if file.is_file() and file not in files and file.name != "README.md":
            shutil.copyfile(file, folder / file.name)
    for file in files:
        names = [name for name, holder in first.weights.items() if holder == file]
        save_file({name: _mean(ingredients, name) for name in names}, folder / file.name, metadata={"format": "pt"})
    threshold = first.reading.null_threshold
    if threshold is not None:
        threshold = sum(ingredient.reading.null_threshold for ingredient in ingredients) / len(ingredients)
    reading = first.reading.model_copy(update={"calibrator": None, "null_threshold": threshold})
    (folder / READING).write_text(reading.text(), encoding="utf-8")
    values = {"ingredients": ingredients, "recipe": first.recipe, "null_threshold": threshold}
    values["config"] = (folder / CONFIG_NAME).read_text(encoding="utf-8")
    card(card_head(first.recipe.task, "model-soup"), "soup_card.md.jinja", **values).save(folder / "README.md")


def _mean(ingredients: Sequence[Ingredient], name: str) -> Tensor:
    """The mean in float64, in the dtype of the weight; integers, such as positions, are the first run's. Raises
    InputError: a weight holds NaN or infinity."""
    weights = []
    for ingredient in ingredients:
        with safe_open(ingredient.weights[name], "pt") as content:
            weights.append(content.get_tensor(name))
        if not all_finite(weights[-1:]):
            raise InputError(f"{ingredient.run}: {name} holds NaN or infinity: leave that run out")
    first, *others = weights
    if not first.is_floating_point():
        return first
    total = first.double()
    for other in others:
        total += other.double()
    return (total / len(ingredients)).to(first.dtype)
