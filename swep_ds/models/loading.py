"""Loads a Hugging Face model for a task and tries it on a few tokens; whatever is wrong with it is one line.

transformers fills in missing weights without an error. Here only the head of the task may be new.
"""

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.models.folders import load_config

HEADS = {
    AutoModelForQuestionAnswering: "question-answering",
    AutoModelForSeq2SeqLM: "sequence-to-sequence",
    AutoModelForMaskedLM: "masked-language-model",
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
    """Loads a hub id or a local folder to train, in float32: the engine decides the training precision. A `mapped`
    model's weights stay in their files and dtypes, from where `shard` in training/zero spreads them over the ranks.
    Without `weights` only the config is read, and the model is on the meta device.

    Raises InputError: as `load_weights`; or the model does not take word embeddings, or a setting does not fit it.
    """
    label = f"model.name {name}"
    config = load_config(name)
    if config.is_encoder_decoder and auto_class is not AutoModelForSeq2SeqLM:
        raise InputError(f"task extractive: {name} is a sequence-to-sequence model: set task to generative")
    config.dtype = None  # it need not be the files' dtype
    if attention_dropout is not None:
        names = [name for name in ATTENTION_DROPOUTS if hasattr(config, name)]
        if not names:  # T5 has a single dropout for everything
            fault = f"{config.model_type} has no dropout of only its attention weights"
            raise InputError(f"model.attention_dropout: {fault}: set it to null")
        setattr(config, names[0], attention_dropout)
    if attention != "auto":
        config._attn_implementation = attention
    if weights:
        model = load_weights(auto_class, config, name, label, new_head=not config.is_encoder_decoder)
        if not mapped:
            check_takes_embeddings(model.float(), label)
        elif not dist.is_initialized() or dist.get_rank() == 0:  # it reads the disk
            _check_mapped(model, label)
    else:
        model = make_hollow(auto_class, config, label)
    failure = f"{label}: its config.json could not be exported after the training"
    with tempfile.TemporaryDirectory() as folder, as_input_error(failure, "correct it"):
        model.config.save_pretrained(folder)
    if activation_checkpointing:
        with as_input_error("train.activation_checkpointing: cannot be used", "set it to false"):
            # the reentrant kind reduces a parameter twice in a joint update at ZeRO-2 and ZeRO-3
            model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def load_weights(
    auto_class,
    config: PreTrainedConfig,
    source: str,
    label: str,
    *,
    new_head: bool = False,
    dtype: torch.dtype | str = "auto",
) -> PreTrainedModel:
    """Loads a model whose weights all come from its files, a folder or a hub id. With `new_head` the task's head may be
    missing; transformers then draws it, the same at any dtype. `label` is how the user named the model.

    Raises InputError: as `make_hollow`; files that cannot be read; weights that are missing or of other shapes.
    """
    former = config.architectures or ()
    # The base of Llama has the names "model.layers...", that of its question-answering class "transformer.layers...".
    kind = type(make_hollow(auto_class, config, label))
    bases = {parent.base_model_prefix for parent in kind.__mro__ if hasattr(parent, "base_model_prefix")}
    renamed = {rf"^{base}\.": f"{kind.base_model_prefix}." for base in bases - {kind.base_model_prefix, ""}}
    with as_input_error(f"{label}: cannot load", "correct the folder or name another model"):
        model, report = auto_class.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # named below
            trust_remote_code=False,
            key_mapping=renamed,
        )
    # save_pretrained would give the weights their former names, which only `key_mapping` reads
    model._weight_conversions = [
        conversion for conversion in model._weight_conversions if not renamed.keys() & {*conversion.source_patterns}
    ]
    lacking = report["missing_keys"] | {name for name, *_ in report["mismatched_keys"]}
    if any("Classification" in kind or "MultipleChoice" in kind for kind in former):
        lacking.add("classifier.weight")  # ModernBERT's output layer for spans has this name, too
    names = [name for name in model.state_dict() if name in lacking]
    base = model.base_model_prefix
    backbone = [name for name in names if name.startswith(f"{base}.") or not hasattr(model, base)]
    if backbone:
        raise InputError(
            f"{label}: its files lack {len(backbone)} weights in the shapes that its config.json asks for, first "
            f"{backbone[0]}: name a folder with all weights, or correct config.json"
        )
    if names and not new_head:
        raise InputError(
            f"{label}: has no weights for {', '.join(names[:3])}: it is without a trained {HEADS[auto_class]} head: "
            "name a model with one"
        )
    model.new_weights = names  # whose values no file had
    # in T5 and its like transformers ties an output layer that is not in the files, whatever config.json says
    settings, _ = PreTrainedConfig.get_config_dict(source)
    output = model.get_output_embeddings()
    is_tied = output is not None and output.weight is model.get_input_embeddings().weight
    if is_tied and settings.get("tie_word_embeddings") is False:
        raise InputError(
            f"{label}: its files lack the output layer that its config.json asks for: name a folder with all weights, "
            "or set tie_word_embeddings to true"
        )
    return model


def make_hollow(auto_class, config: PreTrainedConfig, label: str) -> PreTrainedModel:
    """Makes the model on the meta device, without memory for its weights. Raises InputError: no head for the task, or a
    config that no model can be built from."""
    kind = config.model_type
    if type(config) not in auto_class._model_mapping:
        raise InputError(f"{label}: transformers has no {HEADS[auto_class]} head for {kind!r}: name another model")
    # what a former use of the model asked for
    config.output_attentions = False
    config.output_hidden_states = False
    config.chunk_size_feed_forward = 0  # its windows would have to be of a multiple of this length
    if auto_class is AutoModelForQuestionAnswering:  # a span's start and end, whatever the former head's labels
        config.num_labels = 2
    fault = f"{label}: no {kind} can be built with its config.json and model.attention"
    with as_input_error(fault, "set it to auto, or correct config.json"), torch.device("meta"):
        return auto_class.from_config(config, trust_remote_code=False)


def check_takes_embeddings(model: PreTrainedModel, label: str, *, padded_left: bool = False) -> None:
    """Tries the model on a few tokens' embeddings, which some models refuse, or treat otherwise than the ids: Pegasus
    and Marian scale only embeddings of ids; Longformer and BigBird find the question by the ids of its separators; and
    `padded_left` RoBERTa counts positions of embeddings from the first column. Leaves the model in evaluation mode.

    Raises InputError: the model cannot be trained under perturbation, or computes NaN or infinity.
    """
    kind = type(model).__name__
    padding = 2 if padded_left else 0
    fix = "use a model such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
    refused = f"{label}: {kind} cannot be run on inputs_embeds, which every perturbation of word embeddings needs"
    with as_input_error(refused, fix), without_flash_attention(model.eval()), torch.compiler.set_stance("force_eager"):
        ids, inputs = _question_and_text(model, left=padding)
        embeddings = model.get_input_embeddings()(ids)
        output = _logits(model, label, inputs_embeds=embeddings, **inputs)
        from_ids = _logits(model, label, input_ids=ids, **inputs)
    otherwise = f"{label}: {kind} computes something else from inputs_embeds than from the same input_ids"
    for name, values in output.items():
        begin = 0 if name == "logits" else padding
        if torch.allclose(values[:, begin:], from_ids[name][:, begin:], rtol=1e-3, atol=1e-3):
            continue
        if padded_left:
            raise InputError(f"{otherwise} with padding on the left: pad on the right")
        raise InputError(f"{otherwise}, which every perturbation of word embeddings needs: {fix}")


def _check_mapped(model: PreTrainedModel, label: str) -> None:
    """Checks only the first layer of each stack, as a mapped model is large, unless that fails because the model counts
    its layers."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    first = copy.deepcopy(model, tensors)  # shares the weights
    for parent in [*first.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, torch.nn.ModuleList):
                parent._modules[name] = child[:1]
    with suppress(InputError):
        check_takes_embeddings(first, label)
        return
    check_takes_embeddings(model, label)


def check_answers(model: PreTrainedModel, longest: int, label: str) -> None:
    """Tries a model that is to answer, in evaluation mode, on as many tokens. Raises InputError: it fails, or computes
    NaN or infinity."""
    ids, inputs = _question_and_text(model, length=max(5, longest))
    failure = f"{label}: cannot be run on a window of {longest} tokens"
    with as_input_error(failure, "name another model", but=(torch.OutOfMemoryError, MemoryError)):
        _logits(model, label, input_ids=ids, **inputs)


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
def _logits(model: PreTrainedModel, label: str, **inputs: Tensor) -> dict[str, Tensor]:
    """By name. Raises InputError: NaN or infinity, also in trained weights: attention's kernels may leave them out."""
    output = model(return_dict=True, **inputs)
    logits = {name: output[name] for name in ("start_logits", "end_logits", "logits") if name in output}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not all(values.isfinite().all() for values in (*logits.values(), *weights)):
        fault = "computes NaN or infinity from any text, or has some among its weights"
        raise InputError(f"{label}: {fault}: correct config.json, or fetch the model again")
    return logits
