"""The folder of a finished run of a tiny model, without training."""

import json
from pathlib import Path

from safetensors.torch import save_file

from swep_ds.analysis.trained_run import AnswerWindow, TrainedRun, answer_windows
from swep_ds.evaluation.results import Results, write_results
from swep_ds.methods import build
from swep_ds.pipeline.export import NOISE
from swep_ds.pipeline.inputs import input_checksums
from swep_ds.pipeline.recipe import Recipe
from tests.support.tiny_run import prepare


def write_reading(model: Path) -> None:
    """How the run cut windows, as an exported model has it: without this file, windows are of the default sizes."""
    windows = {"max_length": 64, "doc_stride": 32, "max_query_length": 32, "max_target_length": 30}
    (model / "reading.json").write_text(json.dumps({"data": windows, "eval": {}}))


def finished(folder: Path, method: str = "swep", architecture: str = "bert", **settings) -> Path:
    """Writes a run with a random model and noise generator, and its data `train.json` and `test.json`."""
    chosen = [f"method.name={method}", *(f"method.{name}={value}" for name, value in settings.items())]
    recipe = Recipe.load(str(prepare(folder, architecture=architecture)), chosen)
    (folder / "recipe.yaml").write_text(recipe.dump())
    results = {"method": method, "model": "m", "seed": 0, "world_size": 1, "eval": {}, "versions": {}}
    results = Results(**results, inputs=input_checksums(recipe))
    write_results(folder, results.model_dump(exclude_none=True))
    write_reading(folder / "model")
    if recipe.method.name == "swep":
        save_file(build(recipe.method, 16, 16).state_dict(), folder / NOISE)
    return folder


def load(folder: Path, *arguments: str, **settings) -> TrainedRun:
    return TrainedRun.load(finished(folder, *arguments, **settings))


def windows_of(run: TrainedRun, questions: int) -> list[AnswerWindow]:
    """Those of its first test questions."""
    return list(answer_windows(run.test_examples()[:questions], run.tokenizer, run.windows))
