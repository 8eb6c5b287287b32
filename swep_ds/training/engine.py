"""DeepSpeed's engine around an objective, with the recipe's optimizer and schedule. `zero/install.py` has what is
replaced inside DeepSpeed, and the order of an update's steps."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor
from torch.optim import Optimizer
from transformers.optimization import Adafactor, get_scheduler

from swep_ds import ranks
from swep_ds.common.errors import InputError, TrainingDiverged, as_input_error
from swep_ds.data.batches import Batch
from swep_ds.data.normalisation import LossNormalisation
from swep_ds.methods.base import MicroStep, PassState
from swep_ds.methods.objective import Objective
from swep_ds.models.backends import tf32_products, without_cudnn_attention
from swep_ds.models.trials import all_finite
from swep_ds.training.ds_config import zero_stage
from swep_ds.training.graphs import GraphRecorder, Graphs, can_replay
from swep_ds.training.settings import TrainSection
from swep_ds.training.zero.flats import kept_part
from swep_ds.training.zero.install import before_initialize, fp16_numbers, install
from swep_ds.training.zero.leftovers import forget_engine
from swep_ds.training.zero.weights import shard

SCHEDULES = {"linear": "linear", "constant": "constant_with_warmup"}  # train.schedule -> its name in transformers


class Engine:
    """An objective, `module`, in training, as DeepSpeed's engine carries it out.

    With precision tf32 only its forwards and backwards compute in TF32. None takes cuDNN's attention. `parts` are those
    of `Objective.parts`. If it `coalesces`, gradients are reduced once an update. So are those of the flat gradient,
    `flat`, which ZeRO-1 has where the optimizer is not offloaded. If it `steps_once`, `step` is called once an update
    (`run_update`). `writer` writes its checkpoints.
    """

    def __init__(self, engine: deepspeed.DeepSpeedEngine, train: TrainSection):
        self.deepspeed = engine
        self.train = engine.train
        self.eval = engine.eval
        self.module = engine.module
        self.parts = self.module.parts(train.execution)
        accumulation = engine.gradient_accumulation_steps() // len(self.parts)
        self.normalisation = LossNormalisation(ranks.world_size(), accumulation, len(self.parts))
        self.stage = engine.zero_optimization_stage()
        self.coalesces = train.coalesce_grad_reduction and self.stage >= 2  # below, gradients are reduced once anyway
        self.writer, self.flat, self._norms = install(engine, train.max_grad_norm, self.module.method.max_grad_norm)
        self.steps_once = self.coalesces or self.flat is not None
        if self.steps_once:
            engine.set_gradient_accumulation_boundary(True)
        self._precision = train.precision
        self._loss_scale = torch.ones((), device=ranks.device())  # fp16's; here a CUDA graph reads it anew
        self._products = nullcontext
        if train.precision == "tf32":
            self._products = tf32_products
        self.graphs = None
        if train.cuda_graphs and self.flat and ranks.device().type == "cuda" and can_replay(self.module):
            self.graphs = Graphs(self, GraphRecorder())

    def destroy(self) -> None:
        self.deepspeed.destroy()
        forget_engine()

    @without_cudnn_attention()
    def __call__(self, batch: Batch, step: MicroStep | None = None) -> Any:
        """`Objective.forward`: a micro-step's loss, or predictions."""
        with self._products():
            if self.flat is None or step is None:
                return self.deepspeed(batch, step)
            with torch.autocast(ranks.device().type, torch.bfloat16, enabled=self.deepspeed.torch_autocast_enabled()):
                return self.module(batch, step)

    @without_cudnn_attention()
    def backward(self, loss: Tensor) -> None:
        """The backward of one of a micro-batch's `parts`."""
        loss = loss * self.normalisation.backwards
        with self._products():
            if self.flat is None:
                self.deepspeed.backward(loss)  # which divides by `engine_steps`
            else:
                loss = loss / self.normalisation.engine_steps
                if self._precision == "fp16":
                    loss = loss * self._loss_scale
                loss.backward()
                self.flat.collect()

    def accumulate(self, batch: Batch, step: MicroStep, phase: Callable[[str], AbstractContextManager] = nullcontext):
        """What `run_passes` does and returns, by a CUDA graph where there is one."""
        if self._precision == "fp16" and self.flat:
            self._loss_scale.fill_(fp16_numbers(self.deepspeed)["loss_scale"])
        if self.graphs:
            with phase("forward"):
                seen = self.graphs.run(batch, step)
            if seen is not None:
                return seen
        return self.run_passes(batch, step, phase)

    def run_passes(
        self, batch: Batch, step: MicroStep, phase: Callable[[str], AbstractContextManager] = nullcontext
    ) -> dict[str, Tensor]:
        """The forwards and backwards of a micro-batch, one of each for each of its parts. Returns its statistics
        (`Objective.loss`) with its "loss". `phase` is entered with the name of each phase."""
        carried = PassState()
        seen = {"loss": torch.zeros((), device=batch.input_ids.device)}
        for part in self.parts:
            with phase("forward"):
                loss, carried, measured = self(batch, replace(step, part=part, carried=carried))
            with phase("backward"):
                self.backward(loss)
            if not self.steps_once:
                with phase("step"):
                    self.step()
            seen |= measured | {"loss": seen["loss"] + loss.detach()}
            del loss  # frees the pass's graph before the next forward
        return seen

    def step(self) -> None:
        """Ends a micro-step; the last one of an update changes the weights.

        Raises TrainingDiverged: fp16's loss scale cannot be lowered any further.
        """
        try:
            if self.flat is None:
                self.deepspeed.step()
                return
            self.flat.hand_over()
            self.deepspeed.step()
            self.flat.release()
        except Exception as error:
            if "loss scale already at minimum" not in str(error):
                raise
            fix = "lower train.learning_rate, or set train.precision to bf16 or autocast"
            raise TrainingDiverged(f"every fp16 gradient overflows, at the smallest loss scale: {fix}") from None

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update; `step` advances it."""
        return self.deepspeed.get_lr()[0]

    @property
    def grad_norm(self) -> Tensor | float | None:
        """The latest gradient's norm before clipping; infinite if fp16 skipped the update, None if there is none."""
        return self.deepspeed.get_global_grad_norm()

    def read(self) -> dict[str, float]:
        """Numbers of the latest update, for metrics.jsonl; infinite norms if fp16 skipped it."""
        numbers = {}
        if self.grad_norm is not None:
            numbers["grad_norm"] = float(self.grad_norm)
        if self._norms:
            numbers["noise_grad_norm"] = self._norms.method_norm()
        if self._precision == "fp16":
            numbers |= fp16_numbers(self.deepspeed)
        return numbers

    def has_finite_weights(self) -> bool:
        """Whether the weights are finite, at ZeRO-3 this rank's part: no later loss shows those of the last update."""
        return all_finite(map(kept_part, self.module.parameters()))


def build_engine(objective: Objective, config: dict[str, Any], train: TrainSection, updates: int) -> Engine:
    """Builds the engine, by a `complete_ds_config`, of a run of so many `updates`: with linear decay the learning rate
    reaches 0 after the last. A method's own parameters, if it has any, are the optimizer's last group.

    Raises InputError: DeepSpeed refuses a setting; on all ranks.
    """
    config = dict(config)
    stage = zero_stage(config)
    to_disk = config.get("zero_optimization", {}).get("offload_param", {}).get("device") == "nvme"
    if to_disk and not get_accelerator().create_op_builder("AsyncIOBuilder").is_compatible():
        raise InputError(
            "zero_optimization.offload_param: offload to disk needs DeepSpeed's operator async_io, which cannot be "
            "built here: install libaio's headers (Debian: libaio-dev), or use --ds_config zero3_offload"
        )
    if stage == 0 and objective.method.max_grad_norm is not None:
        config["gradient_clipping"] = 0.0  # `GroupNorms` clips
    if "offload_optimizer" in config.get("zero_optimization", {}):
        config["zero_force_ds_cpu_optimizer"] = False  # else DeepSpeed accepts only its own optimizer

    def schedule(inner: Optimizer):
        return get_scheduler(SCHEDULES[train.schedule], inner, round(train.warmup_fraction * updates), updates)

    fix = "fix the field it names, or use a shipped file"
    others = (RuntimeError, MemoryError)  # PyTorch's when a device's memory is full or a rank is gone
    # all ranks have the same file, so all raise
    with as_input_error("ds_config: DeepSpeed cannot build an engine from it", fix, but=others):
        before_initialize()
        if stage == 3:
            shard(objective, config)
        groups = objective.parameter_groups()
        optimizer = _optimizer(groups, train)
        engine, *_ = deepspeed.initialize(
            model=objective, model_parameters=groups, optimizer=optimizer, lr_scheduler=schedule, config=config
        )
    return Engine(engine, train)


def _optimizer(groups: list[dict[str, Any]], train: TrainSection) -> Optimizer:
    """PyTorch's AdamW, which compiles nothing, or transformers' Adafactor without its own schedule, as for T5."""
    if train.optimizer == "adafactor":
        fixed = {"scale_parameter": False, "relative_step": False}
        return Adafactor(groups, lr=train.learning_rate, weight_decay=train.weight_decay, **fixed)
    settings = {"betas": train.adam_betas, "eps": train.adam_epsilon, "weight_decay": train.weight_decay}
    # fused: one pass over memory instead of one per operation, on CPU and GPU
    return torch.optim.AdamW(groups, lr=train.learning_rate, fused=True, **settings)
