"""Checks the fields of a ds_config before DeepSpeed reads them.

DeepSpeed checks about half of its blocks. At the top level and in the other blocks it ignores unknown fields.
"""

import difflib
import functools
import json
from typing import Any

from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from pydantic import BaseModel, ValidationError

from swep_ds.common import settings

AUTO = "auto"
VALUES = """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
    gradient_predivide_factor prescale_gradients communication_data_type zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level
"""
# The fields of a block, or DeepSpeed's own model of it. An optimizer checks its `params` itself.
BLOCKS: dict[str, str | type[BaseModel]] = {
    "bf16": DeepSpeedBF16Config,
    "fp16": DeepSpeedFP16Config,
    "torch_autocast": "enabled dtype lower_precision_safe_modules",
    "zero_optimization": DeepSpeedZeroConfig,
    "optimizer": "type params",
    "aio": "block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds",
    "data_types": "grad_accum_dtype",
    "timers": "throughput",
    "flops_profiler": "enabled profile_step module_depth top_modules detailed output_file recompute_fwd_factor",
    "comms_logger": CommsLoggerConfig,
    "tensorboard": TensorBoardConfig,
    "csv_monitor": CSVConfig,
    "wandb": WandbConfig,
    "comet": CometConfig,
}
KNOWN = [*VALUES.split(), *BLOCKS]
# what DeepSpeed takes, and is decided otherwise here or leads to something wrong
REFUSED = {
    "amp": "the recipe's train.precision decides the precision: remove this block",
    "bfloat16": "DeepSpeed reads bf16 instead: name that",
    "scheduler": "the recipe's train.warmup_fraction and train.schedule decide it: remove this block",
    "activation_checkpointing": "would do nothing: set the recipe's train.activation_checkpointing to true instead",
    "elasticity": "the recipe decides the batch, and a run may resume on other ranks anyway: remove this block",
    "monitor_config": "write its blocks (tensorboard, csv_monitor, wandb, comet) at the top level, without it",
    "fp16.auto_cast": "a batch holds whole numbers, which must not be cast: remove this field",
    "zero_optimization.cpu_offload": 'write "offload_optimizer": {"device": "cpu"} instead',
    "zero_optimization.cpu_offload_param": 'write "offload_param": {"device": "cpu"} instead',
    "zero_optimization.cpu_offload_use_pin_memory": "write pin_memory in the block offload_optimizer instead",
    # DeepSpeed 0.19 takes float32 weights and optimizer state from another parameter's place
    "zero_optimization.round_robin_gradients": "DeepSpeed then saves wrong weights: remove it",
    "zero_optimization.elastic_checkpoint": "no run resumes from the checkpoints that this makes: remove it",
    "zero_optimization.zenflow": "would step with gradients of earlier updates: remove this block",
    **dict.fromkeys(
        ("zero_optimization.module_granularity_threshold", "zero_optimization.stage3_module_granularity_threshold"),
        "DeepSpeed then leaves some of this package's weights partitioned: remove this field",
    ),
}
COMMENTS = ("_", "#", "//")  # JSON has no comments, so fields that begin like this are taken as such
shown = functools.partial(settings.shown, write=json.dumps)  # a value as JSON, shortened


def without_idle(block: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A copy of a config without comments, and without fields that are switched off and of no use here anyway."""
    kept = {}
    for name, value in block.items():
        field = f"{prefix}{name}"
        is_used = field not in REFUSED and (prefix != "" or name in KNOWN)
        if name.startswith(COMMENTS) or (not is_used and _is_off(value)):
            continue
        kept[name] = without_idle(value, f"{field}.") if is_used and isinstance(value, dict) else value
    return kept


def _is_off(value: Any) -> bool:
    """Whether a value is false, null, "auto" or 0, or a block that is disabled or holds such values only."""
    if isinstance(value, dict):
        return _is_off(value["enabled"]) if "enabled" in value else all(map(_is_off, value.values()))
    return value in (None, False, AUTO)


def field_faults(config: dict[str, Any]) -> list[str]:
    """The fields, from `without_idle`, that are unknown or `REFUSED`, or that DeepSpeed refuses; each with its fix.

    "auto" is allowed for any value but a block's and ZeRO's stage.
    """
    faults = []
    for name, value in config.items():
        block = BLOCKS.get(name)
        if name in REFUSED:
            faults.append(f"{name}: {REFUSED[name]}")
        elif name not in KNOWN:
            faults.append(_unknown(name, KNOWN))
        elif block is not None and not isinstance(value, dict):
            faults.append(f"{name} is {shown(value)}: write it as a JSON object")
        elif isinstance(block, str):
            known = block.split()
            faults += [_unknown(field, known, f"{name}.") for field in value if field not in known]
        elif block is not None:
            faults += _model_faults(name, value, block)
    return faults


def _unknown(name: str, known: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    fix = f"did you mean {close[0]!r}?" if close else "remove it"
    return f"{shown(prefix + name)[1:-1]} is not a field of a ds_config that is of use here: {fix}"


def _model_faults(name: str, block: dict[str, Any], model: type[BaseModel]) -> list[str]:
    """What DeepSpeed's model of a block refuses, and what is `REFUSED`."""
    faults = [f"{name}.{field}: {REFUSED[f'{name}.{field}']}" for field in block if f"{name}.{field}" in REFUSED]
    if name == "zero_optimization" and block.get("stage", 0) not in (0, 1, 2, 3):
        faults.append(f"{name}.stage is {shown(block['stage'])}: write 0, 1, 2 or 3")
    try:
        if not faults:
            model(**block)
    except ValidationError as error:
        for fault in error.errors():
            field = ".".join(map(str, (name, *fault["loc"])))
            faults.append(f"{field}: {fault['msg'].lower()}")
    return faults
