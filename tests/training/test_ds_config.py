"""ds_config: "auto" filled from the recipe, everything that contradicts it in one message."""

import json
from pathlib import Path

import deepspeed
import pytest

from swep_ds.errors import InputError
from swep_ds.recipe import Recipe
from swep_ds.training.ds_config import check_machine, resolve_ds_config, zero_stage
from tests.support.tiny_run import ROOT

SHIPPED = sorted((ROOT / "ds_configs").glob("*.json"))
TRAIN = {
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "learning_rate": 2e-4,
    "max_grad_norm": 0.5,
    "weight_decay": 0.01,
    "adam_betas": [0.8, 0.98],
    "adam_epsilon": 1e-6,
}


def resolve(
    source: Path | str, precision="fp32", micro_steps=2, world_size=2, on_cpu=True, optimizer="adamw", compile=False
) -> dict:
    recipe = Recipe.model_validate(
        {
            "model": {"name": "m"},
            "method": {"name": "swep"},
            "data": {"train": "t", "eval": {"x": "y"}},
            "train": TRAIN | {"precision": precision, "optimizer": optimizer, "compile": compile},
        }
    )
    return resolve_ds_config(
        str(source), recipe, world_size=world_size, micro_steps=micro_steps, hidden_size=16, on_cpu=on_cpu
    )


@pytest.fixture
def write(tmp_path):
    def write(config: object) -> Path:
        (tmp_path / "ds.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return tmp_path / "ds.json"

    return write


def message(source: Path | str, **changes) -> str:
    with pytest.raises(InputError) as caught:
        resolve(source, **changes)
    assert "\n" not in str(caught.value)
    assert str(source) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("precision", ["fp32", "autocast", "bf16", "fp16"])
def test_every_shipped_config_resolves(path, precision):
    config = resolve(path, precision, on_cpu=False)
    assert '"auto"' not in json.dumps(config)
    assert f"zero{zero_stage(config)}" in path.stem
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_clipping"] == 0.5
    assert config["bf16"]["enabled"] is (precision == "bf16")
    assert config["fp16"]["enabled"] is (precision == "fp16")
    assert ("offload" in path.stem) == ("offload_optimizer" in config["zero_optimization"])
    assert "train_batch_size" not in config  # DeepSpeed derives it


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_split_execution_multiplies_the_engines_accumulation(write, micro_steps):
    config = resolve(write({"gradient_accumulation_steps": 3}), micro_steps=micro_steps)
    assert config["gradient_accumulation_steps"] == 3 * micro_steps


def test_an_empty_config_gets_everything(write):
    config = resolve(write({}))
    assert zero_stage(config) == 0
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (4, 6)


def test_autos_are_filled(write):
    sizes = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    params = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    config = resolve(
        write(
            {
                "train_batch_size": "auto",
                "optimizer": {"type": "AdamW", "params": params | {"torch_adam": True}},
                "zero_optimization": {"stage": 3} | dict.fromkeys(sizes, "auto"),
            }
        )
    )
    expected = {"lr": 2e-4, "betas": [0.8, 0.98], "eps": 1e-6, "weight_decay": 0.01, "torch_adam": True}
    assert config["optimizer"]["params"] == expected
    # hidden size 16, by the formulas of transformers' integration
    assert [config["zero_optimization"][name] for name in sizes] == [256, 230, 160]


def test_values_that_agree_are_no_fault(write):
    config = resolve(
        write(
            {
                "train_batch_size": 24,  # 4 x 3 x 2 ranks
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 3,
                "gradient_clipping": 0.5,
                "bf16": {"enabled": False},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.0002, "betas": [0.8, 0.98], "weight_decay": 1e-2}},
            }
        )
    )
    assert config["gradient_accumulation_steps"] == 6


def test_all_disagreements_in_one_error_name_both_sides(write):
    said = message(
        write(
            {
                "train_batch_size": 32,
                "train_micro_batch_size_per_gpu": 8,
                "gradient_accumulation_steps": 1,
                "gradient_clipping": 1.0,
                "bf16": {"enabled": True},
                "optimizer": {
                    "type": "AdamW",
                    "params": {"lr": 0.001, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0},
                },
                "scheduler": {"type": "WarmupLR", "params": {}},
                "zero_optimization": {"stage": 2, "allgather_bucket_size": "auto"},
            }
        )
    )
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


def test_train_batch_size_counts_the_ranks(write):
    path = write({"train_batch_size": 24})
    resolve(path, world_size=2)
    assert "x 1 rank(s) gives 12" in message(path, world_size=1)


def test_fp16_needs_a_gpu(write):
    assert "fp16 needs a GPU" in message(write({}), precision="fp16")
    assert resolve(write({}), precision="fp16", on_cpu=False)["fp16"]["enabled"] is True


@pytest.mark.parametrize("stage", ["auto", None, "3", True])
@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_a_stage_is_a_number(write, stage, optimizer):
    said = message(write({"zero_optimization": {"stage": stage}}), optimizer=optimizer)
    assert f"zero_optimization.stage is {json.dumps(stage)}: write 0, 1, 2 or 3" in said


@pytest.mark.parametrize(("stage", "precision"), [(1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16")])
def test_adafactor_needs_whole_matrices(write, stage, precision):
    config = {"zero_optimization": {"stage": stage}}
    assert "flat pieces" in message(write(config), precision=precision, optimizer="adafactor")


def test_adafactor_and_an_optimizer_of_the_ds_config_contradict(write):
    config = {"optimizer": {"type": "AdamW"}}
    assert "optimizer: the recipe's train.optimizer is adafactor" in message(write(config), optimizer="adafactor")
    assert "optimizer" not in resolve(write({}), optimizer="adafactor")


def test_a_compiled_model_needs_whole_weights(write):
    config = {"zero_optimization": {"stage": 3}}
    assert "train.compile: ZeRO-3 gathers weights" in message(write(config), compile=True)
    assert resolve(write({"zero_optimization": {"stage": 2}}), compile=True)


def test_missing_file():
    assert "no such file; shipped ones are in ds_configs/" in message("nowhere/zero2.json")


@pytest.mark.parametrize("text", ["{", '{"a": 1,}', ""])
def test_not_json(write, text):
    assert "not JSON" in message(write(text))


def test_not_an_object(write):
    assert "a ds_config is a JSON object" in message(write([1]))


@pytest.mark.parametrize(
    ("config", "block"),
    [
        ({"bf16": True}, "bf16 is true"),
        ({"fp16": None}, "fp16 is null"),
        ({"zero_optimization": 2}, "zero_optimization is 2"),
        ({"optimizer": "AdamW"}, 'optimizer is "AdamW"'),
        ({"optimizer": {"type": "AdamW", "params": None}}, "optimizer.params is null"),
    ],
)
def test_a_block_that_is_no_object(write, config, block):
    assert f"{block}: write it as a JSON object" in message(write(config))


@pytest.mark.parametrize(
    ("zero", "part"),
    [
        ({"stage": 7}, "zero_optimization.stage is 7: write 0, 1, 2 or 3"),
        (
            {"stage": 2, "overlap_com": True},
            "zero_optimization.overlap_com is not a field of a ds_config: did you mean",
        ),
        ({"stage": 2, "offload_optimizer": {"device": "gpu"}}, "offload_optimizer.device: input should be"),
    ],
)
def test_what_deepspeed_refuses_is_bad_input(write, zero, part):
    assert part in message(write({"zero_optimization": zero}))


def test_the_files_own_settings_stay(write):
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 1000}
    config = resolve(write({"zero_optimization": zero, "wall_clock_breakdown": True}))
    assert config["zero_optimization"] == zero
    assert config["wall_clock_breakdown"] is True


def test_offload_to_disk_asks_for_what_it_is_built_with(monkeypatch):
    config = resolve(ROOT / "ds_configs" / "zero3_offload_nvme.json")
    monkeypatch.setattr("swep_ds.training.ds_config.AsyncIOBuilder.is_compatible", lambda self: False)
    with pytest.raises(InputError, match=r"offload_param: offload to disk .*libaio-dev.*zero3_offload\.json"):
        check_machine(config)
    check_machine(resolve(ROOT / "ds_configs" / "zero3_offload.json"))


def test_the_optimizer_state_on_disk_is_refused(write):
    block = {"device": "nvme", "nvme_path": "disk"}
    config = resolve(write({"zero_optimization": {"stage": 3, "offload_optimizer": block}}))
    with pytest.raises(InputError, match=r"offload_optimizer: .*other updates.*zero3_offload_nvme\.json"):
        check_machine(config)


def test_autocast_is_deepspeeds_block_of_that_name(write):
    expected = {"enabled": True, "dtype": "bfloat16"}
    for present in ({}, {"torch_autocast": {"enabled": "auto", "dtype": "bfloat16"}}):
        config = resolve(write(present), precision="autocast")
        assert config["torch_autocast"] == expected
        assert not config["bf16"]["enabled"]
    assert "torch_autocast" not in resolve(write({}))
    assert "torch_autocast.dtype" in message(write({"torch_autocast": {"dtype": "float16"}}), precision="autocast")
    assert "torch_autocast.enabled" in message(write({"torch_autocast": {"enabled": True}}))


def test_a_setting_with_which_wrong_weights_are_saved_is_refused(write):
    """With two ranks at stages 1 and 2 the float32 weights are another parameter's (tests/support/gradient_matrix.py
    shows it, once this is let through)."""
    for stage in (1, 2):
        source = write({"zero_optimization": {"stage": stage, "round_robin_gradients": True}})
        assert "zero_optimization.round_robin_gradients" in message(source)
    resolve(write({"zero_optimization": {"stage": 2, "round_robin_gradients": False}}))


@pytest.mark.parametrize("version", [(0, 18, 3), (0, 19, 3), (0, 19, 7)])
def test_a_deepspeed_that_loses_gradients_is_refused(write, monkeypatch, version):
    for part, number in zip(("major", "minor", "patch"), version, strict=True):
        monkeypatch.setattr(deepspeed, f"__version_{part}__", number)
    monkeypatch.setattr(deepspeed, "__version__", ".".join(map(str, version)))
    with pytest.raises(InputError, match=r"DeepSpeed 0\.1\d\.\d .*: pip install 'deepspeed>=0\.19\.8'$"):
        resolve(write({}))
