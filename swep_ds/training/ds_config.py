"""Checks a ds_config, completes it from the recipe, and reports all contradictions between the two in one error.

The recipe decides batch, optimizer, schedule, clipping and precision; the ds_config decides how DeepSpeed carries that
out. "auto" takes the recipe's value, and any other value must agree with it. DeepSpeed ignores many unknown fields.
"""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import deepspeed
import yaml
from deepspeed import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import ds_config_path, read_json
from swep_ds.common.settings import flatten, put, suggest
from swep_ds.data.normalisation import LossNormalisation
from swep_ds.training.settings import BY_RECIPE, QUIET, REPORTS, SPREAD, TrainSection

OLDEST, TOO_NEW = "0.19.8", "0.20"  # DeepSpeed's; zero/names.yaml has what this package uses inside of it
OFFLOADS = {"offload_optimizer": 1, "offload_param": 3}  # the least ZeRO stage of each
NEEDS_GPU = {"fp16": "fp32, autocast or bf16", "tf32": "fp32"}  # precision -> what to use on a CPU
AUTO = "auto"
BLOCKS = ("zero_optimization", "bf16", "fp16", "torch_autocast", "aio", "data_types")
KNOWN = sorted({*SPREAD, *BY_RECIPE, *REPORTS, "communication_data_type"})
REFUSED = yaml.safe_load(Path(__file__).with_name("ds_refused.yaml").read_text(encoding="utf-8"))  # field -> fix
Given = dict[str, tuple[Any, str]]
COMMENT = ("_", "#", "//")  # begins the names of fields that people write as comments


def complete_ds_config(
    source: str, train: TrainSection, *, world_size: int, on_cpu: bool, backwards: int = 1, hidden_size: int = 1
) -> dict[str, Any]:
    """Reads a ds_config, the name of a shipped one or the path of a JSON file, and completes it.

    `backwards` is the number of them for each micro-batch (`Objective.parts`). From the model's `hidden_size` ZeRO's
    "auto" buckets get their sizes, as in transformers. Who only checks leaves both out, and no model has to be read.

    Raises InputError: the file cannot be read, contradicts the recipe (all disagreements in one message) or has a field
    that DeepSpeed refuses; or the recipe's precision needs a GPU; or as `check_version`.
    """
    check_version()
    if on_cpu and (fix := NEEDS_GPU.get(train.precision)):
        raise InputError(f"train.precision: {train.precision} needs a GPU: set it to {fix}")
    config = read_ds_config(source)
    given = _given(train, config, world_size, backwards)
    if Path(source).name == "ds_config.json" and Path(source).with_name("batch.json").is_file():
        config.pop("data_types", None)
        for field in given:  # a run's file: its recipe decided these
            put(config, field.split("."), AUTO)
    faults = _faults(config, train, given)
    _fill(config, given, hidden_size)
    autos = [field for field, value in flatten(config).items() if value == AUTO]
    faults += [f'{field} is "auto", but no field of the recipe decides it: give a value' for field in autos]
    if faults:
        raise InputError(f'{source}: {"; ".join(faults)}. Fix the file, use "auto", or change the recipe')
    del config["train_batch_size"]
    scale = LossNormalisation(world_size, config["gradient_accumulation_steps"], backwards)
    config["gradient_accumulation_steps"] = scale.engine_steps
    config = QUIET | config
    with as_input_error(f"{source}: DeepSpeed refuses it", "fix the field it names"):
        DeepSpeedConfig(deepcopy(config))
    return config


def check_version() -> None:
    """Raises InputError: this DeepSpeed is too old or too new. pip did not check one that is part of an image."""
    version = deepspeed.__version__
    oldest, here, too_new = ([int(n) for n in re.findall(r"\d+", text)[:3]] for text in (OLDEST, version, TOO_NEW))
    if not oldest <= here < too_new:
        raise InputError(
            f"DeepSpeed {version}: versions before {OLDEST} can silently lose gradients, and those from {TOO_NEW} on "
            f"were never tested: pip install 'deepspeed>={OLDEST},<{TOO_NEW}'"
        )


def zero_stage(config: dict[str, Any]) -> int:
    return config.get("zero_optimization", {}).get("stage", 0)


def read_ds_config(source: str) -> dict[str, Any]:
    """The content of a ds_config, without comments and fields that are switched off and of no use here. Raises
    InputError: no such file, not JSON, or a field that is given twice, unknown (names the nearest one) or of no use."""
    where = f"--ds_config {source}"
    config = read_json(ds_config_path(source), where)
    if not isinstance(config, dict):
        raise InputError(f"{where}: a ds_config is a JSON object")
    for block in BLOCKS:
        if not isinstance(config.get(block, {}), dict):
            raise InputError(f"{where}: {block} is {json.dumps(config[block])}: write it as a JSON object")
    faults = []
    for field, fix in REFUSED.items():
        *block, name = field.split(".")
        place = config.get(block[0], {}) if block else config
        if name in place and not _is_off(place.pop(name)):
            faults.append(f"{field}: {fix}")
    for name in [name for name in config if name not in KNOWN]:
        if not (_is_off(config.pop(name)) or name.startswith(COMMENT)):
            faults.append(f"{name} is not a field of a ds_config that is of use here{suggest(name, KNOWN)}")
    if zero_stage(config) not in (0, 1, 2, 3):
        faults.append(f"zero_optimization.stage is {json.dumps(zero_stage(config))}: write 0, 1, 2 or 3")
    if faults:
        raise InputError(f"{where}: {'; '.join(faults)}")
    with as_input_error(f"{where}: zero_optimization", "fix the field it names"):
        DeepSpeedZeroConfig(**config.get("zero_optimization", {}))
    return config


def _is_off(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.get("enabled", True)
    return value in (None, False, AUTO)


def _given(train: TrainSection, config: dict[str, Any], world_size: int, backwards: int) -> Given:
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
    if train.precision == "bf16" and train.gradient_accumulation_steps * backwards > 2 and zero_stage(config) > 1:
        # in bf16 a sum of many stands still; for two it is not worth a third more operations
        given["data_types.grad_accum_dtype"] = ("fp32", "train.precision")
    return given


def _faults(config: dict[str, Any], train: TrainSection, given: Given) -> list[str]:
    """What contradicts the recipe, what DeepSpeed 0.19 would silently leave out, and with what it computes or saves
    something wrong."""
    faults = []
    present = flatten(config)
    for field, (value, origin) in given.items():
        if present.get(field) not in (None, AUTO, value):
            mine = json.dumps(present[field])
            faults.append(f"{field} = {mine}, but the recipe's {origin} gives {json.dumps(value)}")
    stage = zero_stage(config)
    zero = config.get("zero_optimization", {})
    if "data_types" in config and "data_types.grad_accum_dtype" not in given:
        faults.append("data_types: the precision decides in what gradients are added up: remove this block")
    if train.compile and stage == 3:
        faults.append("train.compile: ZeRO-3 gathers weights between layers: use --ds_config zero1, or set it to false")
    if train.precision == "fp16" and stage == 0:
        faults.append("train.precision: at ZeRO-0 DeepSpeed never scales fp16's loss up: use --ds_config zero1")
    if train.precision == "bf16" and stage == 0:
        faults.append("train.precision: at ZeRO-0 bf16 begins with a step on gradients of 0: use --ds_config zero1")
    if train.optimizer == "adafactor" and (stage or train.precision in ("bf16", "fp16")):
        faults.append("train.optimizer: adafactor takes no flat pieces: use --ds_config zero0, and fp32 or autocast")
    for name, least in OFFLOADS.items():
        block = zero.get(name)
        field = f"zero_optimization.{name}"
        if not block or block.get("device") == "none":
            continue
        if "device" not in block:
            faults.append(f'{field} names no device and would do nothing: give it "device": "cpu"')
        elif stage < least:
            faults.append(f"{field} would do nothing at ZeRO-{stage}: set the stage to {least}, or remove it")
        elif name == "offload_optimizer" and block["device"] == "nvme":
            # 2 % of the loss in the second update
            faults.append(f'{field}: on disk DeepSpeed computes other updates than without: set its device to "cpu"')
        elif block.get("ratio", 1) != 1:
            # its second optimizer has no learning rate schedule, and no checkpoint holds its state
            faults.append(f"{field}.ratio: a part of the weights would train at a constant learning rate: remove it")
    return faults


def _fill(config: dict[str, Any], given: Given, hidden_size: int) -> None:
    """Puts in what the recipe decides and the sizes of ZeRO's "auto" buckets; drops offload to nowhere."""
    for field, (value, _) in given.items():
        put(config, field.split("."), value)
    if config["bf16"]["enabled"]:  # 13 operations a gradient; instruments.py looks at the norm instead
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
