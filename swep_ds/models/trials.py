"""Tries a loaded model on a few tokens, as it will train and answer; whatever is wrong with it is one line."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.data.windows import WindowCutter, WindowSettings
from swep_ds.models.backends import float32_products

FIX = "use a model such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
Inputs = dict[str, Tensor]  # a model's, by name: [1, T], without padding


def example_window(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None, length: int = 9) -> Inputs:
    """A question and a text of `length` tokens in all, or as many as there must be, with the special tokens and the
    token types of the tokenizer; without one, words alone."""
    prefix = middle = suffix = []
    special = [model.config.pad_token_id]
    if tokenizer is not None:
        task = "generative" if model.config.is_encoder_decoder else "extractive"
        cutter = WindowCutter(tokenizer, WindowSettings(task=task))
        prefix, middle, suffix, _ = (part.tolist() for part in cutter.template)
        special = [*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids]
    vocabulary = range(len(model.get_input_embeddings().weight))
    word, other = islice((token for token in vocabulary if token not in special), 2)
    text = max(1, length - 1 - len(prefix + middle + suffix))
    row = torch.tensor([[*prefix, word, *middle, *[other] * text, *suffix]], device=model.device)
    inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
    if tokenizer is not None and cutter.takes_types:
        inputs["token_type_ids"] = torch.tensor(cutter.template.type_ids(1, text)[None], device=model.device).long()
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = row[:, :5]
    return inputs


def check_takes_embeddings(model: PreTrainedModel, label: str, window: Inputs) -> None:
    """Tries the model on a window's embeddings. Some models refuse them or treat them otherwise: Pegasus scales
    only embeddings of ids, BigBird finds the question by ids of special tokens. Leaves the model in evaluation mode.

    Raises InputError: the model cannot be trained under perturbation, or computes NaN or infinity.
    """
    kind = type(model).__name__
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    refused = f"{label}: {kind} cannot be run on inputs_embeds, which every perturbation of word embeddings needs"
    with as_input_error(refused, FIX), _trial(model):
        inputs = dict(window)
        embeddings = reader.get_input_embeddings()(inputs.pop("input_ids"))
        from_embeddings = _logits(model, label, inputs_embeds=embeddings, **inputs)
        from_ids = _logits(model, label, **window)
    if not torch.allclose(from_embeddings, from_ids, rtol=1e-3, atol=1e-3):
        fault = "computes something else from inputs_embeds than from the same input_ids"
        raise InputError(f"{label}: {kind} {fault}: {FIX}")


def depends_on_padding(model: PreTrainedModel, label: str, window: Inputs, longer: Inputs) -> bool:
    """Whether a window's logits change where it is padded for a `longer` one in its batch: FNet mixes padding in, and
    convolutions see it. Leaves the model in evaluation mode.

    Raises InputError: the model cannot be run, or computes NaN or infinity; the logits of a padded window change with
    the rest of its batch or by call (Reformer hashes at random); or an encoder-decoder depends on padding.
    """
    alike = _padded(model, window, longer["input_ids"].shape[1])
    batch = {name: torch.cat([alike[name], longer[name]]) for name in alike}
    failure = f"{label}: cannot be run on a window of {batch['input_ids'].shape[1]} tokens"
    with as_input_error(failure, "name another model", but=(torch.OutOfMemoryError, MemoryError)), _trial(model):
        in_batch = _logits(model, label, **batch)[:1]
        change, noise = (_difference(model, _logits(model, label, **other), in_batch) for other in (window, alike))
    _check_finite(label, (p for p in model.parameters() if p.requires_grad))  # attention's kernels may leave them out
    exact = in_batch.dtype == torch.float32 and not torch.is_autocast_enabled(in_batch.device.type)
    if change <= (1e-4 if exact else max(3e-2, 4 * noise)):
        return False
    if not model.config.is_encoder_decoder and (noise <= 1e-4 or not exact):
        return True
    raise InputError(f"{label}: {type(model).__name__} gives the same window other logits in each call or batch: {FIX}")


def run_on_first_layers(model: PreTrainedModel, trial: Callable[[PreTrainedModel], bool]) -> bool:
    """Tries only the first layers of a large model, unless that fails because the model counts its layers."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    first = copy.deepcopy(model, tensors)  # shares the weights
    for parent in [*first.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.ModuleList):
                parent._modules[name] = child[:1]
    with suppress(InputError):
        return trial(first)
    return trial(model)


@contextmanager
def without_flash_attention(model: PreTrainedModel) -> Iterator[None]:
    """FlashAttention runs only on a GPU in half precision. Models are tried on a CPU, in the dtype they load in."""
    chosen = model.config._attn_implementation
    if chosen == "flash_attention_2":
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if chosen == "flash_attention_2":
            model.set_attn_implementation(chosen)


@contextmanager
def _trial(model: PreTrainedModel) -> Iterator[None]:
    full = torch.backends.cudnn.flags(allow_tf32=False)
    with without_flash_attention(model.eval()), torch.compiler.set_stance("force_eager"), full, float32_products():
        yield


def _padded(model: PreTrainedModel, window: Inputs, length: int) -> Inputs:
    values = {"input_ids": model.config.pad_token_id or 0}
    wide = {name: pad(row, (0, length - row.shape[1]), value=values.get(name, 0)) for name, row in window.items()}
    if "decoder_input_ids" in window:
        wide["decoder_input_ids"] = window["decoder_input_ids"]
    return wide


@torch.no_grad()
def _logits(model: PreTrainedModel, label: str, **inputs: Tensor) -> Tensor:
    """[N, 2, T] of starts and ends, or [N, K, V] of words. Raises InputError: NaN or infinity."""
    output = model(return_dict=True, **inputs)
    logits = output.logits if "logits" in output else torch.stack([output.start_logits, output.end_logits], 1)
    _check_finite(label, [logits])
    return logits


def _check_finite(label: str, tensors: Iterable[Tensor]) -> None:
    if not all_finite(tensors):
        fault = "computes NaN or infinity from any text, or has some among its weights"
        raise InputError(f"{label}: {fault}: correct config.json, or fetch the model again")


@torch.no_grad()
def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no number is NaN or infinite. The extremes, of which NaN is both, take no memory of a tensor's size."""
    return all(values.numel() == 0 or torch.stack(values.aminmax()).isfinite().all() for values in tensors)


def _difference(model: PreTrainedModel, alone: Tensor, in_batch: Tensor) -> float:
    """The largest of a window's logits, relative to their size; the second ones may be of a padded window."""
    if not model.config.is_encoder_decoder:
        in_batch = in_batch[..., : alone.shape[-1]]
        alone = alone[..., : in_batch.shape[-1]]
    # BigBird gives the question's tokens -1e6, beside which all others would be alike
    largest = alone.abs().masked_fill(alone < -1e4, 0).max().clamp(min=1)
    return float((alone - in_batch).abs().max() / largest)
