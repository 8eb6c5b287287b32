"""Loading a Hugging Face model to train, with an answer for everything that can be wrong with it."""

from pathlib import Path
from pickle import UnpicklingError

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from swep_ds.errors import InputError
from swep_ds.models.masks import use_given_masks
from swep_ds.models.names import refuse_own_code

# what from_pretrained raises on a damaged folder: of its files, and of values in its config that make no model
UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError, StrictDataclassError, ImportError)
UNREADABLE += (TypeError, AttributeError, LookupError, ArithmeticError)


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
            makes no model, or word embeddings cannot be given to it.
    """
    use_given_masks()
    config = load_config(name)
    if config.is_encoder_decoder and auto_class is not AutoModelForSeq2SeqLM:
        raise InputError(
            f"task extractive: {name} is a sequence-to-sequence model ({config.model_type}): set task to generative"
        )
    if type(config) not in auto_class._model_mapping:
        raise InputError(
            f"model.name {name}: transformers has no {task} head for model type {config.model_type!r}: {advice}"
        )
    config.dtype = None  # what it says need not be what the files hold
    chosen = {} if attention == "auto" else {"attn_implementation": attention}
    if chosen or mapped or not weights:
        hollow = _hollow(auto_class, config, name, chosen)
    if weights:
        model = _filled(auto_class, config, name, chosen)
    else:
        model = hollow
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


def load_config(name: str) -> PreTrainedConfig:
    """The config of a hub id or a local folder.

    Raises:
        InputError: naming model.name; nothing there, code of its own, or no config that transformers understands.
    """
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except UNREADABLE as error:
        refuse_own_code(error, f"model.name {name}")
        if Path(name, "config.json").is_file():
            raise _makes_no_model(name, error) from None
        raise InputError(
            f"model.name {name}: neither a model on the hub that can be reached nor a local folder "
            f"with a config.json ({_reason(error)})"
        ) from None


def _makes_no_model(name: str, error: Exception) -> InputError:
    return InputError(
        f"model.name {name}: its config.json makes no model ({_reason(error)}): mend it or name another model"
    )


def _reason(error: Exception) -> str:
    kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())[:300]


def _filled(auto_class, config: PreTrainedConfig, name: str, chosen: dict[str, str]) -> PreTrainedModel:
    try:
        # no dtype: parameters in that of their file stay there, and a head that it lacks is drawn alike either way
        return auto_class.from_pretrained(name, config=config, dtype="auto", trust_remote_code=False, **chosen)
    except UNREADABLE as error:
        refuse_own_code(error, f"model.name {name}")
        raise InputError(f"model.name {name}: cannot load: {_reason(error)}") from None


def _hollow(auto_class, config: PreTrainedConfig, name: str, chosen: dict[str, str]) -> PreTrainedModel:
    """The model without memory for its weights."""
    try:
        with torch.device("meta"):
            return auto_class.from_config(config, **chosen)
    except UNREADABLE as error:
        if not chosen or not isinstance(error, ImportError | ValueError):
            raise _makes_no_model(name, error) from None
        [attention] = chosen.values()
        raise InputError(
            f"model.attention {attention}: not to be had here for {config.model_type} ({_reason(error)}): set it "
            "to auto"
        ) from None


def check_takes_embeddings(model: PreTrainedModel, name: str) -> None:
    """Tries the model on two tokens' embeddings: signatures promise `inputs_embeds` that some models refuse.

    On the meta device a model that looks at values cannot be tried, and passes.

    Raises:
        InputError: naming model.name.
    """
    reason = None
    try:
        ids = torch.tensor([[0, 1]], device=model.device)
        mask = {} if model.device.type == "meta" else {"attention_mask": torch.ones_like(ids)}
        decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        with torch.no_grad():
            output = model.eval()(
                inputs_embeds=model.get_input_embeddings()(ids),
                **mask,
                output_hidden_states=True,
                return_dict=True,
                **decoder,
            )
        if output["encoder_hidden_states" if decoder else "hidden_states"] is None:
            reason = "does not return its hidden states"
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        if model.device.type == "meta" and isinstance(error, RuntimeError):
            return
        reason = f"cannot be run on inputs_embeds ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    if reason:
        raise InputError(
            f"model.name {name}: {type(model).__name__} {reason}, which every perturbation of word embeddings "
            "needs: take a model such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
        )
