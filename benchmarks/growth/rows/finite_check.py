"""Trying weights for NaN and infinity, as a load and a checkpoint do."""

from pathlib import Path

import torch

from swep_ds.models.trials import all_finite

SIZES = (10_000_000, 40_000_000)
LARGE = (100_000_000, 400_000_000)
UNIT = "weights in float32"
BASELINE = "PyTorch's isfinite"
weights: torch.Tensor


def prepare(size: int, folder: Path) -> None:
    (folder / "size").write_text(str(size), encoding="utf-8")


def warm_up(folder: Path) -> None:
    global weights
    weights = torch.ones(int((folder / "size").read_text(encoding="utf-8")))


def ours(size: int, folder: Path) -> None:
    assert all_finite([weights])


def baseline(size: int, folder: Path) -> None:
    assert weights.isfinite().all()
