"""Model names: a hub id, a local folder, or one that comes with this package."""

from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.data.quickstart import ENCODER, T5
from swep_ds.errors import InputError

QUICKSTART = {"quickstart:encoder": ENCODER, "quickstart:t5": T5}


def resolve_model(name: str) -> str:
    return str(QUICKSTART.get(name, name))


def load_tokenizer(name: str, option: str = "model.name") -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model; `option` is what the user named it with.

    Raises:
        InputError: none there, only a slow one (no character offsets), or one without a padding token.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(name))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"{option} {name}: no tokenizer to load there ({' '.join(str(error).split())[:200]}): give a hub id "
            "that can be reached or a local folder with tokenizer files"
        ) from None
    if not tokenizer.is_fast:
        raise InputError(f"{option} {name}: its tokenizer has no fast version, which gives the answers' offsets")
    if tokenizer.pad_token_id is None:
        raise InputError(f"{option} {name}: its tokenizer has no padding token: set pad_token in its configuration")
    return tokenizer


def longest_window(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> int:
    """Tokens that the model takes at most, special ones included."""
    positions = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
    for name, module in model.named_modules():
        # RoBERTa's kind counts positions from its padding index on
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    return min(tokenizer.model_max_length, positions)
