"""Engines of SWEP around a BERT of random weights, and a batch for them, for the rows about training."""

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForQuestionAnswering

from swep_ds.data.batches import Batch
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.methods.settings import SwepSettings
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.training.ds_config import complete_ds_config
from swep_ds.training.engine import Engine, build_engine
from swep_ds.training.settings import TrainSection

HIDDEN = 256
SIZES = {"hidden_size": HIDDEN, "num_attention_heads": 4, "intermediate_size": 1024, "num_hidden_layers": 6}


def make_engine(ds_config: str, vocabulary: int, accumulation: int = 1) -> Engine:
    """In a process group."""
    torch.manual_seed(0)
    qa = ExtractiveQA(BertForQuestionAnswering(BertConfig(vocab_size=vocabulary, **SIZES)))
    objective = Objective(qa, build(SwepSettings(), qa.hidden_size, qa.embedding_size), seed=0)
    train = TrainSection(micro_batch_size=8, gradient_accumulation_steps=accumulation)
    setup = {"world_size": dist.get_world_size(), "backwards": 2, "hidden_size": HIDDEN, "on_cpu": True}
    engine = build_engine(objective, complete_ds_config(ds_config, train, **setup), train, 10)
    engine.train()
    return engine


def make_batch(windows: int, tokens: int) -> Batch:
    ids = torch.randint(5, 20_000, (windows, tokens), generator=torch.Generator().manual_seed(dist.get_rank()))
    positions = torch.full((windows,), 7)
    shares = torch.full((windows,), 1 / windows)
    return Batch(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        start_position=positions,
        end_position=positions,
        sample_id=torch.arange(windows) + windows * dist.get_rank(),
        weight=shares,
        token_weight=shares / tokens,
    )
