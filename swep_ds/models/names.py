"""Model names: a hub id, a local folder, or the encoder that comes with this package."""

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerFast

from swep_ds.data.quickstart import ENCODER
from swep_ds.errors import InputError

QUICKSTART = "quickstart:encoder"


def resolve_model(name: str) -> str:
    return str(ENCODER) if name == QUICKSTART else name


def load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model.

    Raises:
        InputError: none there, or only a slow one (no character offsets).
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(name))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"model.name {name}: no tokenizer to load there ({' '.join(str(error).split())[:200]}): give a hub id "
            "that can be reached or a local folder with tokenizer files"
        ) from None
    if not tokenizer.is_fast:
        raise InputError(f"model.name {name}: its tokenizer has no fast version, which gives the answers' offsets")
    return tokenizer


def longest_window(tokenizer: PreTrainedTokenizerFast, config: PretrainedConfig) -> int:
    """Tokens that the model takes at most."""
    return min(tokenizer.model_max_length, getattr(config, "max_position_embeddings", tokenizer.model_max_length))
