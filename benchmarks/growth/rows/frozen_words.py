"""Memory of a fine-tuning with frozen word embeddings, beyond the loaded model, by the size of the vocabulary."""

from pathlib import Path

import torch
from transformers import BertConfig, BertForQuestionAnswering

SIZES = (60_000, 240_000)
LARGE = (250_000, 1_000_000)
UNIT = "words, 256 wide, in a model of two layers: three updates at ZeRO-1"
BASELINE = "plain PyTorch, word embeddings with requires_grad_(False), AdamW"
UPDATES = 3
model: BertForQuestionAnswering


def prepare(size: int, folder: Path) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    for name, words in (("model", size), ("small", 3_000)):
        BertForQuestionAnswering(BertConfig(vocab_size=words, **sizes)).save_pretrained(folder / name)


def warm_up(folder: Path) -> None:
    """Trains with few words, in both ways: what an import, a first engine and a first backward take is not counted."""
    global model
    train(load(folder / "small"))
    train_plainly(load(folder / "small"))
    model = load(folder / "model")


def load(folder: Path) -> BertForQuestionAnswering:
    return BertForQuestionAnswering.from_pretrained(folder).train()


def train(model: BertForQuestionAnswering) -> None:
    from swep_ds.data.batches import Batch
    from swep_ds.methods import METHODS, build
    from swep_ds.methods.base import MicroStep
    from swep_ds.methods.objective import Objective
    from swep_ds.models.extractive import ExtractiveQA
    from swep_ds.ranks.group import process_group
    from swep_ds.training.ds_config import complete_ds_config
    from swep_ds.training.engine import build_engine
    from swep_ds.training.loop import run_update
    from swep_ds.training.settings import TrainSection

    train = TrainSection()
    with process_group():
        objective = Objective(ExtractiveQA(model), build(METHODS["mle"](), 256, 256), seed=0)
        objective.qa.words.requires_grad_(False)
        setup = {"world_size": 1, "backwards": 1, "hidden_size": 256, "on_cpu": True}
        engine = build_engine(objective, complete_ds_config("zero1", train, **setup), train, UPDATES)
        engine.train()
        for update in range(UPDATES):
            ids = words_of(update)
            ones = torch.ones_like(ids)
            place = torch.tensor([3])
            share = torch.ones(1)
            labels = {"start_position": place, "end_position": place}
            batch = Batch(ids, ones, sample_id=place, weight=share, token_weight=share / 64, lengths=(64,), **labels)
            run_update(engine, iter([batch]), 1, MicroStep(update))
        engine.destroy()


def train_plainly(model: BertForQuestionAnswering) -> None:
    model.get_input_embeddings().requires_grad_(False)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=3e-5)
    place = torch.tensor([3])
    for update in range(UPDATES):
        model(words_of(update), start_positions=place, end_positions=place).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def words_of(update: int) -> torch.Tensor:
    return torch.arange(64)[None] + 900 * update


def ours(size: int, folder: Path) -> None:
    train(model)


def baseline(size: int, folder: Path) -> None:
    train_plainly(model)
