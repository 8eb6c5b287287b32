"""Windows that are planned into updates of `train.max_tokens`."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

SIZES = (160_000, 640_000)
LARGE = (1_600_000, 6_400_000)
UNIT = "windows"
BASELINE = "numpy: sort the lengths, and their cumulative maximum"


def prepare(size: int, folder: Path) -> None:
    lengths = np.random.default_rng(0).lognormal(np.log(165), 0.35, size)
    np.save(folder / "lengths.npy", np.clip(lengths, 25, 384).astype(np.int64))


def warm_up(folder: Path) -> None:
    import swep_ds.data.batches  # noqa: F401


def ours(size: int, folder: Path) -> None:
    from swep_ds.data.batches import TrainingBatches

    class Windows(dict):
        def __len__(self) -> int:
            return size

    windows = Windows(length=np.load(folder / "lengths.npy"))
    options = {"micro_batch_size": 8, "accumulation": 1, "rank": 0, "world_size": 4, "epochs": 1.0, "max_updates": None}
    planned = TrainingBatches(windows, SimpleNamespace(), seed=0, max_tokens=4096, **options)
    assert sum(len(planned.windows(update)) for update in range(planned.updates)) == size


def baseline(size: int, folder: Path) -> None:
    np.maximum.accumulate(np.sort(np.load(folder / "lengths.npy")))
