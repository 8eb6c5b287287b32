"""Model names (a hub id, a local folder, or a model of this package), and the files that decide what a model computes.

Imports no transformers: a table or a forecast compares files, and builds no model.
"""

import re
from pathlib import Path

from swep_ds.common.errors import InputError
from swep_ds.common.files import content_checksum, read_json, user_path
from swep_ds.data.quickstart import ENCODER, T5

QUICKSTART = {"quickstart:encoder": ENCODER, "quickstart:t5": T5}
# transformers loads the first of these that exists
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# other files that decide what a model answers
DECIDING = (
    r"(added_tokens|(generation_)?config|special_tokens_map)\.json"
    r"|(tokenizer|vocab|merges|spiece|sentencepiece|spm|reading)[^/]*\.(json|txt|model)"
)


def resolve_model(name: str, option: str = "model.name") -> str:
    """A folder, with `~` expanded, or a hub id; `option` is what the user named the model with.
    Raises InputError: it is a run's folder, or there is no such folder and it cannot be a hub id."""
    if name in QUICKSTART:
        return str(QUICKSTART[name])
    path = user_path(name)
    if path.is_dir():
        if (path / "model" / "config.json").is_file():
            raise InputError(f"{option} {name}: is the folder of a run: name its model, {Path(name, 'model')}")
        return str(path)
    # a hub id is NAME or OWNER/NAME
    if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{option} {name}: no such folder: name the folder that holds its config.json, or a hub id")
    return name


def model_checksum(name: str, option: str = "model.name") -> str | None:
    """A checksum of a local folder's `model_files`; None for a hub id, whose name identifies them.
    Raises InputError: as `resolve_model`."""
    source = resolve_model(name, option)
    return content_checksum(model_files(Path(source))) if Path(source).is_dir() else None


def model_files(folder: Path) -> list[Path]:
    """The files in a model's folder that decide what it answers."""
    deciding = [file for file in folder.iterdir() if re.fullmatch(DECIDING, file.name) and file.is_file()]
    return sorted(deciding) + weight_files(folder)


def weight_files(folder: Path) -> list[Path]:
    """The files in a model's folder that transformers loads the weights from."""
    for file in [folder / name for name in WEIGHTS]:
        if file.is_file() and file.suffix == ".json":
            return [folder / name for name in sorted(set(read_json(file)["weight_map"].values()))]
        if file.is_file():
            return [file]
    return []
