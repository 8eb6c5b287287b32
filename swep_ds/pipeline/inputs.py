"""The local files that a recipe names and a run reads: their checksums tell whether they have changed since."""

import gzip
import hashlib
from collections.abc import Iterable
from pathlib import Path

from swep_ds.data.readers import local_files
from swep_ds.errors import as_input_error
from swep_ds.files import open_input, user_path
from swep_ds.models.folders import model_files
from swep_ds.models.hub import QUICKSTART
from swep_ds.pipeline.saved import READING
from swep_ds.recipe import Recipe


def input_files(recipe: Recipe) -> dict[str, tuple[Path, ...]]:
    """The local files that the recipe's sources of data, and its model, are read from, by field.

    Fields that name the hub, the quick start's data or a registered reader, or files that do not exist, are left out.

    Raises:
        InputError: a path cannot be looked up, or the index of the model's weights is malformed.
    """
    data = recipe.data
    trained = {"data.train": data.train, "data.augmented": data.augmented}
    if recipe.pretrain:
        trained["pretrain.train"] = recipe.pretrain.train
    files = {field: local_files(source, training=True) for field, source in trained.items() if source}
    files |= {f"data.eval.{name}": local_files(source, training=False) for name, source in data.eval.items()}
    name = recipe.model.name
    if (folder := Path(QUICKSTART.get(name) or user_path(name, "model.name"))).is_dir():
        files["model.name"] = tuple(file for file in model_files(folder, f"model.name {name}") if file.name != READING)
    return {field: names for field, names in files.items() if names}


def input_checksums(recipe: Recipe) -> dict[str, str]:
    """`content_checksum` of each field's `input_files`. Raises InputError: as these."""
    return {field: content_checksum(files) for field, files in input_files(recipe).items()}


def content_checksum(files: Iterable[Path]) -> str:
    """The first 32 digits of the SHA-256 over the files, one after the other, each unpacked if it is gzip.

    Raises InputError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for file in files:
        with open_input(file) as packed, as_input_error(f"{file}: cannot be read", "fetch it again"):
            is_gzip = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            content = gzip.GzipFile(fileobj=packed) if is_gzip else packed
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]
