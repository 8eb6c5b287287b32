"""ds_config: "auto" is filled from the recipe, and whatever contradicts the recipe is reported, all at once.

The recipe decides batch, optimizer, schedule, clipping and precision; the ds_config decides how DeepSpeed carries
that out (ZeRO stage, offload, buckets, communication). A value that stands in both must agree.

In `split` execution the engine sees each pass as a micro-step of its own, so the resolved file's
gradient_accumulation_steps is the recipe's times the number of weighted passes.
"""

import math
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime.config import DeepSpeedConfig
from pydantic import ValidationError

from swep_ds.errors import InputError, parsing
from swep_ds.files import check_output_folder, read_json, user_path
from swep_ds.recipe import Recipe
from swep_ds.training.ds_fields import AUTO, field_faults, refused_fields, shown, without_idle

OLDEST_DEEPSPEED = "0.19.8"  # earlier ones lose gradients, or were never compared with a plain loop
QUIET = {"steps_per_print": 2**31, "wall_clock_breakdown": False}
# how DeepSpeed spreads a run's state and work, which may change between two starts of it
SPREAD = ("zero_optimization", "zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer", "aio")
SPREAD += ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# what it reports, which may change too
REPORTS = (*QUIET, "memory_breakdown", "dump_state", "log_level", "timers", "flops_profiler", "comms_logger")
REPORTS += ("tensorboard", "csv_monitor", "wandb", "comet")
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}  # of monitors
MOST_FAULTS = 20  # of a file that are listed


def resolve_ds_config(
    source: str, recipe: Recipe, *, world_size: int, micro_steps: int, hidden_size: int, on_cpu: bool
) -> dict[str, Any]:
    """Reads a ds_config file and completes it.

    Args:
        source: path of the JSON file; of one that a run left in its folder, what its recipe decided counts as "auto".
        micro_steps: engine micro-steps per batch (1 in `joint` execution, else the number of weighted passes).
        hidden_size: of the model; sizes ZeRO's "auto" buckets as transformers does.
        on_cpu: whether there is no accelerator.

    Raises:
        InputError: no such file, not JSON, it contradicts the recipe (all disagreements in one message), DeepSpeed
            refuses a field, or this DeepSpeed is too old.
    """
    _check_deepspeed()
    config = read_ds_config(source)
    train, faults = recipe.train, []
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
    if train.compile and zero_stage(config) == 3:
        faults.append(
            "train.compile: ZeRO-3 gathers weights between layers, which leaves small pieces to compile, anew for "
            "minutes: take ds_configs/zero2.json, or set it to false"
        )
    if train.optimizer == "adafactor":
        if "optimizer" in config:
            faults.append("optimizer: the recipe's train.optimizer is adafactor: remove this block")
        if zero_stage(config) or train.precision in ("bf16", "fp16"):
            faults.append(
                "train.optimizer: adafactor factors whole weight matrices, and at ZeRO 1 to 3 or in half precision "
                "DeepSpeed hands an optimizer flat pieces of them: take ds_configs/zero0.json in fp32 or autocast, or "
                "adamw"
            )
    elif "optimizer" in config:
        kind = config["optimizer"].get("type")
        if kind not in ("AdamW", "Adam") or config["optimizer"].get("params", {}).get("adam_w_mode") is False:
            faults.append(f'optimizer.type = {shown(kind)}: the recipe trains with "AdamW": name that')
        given |= {
            "optimizer.params.lr": (train.learning_rate, "train.learning_rate"),
            "optimizer.params.betas": (list(train.adam_betas), "train.adam_betas"),
            "optimizer.params.eps": (train.adam_epsilon, "train.adam_epsilon"),
            "optimizer.params.weight_decay": (train.weight_decay, "train.weight_decay"),
        }
    if _left_by_a_run(Path(source)):
        for field in given:
            _drop(config, field)  # what that run's recipe decided, and here this one's does
    faults += refused_fields(config) + _idle(config) + _silently_wrong(config.get("zero_optimization", {}))
    for field, (value, origin) in given.items():
        present = _get(config, field)
        if present is not None and present != AUTO and not _equal(present, value):
            faults.append(f"{field} = {shown(present)}, but the recipe's {origin} gives {shown(value)}")
        _set(config, field, value)
    zero = config.setdefault("zero_optimization", {})
    sizes = {
        "reduce_bucket_size": hidden_size**2,
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size**2),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }
    for field, value in sizes.items():
        if zero.get(field) == AUTO:
            zero[field] = value
    if on_cpu and train.precision == "fp16":
        faults.append('fp16 needs a GPU: set train.precision to "fp32", "autocast" or "bf16"')
    faults += [f'{field} is "auto", but no field of the recipe decides it: give a value' for field in _autos(config)]
    if faults:
        raise InputError(f'{source}: {_listed(faults)}. Fix the file, use "auto", or change the recipe')
    del config["train_batch_size"]
    config["gradient_accumulation_steps"] *= micro_steps
    config = QUIET | config
    with parsing(f"{source}: DeepSpeed refuses it", "fix the field it names"):
        try:
            DeepSpeedConfig(deepcopy(config))
        except ValidationError as error:
            refused = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
            raise ValueError(f"{error.title}: {refused}") from None
    return config


def _check_deepspeed() -> None:
    """For where pip did not check it: a package that is found through PYTHONPATH, or an image's own DeepSpeed."""
    here = (deepspeed.__version_major__, deepspeed.__version_minor__, deepspeed.__version_patch__)
    if here < tuple(map(int, OLDEST_DEEPSPEED.split("."))):
        raise InputError(
            f"DeepSpeed {deepspeed.__version__} ({Path(deepspeed.__file__).parent}): versions before "
            f"{OLDEST_DEEPSPEED} can lose gradients without a word: pip install 'deepspeed>={OLDEST_DEEPSPEED}'"
        )


def _silently_wrong(zero: dict[str, Any]) -> list[str]:
    """Settings with which DeepSpeed 0.19 trains or saves other weights than without, and says nothing."""
    if zero.get("round_robin_gradients"):
        # at stages 1 and 2 it takes a parameter's float32 weights and optimizer state from another one's place
        return ["zero_optimization.round_robin_gradients: DeepSpeed then saves wrong weights: remove it"]
    return []


def _idle(config: dict[str, Any]) -> list[str]:
    """Settings that would do nothing, and what the optimizer's would do in place of the recipe's AdamW."""
    zero, stage, faults = config.get("zero_optimization", {}), zero_stage(config), []
    for name, least in (("offload_optimizer", 1), ("offload_param", 3)):
        block = zero.get(name)
        if block and "device" not in block:
            faults.append(f'zero_optimization.{name} names no device and would do nothing: give it "device": "cpu"')
        elif not block or block["device"] == "none":
            zero.pop(name, None)  # the same as no block
        elif stage < least:
            faults.append(
                f"zero_optimization.{name} would do nothing at ZeRO-{stage}: set the stage to {least} or more, or "
                "remove this block"
            )
        elif block["device"] == "nvme" and not block.get("nvme_path"):
            faults.append(f"zero_optimization.{name} is to disk and has no nvme_path: name a folder")
    if config.get("zero_force_ds_cpu_optimizer") is True and "optimizer" not in config:
        faults.append(
            "zero_force_ds_cpu_optimizer would do nothing without the block optimizer: give that, or remove this field"
        )
    params = config.get("optimizer", {}).get("params", {})
    for name, default in (("bias_correction", True), ("amsgrad", False)):
        if params.get(name, default) not in (default, AUTO):
            faults.append(f"optimizer.params.{name} makes another optimizer than the recipe's AdamW: remove this field")
    return faults


def check_machine(config: dict[str, Any]) -> None:
    """Whether this machine can do what `config` wants: buckets in its memory, offload to disk.

    Raises:
        InputError: a bucket larger than the memory, which DeepSpeed takes in the first update; the optimizer state on
            disk (DeepSpeed 0.19 then computes other updates, by 2 % of the loss in the second); or this machine lacks
            what DeepSpeed's operator is built with.
    """
    zero, memory = config.get("zero_optimization", {}), get_accelerator().total_memory()
    bucket = zero.get("reduce_bucket_size", 0)
    if zero_stage(config) and 2 * bucket > memory:
        raise InputError(
            f"zero_optimization.reduce_bucket_size: {bucket:,.0f} elements are more than this machine's memory of "
            f"{memory / 2**30:.0f} GiB holds: lower it, such as to 10000000"
        )
    optimizer, parameters = ((zero.get(f"offload_{name}") or {}).get("device") for name in ("optimizer", "param"))
    if optimizer == "nvme":
        raise InputError(
            "zero_optimization.offload_optimizer: with the optimizer state on disk DeepSpeed computes other updates "
            'than without: set its device to "cpu", as ds_configs/zero3_offload_nvme.json does'
        )
    if parameters == "nvme" and not AsyncIOBuilder().is_compatible():
        raise InputError(
            "zero_optimization.offload_param: offload to disk needs DeepSpeed's operator async_io, which cannot be "
            "built here: install libaio's headers (Debian: libaio-dev), or take ds_configs/zero3_offload.json"
        )


def check_monitors(config: dict[str, Any]) -> None:
    """Whether rank 0 can write what DeepSpeed reports; it would fail there alone.

    Raises:
        InputError: a monitor's package is not installed, or a folder cannot be written to.
    """
    on = {name: block for name, block in config.items() if isinstance(block, dict) and block.get("enabled")}
    for name, package in PACKAGES.items():
        if name in on and not find_spec(package):
            raise InputError(f"{name}: needs the package {package}: pip install {package}, or remove this block")
    for name in ("tensorboard", "csv_monitor"):
        if name in on:
            check_output_folder(f"{name}.output_path", Path(on[name].get("output_path") or "."))
    if file := on.get("flops_profiler", {}).get("output_file"):
        check_output_folder("flops_profiler.output_file", Path(file).parent)


def read_ds_config(source: str) -> dict[str, Any]:
    """A ds_config file whose fields and their types are right, without its comments; the values may be "auto".

    Raises:
        InputError: no such file, not JSON, a key given twice, an unknown field (names the nearest one), a value of
            another type; all faults of fields in one message.
    """
    path = user_path(source, "--ds_config")
    if not path.exists():
        raise InputError(f"--ds_config {source}: no such file; shipped ones are in ds_configs/")
    config = read_json(path, f"--ds_config {source}")
    if not isinstance(config, dict):
        raise InputError(f"--ds_config {source}: a ds_config is a JSON object")
    if faults := field_faults(config):
        raise InputError(f"--ds_config {source}: " + _listed(faults))
    return without_idle(config)


def _listed(faults: list[str]) -> str:
    more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    return "; ".join(faults[:MOST_FAULTS]) + more


def _left_by_a_run(path: Path) -> bool:
    """Whether it is the resolved `ds_config.json` of a run's folder."""
    return path.name == "ds_config.json" and path.with_name("batch.json").is_file()


def zero_stage(config: dict[str, Any]) -> int:
    return config.get("zero_optimization", {}).get("stage", 0)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, str):
        return left == right
    return isinstance(left, int | float) and math.isclose(left, right, rel_tol=1e-9)


def _get(config: dict, field: str, default: Any = None) -> Any:
    *sections, leaf = field.split(".")
    for section in sections:
        config = config.get(section, {})
    return config.get(leaf, default)


def _set(config: dict, field: str, value: Any) -> None:
    *sections, leaf = field.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[leaf] = deepcopy(value)


def _drop(config: dict, field: str) -> None:
    *sections, leaf = field.split(".")
    for section in sections:
        config = config.get(section, {})
    config.pop(leaf, None)


def _autos(node: Any, prefix: str = "") -> list[str]:
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in _autos(value, f"{prefix}{key}.")]
    return [prefix[:-1]] if node == AUTO else []
