"""A model's folder or hub id: its config, and the files that decide what it computes. No code of its own is run."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import find_adapter_config_file

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_hub, read_json

# transformers loads the first of these that exists
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# other files that decide what a model answers
DECIDING = (
    r"(added_tokens|(generation_)?config|special_tokens_map)\.json"
    r"|(tokenizer|vocab|merges|spiece|sentencepiece|spm|reading)[^/]*\.(json|txt|model)"
)
BAD_CONFIG = "no model can be built from its config.json"
CORRECT = "correct it or name another model"
# Fields of config.json, wherever they stand: attention and experts may be code from the hub, and quantised weights
# cannot be trained.
REFUSED = re.compile(
    r'"(\w*(?:attn|experts)_implementation\w*|quantization_config)": '
    r'(?!null|true|false|"(?:eager|sdpa|batched_mm|grouped_mm)")'
)


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
    """Refuses a PEFT adapter, with or without a model in its folder. transformers applies one that it finds, without
    the head that was trained with it. Looks into a local folder or the hub's cache. Raises InputError."""
    folder = _local_folder(source)
    if folder is not None and (folder / "adapter_config.json").is_file():
        raise InputError(
            f"{label}: holds an adapter (adapter_config.json): merge it (merge_and_unload), save model and tokenizer, "
            "and name that folder"
        )


def _local_folder(source: str) -> Path | None:
    """The folder itself, or that of a hub id in the hub's cache; None if nothing of the model was fetched."""
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def model_files(source: str | Path, label: str) -> list[Path]:
    """The files in a model's local folder that decide what it answers: settings, vocabulary, weights, and how its run
    read texts. Raises InputError: as `weight_files`."""
    entries = sorted(Path(source).iterdir())
    deciding = [entry for entry in entries if re.fullmatch(DECIDING, entry.name) and entry.is_file()]
    return deciding + weight_files(str(source), label)


def weight_files(source: str, label: str) -> list[Path]:
    """The files that transformers loads the weights from: those of a local folder, or of a hub id in the hub's cache.
    They may be missing. Raises InputError: the index of the weights is damaged."""
    folder = _local_folder(source)
    if folder is None:
        return []
    for file in (folder / name for name in WEIGHTS):
        if file.is_file() and file.suffix != ".json":
            return [file]
        if file.is_file():
            with as_input_error(f"{label}: its {file.name} has no weight_map", "fetch it again"):
                return [folder / name for name in sorted(set(read_json(file)["weight_map"].values()))]
    return []


def check_cache(name: str, label: str) -> None:
    """Raises InputError: the hub is switched off, and nothing of the model was fetched before."""
    if constants.is_offline_mode() and _local_folder(name) is None:
        raise InputError(
            f"{label}: not a folder, and not in the hub's cache (HF_HUB_OFFLINE is set): name a local folder, or fetch "
            "it once without HF_HUB_OFFLINE"
        )


def load_config(name: str, option: str = "model.name") -> PreTrainedConfig:
    """The config of a hub id or a local folder; `option` is the option or field that the user named it with.

    Raises InputError: there is no model, it holds an adapter, needs its own code or is quantised, or its config.json is
    malformed.
    """
    label = f"{option} {name}"
    fix = "name a model on the hub that can be reached, or a local folder with a config.json"
    with transformers_errors(label, BAD_CONFIG, fix):
        if not Path(name).is_dir():
            check_cache(name, label)
            check_hub(name, "config.json", label)
            find_adapter_config_file(name)  # fetches it
        check_folder(name, label)
        settings, _ = PreTrainedConfig.get_config_dict(name)
        if refused := REFUSED.search(json.dumps(settings)):
            raise InputError(
                f"{label}: its config.json has {refused[1]}, which may need code from the hub or weights that cannot "
                "be trained: remove the field, or name another model"
            )
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
