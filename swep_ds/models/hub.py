"""A model's config and tokenizer, from a folder or the hub. No code of its own is run."""

import inspect
import json
import logging
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import cached_file, find_adapter_config_file

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_hub
from swep_ds.data.windows import is_mark, stop_sampling
from swep_ds.models.folders import resolve_model
from swep_ds.models.outputs import counted_positions
from swep_ds.ranks.environment import warn_once

log = logging.getLogger(__name__)
# arguments of a tokenizer's class, which may differ from the defaults
KEPT = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "pad_token_type_id")
FIRST_TEXTS = 20  # that are looked at: whether questions are taken must not depend on what comes later
MIN_KNOWN = 0.5  # share of a text's letters and digits
# Fields of config.json, wherever they stand: attention and experts may be code from the hub, and quantised weights
# cannot be trained.
REFUSED = re.compile(
    r'"(\w*(?:attn|experts)_implementation\w*|quantization_config)": '
    r'(?!null|true|false|"(?:eager|sdpa|batched_mm|grouped_mm)")'
)


def check_adapter(source: str, label: str) -> None:
    """Raises InputError: the folder or hub id holds a PEFT adapter, with or without a model. transformers applies one
    that it finds, without the head that was trained with it."""
    if find_adapter_config_file(source):
        raise InputError(
            f"{label}: holds an adapter (adapter_config.json): merge it (merge_and_unload), save model and tokenizer, "
            "and name that folder"
        )


def load_config(name: str, option: str = "model.name") -> PreTrainedConfig:
    """The config of a hub id or a local folder; `option` is what the user named it with. Raises InputError: there is no
    model, it holds an adapter, needs its own code or is quantised, or its config.json is malformed."""
    label = f"{option} {name}"
    fix = "name a model that transformers itself has a class for, on the hub or in a folder with a config.json"
    if not Path(name).is_dir():
        check_hub(name, "config.json", label)
        with as_input_error(f"{label}: no such folder, and no such model on the hub or in its cache", fix):
            cached_file(name, "config.json")
    with as_input_error(f"{label}: no model can be built from its config.json", fix):
        check_adapter(name, label)
        settings, _ = PreTrainedConfig.get_config_dict(name)
        if refused := REFUSED.search(json.dumps(settings)):
            raise InputError(
                f"{label}: its config.json has {refused[1]}, which may need code from the hub or weights that cannot "
                "be trained: remove the field, or name another model"
            )
        return AutoConfig.from_pretrained(name, trust_remote_code=False)


def load_tokenizer(name: str, option: str = "model.name") -> PreTrainedTokenizerFast:
    """The fast tokenizer of a model, which encodes a text in one way only. Raises InputError: no tokenizer, or one that
    is damaged, slow (no character offsets), without words or a padding token, or needs its own code."""
    source = resolve_model(name, option)
    label = f"{option} {name}"
    if not Path(source).is_dir():
        check_hub(source, "tokenizer_config.json", label)
    fix = "name a hub id that can be reached or a local folder with tokenizer files, of a class of transformers itself"
    with as_input_error(f"{label}: no tokenizer to load there", fix):
        check_adapter(source, label)
        if Path(source, "config.json").is_file():
            load_config(source, option)  # transformers reads it, too: its faults get their own message
        tokenizer = _load_tokenizer(source)
    if not tokenizer.is_fast:
        raise InputError(f"{label}: its tokenizer has no fast version: name a model with a tokenizer.json")
    stop_sampling(tokenizer.backend_tokenizer)
    # without tokenizer files transformers makes a tokenizer that has only special tokens
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    if not any(letter.isalnum() for word in tokenizer.get_vocab().keys() - special for letter in word):
        raise InputError(f"{label}: its tokenizer knows no words: add the model's files, such as tokenizer.json")
    if tokenizer.pad_token_id is None:
        raise InputError(f"{label}: its tokenizer has no padding token: set pad_token in its configuration")
    return tokenizer


def _load_tokenizer(source: str) -> PreTrainedTokenizerFast:
    """transformers builds a tokenizer of the class that a config names and takes little more than the vocabulary from
    tokenizer.json. Where the file treats texts otherwise, the model would get other tokens than those that it learnt.
    So the file, if there is one, is loaded as it is, with the special tokens of the class that it knows."""
    file = cached_file(source, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    try:
        made = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (TypeError, ImportError):  # the class takes no such vocabulary, or needs a package that is not there
        if file is None:
            raise
        return PreTrainedTokenizerFast.from_pretrained(source)
    if file is None or not made.is_fast:
        return made
    written = Tokenizer.from_file(file)
    settings = {name: getattr(made, name) for name in KEPT}
    for name, token in made.special_tokens_map.items():
        if written.token_to_id(str(token)) is not None:
            settings[name] = str(token)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source, **settings)
    if written.post_processor is None:  # the file leaves special tokens to the class
        tokenizer.backend_tokenizer.post_processor = made.backend_tokenizer.post_processor
    return tokenizer


def fit_tokenizer(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, label: str) -> None:
    """Has the tokenizer give token types where the model has a table of several, and only there. transformers 5 asks a
    list that version 4 did not write into the files, and gives DistilBERT those of BERT; RoBERTa has a single type;
    GPT-2 and XLM look types up among the words. Raises InputError: the model has too few word embeddings for it."""
    tokens = 1 + max(tokenizer.get_vocab().values())
    with as_input_error(f"{label}: {type(model).__name__} gives no table of word embeddings", "name another model"):
        rows = len(model.get_input_embeddings().weight)  # I-BERT's is no nn.Embedding, and CANINE has several
    if tokens > rows:
        raise InputError(
            f"{label}: its tokenizer has more tokens than the model has word embeddings ({tokens}, {rows}): name a "
            "folder with the model's own tokenizer files or, if tokens were added to it, save the model after "
            "model.resize_token_embeddings(len(tokenizer))"
        )
    names = tokenizer.model_input_names
    if not tells_types_apart(model):
        tokenizer.model_input_names = [name for name in names if name != "token_type_ids"]
    elif "token_type_ids" not in names:
        tokenizer.model_input_names = [*names, "token_type_ids"]


def tells_types_apart(model: PreTrainedModel) -> bool:
    tables = [table for name, table in model.named_parameters() if "token_type" in name or "seg_embed" in name]
    taken = inspect.signature(model.forward).parameters
    return "token_type_ids" in taken and any(len(table) > 1 for table in tables)


def check_knows(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], label: str, data: str) -> None:
    """Raises InputError: a tokenizer knows less than `MIN_KNOWN` of the letters and digits at the texts' beginnings.
    Most words would be the same unknown token. `label` and `data` are how the user named the model and the texts."""
    beginnings = [text[:1000] for text in islice(texts, FIRST_TEXTS)]
    if not beginnings:
        return
    known = 0
    total = 0
    encoded = tokenizer(beginnings, add_special_tokens=False, return_offsets_mapping=True)
    for text, ids, offsets in zip(beginnings, encoded.input_ids, encoded.offset_mapping, strict=True):
        covered = set()
        for token, offset in zip(ids, offsets, strict=True):
            if token != tokenizer.unk_token_id:
                covered.update(range(*offset))
        # a tokenizer may leave out marks, such as vowel points
        letters = [place for place, letter in enumerate(text) if letter.isalnum() and not is_mark(letter)]
        known += len(covered.intersection(letters))
        total += len(letters)
    if known < MIN_KNOWN * total:
        raise InputError(
            f"{label}: its tokenizer knows {known / total:.0%} of the first texts of {data}: name a model for this "
            "language, in a folder with the model's own tokenizer files"
        )


def longest_window(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel) -> int:
    """The most tokens, special ones included, that the model was made for."""
    positions = getattr(model.config, "max_position_embeddings", -1)
    if positions == -1:  # as XLNet's class says; its positions have no limit
        positions = tokenizer.model_max_length
    if table := counted_positions(model):
        positions = table.num_embeddings - table.padding_idx - 1
    return int(min(tokenizer.model_max_length, positions))


def check_length(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, length: int, field: str) -> None:
    """Raises InputError: the model has a table of positions that is too short for windows of `length` tokens, which the
    user set in `field`. Warns where it has none, and was made for shorter windows."""
    longest = longest_window(tokenizer, model)
    if length <= longest:
        return
    names = " ".join(name for name, _ in [*model.named_modules(), *model.named_buffers()] if "vision" not in name)
    if re.search(r"(position_embeddings?|embed_positions|wpe)\b", names) or hasattr(model.config, "max_seq_len"):
        raise InputError(f"{field} {length}: the model takes at most {longest} tokens: lower it")
    warn_once(f"{field} {length}: the model was made for {longest} tokens, but its positions have no limit")


def pad_to_one_length(tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel, length: int) -> None:
    """Has `padded_inputs` pad every window to `length` tokens, for a model that `depends_on_padding`."""
    log.warning("the logits of a %s depend on padding: windows are padded to %d tokens", type(model).__name__, length)
    tokenizer.padded_length = length
