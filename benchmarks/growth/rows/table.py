"""Runs that go into a table, which have their questions' scores."""

import json
import random
from pathlib import Path

import yaml

SIZES = (12, 48)
LARGE = (100, 400)
UNIT = "runs, each tested on 3 sets of 2,000 questions"
BASELINE = "json.load of the same prediction files"
SETS = ("wiki", "news", "forum")
QUESTIONS = 2_000
SEEDS = 4


def prepare(size: int, folder: Path) -> None:
    from swep_ds.evaluation.predictions import Marking, write_predictions
    from swep_ds.evaluation.results import PACKAGES, write_results
    from swep_ds.pipeline.examples import reported_examples
    from swep_ds.sweeps.sweep import describe, read_sweep

    words = [f"word{number}" for number in range(3_000)]
    rng = random.Random(0)
    for name in SETS:
        rows = []
        for number in range(QUESTIONS):
            context = rng.choices(words, k=120)
            begin = rng.randrange(110)
            answer = " ".join(context[begin : begin + rng.randint(1, 5)])
            rows.append({"id": f"{name}{number}", "question": "Which?", "context": " ".join(context), "answer": answer})
        (folder / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    tree = {"model": {"name": "google/electra-small-discriminator"}, "method": {"name": "mle"}}
    tree |= {
        "data": {"train": str(folder / "wiki.json"), "eval": {name: str(folder / f"{name}.json") for name in SETS}}
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    variants = {"MLE": {}} | {
        f"SWEP {n}": {"method.name": "swep", "method.beta": 0.001 * n} for n in range(1, size // SEEDS)
    }
    sweep = {"recipe": str(folder / "recipe.yaml"), "variants": variants, "seeds": list(range(SEEDS))}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    _, cells = read_sweep(str(folder / "sweep.yaml"), folder / "runs")
    describe(cells, folder / "runs")
    examples = {name: reported_examples(cells[0].recipe, name) for name in SETS}
    for cell in cells:
        cell.folder.mkdir(parents=True)
        (cell.folder / "recipe.yaml").write_text(cell.recipe.dump(), encoding="utf-8")
        (cell.folder / "ds_config.json").write_text("{}", encoding="utf-8")
        scores = {}
        for name, asked in examples.items():
            given = {}
            for example in asked:
                begin = rng.randrange(110)
                guess = " ".join(example.context.split()[begin : begin + 3])
                given[example.id] = example.answers[0] if rng.random() < 0.7 else guess
            scorer = cell.recipe.eval.scorer_of(name)
            write_predictions(cell.folder, name, {"predictions": given}, Marking(asked, scorer))
            scores[name] = scorer.score(given, {example.id: example.answers for example in asked})
        results = {"method": cell.recipe.method.name, "model": "m", "seed": cell.seed, "world_size": 1, "eval": scores}
        write_results(cell.folder, results | {"versions": dict.fromkeys(PACKAGES, "1")})


def warm_up(folder: Path) -> None:
    import swep_ds.analysis.table
    import swep_ds.data.readers  # noqa: F401


def ours(size: int, folder: Path) -> None:
    from swep_ds.analysis import table
    from swep_ds.analysis.runs import find_runs

    made = table.make(find_runs([folder / "runs"]))
    assert not made.missing
    assert made.cells["difference_low"].notna().any()


def baseline(size: int, folder: Path) -> None:
    for file in folder.glob("runs/*/predictions/*.json"):
        json.loads(file.read_text(encoding="utf-8"))
