"""A soup: the uniform mean of the models that runs exported (Wortsman et al., ICML 2022, arXiv 2203.05482).

The mean of models means something only where they lie in one basin: all runs must have started from the same weights
(`model.name`). They may differ in seed, method and data. One weight of each run is in memory at a time, and one file of
the soup.
"""

import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_new_folder
from swep_ds.common.settings import differences, flatten, without
from swep_ds.evaluation.results import Results, read_results
from swep_ds.models.folders import load_config, weight_files
from swep_ds.pipeline.examples import validation_examples
from swep_ds.pipeline.export import card, card_head
from swep_ds.pipeline.folder import READING, RunFolder
from swep_ds.pipeline.prepare import NOT_COMPUTED
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import ReadingSettings, load_saved, validation_half


@dataclass(frozen=True)
class Ingredient:
    """A finished run and its exported model."""

    run: Path
    model: Path
    recipe: Recipe
    results: Results
    reading: ReadingSettings
    weights: dict[str, Path]  # by name, the file
    traits: dict[str, Any]  # by name: what all ingredients must share

    @classmethod
    def read(cls, run: Path) -> "Ingredient":
        """Raises InputError if the folder holds no finished run."""
        folder = RunFolder(run)
        folder.check_finished()
        recipe = folder.read_recipe()
        results = read_results(folder.results)
        reading = ReadingSettings.load(folder.model / READING)
        label = f"{run}: its model"
        traits = {"task": recipe.task, "model.name": recipe.model.name}
        traits["files of model.name"] = results.inputs.get("model.name")
        traits["tokenizer.json, CRC-32"] = zlib.crc32((folder.model / "tokenizer.json").read_bytes())
        traits |= without(flatten(reading.model_dump(include={"data", "eval"})), ("eval.select_on", "eval.batch_size"))
        traits["null_threshold, whether there is one"] = reading.null_threshold is not None
        for name, value in flatten(load_config(str(folder.model), label).to_dict()).items():
            if name not in NOT_COMPUTED:
                traits[f"config.json {name}"] = value
        weights = {}
        for file in weight_files(folder.model):
            with safe_open(file, "pt") as content:
                for name in content.keys():  # noqa: SIM118
                    part = content.get_slice(name)
                    weights[name] = file
                    traits[name] = f"{part.get_dtype()} {list(part.get_shape())}"
        return cls(run, folder.model, recipe, results, reading, weights, traits)

    def weight(self, name: str) -> Tensor:
        """Raises InputError: it holds NaN or infinity."""
        with safe_open(self.weights[name], "pt") as content:
            tensor = content.get_tensor(name)
        if not tensor.isfinite().all():
            raise InputError(f"{self.model}: {name} holds NaN or infinity: leave that run out")
        return tensor


def make_soup(runs: Sequence[Path], output: Path) -> None:
    """Writes the mean of the runs' models as a plain Hugging Face folder. Collective, on one rank.

    Raises InputError: fewer than two runs; a run that is not finished, or unlike the first in task, start,
    architecture, tokenizer, windows, or in a weight's name, shape or dtype; or `output` is not new or empty.
    """
    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        raise InputError(f"RUN {' '.join(map(str, runs))}: a soup is made of two or more different runs: name them")
    check_new_folder("--output", output)
    output = output.resolve()  # it may be a link to a folder, which no folder can replace
    ingredients = [Ingredient.read(run) for run in runs]
    first = ingredients[0]
    for other in ingredients[1:]:
        if differing := differences(first.traits, other.traits, most=3):
            raise InputError(f"{other.run}: is unlike {first.run} ({differing}): leave that run out")
    unfinished = output.with_name(f".{output.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # a killed process's
    try:
        unfinished.mkdir(parents=True)
        _write(ingredients, unfinished, Console().print)
        unfinished.rename(output)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _write(ingredients: Sequence[Ingredient], folder: Path, say: Callable[[str], None]) -> None:
    first = ingredients[0]
    files = set(first.weights.values())
    for file in first.model.iterdir():
        if file.is_file() and file not in files and file.name != "README.md":
            shutil.copyfile(file, folder / file.name)
    for file in files:
        names = [name for name, holder in first.weights.items() if holder == file]
        save_file({name: _mean(ingredients, name) for name in names}, folder / file.name, metadata={"format": "pt"})
    # without a calibrator: it was fitted to an ingredient's answers
    reading = first.reading.model_copy(update={"calibrator": None})
    if reading.null_threshold is not None:
        threshold, why = _threshold(ingredients, folder)
        say(f"questions are declined at null odds above {threshold:.2f}: {why}")
        reading = reading.model_copy(update={"null_threshold": threshold})
    (folder / READING).write_text(reading.text(), encoding="utf-8")
    values = {"ingredients": ingredients, "recipe": first.recipe, "null_threshold": reading.null_threshold}
    text = card(card_head(first.recipe, "model-soup"), "soup_card.md.jinja", **values)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _threshold(ingredients: Sequence[Ingredient], folder: Path) -> tuple[float, str]:
    """The null odds above which the soup in `folder` declines a question, and how they were chosen. Collective.

    They are chosen on the half of a data set on which all of its runs chose theirs. Without such a half they are the
    mean of the runs', which is right where these are equal (no run chose its own), and otherwise a guess.
    """
    first = ingredients[0].recipe
    name = first.validation_set
    mean = sum(ingredient.reading.null_threshold for ingredient in ingredients) / len(ingredients)
    if any((run.recipe.data, run.recipe.validation_set) != (first.data, name) for run in ingredients) or name is None:
        return mean, "the mean of the runs', which did not choose on the same questions"
    try:
        examples = validation_examples(first, ingredients[0].run)
    except InputError as error:
        return mean, f"the mean of the runs', because what they chose on cannot be used ({error})"
    saved = load_saved(str(folder), mean)
    evaluation, half = validation_half(saved, first, examples, first.eval.batch_size)
    chosen, why = evaluation.with_threshold(evaluation.predict(saved.qa.predict, half), half)
    return chosen.null_threshold, why


def _mean(ingredients: Sequence[Ingredient], name: str) -> Tensor:
    """The mean in float64, in the dtype of the weight; integers, such as positions, are the first run's."""
    first, *others = (ingredient.weight(name) for ingredient in ingredients)
    if not first.is_floating_point():
        return first
    total = first.double()
    for other in others:
        total += other.double()
    return (total / len(ingredients)).to(first.dtype)
