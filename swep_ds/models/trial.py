"""Tries a model on a few tokens before it is used: whatever is wrong with it is one line."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from swep_ds.common.errors import InputError, as_input_error, reason

OTHERWISE = "computes something else from inputs_embeds than from the same input_ids"


def check_takes_embeddings(model: PreTrainedModel, label: str) -> None:
    """Tries the model on a few tokens' embeddings: signatures promise `inputs_embeds` that some models refuse, or treat
    otherwise than the ids. Pegasus and Marian scale only embeddings of ids; Longformer and BigBird find the question
    by the ids of its separators. Leaves the model in evaluation mode.

    Raises InputError: the model, which the user named by `label`, cannot be trained under perturbation.
    """
    ids, inputs = _question_and_text(model)
    kind = "encoder_hidden_states" if model.config.is_encoder_decoder else "hidden_states"
    try:
        with without_flash_attention(model.eval()):
            output = _run_on_embeddings(model, ids, inputs, output_hidden_states=True)
            from_ids = _run(model, ids, inputs)
    except Exception as error:  # its type depends on the model's class
        raise _unfit(model, label, f"cannot be run on inputs_embeds ({reason(error, 160)})") from error
    if kind not in output:
        raise _unfit(model, label, "does not return its hidden states")
    _check_finite(output, label)
    if not _equal(output, from_ids):
        raise _unfit(model, label, OTHERWISE)


def check_mapped(model: PreTrainedModel, label: str) -> None:
    """`check_takes_embeddings` with the first layer of each stack, as a mapped model is large. A model that fails so,
    because it counts its layers, is tried as a whole. Raises InputError: that fails, too."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    first = copy.deepcopy(model, dict(tensors))  # shares the weights; a model may change as it runs
    for parent in [*first.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.ModuleList):
                parent._modules[name] = child[:1]
    with suppress(InputError):
        check_takes_embeddings(first, label)
        return
    check_takes_embeddings(copy.deepcopy(model, dict(tensors)), label)


def check_same_from_ids(model: PreTrainedModel, *, padded_left: bool = False) -> None:
    """The last part of `check_takes_embeddings`, for a model that is about to be trained: training shows whatever else
    is wrong with it. Leaves the model in evaluation mode, and compiles nothing.

    Args:
        padded_left: whether its windows have padding on the left. RoBERTa counts positions from the first token, but
            from the first column where it is given embeddings.

    Raises InputError: the model computes something else from embeddings than from their ids.
    """
    padding = 2 if padded_left else 0
    ids, inputs = _question_and_text(model.eval(), left=padding)
    with torch.compiler.set_stance("force_eager"):
        same = _equal(_run_on_embeddings(model, ids, inputs), _run(model, ids, inputs), first=padding)
    if not same and padded_left:
        raise InputError(f"model: {type(model).__name__} {OTHERWISE} with padding on the left: pad on the right")
    if not same:
        raise _unfit(model, "model", OTHERWISE)


def check_answers(model: PreTrainedModel, longest: int, label: str) -> None:
    """Tries a model that is to answer, in evaluation mode, on a window of `longest` tokens.

    Raises InputError: it cannot be run, or computes NaN or infinity.
    """
    length = max(5, longest)
    ids, inputs = _question_and_text(model, length=length)
    failure = f"{label}: cannot be run on a window of {length} tokens"
    with as_input_error(failure, "name another model", but=(torch.OutOfMemoryError, MemoryError)):
        output = _run(model, ids, inputs)
    _check_finite(output, label)


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


def _question_and_text(model: PreTrainedModel, *, length: int = 5, left: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """(ids [1, T], the model's other inputs): a question and a text, as RoBERTa writes them, of `length` tokens, with
    padding on their left."""
    separator = getattr(model.config, "sep_token_id", None)
    padding = model.config.pad_token_id
    word, other, *_ = [token for token in range(4) if token not in (padding, separator)]
    tokens = [word] + [other] * (length - 1)
    if separator in range(model.get_input_embeddings().num_embeddings):
        tokens[1:3] = [separator] * 2
        tokens[-1] = separator
    row = torch.tensor([tokens], device=model.device)
    inputs = {"attention_mask": pad(torch.ones_like(row), (left, 0))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = row[:, :5]
    return pad(row, (left, 0), value=padding or 0), inputs


@torch.no_grad()
def _run(model: PreTrainedModel, ids: Tensor, inputs: dict[str, Tensor]) -> Any:
    return model(input_ids=ids, return_dict=True, **inputs)


@torch.no_grad()
def _run_on_embeddings(model: PreTrainedModel, ids: Tensor, inputs: dict[str, Tensor], **more: bool) -> Any:
    return model(inputs_embeds=model.get_input_embeddings()(ids), return_dict=True, **inputs, **more)


def _logits(output: Any) -> dict[str, Tensor]:
    return {name: output[name] for name in ("start_logits", "end_logits", "logits") if name in output}


def _check_finite(output: Any, label: str) -> None:
    if not all(logits.isfinite().all() for logits in _logits(output).values()):
        raise InputError(f"{label}: computes NaN or infinity from any text: its weights or config.json are damaged")


def _equal(output: Any, other: Any, first: int = 0) -> bool:
    """Whether two outputs have the same logits, to rounding; those of a span from the position `first` on."""
    for name, logits in _logits(output).items():
        begin = 0 if name == "logits" else first
        if not torch.allclose(logits[:, begin:], other[name][:, begin:], rtol=1e-3, atol=1e-3):
            return False
    return True


def _unfit(model: PreTrainedModel, label: str, fault: str) -> InputError:
    return InputError(
        f"{label}: {type(model).__name__} {fault}, which every perturbation of word embeddings needs: use a model "
        "such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
    )
