"""The fields of a ds_config: what DeepSpeed would ignore or read otherwise is refused in one line."""

import pytest
import torch

from swep_ds.common.errors import InputError
from swep_ds.cost.candidates import engine_update
from swep_ds.ranks.group import process_group
from swep_ds.training import engine as engines
from swep_ds.training.ds_fields import REFUSED
from swep_ds.training.engine import build_engine
from tests.support import ds_configs
from tests.support.ds_configs import message, write
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import objective

ONE_RANK = {"micro_batch_size": 3, "gradient_accumulation_steps": 1}


@pytest.fixture
def resolve(tmp_path):
    return lambda config: ds_configs.resolve(write(tmp_path, config), world_size=1, **ONE_RANK)


@pytest.mark.parametrize("name", REFUSED)
def test_what_this_package_does_without_names_the_fix_unless_it_is_off(tmp_path, resolve, name):
    block, _, field = name.rpartition(".")
    for value in (True, {"enabled": True}, {"x": False, "y": 4}):
        config = {block: {field: value}} if block else {name: value}
        assert f"{name}: {REFUSED[name]}" in message(write(tmp_path, config))
    for value in (False, None, {"enabled": False, "x": 4}, {"x": False, "y": None, "z": "auto"}):
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


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (
            {"gradient_cliping": 1.0},
            "gradient_cliping is not a field of a ds_config that is of use here: did you mean 'gradient_clipping'?",
        ),
        ({"aio": {"block": 1}}, "aio.block is not a field of a ds_config that is of use here: "),
        ({"zero_optimization": {"overlap_com": True}}, "zero_optimization.overlap_com: extra inputs are not permitted"),
        ({"zero_optimization": {"overlap_comm": 3}}, "zero_optimization.overlap_comm: input should be"),
        ({"optimizer": "AdamW"}, 'optimizer is "AdamW": write it as a JSON object'),
        ({"bf16": "auto"}, 'bf16 is "auto": write it as a JSON object'),
        ({"zero_optimization": 2}, "zero_optimization is 2: write it as a JSON object"),
        *(
            ({"zero_optimization": {"stage": stage}}, f"zero_optimization.stage is {shown}: write 0, 1, 2 or 3")
            for stage, shown in [(7, "7"), ("auto", '"auto"'), ("3", '"3"')]
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
        ({"zero_optimization": {"stage": 2}, "prescale_gradients": True}, "pre-scale gradients is not yet supported"),
        (
            {"optimizer": {"type": "AdamW", "params": {"torch_adam": True, "weight_deca": 0.1}}},
            "unexpected keyword argument 'weight_deca'",
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


@pytest.mark.parametrize("fault", [RuntimeError("of a lost rank"), MemoryError()])
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
    assert engine.deepspeed.global_steps == 1
    engine.destroy()
