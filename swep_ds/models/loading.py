"""Loads a Hugging Face model for a task; whatever is wrong with it is one line.

transformers fills in missing weights without an error. Here only the head of the task may be new.
"""

import logging
import tempfile

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.models.hub import fit_tokenizer, load_config
from swep_ds.models.trials import check_takes_embeddings, depends_on_padding, example_window, run_on_first_layers

log = logging.getLogger(__name__)
HEADS = {
    AutoModelForQuestionAnswering: "question-answering",
    AutoModelForSeq2SeqLM: "sequence-to-sequence",
    AutoModelForMaskedLM: "masked-language-model",
}
# encoder-decoders that do not learn the next token from those before it
OTHERS = {"fsmt": "its decoder sees the tokens that it is to write", "prophetnet": "its loss is over n-grams of tokens"}
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
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> PreTrainedModel:
    """Loads a hub id or a local folder to train, in float32: the engine decides the training precision. A `mapped`
    model's weights stay in their files and dtypes, from where `shard` in training/zero spreads them over the ranks.
    Without `weights` only the config is read, and the model is on the meta device. The `tokenizer` is fitted to the
    model, which is tried on a window of its. The model's attribute `pads` says whether it `depends_on_padding`.

    Raises InputError: as `load_weights` and `fit_tokenizer`; or the model does not take word embeddings, or a setting
    does not fit it.
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
    else:
        model = make_hollow(auto_class, config, label)
    if tokenizer is not None:
        fit_tokenizer(tokenizer, model, label)
    model.pads = False

    def check(tried: PreTrainedModel) -> bool:
        window = example_window(tried, tokenizer)
        check_takes_embeddings(tried, label, window)
        longer = example_window(tried, tokenizer, 2 * window["input_ids"].shape[1])
        return depends_on_padding(tried, label, window, longer)

    if weights and not mapped:
        model.pads = check(model.float())
    elif weights and (not dist.is_initialized() or dist.get_rank() == 0):  # it reads the disk
        model.pads = run_on_first_layers(model, check)
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
    if kind in OTHERS:
        raise InputError(f"{label}: {kind} cannot be used here ({OTHERS[kind]}): name a model such as T5 or BART")
    # what a former use of the model asked for
    config.output_attentions = False
    config.output_hidden_states = False
    config.chunk_size_feed_forward = 0  # its windows would have to be of a multiple of this length
    if getattr(config, "attention_type", "") == "block_sparse":  # which BigBird leaves at its first short window
        config.attention_type = "original_full"
        log.warning("%s: attends to all tokens of a window: block-sparse attention depends on earlier windows", label)
    if auto_class is AutoModelForQuestionAnswering:  # a span's start and end, whatever the former head's labels
        config.num_labels = 2
    fault = f"{label}: no {kind} can be built with its config.json and model.attention"
    with as_input_error(fault, "set it to auto, or correct config.json"), torch.device("meta"):
        return auto_class.from_config(config, trust_remote_code=False)
