"""Model names: a hub id, a local folder, or one that comes with this package."""

import re

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
        InputError: none there, only a slow one (no character offsets), one without a padding token or with own code.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        refuse_own_code(error, f"{option} {name}")
        raise InputError(
            f"{option} {name}: no tokenizer to load there ({' '.join(str(error).split())[:200]}): give a hub id "
            "that can be reached or a local folder with tokenizer files"
        ) from None
    if not tokenizer.is_fast:
        raise InputError(f"{option} {name}: its tokenizer has no fast version, which gives the answers' offsets")
    if tokenizer.pad_token_id is None:
        raise InputError(f"{option} {name}: its tokenizer has no padding token: set pad_token in its configuration")
    return tokenizer


def refuse_own_code(error: Exception, model: str) -> None:
    """Of an error of transformers or PyTorch, whose own advice is to run what a model brings along.

    Raises:
        InputError: `model` needs code that comes with it, beside its weights or pickled in them.
    """
    if re.search("trust_remote_code|unsupported global", str(error), re.IGNORECASE):
        raise InputError(
            f"{model}: needs code of its own, which is never run: name a model that transformers itself has a class for"
        ) from None


def check_vocabulary(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, named: str) -> None:
    """Whether the word embeddings of a model, `named` so by the user, have a row for each of its tokenizer's tokens.

    Raises:
        InputError: they have not.
    """
    tokens, rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    if tokens > rows:
        raise InputError(
            f"{named}: its tokenizer has more tokens than the model has word embeddings ({tokens}, {rows}): they do "
            "not belong together, name a folder with the model's own tokenizer files"
        )


def longest_window(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> int:
    """Tokens that the model takes at most, special ones included."""
    positions = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
    for name, module in model.named_modules():
        # RoBERTa's kind counts positions from its padding index on
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    return min(tokenizer.model_max_length, positions)
