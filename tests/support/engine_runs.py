"""Started under a launcher: trains the runs that a JSON file lists with the package's loop, without evaluation or files
of checkpoints, one after the other in one process group.

Each run is {"recipe", "set", "ds_config", "output_dir"}; its folder gets metrics.jsonl and `weights.safetensors` (the
model's, "qa.", and the method's, "method.").
"""

import gc
import json
import sys
from contextlib import nullcontext
from pathlib import Path

from safetensors.torch import load_file, save_file

from swep_ds import ranks
from swep_ds.pipeline.checks import read_and_check
from swep_ds.pipeline.prepare import prepare
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.checkpoints import TrainState
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import train
from swep_ds.training.tracking import Tracker
from swep_ds.training.zero.weights import full_weights
from tests.support.tiny_run import make_runs


class Saves:
    """Checkpoints that are only noted."""

    average = None

    def __init__(self):
        self.updates: list[int] = []

    def save(self, engine, done: TrainState, score=None) -> bool:
        self.updates.append(done.updates)
        return True


def train_here(recipe: Recipe, ds_config: Path, folder: Path, saves: Saves, *, logs: bool = True, inside=nullcontext):
    """Trains from the start, `inside` a context of the engine. In a process group."""
    job = prepare(read_and_check(recipe, str(ds_config)))
    updates = job.batches.updates
    engine = build_engine(job.objective, job.config, recipe.train, updates)
    active = logs and ranks.is_main()
    tracker = Tracker(recipe.tracking, recipe.method.name, {}, folder, updates, TrainState(), active=active)
    try:
        with inside(engine), tracker:
            train(engine, job.batches, recipe.train, saves, tracker, TrainState(), None)
        weights = dict(full_weights(engine, engine.module, masters=False))
        if active:
            save_file({name: value.clone() for name, value in weights.items()}, folder / "weights.safetensors")
    finally:
        engine.destroy()


def train_runs(folder: Path, runs: list[dict], world_size: int) -> None:
    make_runs(folder, runs, Path(__file__), ranks=world_size)


def weights(run: Path) -> dict:
    return load_file(run / "weights.safetensors")


def weights_of(engine, *, masters: bool = True) -> dict:
    return {name: value.clone() for name, value in full_weights(engine, engine.module, masters=masters)}


if __name__ == "__main__":
    gc.freeze()  # what the imports left behind need not be looked through after every run
    with ranks.process_group():
        for asked in json.loads(Path(sys.argv[-1]).read_text()):
            output = Path(asked["output_dir"])
            output.mkdir(exist_ok=True)
            train_here(Recipe.load(asked["recipe"], asked["set"]), asked["ds_config"], output, Saves())
            gc.collect()
