"""Every private name of DeepSpeed that this package uses, and whether the installed DeepSpeed still has it.

Public is what DeepSpeed documents or `deepspeed.initialize` returns: the engine's methods without an underscore, its
`module`, `optimizer` and `lr_scheduler`, `deepspeed.comm`, `deepspeed.accelerator`, `deepspeed.zero`. All else is in
names.yaml, and used in this folder alone (but for `DeepSpeedZeroConfig`, which checks a ds_config), to which
`tests/training/test_names.py` holds both. Names and parameters are compared with what is installed before the first
update; what methods compute is compared by the tests that names.yaml names.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import deepspeed
import yaml
from deepspeed.accelerator import get_accelerator

from swep_ds.common.errors import InputError

OLDEST = "0.19.8"  # earlier ones lose gradients, or were never compared with a plain loop


class Private(NamedTuple):
    holder: str  # the first word of a row's names, or "" for an import
    name: str
    parameters: list[str]
    stages: str
    where: list[str]
    test: str


def _read() -> Iterator[Private]:
    for row in yaml.safe_load(Path(__file__).with_name("names.yaml").read_text(encoding="utf-8")):
        holder = row["names"].split(".")[0].replace("deepspeed", "")
        for name, parameters in re.findall(r"([\w.]+)(?:\(([^)]*)\))?", row["names"]):
            taken = [part for part in parameters.split(", ") if part]
            yield Private(holder, name.removeprefix(f"{holder}."), taken, row["zero"], row["in"].split(), row["test"])


PRIVATE = list(_read())


def check_version() -> None:
    """Raises InputError: this DeepSpeed is too old."""
    installed = tuple(map(int, re.findall(r"\d+", deepspeed.__version__)[:3]))
    if installed < tuple(map(int, OLDEST.split("."))):  # pip did not check one that is part of an image
        raise InputError(
            f"DeepSpeed {deepspeed.__version__}: versions before {OLDEST} can silently lose gradients: "
            f"pip install 'deepspeed>={OLDEST}'"
        )


def check_engine(engine) -> None:
    """Raises InputError: DeepSpeed's `engine`, or what belongs to it, differs from what is replaced and read there."""
    holders = {"": deepspeed, "engine": engine, "optimizer": engine.optimizer}
    holders["parameter"] = next(engine.module.parameters())
    if getattr(engine.optimizer, "contiguous_gradients", False):
        holders["bucket"] = engine.optimizer
    if get_accelerator().device_name() == "cpu":  # elsewhere DeepSpeed would call compilers to list them
        holders["ops"] = deepspeed.ops
    check(holders, str(engine.zero_optimization_stage()))


def check(holders: Mapping[str, Any], stage: str) -> None:
    """Raises InputError: these holders lack names of a ZeRO stage, or a method has other parameters."""
    faults = []
    for private in PRIVATE:
        if private.holder in holders and stage in private.stages:
            faults += _faults(private, holders[private.holder])
    if faults:
        raise InputError(
            f"DeepSpeed {deepspeed.__version__}: what this package replaces in it has changed: {'; '.join(faults)}: "
            f"pip install 'deepspeed=={OLDEST}'"
        )


def _faults(private: Private, holder: Any) -> Iterator[str]:
    used = f"{private.holder} {private.name} (used at ZeRO {', '.join(private.stages)} in {', '.join(private.where)})"
    try:
        value = attrgetter(private.name)(holder) if private.holder else pkgutil.resolve_name(private.name)
    except (AttributeError, ImportError):
        yield f"{used.strip()} is missing"
        return
    if private.parameters:
        taken = list(inspect.signature(value).parameters)
        hidden = taken == ["args", "kwargs"]  # by DeepSpeed's decorator
        if not hidden and taken[: len(private.parameters)] != private.parameters:
            yield f"{used} takes ({', '.join(taken)}), not ({', '.join(private.parameters)})"
