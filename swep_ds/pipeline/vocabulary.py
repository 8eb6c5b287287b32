"""The tables of word embeddings, which `train.freeze_embeddings` keeps as they are."""

from pathlib import Path

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME, cached_file

from swep_ds.pipeline.recipe import Recipe


def word_tables(model: PreTrainedModel) -> set[nn.Parameter]:
    """The tables of word embeddings, of an encoder-decoder those of both. An output layer may be tied to them."""
    parts = [model.get_encoder(), model.get_decoder()] if model.config.is_encoder_decoder else [model]
    return {table for part in parts for table in part.get_input_embeddings().parameters()}


def freeze_words(model: PreTrainedModel) -> None:
    """DeepSpeed gives a weight without gradient no float32 copy, no moments and, here, no place in a checkpoint."""
    for table in word_tables(model):
        table.requires_grad_(False)


def frozen_revision(recipe: Recipe) -> str | None:
    """The commit of a model on the hub, if a checkpoint leaves weights of it out; None otherwise."""
    if not recipe.train.freeze_embeddings:
        return None
    return Path(cached_file(recipe.model.name, CONFIG_NAME)).parent.name
