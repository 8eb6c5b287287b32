"""ds_config: "auto" filled from the recipe, everything that contradicts it in one message."""

import json
from unittest.mock import Mock

import deepspeed
import pytest

from swep_ds.ranks.group import process_group
from swep_ds.training.ds_config import REFUSED, read_ds_config, zero_stage
from swep_ds.training.engine import Engine, build_engine
from tests.support.bad_input import refused
from tests.support.ds_configs import message, recipe, resolve, write
from tests.support.fork_server import ROOT
from tests.support.tiny_objective import objective

SHIPPED = sorted((ROOT / "ds_configs").glob("*.json"))
assert SHIPPED  # pytest leaves a test out that has no cases
OFFLOAD = {"device": "cpu"}
ADAFACTOR = {"optimizer": "adafactor"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_config_resolves(path):
    for precision in ("fp32", "bf16", "fp16"):
        if path.stem == "zero0" and precision != "fp32":
            continue
        config = resolve(path, precision=precision, on_cpu=False)
        assert '"auto"' not in json.dumps(config)
        assert f"zero{zero_stage(config)}" in path.stem
        assert (config["train_micro_batch_size_per_gpu"], config["gradient_clipping"]) == (4, 0.5)
        assert [config[half]["enabled"] for half in ("bf16", "fp16")] == [precision == "bf16", precision == "fp16"]
        assert ("offload" in path.stem) == ("offload_optimizer" in config["zero_optimization"])
        assert "train_batch_size" not in config  # DeepSpeed derives it


def test_autos_are_filled(tmp_path):
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    config = {"train_batch_size": "auto", "zero_optimization": {"stage": 3} | dict.fromkeys(sizes, "auto")}
    config = resolve(write(tmp_path, config))
    # hidden size 16, by the formulas of transformers' integration
    assert [config["zero_optimization"][name] for name in sizes] == [256, 230, 160]


def test_the_file_in_a_runs_folder_starts_that_run_anywhere(tmp_path):
    """It holds what an earlier start filled in, on its number of ranks."""
    (tmp_path / "batch.json").touch()
    (tmp_path / "ds_config.json").write_text(json.dumps(resolve(write(tmp_path, {}), world_size=2)))
    again = resolve(tmp_path / "ds_config.json", world_size=1, backwards=1)
    assert again == resolve(write(tmp_path, {}), world_size=1, backwards=1)


@pytest.mark.parametrize(
    ("stage", "accumulation", "dtype"), [(1, 3, None), (2, 3, "fp32"), (3, 3, "fp32"), (2, 2, None)]
)
def test_bf16_adds_the_backwards_of_an_update_up_in_float32(tmp_path, stage, accumulation, dtype):
    """At ZeRO-1 this package's flat gradient does."""
    (tmp_path / "batch.json").touch()
    train = {"precision": "bf16", "gradient_accumulation_steps": accumulation, "backwards": 1}
    resolved = resolve(write(tmp_path, zero(stage=stage)), **train)
    assert resolved.get("data_types", {}).get("grad_accum_dtype") == dtype
    (tmp_path / "ds_config.json").write_text(json.dumps(resolved))
    assert resolve(tmp_path / "ds_config.json", **train) == resolved
    single = train | {"gradient_accumulation_steps": 1}
    assert "data_types" not in resolve(tmp_path / "ds_config.json", **single)


def test_values_that_agree_are_not_a_fault(tmp_path):
    # 4 x 3 x 2 ranks
    config = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
    config |= {"gradient_clipping": 0.5, "bf16": {"enabled": False}}
    for backwards in (1, 2):  # `split` has one for each pass
        for present in (config, {}):
            resolved = resolve(write(tmp_path, present), backwards=backwards)
            assert resolved["gradient_accumulation_steps"] == 3 * backwards
            assert zero_stage(resolved) == 0
    assert "x 1 rank(s) gives 12" in message(write(tmp_path, config), world_size=1)


def test_all_disagreements_in_one_error_name_both_sides(tmp_path):
    config = {"zero_optimization": {"stage": 2, "allgather_bucket_size": "auto"}, "bf16": {"enabled": True}}
    config |= {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    said = message(write(tmp_path, config | {"gradient_clipping": 1.0}))
    for part in (
        "train_batch_size = 32, but the recipe's micro batch x accumulation x 2 rank(s) gives 24",
        "train_micro_batch_size_per_gpu = 8, but the recipe's train.micro_batch_size gives 4",
        "gradient_accumulation_steps = 1, but the recipe's train.gradient_accumulation_steps gives 3",
        "gradient_clipping = 1.0, but the recipe's train.max_grad_norm gives 0.5",
        "bf16.enabled = true, but the recipe's train.precision gives false",
        'zero_optimization.allgather_bucket_size is "auto", but no field of the recipe decides it',
    ):
        assert part in said


def test_a_public_config_needs_no_change(tmp_path):
    """Blocks of the examples in DeepSpeed's and transformers' documentation that ask for nothing else."""
    config = {
        "fp16": {"enabled": "auto", "auto_cast": False, "loss_scale": 0, "initial_scale_power": 16},
        "amp": {"enabled": "auto", "opt_level": "auto"},
        "_comment": "for 8 GPUs",
        "//": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "none", "nvme_path": "/local_nvme", "pin_memory": False},
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
        },
        **dict.fromkeys(("train_batch_size", "gradient_accumulation_steps", "gradient_clipping"), "auto"),
        "steps_per_print": 1e5,
        "disable_allgather": False,
        "flops_profiler": {"enabled": False, "profile_step": 1, "output_file": None},
        "elasticity": {"enabled": False, "x": 9},
    }
    config = resolve(write(tmp_path, config))
    assert not {"amp", "disable_allgather", "elasticity", "_comment", "//"} & config.keys()
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_of_no_use_here_names_the_fix_unless_it_is_off(tmp_path, name):
    block, _, field = name.rpartition(".")
    for value in (True, {"enabled": True}):
        said = message(write(tmp_path, {block: {field: value}} if block else {name: value}))
        assert f"{name}: {REFUSED[name]}" in said
    for value in (False, {"enabled": False, "x": 4}):
        resolved = resolve(write(tmp_path, {block: {field: value}} if block else {name: value}))
        assert resolved == resolve(write(tmp_path, {block: {}} if block else {}))


def zero(**fields) -> dict:
    return {"zero_optimization": fields}


@pytest.mark.parametrize(
    ("config", "train", "part"),
    [
        ("{", {}, "not JSON"),
        ('{"zero_optimization": {"stage": 2, "stage": 3}}', {}, "'stage' is given twice"),
        ([], {}, "a ds_config is a JSON object"),
        ({"bf16": True}, {}, "bf16 is true: write it as a JSON object"),
        # what DeepSpeed would ignore or read otherwise
        (zero(cpu_offload=True), {}, 'cpu_offload: write "offload_optimizer": {"device": "cpu"} instead'),
        ({"gradient_cliping": 1.0}, {}, "gradient_cliping is not a field of a ds_config that is of use here; did you "),
        (zero(overlap_com=True), {}, "DeepSpeedZeroConfig overlap_com Extra inputs are not permitted"),
        (zero(stage=7), {}, "zero_optimization.stage is 7: write 0, 1, 2 or 3"),
        # what contradicts the recipe
        ({}, {"precision": "fp16", "on_cpu": False}, "at ZeRO-0 DeepSpeed never scales fp16"),
        (
            {},
            {"precision": "bf16"},
            "train.precision: at ZeRO-0 bf16 begins with a step on gradients of 0: use --ds_config ",
        ),
        (zero(stage=3), ADAFACTOR, "flat pieces"),
        ({}, ADAFACTOR | {"precision": "bf16"}, "flat pieces"),
        (zero(stage=3), {"compile": True}, "train.compile: ZeRO-3 gathers weights"),
        ({"torch_autocast": {"dtype": "float16"}}, {"precision": "autocast"}, "torch_autocast.dtype"),
        ({"torch_autocast": {"enabled": True}}, {}, "torch_autocast.enabled"),
        # also where it switches something off
        (
            zero(stage=1) | {"bf16": {"enabled": False}},
            {"precision": "bf16"},
            "bf16.enabled = false, but the recipe's train.precision gives true",
        ),
        (
            {"torch_autocast": {"enabled": False}},
            {"precision": "autocast"},
            "torch_autocast.enabled = false, but the recipe's train.precision gives true",
        ),
        ({"gradient_clipping": 0}, {}, "gradient_clipping = 0, but the recipe's train.max_grad_norm gives 0.5"),
        (
            {"data_types": {"grad_accum_dtype": "bf16"}},
            {},
            "data_types: the precision decides in what",
        ),
        (
            zero(stage=2) | {"data_types": {"grad_accum_dtype": "bf16"}},
            {"precision": "bf16"},
            'data_types.grad_accum_dtype = "bf16", but the recipe\'s train.precision gives "fp32"',
        ),
        # what DeepSpeed refuses, or would do wrong or not at all without a word
        (zero(offload_optimizer=OFFLOAD), {}, "offload_optimizer would do nothing at ZeRO-0"),
        (zero(stage=1, offload_param=OFFLOAD), {}, "offload_param would do nothing at ZeRO-1"),
        (zero(stage=2, offload_optimizer={"pin_memory": True}), {}, 'names no device and would do nothing: give it "d'),
        (zero(stage=2, offload_optimizer={"device": "nvme"}), {}, "on disk DeepSpeed computes other updates than"),
        (zero(stage=3, offload_optimizer=OFFLOAD | {"ratio": 0.5}), {}, "offload_optimizer.ratio: a part of the wei"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_says_why(tmp_path, config, train, part):
    assert part in message(write(tmp_path, config), **train)


def test_what_is_accepted(tmp_path):
    assert resolve(write(tmp_path, zero(stage=1)), precision="fp16", on_cpu=False)["fp16"]["enabled"] is True
    assert resolve(write(tmp_path, zero(stage=2)), compile=True)
    assert resolve(write(tmp_path, zero(stage=3, offload_optimizer=OFFLOAD | {"ratio": 1.0})))
    block = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 1000}
    config = resolve(write(tmp_path, {"zero_optimization": block, "wall_clock_breakdown": True}))
    assert (config["zero_optimization"], config["wall_clock_breakdown"]) == (block, True)
    for nowhere in ({"device": "none", "pin_memory": True}, None):
        config = resolve(write(tmp_path, zero(stage=0, offload_optimizer=nowhere, offload_param=nowhere)))
        assert config["zero_optimization"] == {"stage": 0}
    for present in ({}, {"torch_autocast": {"enabled": "auto", "dtype": "bfloat16"}}):
        config = resolve(write(tmp_path, present), precision="autocast")
        assert config["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
        assert not config["bf16"]["enabled"]
    assert "torch_autocast" not in resolve(write(tmp_path, {}))


def test_a_missing_file_a_missing_gpu_and_a_deepspeed_that_loses_gradients_are_refused(tmp_path, monkeypatch):
    for name in ("nowhere", str(tmp_path)):
        assert refused(read_ds_config, name).startswith(f"--ds_config {name}")
    for precision, fix in (("fp16", "fp32, autocast or bf16"), ("tf32", "fp32")):
        said = refused(resolve, write(tmp_path, {}), precision=precision)
        assert said == f"train.precision: {precision} needs a GPU: set it to {fix}"
    for version in ("0.19.7+cpu", "0.9.10", "0.20.0"):
        monkeypatch.setattr(deepspeed, "__version__", version)
        said = refused(resolve, write(tmp_path, {}))
        assert said.startswith(f"DeepSpeed {version}: ")
        assert said.endswith(": pip install 'deepspeed>=0.19.8,<0.20'")


def build(tmp_path, config: dict) -> Engine:
    one_rank = {"micro_batch_size": 3, "gradient_accumulation_steps": 1}
    resolved = resolve(write(tmp_path, config), world_size=1, **one_rank)
    return build_engine(objective("swep").float(), resolved, recipe(**one_rank).train, updates=4)


def test_what_only_the_engine_refuses_is_one_line(tmp_path):
    with process_group():
        said = refused(build, tmp_path, zero(stage=2, allgather_bucket_size=3))
    assert said.startswith("ds_config: DeepSpeed cannot build an engine from it (")
    assert "allgather_bucket_size must be a multiple" in said
    assert said.isprintable()


@pytest.mark.parametrize("fault", [RuntimeError("of a lost rank"), MemoryError()])
def test_a_full_memory_and_a_lost_rank_are_not_faults_of_the_file(monkeypatch, tmp_path, fault):
    monkeypatch.setattr(deepspeed, "initialize", Mock(side_effect=fault))
    with pytest.raises(type(fault)) as caught:
        build(tmp_path, {})
    assert caught.value is fault
