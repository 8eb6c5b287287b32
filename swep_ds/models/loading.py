"""Loads a Hugging Face model for a task; whatever is wrong with it is one line."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from swep_ds.common.errors import InputError
from swep_ds.models.folders import BAD_CONFIG, CORRECT, load_config, transformers_errors, weight_files
from swep_ds.models.trial import check_mapped, check_takes_embeddings
from swep_ds.models.weights import check_complete, check_files, check_finite

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
        weights: False reads only the config; the model is then on the meta device.

    Raises:
        InputError: as `load_weights`; or the model does not take word embeddings, does not support activation
            checkpointing, has no dropout of attention weights to set, or has a config that could not be exported.
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
    if not weights:
        model = make_hollow(auto_class, config, label, attention)
        check_takes_embeddings(model, label)
    else:
        new_head = not config.is_encoder_decoder
        model = load_weights(auto_class, config, name, label, attention, mapped=mapped, new_head=new_head)
        if not mapped:
            check_takes_embeddings(model.float(), label)
        elif _reads_mapped():
            check_mapped(model, label)
    with (
        tempfile.TemporaryDirectory() as folder,
        transformers_errors(label, "its config.json could not be exported after the training", CORRECT),
    ):
        model.config.save_pretrained(folder)
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
    mapped: bool = False,
    new_head: bool = False,
    dtype: torch.dtype | str = "auto",
) -> PreTrainedModel:
    """Loads a model whose weights all come from its files, except for a new head.

    Args:
        config: from `load_config`, for `source`: a folder or a hub id.
        label: how the user named the model, as in "model.name ./bert".
        mapped: as `load_trainable`; only rank 0 then checks that the weights are finite.
        new_head: whether the task's head may be missing; transformers then draws it, the same at any dtype.
        dtype: "auto" = the config's, else the files'.

    Raises:
        InputError: as `make_hollow`; or files that are damaged or need own code; weights that are missing, of other
            shapes, not in floating point or not finite.
    """
    renamed = _prefixes(make_hollow(auto_class, config, label, attention))
    with transformers_errors(label, "cannot load", "correct the folder or name another model"):
        model, report = auto_class.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `check_complete` names them
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
    names = check_files(source, label, unused=report["unexpected_keys"], finite=mapped and _reads_mapped())
    check_complete(model, source, names, report, label, HEADS[auto_class][0], new_head=new_head)
    if not mapped or any(file.suffix == ".bin" for file in weight_files(source, label)):  # pickles are not mapped
        check_finite(model, label)
    return model


def _reads_mapped() -> bool:
    """Whether this rank checks what is mapped, which reads it from the disk: only rank 0."""
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
        head, advice = HEADS[auto_class]
        raise InputError(
            f"{label}: transformers has no {head} head for model type {config.model_type!r}: name {advice}"
        )
    config.output_attentions = config.output_hidden_states = False
    config.chunk_size_feed_forward = 0  # its windows would have to be of a multiple of this length
    if auto_class is AutoModelForQuestionAnswering:  # a span's start and end, whatever the former head's labels
        config.id2label = config.problem_type = None
        config.num_labels = 2
    fault, fix = BAD_CONFIG, CORRECT
    if attention != "auto":
        fault, fix = f"no {config.model_type} can be built with model.attention {attention}", "set it to auto"
    with transformers_errors(label, fault, fix), torch.device("meta"):
        return auto_class.from_config(config, trust_remote_code=False, **_options(attention))


def _options(attention: str) -> dict[str, Any]:
    return {} if attention == "auto" else {"attn_implementation": attention}
