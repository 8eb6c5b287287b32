"""A tiny random masked language model for any tokenizer, on disk."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from tests.support.tiny_models import COMMON


def save(folder: Path, tokenizer: PreTrainedTokenizerFast) -> str:
    """A BERT of 2 layers that takes 64 tokens; large weights, so that its predictions are far from uniform."""
    torch.manual_seed(0)
    sizes = COMMON | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    BertForMaskedLM(BertConfig(**sizes, initializer_range=0.5)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
