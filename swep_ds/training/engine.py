"""The DeepSpeed engine around an objective: an ordinary one, with the recipe's optimizer and schedule."""

from contextlib import AbstractContextManager
from typing import Any

import deepspeed
import torch
from transformers.optimization import Adafactor

from swep_ds.errors import NOT_OF_THE_INPUT, parsing
from swep_ds.methods.objective import Objective
from swep_ds.recipe import TrainSection
from swep_ds.training.checkpoints import Writer
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.sharding import shard


def build_engine(objective: Objective, config: dict[str, Any], train: TrainSection, updates: int):
    """DeepSpeed engine with the recipe's optimizer and schedule.

    AdamW is PyTorch's, which compiles nothing, unless the ds_config names one of its own (`"optimizer": {"type":
    "AdamW", ...}` is DeepSpeed's fused or CPU Adam). Adafactor is transformers', at the recipe's learning rate and
    without its own schedule, as T5 is fine-tuned.

    Args:
        config: from `resolve_ds_config`.
        updates: optimizer steps of the whole run; with linear decay the learning rate reaches 0 after the last.

    Raises:
        InputError: on all ranks, of settings that DeepSpeed refuses only when it builds the engine.
    """
    config = dict(config)
    if zero_stage(config) == 3:
        with _refusals():
            shard(objective, config)
    objective.defer_embedding_grad = zero_stage(config) < 2
    optimizer, parameters = None, [p for p in objective.parameters() if p.requires_grad]
    if train.optimizer == "adafactor":
        optimizer = Adafactor(
            parameters,
            lr=train.learning_rate,
            weight_decay=train.weight_decay,
            scale_parameter=False,
            relative_step=False,
        )
    elif "optimizer" not in config:
        optimizer = torch.optim.AdamW(
            parameters,
            lr=train.learning_rate,
            betas=train.adam_betas,
            eps=train.adam_epsilon,
            weight_decay=train.weight_decay,
            fused=True,  # one sweep over memory in place of one per operation, on CPU as on GPU
        )
        if "offload_optimizer" in config.get("zero_optimization", {}):
            config["zero_force_ds_cpu_optimizer"] = False  # else DeepSpeed refuses any optimizer but its own
    with _refusals():
        engine, *_ = deepspeed.initialize(
            model=objective,
            model_parameters=parameters,
            optimizer=optimizer,
            lr_scheduler=lambda inner: schedule(inner, train.schedule, updates, round(train.warmup_fraction * updates)),
            config=config,
        )
    engine.checkpoint_engine = writer = Writer(engine)
    # DeepSpeed's looks for a pattern, to which brackets in a folder's name belong
    engine._get_all_ckpt_names = lambda folder, tag: [engine._get_ckpt_name(folder, tag)]
    engine._copy_recovery_script = writer.keeping_fault(engine._copy_recovery_script)
    return engine


def _refusals() -> AbstractContextManager[None]:
    """DeepSpeed's refusal of a ds_config as an `InputError`: all ranks have the same file, and meet it alike."""
    what, fix = "ds_config: DeepSpeed builds no engine of it", "fix the field it names, or take a shipped file"
    return parsing(what, fix, but=NOT_OF_THE_INPUT)


def schedule(
    optimizer: torch.optim.Optimizer, kind: str, updates: int, warmup: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Factor of the learning rate at update u: u / warmup, then 1 or, linear, (updates - u) / (updates - warmup)."""

    def factor(update: int) -> float:
        if update < warmup:
            return update / warmup
        if kind == "constant":
            return 1.0
        return max(0.0, (updates - update) / max(1, updates - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
