"""Checks that a model's weights are what its files promise: transformers fills in what is missing without an error.

Only the head of the task may be new. Everything else must be in the files, in the model's shapes, and finite.
Each function raises an InputError that names the first weight at fault. `source` is a folder or a hub id, `label` how
the user named the model, `report` transformers' `output_loading_info`.
"""

import difflib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from swep_ds.common.errors import InputError
from swep_ds.models.folders import transformers_errors, weight_files

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check_complete(
    model: PreTrainedModel,
    source: str,
    names: set[str],
    report: dict[str, Any],
    label: str,
    head: str,
    *,
    new_head: bool,
) -> None:
    """Checks that all weights came from the files.

    Args:
        names: of the weights in the files.
        head: the task's head in words; its weights are all those outside `model.base_model`.
        new_head: whether these may be missing.
    """
    order = {name: place for place, name in enumerate(model.state_dict())}
    if mismatched := report["mismatched_keys"]:
        name, in_file, in_model = min(mismatched, key=lambda weight: order[weight[0]])
        raise InputError(
            f"{label}: {len(mismatched)} of its weights are of other shapes than its config.json says, first {name} of "
            f"{list(in_file)} in place of {list(in_model)}: correct config.json or name another model"
        )
    base = model.base_model_prefix
    head_names = {name for name in order if hasattr(model, base) and not name.startswith(f"{base}.")}
    missing = sorted({*report["missing_keys"]} | _wrongly_tied(model, source, names), key=order.__getitem__)
    if lacking := [name for name in missing if name not in head_names]:
        hint = ""
        if others := difflib.get_close_matches(lacking[0], map(str, report["unexpected_keys"]), n=1, cutoff=0):
            count = len(report["unexpected_keys"])
            hint = f"; its files hold {count} weights of other names, the nearest is {others[0][:100]}"
        raise InputError(
            f"{label}: its files lack {len(lacking)} of the {len(order.keys() - head_names)} weights that its "
            f"config.json asks for, first {lacking[0]}{hint}: name a folder with all weights, or correct config.json"
        )
    if missing and not new_head:
        raise InputError(
            f"{label}: has no weights for {', '.join(missing[:3])}: it is without a trained {head} head: name a model "
            "with one"
        )


def _wrongly_tied(model: PreTrainedModel, source: str, names: set[str]) -> set[str]:
    """What the files lack of an output layer and embeddings that config.json says are not one: transformers takes one
    of them for both in T5 and its like, whatever config.json says, and does not report it."""
    settings, _ = PreTrainedConfig.get_config_dict(source)
    outputs = {f"{name}.weight" for name, module in model.named_modules() if module is model.get_output_embeddings()}
    tied = model.all_tied_weights_keys  # name -> the table that it shares
    if settings.get("tie_word_embeddings") is not False or not outputs & tied.keys():
        return set()
    [output] = outputs
    tables = {table for pair in tied.items() if pair[1] == tied[output] for table in pair} - {output}
    lacking = {output} - names
    if not tables & names:
        lacking.add(tied[output])
    return lacking


def check_files(source: str, label: str, *, unused: Collection[str] = (), finite: bool = False) -> set[str]:
    """Refuses files that are damaged, and quantised weights: transformers takes their codes for values.

    Args:
        unused: names of weights that the model does not take.
        finite: also refuses NaN and infinity in safetensors, in one file at a time, so that no more of a mapped model
            is in memory.

    Returns:
        The names of the weights in the files.
    """
    names = set()
    for file in weight_files(source, label):
        with transformers_errors(label, f"its {file.name} is damaged", "fetch it again"):
            for name, tensor in _tensors(file):
                names.add(name)
                is_weight = name.endswith((".weight", ".bias")) and name not in unused
                if is_weight and tensor.dtype not in FLOATS:
                    raise InputError(
                        f"{label}: its {file.name} holds {name} as {tensor.dtype}, not in floating point: name a model "
                        "that is not quantised"
                    )
                if finite and name not in unused and not tensor.is_meta and not is_finite(tensor):
                    raise _damaged(label, name)
    return names


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The names and tensors of a file. Those of safetensors are memory-mapped: only what is used is read."""
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118
                yield name, content.get_tensor(name)
    else:
        content = torch.load(file, map_location="meta", weights_only=True)
        yield from ((name, value) for name, value in content.items() if isinstance(value, Tensor))


def is_finite(tensor: Tensor, *, mask: bool = False) -> bool:
    """Whether it holds no NaN and, unless it is a `mask`, no infinity. Unlike `isfinite()` it makes no copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    low, high = tensor.aminmax()  # both are NaN if any number is
    return not low.isnan() and (mask or not (low.isinf() or high.isinf()))


def check_finite(model: PreTrainedModel, label: str) -> None:
    """Refuses NaN, and infinity in a parameter; a buffer may be a mask."""
    buffers = dict(model.named_buffers())
    for name, tensor in model.state_dict().items():
        if not is_finite(tensor, mask=name in buffers):
            raise _damaged(label, name)


def _damaged(label: str, name: str) -> InputError:
    return InputError(
        f"{label}: its weights are damaged: {name} holds NaN or infinity: fetch them again, or name another model"
    )
