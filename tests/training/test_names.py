"""The table of DeepSpeed's private names is complete and true, and a DeepSpeed without one of them is refused.

The source is looked through by its syntax: imports, attributes, and texts that name an attribute. In the room an
attribute counts as DeepSpeed's if its engine, optimizers or parameters define that name, and PyTorch, Python and this
package do not; what a name in a variable or a file's key means is not seen.
"""

import ast
import builtins
import re
from pathlib import Path
from types import SimpleNamespace

import deepspeed
import pytest
import torch

from swep_ds.training.zero import names
from swep_ds.training.zero.names import PRIVATE, check
from tests.support.bad_input import refused
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
ENGINE |= {"save_checkpoint", "load_checkpoint"}
# attributes of much else, too
WORDS = {"save", "load", "device", "overflow", "partition", "loss_scale", "loss_scaler", "clip_grad"}


def words(file: Path) -> set[str]:
    """The attributes in a source, and the texts that may name one."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | set(filter(str.isidentifier, texts))


def imported(file: Path) -> set[str]:
    """What a source imports of DeepSpeed, anywhere."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name not in MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0 and node.module not in MODULES:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "deepspeed"} - {CONFIG}


def leaves() -> set[str]:
    return {part for private in PRIVATE if private.holder for part in private.name.split(".")}


@pytest.mark.parametrize("file", sorted((ROOT / "swep_ds").rglob("*.py")), ids=lambda file: file.stem)
def test_private_names_stand_in_the_room_alone(file):
    if file.parent == ROOM:
        return
    assert not imported(file)
    assert not words(file) & (leaves() - WORDS)
    through = re.findall(r"\bdeepspeed\.(\w+)", file.read_text(encoding="utf-8")) if "training" in file.parts else []
    assert set(through) <= ENGINE | {"DeepSpeedConfig", "DeepSpeedEngine", "initialize", "accelerator", "runtime"}


def defined(source: str) -> set[str]:
    """The methods of a source's classes, and the attributes that it sets."""
    nodes = list(ast.walk(ast.parse(source)))
    methods = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return methods | {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}


def test_every_private_name_in_the_room_stands_in_the_table_with_the_file_that_uses_it():
    runtime = Path(deepspeed.__file__).parent / "runtime"
    theirs = set().union(*(defined((runtime / f"{name}.py").read_text()) for name in INSIDE))
    known = {
        name
        for kind in (torch.Tensor, torch.optim.AdamW, torch.nn.Module, torch, torch.distributed, list, dict)
        for name in dir(kind)
    }
    used = {}
    for file in ROOM.glob("*.py"):
        source = file.read_text(encoding="utf-8")
        mine = defined(source) | {
            field
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.AnnAssign)
            for field in [getattr(node.target, "id", "")]
        }
        found = (words(file) & theirs) - known - set(dir(builtins)) - ENGINE - mine if file.stem != "names" else set()
        for name in found | imported(file):
            used.setdefault(name, set()).add(file.stem)
    table = {}
    for private in PRIVATE:
        table.setdefault(private.name.split(".")[-1] if private.holder else private.name, set()).update(private.where)
    missing = {name: files for name, files in used.items() if not files <= table.get(name, set())}
    assert missing == {}
    for private in PRIVATE:
        for stem in private.where:
            file = ROOM / f"{stem}.py"
            assert private.name.split(".")[-1] in words(file) | {name.split(".")[-1] for name in imported(file)}, (
                private
            )


def test_every_name_has_a_test():
    for private in PRIVATE:
        file, end = private.test.split()
        source = (ROOT / "tests" / "training" / f"test_{file}.py").read_text(encoding="utf-8")
        assert len(re.findall(rf"^def test_\w*{end}\(", source, re.MULTILINE)) == 1, private


def stand_in(holder: str, stage: str, changed: str = "", parameters: str | None = None) -> SimpleNamespace:
    """A holder of this stage's names; the `changed` one has other parameters, or is left out."""
    made = SimpleNamespace()
    for private in PRIVATE:
        if private.holder != holder or stage not in private.stages:
            continue
        taken = ", ".join(private.parameters)
        if private.name == changed:
            if parameters is None:
                continue
            taken = parameters
        *outer, name = private.name.split(".")
        place = made
        for part in outer:
            place = place.__dict__.setdefault(part, SimpleNamespace())
        setattr(place, name, eval(f"lambda {taken}: None"))
    return made


@pytest.mark.parametrize("private", [private for private in PRIVATE if private.holder], ids=lambda p: p.name)
def test_a_deepspeed_without_a_name_or_with_other_parameters_is_refused_with_name_and_place(private):
    holder, name = private.holder, private.name
    for stage in private.stages:
        check({holder: stand_in(holder, stage)}, stage)
        said = refused(check, {holder: stand_in(holder, stage, name)}, stage)
        assert (
            f"{holder} {name} (used at ZeRO {', '.join(private.stages)} in {', '.join(private.where)}) is miss" in said
        )
        assert said.endswith(f"pip install 'deepspeed=={names.OLDEST}'")
        if private.parameters:
            said = refused(check, {holder: stand_in(holder, stage, name, "other, *more")}, stage)
            assert f" takes (other, more), not ({', '.join(private.parameters)})" in said


def test_a_class_that_has_moved_is_refused_before_a_run_reads_anything(monkeypatch):
    from deepspeed.utils import tensor_fragment

    monkeypatch.delattr(tensor_fragment, "fragment_address")
    said = refused(names.check_version)
    assert said.startswith(f"DeepSpeed {deepspeed.__version__}: what this package replaces in it has changed: ")
    assert "deepspeed.utils.tensor_fragment.fragment_address (used at ZeRO 0, 1, 2, 3 in files) is missing" in said
