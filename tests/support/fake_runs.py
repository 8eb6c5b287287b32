"""Folders as runs leave them, without training: predictions are chosen, and scores computed from them."""

import json
from pathlib import Path
from typing import Any

import yaml

from swep_ds.evaluation.results import PACKAGES, Scores
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.recipe import Recipe
from swep_ds.sweeps.sweep import Cell, describe, read_sweep

RECIPE = {"model": {"name": "google/electra-small-discriminator"}, "method": {"name": "mle"}}
RECIPE |= {"data": {"train": "squad.json"}}
# `results.json` has these of every run: tests/evaluation/test_evaluate.py compares the names with a real run's
TRAIN = {"examples": 9, "features": 9, "updates": 2, "seconds": 1.0, "cpu_seconds": 2.5, "samples_per_second": 9.0}
TRAIN |= {"tokens_per_second": 90.0, "peak_memory_bytes": 2**20}


def data_set(folder: Path, name: str, questions: int, of_text: int = 1) -> None:
    """Writes a SQuAD file `<name>.json` whose answers are all "b", in paragraphs "a b c 0" and so on, each of which
    stands there `of_text` times."""
    paragraphs = []
    for i in range(questions):
        qa = {"id": f"{name}{i}", "question": "which?", "answers": [{"text": "b", "answer_start": 2}]}
        paragraphs.append({"context": f"a b c {i // of_text}", "qas": [qa]})
    (folder / f"{name}.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))


def sweep(folder: Path, sizes: dict[str, int], right: int | None = None, **fields) -> list[Cell]:
    """Writes a sweep with its runs in `folder`/runs, tested on new data sets of these sizes. With `right` the runs are
    finished, with so many right answers on each."""
    tree = RECIPE | {"data": RECIPE["data"] | {"eval": {name: str(folder / f"{name}.json") for name in sizes}}}
    for name, questions in sizes.items():
        data_set(folder, name, questions)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    fields["recipe"] = str(folder / "recipe.yaml")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(fields, sort_keys=False))
    _, cells = read_sweep(str(folder / "sweep.yaml"), folder / "runs")
    describe(cells, folder / "runs")
    for cell in cells if right is not None else ():
        finish(cell.folder, cell.recipe, dict.fromkeys(cell.recipe.data.eval, right))
    return cells


def finish(folder: Path, recipe: Recipe, right: dict[str, int], **changes) -> None:
    """Writes a run's folder, with right answers to the first `right` questions of each data set."""
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe.dump())
    (folder / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}}')
    scores = {}
    for name, source in recipe.data.eval.items():
        [article] = json.loads(Path(source).read_text())["data"]
        ids = [paragraph["qas"][0]["id"] for paragraph in article["paragraphs"]]
        answers = {id_: "b" if number < right[name] else "c" for number, id_ in enumerate(ids)}
        (folder / "predictions" / f"{name}.json").write_text(json.dumps(answers))
        scores[name] = Scorer().score(answers, {id_: ["b"] for id_ in ids})
    (folder / "results.json").write_text(json.dumps(results(recipe, scores) | changes))


def results(recipe: Recipe, scores: Scores) -> dict[str, Any]:
    """The content of `results.json`."""
    run = {"method": recipe.method.name, "model": recipe.model.name, "seed": recipe.seed, "world_size": 1}
    return run | {"train": TRAIN, "inputs": {}, "eval": scores, "versions": dict.fromkeys(PACKAGES, "1.0")}
