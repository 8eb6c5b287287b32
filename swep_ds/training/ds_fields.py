"""Checks the fields of a ds_config and the types of their values before DeepSpeed reads them.

DeepSpeed ignores unknown fields at the top level and in half of its blocks, reads `true` as 1 and `"no"` as true, and
uses some values for the first time in the middle of an update.
"""

import difflib
import functools
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

from swep_ds.common import settings

AUTO = "auto"
MAX_INT64 = 2**63 - 1  # C++ has 64 bits for a tensor's size or a counter
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "a list"}
# A block is a mapping of its fields, or DeepSpeed's own model of it, with the fields of the installed version.
FIELDS: dict[str, Any] = {
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), int),
    **dict.fromkeys(("gradient_clipping", "gradient_predivide_factor"), float),
    **dict.fromkeys(("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients"), bool),
    **dict.fromkeys(("wall_clock_breakdown", "memory_breakdown", "dump_state"), bool),
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "torch_autocast": {"enabled": bool, "dtype": str, "lower_precision_safe_modules": list},
    "zero_optimization": DeepSpeedZeroConfig,
    "optimizer": {
        "type": str,
        "params": {
            **dict.fromkeys(("lr", "eps", "weight_decay"), float),
            "betas": list,
            **dict.fromkeys(("adam_w_mode", "bias_correction", "amsgrad", "torch_adam", "fused", "foreach"), bool),
            **dict.fromkeys(("set_grad_none", "fp32_optimizer_states"), bool),
        },
        "legacy_fusion": bool,
    },
    "aio": {
        **dict.fromkeys(("block_size", "queue_depth", "intra_op_parallelism", "thread_count"), int),
        **dict.fromkeys(("single_submit", "overlap_events", "use_gds"), bool),
    },
    "communication_data_type": str | None,
    "data_types": {"grad_accum_dtype": str | None},
    "steps_per_print": int,
    "log_level": str,
    "timers": {"throughput": DeepSpeedThroughputTimerConfig},
    "flops_profiler": {
        **dict.fromkeys(("profile_step", "module_depth", "top_modules"), int),
        **dict.fromkeys(("enabled", "detailed"), bool),
        "recompute_fwd_factor": float,
        "output_file": str | None,
    },
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
}
# smallest and largest number, where DeepSpeed does not check it or checks it only when it uses it
RANGES = {
    "gradient_predivide_factor": (1e-6, 1e6),
    "steps_per_print": (1, MAX_INT64),
    "aio.block_size": (1, 2**30),
    **dict.fromkeys(("aio.queue_depth", "aio.intra_op_parallelism", "aio.thread_count"), (1, 2**20)),
    "flops_profiler.profile_step": (1, MAX_INT64),
    "flops_profiler.top_modules": (1, 2**20),
    "flops_profiler.recompute_fwd_factor": (0, 2**10),
    "fp16.hysteresis": (1, MAX_INT64),
    "fp16.initial_scale_power": (0, 64),
    "fp16.loss_scale": (0, 2**64),
}
CHOICES = {
    "zero_optimization.stage": (0, 1, 2, 3),
    "communication_data_type": ("fp32", "bf16", "fp16", None),
    "data_types.grad_accum_dtype": ("fp32", "bf16", "fp16", None),
    "log_level": ("debug", "info", "warning", "error", "critical"),
}
_UNUSED = """
    autotuning compile compression_training curriculum_learning data_efficiency dataloader_drop_last disable_allgather
    eigenvalue expert_parallel graph_harvesting hybrid_engine pipeline progressive_layer_drop quantize_training
    sparse_attention sparse_gradients tensor_parallel weight_quantization
"""
_GRANULARITY = [f"zero_optimization.{prefix}module_granularity_threshold" for prefix in ("", "stage3_")]
# fields that DeepSpeed or its documentation knows and this package does not use; if switched off they are ignored
REFUSED = dict.fromkeys(_UNUSED.split(), "this package makes no use of it: remove it") | {
    **dict.fromkeys(("checkpoint", "nebula", "datastates_ckpt"), "this package writes its own checkpoints: remove it"),
    **dict.fromkeys(
        _GRANULARITY, "DeepSpeed then leaves some of this package's weights partitioned: remove this field"
    ),
    "amp": "the recipe's train.precision decides the precision: remove this block",
    "bfloat16": "DeepSpeed reads bf16 instead: name that",
    "scheduler": "the recipe's train.warmup_fraction and train.schedule decide it: remove this block",
    "activation_checkpointing": "would do nothing: set the recipe's train.activation_checkpointing to true instead",
    "elasticity": "the recipe decides the batch, and a run may resume on other ranks anyway: remove this block",
    "monitor_config": "write its blocks (tensorboard, csv_monitor, wandb, comet) beside the others, without it",
    "fp16.auto_cast": "a batch holds whole numbers, which must not be cast: remove this field",
    "gradient_allreduce_op": "gradients are averaged over the ranks: remove this field",
    "zero_optimization.cpu_offload": 'write "offload_optimizer": {"device": "cpu"} instead',
    "zero_optimization.cpu_offload_param": 'write "offload_param": {"device": "cpu"} instead',
    "zero_optimization.cpu_offload_use_pin_memory": "write pin_memory in the block offload_optimizer instead",
    "zero_optimization.elastic_checkpoint": "no run resumes from the checkpoints that this makes: remove it",
    "zero_optimization.zenflow": "would step with gradients of earlier updates: remove this block",
}
COMMENTS = ("_", "#", "//")  # JSON has no comments, so fields that begin like this are taken as such
shown = functools.partial(settings.shown, write=json.dumps)  # a value as JSON, shortened


def field_faults(block: dict[str, Any], fields: dict[str, Any] = FIELDS, prefix: str = "") -> list[str]:
    """What is not a field of a ds_config or has a value of the wrong type, each with its fix.

    "auto" is allowed for any value. `refused_fields` reports the fields of `REFUSED`.
    """
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
        else:
            faults += _value_faults(field, value, _kinds(fields[name]))
    return faults


def refused_fields(config: dict[str, Any]) -> list[str]:
    """The fields of `REFUSED` that are left after `without_idle`, each with its fix."""
    names = [*config, *(f"{block}.{name}" for block in ("fp16", "zero_optimization") for name in config.get(block, {}))]
    return [f"{name}: {REFUSED[name]}" for name in names if name in REFUSED]


def without_idle(block: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A copy of a config in which `field_faults` finds nothing, without comments and switched-off `REFUSED` fields."""
    return {
        name: without_idle(value, f"{prefix}{name}.") if isinstance(value, dict) and name not in REFUSED else value
        for name, value in block.items()
        if not (name.startswith(COMMENTS) or (f"{prefix}{name}" in REFUSED and _is_off(value)))
    }


def _is_off(value: Any) -> bool:
    """Whether a value is false, null, "auto" or 0, or a block that is disabled or holds such values only."""
    if isinstance(value, dict):
        return all(map(_is_off, [value["enabled"]] if "enabled" in value else value.values()))
    return value in (None, False, AUTO)


def _value_faults(field: str, value: Any, kinds: list[Any]) -> list[str]:
    """At most one fault of a plain value, all faults of a block."""
    below = next(filter(None, map(block_fields, kinds)), None)
    wanted = None
    if value is None and type(None) in kinds:
        pass
    elif below is not None:
        if isinstance(value, dict):
            return field_faults(value, below, f"{field}.")
        wanted = "it as a JSON object"
    elif value == AUTO:
        pass
    elif isinstance(value, bool) or not isinstance(value, int | float) or not {int, float} & {*kinds}:
        if type(value) not in kinds:
            wanted = " or ".join(text for kind, text in KINDS.items() if kind in kinds)
    elif isinstance(value, float) and not math.isfinite(value):
        wanted = "a finite number"
    elif float not in kinds and value != int(value):
        wanted = "a whole number"
    else:
        low, high = RANGES.get(field, (-MAX_INT64, MAX_INT64))
        wanted = None if low <= value <= high else f"a number from {low} to {high}"
    return [f"{field} is {shown(value)}: write {wanted}"] if wanted else []


def block_fields(kind: Any) -> dict[str, Any] | None:
    """The types of a block's fields by the names that a file may give them; None if `kind` is not a block."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return kind if isinstance(kind, dict) else None
    named = {name: info.annotation for name, info in kind.model_fields.items()}
    return named | {info.alias: info.annotation for info in kind.model_fields.values() if info.alias}


def _kinds(expected: Any) -> list[Any]:
    """The blocks and JSON types that a type annotation allows."""
    if get_origin(expected) in (Union, types.UnionType):
        return [kind for part in get_args(expected) for kind in _kinds(part)]
    if isinstance(expected, type) and issubclass(expected, Enum):
        return [int if issubclass(expected, int) else str]
    if isinstance(expected, type) and issubclass(expected, Path):
        return [str]
    return [get_origin(expected) or expected]
