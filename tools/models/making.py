"""Tiny random models, one of each architecture that transformers has for question answering, with tokenizers of their
families' shapes. Nothing of this package is used."""

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

SIZES = yaml.safe_load(Path(__file__).with_name("sizes.yaml").read_text(encoding="utf-8"))
AUDIO = ("input_features", "input_values")
LENGTH = 32  # tokens of the longest window
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "[QUESTION]", "."]
WORDS = [
    *("who", "made", "the", "old", "stone", "bridge", "over", "a", "wide", "river", "near"),
    *("hill", "town", "it", "was", "by", "many", "people", "in", "that", "year"),
]
QUESTION = "who made the bridge"
SHORT, LONG, OTHER = " ".join(WORDS[5:12]), " ".join(WORDS * 2), " ".join(WORDS[::-1] * 2)
TEMPLATES = {  # for one text, and for a pair
    "bert": ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "xlnet": ("$A </s> <s>:2", "$A </s> $B:1 </s>:1 <s>:2"),
    "splinter": ("<s> $A </s>", "<s> $A [QUESTION] . </s> $B:1 </s>:1"),
    "decoder": ("$A", "$A $B:1"),
    "t5": ("$A </s>", "$A </s> $B </s>"),
}


def architectures() -> tuple[list[str], list[str], list[str]]:
    """The names of models with a head for spans, of encoder-decoders that read text, and of those that hear."""
    seq2seq, audio = [], []
    for name, kind in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.items():
        hears = {*AUDIO} & inspect.signature(getattr(transformers, kind).forward).parameters.keys()
        (audio if hears else seq2seq).append(name)
    spans = [name for name in MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES if name not in seq2seq]
    return sorted(spans), sorted(seq2seq), sorted(audio)


def tokenizer(shape: str) -> PreTrainedTokenizerFast:
    """One token a word, with the special tokens of a family in their places."""
    words = [*SPECIAL, *dict.fromkeys([*WORDS, "question", "context", ":"])]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(SPECIAL[:6])
    single, pair = TEMPLATES[shape]
    used = [(token, backend.token_to_id(token)) for token in SPECIAL]
    backend.post_processor = processors.TemplateProcessing(single, pair, used)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>", "model_max_length": LENGTH}
    if shape not in ("decoder", "t5"):
        names |= {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def is_generative(name: str) -> bool:
    return name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES


def auto_class(name: str) -> Any:
    return AutoModelForSeq2SeqLM if is_generative(name) else AutoModelForQuestionAnswering


def save_model(name: str, folder: Path) -> None:
    """Saves a model without dropout, with large weights so that all of them count, and its tokenizer. The folder lacks
    weights if transformers cannot make the model."""
    sizes = SIZES["encoder_decoders" if is_generative(name) else "spans"]
    shapes = [shape for shape, names in sizes["shapes"].items() if name in names.split()]
    shape = shapes[0] if shapes else sizes["default_shape"]
    tokenizer(shape).save_pretrained(folder)
    given = SIZES["common"] | sizes["common"] | sizes["by_shape"].get(shape, {}) | sizes["sizes"].get(name, {})
    config = AutoConfig.for_model(name, **{field: value for field, value in given.items() if value is not None})
    for field, value in config.to_dict().items():
        if "drop" in field and isinstance(value, float):
            setattr(config, field, 0.0)
    kind = auto_class(name)
    config.architectures = [kind._model_mapping[type(config)].__name__]
    config.save_pretrained(folder)
    torch.manual_seed(0)
    try:
        model = kind.from_config(config)
    except Exception:  # the package says why
        return
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
