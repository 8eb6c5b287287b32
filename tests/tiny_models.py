"""Tiny random models of every supported architecture: 2 layers, 16 wide, word embeddings of width 8 where possible."""

import torch
from transformers import (
    AlbertConfig,
    AutoModelForQuestionAnswering,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    PretrainedConfig,
    PreTrainedModel,
    RobertaConfig,
)

COMMON = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def config(architecture: str, dropout: float = 0.0) -> PretrainedConfig:
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    match architecture:
        case "bert":
            return BertConfig(**COMMON, **drops)
        case "electra":
            return ElectraConfig(**COMMON, **drops, embedding_size=8)
        case "roberta":
            return RobertaConfig(**COMMON | {"max_position_embeddings": 66, "pad_token_id": 1}, **drops)
        case "deberta-v2":
            return DebertaV2Config(
                **COMMON, **drops, relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0
            )
        case "modernbert":
            return ModernBertConfig(
                **COMMON,
                attention_dropout=dropout,
                embedding_dropout=dropout,
                mlp_dropout=dropout,
                global_attn_every_n_layers=2,
                local_attention=8,
                bos_token_id=1,
                eos_token_id=2,
                cls_token_id=1,
                sep_token_id=2,
            )
        case "albert":
            return AlbertConfig(**COMMON, **drops, embedding_size=8, classifier_dropout_prob=dropout)
        case "distilbert":
            return DistilBertConfig(
                vocab_size=64,
                dim=16,
                n_layers=2,
                n_heads=2,
                hidden_dim=32,
                max_position_embeddings=64,
                dropout=dropout,
                attention_dropout=dropout,
                qa_dropout=dropout,
            )
    raise ValueError(architecture)


ARCHITECTURES = ("bert", "electra", "roberta", "deberta-v2", "modernbert", "albert", "distilbert")


def model(architecture: str = "bert", dropout: float = 0.0, seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    made = config(architecture, dropout)
    made.update(changes)
    return AutoModelForQuestionAnswering.from_config(made)
