"""Checks that a model's weights are what its files promise: transformers fills in what is missing without an error.

Only the head of the task may be new. Everything else must be in the files, in the model's shapes, and finite.
Each function raises an InputError that names the first weight at fault. `source` is a folder or a hub id, `label` how
the user named the model, `report` transformers' `output_loading_info`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from swep_ds.errors import InputError
from swep_ds.models.folders import transformers_errors, weight_files

FLOATS = ("F64", "F32", "F16", "BF16", torch.float64, torch.float32, torch.float16, torch.bfloat16)
NOT_IN_FILES = 2**24  # numbers that need not be in the files: a new head, buffers


def check_size(hollow: PreTrainedModel, source: str, label: str) -> None:
    """Refuses a model, on the meta device, with far more numbers than its files have bytes."""
    if not Path(source).is_dir():
        return  # not yet downloaded
    numbers = sum({id(tensor): tensor.numel() for tensor in (*hollow.parameters(), *hollow.buffers())}.values())
    files = weight_files(source, label)
    held = sum(file.stat().st_size for file in files)
    if files and numbers > held + NOT_IN_FILES:
        raise InputError(
            f"{label}: its config.json describes {numbers:,} parameters, and its weights take {held:,} bytes: "
            "they do not belong together, correct config.json or name another model"
        )


def check_files(hollow: PreTrainedModel, source: str, label: str) -> None:
    """Refuses a model, on the meta device, whose files are damaged or too small for it. Reads no weights."""
    check_size(hollow, source, label)
    for file in weight_files(source, label):
        _dtypes(file, label)


def check_complete(model: PreTrainedModel, report: dict[str, Any], label: str, head: str, *, new_head: bool) -> None:
    """Checks that all weights came from the files.

    Args:
        head: the task's head in words; its weights are all those outside `model.base_model`.
        new_head: whether these may all be missing.
    """
    order = {name: place for place, name in enumerate(model.state_dict())}
    if report["mismatched_keys"]:
        name, in_file, in_model = min(report["mismatched_keys"], key=lambda weight: order[weight[0]])
        raise InputError(
            f"{label}: {len(report['mismatched_keys'])} of its weights are of other shapes than its config.json says, "
            f"first {name} of {list(in_file)} in place of {list(in_model)}: correct config.json or name another model"
        )
    missing = sorted(report["missing_keys"], key=order.__getitem__)
    base = f"{model.base_model_prefix}."
    head_names = {name for name in order if hasattr(model, base[:-1]) and not name.startswith(base)}
    if lacking := [name for name in missing if name not in head_names]:
        others = sorted(map(str, report["unexpected_keys"]))
        hint = f"; its files hold {len(others)} weights of other names, such as {others[0][:100]}" if others else ""
        raise InputError(
            f"{label}: its files lack {len(lacking)} of the {len(order.keys() - head_names)} weights that its "
            f"config.json asks for, first {lacking[0]}{hint}: name a folder with all weights, or correct config.json"
        )
    # a layer of the head that is half there was damaged
    layers = {name.rpartition(".")[0] for name in head_names.difference(missing)}
    if refused := [name for name in missing if not new_head or name.rpartition(".")[0] in layers]:
        raise InputError(
            f"{label}: has no weights for {', '.join(refused[:3])}: name a model with a whole, trained {head} head"
        )


def check_dtypes(source: str, report: dict[str, Any], label: str) -> None:
    """Refuses weights that are not in floating point: transformers takes the codes of quantised ones for values."""
    for file in weight_files(source, label):
        for name, dtype in _dtypes(file, label).items():
            if dtype not in FLOATS and name.endswith((".weight", ".bias")) and name not in report["unexpected_keys"]:
                raise InputError(
                    f"{label}: its {file.name} holds {name} as {dtype}, not in floating point: name a model that is "
                    "not quantised"
                )


def _dtypes(file: Path, label: str) -> dict[str, str | torch.dtype]:
    """The dtypes of a file's tensors by name."""
    with transformers_errors(label, f"its {file.name} is damaged", "fetch it again"):
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as content:
                return {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
        weights = torch.load(file, map_location="meta", weights_only=True)
        return {name: value.dtype for name, value in weights.items() if isinstance(value, Tensor)}


def check_finite(model: PreTrainedModel, label: str, tensors: Iterable[tuple[str, Tensor]] | None = None) -> None:
    """Refuses NaN, and infinity in a parameter (a buffer may be a mask), in `tensors` or else in all of the model's."""
    buffers = dict(model.named_buffers())
    for name, tensor in model.state_dict().items() if tensors is None else tensors:
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        low, high = tensor.aminmax()  # unlike isfinite() without a copy; both are NaN if any number is
        if low.isnan() or (name not in buffers and (low.isinf() or high.isinf())):
            raise InputError(
                f"{label}: its weights are damaged: {name} holds NaN or infinity: fetch them again, or name another "
                "model"
            )


def check_mapped_finite(model: PreTrainedModel, source: str, report: dict[str, Any], label: str) -> None:
    """`check_finite` for mapped weights, file by file, so that no more than one file is in memory."""
    files = [file for file in weight_files(source, label) if file.suffix == ".safetensors"]
    for file in files:
        with safe_open(file, "pt") as content:
            names = sorted({*content.keys()} - {*report["unexpected_keys"]})
            check_finite(model, label, ((name, content.get_tensor(name)) for name in names))
    if not files:  # pickled weights are not mapped
        check_finite(model, label)
