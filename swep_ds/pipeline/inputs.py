"""The local files that a run reads, and their checksums."""

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from swep_ds import ranks
from swep_ds.common.errors import InputError
from swep_ds.common.files import content_checksum, user_path
from swep_ds.data.example import Example
from swep_ds.data.readers import local_files
from swep_ds.evaluation.results import RESULTS, read_results
from swep_ds.models.folders import QUICKSTART, model_files
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.recipe import Recipe
from swep_ds.texts.folder import FolderTexts


def input_files(recipe: Recipe, fields: Collection[str] | None = None) -> dict[str, tuple[Path, ...]]:
    """The local files that the recipe's sources of data, and its model, are read from, by field; none for other sources
    or for files that do not exist. `fields` are the only ones to look at, such as data.eval.news; None = all."""
    files = {}
    for field, source in recipe.sources.items():
        if fields is None or field in fields:
            files[field] = local_files(source, training=not field.startswith("data.eval."))
    if fields is None or "model.name" in fields:
        model = Path(QUICKSTART.get(recipe.model.name) or user_path(recipe.model.name))
        if model.is_dir():
            files["model.name"] = tuple(file for file in model_files(model) if file.name != READING)
    if recipe.data.texts is not None and (fields is None or "data.texts" in fields):
        folder = FolderTexts(user_path(recipe.data.texts), f"data.texts {recipe.data.texts}")
        files["data.texts"] = tuple(folder.folder / name for name in folder.names())
    return {field: names for field, names in files.items() if names}


def input_checksums(recipe: Recipe) -> dict[str, str]:
    """By field, the first 32 digits of the SHA-256 over its `input_files`, each unpacked if it is gzip."""
    files = input_files(recipe)
    size = sum(file.stat().st_size for names in files.values() for file in names)
    with ranks.step("checksums of model and data", lambda: size):
        return {field: content_checksum(names) for field, names in files.items()}


def questions_checksum(examples: Iterable[Example]) -> str:
    """The first 32 digits of the SHA-256 over all that questions hold, in their order."""
    digest = hashlib.sha256()
    for example in examples:
        place = (example.span, example.article, example.withheld)
        digest.update(repr((example.id, example.question, example.context, example.answers, *place)).encode())
    return digest.hexdigest()[:32]


def check_unchanged(recipe: Recipe, run: Path, fields: Collection[str] | None = None) -> None:
    """Raises InputError if local files do not hold what the finished run in the folder `run` has read: what is computed
    from them would not be about the run. `fields` as in `input_files`."""
    before = read_results(run / RESULTS).inputs
    for field, files in input_files(recipe, fields).items():
        if before.get(field) not in (None, content_checksum(files)):
            place = files[0] if len(files) == 1 else files[0].parent
            named = f"{recipe.as_named(field)} {place}"
            raise InputError(f"{named}: has changed since {run} read it: restore it, or train again elsewhere")
