"""Checks the fields of a ds_config before DeepSpeed reads them.

DeepSpeed checks about half of its blocks. At the top level and in the other blocks it ignores unknown fields, and reads
`true` as 1 and `"no"` as true.
"""

import difflib
import functools
import json
from typing import Any

from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
from pydantic import ValidationError

from swep_ds.common.settings import messages

AUTO = "auto"
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "it as a JSON object",
}
# The type of a field's value, or the fields of a block; `dict` = DeepSpeed or the optimizer checks what is in it.
FIELDS: dict[str, Any] = {
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), int),
    **dict.fromkeys(("gradient_clipping", "gradient_predivide_factor"), float),
    **dict.fromkeys(("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "prescale_gradients"), bool),
    **dict.fromkeys(("wall_clock_breakdown", "memory_breakdown", "dump_state"), bool),
    **dict.fromkeys(("bf16", "fp16", "zero_optimization", "comms_logger"), dict),
    **dict.fromkeys(("tensorboard", "csv_monitor", "wandb", "comet"), dict),
    "torch_autocast": {"enabled": bool, "dtype": str, "lower_precision_safe_modules": list},
    "optimizer": {"type": str, "params": dict, "legacy_fusion": bool},
    "aio": {
        **dict.fromkeys(("block_size", "queue_depth", "intra_op_parallelism", "thread_count"), int),
        **dict.fromkeys(("single_submit", "overlap_events", "use_gds"), bool),
    },
    "communication_data_type": str,
    "data_types": {"grad_accum_dtype": str},
    "steps_per_print": int,
    "log_level": str,
    "timers": {"throughput": dict},
    "flops_profiler": {
        **dict.fromkeys(("profile_step", "module_depth", "top_modules"), int),
        **dict.fromkeys(("enabled", "detailed"), bool),
        "recompute_fwd_factor": float,
        "output_file": str,
    },
}
# DeepSpeed's own models of blocks
MODELS = {
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "zero_optimization": DeepSpeedZeroConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
}
OPTIONAL = ("communication_data_type", "data_types.grad_accum_dtype", "flops_profiler.output_file")  # may be null
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
    "monitor_config": "write its blocks (tensorboard, csv_monitor, wandb, comet) at the top level, without it",
    "fp16.auto_cast": "a batch holds whole numbers, which must not be cast: remove this field",
    "gradient_allreduce_op": "gradients are averaged over the ranks: remove this field",
    "zero_optimization.cpu_offload": 'write "offload_optimizer": {"device": "cpu"} instead',
    "zero_optimization.cpu_offload_param": 'write "offload_param": {"device": "cpu"} instead',
    "zero_optimization.cpu_offload_use_pin_memory": "write pin_memory in the block offload_optimizer instead",
    "zero_optimization.elastic_checkpoint": "no run resumes from the checkpoints that this makes: remove it",
    "zero_optimization.zenflow": "would step with gradients of earlier updates: remove this block",
}
COMMENTS = ("_", "#", "//")  # JSON has no comments, so fields that begin like this are taken as such
shown = functools.partial(messages.shown, write=json.dumps)  # a value as JSON, shortened


def field_faults(block: dict[str, Any], fields: dict[str, Any] = FIELDS, prefix: str = "") -> list[str]:
    """The fields of a config that DeepSpeed does not know, that this package makes no use of, or whose value is of the
    wrong type, each with its fix. "auto" is allowed for any value but a block's.

    Args:
        block: from `without_idle`.
    """
    faults = []
    for name, value in block.items():
        field, kind = f"{prefix}{name}", fields.get(name)
        if field in REFUSED:
            faults.append(f"{field}: {REFUSED[field]}")
        elif kind is None:
            close = difflib.get_close_matches(name, list(fields), n=1, cutoff=0.6)
            fix = f"did you mean {close[0]!r}?" if close else "remove it"
            faults.append(f"{shown(field)[1:-1]} is not a field of a ds_config: {fix}")
        elif isinstance(kind, dict) and isinstance(value, dict):
            faults += field_faults(value, kind, f"{field}.")
        elif not _is_of(kind, value) and not (value is None and field in OPTIONAL):
            faults.append(f"{field} is {shown(value)}: write {KINDS[dict if isinstance(kind, dict) else kind]}")
        elif field in MODELS:
            faults += _model_faults(value, MODELS[field], field)
    return faults


def _is_of(kind: Any, value: Any) -> bool:
    if kind is dict or isinstance(kind, dict):
        return isinstance(value, dict)
    if value == AUTO:
        return True
    if isinstance(value, bool):
        return kind is bool
    if kind is int and isinstance(value, float):
        return value.is_integer()  # such as 1e9
    return isinstance(value, int | float if kind is float else kind)


def _model_faults(block: dict[str, Any], model: type, field: str) -> list[str]:
    """What DeepSpeed's model of a block refuses."""
    faults = [f"{field}.{name}: {REFUSED[f'{field}.{name}']}" for name in block if f"{field}.{name}" in REFUSED]
    stage = block.get("stage", 0)
    if model is DeepSpeedZeroConfig and (isinstance(stage, bool) or stage not in (0, 1, 2, 3)):
        faults.append(f"{field}.stage is {shown(stage)}: write 0, 1, 2 or 3")
    if faults:
        return faults
    try:
        model(**block)
    except ValidationError as error:
        for fault in error.errors():
            faults.append(f"{'.'.join((field, *map(str, fault['loc'])))}: {fault['msg'].lower()}")
    return faults


def without_idle(block: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A copy of a config without comments and switched-off `REFUSED` fields."""
    kept = {}
    for name, value in block.items():
        field = f"{prefix}{name}"
        if name.startswith(COMMENTS) or (field in REFUSED and _is_off(value)):
            continue
        kept[name] = without_idle(value, f"{field}.") if isinstance(value, dict) and field not in REFUSED else value
    return kept


def _is_off(value: Any) -> bool:
    """Whether a value is false, null, "auto" or 0, or a block that is disabled or holds such values only."""
    if isinstance(value, dict):
        return _is_off(value["enabled"]) if "enabled" in value else all(map(_is_off, value.values()))
    return value in (None, False, AUTO)
