"""The DeepSpeed engine around an objective: an ordinary engine with the recipe's optimizer and schedule.

What DeepSpeed 0.19 needs beyond that is in this file: `run_idle_networks`, `step_engine` and the checkpoint writer;
in `groups.py`, the parameter groups; and in `foreach.py`, a step of few operations.
"""

import logging
from contextlib import AbstractContextManager
from typing import Any

import deepspeed
import torch
from transformers.optimization import Adafactor, get_scheduler

from swep_ds import ranks
from swep_ds.common.errors import NOT_OF_THE_INPUT, TrainingDiverged, as_input_error
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.models.backends import float32_products, without_cudnn_attention
from swep_ds.training.checkpoints import Writer
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.foreach import use_foreach
from swep_ds.training.groups import watch_norms
from swep_ds.training.metrics import DIVERGED
from swep_ds.training.settings import TrainSection
from swep_ds.training.sharding import shard

log = logging.getLogger(__name__)
SCHEDULES = {"linear": "linear", "constant": "constant_with_warmup"}  # train.schedule -> its name in transformers


def build_engine(objective: Objective, config: dict[str, Any], train: TrainSection, updates: int):
    """Builds the engine.

    AdamW is PyTorch's, which compiles nothing, unless the ds_config names an optimizer (`"optimizer": {"type": "AdamW",
    ...}` is DeepSpeed's fused or CPU Adam). Adafactor is transformers', at the recipe's learning rate and without its
    own schedule, as T5 is fine-tuned. A method's own parameters, if it has any, are the optimizer's second group, and
    `engine.group_norms` has the norms of their gradients. With precision tf32 the engine's forwards and backwards
    compute in TF32, in training and evaluation, and nothing else in the process does. None of them takes cuDNN's
    attention (`without_cudnn_attention`).

    Args:
        config: from `resolve_ds_config`.
        updates: optimizer steps of the whole run; with linear decay the learning rate reaches 0 after the last.

    Raises:
        InputError: DeepSpeed refuses a setting; on all ranks.
    """
    config, stage = dict(config), zero_stage(config)
    run_idle_networks(objective)
    if stage == 3:
        with _refusals():
            shard(objective, config)
    if stage == 0 and objective.method.max_grad_norm is not None:
        config["gradient_clipping"] = 0.0  # `GroupNorms` clips
    optimizer, groups = None, objective.parameter_groups()
    if train.optimizer == "adafactor":
        optimizer = Adafactor(
            groups,
            lr=train.learning_rate,
            weight_decay=train.weight_decay,
            scale_parameter=False,
            relative_step=False,
        )
    elif "optimizer" not in config:
        optimizer = torch.optim.AdamW(
            groups,
            lr=train.learning_rate,
            betas=train.adam_betas,
            eps=train.adam_epsilon,
            weight_decay=train.weight_decay,
            fused=True,  # one pass over memory instead of one per operation, on CPU and GPU
        )
        if "offload_optimizer" in config.get("zero_optimization", {}):
            config["zero_force_ds_cpu_optimizer"] = False  # else DeepSpeed accepts only its own optimizer
    if stage == 0 and config["bf16"]["enabled"] and "optimizer" not in config and ranks.is_main():
        log.warning(
            "bf16 at ZeRO-0: DeepSpeed updates one weight tensor at a time, which leaves a GPU idle: use "
            "--ds_config zero1"
        )
    with _refusals():
        engine, *_ = deepspeed.initialize(
            model=objective,
            model_parameters=groups,
            optimizer=optimizer,
            lr_scheduler=lambda inner: get_scheduler(
                SCHEDULES[train.schedule], inner, round(train.warmup_fraction * updates), updates
            ),
            config=config,
        )
    engine.coalesces = train.coalesce_grad_reduction and stage >= 2  # below, gradients are reduced once anyway
    if engine.coalesces:
        engine.set_gradient_accumulation_boundary(True)  # `run_update` steps once, after all micro-steps
    use_foreach(engine)
    switches = [without_cudnn_attention(), *([float32_products("tf32")] if train.precision == "tf32" else [])]
    for inside in switches:
        engine.forward, engine.backward = inside(engine.forward), inside(engine.backward)
    engine.group_norms = watch_norms(engine, objective, train.max_grad_norm)
    engine.checkpoint_engine = writer = Writer(engine)
    # DeepSpeed globs for the files, and brackets in a folder's name would be part of the pattern
    engine._get_all_ckpt_names = lambda folder, tag: [engine._get_ckpt_name(folder, tag)]
    engine._copy_recovery_script = writer.keeping_fault(engine._copy_recovery_script)
    return engine


def _refusals() -> AbstractContextManager[None]:
    """Turns DeepSpeed's refusal of a ds_config into an `InputError`. All ranks have the same file, so all raise."""
    what, fix = "ds_config: DeepSpeed cannot build an engine from it", "fix the field it names, or use a shipped file"
    return as_input_error(what, fix, but=NOT_OF_THE_INPUT)


def run_idle_networks(objective: Objective) -> None:
    """Gives the method's parameters a gradient of zero in each micro-step that perturbs nothing, such as a clean pass.

    ZeRO-3 overwrites its gradient buffer only in an update's first micro-step: a parameter without a gradient there
    would add to the last update's gradient. The method's networks run before the encoder, as they do in a perturbation:
    ZeRO-3 keeps weights gathered between a forward and its backward only if all micro-steps call the modules in the
    same order.
    """
    networks, idle, zero = [*objective.method.children()], False, None

    def look_up(_, arguments: tuple) -> None:
        nonlocal idle
        steps = [value for value in arguments if isinstance(value, MicroStep)]  # none where the engine predicts
        idle = bool(steps) and not any(pass_.perturb for pass_, _ in objective.passes(*steps))

    def run(qa, arguments: tuple) -> None:
        nonlocal idle, zero
        if idle:
            h = arguments[0].new_zeros(1, 1, qa.hidden_size)
            idle, zero = False, sum(0.0 * network(h).float().sum() for network in networks)

    def add(_, arguments: tuple, output: tuple) -> tuple | None:
        nonlocal zero
        if zero is None:
            return None
        (loss, *rest), added, zero = output, zero, None
        return (loss + added, *rest)

    if networks:
        objective.register_forward_pre_hook(look_up)
        objective.qa.register_forward_pre_hook(run)
        objective.register_forward_hook(add)


def step_engine(engine) -> None:
    """DeepSpeed's step; raises TrainingDiverged where fp16's loss scale cannot be lowered any further."""
    try:
        engine.step()
    except Exception as error:
        if "loss scale already at minimum" not in str(error):
            raise
        raise TrainingDiverged(f"every fp16 gradient overflows, at the smallest loss scale: {DIVERGED}") from None
