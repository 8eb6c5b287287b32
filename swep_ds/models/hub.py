"""Model names (a hub id, a local folder, or a model of this package) and tokenizers."""

import inspect
import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from swep_ds.data.cache import checksum
from swep_ds.data.quickstart import ENCODER, T5
from swep_ds.errors import InputError
from swep_ds.files import check_hub, user_path
from swep_ds.models.folders import check_cache, check_folder, load_config, model_files, transformers_errors

QUICKSTART = {"quickstart:encoder": ENCODER, "quickstart:t5": T5}
SAMPLE = "The quick brown fox jumps over 13 lazy dogs."
UNUSED_IDS = 100_000  # the most ids that a vocabulary may skip; the tokenizers library iterates over all of them
FIRST_TEXTS = 20  # that are looked at: whether a file passes must not depend on what comes later
MIN_KNOWN = 0.5  # share of a text's characters


def resolve_model(name: str, option: str = "model.name") -> str:
    """A folder, with `~` expanded, or a hub id; `option` is the option or field that the user named the model with.
    Raises InputError: the path cannot be looked up, is not a folder, or is missing and cannot be a hub id."""
    if name in QUICKSTART:
        return str(QUICKSTART[name])
    path = user_path(name, option)
    if path.is_dir():
        return str(path)
    if path.exists():
        raise InputError(f"{option} {name}: is not a folder: name the folder that holds its config.json")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:  # a hub id is NAME or OWNER/NAME
        raise InputError(f"{option} {name}: no such folder: name the folder that holds its config.json, or a hub id")
    return name


def model_checksum(name: str, option: str = "model.name") -> str | None:
    """A checksum of the files of a local folder that decide what its model computes (`model_files`); None for a hub id,
    whose name identifies them. Raises InputError: as `resolve_model`, or a file cannot be read."""
    source = resolve_model(name, option)
    files = model_files(source, f"{option} {name}") if Path(source).is_dir() else []
    return checksum(*files)[:32] if files else None


def load_tokenizer(name: str, option: str = "model.name") -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model; `option` as `resolve_model`.

    Raises InputError: no tokenizer, or one that is damaged, slow (no character offsets), without words or a padding
    token, or needs its own code.
    """
    source, label = resolve_model(name, option), f"{option} {name}"
    check_folder(source, label)
    if Path(source, "config.json").is_file():
        load_config(source, option)  # transformers reads it for the tokenizer, too: its faults get their own message
    if not Path(source).is_dir():
        check_cache(source, label)
        check_hub(source, "tokenizer_config.json", label)
    fix = "give a hub id that can be reached or a local folder with tokenizer files"
    with transformers_errors(label, "no tokenizer to load there", fix):
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise InputError(
            f"{label}: its tokenizer has no fast version, which gives the answers' offsets: name a model that has a "
            "tokenizer.json"
        )
    with transformers_errors(label, "its tokenizer cannot be used", "correct its tokenizer files"):
        if fault := _fault(tokenizer):
            raise InputError(f"{label}: its {fault}")
    return tokenizer


def _fault(tokenizer: PreTrainedTokenizerFast) -> str | None:
    """What is wrong with a tokenizer that could be loaded. May raise anything."""
    vocabulary, longest = tokenizer.get_vocab(), tokenizer.model_max_length
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    special.update(tokenizer.all_special_tokens)
    # without tokenizer files transformers makes a tokenizer of special tokens alone
    if not any(letter.isalnum() for token in vocabulary.keys() - special for letter in token):
        return "tokenizer knows no words (no tokenizer files, or empty ones): add the model's, such as tokenizer.json"
    highest = max(vocabulary.values())
    if highest > 2 * len(vocabulary) + UNUSED_IDS:
        return f"tokenizer.json numbers {len(vocabulary)} tokens up to {highest}: number them one by one"
    if not _is_length(longest):
        return f"tokenizer_config.json has model_max_length {longest!r:.80}: give a number of tokens"
    if tokenizer.pad_token_id is None:
        return "tokenizer has no padding token: set pad_token in its configuration"
    encoded = tokenizer(SAMPLE, SAMPLE, return_offsets_mapping=True)
    if not {0, 1} <= set(encoded.sequence_ids()):
        return "tokenizer leaves out texts: correct post_processor in its tokenizer.json"
    # whatever else a run calls
    tokenizer.decode(encoded.input_ids, skip_special_tokens=True)
    tokenizer.backend_tokenizer.to_str()
    _ = tokenizer.unk_token_id
    return None


def fit_tokenizer(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, label: str) -> None:
    """Checks that a model takes every id of its tokenizer, and drops token types that it has no input for.

    transformers gives DistilBERT the tokenizer of BERT, token types included.

    Args:
        label: how the user named the model, as in "model.name ./bert".

    Raises:
        InputError: the model has too few word embeddings or token types.
    """
    fix = "name a folder with the model's own tokenizer files"
    encoded = tokenizer(SAMPLE, SAMPLE, return_token_type_ids=True)
    ids = [*tokenizer.get_vocab().values(), *encoded.input_ids, *tokenizer(SAMPLE).input_ids]
    tokens, rows = max(len(tokenizer), 1 + max(ids)), _rows(model)
    if tokens > rows:
        raise InputError(
            f"{label}: its tokenizer has more tokens than the model has word embeddings ({tokens}, {rows}): they do "
            f"not belong together, {fix}"
        )
    inputs = tokenizer.model_input_names
    if "token_type_ids" not in inspect.signature(model.forward).parameters:
        tokenizer.model_input_names = [name for name in inputs if name != "token_type_ids"]
    elif "token_type_ids" in inputs:
        types = 1 + max(*encoded.token_type_ids, tokenizer.pad_token_type_id)
        if 0 < getattr(model.config, "type_vocab_size", 0) < types:  # 0: takes token types and ignores them
            raise InputError(
                f"{label}: its tokenizer gives {types} token types, and its config.json has type_vocab_size "
                f"{model.config.type_vocab_size}: {fix}"
            )


def _rows(model: PreTrainedModel) -> int:
    embeddings = model.get_input_embeddings()
    return embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else len(embeddings.weight)


def check_knows(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], label: str, data: str) -> None:
    """Checks that a tokenizer knows enough of the beginnings of the first texts; otherwise most words would be the same
    unknown token.

    Args:
        label: how the user named the model, as in "model.name ./bert".
        data: how the user named the texts, as in "data.train".

    Raises:
        InputError: less than `MIN_KNOWN` of their characters, spaces aside, are known.
    """
    known = total = 0
    for text in (text[:1000] for text in islice(texts, FIRST_TEXTS)):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        covered = set()
        for token, (begin, end) in zip(encoded.input_ids, encoded.offset_mapping, strict=True):
            if token != tokenizer.unk_token_id:
                covered.update(range(begin, end))
        letters = {place for place, letter in enumerate(text) if not letter.isspace()}
        known, total = known + len(covered & letters), total + len(letters)
    if known < MIN_KNOWN * total:
        raise InputError(
            f"{label}: its tokenizer knows {known / total:.0%} of the first texts of {data}: name a model for this "
            "language, in a folder with the model's own tokenizer files"
        )


def longest_window(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> int:
    """The most tokens that the model takes, special ones included. Raises InputError: its config gives no number."""
    positions = getattr(model.config, "max_position_embeddings", -1)
    if positions == -1:  # as XLNet's class says; its positions have no limit
        positions = tokenizer.model_max_length
    for name, module in model.named_modules():
        # RoBERTa counts positions from its padding index on
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
