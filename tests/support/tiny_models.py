"""Tiny random models of every supported architecture: 2 layers, 16 wide, word embeddings of width 8 where possible."""

from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA

COMMON = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
COMMON |= {"intermediate_size": 32, "max_position_embeddings": 64, "pad_token_id": 0}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
MODERNBERT = {"global_attn_every_n_layers": 2, "local_attention": 8}
MODERNBERT |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
DISTILBERT = {"vocab_size": 64, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64}
T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
UNTIED_T5 = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
BART = {"vocab_size": 64, "d_model": 16, "max_position_embeddings": 64, "scale_embedding": True}
for part in ("encoder", "decoder"):
    BART |= {f"{part}_layers": 2, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 32}
BART |= {"pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 2, "eos_token_id": 1}
BART |= {"forced_eos_token_id": None}


BERT_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# sizes, and the fields of dropout
CONFIGS = {
    "bert": (COMMON, BERT_DROPOUT),
    "electra": (COMMON | {"embedding_size": 8}, BERT_DROPOUT),
    "roberta": (COMMON | {"max_position_embeddings": 66, "pad_token_id": 1}, BERT_DROPOUT),
    "deberta-v2": (COMMON | DEBERTA, BERT_DROPOUT),
    "modernbert": (COMMON | MODERNBERT, ("attention_dropout", "embedding_dropout", "mlp_dropout")),
    "albert": (COMMON | {"embedding_size": 8}, (*BERT_DROPOUT, "classifier_dropout_prob")),
    "distilbert": (DISTILBERT, ("dropout", "attention_dropout", "qa_dropout")),
    "xlnet": ({"vocab_size": 64, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "pad_token_id": 0}, ()),
    "llama": (COMMON | {"num_key_value_heads": 1}, ["attention_dropout"]),
    "t5": (T5, ["dropout_rate"]),
    "t5-v1.1": (UNTIED_T5, ["dropout_rate"]),
    "mt5": (UNTIED_T5, ["dropout_rate"]),
    "bart": (BART, ("dropout", "attention_dropout")),
}


def config(architecture: str, dropout: float = 0.0) -> transformers.PretrainedConfig:
    sizes, drops = CONFIGS[architecture]
    return AutoConfig.for_model(architecture.removesuffix("-v1.1"), **sizes, **dict.fromkeys(drops, dropout))


ARCHITECTURES = ("bert", "electra", "roberta", "deberta-v2", "modernbert", "albert", "distilbert")
SEQ2SEQ = ("t5", "t5-v1.1", "mt5", "bart")
UNTIED = ("t5-v1.1", "mt5")  # as published, with an output layer of their own


def model(architecture: str = "bert", dropout: float = 0.0, seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    settings = config(architecture, dropout)
    settings.update(changes)
    kind = "Seq2SeqLM" if settings.is_encoder_decoder else "QuestionAnswering"
    plain = getattr(transformers, f"AutoModelFor{kind}").from_config(settings)
    if architecture in UNTIED:  # transformers 5 ties them, unless the weights that it reads differ
        plain.lm_head.weight = torch.nn.Parameter(torch.randn_like(plain.lm_head.weight))
        del plain.all_tied_weights_keys["lm_head.weight"]
        plain.config.tie_word_embeddings = False
    return plain


def load(folder: Path | str, **load_kwargs) -> ExtractiveQA | GenerativeQA:
    """The model of a folder as a run loads it, by default without activation checkpointing."""
    kind = GenerativeQA if AutoConfig.from_pretrained(folder).is_encoder_decoder else ExtractiveQA
    return kind.load(str(folder), **{"activation_checkpointing": False} | load_kwargs)


def save_masked_lm(folder: Path, tokenizer: transformers.PreTrainedTokenizerFast) -> str:
    """A BERT that takes 64 tokens; large weights, so that its predictions are far from uniform."""
    torch.manual_seed(0)
    sizes = COMMON | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    masked = AutoConfig.for_model("bert", **sizes, initializer_range=0.5)
    transformers.AutoModelForMaskedLM.from_config(masked).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
