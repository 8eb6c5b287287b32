"""Updates as the engine, a loop of plain PyTorch, transformers' Trainer and the published code make them."""

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Thread
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedModel, Trainer, TrainingArguments

from swep_ds import ranks
from swep_ds.common.errors import as_input_error
from swep_ds.data.batches import Batch
from swep_ds.methods.base import MicroStep, PassState
from swep_ds.methods.objective import Objective
from swep_ds.models.backends import HALVES, tf32_products, without_cudnn_attention
from swep_ds.training.engine import Engine
from swep_ds.training.loop import run_update
from swep_ds.training.settings import TrainSection

PRIOR_VARIANCE = math.sqrt(0.1 / 0.9)  # the published code's
Update = Callable[[Batch, int], None]


class EngineUpdate:
    """An update of a method under the engine, as the training loop runs it; the engine's accumulation is 1 batch."""

    def __init__(self, engine: Engine):
        engine.train()
        self.engine = engine

    def __call__(self, batch: Batch, number: int) -> None:
        run_update(self.engine, iter([batch]), 1, MicroStep(number))


def engine_of(update: Update) -> Engine | None:
    """None: no engine makes this update."""
    return update.engine if isinstance(update, EngineUpdate) else None


class Published(nn.Module):
    """The published code's three-pass update of `qa`, a model of `swep_ds.models`, as an objective of `plain_update`.

    h comes from a pass of its own, without gradient but with dropout; then the noisy pass, then the clean one; the
    losses are summed and go backward once. Noise from torch.randn; the KL is a mean over the batch's tokens. Only AdamW
    is faster than there: it is fused.
    """

    def __init__(self, qa: nn.Module):
        super().__init__()
        width = qa.embedding_size
        self.qa = qa
        self.method = nn.Sequential(nn.Linear(qa.hidden_size, width), nn.ReLU(), nn.Linear(width, 2 * width))

    def parts(self, execution: str) -> list[None]:
        """One, whatever the execution: its losses go backward together."""
        return [None]

    def forward(self, batch: Batch, step: MicroStep | None = None) -> tuple[Tensor, PassState, dict[str, Tensor]]:
        """The loss, in the form of `Objective.forward`."""
        with torch.no_grad():
            hidden = self.qa(self.qa.embed(batch), batch, hidden=True).hidden
        mu, log_variance = self.method(hidden).chunk(2, -1)
        embeddings = self.qa.embed(batch)
        sigma = torch.exp(0.5 * log_variance)
        noisy = self.qa(embeddings * (mu + sigma * torch.randn_like(mu)), batch).nll.mean()
        ratio = log_variance.exp() / PRIOR_VARIANCE
        kl_NT = 0.5 * (ratio + (mu - 1) ** 2 / PRIOR_VARIANCE - 1 - ratio.log()).sum(-1)
        kl = (kl_NT * batch.attention_mask).sum() / batch.attention_mask.sum()
        clean = self.qa(self.qa.embed(batch), batch).nll.mean()
        return 0.5 * (clean + noisy) + kl, PassState(), {}


def plain_update(objective: Objective | Published, train: TrainSection) -> Callable[..., None]:
    """The passes of an objective in plain PyTorch: clip_grad_norm_ and fused AdamW, in bf16 on weights of bf16. The
    update also takes a `phase`, as `run_update`. In fp16 it has no loss scale: only its time means something."""
    objective.to(ranks.device(), HALVES.get(train.precision)).train()
    settings = {"betas": train.adam_betas, "eps": train.adam_epsilon, "weight_decay": train.weight_decay}
    optimizer = torch.optim.AdamW(objective.parameters(), lr=train.learning_rate, **settings, fused=True)
    autocast = torch.autocast(ranks.device().type, torch.bfloat16, enabled=train.precision == "autocast")
    products = tf32_products if train.precision == "tf32" else nullcontext

    @without_cudnn_attention()
    def update(batch: Batch, number: int, phase: Callable = nullcontext) -> None:
        carried = PassState()
        for part in objective.parts(train.execution):
            with phase("forward"), autocast, products():
                loss, carried, _ = objective(batch, MicroStep(number, 0.0, part, carried))
            with phase("backward"), products():
                loss.backward()
            del loss  # frees the pass's graph before the next forward
        with phase("step"):
            clip_grad_norm_(objective.parameters(), train.max_grad_norm or float("inf"))
            optimizer.step()
            optimizer.zero_grad()

    return update


def trainer_update(model: PreTrainedModel, train: TrainSection) -> Update:
    """MLE by Hugging Face's Trainer as it is, which gets a batch when it is its turn; with bf16 and autocast it keeps
    weights of float32. Its loop runs in a thread of its own, which ends with the process.

    Raises InputError: it refuses a setting, or accelerate is not installed.
    """
    batches: SimpleQueue[Batch] = SimpleQueue()
    ended: SimpleQueue[Exception | None] = SimpleQueue()

    def loader() -> Iterator[dict[str, Tensor]]:
        while True:
            batch = batches.get()
            inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
            if batch.token_type_ids is not None:
                inputs["token_type_ids"] = batch.token_type_ids
            yield inputs | {"start_positions": batch.start_position, "end_positions": batch.end_position}
            ended.put(None)  # it asks for the next one

    fault = as_input_error("--ways trainer: Hugging Face's Trainer cannot start", "leave this way out")
    with fault, mock.patch.dict(os.environ):
        os.environ.pop("LOCAL_RANK", None)  # with DeepSpeed's process group it would wrap the model in DDP
        arguments = TrainingArguments(
            output_dir=tempfile.gettempdir(),  # nothing is saved
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            max_steps=10**9,  # it never ends
            learning_rate=train.learning_rate,
            adam_beta1=train.adam_betas[0],
            adam_beta2=train.adam_betas[1],
            adam_epsilon=train.adam_epsilon,
            weight_decay=train.weight_decay,
            max_grad_norm=train.max_grad_norm,
            bf16=train.precision in ("bf16", "autocast"),
            fp16=train.precision == "fp16",
            tf32=True if train.precision == "tf32" else None,
            use_cpu=ranks.device().type == "cpu",
        )
        arguments._n_gpu = 1  # or it would use all that it sees
        trainer = Trainer(model=model, args=arguments)
        trainer.get_train_dataloader = loader

    def run() -> None:
        try:
            trainer.train()
        except Exception as error:  # `update` raises it
            ended.put(error)

    Thread(target=run, daemon=True).start()

    def update(batch: Batch, number: int) -> None:
        batches.put(batch)
        if (error := ended.get()) is not None:
            raise error

    return update
