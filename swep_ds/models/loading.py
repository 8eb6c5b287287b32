"""Loading a Hugging Face model to train, with an answer for everything that can be wrong with it."""

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel

from swep_ds.errors import InputError

UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError)  # what from_pretrained raises on a damaged folder


def load_trainable(auto_class, name: str, *, activation_checkpointing: bool, task: str, advice: str) -> PreTrainedModel:
    """A hub id or a local folder in float32.

    Args:
        auto_class: transformers' class for the task, such as `AutoModelForQuestionAnswering`.
        task: in words, as in "no question-answering head".
        advice: what to take instead of a model that has no head for the task.

    Raises:
        InputError: nothing to load there, no head for the task, or word embeddings cannot be given to it.
    """
    try:
        config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(
            f"model.name {name}: neither a model on the hub that can be reached nor a local folder "
            f"with a config.json ({' '.join(str(error).split())[:200]})"
        ) from None
    if type(config) not in auto_class._model_mapping:
        raise InputError(
            f"model.name {name}: transformers has no {task} head for model type {config.model_type!r}: {advice}"
        )
    try:
        model = auto_class.from_pretrained(name, config=config, dtype=torch.float32)
    except UNREADABLE as error:
        raise InputError(f"model.name {name}: cannot load: {' '.join(str(error).split())[:300]}") from None
    check_takes_embeddings(model, name)
    if activation_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise InputError(
                f"train.activation_checkpointing: {type(model).__name__} does not support it: set it to false"
            )
        # the reentrant kind reduces a parameter twice in a joint update at ZeRO-2 and ZeRO-3
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def check_takes_embeddings(model: PreTrainedModel, name: str) -> None:
    """Tries the model on two tokens' embeddings: signatures promise `inputs_embeds` that some models refuse.

    Raises:
        InputError: naming model.name.
    """
    reason = None
    try:
        ids = torch.tensor([[0, 1]])
        decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        with torch.no_grad():
            output = model.eval()(
                inputs_embeds=model.get_input_embeddings()(ids),
                attention_mask=torch.ones_like(ids),
                output_hidden_states=True,
                return_dict=True,
                **decoder,
            )
        if output["encoder_hidden_states" if decoder else "hidden_states"] is None:
            reason = "does not return its hidden states"
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        reason = f"cannot be run on inputs_embeds ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
    if reason:
        raise InputError(
            f"model.name {name}: {type(model).__name__} {reason}, which every perturbation of word embeddings "
            "needs: take a model such as BERT, ELECTRA, RoBERTa, DeBERTa, ModernBERT, T5 or BART"
        )
