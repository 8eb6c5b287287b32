"""A model's config.json: looked at before transformers acts on its values, then read."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from swep_ds.errors import InputError
from swep_ds.models.folders import check_folder, reading

NO_MODEL = "its config.json makes no model"
CORRECT = "correct it or name another model"
# transformers' own; for others it may fetch code from the hub
ATTENTIONS = (None, "eager", "sdpa")
EXPERTS = (None, "eager", "batched_mm", "grouped_mm")
# how many there may be of what takes time and memory before anything can be compared with the weights
COUNTS = {r"(^|_)layers?$|_groups?$|^inner_group_num$|_experts$": 1000, r"^num_labels$": 100_000}
AT_LEAST_ONE = r"^(n|num|num_hidden|encoder|decoder|num_encoder|num_decoder)_layers?$|^num_labels$"
SWITCHES = ("output_hidden_states", "output_attentions", "return_dict", "use_cache", "tie_word_embeddings")
# settings of weights that cannot be trained, or that patch transformers' classes
UNUSED = ("quantization_config", "fusion_config", "transformers_weights")


def load_config(name: str, option: str = "model.name") -> PreTrainedConfig:
    """The config of a hub id or a local folder.

    Args:
        option: what the user named the model with.

    Raises:
        InputError: nothing there, code of its own, or no config that transformers understands or that is safe to use.
    """
    named = f"{option} {name}"
    check_folder(name, named)
    what, fix = NO_MODEL, CORRECT
    if not Path(name, "config.json").is_file():
        what, fix = "neither a model on the hub that can be reached nor a local folder with a config.json", "name one"
    with reading(named, what, fix):
        settings, _ = PreTrainedConfig.get_config_dict(name)
    _check_settings(settings, named)
    try:
        with reading(named, NO_MODEL if settings else what, CORRECT if settings else fix):
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except InputError as error:
        raise blaming(error, settings, lambda others: AutoConfig.for_model(**others)) from None


def _check_settings(settings: dict[str, Any], named: str) -> None:
    """Looks at a config.json's values before transformers acts on them."""
    for field, value in _fields(settings):
        fault = None
        least = 1 if re.search(AT_LEAST_ONE, field) else 0
        most = next((most for names, most in COUNTS.items() if re.search(names, field)), None)
        if most is not None and type(value) is int and not least <= value <= most:
            fault = f"must be from {least} to {most}"
        elif "drop" in field and type(value) in (int, float) and not 0 <= value <= 1:
            fault = "must be from 0 to 1"
        elif field in SWITCHES and type(value) not in (bool, type(None)):
            fault = "must be true or false"
        elif "attn_implementation" in field and type(value) is not bool and value not in ATTENTIONS:
            fault = "may need code from the hub, which is never run: take the field out, and set model.attention"
        elif "experts_implementation" in field and value not in EXPERTS:
            fault = "may need code from the hub, which is never run: take the field out"
        elif field in UNUSED and value is not None:
            fault = "is of no model that can be trained here: take the field out, or name another model"
        if fault:
            raise InputError(f"{named}: its config.json has {field} {value!r:.80}, which {fault}")


def _fields(settings: Any) -> Iterator[tuple[str, Any]]:
    """The names and values of all objects, but for label2id, whose names are free."""
    if isinstance(settings, dict):
        for field, value in settings.items():
            yield str(field), value
            if field != "label2id":
                yield from _fields(value)


def blaming(error: InputError, settings: dict[str, Any], make: Callable[[dict[str, Any]], Any]) -> InputError:
    """The error, with the field named without which the model could be made."""
    for field in settings:
        try:
            make({name: value for name, value in settings.items() if name != field})
        except Exception:  # then it is another field
            continue
        return InputError(f"{error}; without its field {field} {settings[field]!r:.80} it would")
    return error
