"""A second training at ZeRO-3 in a process that has made the first: the memory is that of a training alone."""

from importlib.resources import files
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering

import swep_ds as sd
from benchmarks.growth import engines

SIZES = (20_000, 80_000)
LARGE = (100_000, 250_002)
UNIT = "words of 256 dimensions"
BASELINE = "a training alone"
DATA = {
    "train": "quickstart_v2:encyclopedia",
    "eval": {"news": "quickstart_v2:news"},
    "train_fraction": 0.05,
    "max_eval_examples": 20,
}
TRAIN = {"max_updates": 2, "epochs": 1, "checkpoint_every": 2}


def prepare(size: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = BertForQuestionAnswering(BertConfig(vocab_size=size, **engines.SIZES))
    model.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(str(files("swep_ds") / "data/quickstart/encoder")).save_pretrained(folder / "model")


def train(folder: Path, name: str) -> None:
    sections = {"model": {"name": str(folder / "model")}, "data": DATA, "train": TRAIN}
    sd.train("quickstart", ds_config="zero3", output_dir=folder / name, **sections)


def ours(size: int, folder: Path) -> None:
    train(folder, "first")
    train(folder, "second")


def baseline(size: int, folder: Path) -> None:
    train(folder, "alone")
