"""Measures what models of real shapes take, beside `--plan`: memory by phase and rank, and disk.

    python -m benchmarks.shapes                                    # all shapes: about 30 minutes of CPU, 9 GB of memory
    python -m benchmarks.shapes bert-large --json FILE
    python -m benchmarks.shapes smoke                              # a tiny shape, to see that the commands work

Each shape is a model of random weights. A run trains it for three updates on a CPU, with a checkpoint after the second,
tests and exports it. A second run, at another ZeRO stage and on another number of ranks, resumes from that checkpoint.
Memory is RssAnon less that after the imports (benchmarks/shapes/rank.py), the largest of all ranks.
Exit codes as scripts/train.py.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.random_model import write_texts
from swep_ds.commands.cli import Parser, main
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_output, folder_bytes, user_path, write_atomically
from swep_ds.cost.plan import Devices, plan_stage
from swep_ds.evaluation.results import versions
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.launcher import environments, launcher

CHECKOUT = Path(__file__).parents[2]  # from which DeepSpeed's launcher finds the benchmarks
GIB = 2**30
MICRO = 2  # windows of a rank in the first run
STARTS = ("loading", "loading the model", "checksums of model and data", "engine")
UPDATES = 3
SAVED = 2  # the update whose checkpoint the second run resumes from


@dataclass(frozen=True)
class Shape:
    """A model's config, and the ds_config and number of ranks of the run and of the one that resumes from it."""

    config: dict
    first: tuple[str, int]
    second: tuple[str, int]
    sets: tuple[str, ...] = ("data.max_length=128", "eval.batch_size=2")

    @property
    def generates(self) -> bool:
        return self.config["model_type"] == "t5"


LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
T5 = {"model_type": "t5", "decoder_start_token_id": 0, "vocab_size": 32128}
SHAPES = {
    "bert-large": Shape(
        {"model_type": "bert", "num_hidden_layers": 24, "vocab_size": 30522} | LARGE, ("zero1", 1), ("zero3", 2)
    ),
    # XLM-R-large with 6 of 24 layers
    "xlm-roberta-large-6": Shape(
        {"model_type": "xlm-roberta", "num_hidden_layers": 6, "vocab_size": 250_002, "max_position_embeddings": 514}
        | {"type_vocab_size": 1}
        | LARGE,
        ("zero3", 2),
        ("zero1", 1),
    ),
    # T5-large with 8 + 8 of 24 + 24 layers
    "t5-large-8": Shape(
        T5 | {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_heads": 16, "num_layers": 8},
        ("zero3_offload", 2),
        ("zero2", 1),
    ),
    "smoke": Shape(
        {"model_type": "bert", "num_hidden_layers": 1, "vocab_size": 9000, "hidden_size": 64}
        | {"num_attention_heads": 2, "intermediate_size": 128},
        ("zero1", 1),
        ("zero3", 2),
    ),
}


def bench() -> None:
    options = Parser(description=__doc__)
    options.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"{', '.join(SHAPES)} (default: all but smoke)")
    options.add_argument("--folder", type=user_path, help="keep models and runs here (default: a temporary folder)")
    options.add_argument("--json", type=user_path, help="also write the figures here")
    given = options.parse_args()
    check_output("--json", given.json)
    if unknown := set(given.shapes) - SHAPES.keys():
        raise InputError(f"{min(unknown)}: no such shape; known are {', '.join(SHAPES)}")
    figures = {"versions": versions(), "shapes": {}}
    for name in given.shapes or [name for name in SHAPES if name != "smoke"]:
        with tempfile.TemporaryDirectory() as folder:
            place = given.folder / name if given.folder else Path(folder)
            figures["shapes"][name] = measure(SHAPES[name], place)
            show(name, figures["shapes"][name])
        if given.json:
            write_atomically(given.json, json.dumps(figures, indent=1) + "\n")


def measure(shape: Shape, folder: Path) -> list[dict]:
    """Makes both runs in `folder`; returns for each what was measured and what was planned."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "model").exists():
        (folder / "config.json").write_text(json.dumps(shape.config), encoding="utf-8")
        started("-m", "benchmarks.random_model", str(folder / "config.json"), str(folder / "model"))
    write_texts(folder / "train.json", questions=8, characters=2000)
    write_texts(folder / "test.json", questions=6, characters=400)
    sets = [f"task={'generative' if shape.generates else 'extractive'}", f"model.name={folder / 'model'}"]
    sets += [f"data.train={folder / 'train.json'}", f"data.eval={{test: {folder / 'test.json'}}}"]
    sets += ["data.doc_stride=32", "data.max_query_length=32", "eval.max_answer_tokens=8", "train.log_every=1"]
    if shape.generates:
        sets.append("data.max_target_length=8")
    sets += [f"train.max_updates={UPDATES}", f"train.checkpoint_every={SAVED}", *shape.sets]
    runs = []
    resume = "auto"
    for ds_config, ranks in (shape.first, shape.second):
        run = folder / f"{ds_config}-{ranks}"
        measured = train(run, ds_config, ranks, resume, [*sets, f"train.micro_batch_size={MICRO}"])
        windows = MICRO * shape.first[1] // ranks  # per rank; the second run keeps the first one's global batch
        micro = min(MICRO, windows)
        split = [f"train.micro_batch_size={micro}", f"train.gradient_accumulation_steps={windows // micro}"]
        recipe = Recipe.load("quickstart", [*sets, *split])
        planned = plan_stage(recipe, Devices.parse(f"{ranks}xcpu"), [ds_config], Console(quiet=True))[ds_config]
        runs.append({"ds_config": ds_config, "ranks": ranks, "planned": planned, **measured})
        resume = str(run / "checkpoints" / f"update-{SAVED:08d}")
    return runs


def train(run: Path, ds_config: str, ranks: int, resume: str, sets: list[str]) -> dict:
    """Makes one run in a fresh folder `run`."""
    words = [str(run), ds_config, resume]
    for text in sets:
        words += ["--set", text]
    option = ["--module"] if ranks > 1 else ["-m"]
    command = [*launcher(ranks), *option, "benchmarks.shapes.rank", *words]
    home = {"HF_HOME": str(run.parent / "hf")}
    subprocess.run(command, check=True, cwd=CHECKOUT, env=os.environ | environments(1, ranks)[0] | home)
    seen = [json.loads((run / f"memory-{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    tags = sorted((run / "checkpoints").glob("update-*"))

    def of_ranks(name: str) -> dict[str, list[float]]:
        """Values by phase; some are rank 0's alone."""
        return {phase: [rank[phase][name] for rank in seen if phase in rank] for phase in seen[0]}

    return {
        "peaks": {phase: max(values) for phase, values in of_ranks("peak").items()},
        "ends": {phase: max(values) for phase, values in of_ranks("end").items()},
        "cpu_seconds": {phase: sum(values) for phase, values in of_ranks("seconds").items()},
        "checkpoint": folder_bytes(tags[-1]),
        "saves": len(tags),
        "disk": folder_bytes(run),
    }


def started(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True)


def rows(run: dict) -> dict[str, tuple[int, int]]:
    """Measured and planned bytes by row. A run that resumes writes the checkpoints that are left."""
    peaks = run["peaks"]
    planned = run["planned"]
    start = max(size for phase, size in peaks.items() if phase in STARTS)
    measured = {"start": start} | {name: peaks[name] for name in ("training", "evaluation", "export")}
    measured |= {"checkpoint": run["checkpoint"], "disk": run["disk"]}
    disk = planned["disk"] - (math.ceil(UPDATES / SAVED) - run["saves"]) * planned["checkpoint"]
    return {name: (size, disk if name == "disk" else planned[name]) for name, size in measured.items()}


def show(name: str, runs: list[dict]) -> None:
    """Prints each run's rows in GiB."""
    for run in runs:
        print(f"{name}, {run['ds_config']}, {run['ranks']} rank(s)")
        for row, (measured, planned) in rows(run).items():
            print(
                f"  {row:11} {measured / GIB:6.2f} GiB measured, {planned / GIB:6.2f} planned: {planned / measured:.3f}"
            )


if __name__ == "__main__":
    main(bench)
