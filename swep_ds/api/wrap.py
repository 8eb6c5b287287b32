"""A method around any question-answering model, for training loops other than this package's.

`wrap` gives a module that computes in one forward what an update of the engine computes with `train.execution: joint`:
the same passes, the same noise, the same loss.
"""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from swep_ds.common.errors import InputError
from swep_ds.data.batches import IGNORED, Batch
from swep_ds.data.normalisation import LossNormalisation
from swep_ds.kernels.philox import MASK
from swep_ds.methods import build
from swep_ds.methods.base import Method, MicroStep, without_dropout
from swep_ds.methods.objective import NO_NOISE, Objective
from swep_ds.methods.settings import Settings
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.hub import tells_types_apart
from swep_ds.models.outputs import QAModel, without_peft
from swep_ds.models.seq2seq import Seq2SeqQA
from swep_ds.models.trials import check_takes_embeddings, depends_on_padding
from swep_ds.ranks import accelerator
from swep_ds.training.zero.flats import is_partitioned

log = logging.getLogger(__name__)
MULTIPLIER = 6364136223846793005  # from Knuth's MMIX generator
SPAN = ("start_positions", "end_positions")
TARGET = ("labels",)
TIMES = (0, 0.25, 0.5, 0.75, 0.999)  # shares of a training, at which weights that change are noticed


@dataclass
class RobustOutput(ModelOutput):
    """In training: the method's loss, 0-dim, and detached 0-dim metrics: "nll_clean", "kl_per_window" (nats) ..."""

    loss: Tensor | None = None
    metrics: dict[str, Tensor] | None = None


class Robust(nn.Module):
    """What `wrap` returns. Give all of its `parameter_groups` to the optimizer. `state_dict` holds what an exact
    continuation needs. Save the bare model from `model`. `update`, from 0, keys the noise; `restart` sets it."""

    def __init__(self, model: nn.Module, settings: Settings, seed: int, updates: int | None):
        super().__init__()
        check_offered(settings)
        qa = _interface(model)
        table = model.get_input_embeddings().weight
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs, too
            method = build(settings, qa.hidden_size, qa.embedding_size)
            # steps of 3e-5 are lost on weights in half precision
            method.to(table.device, torch.promote_types(table.dtype, torch.float32))
        weights = {tuple((part.name, part.weight, float(part.kl_weight)) for part in method.passes(at)) for at in TIMES}
        if updates is None and len(weights) > 1:
            raise InputError(f"method {settings.name}: its weights change over training: give the number of updates")
        self.objective = Objective(qa, method, seed)
        _warn_of_frozen(qa.base)
        self.updates = updates
        self._labels = TARGET if isinstance(qa, Seq2SeqQA) else SPAN
        self._checked = False
        self._calls = 0  # in an update, by `begin_update`; 0: each call is an update
        self.restart(0)

    def restart(self, update: int) -> None:
        """Goes to the start of that update, and gives up one that has begun."""
        self.update = update
        self._calls_left = 0
        self._watched: list[Tensor] = []
        self._shares: Tensor | None = None  # a window's and a token's weight in the loss, by `begin_update`

    @property
    def model(self) -> nn.Module:
        """The model that was wrapped, itself."""
        return self.objective.qa.model

    @property
    def method(self) -> Method:
        return self.objective.method

    @property
    def config(self):
        return self.model.config  # for Accelerate and DeepSpeed

    def parameter_groups(self) -> list[dict]:
        """For an optimizer: the model's trained parameters, then the method's with `noise_learning_rate`, if set."""
        return self.objective.parameter_groups()

    # torch.compile takes a module's numbers for constants: it would compile anew for each `update`
    @torch.compiler.disable(recursive=False)
    def forward(self, *args, **inputs):
        """In training a `RobustOutput`, whose loss is the mean over the call's windows, or after `begin_update` the
        call's part of the mean over the update's windows; in evaluation what the model returns.

        Inputs are as the model takes them: input_ids [N, T] int64, attention_mask, token_type_ids; to train also
        start_positions and end_positions [N], or labels [N, K] with -100 at padding; and sample_id [N] int64, by
        default `sample_ids`. A window does not count if either position is outside of the batch's width, such as -100,
        which transformers' heads train towards position 0; the metric `left_out` is the share of such windows.

        Raises InputError: in training, an input is unknown or has no name; the model computes something else from
        embeddings than from their ids; or there are more than `updates` updates, or calls than `begin_update` got.
        """
        if not self.training:
            inputs.pop("sample_id", None)
            return self.model(*args, **inputs)
        if args:
            raise InputError("inputs: have no names: to train, call robust(**batch) or robust(input_ids=ids, ...)")
        if self._calls and not self._calls_left:
            raise InputError(f"begin_update: its {self._calls} calls are made: call it again, or eval() to validate")
        batch = self._batch(inputs)
        is_first = not self._checked
        if is_first:
            self._check(batch)
        if self.updates is not None and self.update >= self.updates:
            raise InputError(f"updates {self.updates}: all are done: give wrap the number of calls, or begin_updates")
        shares = self._shares
        if shares is None:  # equal ones, which add up to 1 over the batch
            shares = LossNormalisation().weight(_counts(batch).clamp(min=1))
        batch = batch._replace(weight=batch.weight * shares[0], token_weight=batch.weight * shares[1])
        progress = self.update / self.updates if self.updates else 0.0
        loss, _, metrics = self.objective(batch, MicroStep(self.update, progress))
        unperturbed = metrics.pop("unperturbed", 0)
        if is_first and unperturbed == 1:  # once: reading it waits for the device
            log.warning("method, in the first call: %s", NO_NOISE)
        metrics["left_out"] = (batch.weight == 0).double().mean()
        if self.method.watches:
            self._watched.append(metrics[self.method.watches].double())
        self._calls_left -= 1
        if self._calls_left <= 0:
            if self._watched:
                mean = torch.stack(self._watched).mean()
                if dist.is_initialized():
                    dist.all_reduce(mean)
                    mean = mean / dist.get_world_size()
                self.method.observe(mean)
            self.restart(self.update + 1)
        return RobustOutput(loss, metrics)

    @torch.compiler.disable
    def _check(self, batch: Batch) -> None:
        """Tries the model on the longest window, on its device and under the loop's autocast."""
        if not self.model.training:
            log.warning("the model trains in evaluation mode, without dropout: call train() of what sd.wrap returned")
        if torch.is_autocast_enabled("cpu") and accelerator.emulates(torch.get_autocast_dtype("cpu")):
            log.warning("autocast: this processor has no instructions for half precision, float32 is faster")
        base = self.objective.qa.base
        if not any(map(is_partitioned, base.parameters())):  # ZeRO-3 shards them
            mask = batch.attention_mask
            row = int(mask.sum(1).argmax())
            columns = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids}
            window = {name: ids[row : row + 1, mask[row] == 1] for name, ids in columns.items() if ids is not None}
            window["attention_mask"] = torch.ones_like(window["input_ids"])
            half = {name: values[:, : (values.shape[1] + 1) // 2] for name, values in window.items()}
            if base.config.is_encoder_decoder:
                half["decoder_input_ids"] = window["decoder_input_ids"] = half["input_ids"][:, :5]
            with without_dropout(base):
                check_takes_embeddings(base, "model", window)
                if depends_on_padding(base, "model", half, window):
                    kind = type(base).__name__
                    log.warning("the logits of a %s depend on padding: pad all windows to one length, always", kind)
            if "token_type_ids" not in window and tells_types_apart(base):
                log.warning("inputs: no token_type_ids, with which a saved model is asked: give those of the tokenizer")
        self._checked = True

    def begin_update(self, micro_batches: Sequence[Mapping[str, Tensor]]) -> None:
        """Makes the coming calls one update, with one noise, whose loss is the mean over all of its windows: the losses
        of the calls, divided by `len(micro_batches)` and averaged over ranks, add up to it. `micro_batches` are the
        inputs of these calls on this rank, on its device; every rank has as many. Collective.

        Raises InputError: an input is unknown, or only some calls of the update before are made.
        """
        if self._calls_left not in (0, self._calls):
            made = f"{self._calls - self._calls_left} of its {self._calls} calls"
            raise InputError(f"begin_update: only {made} are made: make the others, or restart({self.update})")
        counts = torch.stack([_counts(self._batch(inputs)) for inputs in micro_batches]).sum(0)
        ranks = 1
        if dist.is_initialized():
            dist.all_reduce(counts)
            ranks = dist.get_world_size()
        self._shares = LossNormalisation(ranks, len(micro_batches)).weight(counts.clamp(min=1))
        self._calls = self._calls_left = len(micro_batches)

    def get_extra_state(self) -> Tensor:
        """The update's number and what the method learned by `observe`, float64."""
        state = self.method.state()
        return torch.tensor([self.update, *(state[name] for name in sorted(state))], dtype=torch.double)

    def set_extra_state(self, state: Tensor) -> None:
        """Raises ValueError: the state is of another method."""
        update, *values = state.tolist()
        self.method.load(dict(zip(sorted(self.method.state()), values, strict=True)))
        self.restart(int(update))

    def _batch(self, inputs: Mapping[str, Tensor]) -> Batch:
        """`weight` is 1 for windows that count in the loss, 0 for others; [N] int64."""
        takes = ("input_ids", "attention_mask", "token_type_ids", "sample_id", *self._labels)
        if unknown := [name for name in inputs if name not in takes]:
            raise InputError(f"inputs {', '.join(unknown)}: a method's passes take only {', '.join(takes)}: drop them")
        if missing := [name for name in ("input_ids", *self._labels) if inputs.get(name) is None]:
            raise InputError(f"inputs: {', '.join(missing)} must be given to train")
        ids = inputs["input_ids"]
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask.long()
        if self._labels == TARGET:
            targets = {"target_ids": inputs["labels"]}
            windows_N = (inputs["labels"] != IGNORED).any(1).long()
        else:
            targets = {}
            windows_N = ids.new_ones(len(ids))
            for name in SPAN:
                positions_N = inputs[name].view(-1)
                windows_N = windows_N * ((positions_N >= 0) & (positions_N < ids.shape[1]))
                targets[name.removesuffix("s")] = positions_N.clamp(0, ids.shape[1] - 1)
        sample_id = inputs.get("sample_id")
        return Batch(
            ids,
            mask,
            inputs.get("token_type_ids"),
            sample_id=sample_ids(ids, mask) if sample_id is None else sample_id.view(-1),
            weight=windows_N,
            **targets,
        )


def wrap(model: nn.Module, method: Settings, *, seed: int = 0, updates: int | None = None) -> Robust:
    """Wraps a question-answering model for a custom training loop, Accelerate or Lightning.

        robust = sd.wrap(model, sd.Swep(beta=1e-4), seed=0)
        optimizer = torch.optim.AdamW(robust.parameter_groups(), lr=3e-5)
        loss = robust(**batch).loss

    Args:
        model: a transformers model, or PEFT's around it, with a head for spans (`*ForQuestionAnswering`) or a
            sequence-to-sequence model, on its device and in its dtype. It is not copied: `model` itself is trained.
        seed: draws the method's weights and its noise.
        updates: of the whole training, for methods whose weights change with the progress; more are refused. A training
            call is an update, or as many as `begin_update` gets.

    Raises:
        InputError: the model, its weights' dtype, the method or these arguments do not go together.
        TypeError: the method's passes are not as `Method.passes` says.
    """
    robust = Robust(model, method, seed, updates)
    check_trained_dtypes(robust)
    return robust


def _interface(model: nn.Module) -> QAModel:
    for config in getattr(model, "peft_config", {}).values():
        if config.is_prompt_learning:
            fault = "adds virtual tokens, which no method knows: train adapters such as LoRA"
            raise InputError(f"model: {config.peft_type.value} {fault}")
    base = without_peft(model)
    takes = inspect.signature(base.forward).parameters if isinstance(base, PreTrainedModel) else {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):  # as ModernBERT's head
        takes = {**inspect.signature(base.base_model.forward).parameters, **takes}
    if "inputs_embeds" in takes:
        if set(SPAN) <= set(takes) and not base.config.is_encoder_decoder:
            return ExtractiveQA(model)
        if set(TARGET) <= set(takes) and hasattr(base, "prepare_decoder_input_ids_from_labels"):
            return Seq2SeqQA(model)
    raise InputError(
        f"model {type(base).__name__}: a method takes transformers' models for question answering: load one with "
        "AutoModelForQuestionAnswering (not an encoder-decoder) or AutoModelForSeq2SeqLM"
    )


def _warn_of_frozen(base: PreTrainedModel) -> None:
    """peft freezes all but adapters and the heads whose names it knows, also for good in what `merge_and_unload`
    returns."""
    inside = {id(parameter) for parameter in base.base_model.parameters()}
    head = [name for name, parameter in base.named_parameters() if id(parameter) not in inside]
    trained = {id(parameter) in inside for parameter in base.parameters() if parameter.requires_grad}
    if head and trained == {True}:
        log.warning("model: its head (%s) is frozen: name it in LoraConfig(modules_to_save=[...])", ", ".join(head))
    if not trained:
        log.warning("model: all of its weights are frozen: load adapters with is_trainable=True")
    if trained == {False}:
        fix = "call model.requires_grad_(True) to train all of it, as after merge_and_unload()"
        log.warning("model: only its head (%s) is trained: %s", ", ".join(head), fix)


def check_trained_dtypes(robust: Robust) -> None:
    """Raises InputError: trained weights are float16, which Adam's first step turns into NaN: its epsilon is 0 there.
    ZeRO-3's may be float16, because DeepSpeed keeps float32 copies."""
    for name, parameter in robust.model.named_parameters():
        if parameter.requires_grad and parameter.dtype == torch.float16 and not is_partitioned(parameter):
            raise InputError(
                f"model: float16 weights cannot be trained (such as {name}), and files may have them: load it with "
                "dtype=torch.float32, and give the loop fp16 or bf16 for the computation"
            )


def check_offered(settings: Settings) -> None:
    """Raises InputError: these are not settings of a method that one backward in an update computes."""
    if not isinstance(settings, Settings):
        raise InputError(f"method {settings!r}: is not the settings of a method: give some, such as sd.Swep(beta=1e-4)")
    if settings.needs_gradient or settings.name == "ssmba":
        raise InputError(f"method {settings.name}: it takes several backward passes or augmented data: use sd.train")
    if getattr(settings, "noise_max_grad_norm", None) is not None:
        raise InputError("method.noise_max_grad_norm: set it to None, and clip `method.parameters()` in this loop")


def _counts(batch: Batch) -> Tensor:
    """Windows and tokens that count in the loss, [2] int64."""
    return torch.stack([batch.weight.sum(), (batch.weight * batch.attention_mask.sum(1)).sum()])


def sample_ids(ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """A hash of each window's tokens, [N] int64 from 0 to 2^32 - 1; no shuffling, batching or padding changes it.

    sum_k (token_k + 1) * MULTIPLIER^(k + 1) mod 2^64 over the window's tokens; its upper half is taken.
    """
    powers_NT = torch.where(mask_NT > 0, MULTIPLIER, 1).cumprod(1)  # integers wrap around
    return (((ids_NT + 1) * powers_NT * mask_NT).sum(1) >> 32) & MASK
