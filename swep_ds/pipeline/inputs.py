"""The local files that a recipe names and a run reads: their checksums tell whether they have changed since."""

from pathlib import Path

from swep_ds.data.cache import checksum
from swep_ds.data.readers import local_files
from swep_ds.files import user_path
from swep_ds.models.folders import model_files
from swep_ds.models.hub import QUICKSTART
from swep_ds.pipeline.saved import READING
from swep_ds.recipe import Recipe


def input_files(recipe: Recipe) -> dict[str, tuple[Path, ...]]:
    """The local files that the recipe's sources of data, and its model, are read from, by field.

    Fields that name the hub, the quick start or a registered reader, or files that do not exist, are left out.

    Raises:
        InputError: a path cannot be looked up, or the index of the model's weights is malformed.
    """
    data = recipe.data
    sources = {"data.train": data.train, "data.augmented": data.augmented}
    sources |= {f"data.eval.{name}": source for name, source in data.eval.items()}
    if recipe.pretrain:
        sources["pretrain.train"] = recipe.pretrain.train
    files = {field: local_files(source) for field, source in sources.items() if source}
    name = recipe.model.name
    if (folder := Path(QUICKSTART.get(name) or user_path(name, "model.name"))).is_dir():
        files["model.name"] = tuple(file for file in model_files(folder, f"model.name {name}") if file.name != READING)
    return {field: names for field, names in files.items() if names}


def input_checksums(recipe: Recipe) -> dict[str, str]:
    """The first 32 digits of the SHA-256 of each field's `input_files`. Raises InputError: as it, or a file cannot be
    read."""
    return {field: checksum(*files)[:32] for field, files in input_files(recipe).items()}
