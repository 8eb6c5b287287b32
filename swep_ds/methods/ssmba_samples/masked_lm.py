"""Masked language models to sample tokens from: any `AutoModelForMaskedLM` with a fast tokenizer."""

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.common.errors import InputError
from swep_ds.models.folders import load_config
from swep_ds.models.hub import fit_tokenizer, load_tokenizer, resolve_model
from swep_ds.models.loading import load_weights

PLACES_AT_A_TIME = 256  # with their float64 probabilities over the vocabulary in memory


def load_masked_lm(name: str, device: torch.device) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The model of a hub id or a local folder, in float32 and evaluation mode, and its tokenizer.

    Raises InputError: it cannot be loaded, or has no mask token or no trained head.
    """
    tokenizer = load_tokenizer(name, "--model")
    label = f"--model {name}"
    if tokenizer.mask_token_id is None:
        raise InputError(f"{label}: its tokenizer has no mask token: name a model such as bert-base-uncased")
    source = resolve_model(name, "--model")
    model = load_weights(AutoModelForMaskedLM, load_config(source, "--model"), source, label, dtype=torch.float32)
    fit_tokenizer(tokenizer, model, label)
    return model.eval().to(device), tokenizer


@torch.no_grad()
def draw(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    rows: Tensor,
    positions: Tensor,
    uniforms: Tensor,
    candidates: Tensor,
) -> Tensor:
    """Tokens [S] drawn from the softmax over `candidates` at S places, by inversion of its distribution in float64.

    Args:
        inputs: the model's inputs [N, T].
        rows, positions: [S] int64, the places in `inputs`.
        uniforms: [S] float64 in [0, 1); with the logits they determine the draws.
        candidates: [V] int64, the ids that may be drawn.
    """
    logits = logits_at(model, inputs, rows, positions)
    drawn = []
    for part, u in zip(logits.split(PLACES_AT_A_TIME), uniforms.split(PLACES_AT_A_TIME), strict=True):
        cumulated = part[:, candidates].double().softmax(-1).cumsum(-1)
        reached = u[:, None] * cumulated[:, -1:]
        drawn.append(candidates[torch.searchsorted(cumulated, reached, right=True)[:, 0]])
    return torch.cat(drawn)


def logits_at(model: PreTrainedModel, inputs: dict[str, Tensor], rows: Tensor, positions: Tensor) -> Tensor:
    """Logits [S, V] at S places of the inputs [N, T].

    The output layer gets only these places: on all [N, T] it would cost as much as a small encoder, and the logits of a
    large vocabulary would take most of the memory.
    """
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, hidden: (hidden[0][rows, positions],))
    try:
        logits = model(**inputs, return_dict=True).logits
    finally:
        hook.remove()
    if logits.dim() == 3:  # MobileBERT multiplies by the layer's weights itself, past the hook
        return logits[rows, positions]
    return logits
