"""The files of a model's folder: looked at before transformers opens them, and read through one boundary."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from swep_ds.errors import InputError, parsing
from swep_ds.files import open_input, read_json

# what transformers reads beside weights and vocabularies; each is a JSON object
SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# where transformers looks for weights; it takes the first that is there
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


@contextmanager
def reading(named: str, what: str, fix: str) -> Iterator[None]:
    """`parsing` around transformers, whose own advice is at times to run code that comes with the model.

    Args:
        named: how the user named the model, as in "model.name ./bert".
        what: what is wrong where the block fails, as in "its config.json makes no model".
        fix: what the user can do, in the imperative.

    Raises:
        InputError: the block raised anything.
    """
    try:
        with parsing(f"{named}: {what}", fix):
            yield
    except InputError as error:
        if re.search("trust_remote_code|unsupported global", str(error.__cause__), re.IGNORECASE):
            raise InputError(
                f"{named}: needs code of its own, which is never run: name a model that transformers itself has a "
                "class for"
            ) from None
        raise


def check_folder(source: str, named: str) -> None:
    """Looks at a local folder's files before transformers opens them. A hub id passes.

    Args:
        source: from `resolve_model`.
        named: how the user named it, as in "model.name ./bert".

    Raises:
        InputError: the folder cannot be listed, holds a pipe or a device, settings that are no JSON object, or an
            index of weights that names files which are not there.
    """
    folder = Path(source)
    if not folder.is_dir():
        return
    try:
        entries = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    except OSError as error:
        raise InputError(f"{named}: the folder cannot be listed ({error.strerror}): allow it") from None
    files = sorted(path for path in entries if not path.is_dir())
    for path in files:
        # a dangling link is no fault where transformers does not open it
        if not path.is_file() and (path.exists() or path.name in SETTINGS + WEIGHTS):
            open_input(path, f"{named}: its {path.relative_to(folder)}").close()
    for name in SETTINGS:
        if folder / name in files:
            _read_object(folder / name, f"{named}: its {name}")
    weight_files(source, named)


def _read_object(file: Path, what: str) -> dict[str, Any]:
    content = read_json(file, what)
    if not isinstance(content, dict):
        raise InputError(f"{what}: is no JSON object: correct it or name another model")
    return content


def weight_files(source: str, named: str) -> list[Path]:
    """The files that transformers reads the weights from; none where there are none, or no folder.

    Raises:
        InputError: the index of the weights is none, or a file that it names is not in the folder.
    """
    folder = Path(source)
    chosen = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if chosen is None or chosen.suffix != ".json":
        return [] if chosen is None else [chosen]
    what = f"{named}: its {chosen.name}"
    names = _read_object(chosen, what).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{what}: has no weight_map from names of weights to names of files: correct it")
    files = sorted(set(names.values()))
    for name in files:
        if Path(name).name != name:
            raise InputError(f"{what}: weight_map names {name[:80]!r}: name a file of this folder")
        open_input(folder / name, f"{what} names {name[:80]}, which must be in the folder").close()
    return [folder / name for name in files]


def loaded_folder(source: str) -> str:
    """Where the files are that transformers has read: the folder itself, or a hub id's in the hub's cache."""
    if Path(source).is_dir():
        return source
    try:
        return snapshot_download(source, local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return source
