"""Completes a ds_config from the recipe, and reports all contradictions between the two in one error.

The recipe decides batch, optimizer, schedule, clipping and precision; the ds_config decides how DeepSpeed carries that
out (ZeRO stage, offload, buckets, communication). "auto" takes the recipe's value, and any other value must agree with
it.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import ds_config_path, read_json
from swep_ds.common.settings import flatten
from swep_ds.data.batches import engine_divisor
from swep_ds.training.ds_fields import AUTO, field_faults, shown, without_idle
from swep_ds.training.ds_roles import QUIET
from swep_ds.training.settings import TrainSection

OLDEST_DEEPSPEED = "0.19.8"  # earlier ones lose gradients, or were never compared with a plain loop
OFFLOADS = {"offload_optimizer": 1, "offload_param": 3}  # the least ZeRO stage of each
NEEDS_GPU = {"fp16": "fp32, autocast or bf16", "tf32": "fp32"}  # precision -> what to use on a CPU


def complete_ds_config(
    source: str,
    train: TrainSection,
    *,
    pretrains: bool,
    world_size: int,
    micro_steps: int,
    hidden_size: int,
    on_cpu: bool,
) -> dict[str, Any]:
    """Reads a ds_config file and completes it.

    Args:
        source: name of a shipped ds_config, or path of a JSON file.
        pretrains: whether the recipe has a first stage.
        micro_steps: micro-steps of a micro-batch (`Objective.parts`).
        hidden_size: the model's, from which ZeRO's "auto" buckets get their sizes as in transformers.
        on_cpu: whether there is no accelerator.

    Raises:
        InputError: the file cannot be read, contradicts the recipe (all disagreements in one message) or has a field
            that DeepSpeed refuses, or this DeepSpeed is too old; or the recipe's precision needs a GPU.
    """
    _check_deepspeed()
    if on_cpu and (fix := NEEDS_GPU.get(train.precision)):
        raise InputError(f"train.precision: {train.precision} needs a GPU: set it to {fix}")
    config = read_ds_config(source)
    given = _given(train, config, world_size)
    if Path(source).name == "ds_config.json" and Path(source).with_name("batch.json").is_file():
        for field in given:  # a run's file: its recipe decided these
            _set(config, field, AUTO)
    faults = _recipe_faults(config, train, given, pretrains) + _silent_faults(config)
    _fill(config, given, hidden_size)
    autos = [field for field, value in flatten(config).items() if value == AUTO]
    faults += [f'{field} is "auto", but no field of the recipe decides it: give a value' for field in autos]
    if faults:
        raise InputError(f'{source}: {"; ".join(faults)}. Fix the file, use "auto", or change the recipe')
    del config["train_batch_size"]
    accumulation = config["gradient_accumulation_steps"]
    config["gradient_accumulation_steps"] = engine_divisor(accumulation=accumulation, micro_steps=micro_steps)
    config = QUIET | config
    with as_input_error(f"{source}: DeepSpeed refuses it", "fix the field it names"):
        DeepSpeedConfig(deepcopy(config))
    return config


def _check_deepspeed() -> None:
    """Checks the version where pip did not, such as of a DeepSpeed built into an image."""
    installed = (deepspeed.__version_major__, deepspeed.__version_minor__, deepspeed.__version_patch__)
    if installed < tuple(map(int, OLDEST_DEEPSPEED.split("."))):
        raise InputError(
            f"DeepSpeed {deepspeed.__version__} ({Path(deepspeed.__file__).parent}): versions before "
            f"{OLDEST_DEEPSPEED} can silently lose gradients: pip install 'deepspeed>={OLDEST_DEEPSPEED}'"
        )


def _given(train: TrainSection, config: dict[str, Any], world_size: int) -> dict[str, tuple[Any, str]]:
    """The fields that the recipe decides: value and where it comes from, by dotted name."""
    batch = train.micro_batch_size * train.gradient_accumulation_steps * world_size
    given = {
        "train_micro_batch_size_per_gpu": (train.micro_batch_size, "train.micro_batch_size"),
        "gradient_accumulation_steps": (train.gradient_accumulation_steps, "train.gradient_accumulation_steps"),
        "train_batch_size": (batch, f"micro batch x accumulation x {world_size} rank(s)"),
        "gradient_clipping": (train.max_grad_norm, "train.max_grad_norm"),
        "bf16.enabled": (train.precision == "bf16", "train.precision"),
        "fp16.enabled": (train.precision == "fp16", "train.precision"),
    }
    if train.precision == "autocast" or "torch_autocast" in config:
        given |= {
            "torch_autocast.enabled": (train.precision == "autocast", "train.precision"),
            "torch_autocast.dtype": ("bfloat16", "train.precision"),
        }
    if train.optimizer == "adamw" and "optimizer" in config:
        given |= {
            "optimizer.params.lr": (train.learning_rate, "train.learning_rate"),
            "optimizer.params.betas": (list(train.adam_betas), "train.adam_betas"),
            "optimizer.params.eps": (train.adam_epsilon, "train.adam_epsilon"),
            "optimizer.params.weight_decay": (train.weight_decay, "train.weight_decay"),
        }
    return given


def _recipe_faults(
    config: dict[str, Any], train: TrainSection, given: dict[str, tuple[Any, str]], pretrains: bool
) -> list[str]:
    """What contradicts the recipe."""
    faults, stage, present = [], zero_stage(config), flatten(config)
    for field, (value, origin) in given.items():
        if present.get(field) not in (None, AUTO, value):
            faults.append(f"{field} = {shown(present[field])}, but the recipe's {origin} gives {shown(value)}")
    if train.compile and stage == 3:
        faults.append(
            "train.compile: ZeRO-3 gathers weights between layers, which leaves small pieces to compile, for "
            "minutes: use --ds_config zero2, or set it to false"
        )
    if train.precision == "fp16" and not stage:
        faults.append(
            "zero_optimization.stage: at ZeRO-0 DeepSpeed divides fp16's gradients by a loss scale that it never "
            "multiplied the loss by: use --ds_config zero1, or another train.precision"
        )
    if train.optimizer == "adafactor":
        if "optimizer" in config:
            faults.append("optimizer: the recipe's train.optimizer is adafactor: remove this block")
        if stage or train.precision in ("bf16", "fp16"):
            faults.append(
                "train.optimizer: adafactor factors whole weight matrices, and at ZeRO 1 to 3 or in half precision "
                "DeepSpeed hands an optimizer flat pieces: use --ds_config zero0 and fp32, tf32 or autocast, or adamw"
            )
    elif "optimizer" in config:
        faults += _adam_faults(config["optimizer"])
        if not stage and train.precision == "bf16":
            kept = "optimizer: at ZeRO-0 in bf16 DeepSpeed's own optimizer keeps all weights in one tensor"
            fix = "remove this block, or use --ds_config zero1"
            if train.average != "none":
                faults.append(f"{kept}, from which train.average {train.average} cannot leave out the method's: {fix}")
            if pretrains:
                faults.append(f"{kept}, so pretrain cannot export the model's for the second stage: {fix}")
    return faults


def _adam_faults(optimizer: dict[str, Any]) -> list[str]:
    """What makes another optimizer than the recipe's AdamW."""
    params, faults = optimizer.get("params", {}), []
    if optimizer.get("type") not in ("AdamW", "Adam") or params.get("adam_w_mode") is False:
        faults.append(f'optimizer.type = {shown(optimizer.get("type"))}: the recipe trains with "AdamW": name that')
    for name, default in (("bias_correction", True), ("amsgrad", False)):
        if params.get(name, default) not in (default, AUTO):
            faults.append(f"optimizer.params.{name} makes another optimizer than the recipe's AdamW: remove it")
    return faults


def _silent_faults(config: dict[str, Any]) -> list[str]:
    """Settings that DeepSpeed 0.19 would silently ignore, or with which it computes or saves something wrong."""
    zero, stage, faults = config.get("zero_optimization", {}), zero_stage(config), []
    if zero.get("load_from_fp32_weights") is False:
        faults.append(
            "zero_optimization.load_from_fp32_weights: a run would resume from weights rounded to half precision: "
            "remove it"
        )
    if stage == 3 and config.get("gradient_predivide_factor", 1) != 1:
        # divides by the factor and, with as many ranks, does not multiply again; with reduce_scatter it asserts
        faults.append("gradient_predivide_factor: at ZeRO-3 gradients may then be too small, or it fails: remove it")
    for name, least in OFFLOADS.items():
        block, field = zero.get(name), f"zero_optimization.{name}"
        if not block or block.get("device") == "none":
            continue
        if "device" not in block:
            faults.append(f'{field} names no device and would do nothing: give it "device": "cpu"')
        elif stage < least:
            faults.append(
                f"{field} would do nothing at ZeRO-{stage}: set the stage to {least} or more, or remove this block"
            )
        elif name == "offload_optimizer" and block["device"] == "nvme":
            # 2 % of the loss in the second update
            faults.append(
                f"{field}: with the optimizer state on disk DeepSpeed computes other updates than without: set its "
                'device to "cpu", as zero3_offload_nvme does'
            )
        elif block.get("ratio", 1) != 1:
            # its second optimizer has no learning rate schedule, and no checkpoint holds its state
            faults.append(
                f"{field}.ratio: DeepSpeed then trains a part of the weights at a constant learning rate, and saves "
                "none of its state: remove it"
            )
    return faults


def _fill(config: dict[str, Any], given: dict[str, tuple[Any, str]], hidden_size: int) -> None:
    """Puts in what the recipe decides and the sizes of ZeRO's "auto" buckets; drops offload to nowhere."""
    for field, (value, _) in given.items():
        _set(config, field, value)
    if config["bf16"]["enabled"]:  # 13 operations a gradient; `metrics.check_finite` looks at the norm instead
        config["bf16"].setdefault("check_grad_overflow", False)
    zero = config.setdefault("zero_optimization", {})
    sizes = {
        "reduce_bucket_size": hidden_size**2,
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size**2),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }
    zero |= {field: size for field, size in sizes.items() if zero.get(field) == AUTO}
    for name in OFFLOADS:
        if not zero.get(name) or zero[name].get("device") == "none":
            zero.pop(name, None)


def read_ds_config(source: str) -> dict[str, Any]:
    """The content of a ds_config without comments; fields and types are right, values may be "auto".

    Raises:
        InputError: no such file, not JSON, a key given twice, a field that is unknown (names the nearest one) or of no
            use here, or a value of the wrong type; all faults of fields in one message.
    """
    config = read_json(ds_config_path(source), f"--ds_config {source}")
    if not isinstance(config, dict):
        raise InputError(f"--ds_config {source}: a ds_config is a JSON object")
    config = without_idle(config)
    if faults := field_faults(config):
        raise InputError(f"--ds_config {source}: {'; '.join(faults)}")
    return config


def zero_stage(config: dict[str, Any]) -> int:
    return config.get("zero_optimization", {}).get("stage", 0)


def _set(config: dict[str, Any], field: str, value: Any) -> None:
    *sections, leaf = field.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[leaf] = value
