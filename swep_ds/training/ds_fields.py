"""The fields of a ds_config and the types of their values, before DeepSpeed reads them.

DeepSpeed passes over fields that it does not know at the top level and in half of its blocks, reads `true` as 1 and
`"no"` as true, and uses some values for the first time in the middle of an update.
"""

import difflib
import json
import math
import types
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from pydantic import BaseModel

AUTO = "auto"
LARGEST = 2**63 - 1  # what a tensor's size or a counter in C++ holds
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "a list"}
# A block is a mapping of its fields, or DeepSpeed's own model of it, which knows the fields of the installed version.
FIELDS: dict[str, Any] = {
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "gradient_clipping": float,
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "torch_autocast": {"enabled": bool, "dtype": str, "lower_precision_safe_modules": list},
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_allow_untested_optimizer": bool,
    "zero_force_ds_cpu_optimizer": bool,
    "optimizer": {
        "type": str,
        "params": {
            "lr": float,
            "betas": list,
            "eps": float,
            "weight_decay": float,
            "adam_w_mode": bool,
            "bias_correction": bool,
            "amsgrad": bool,
            "torch_adam": bool,
            "fused": bool,
            "foreach": bool,
            "set_grad_none": bool,
            "fp32_optimizer_states": bool,
        },
        "legacy_fusion": bool,
    },
    "aio": {
        "block_size": int,
        "queue_depth": int,
        "intra_op_parallelism": int,
        "thread_count": int,
        "single_submit": bool,
        "overlap_events": bool,
        "use_gds": bool,
    },
    "prescale_gradients": bool,
    "gradient_predivide_factor": float,
    "communication_data_type": str | None,
    "data_types": {"grad_accum_dtype": str | None},
    "steps_per_print": int,
    "wall_clock_breakdown": bool,
    "memory_breakdown": bool,
    "dump_state": bool,
    "log_level": str,
    "timers": {"throughput": DeepSpeedThroughputTimerConfig},
    "flops_profiler": {
        "enabled": bool,
        "recompute_fwd_factor": float,
        "profile_step": int,
        "module_depth": int,
        "top_modules": int,
        "detailed": bool,
        "output_file": str | None,
    },
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
}
# the smallest and the largest number; where DeepSpeed does not check it, or only where it is used
RANGES = {
    "gradient_predivide_factor": (1e-6, 1e6),
    "steps_per_print": (1, LARGEST),
    "aio.block_size": (1, 2**30),
    "aio.queue_depth": (1, 2**20),
    "aio.intra_op_parallelism": (1, 2**10),
    "aio.thread_count": (1, 2**10),
    "flops_profiler.profile_step": (1, LARGEST),
    "flops_profiler.top_modules": (1, 2**20),
    "flops_profiler.recompute_fwd_factor": (0, 2**10),
    "fp16.hysteresis": (1, LARGEST),
    "fp16.initial_scale_power": (0, 64),
    "fp16.loss_scale": (0, 2**64),
}
CHOICES = {
    "zero_optimization.stage": (0, 1, 2, 3),
    "communication_data_type": ("fp32", "bf16", "fp16", None),
    "data_types.grad_accum_dtype": ("fp32", "bf16", "fp16", None),
    "log_level": ("debug", "info", "warning", "error", "critical"),
}
_CHECKPOINTS = "checkpoints are written and read in this package's way: remove this block"
_NOT_GATHERED = "DeepSpeed then leaves some of this package's weights spread: remove this field"
_UNUSED = "this package makes no use of it: remove it"
# what DeepSpeed or its documentation knows and this package does without; switched off, it is passed over
REFUSED = dict.fromkeys(
    (
        *("autotuning", "compile", "compression_training", "curriculum_learning", "data_efficiency"),
        *("dataloader_drop_last", "disable_allgather", "eigenvalue", "expert_parallel", "graph_harvesting"),
        *(
            "hybrid_engine",
            "pipeline",
            "progressive_layer_drop",
            "quantize_training",
            "sparse_attention",
            "sparse_gradients",
        ),
        *("tensor_parallel", "weight_quantization"),
    ),
    _UNUSED,
) | {
    "checkpoint": _CHECKPOINTS,
    "nebula": _CHECKPOINTS,
    "datastates_ckpt": _CHECKPOINTS,
    "amp": "the recipe's train.precision decides the precision: remove this block",
    "bfloat16": "DeepSpeed reads bf16 in its place: name that",
    "scheduler": "the recipe's train.warmup_fraction and train.schedule decide it: remove this block",
    "activation_checkpointing": "would do nothing: remove this block and set the recipe's "
    "train.activation_checkpointing to true",
    "elasticity": "the recipe decides the batch, and a run may resume on other ranks anyway: remove this block",
    "monitor_config": "write its blocks (tensorboard, csv_monitor, wandb, comet) beside the others, without it",
    "fp16.auto_cast": "a batch holds whole numbers, which are not to be cast: remove this field",
    "gradient_allreduce_op": "gradients are averaged over the ranks: remove this field",
    "zero_optimization.cpu_offload": 'write "offload_optimizer": {"device": "cpu"} in its place',
    "zero_optimization.cpu_offload_param": 'write "offload_param": {"device": "cpu"} in its place',
    "zero_optimization.cpu_offload_use_pin_memory": "write pin_memory in the block offload_optimizer in its place",
    "zero_optimization.elastic_checkpoint": "checkpoints then take another form, from which no run resumes: remove it",
    "zero_optimization.module_granularity_threshold": _NOT_GATHERED,
    "zero_optimization.stage3_module_granularity_threshold": _NOT_GATHERED,
    "zero_optimization.zenflow": "would step with gradients of earlier updates: remove this block",
}
COMMENTS = ("_", "#", "//")  # names that begin so are comments, for which JSON has no other place


def field_faults(config: dict[str, Any]) -> list[str]:
    """What is no field of a ds_config or has a value of another type, each with its fix.

    "auto" is right almost anywhere, and what `refused_fields` names is left to it.
    """
    return _block_faults("", config, FIELDS)


def refused_fields(config: dict[str, Any]) -> list[str]:
    """Fields that this package does without, each with its fix; of what `without_idle` left."""
    names = [*config, *(f"{block}.{name}" for block in ("fp16", "zero_optimization") for name in config.get(block, {}))]
    return [f"{name}: {REFUSED[name]}" for name in names if name in REFUSED]


def without_idle(block: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A copy of a config without faults that lacks its comments, and fields of `REFUSED` that are switched off."""
    return {
        name: without_idle(value, f"{prefix}{name}.") if isinstance(value, dict) and name not in REFUSED else value
        for name, value in block.items()
        if not (name.startswith(COMMENTS) or (f"{prefix}{name}" in REFUSED and _is_off(value)))
    }


def _is_off(value: Any) -> bool:
    """Whether a field of `REFUSED` asks for nothing: it is false, null, "auto" or 0, or a block of such values."""
    if isinstance(value, dict):
        values = [value["enabled"]] if "enabled" in value else value.values()
        return all(value in (None, False, AUTO) for value in values)
    return value in (None, False, AUTO)


def shown(value: Any) -> str:
    """A value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _block_faults(prefix: str, block: dict[str, Any], fields: dict[str, Any]) -> list[str]:
    faults = []
    for name, value in block.items():
        field = f"{prefix}{name}"
        if name.startswith(COMMENTS) or field in REFUSED:
            continue
        if field in CHOICES and not any(type(value) is type(choice) and value == choice for choice in CHOICES[field]):
            *first, last = map(json.dumps, CHOICES[field])
            faults.append(f"{field} is {shown(value)}: write {', '.join(first)} or {last}")
        elif name not in fields:
            close = difflib.get_close_matches(name, list(fields), n=1, cutoff=0.6)
            fix = f"did you mean {close[0]!r}?" if close else "remove it"
            faults.append(f"{shown(field)[1:-1]} is not a field of a ds_config: {fix}")
        elif value != AUTO or _fields(fields[name]) is not None:
            faults += _value_faults(field, value, fields[name])
    return faults


def _value_faults(field: str, value: Any, expected: Any) -> list[str]:
    below = _fields(expected)
    if below is not None:
        if not isinstance(value, dict):
            return [f"{field} is {shown(value)}: write it as a JSON object"]
        return _block_faults(f"{field}.", value, below)
    kinds = _kinds(expected)
    if value is None and type(None) in kinds:
        return []
    blocks = [kind for kind in kinds if _fields(kind) is not None]
    if blocks:
        return _value_faults(field, value, blocks[0])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_faults(field, value, kinds)
    if type(value) in kinds:
        return []
    return [f"{field} is {shown(value)}: write {_described(kinds)}"]


def _number_faults(field: str, value: float, kinds: set[type]) -> list[str]:
    if not {int, float} & kinds:
        return [f"{field} is {shown(value)}: write {_described(kinds)}"]
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{field} is {shown(value)}: write a finite number"]
    if float not in kinds and value != int(value):
        return [f"{field} is {shown(value)}: write a whole number"]
    low, high = RANGES.get(field, (-LARGEST, LARGEST))
    if not low <= value <= high:
        return [f"{field} is {shown(value)}: write a number from {low} to {high}"]
    return []


def _fields(expected: Any) -> dict[str, Any] | None:
    """The fields of a block by the names that a file may give them; None of anything else."""
    if isinstance(expected, dict):
        return expected
    if not (isinstance(expected, type) and issubclass(expected, BaseModel)):
        return None
    fields = {}
    for name, info in expected.model_fields.items():
        fields |= {name: info.annotation} | ({info.alias: info.annotation} if info.alias else {})
    return fields


def _kinds(expected: Any) -> set[Any]:
    """The JSON types that a type annotation takes."""
    if get_origin(expected) in (Union, types.UnionType):
        return set().union(*map(_kinds, get_args(expected)))
    if isinstance(expected, type) and issubclass(expected, Enum):
        return {int} if issubclass(expected, int) else {str}
    if isinstance(expected, type) and issubclass(expected, Path):
        return {str}
    return {get_origin(expected) or expected}


def _described(kinds: set[type]) -> str:
    return " or ".join(text for kind, text in KINDS.items() if kind in kinds)
