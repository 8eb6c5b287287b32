"""What is put in place of DeepSpeed's methods, against plain PyTorch: the order of an update's steps, the clipping of
each group, and the optimizer's settings. Every engine makes a few updates of a tiny model."""

import gc
import math
import weakref
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import deepspeed.ops
import deepspeed.runtime.zero.linear
import pytest
import torch
from deepspeed.runtime import torch_autocast
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from transformers import get_linear_schedule_with_warmup

from swep_ds.methods import noise_effect
from swep_ds.methods.base import MicroStep
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.checkpoints import Checkpoints
from swep_ds.training.ds_config import complete_ds_config
from swep_ds.training.engine import Engine, build_engine
from swep_ds.training.loop import run_update
from swep_ds.training.zero.files import read_state
from swep_ds.training.zero.flats import flats
from swep_ds.training.zero.foreach import _clip_without_reading
from swep_ds.training.zero.install import before_initialize
from swep_ds.training.zero.leftovers import forget_engine
from swep_ds.training.zero.weights import full_weights
from tests.support import ds_configs
from tests.support.tiny_batches import batch
from tests.support.tiny_objective import objective, split

UPDATES, ACCUMULATION = 4, 2
LIMIT, OWN_LIMIT = 0.5, 0.02  # below and amid the norms
METHOD = {"beta": 1e-3, "initialisation": "default", "noise_max_grad_norm": OWN_LIMIT, "noise_learning_rate": 3e-2}
TRAIN = {"micro_batch_size": 3, "gradient_accumulation_steps": ACCUMULATION, "learning_rate": 1e-2}
TRAIN |= {"max_grad_norm": LIMIT, "adam_betas": [0.7, 0.95], "adam_epsilon": 1e-3, "weight_decay": 0.1}
WORDS = "embeddings.word_embeddings.weight"
TRAIN |= {"warmup_fraction": 0.65}  # 2.6 of 4 updates, which is rounded to 3


STAGES = [*({"stage": stage} for stage in range(4)), {"stage": 2, "offload_optimizer": {"device": "cpu"}}]


def batches(update: int) -> list:
    return [batch(seed=ACCUMULATION * update + number, dtype=torch.float32) for number in range(ACCUMULATION)]


@pytest.fixture(scope="module")
def module():
    """In a process group."""
    with process_group():
        yield objective("swep", **METHOD).float()


def engine_of(module, folder: Path, zero: dict, train: dict = TRAIN, **more) -> Engine:
    sections = {"train": train, "method": {"name": "mle"}, "model": {"name": "tiny"}}
    recipe = Recipe.model_validate(sections | {"data": {"train": "none", "eval": {}}})
    source = ds_configs.write(folder, {"zero_optimization": {"stage3_param_persistence_threshold": 0, **zero}, **more})
    setup = {"world_size": 1, "backwards": len(module.parts("split")), "hidden_size": 16, "on_cpu": True}
    engine = build_engine(
        deepcopy(module), complete_ds_config(str(source), recipe.train, **setup), recipe.train, UPDATES
    )
    engine.train()
    return engine


@pytest.fixture(scope="module")
def expected(module) -> tuple[list[float], list[float], list[float]]:
    return plain_loop(module, LIMIT)


def plain_loop(module, limit: float) -> tuple[list[float], list[float], list[float]]:
    """By PyTorch alone: each update's loss, its learning rate and the norm of the noise generator's gradient."""
    module = deepcopy(module)
    model, noise = [*module.qa.parameters()], [*module.method.parameters()]
    groups = [{"params": model}, {"params": noise, "lr": METHOD["noise_learning_rate"]}][: 1 + bool(noise)]
    settings = {"betas": TRAIN["adam_betas"], "eps": TRAIN["adam_epsilon"], "weight_decay": TRAIN["weight_decay"]}
    optimizer = torch.optim.AdamW(groups, lr=TRAIN["learning_rate"], **settings)
    schedule = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=3, num_training_steps=UPDATES)
    losses, rates, norms = [], [], []
    for update in range(UPDATES):
        total = 0.0
        for micro_batch in batches(update):
            for loss, _, _ in split(module, micro_batch, update):
                (loss / ACCUMULATION).backward()
                total += loss.item() / ACCUMULATION
        losses.append(total)
        rates.append(schedule.get_last_lr()[0])
        torch.nn.utils.clip_grad_norm_(model, limit)
        norms.append(float(torch.nn.utils.clip_grad_norm_(noise, OWN_LIMIT)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses, rates, norms


@pytest.mark.parametrize(
    "zero",
    [*STAGES, {"stage": 3, "sub_group_size": 1000}],  # several flat tensors in a group
    ids=str,
)
def test_each_group_is_clipped_by_its_norm_as_in_a_plain_loop(module, expected, tmp_path, zero):
    """Where the steps of an update are exchanged, such as the two replacements in `install`, norm and losses differ."""
    engine = engine_of(module, tmp_path, zero)
    losses, rates, norms = [], [], []
    for update in range(UPDATES):
        rates.append(engine.learning_rate)
        seen = run_update(engine, iter(batches(update)), ACCUMULATION, MicroStep(update))
        losses.append(sum(float(part["loss"]) for part in seen) / ACCUMULATION)
        norms.append(engine.read()["noise_grad_norm"])
    engine.destroy()
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert rates == pytest.approx(expected[1])
    assert norms == pytest.approx(expected[2], rel=1e-3)
    assert max(norms) > OWN_LIMIT
    assert len(set(losses)) == UPDATES


@pytest.mark.parametrize("zero", STAGES, ids=str)
@pytest.mark.parametrize("method", ["swep", "mle"])
def test_frozen_words_have_no_gradient_no_moments_and_no_second_copy(module, tmp_path, zero, method):
    if method == "mle":
        module = objective("mle").float()
    module = deepcopy(module)
    words = module.qa.model.get_input_embeddings().weight.requires_grad_(False)
    size = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    engine = engine_of(module, tmp_path, zero)
    losses = []
    for update in range(UPDATES):
        seen = run_update(engine, iter(batches(update)), ACCUMULATION, MicroStep(update))
        losses.append(sum(float(part["loss"]) for part in seen) / ACCUMULATION)
        assert engine.module.qa.model.get_input_embeddings().weight.grad is None
    assert losses == pytest.approx(plain_loop(module, LIMIT)[0], rel=1e-5)
    moments = [state["exp_avg"].numel() for state in engine.deepspeed.basic_optimizer.state.values()]
    assert size <= sum(moments) == sum(flat.weights.numel() for flat in flats(engine.deepspeed)) < size + 4
    made = Checkpoints(tmp_path, 1, {}, {"windows": 1, "micro_batch_size": 1, "gradient_accumulation_steps": 1})
    made.save(engine, TrainState(1))
    states = [read_state(file) for file in made.tag(1).glob("*.pt")]
    assert not any(name.endswith(WORDS) for state in states for name in state.get("module", ()))
    weights = dict(full_weights(engine, engine.module, masters=True))
    engine.destroy()
    assert torch.equal(weights[f"qa.model.bert.{WORDS}"], words)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_limit_of_0_clips_nothing(module, tmp_path, stage):
    engine = engine_of(module, tmp_path, {"stage": stage}, TRAIN | {"max_grad_norm": 0.0})
    losses = []
    for update in range(UPDATES):
        seen = run_update(engine, iter(batches(update)), ACCUMULATION, MicroStep(update))
        losses.append(sum(float(part["loss"]) for part in seen) / ACCUMULATION)
    engine.destroy()
    assert losses == pytest.approx(plain_loop(module, math.inf)[0], rel=1e-5)


def test_a_scaled_gradient_is_unscaled_and_then_clipped():
    """As in fp16: its norm is multiplied by the loss scale, and the limit is not."""
    scale = 8.0
    gradient = torch.linspace(-1.0, 2.0, 7)
    scaled = gradient * scale
    weight = torch.nn.Parameter(torch.zeros(7))
    for limit in (0.5, 100.0):
        weight.grad = gradient.clone()
        mine = scaled.clone()
        _clip_without_reading(SimpleNamespace(loss_scale=scale, clip_grad=limit), [mine], scaled.norm())
        torch.nn.utils.clip_grad_norm_(weight, limit)
        torch.testing.assert_close(mine, weight.grad)


def test_a_parameter_without_a_gradient_counts_as_0_in_memory_that_stays(module, tmp_path):
    engine = engine_of(module, tmp_path, {"stage": 1})
    engine.flat.stays = True
    for trained in ({0, 1}, {1}):  # which parameters of each group have a gradient in this update
        for group in engine.flat.groups:
            for number, parameter in enumerate(group.parameters):
                parameter.grad = torch.ones_like(parameter) if number in trained else None
        engine.flat.collect()
        for group in engine.flat.groups:
            assert [place.abs().max().item() for place in group.places[:3]] == [0 in trained, 1, 0][: len(group.places)]
        engine.flat.release()
    engine.destroy()


def test_the_flag_of_an_autocast_engine_is_taken_back(monkeypatch):
    monkeypatch.setattr(torch_autocast, "TORCH_AUTOCAST_INITIALIZED", True)
    forget_engine()
    assert not torch_autocast.is_autocast_initialized()


def test_numbers_do_not_depend_on_the_kind_of_an_earlier_engine(module, tmp_path):
    """DeepSpeed marks its modules under torch_autocast, and leaves PyTorch's `linear` replaced after ZeRO-3."""

    def numbers(stage: int, precision: str) -> list[float]:
        train = TRAIN | {"precision": precision}
        engine = engine_of(module, tmp_path, {"stage": stage}, train, communication_data_type="bf16")
        seen = []
        for update in range(2):
            parts = run_update(engine, iter(batches(update)), ACCUMULATION, MicroStep(update))
            seen += [engine.read()["noise_grad_norm"], *(float(part["loss"]) for part in parts)]
        engine.destroy()
        return seen

    linear = torch._C._nn.linear
    torch.nn.functional.linear = deepspeed.runtime.zero.linear.zero3_linear_wrap  # left by a Trainer before
    forget_engine()
    assert torch.nn.functional.linear is linear
    alone = {stage: numbers(stage, "fp32") for stage in (0, 1, 2)}
    for stage, precision in ((1, "autocast"), (2, "autocast"), (3, "fp32")):
        numbers(stage, precision)
        assert torch.nn.functional.linear is linear
        assert {stage: numbers(stage, "fp32") for stage in (0, 1, 2)} == alone


def test_a_logged_update_of_zero3_gathers_the_table_once_more(module, tmp_path, monkeypatch):
    """However many parts the vocabulary is compared in."""
    monkeypatch.setattr(noise_effect, "CHUNK", 8)
    name = "_PartitionedParameterCoordinator__all_gather_params"
    gather = getattr(PartitionedParameterCoordinator, name)
    gathered = []

    def note(self, parameters, forward):
        gathered.extend(map(id, parameters))
        gather(self, parameters, forward)

    monkeypatch.setattr(PartitionedParameterCoordinator, name, note)
    engine = engine_of(module, tmp_path, {"stage": 3, "stage3_max_reuse_distance": 0})
    table = id(engine.module.qa.words.weight)
    counts = []
    for update, logged in enumerate((False, False, True)):
        gathered.clear()
        run_update(engine, iter(batches(update)), ACCUMULATION, MicroStep(update, measure=logged))
        counts.append(gathered.count(table))
    engine.destroy()
    first, usual, logged = counts  # the order of modules is new in the first update, and in a logged one
    assert usual == 2 * ACCUMULATION  # in the clean and in the noisy pass
    assert logged == first + ACCUMULATION


def test_a_weight_of_zero3_is_freed_without_its_engine(module, tmp_path):
    engine = engine_of(module, tmp_path, {"stage": 3})
    for update in range(2):  # from the second on DeepSpeed looks up what to release
        run_update(engine, iter(batches(update)), ACCUMULATION, MicroStep(update))
    weight = weakref.ref(next(engine.module.parameters()))
    engine.destroy()
    del engine
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("stage", [0, 1])
def test_a_checkpoint_is_read_from_a_folder_of_any_name_of_which_nothing_stays_mapped(module, tmp_path, stage):
    folder = tmp_path / "runs [1]*"
    made = Checkpoints(folder, 1, {}, {"windows": 1, "micro_batch_size": 1, "gradient_accumulation_steps": 1})
    engine = engine_of(module, tmp_path, {"stage": stage})
    made.save(engine, TrainState(1))
    before = [parameter.detach().clone() for parameter in engine.module.parameters()]
    run_update(engine, iter(batches(0)), ACCUMULATION, MicroStep(0))
    run_update(engine, iter(batches(1)), ACCUMULATION, MicroStep(1))  # the first one's learning rate is 0
    assert not all(map(torch.equal, engine.module.parameters(), before))
    made.load(engine, [made.tag(1)])
    assert all(map(torch.equal, engine.module.parameters(), before))
    assert "update-00000001" not in Path("/proc/self/maps").read_text()  # the next save deletes it
    engine.destroy()


def test_on_a_cpu_nothing_is_compiled(monkeypatch):
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", True)
    before_initialize()
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
