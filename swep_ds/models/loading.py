"""Loads a Hugging Face model for a task; whatever is wrong with it is one line.

transformers fills in weights that are missing without an error. Here only the head of the task may be new: everything
else must be in the files, in floating point, finite and in the model's shapes.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.models.folders import load_config, weight_files
from swep_ds.models.trial import check_mapped, check_takes_embeddings

HEADS = {
    AutoModelForQuestionAnswering: "question-answering",
    AutoModelForSeq2SeqLM: "sequence-to-sequence",
    AutoModelForMaskedLM: "masked-language-model",
}
# what configs call the dropout of attention weights
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


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
        weights: False reads only the config; the model is then on the meta device.

    Raises:
        InputError: as `load_weights`; or the model does not take word embeddings, does not support activation
            checkpointing, or has no dropout of attention weights to set.
    """
    label = f"model.name {name}"
    config = load_config(name)
    if config.is_encoder_decoder and auto_class is not AutoModelForSeq2SeqLM:
        raise InputError(
            f"task extractive: {name} is a sequence-to-sequence model ({config.model_type}): set task to generative"
        )
    config.dtype = None  # it need not be the files' dtype
    if attention_dropout is not None:
        names = [name for name in ATTENTION_DROPOUTS if hasattr(config, name)]
        if not names:  # T5 has a single dropout for everything
            raise InputError(
                f"model.attention_dropout: {config.model_type} has no dropout of only its attention weights: set it to "
                "null"
            )
        setattr(config, names[0], attention_dropout)
    if weights:
        new_head = not config.is_encoder_decoder
        model = load_weights(auto_class, config, name, label, attention, new_head=new_head)
        if not mapped:
            check_takes_embeddings(model.float(), label)
        elif _is_first():
            check_mapped(model, label)
    else:
        model = make_hollow(auto_class, config, label, attention)
    if activation_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise InputError(
                f"train.activation_checkpointing: {type(model).__name__} does not support it: set it to false"
            )
        # the reentrant kind reduces a parameter twice in a joint update at ZeRO-2 and ZeRO-3
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def load_weights(
    auto_class,
    config: PreTrainedConfig,
    source: str,
    label: str,
    attention: str = "auto",
    *,
    new_head: bool = False,
    dtype: torch.dtype | str = "auto",
) -> PreTrainedModel:
    """Loads a model whose weights all come from its files, except for a new head.

    Args:
        config: from `load_config`, for `source`: a folder or a hub id.
        label: how the user named the model, as in "model.name ./bert".
        new_head: whether the task's head may be missing; transformers then draws it, the same at any dtype.
        dtype: "auto" = the config's, else the files'.

    Raises:
        InputError: as `make_hollow`; or files that are damaged or need own code; weights that are missing, of other
            shapes, not in floating point or not finite.
    """
    renamed = _prefixes(make_hollow(auto_class, config, label, attention))
    with as_input_error(f"{label}: cannot load", "correct the folder or name another model"):
        model, report = auto_class.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_check_complete` names them
            trust_remote_code=False,
            key_mapping=renamed,
            **_options(attention),
        )
    if auto_class is AutoModelForQuestionAnswering:
        _draw_former_output_anew(model, report)
    # save_pretrained would give the weights their former names, which only `key_mapping` reads
    model._weight_conversions = [
        conversion for conversion in model._weight_conversions if not renamed.keys() & {*conversion.source_patterns}
    ]
    names = check_files(source, label, unused=report["unexpected_keys"])
    missing = {*report["missing_keys"]} | _wrongly_tied(model, source, names)
    _check_complete(model, missing, report["mismatched_keys"], label, HEADS[auto_class], new_head=new_head)
    if _is_first():
        for name, weight in model.named_parameters():
            low, high = weight.aminmax()  # unlike `isfinite` it makes no copy
            if not (low.isfinite() and high.isfinite()):
                raise InputError(f"{label}: its weights are damaged: {name} holds NaN or infinity: fetch them again")
    return model


def _is_first() -> bool:
    """Whether this rank reads the weights to check them: of a mapped model, from the disk."""
    return not dist.is_initialized() or dist.get_rank() == 0


def _prefixes(model: PreTrainedModel) -> dict[str, str]:
    """What the files of the model's base may have before its weights' names, as patterns, and what to read instead:
    Llama's are named "model.layers...", those of its question-answering class "transformer.layers..."."""
    own = model.base_model_prefix
    others = {parent.base_model_prefix for parent in type(model).__mro__ if hasattr(parent, "base_model_prefix")}
    return {rf"^{other}\.": f"{own}." for other in others - {own, ""}}


def _draw_former_output_anew(model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Counts a span head's output layer as missing if it came from a head that chose among labels or texts.

    ModernBERT calls both "classifier", and with two labels they have the same shape. transformers draws one of another
    shape itself.
    """
    if not any("Classification" in name or "MultipleChoice" in name for name in model.config.architectures or ()):
        return
    drawn = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    for name, module in model.named_modules():
        if name.startswith(f"{model.base_model_prefix}.") or getattr(module, "out_features", None) != 2:
            continue
        if f"{name}.weight" not in drawn:
            for parameter, value in [*module.named_parameters()]:
                setattr(module, parameter, torch.nn.Parameter(torch.empty_like(value)))
            model._init_weights(module)
        weights = {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
        report["missing_keys"] = weights | {*report["missing_keys"]}
        report["mismatched_keys"] = [weight for weight in report["mismatched_keys"] if weight[0] not in weights]


def make_hollow(auto_class, config: PreTrainedConfig, label: str, attention: str = "auto") -> PreTrainedModel:
    """Makes the model on the meta device, without memory for its weights; arguments as `load_weights`.

    Leaves out of `config` what a former use of the model asked for.

    Raises InputError: no head for the task, a config that no model can be built from, or an attention that the model
    does not have.
    """
    if type(config) not in auto_class._model_mapping:
        raise InputError(
            f"{label}: transformers has no {HEADS[auto_class]} head for model type {config.model_type!r}: name another "
            "model"
        )
    config.output_attentions = False
    config.output_hidden_states = False
    config.chunk_size_feed_forward = 0  # its windows would have to be of a multiple of this length
    if auto_class is AutoModelForQuestionAnswering:  # a span's start and end, whatever the former head's labels
        config.id2label = None
        config.problem_type = None
        config.num_labels = 2
    fault = f"{label}: no {config.model_type} can be built with model.attention {attention}"
    with as_input_error(fault, "set it to auto, or correct config.json"), torch.device("meta"):
        return auto_class.from_config(config, trust_remote_code=False, **_options(attention))


def _options(attention: str) -> dict[str, Any]:
    return {} if attention == "auto" else {"attn_implementation": attention}


# Weights: `label` is how the user named the model


def _check_complete(
    model: PreTrainedModel, missing: set[str], mismatched: Collection[tuple], label: str, head: str, *, new_head: bool
) -> None:
    """Raises InputError: weights are of other shapes, or missing; those outside of `model.base_model`, the task's
    `head`, only unless it is `new_head`."""
    order = list(model.state_dict())
    if mismatched:
        name, in_file, in_model = min(mismatched, key=lambda weight: order.index(weight[0]))
        raise InputError(
            f"{label}: {len(mismatched)} of its weights are of other shapes than its config.json says, first {name} of "
            f"{list(in_file)} in place of {list(in_model)}: correct config.json or name another model"
        )
    base = model.base_model_prefix
    backbone = [name for name in order if name.startswith(f"{base}.") or not hasattr(model, base)]
    lacking = [name for name in backbone if name in missing]
    if lacking:
        raise InputError(
            f"{label}: its files lack {len(lacking)} of the {len(backbone)} weights that its config.json asks for, "
            f"first {lacking[0]}: name a folder with all weights, or correct config.json"
        )
    if missing and not new_head:
        names = [name for name in order if name in missing]
        raise InputError(
            f"{label}: has no weights for {', '.join(names[:3])}: it is without a trained {head} head: name a model "
            "with one"
        )


def _wrongly_tied(model: PreTrainedModel, source: str, names: set[str]) -> set[str]:
    """What the files lack of an output layer and embeddings that config.json says are not one: transformers takes one
    of them for both in T5 and its like, whatever config.json says, and does not report it."""
    settings, _ = PreTrainedConfig.get_config_dict(source)
    outputs = {f"{name}.weight" for name, module in model.named_modules() if module is model.get_output_embeddings()}
    tied = model.all_tied_weights_keys  # name -> the table that it shares
    if settings.get("tie_word_embeddings") is not False or not outputs & tied.keys():
        return set()
    [output] = outputs
    lacking = {output} - names
    tables = {table for pair in tied.items() if pair[1] == tied[output] for table in pair} - {output}
    if not tables & names:
        lacking.add(tied[output])
    return lacking


def check_files(source: str, label: str, *, unused: Collection[str] = ()) -> set[str]:
    """The names of the weights in a model's files.

    Raises InputError: a file is damaged; or a weight that is not in `unused` is quantised: transformers takes its codes
    for values.
    """
    names = set()
    for file in weight_files(source):
        with as_input_error(f"{label}: its {file.name} is damaged", "fetch it again"):
            for name, tensor in _tensors(file):
                names.add(name)
                if name.endswith((".weight", ".bias")) and name not in unused and tensor.dtype not in FLOATS:
                    raise InputError(
                        f"{label}: its {file.name} holds {name} as {tensor.dtype}, not in floating point: name a model "
                        "that is not quantised"
                    )
    return names


def _tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The names and tensors of a file, memory-mapped or on the meta device: nothing of them is read."""
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118
                yield name, content.get_tensor(name)
    else:
        content = torch.load(file, map_location="meta", weights_only=True)
        yield from ((name, value) for name, value in content.items() if isinstance(value, Tensor))
