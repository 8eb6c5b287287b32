"""The local files that a recipe names and a run reads: their checksums tell whether they have changed since."""

import gzip
import hashlib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from swep_ds.common.errors import InputError
from swep_ds.common.files import user_path
from swep_ds.data.readers import local_files
from swep_ds.evaluation.results import RESULTS, read_results
from swep_ds.models.folders import model_files
from swep_ds.models.hub import QUICKSTART
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.recipe import HOLDOUT, Recipe


def source_of_test_set(name: str) -> str:
    """The field that names the source of a run's test set."""
    return "data.train" if name == HOLDOUT else f"data.eval.{name}"


def input_files(recipe: Recipe, fields: Collection[str] | None = None) -> dict[str, tuple[Path, ...]]:
    """The local files that the recipe's sources of data, and its model, are read from, by field.

    Fields that name the hub, the quick start's data or a registered reader, or files that do not exist, are left out.

    Args:
        fields: the only ones to look at, such as data.eval.news; None = all.

    Raises:
        InputError: a path cannot be looked up.
    """
    data = recipe.data
    sources = {"data.train": data.train, "data.augmented": data.augmented}
    sources["pretrain.train"] = recipe.pretrain.train if recipe.pretrain else None
    sources |= {f"data.eval.{name}": source for name, source in data.eval.items()}
    files = {}
    for field, source in sources.items():
        if source and (fields is None or field in fields):
            files[field] = local_files(source, training=not field.startswith("data.eval."))
    if fields is None or "model.name" in fields:
        name = recipe.model.name
        folder = Path(QUICKSTART.get(name) or user_path(name, "model.name"))
        if folder.is_dir():
            files["model.name"] = tuple(f for f in model_files(folder) if f.name != READING)
    return {field: names for field, names in files.items() if names}


def input_checksums(recipe: Recipe, fields: Collection[str] | None = None) -> dict[str, str]:
    """`content_checksum` of each field's `input_files`. Raises InputError: as these."""
    return {field: content_checksum(files) for field, files in input_files(recipe, fields).items()}


def check_unchanged(
    recipe: Recipe, run: Path, fields: Collection[str] | None = None, training_source: str = "data.train"
) -> None:
    """Checks that local files hold what the finished run in the folder `run` has read.

    Args:
        fields: as in `input_files`.
        training_source: the field in which the user named the training data.

    Raises:
        InputError: a file holds something else now. What is computed from it would not be about the run.
    """
    before = read_results(run / RESULTS).inputs
    for field, files in input_files(recipe, fields).items():
        if before.get(field) not in (None, content_checksum(files)):
            named = training_source if field == "data.train" else field
            place = files[0] if len(files) == 1 else files[0].parent
            raise InputError(f"{named} {place}: has changed since {run} read it: restore it, or train again elsewhere")


def content_checksum(files: Iterable[Path]) -> str:
    """The first 32 digits of the SHA-256 over the files, one after the other, each unpacked if it is gzip."""
    return _checksum(tuple((file, file.stat().st_mtime_ns) for file in files))


@cache  # a table of many runs asks for the same files
def _checksum(files: tuple[tuple[Path, int], ...]) -> str:
    digest = hashlib.sha256()
    for file, _ in files:
        with file.open("rb") as packed:
            is_gzip = packed.read(2) == b"\x1f\x8b"
            packed.seek(0)
            content = gzip.GzipFile(fileobj=packed) if is_gzip else packed
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]
