"""Loading a checkpoint of the same ZeRO stage, by the size of the vocabulary: 1 million words are 3 GB."""

from contextlib import ExitStack
from pathlib import Path

from benchmarks.growth.engines import make_batch, make_engine
from swep_ds.methods.base import MicroStep
from swep_ds.ranks.group import process_group
from swep_ds.training.checkpoint_files import TrainState
from swep_ds.training.checkpoints import Checkpoints
from swep_ds.training.engine import Engine
from swep_ds.training.loop import run_update

SIZES = (20_000, 80_000)
LARGE = (100_000, 400_000)
UNIT = "words of 256 dimensions"
BASELINE = "from another ZeRO stage"
BATCH = {"windows": 8, "micro_batch_size": 8, "gradient_accumulation_steps": 1}
stack = ExitStack()
engine: Engine


def checkpoints(folder: Path, stage: int) -> Checkpoints:
    return Checkpoints(folder / f"stage{stage}", 1, {}, BATCH)


def prepare(size: int, folder: Path) -> None:
    with process_group():
        for stage in (1, 3):
            trained = make_engine(f"zero{stage}", size)
            run_update(trained, iter([make_batch(8, 32)]), 1, MicroStep(0))
            checkpoints(folder, stage).save(trained, TrainState(1))
            trained.destroy()
    (folder / "vocabulary").write_text(str(size), encoding="utf-8")


def warm_up(folder: Path) -> None:
    global engine
    stack.enter_context(process_group())
    engine = make_engine("zero1", int((folder / "vocabulary").read_text(encoding="utf-8")))


def load(folder: Path, stage: int) -> None:
    saved = checkpoints(folder, stage)
    saved.load(engine, [saved.tag(1)])


def ours(size: int, folder: Path) -> None:
    load(folder, 1)


def baseline(size: int, folder: Path) -> None:
    load(folder, 3)
