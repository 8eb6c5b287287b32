"""Loading a Hugging Face model to train, with an answer for everything that can be wrong with it."""

from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from swep_ds.errors import InputError, reason
from swep_ds.models.configs import CORRECT, NO_MODEL, blaming, load_config
from swep_ds.models.folders import reading
from swep_ds.models.masks import use_given_masks
from swep_ds.models.weights import check_finite, check_kinds, check_loaded, check_mapped_finite, check_size


def load_trainable(
    auto_class,
    name: str,
    *,
    activation_checkpointing: bool,
    attention: str = "auto",
    mapped: bool = False,
    weights: bool = True,
    task: str,
    advice: str,
) -> PreTrainedModel:
    """A hub id or a local folder, in float32 unless `mapped`.

    Args:
        auto_class: transformers' class for the task, such as `AutoModelForQuestionAnswering`.
        attention: transformers' `attn_implementation`; "auto" = what it takes by itself.
        mapped: leaves the weights in their files and as they are there, mapped into memory that the system takes
            back when it runs short, to be spread over the ranks from there (`training.sharding.shard`).
        weights: whether to load them; False = the config alone is read, and the model is on the meta device.
        task: in words, as in "no question-answering head".
        advice: what to take instead of a model that has no head for the task.

    Raises:
        InputError: nothing to load there, code of its own, no head for the task, no such attention, a config that
            makes no model, weights that are missing, of other shapes or not finite, or word embeddings cannot be given
            to it.
    """
    use_given_masks()
    named = f"model.name {name}"
    config = load_config(name)
    if config.is_encoder_decoder and auto_class is not AutoModelForSeq2SeqLM:
        raise InputError(
            f"task extractive: {name} is a sequence-to-sequence model ({config.model_type}): set task to generative"
        )
    if type(config) not in auto_class._model_mapping:
        raise InputError(f"{named}: transformers has no {task} head for model type {config.model_type!r}: {advice}")
    config.dtype = None  # what it says need not be what the files hold
    hollow = make_hollow(auto_class, config, name, named, attention)
    model = hollow
    if weights:
        chosen = {} if attention == "auto" else {"attn_implementation": attention}
        # no dtype: parameters in that of their file stay there, and a head that it lacks is drawn alike either way
        model = load_weights(
            auto_class,
            config,
            hollow,
            name,
            named,
            mapped=mapped,
            new_head=not config.is_encoder_decoder,
            advice="name a folder with all weights",
            dtype="auto",
            **chosen,
        )
    if weights and not mapped:
        model = model.float()
    check_takes_embeddings(hollow if mapped else model, name)
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
    hollow: PreTrainedModel,
    source: str,
    named: str,
    *,
    mapped: bool = False,
    new_head: bool,
    advice: str,
    **how: Any,
) -> PreTrainedModel:
    """A model with its weights, all of which came from its files, but for a head that may be new.

    Args:
        config: from `load_config`.
        hollow: the model on the meta device.
        named: how the user named it, as in "model.name ./bert".
        mapped: as `load_trainable`; then rank 0 alone looks whether the weights are finite.
        new_head, advice: as `check_loaded`.
        how: further arguments of `from_pretrained`.

    Raises:
        InputError: files that are damaged or need own code; weights that are missing, of other shapes or no floats,
            not finite, or far fewer than the config asks for.
    """
    check_size(hollow, source, named)
    with reading(named, "cannot load", "correct the folder or name another model"):
        model, report = auto_class.from_pretrained(
            source,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # else transformers names none
            trust_remote_code=False,
            **how,
        )
    check_loaded(model, report, named, new_head=new_head, advice=advice)
    check_kinds(source, report, named)
    if not mapped:
        check_finite(model, named)
    elif not dist.is_initialized() or dist.get_rank() == 0:
        check_mapped_finite(model, source, report, named)
    return model


def make_hollow(
    auto_class, config: PreTrainedConfig, source: str, named: str, attention: str = "auto"
) -> PreTrainedModel:
    """The model without memory for its weights, on the meta device.

    Raises:
        InputError: its config makes no model, or not with this attention.
    """
    chosen = {} if attention == "auto" else {"attn_implementation": attention}

    def make(config: PreTrainedConfig) -> PreTrainedModel:
        with torch.device("meta"):
            return auto_class.from_config(config, trust_remote_code=False, **chosen)

    try:
        with reading(named, NO_MODEL, CORRECT):
            return make(config)
    except InputError as error:
        if chosen and isinstance(error.__cause__, ImportError | ValueError):
            raise InputError(
                f"model.attention {attention}: not to be had here for {config.model_type} ({reason(error.__cause__)}): "
                "set it to auto"
            ) from None
        settings, _ = PreTrainedConfig.get_config_dict(source)
        raise blaming(error, settings, lambda others: make(AutoConfig.for_model(**others))) from None


def check_takes_embeddings(model: PreTrainedModel, name: str) -> None:
    """Tries the model on two tokens' embeddings: signatures promise `inputs_embeds` that some models refuse.

    On the meta device a model that looks at values cannot be tried, and passes.

    Raises:
        InputError: naming model.name.
    """
    fault, on_meta = None, model.device.type == "meta"
    try:
        ids = torch.tensor([[0, 1]], device=model.device)
        mask = {} if on_meta else {"attention_mask": torch.ones_like(ids)}
        decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        with torch.no_grad():
            output = model.eval()(
                inputs_embeds=model.get_input_embeddings()(ids),
                **mask,
                output_hidden_states=True,
                return_dict=True,
                **decoder,
            )
        hidden = output["encoder_hidden_states" if decoder else "hidden_states"]
        if hidden is None:
            fault = "does not return its hidden states"
        elif not on_meta and not hidden[-1].isfinite().all():
            fault = "gives NaN or infinity of any text"
    except Exception as error:  # which one, a model's code alone knows
        if on_meta and isinstance(error, RuntimeError):
            return
        fault = f"cannot be run on inputs_embeds ({type(error).__name__}: {reason(error, 160)})"
    if fault:
        raise InputError(
            f"model.name {name}: {type(model).__name__} {fault}, which every perturbation of word embeddings "
            "needs: take a model such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
        )
