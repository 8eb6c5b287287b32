"""A model's folder or hub id: its config, and the files that decide what it computes. No code of its own is run."""

import json
import re
from pathlib import Path

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
# Fields of config.json, wherever they stand: attention and experts may be code from the hub, and quantised weights
# cannot be trained.
REFUSED = re.compile(
    r'"(\w*(?:attn|experts)_implementation\w*|quantization_config)": '
    r'(?!null|true|false|"(?:eager|sdpa|batched_mm|grouped_mm)")'
)


def check_adapter(source: str, label: str) -> None:
    """Raises InputError: the folder or hub id holds a PEFT adapter, with or without a model. transformers applies one
    that it finds, without the head that was trained with it."""
    if find_adapter_config_file(source):
        raise InputError(
            f"{label}: holds an adapter (adapter_config.json): merge it (merge_and_unload), save model and tokenizer, "
            "and name that folder"
        )


def model_files(folder: Path) -> list[Path]:
    """The files in a model's folder that decide what it answers."""
    entries = sorted(folder.iterdir())
    deciding = [entry for entry in entries if re.fullmatch(DECIDING, entry.name) and entry.is_file()]
    return deciding + weight_files(folder)


def weight_files(folder: Path) -> list[Path]:
    """The files in a model's folder that transformers loads the weights from."""
    for file in [folder / name for name in WEIGHTS]:
        if file.is_file() and file.suffix == ".json":
            return [folder / name for name in sorted(set(read_json(file)["weight_map"].values()))]
        if file.is_file():
            return [file]
    return []


def load_config(name: str, option: str = "model.name") -> PreTrainedConfig:
    """The config of a hub id or a local folder; `option` is what the user named it with. Raises InputError: there is no
    model, it holds an adapter, needs its own code or is quantised, or its config.json is malformed."""
    label = f"{option} {name}"
    fix = "name a model that transformers itself has a class for, on the hub or in a folder with a config.json"
    with as_input_error(f"{label}: no model can be built from its config.json", fix):
        if not Path(name).is_dir():
            check_hub(name, "config.json", label)
        check_adapter(name, label)
        settings, _ = PreTrainedConfig.get_config_dict(name)
        if refused := REFUSED.search(json.dumps(settings)):
            raise InputError(
                f"{label}: its config.json has {refused[1]}, which may need code from the hub or weights that cannot "
                "be trained: remove the field, or name another model"
            )
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
