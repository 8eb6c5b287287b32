"""A model's folder: its files are checked before transformers opens them, and every read goes through `reading`.

transformers raises anything on malformed files, waits for pipes, allocates whatever a config asks for, and may offer
to run code that comes with a model.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, PreTrainedConfig

from swep_ds.errors import InputError, as_input_error
from swep_ds.files import check_hub, open_input, read_json

# JSON objects that transformers reads beside weights and vocabularies
SETTINGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
# transformers loads the first of these that exists
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
DECIDING = (
    r"(tokenizer|vocab|merges|spiece|sentencepiece|spm|reading)[^/]*\.(json|txt|model)"  # other files beside them
)
BAD_CONFIG = "no model can be built from its config.json"
CORRECT = "correct it or name another model"

# transformers' own; others may be fetched from the hub as code
ATTENTIONS = (None, "eager", "sdpa")
EXPERTS = (None, "eager", "batched_mm", "grouped_mm")
# field -> largest value: these numbers cost time and memory before the model can be compared with its weights
COUNTS = {r"(^|_)layers?$|_groups?$|^inner_group_num$|_experts$": 1000, r"^num_labels$": 100_000}
AT_LEAST_ONE = r"^(n|num|num_hidden|encoder|decoder|num_encoder|num_decoder)_layers?$|^num_labels$"
SWITCHES = ("output_hidden_states", "output_attentions", "return_dict", "use_cache", "tie_word_embeddings")
# the weights could not be trained, or transformers' classes would be patched
UNUSED = ("quantization_config", "fusion_config", "transformers_weights")


@contextmanager
def transformers_errors(label: str, fault: str, fix: str) -> Iterator[None]:
    """`as_input_error` around a call of transformers, which may advise to run code that comes with the model.

    Args:
        label: how the user named the model, as in "model.name ./bert".
        fault: what is wrong if the block fails, as in "no model can be built from its config.json".
        fix: what the user can do, in the imperative.

    Raises:
        InputError: the block raised anything.
    """
    try:
        with as_input_error(f"{label}: {fault}", fix):
            yield
    except InputError as error:
        if re.search("trust_remote_code|unsupported global", str(error.__cause__), re.IGNORECASE):
            raise InputError(
                f"{label}: needs code of its own, which is never run: name a model that transformers itself has a "
                "class for"
            ) from None
        raise


def check_folder(source: str, label: str) -> None:
    """Checks a local folder's files before transformers opens them. A hub id passes.

    Raises InputError: the folder cannot be listed; it holds a pipe or a device, a settings file that is not a JSON
    object, or an index of weights that names missing files.
    """
    folder = Path(source)
    if not folder.is_dir():
        return
    with as_input_error(f"{label}: the folder cannot be listed", "give this user permission to read it"):
        entries = [*folder.iterdir(), *folder.glob("additional_chat_templates/*")]
    for path in sorted(path for path in entries if not path.is_dir()):
        what = f"{label}: its {path.relative_to(folder)}"
        # transformers does not open other dangling links
        if not path.is_file() and (path.exists() or path.name in SETTINGS + WEIGHTS):
            open_input(path, what).close()
        if path.parent == folder and path.name in SETTINGS:
            _read_object(path, what)
    weight_files(source, label)


def _read_object(file: Path, what: str) -> dict[str, Any]:
    content = read_json(file, what)
    if not isinstance(content, dict):
        raise InputError(f"{what}: is not a JSON object: {CORRECT}")
    return content


def model_files(source: str | Path, label: str) -> list[Path]:
    """The files in a model's local folder that decide what it answers: settings, vocabulary, weights, and how its run
    read texts. Raises InputError: as `weight_files`, or the folder cannot be listed."""
    with as_input_error(f"{label}: the folder cannot be listed", "give this user permission to read it"):
        entries = sorted(Path(source).iterdir())
    named = [entry for entry in entries if entry.name in SETTINGS or re.fullmatch(DECIDING, entry.name)]
    return [entry for entry in named if entry.is_file()] + weight_files(str(source), label)


def weight_files(source: str, label: str) -> list[Path]:
    """The files that transformers loads the weights from: those of a local folder, or of a hub id in the hub's cache.
    Raises InputError: the index of the weights is malformed, or names a file that is not in the folder."""
    folder = Path(source)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(source, local_files_only=True))
        except (HFValidationError, LocalEntryNotFoundError):
            return []
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None or file.suffix != ".json":
        return [file] if file else []
    what = f"{label}: its {file.name}"
    names = _read_object(file, what).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{what}: has no weight_map from names of weights to names of files: correct it")
    for name in (shards := sorted(set(names.values()))):
        if Path(name).name != name:
            raise InputError(f"{what}: weight_map names {name[:80]!r}: name a file of this folder")
        open_input(folder / name, f"{what} names {name[:80]}, which must be in the folder").close()
    return [folder / name for name in shards]


def check_cache(repository: str, label: str) -> None:
    """Raises InputError: the hub is switched off, and nothing of the model was fetched before. What is not a hub id
    passes."""
    if not constants.is_offline_mode():
        return
    try:
        snapshot_download(repository, local_files_only=True)
    except HFValidationError:
        pass
    except LocalEntryNotFoundError:
        raise InputError(
            f"{label}: not a folder, and not in the hub's cache (HF_HUB_OFFLINE is set): name a local folder, or fetch "
            "it once without HF_HUB_OFFLINE"
        ) from None


def load_config(name: str, option: str = "model.name") -> PreTrainedConfig:
    """The config of a hub id or a local folder; `option` is the option or field that the user named it with.
    Raises InputError: there is no model, it needs its own code, or its config.json is malformed or not safe to use."""
    label, fault, fix = f"{option} {name}", BAD_CONFIG, CORRECT
    check_folder(name, label)
    if not Path(name, "config.json").is_file():
        fault, fix = "neither a model on the hub that can be reached nor a local folder with a config.json", "name one"
        if not Path(name).is_dir():
            check_cache(name, label)
            check_hub(name, "config.json", label)
    with transformers_errors(label, fault, fix):
        settings, _ = PreTrainedConfig.get_config_dict(name)
    for field, value in _fields(settings):
        if wrong := _fault(field, value):
            raise InputError(f"{label}: its config.json has {field} {value!r:.80}, which {wrong}")
    if settings:
        fault, fix = BAD_CONFIG, CORRECT
    try:
        with transformers_errors(label, fault, fix):
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except InputError as error:
        raise blaming_a_field(error, settings, lambda others: AutoConfig.for_model(**others)) from None


def _fields(settings: Any) -> Iterator[tuple[str, Any]]:
    """Names and values in all nested objects but label2id, whose names are free."""
    if isinstance(settings, dict):
        for field, value in settings.items():
            yield str(field), value
            if field != "label2id":
                yield from _fields(value)


def _fault(field: str, value: Any) -> str | None:
    """What is wrong with a field of config.json, checked before transformers acts on it."""
    least = 1 if re.search(AT_LEAST_ONE, field) else 0
    most = next((most for names, most in COUNTS.items() if re.search(names, field)), None)
    if most is not None and type(value) is int and not least <= value <= most:
        return f"must be from {least} to {most}"
    if "drop" in field and type(value) in (int, float) and not 0 <= value <= 1:
        return "must be from 0 to 1"
    if field in SWITCHES and type(value) not in (bool, type(None)):
        return "must be true or false"
    if "attn_implementation" in field and type(value) is not bool and value not in ATTENTIONS:
        return "may need code from the hub, which is never run: remove the field, and set model.attention"
    if "experts_implementation" in field and value not in EXPERTS:
        return "may need code from the hub, which is never run: remove the field"
    if field in UNUSED and value is not None:
        return "cannot be trained here: remove the field, or name another model"
    return None


def blaming_a_field(error: InputError, settings: dict[str, Any], make: Callable[[dict[str, Any]], Any]) -> InputError:
    """The error, with the first field of `settings` without which `make(settings)` succeeds."""
    for field, value in settings.items():
        try:
            make({name: other for name, other in settings.items() if name != field})
        except Exception:  # so it is another field
            continue
        return InputError(f"{error}; without its field {field} {value!r:.80} it would")
    return error
