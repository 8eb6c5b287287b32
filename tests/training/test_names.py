"""The table of DeepSpeed's private names (names.yaml) is complete and true.

The source is looked through by its syntax: imports, attributes, and texts that name an attribute. In the room an
attribute counts as DeepSpeed's if its engine, optimizers or parameters define that name, and PyTorch, Python and this
package do not; what a name in a variable or a file's key means is not seen.
"""

import ast
import builtins
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import deepspeed
import torch
import yaml

from tests.support.fork_server import ROOT

ROOM = ROOT / "swep_ds" / "training" / "zero"
INSIDE = ("engine", "base_optimizer", "zero/stage_1_and_2", "zero/stage3", "zero/partition_parameters", "zero/utils")
# documented: https://deepspeed.readthedocs.io
MODULES = {"deepspeed", "deepspeed.accelerator", "deepspeed.comm", "deepspeed.ops", "deepspeed.utils"}
CONFIG = "deepspeed.runtime.zero.config.DeepSpeedZeroConfig"
# what `deepspeed.initialize` returns, and methods of its engine
ENGINE = {"module", "optimizer", "lr_scheduler", "train", "eval", "destroy", "backward", "step", "get_lr"}
ENGINE |= {"get_global_grad_norm", "zero_optimization_stage", "zero_cpu_offload", "gradient_accumulation_steps"}
ENGINE |= {"set_gradient_accumulation_boundary", "coalesce_grad_reduction", "torch_autocast_enabled"}
ENGINE |= {"bfloat16_enabled"}
ENGINE |= {"save_checkpoint", "load_checkpoint"}
# also attributes of much else, or a field of the ds_config
WORDS = {"save", "load", "device", "overflow", "partition", "loss_scale", "clip_grad", "communication_data_type"}
# names of PyTorch's optimizers; keys of a ds_config and of a checkpoint's files
OTHERS = {"param_groups", "params", "state", "enabled", "single_partition_of_fp32_groups"}


class Private(NamedTuple):
    holder: str  # the first word of a row's names, or "" for an import
    name: str
    parameters: list[str]
    stages: str
    where: list[str]
    test: str


def read_table() -> Iterator[Private]:
    for row in yaml.safe_load((ROOM / "names.yaml").read_text(encoding="utf-8")):
        holder = row["names"].split(".")[0].replace("deepspeed", "")
        for name, parameters in re.findall(r"([\w.]+)(?:\(([^)]*)\))?", row["names"]):
            taken = [part for part in parameters.split(", ") if part]
            yield Private(holder, name.removeprefix(f"{holder}."), taken, row["zero"], row["in"].split(), row["test"])


PRIVATE = list(read_table())


@cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def words(file: Path) -> set[str]:
    """The attributes in a source, and the texts that may name one."""
    texts = {node.value for node in nodes(file) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.attr for node in nodes(file) if isinstance(node, ast.Attribute)} | set(filter(str.isidentifier, texts))


def imported(file: Path) -> set[str]:
    """What a source imports of DeepSpeed's private modules, anywhere."""
    collected = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            collected |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module not in MODULES:
            collected |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in collected - MODULES - {CONFIG} if name.split(".")[0] == "deepspeed"}


def parts(private: Private) -> set[str]:
    return set(private.name.split(".")) if private.holder else {private.name}


def test_private_names_stand_in_the_room_alone():
    private = {part for private in PRIVATE if private.holder for part in parts(private)} - WORDS
    elsewhere = {}
    for file in (ROOT / "swep_ds").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.parent == ROOM or not re.search(rf"deepspeed|\b(?:{'|'.join(private)})\b", text):
            continue
        seen = imported(file) | (words(file) & private)
        if file.parent.name == "training":
            seen |= set(re.findall(r"\.deepspeed\.(\w+)", text)) - ENGINE
        if seen:
            elsewhere[file.name] = seen
    assert elsewhere == {}


def defined(source: str) -> set[str]:
    """The functions of a source, and the attributes that it sets."""
    return set(re.findall(r"\bdef (\w+)\(|[\w\])]\.(\w+)(?:: [^=\n]+)? = ", source)) | {("", "")}


def test_every_private_name_in_the_room_stands_in_the_table_with_the_file_that_uses_it():
    runtime = Path(deepspeed.__file__).parent / "runtime"
    theirs = {name for module in INSIDE for pair in defined((runtime / f"{module}.py").read_text()) for name in pair}
    assert {"bit16_groups", "get_grad_norm_direct", "ds_shape"} < theirs
    kinds = (torch, torch.distributed, torch.Tensor, torch.nn.Module, torch.optim.AdamW, builtins, list, dict)
    known = OTHERS.union(ENGINE, *map(dir, kinds))
    table: dict[str, set[str]] = {}
    for private in PRIVATE:
        for part in parts(private):
            table.setdefault(part, set()).update(private.where)
    missing = {}
    for file in ROOM.glob("*.py"):
        mine = {name for pair in defined(file.read_text(encoding="utf-8")) for name in pair}
        mine |= {
            node.target.id for node in nodes(file) if isinstance(node, ast.AnnAssign) and hasattr(node.target, "id")
        }
        used = imported(file) | ((words(file) & theirs) - known - mine)
        missing |= {name: file.stem for name in used if file.stem not in table.get(name, set())}
    assert missing == {}
    for private in PRIVATE:
        for stem in private.where:
            assert parts(private) <= words(ROOM / f"{stem}.py") | imported(ROOM / f"{stem}.py"), (private, stem)


def test_every_name_has_a_test():
    for private in PRIVATE:
        file, end = private.test.split()
        source = (ROOT / "tests" / "training" / f"test_{file}.py").read_text(encoding="utf-8")
        assert len(re.findall(rf"^def test_\w*{end}\(", source, re.MULTILINE)) == 1, private


def test_the_installed_deepspeed_has_the_imported_names_and_the_parameters_of_its_methods():
    """Attributes of instances are not looked for: an update that reads one fails."""
    runtime = "deepspeed.runtime"
    classes = {
        "engine": f"{runtime}.engine.DeepSpeedEngine",
        "12": f"{runtime}.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        "3": f"{runtime}.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
    }
    compared = 0
    for private in PRIVATE:
        if not private.holder:
            pkgutil.resolve_name(private.name)
        for holder, path in classes.items():
            applies = private.holder == holder or (private.holder == "optimizer" and {*holder} & {*private.stages})
            if applies and private.parameters and "." not in private.name:
                method = getattr(pkgutil.resolve_name(path), private.name)
                taken = list(inspect.signature(method).parameters)[1:]
                assert taken[: len(private.parameters)] == private.parameters or taken == ["kwargs"], (path, private)
                compared += 1
    assert compared >= 10
