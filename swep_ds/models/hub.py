"""Model names: a hub id, a local folder, or one that comes with this package; and their tokenizers."""

import inspect
import math
from collections.abc import Iterable
from pathlib import Path

from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.data.quickstart import ENCODER, T5
from swep_ds.errors import InputError
from swep_ds.files import user_path
from swep_ds.models.configs import load_config
from swep_ds.models.folders import check_folder, reading

QUICKSTART = {"quickstart:encoder": ENCODER, "quickstart:t5": T5}
TRIED = "The quick brown fox jumps over 13 lazy dogs."
FREE_NUMBERS = 100_000  # that no token has; the tokenizers library goes through all of them
KNOWN = 0.5  # the share of a text's characters that a tokenizer must know at least


def resolve_model(name: str, option: str = "model.name") -> str:
    """What transformers is to be given: a folder, with `~` expanded, or a hub id.

    Args:
        option: what the user named the model with.

    Raises:
        InputError: the path cannot be looked up, or is no folder.
    """
    if name in QUICKSTART:
        return str(QUICKSTART[name])
    path = user_path(name, option)
    if path.is_dir():
        return str(path)
    if path.exists():
        raise InputError(f"{option} {name}: is no folder: name the folder that holds its config.json")
    return name


def load_tokenizer(name: str, option: str = "model.name") -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model; `option` is what the user named it with.

    Raises:
        InputError: none there, or one that cannot be read; only a slow one (no character offsets), without words,
            without a padding token or with own code.
    """
    source, named = resolve_model(name, option), f"{option} {name}"
    check_folder(source, named)
    if Path(source, "config.json").is_file():
        load_config(source, option)  # transformers reads it for the tokenizer, too, and would blame that
    fix = "give a hub id that can be reached or a local folder with tokenizer files"
    with reading(named, "no tokenizer to load there", fix):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise InputError(f"{named}: its tokenizer has no fast version, which gives the answers' offsets")
    with reading(named, "its tokenizer cannot be used", "correct its tokenizer files"):
        vocabulary = tokenizer.get_vocab()
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        special.update(tokenizer.all_special_tokens)
        # of a folder without tokenizer files transformers makes a tokenizer without words
        if not any(letter.isalnum() for token in vocabulary.keys() - special for letter in token):
            raise InputError(
                f"{named}: its tokenizer knows no words, for the folder has no tokenizer files, or empty ones: add the "
                "model's own, such as tokenizer.json"
            )
        highest = max(vocabulary.values())
        if highest > 2 * len(vocabulary) + FREE_NUMBERS:
            raise InputError(
                f"{named}: its tokenizer.json numbers {len(vocabulary)} tokens up to {highest}: number them one by one"
            )
        longest = tokenizer.model_max_length
        if not _is_length(longest):
            raise InputError(
                f"{named}: its tokenizer_config.json has model_max_length {longest!r:.80}: give a number of tokens"
            )
        if tokenizer.pad_token_id is None:
            raise InputError(f"{named}: its tokenizer has no padding token: set pad_token in its configuration")
        encoded = tokenizer(TRIED, TRIED, return_offsets_mapping=True)
        if not {0, 1} <= set(encoded.sequence_ids()):
            raise InputError(f"{named}: its tokenizer leaves out texts: correct post_processor in its tokenizer.json")
        tokenizer.decode(encoded.input_ids, skip_special_tokens=True)
        tokenizer.backend_tokenizer.to_str()
        _ = tokenizer.unk_token_id
    return tokenizer


def fit_tokenizer(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, named: str) -> None:
    """Checks that a model takes all ids that its tokenizer gives, and leaves out token types that it has no input for.

    transformers gives DistilBERT the tokenizer of BERT, token types included.

    Args:
        named: how the user named the model, as in "model.name ./bert".

    Raises:
        InputError: the model has too few word embeddings or token types.
    """
    tried = tokenizer(TRIED, TRIED, return_token_type_ids=True)
    numbers = [*tokenizer.get_vocab().values(), *tried.input_ids, *tokenizer(TRIED).input_ids]
    tokens = max(len(tokenizer), 1 + max(numbers))
    rows = model.get_input_embeddings().num_embeddings
    if tokens > rows:
        raise InputError(
            f"{named}: its tokenizer has more tokens than the model has word embeddings ({tokens}, {rows}): they do "
            "not belong together, name a folder with the model's own tokenizer files"
        )
    inputs = tokenizer.model_input_names
    if "token_type_ids" not in inspect.signature(model.forward).parameters:
        tokenizer.model_input_names = [name for name in inputs if name != "token_type_ids"]
    elif "token_type_ids" in inputs:
        types = 1 + max(*tried.token_type_ids, tokenizer.pad_token_type_id)
        if 0 < getattr(model.config, "type_vocab_size", 0) < types:  # 0: takes them, and reads none
            raise InputError(
                f"{named}: its tokenizer gives {types} token types, and its config.json has type_vocab_size "
                f"{model.config.type_vocab_size}: name a folder with the model's own tokenizer files"
            )


def check_knows(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], named: str, source: str) -> None:
    """Whether a tokenizer knows at least `KNOWN` of what some texts consist of, by characters without spaces.

    Args:
        source: what the user named the texts with.

    Raises:
        InputError: it does not; most words would be one and the same unknown token, or none.
    """
    known = total = 0
    for text in texts:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        covered = set()
        for token, (begin, end) in zip(encoded.input_ids, encoded.offset_mapping, strict=True):
            if token != tokenizer.unk_token_id:
                covered.update(range(begin, end))
        letters = {place for place, letter in enumerate(text) if not letter.isspace()}
        known, total = known + len(covered & letters), total + len(letters)
    if known < KNOWN * total:
        raise InputError(
            f"{named}: its tokenizer knows {known / total:.0%} of the first texts of {source}: name a model for this "
            "language, in a folder with the model's own tokenizer files"
        )


def longest_window(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> int:
    """Tokens that the model takes at most, special ones included.

    Raises:
        InputError: its config gives no number.
    """
    positions = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
    for name, module in model.named_modules():
        # RoBERTa's kind counts positions from its padding index on
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            positions = module.num_embeddings - module.padding_idx - 1
    if not _is_length(positions):
        raise InputError(
            f"model {model.config.name_or_path}: its config.json has max_position_embeddings {positions!r:.80}: give a "
            "number of tokens"
        )
    return int(min(tokenizer.model_max_length, positions))


def _is_length(value: object) -> bool:
    return type(value) in (int, float) and 1 <= value < math.inf
