"""Any field of a ds_config with any value either trains or is refused in one line before the first wait."""

import json
import math

import pytest
import torch

from swep_ds.common.errors import InputError
from swep_ds.cost.candidates import engine_update
from swep_ds.ranks.group import process_group
from swep_ds.training import engine as engines
from swep_ds.training.ds_config import check_monitors
from swep_ds.training.ds_fields import FIELDS, REFUSED, block_fields, field_faults
from swep_ds.training.engine import build_engine
from tests.support import ds_configs
from tests.support.ds_configs import checked, message, write
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import objective
from tests.support.tiny_run import ROOT

SHIPPED = sorted((ROOT / "ds_configs").glob("*.json"))
ODD = ["abc", None, [1], {"x": 1}, -1, 0, 3, 0.5, 1e30, math.nan, True, 2**70]


ONE_RANK = {"micro_batch_size": 3, "gradient_accumulation_steps": 1}


@pytest.fixture
def resolve(tmp_path):
    return lambda config: ds_configs.resolve(write(tmp_path, config), world_size=1, **ONE_RANK)


def paths(fields: dict = FIELDS, prefix: tuple = ()) -> list[tuple[str, ...]]:
    """The paths of all fields and blocks."""
    listed = []
    for name, expected in fields.items():
        kinds = (expected, *getattr(expected, "__args__", ()))
        below = next(filter(None, map(block_fields, kinds)), {})
        listed += [(*prefix, name), *paths(below, (*prefix, name))]
    return listed


def put(path: tuple[str, ...], value: object) -> dict:
    """A config with a value at a field; the blocks around it are right."""
    offload = {name: {"device": "cpu"} for name in ("offload_optimizer", "offload_param")}
    config = {"zero_optimization": {"stage": 3, **offload}, "optimizer": {"type": "AdamW"}}
    node = config
    for part in path[:-1]:
        node = node.setdefault(part, {})
    node[path[-1]] = value
    return config


def test_every_field_is_of_its_type(resolve):
    fields = paths()
    assert ("zero_optimization", "offload_param", "nvme_path") in fields
    assert ("optimizer", "params", "betas") in fields
    taken = 0
    for path in fields:
        for value in ODD:
            config = put(path, value)
            if faults := field_faults(config):
                checked("; ".join(faults), "")
                continue
            try:
                resolve(config)
                taken += 1
            except InputError as error:
                checked(str(error), "ds.json")
    assert taken > 100


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_misspelt_field_is_named_wherever_it_is(path):
    def misspelt(node: dict) -> list[dict]:
        """Copies, each with one name that lacks its last letter."""
        copies = []
        for name, value in node.items():
            if len(name) > 4:
                copies.append({key[:-1] if key == name else key: below for key, below in node.items()})
            if isinstance(value, dict):
                copies += [node | {name: below} for below in misspelt(value)]
        return copies

    config = json.loads(path.read_text())
    assert not field_faults(config)
    assert len(misspelt(config)) >= 5
    for wrong in misspelt(config):
        [fault] = field_faults(wrong)
        assert "is not a field of a ds_config: did you mean '" in fault


@pytest.mark.parametrize("name", REFUSED)
def test_what_this_package_does_without_names_the_fix_unless_it_is_off(tmp_path, resolve, name):
    block, _, field = name.rpartition(".")
    for value in (True, {"enabled": True}, {"enabled": 1}, {"x": False, "y": 4}, [1], "x"):
        config = {block: {field: value}} if block else {name: value}
        assert f"{name}: {REFUSED[name]}" in message(write(tmp_path, config))
    for value in (False, None, 0, {}, {"enabled": False, "x": 4}, {"x": False, "y": None, "z": "auto"}):
        assert resolve({block: {field: value}} if block else {name: value}) == resolve({block: {}} if block else {})


# Blocks of the examples in DeepSpeed's and transformers' documentation that ask for nothing else.
PUBLIC = {
    "_comment": "all of it",
    "fp16": {"enabled": "auto", "auto_cast": False, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2}
    | {"initial_scale_power": 16, "min_loss_scale": 1, "consecutive_hysteresis": False},
    "bf16": {"enabled": "auto", "check_grad_overflow": False, "#": "later versions check it"},
    "amp": {"enabled": "auto", "opt_level": "auto"},
    "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
    "zero_optimization": {
        "stage": 3,
        "//": "everything else is auto",
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "_comment": "or none"},
        "offload_param": {"device": "none", "nvme_path": "/local_nvme", "pin_memory": False},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        **dict.fromkeys(("reduce_bucket_size", "stage3_prefetch_bucket_size"), "auto"),
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
        "cpu_offload": False,
    },
    **dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping"), "auto"),
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), "auto"),
    "steps_per_print": 1e5,
    "wall_clock_breakdown": False,
    "communication_data_type": None,
    "data_types": {"grad_accum_dtype": None},
    "zero_allow_untested_optimizer": True,
    "prescale_gradients": False,
    "disable_allgather": False,
    "activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False}
    | {"contiguous_memory_optimization": False, "number_checkpoints": None, "profile": False},
    "comms_logger": {"enabled": True, "verbose": False, "prof_all": True, "debug": False},
    "flops_profiler": {"enabled": False, "profile_step": 1, "module_depth": -1, "top_modules": 1}
    | {"detailed": True, "output_file": None},
    "tensorboard": {"enabled": False, "output_path": "output/ds_logs/", "job_name": "train"},
    "wandb": {"enabled": False, "group": "g", "team": "t", "project": "p"},
    "csv_monitor": {"enabled": False, "output_path": "output/ds_logs/", "job_name": "train"},
    **{name: {"enabled": False, "x": 9} for name in ("elasticity", "curriculum_learning", "autotuning")},
}


def test_a_public_config_needs_no_change(resolve):
    config = resolve(PUBLIC)
    assert "amp" not in config
    assert "_comment" not in config
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert config["bf16"] == {"enabled": False, "check_grad_overflow": False}
    check_monitors(config)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ('{"gradient_clipping": NaN}', "gradient_clipping is NaN: write a finite number"),
        ('{"gradient_clipping": -Infinity}', "write a finite number"),
        ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}}, "max_grad_norm is not a field"),
        ({"optimizer": {"type": "AdamW", "params": None}}, "optimizer.params is null: write it as a JSON object"),
        ({"optimizer": "AdamW"}, 'optimizer is "AdamW": write it as a JSON object'),
        ({"bf16": "auto"}, 'bf16 is "auto": write it as a JSON object'),
        ({"bf16": True}, "bf16 is true: write it as a JSON object"),
        ({"a\nb": 1}, "is not a field of a ds_config: remove it"),
        ({"fp16": {"initial_scale_power": 1e12}}, "write a number from 0 to 64"),
        ({"steps_per_print": 0}, "steps_per_print is 0"),
        ({"zero_optimization": 2}, "zero_optimization is 2: write it as a JSON object"),
        ({"zero_optimization": {"overlap_com": True}}, "zero_optimization.overlap_com is not a field of a ds_config: "),
        *(
            ({"zero_optimization": {"stage": stage}}, f"zero_optimization.stage is {shown}: write 0, 1, 2 or 3")
            for stage, shown in [(7, "7"), ("auto", '"auto"'), (None, "null"), ("3", '"3"'), (True, "true")]
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_deepspeed_would_read_otherwise(tmp_path, config, part):
    assert part in message(write(tmp_path, config))


# What only the engine says


@pytest.fixture(scope="module")
def group():
    with process_group():
        yield


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"zero_optimization": {"stage": 2, "allgather_bucket_size": 3}}, "allgather_bucket_size must be a multiple"),
        ({"zero_optimization": {"stage": 1, "compute_grad_norm": False}}, "requires gradient_clipping=0"),
        ({"zero_optimization": {"stage": 1, "legacy_stage1": True}}, "deprecated version of ZeRO Stage 1"),
        ({"zero_optimization": {"stage": 2}, "prescale_gradients": True}, "pre-scale gradients is not yet supported"),
        ({"zero_optimization": {"stage": 2}, "gradient_predivide_factor": 3}, "gradient_predivide_factor"),
        (
            {"optimizer": {"type": "AdamW", "params": {"torch_adam": True, "set_grad_none": True}}},
            "unexpected keyword argument 'set_grad_none'",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_only_the_engine_refuses_is_one_line(group, resolve, config, part):
    resolved = resolve(config)
    with pytest.raises(InputError) as caught:
        build_engine(objective("swep").float(), resolved, ds_configs.recipe(**ONE_RANK).train, updates=4)
    said = str(caught.value)
    assert said.startswith("ds_config: DeepSpeed cannot build an engine from it (")
    assert said.isprintable()
    assert part in said


@pytest.mark.parametrize("fault", [RuntimeError("of a lost rank"), torch.OutOfMemoryError("full"), MemoryError()])
def test_a_full_memory_and_a_lost_rank_are_not_faults_of_the_file(monkeypatch, resolve, fault):
    def fail(**_):
        raise fault

    monkeypatch.setattr(engines.deepspeed, "initialize", fail)
    with pytest.raises(type(fault)) as caught:
        build_engine(objective("swep").float(), resolve({}), ds_configs.recipe(**ONE_RANK).train, updates=4)
    assert caught.value is fault


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_fields_that_are_right_train(group, resolve, stage):
    zero = {"stage": stage, "reduce_bucket_size": 1e4, "overlap_comm": True, "contiguous_gradients": True}
    zero |= {"sub_group_size": 1e9, "stage3_max_live_parameters": 1e9} if stage == 3 else {}
    config = {"zero_optimization": zero, "steps_per_print": 1000, "zero_allow_untested_optimizer": True}
    config |= {"communication_data_type": "fp32", "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
    engine = build_engine(objective("swep").float(), resolve(config), ds_configs.recipe(**ONE_RANK).train, updates=4)
    engine.train()
    engine_update(engine, "split")(batch(dtype=torch.float32), 0)
    assert engine.global_steps == 1
    engine.destroy()
