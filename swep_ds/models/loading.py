"""Loads a Hugging Face model for a task; whatever is wrong with it is one line."""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from swep_ds.errors import InputError, reason
from swep_ds.models.folders import BAD_CONFIG, CORRECT, blaming_a_field, load_config, transformers_errors
from swep_ds.models.weights import check_complete, check_dtypes, check_finite, check_mapped_finite, check_size
from swep_ds.ranks.launch import is_first_on_node

log = logging.getLogger(__name__)

# the head in words, and a model that has one
HEADS = {
    AutoModelForQuestionAnswering: ("question-answering", "an encoder such as bert, electra, roberta or deberta-v2"),
    AutoModelForSeq2SeqLM: ("sequence-to-sequence", "a model such as t5, mt5 or bart, or set task to extractive"),
    AutoModelForMaskedLM: ("masked-language-model", "a masked language model such as bert-base-uncased"),
}
# what configs call the dropout of attention weights
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


def load_trainable(
    auto_class,
    name: str,
    *,
    activation_checkpointing: bool,
    attention: str = "auto",
    attention_dropout: float | None = None,
    mapped: bool = False,
    weights: bool = True,
) -> PreTrainedModel:
    """Loads a hub id or a local folder to train, in float32 (the engine decides the training precision) or `mapped`.

    Args:
        auto_class: one of `HEADS`.
        attention: transformers' `attn_implementation`; "auto" = its default.
        attention_dropout: probability that an attention weight is dropped; None = the config's.
        mapped: leaves the weights in their files and dtypes, mapped into memory that the system can take back;
            `training.sharding.shard` spreads them over the ranks from there.
        weights: False reads the config alone; the model is then on the meta device.

    Raises:
        InputError: as `load_weights`; or the model does not take word embeddings, does not support activation
            checkpointing, or has no dropout of attention weights to set.
    """
    label, config = f"model.name {name}", load_config(name)
    if config.is_encoder_decoder and auto_class is not AutoModelForSeq2SeqLM:
        raise InputError(
            f"task extractive: {name} is a sequence-to-sequence model ({config.model_type}): set task to generative"
        )
    config.dtype = None  # it need not be the files' dtype
    if attention_dropout is not None:
        set_attention_dropout(config, attention_dropout)
    source = (auto_class, config, name, label, attention)
    if weights:
        model = load_weights(*source, mapped=mapped, new_head=not config.is_encoder_decoder)
        model = model if mapped else model.float()
    else:
        model = make_hollow(*source)
    if not mapped:
        check_takes_embeddings(model, label)
    elif not dist.is_initialized() or dist.get_rank() == 0:
        _check_mapped(model, label)
    if activation_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise InputError(
                f"train.activation_checkpointing: {type(model).__name__} does not support it: set it to false"
            )
        # the reentrant kind reduces a parameter twice in a joint update at ZeRO-2 and ZeRO-3
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def set_attention_dropout(config: PreTrainedConfig, value: float) -> None:
    """Raises InputError: the model has none that can be set alone; T5 has a single dropout for everything."""
    names = [name for name in ATTENTION_DROPOUTS if hasattr(config, name)]
    if not names:
        raise InputError(
            f"model.attention_dropout: {config.model_type} has no dropout of attention weights alone: set it to null"
        )
    setattr(config, names[0], value)


def load_weights(
    auto_class,
    config: PreTrainedConfig,
    source: str,
    label: str,
    attention: str = "auto",
    *,
    mapped: bool = False,
    new_head: bool = False,
    dtype: torch.dtype | str = "auto",
) -> PreTrainedModel:
    """Loads a model whose weights all come from its files, except for a new head.

    Args:
        config: from `load_config`, for `source`: a folder or a hub id.
        label: how the user named the model, as in "model.name ./bert".
        mapped: as `load_trainable`; rank 0 alone then checks that the weights are finite.
        new_head: whether the task's head may be missing; transformers then draws it, alike at any dtype.
        dtype: "auto" = the config's, else the files'.

    Raises:
        InputError: as `make_hollow`; or files that are damaged or need own code; weights that are missing, of other
            shapes, not in floating point, not finite, or far fewer than the config asks for.
    """
    check_size(make_hollow(auto_class, config, source, label, attention), source, label)
    with transformers_errors(label, "cannot load", "correct the folder or name another model"):
        model, report = auto_class.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_complete` names them
            trust_remote_code=False,
            **_options(attention),
        )
    check_complete(model, report, label, HEADS[auto_class][0], new_head=new_head)
    check_dtypes(source, report, label)
    if not mapped:
        check_finite(model, label)
    elif not dist.is_initialized() or dist.get_rank() == 0:
        check_mapped_finite(model, source, report, label)
    return model


def make_hollow(
    auto_class, config: PreTrainedConfig, source: str, label: str, attention: str = "auto"
) -> PreTrainedModel:
    """Makes the model on the meta device, without memory for its weights; arguments as `load_weights`.

    Raises InputError: no head for the task, a config that no model can be built from, or an attention that the model
    does not have.
    """
    if type(config) not in auto_class._model_mapping:
        head, advice = HEADS[auto_class]
        raise InputError(
            f"{label}: transformers has no {head} head for model type {config.model_type!r}: name {advice}"
        )

    def make(config: PreTrainedConfig) -> PreTrainedModel:
        with torch.device("meta"):
            return auto_class.from_config(config, trust_remote_code=False, **_options(attention))

    try:
        with transformers_errors(label, BAD_CONFIG, CORRECT):
            return make(config)
    except InputError as error:
        if attention != "auto" and isinstance(error.__cause__, ImportError | ValueError):
            raise InputError(
                f"model.attention {attention}: not available for {config.model_type} ({reason(error.__cause__)}): set "
                "it to auto"
            ) from None
        settings, _ = PreTrainedConfig.get_config_dict(source)
        raise blaming_a_field(error, settings, lambda others: make(AutoConfig.for_model(**others))) from None


def _options(attention: str) -> dict[str, Any]:
    return {} if attention == "auto" else {"attn_implementation": attention}


OTHERWISE = "computes something else from inputs_embeds than from the same input_ids"


def check_takes_embeddings(model: PreTrainedModel, label: str) -> None:
    """Tries the model on a few tokens' embeddings: signatures promise `inputs_embeds` that some models refuse, or treat
    otherwise than the ids. Pegasus and Marian scale embeddings of ids alone; Longformer and BigBird find the question
    by the ids of its separators.

    A model on the meta device that reads values cannot be tried, and passes. Others are left in evaluation mode, after
    `warn_if_padding_matters`.

    Raises InputError: the model, which the user named by `label`, cannot be trained under perturbation.
    """
    fault, on_meta = None, model.device.type == "meta"
    try:
        ids, inputs = _question_and_text(model)
        with torch.no_grad(), without_flash_attention(model):
            embeddings = model.eval().get_input_embeddings()(ids)
            output = model(inputs_embeds=embeddings, output_hidden_states=True, return_dict=True, **inputs)
            hidden = output.get("encoder_hidden_states" if model.config.is_encoder_decoder else "hidden_states")
            if hidden is None:
                fault = "does not return its hidden states"
            elif not on_meta and not hidden[-1].isfinite().all():
                fault = "computes NaN or infinity from any text"
            elif not on_meta and not _same_from_ids(model, output, ids, inputs):
                fault = OTHERWISE
    except Exception as error:  # its type depends on the model's class
        if on_meta and isinstance(error, RuntimeError):
            return
        fault = f"cannot be run on inputs_embeds ({reason(error, 160)})"
    if fault:
        raise _unfit(model, label, fault)
    warn_if_padding_matters(model, label)


def warn_if_padding_matters(model: PreTrainedModel, label: str) -> None:
    """Warns, on a node's first rank, of a model that padding beside a window changes, such as FNet or Nystromformer.

    A model on the meta device cannot be tried. Others must be in evaluation mode.
    """
    if model.device.type == "meta" or not is_first_on_node():
        return
    with suppress(Exception), torch.no_grad(), without_flash_attention(model):  # what else is wrong shows in use
        ids, inputs = _question_and_text(model)
        if not _same_beside_padding(model, model(input_ids=ids, return_dict=True, **inputs), ids, inputs):
            log.warning(
                "%s: what %s answers depends on the padding beside a window, and so on the batch size",
                label,
                type(model).__name__,
            )


def _check_mapped(model: PreTrainedModel, label: str) -> None:
    """`check_takes_embeddings` with the first layer of each stack, so that a mapped model is not read as a whole. One
    that fails so, as models do that count their layers, is tried as a whole. Raises InputError: that fails, too."""
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


@contextmanager
def without_flash_attention(model: PreTrainedModel) -> Iterator[None]:
    """FlashAttention runs on a GPU in half precision alone. Models are tried on a CPU, in the dtype they load in."""
    chosen = model.config._attn_implementation
    if chosen == "flash_attention_2":
        model.set_attn_implementation("eager")
    try:
        yield
    finally:
        if chosen == "flash_attention_2":
            model.set_attn_implementation(chosen)


def check_same_from_ids(model: PreTrainedModel, *, padded_left: bool = False) -> None:
    """The last part of `check_takes_embeddings`, for a model that is about to be trained: training shows whatever else
    is wrong with it. Leaves the model in evaluation mode, and compiles nothing.

    Args:
        padded_left: whether its windows have padding on the left. RoBERTa counts positions from the first token, but
            from the first column where it is given embeddings.

    Raises InputError: the model computes something else from embeddings than from their ids.
    """
    padding = 2 if padded_left else 0
    ids, inputs = _question_and_text(model, padding)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        embeddings = model.eval().get_input_embeddings()(ids)
        output = model(inputs_embeds=embeddings, return_dict=True, **inputs)
        if not _same_from_ids(model, output, ids, inputs, padding):
            if padded_left:
                fault = f"{OTHERWISE} with padding on the left: pad on the right"
                raise InputError(f"model: {type(model).__name__} {fault}")
            raise _unfit(model, "model", OTHERWISE)


def _question_and_text(model: PreTrainedModel, padding: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(ids [1, T], the model's other inputs): a question and a text, as RoBERTa writes them, after `padding` tokens."""
    separator, size = getattr(model.config, "sep_token_id", None), model.get_input_embeddings().num_embeddings
    apart = (model.config.pad_token_id, separator)
    word, other, *_ = [token for token in range(min(4, size)) if token not in apart]
    tokens = [word, other] if separator not in range(size) else [word, separator, separator, other, separator]
    text = torch.tensor([tokens], device=model.device)
    ids = torch.nn.functional.pad(text, (padding, 0), value=model.config.pad_token_id or 0)
    inputs = {}
    if model.device.type != "meta":
        inputs["attention_mask"] = torch.nn.functional.pad(torch.ones_like(text), (padding, 0))
    return ids, inputs | ({"decoder_input_ids": text} if model.config.is_encoder_decoder else {})


def _same_from_ids(
    model: PreTrainedModel, output: Any, ids: torch.Tensor, inputs: dict[str, torch.Tensor], padding: int = 0
) -> bool:
    """Whether the ids give the `output` of their embeddings, to rounding; after the `padding` of a span's logits."""
    with torch.no_grad():
        expected = model(input_ids=ids, return_dict=True, **inputs)
    return _equal(output, expected, slice(padding, None))


def _same_beside_padding(
    model: PreTrainedModel, output: Any, ids: torch.Tensor, inputs: dict[str, torch.Tensor]
) -> bool:
    """Whether the ids give the same `output` with padding on their right, to rounding."""
    wider = torch.nn.functional.pad(ids, (0, 2), value=model.config.pad_token_id or 0)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 2))
    with torch.no_grad():
        padded = model(input_ids=wider, return_dict=True, **inputs | {"attention_mask": mask})
    # another width is computed in another order
    return _equal(output, padded, slice(ids.shape[1]), tolerance=max(1e-3, 16 * torch.finfo(model.dtype).eps))


def _equal(output: Any, other: Any, tokens: slice, tolerance: float = 1e-3) -> bool:
    """Whether two outputs have the same logits, to rounding; those of a span at these tokens."""
    parts = {"start_logits": tokens, "end_logits": tokens, "logits": slice(None)}
    return all(
        torch.allclose(output[name][:, part], other[name][:, part], rtol=tolerance, atol=tolerance)
        for name, part in parts.items()
        if name in output
    )


def _unfit(model: PreTrainedModel, label: str, fault: str) -> InputError:
    return InputError(
        f"{label}: {type(model).__name__} {fault}, which every perturbation of word embeddings needs: use a model "
        "such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
    )
