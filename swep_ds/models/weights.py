"""Whether a model's weights are what its files promise. transformers fills in what is missing without an error.

Only the head of the task may be new. Everything else must be in the files, in the model's shapes, and finite.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from swep_ds.errors import InputError
from swep_ds.models.folders import loaded_folder, reading, weight_files

FLOATS = ("F64", "F32", "F16", "BF16", torch.float64, torch.float32, torch.float16, torch.bfloat16)
BESIDE = 2**24  # numbers that need not be in the files: a new head, buffers


def check_size(hollow: PreTrainedModel, source: str, named: str) -> None:
    """Whether the files may hold as many numbers as the model has, before memory is taken for it.

    Args:
        hollow: the model on the meta device.

    Raises:
        InputError: they are too small, even at one byte a number.
    """
    numbers = sum({id(tensor): tensor.numel() for tensor in (*hollow.parameters(), *hollow.buffers())}.values())
    files = weight_files(source, named)
    held = sum(file.stat().st_size for file in files)
    if files and numbers > held + BESIDE:
        raise InputError(
            f"{named}: its config.json makes a model of {numbers:,} numbers, and its weights take {held:,} bytes: "
            "they do not belong together, correct config.json or name another model"
        )


def check_loaded(model: PreTrainedModel, report: dict[str, Any], named: str, *, new_head: bool, advice: str) -> None:
    """Whether all weights came from the files.

    Args:
        report: transformers' `output_loading_info`.
        new_head: whether the task's head, which is all that lies outside of `model.base_model`, may be missing.
        advice: what to name instead of a model that lacks its head, in the imperative.

    Raises:
        InputError: naming the first weight that is missing or of another shape, and how many are.
    """
    order = {name: place for place, name in enumerate(model.state_dict())}
    if report["mismatched_keys"]:
        name, there, here = min(report["mismatched_keys"], key=lambda weight: order[weight[0]])
        raise InputError(
            f"{named}: {len(report['mismatched_keys'])} of its weights are of other shapes than its config.json says, "
            f"first {name} of {list(there)} in place of {list(here)}: correct config.json or name another model"
        )
    missing = sorted(report["missing_keys"], key=order.__getitem__)
    head = {name for name in order if hasattr(model, model.base_model_prefix) and not _in_base(model, name)}
    if behind := [name for name in missing if name not in head]:
        others = sorted(map(str, report["unexpected_keys"]))
        hint = f"; its files hold {len(others)} weights of other names, such as {others[0][:100]}" if others else ""
        raise InputError(
            f"{named}: its files lack {len(behind)} of the {len(order.keys() - head)} weights that its config.json "
            f"asks for, first {behind[0]}{hint}: name a folder with all weights, or correct config.json"
        )
    # a layer of the head that is there in parts was damaged
    parts = [name for name in missing if any(_layer(name) == _layer(other) for other in head - {*missing})]
    if refused := missing if not new_head else parts:
        raise InputError(f"{named}: has no weights for {', '.join(refused[:3])}: {advice}")


def _in_base(model: PreTrainedModel, name: str) -> bool:
    return name.startswith(f"{model.base_model_prefix}.")


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def check_kinds(source: str, report: dict[str, Any], named: str) -> None:
    """Whether the files hold floating-point weights: of quantised ones transformers takes the codes for values.

    Raises:
        InputError: naming the first that is not.
    """
    for file in weight_files(loaded_folder(source), named):
        with reading(named, f"its {file.name} is damaged", "fetch it again"):
            kinds = _kinds(file)
        for name, kind in kinds.items():
            if kind not in FLOATS and name.endswith((".weight", ".bias")) and name not in report["unexpected_keys"]:
                raise InputError(
                    f"{named}: its {file.name} holds {name} as {kind}, not in floating point: name a model that is not "
                    "quantised"
                )


def _kinds(file: Path) -> dict[str, str | torch.dtype]:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as content:
            return {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118
    weights = torch.load(file, map_location="meta", weights_only=True)
    return {name: value.dtype for name, value in weights.items() if isinstance(value, torch.Tensor)}


def check_finite(model: PreTrainedModel, named: str) -> None:
    """Raises InputError naming the first weight of `model` that holds a NaN or an infinity; a buffer may be a mask."""
    _check_finite(model.state_dict().items(), model, named)


def check_mapped_finite(model: PreTrainedModel, source: str, report: dict[str, Any], named: str) -> None:
    """`check_finite` of mapped weights: file by file, so that no more than one is in memory."""
    files = [file for file in weight_files(loaded_folder(source), named) if file.suffix == ".safetensors"]
    for file in files:
        with safe_open(file, "pt") as content:
            names = {*content.keys()} - {*report["unexpected_keys"]}
            _check_finite(((name, content.get_tensor(name)) for name in sorted(names)), model, named)
    if not files:  # pickled weights are not mapped
        check_finite(model, named)


def _check_finite(tensors: Iterable[tuple[str, Tensor]], model: PreTrainedModel, named: str) -> None:
    buffers = dict(model.named_buffers())
    for name, tensor in tensors:
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        low, high = tensor.aminmax()  # without a copy, as isfinite() would make; both are NaN where one number is
        if low.isnan() or (name not in buffers and (low.isinf() or high.isinf())):
            raise InputError(
                f"{named}: its weights are damaged: {name} holds NaN or infinity: fetch them again, or name another "
                "model"
            )
