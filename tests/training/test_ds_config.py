"""ds_config: "auto" filled from the recipe, everything that contradicts it in one message."""

import json

import deepspeed
import pytest

from swep_ds.common.errors import InputError
from swep_ds.training.ds_config import check_machine, check_monitors, read_ds_config, zero_stage
from tests.support.ds_configs import message, resolve, write
from tests.support.fork_server import ROOT

SHIPPED = sorted((ROOT / "ds_configs").glob("*.json"))


CASES = [(path, precision) for path in SHIPPED for precision in ("fp32", "autocast", "bf16", "fp16")]


@pytest.mark.parametrize(
    ("path", "precision"), [case for case in CASES if case != (ROOT / "ds_configs" / "zero0.json", "fp16")]
)
def test_every_shipped_config_resolves(path, precision):
    config = resolve(path, precision=precision, on_cpu=False)
    assert '"auto"' not in json.dumps(config)
    assert f"zero{zero_stage(config)}" in path.stem
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_clipping"] == 0.5
    assert config["bf16"]["enabled"] is (precision == "bf16")
    assert config["fp16"]["enabled"] is (precision == "fp16")
    assert ("offload" in path.stem) == ("offload_optimizer" in config["zero_optimization"])
    assert "train_batch_size" not in config  # DeepSpeed derives it


@pytest.mark.parametrize("micro_steps", [1, 2])
@pytest.mark.parametrize("config", [{}, {"gradient_accumulation_steps": 3}])
def test_split_execution_multiplies_the_engines_accumulation(tmp_path, config, micro_steps):
    resolved = resolve(write(tmp_path, config), micro_steps=micro_steps)
    assert resolved["gradient_accumulation_steps"] == 3 * micro_steps
    assert resolved["train_micro_batch_size_per_gpu"] == 4
    assert zero_stage(resolved) == 0


def test_autos_are_filled(tmp_path):
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    params = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    config = {
        "train_batch_size": "auto",
        "optimizer": {"type": "AdamW", "params": params | {"torch_adam": True}},
        "zero_optimization": {"stage": 3} | dict.fromkeys(sizes, "auto"),
    }
    config = resolve(write(tmp_path, config))
    expected = {"lr": 2e-4, "betas": [0.8, 0.98], "eps": 1e-6, "weight_decay": 0.01, "torch_adam": True}
    assert config["optimizer"]["params"] == expected
    # hidden size 16, by the formulas of transformers' integration
    assert [config["zero_optimization"][name] for name in sizes] == [256, 230, 160]


def test_values_that_agree_are_not_a_fault(tmp_path):
    config = {
        "train_batch_size": 24,  # 4 x 3 x 2 ranks
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": False},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.0002, "betas": [0.8, 0.98], "weight_decay": 1e-2}},
    }
    assert resolve(write(tmp_path, config))["gradient_accumulation_steps"] == 6
    assert "x 1 rank(s) gives 12" in message(write(tmp_path, config), world_size=1)


def test_all_disagreements_in_one_error_name_both_sides(tmp_path):
    params = {"lr": 0.001, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0}
    config = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": params},
        "scheduler": {"type": "WarmupLR", "params": {}},
        "zero_optimization": {"stage": 2, "allgather_bucket_size": "auto"},
    }
    said = message(write(tmp_path, config))
    for part in (
        "train_batch_size = 32, but the recipe's micro batch x accumulation x 2 rank(s) gives 24",
        "train_micro_batch_size_per_gpu = 8, but the recipe's train.micro_batch_size gives 4",
        "gradient_accumulation_steps = 1, but the recipe's train.gradient_accumulation_steps gives 3",
        "gradient_clipping = 1.0, but the recipe's train.max_grad_norm gives 0.5",
        "bf16.enabled = true, but the recipe's train.precision gives false",
        "optimizer.params.lr = 0.001, but the recipe's train.learning_rate gives 0.0002",
        "optimizer.params.betas = [0.9, 0.98], but the recipe's train.adam_betas gives [0.8, 0.98]",
        "optimizer.params.eps = 1e-08, but the recipe's train.adam_epsilon gives 1e-06",
        "optimizer.params.weight_decay = 0, but the recipe's train.weight_decay gives 0.01",
        "scheduler: the recipe's train.warmup_fraction and train.schedule decide it: remove this block",
        'zero_optimization.allgather_bucket_size is "auto", but no field of the recipe decides it',
    ):
        assert part in said


def test_a_precision_that_needs_a_gpu_is_the_recipes_fault(tmp_path):
    for precision, fix in (("fp16", "fp32, autocast or bf16"), ("tf32", "fp32")):
        with pytest.raises(InputError, match=rf"^train\.precision: {precision} needs a GPU: set it to {fix}$"):
            resolve(write(tmp_path, {}), precision=precision)


def zero(**fields) -> dict:
    return {"zero_optimization": fields}


OFFLOAD = {"device": "cpu"}
ADAFACTOR = {"optimizer": "adafactor"}


@pytest.mark.parametrize(
    ("config", "train", "part"),
    [
        ("{", {}, "not JSON"),
        ('{"a": 1,}', {}, "not JSON"),
        ("", {}, "not JSON"),
        ([1], {}, "a ds_config is a JSON object"),
        ('{"zero_optimization": {"stage": 2, "stage": 3}}', {}, "'stage' is given twice"),
        # what contradicts the recipe
        ({}, {"precision": "fp16", "on_cpu": False}, "at ZeRO-0 DeepSpeed divides fp16's gradients by a loss scale"),
        (zero(stage=1), ADAFACTOR, "flat pieces"),
        (zero(stage=3), ADAFACTOR, "flat pieces"),
        ({}, ADAFACTOR | {"precision": "bf16"}, "flat pieces"),
        ({"optimizer": {"type": "AdamW"}}, ADAFACTOR, "optimizer: the recipe's train.optimizer is adafactor"),
        (zero(stage=3), {"compile": True}, "train.compile: ZeRO-3 gathers weights"),
        ({"optimizer": {"type": "Lamb"}}, {}, 'optimizer.type = "Lamb": the recipe trains with "AdamW": name that'),
        (
            {"optimizer": {"type": "AdamW"}},
            {"precision": "bf16", "average": "ema"},
            "own optimizer keeps all weights in one tensor, from which train.average ema cannot",
        ),
        (
            {"optimizer": {"type": "AdamW"}},
            {"precision": "bf16", "pretrain": {"train": "generated.json"}},
            "so pretrain cannot export the model's for the second stage: remove this block",
        ),
        ({"optimizer": {"type": "AdamW", "params": {"amsgrad": True}}}, {}, "makes another optimizer than the recipe"),
        ({"torch_autocast": {"dtype": "float16"}}, {"precision": "autocast"}, "torch_autocast.dtype"),
        ({"torch_autocast": {"enabled": True}}, {}, "torch_autocast.enabled"),
        # what DeepSpeed refuses, or would do wrong or not at all without a word
        (zero(stage=2, offload_optimizer={"device": "gpu"}), {}, "offload_optimizer.device: input should be"),
        (zero(offload_optimizer=OFFLOAD), {}, "offload_optimizer would do nothing at ZeRO-0"),
        (zero(stage=0, offload_param=OFFLOAD), {}, "offload_param would do nothing at ZeRO-0: set the stage to 3"),
        (zero(stage=1, offload_param=OFFLOAD), {}, "offload_param would do nothing at ZeRO-1"),
        (zero(stage=2, offload_optimizer={"pin_memory": True}), {}, 'names no device and would do nothing: give it "d'),
        (zero(stage=3, offload_param={"buffer_count": 3}), {}, "offload_param names no device"),
        (zero(stage=3, offload_param={"device": "nvme"}), {}, "offload_param is to disk and has no nvme_path"),
        (zero(stage=2, cpu_offload=True), {}, 'write "offload_optimizer": {"device": "cpu"} instead'),
        # the float32 weights would be another parameter's; tests/support/gradient_matrix.py shows it if this is allowed
        (zero(stage=1, round_robin_gradients=True), {}, "zero_optimization.round_robin_gradients"),
        (zero(stage=2, round_robin_gradients=True), {}, "zero_optimization.round_robin_gradients"),
        (zero(stage=1, load_from_fp32_weights=False), {"precision": "bf16"}, "would resume from weights rounded to"),
        (
            zero(stage=3, reduce_scatter=False) | {"gradient_predivide_factor": 2.0},
            {},
            "at ZeRO-3 gradients may then be too small",
        ),
        (zero(stage=3, offload_optimizer=OFFLOAD | {"ratio": 0.5}), {}, "offload_optimizer.ratio: DeepSpeed then"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused_says_why(tmp_path, config, train, part):
    assert part in message(write(tmp_path, config), **train)


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"optimizer": {"type": "AdamW", "legacy_fusion": True}}, "fp32"),
        (zero(stage=2, compute_grad_norm=False), "fp32"),
        (zero(stage=1) | {"data_types": {"grad_accum_dtype": "fp32"}}, "bf16"),
    ],
)
def test_groups_are_not_clipped_apart_where_deepspeed_computes_no_norm_of_each(tmp_path, config, precision):
    file, settings = write(tmp_path, config), {"precision": precision, "max_grad_norm": 0.0}
    said = message(file, method={"noise_max_grad_norm": 1.0}, **settings)
    assert "leaves method.noise_max_grad_norm without a norm of the noise generator's gradient: remove" in said
    assert resolve(file, **settings)


def test_what_is_accepted_beside_that(tmp_path):
    assert resolve(write(tmp_path, zero(stage=1)), precision="fp16", on_cpu=False)["fp16"]["enabled"] is True
    assert "optimizer" not in resolve(write(tmp_path, {}), **ADAFACTOR)
    assert resolve(write(tmp_path, zero(stage=2, round_robin_gradients=False)), compile=True)
    assert resolve(write(tmp_path, zero(stage=2) | {"gradient_predivide_factor": 2.0}))
    assert resolve(write(tmp_path, zero(stage=3, offload_optimizer=OFFLOAD | {"ratio": 1.0})))


@pytest.mark.parametrize("name", ["nowhere", "~nobody-of-this-name/ds.json", "."])
def test_a_file_that_cannot_be_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^--ds_config "):
        read_ds_config(name)


def test_the_files_own_settings_stay(tmp_path):
    block = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 1000}
    config = resolve(write(tmp_path, {"zero_optimization": block, "wall_clock_breakdown": True}))
    assert config["zero_optimization"] == block
    assert config["wall_clock_breakdown"] is True


@pytest.mark.parametrize("block", [{"device": "none"}, {"device": "none", "pin_memory": True}, None, {}])
@pytest.mark.parametrize("stage", [0, 3])
def test_without_offload_there_is_no_block(tmp_path, block, stage):
    config = resolve(write(tmp_path, zero(stage=stage, offload_optimizer=block, offload_param=block)))
    assert config["zero_optimization"] == {"stage": stage}


def test_autocast_is_deepspeeds_block_of_that_name(tmp_path):
    for present in ({}, {"torch_autocast": {"enabled": "auto", "dtype": "bfloat16"}}):
        config = resolve(write(tmp_path, present), precision="autocast")
        assert config["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
        assert not config["bf16"]["enabled"]
    assert "torch_autocast" not in resolve(write(tmp_path, {}))


@pytest.mark.parametrize("version", [(0, 18, 3), (0, 19, 7)])
def test_a_deepspeed_that_loses_gradients_is_refused(tmp_path, monkeypatch, version):
    for part, number in zip(("major", "minor", "patch"), version, strict=True):
        monkeypatch.setattr(deepspeed, f"__version_{part}__", number)
    monkeypatch.setattr(deepspeed, "__version__", ".".join(map(str, version)))
    with pytest.raises(InputError, match=r"DeepSpeed 0\.1\d\.\d .*: pip install 'deepspeed>=0\.19\.8'$"):
        resolve(write(tmp_path, {}))


# This machine


def test_offload_to_disk_asks_for_what_it_is_built_with(monkeypatch):
    config = resolve(ROOT / "ds_configs" / "zero3_offload_nvme.json")
    monkeypatch.setattr("swep_ds.training.ds_config.AsyncIOBuilder.is_compatible", lambda self: False)
    with pytest.raises(InputError, match=r"offload_param: offload to disk .*libaio-dev.*--ds_config zero3_offload"):
        check_machine(config)
    check_machine(resolve(ROOT / "ds_configs" / "zero3_offload.json"))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "disk"}},
            r"offload_optimizer: .*other updates.*zero3_offload_nvme",
        ),
        (
            {"stage": 2, "reduce_bucket_size": 1e12},
            r"1,000,000,000,000 elements are more than this machine's memory of \d+ GiB",
        ),
    ],
)
def test_what_this_machine_cannot_do_is_refused(tmp_path, block, said):
    config = resolve(write(tmp_path, {"zero_optimization": block}))
    with pytest.raises(InputError, match=said):
        check_machine(config)


def test_without_zero_a_bucket_takes_no_memory(tmp_path):
    check_machine(resolve(write(tmp_path, zero(stage=0, reduce_bucket_size=1e12))))


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"csv_monitor": {"enabled": True, "output_path": "file/logs"}}, "csv_monitor.output_path file/logs"),
        ({"flops_profiler": {"enabled": True, "output_file": "file/x"}}, "flops_profiler.output_file file"),
        ({"comet": {"enabled": True}}, "comet: needs the package comet_ml: pip install comet_ml"),
    ],
)
def test_a_monitor_that_fails_on_rank_0_alone(tmp_path, monkeypatch, block, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("swep_ds.training.ds_config.find_spec", lambda package: None)
    with pytest.raises(InputError, match=part):
        check_monitors(resolve(write(tmp_path, block)))
