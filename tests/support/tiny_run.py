"""A tiny model, tiny data and a recipe on disk, and runs of it in real processes."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support import tiny, tiny_models
from tests.support.fork_server import HANGS, IMPORTED_WITH, ROOT, run_script

TORCHRUN = Path(sys.executable).parent / "torchrun"
SEVERAL_RUNS = Path(__file__).with_name("several_runs.py")
# fields of metrics.jsonl that do not depend on the clock
EXACT = ("update", "loss", "nll_clean", "nll_noisy", "kl_per_token", "kl_per_window", "beta", "mu", "mu_distance")
EXACT += ("sigma", "learning_rate")
# A softmax does not change when all of its inputs shift, so that these gradients are nothing but rounding errors,
# which Adam scales up to steps of full size. The last layer is the first: these tests train models of one layer.
WITHOUT_GRADIENT = ("qa_outputs.bias", "self.key.bias", "layer.0.output.LayerNorm.bias")


def squad(count: int, seed: int = 0) -> dict:
    """SQuAD JSON of `count` questions over contexts of different lengths."""
    words = " ".join(tiny.SENTENCES).split()
    rng = random.Random(seed)
    paragraphs = []
    for number in range(count):
        context = " ".join(rng.choices(words, k=rng.randint(4, 30)))
        text = rng.choice(context.split())
        answer = {"text": text, "answer_start": context.index(text)}
        question = " ".join(rng.choices(words, k=4)) + "?"
        qa = {"id": f"q{seed}-{number}", "question": question, "answers": [answer]}
        paragraphs.append({"context": context, "qas": [qa]})
    return {"data": [{"title": f"t{i}", "paragraphs": paragraphs[i::4]} for i in range(4)]}


def prepare(folder: Path, dropout: float = 0.0, architecture: str = "bert", **changes) -> Path:
    """Writes model/, train.json, test.json and recipe.yaml; returns the recipe's path. `changes` go to the config."""
    tokenizer = tiny.wordpiece()
    changes |= {"vocab_size": len(tokenizer)}
    if architecture in tiny_models.SEQ2SEQ:
        changes["eos_token_id"] = tokenizer.sep_token_id
    model = tiny_models.model(architecture, dropout, **changes)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "train.json").write_text(json.dumps(squad(42)))
    (folder / "test.json").write_text(json.dumps(squad(9, seed=1)))
    data = {"train": str(folder / "train.json"), "eval": {"test": str(folder / "test.json")}}
    train = {"max_updates": 10, "epochs": 10, "log_every": 1, "checkpoint_every": 1000}
    recipe = {
        "task": "generative" if model.config.is_encoder_decoder else "extractive",
        "model": {"name": str(folder / "model")},
        "method": {"name": "swep", "beta": 1e-3, "initialisation": "default"},
        "data": data | {"max_length": 48, "doc_stride": 16, "max_query_length": 16},
        "train": train | {"learning_rate": 1e-3, "micro_batch_size": 8},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


def ds_config(folder: Path, stage: int, **changes) -> Path:
    """The shipped ds_config of a stage; at stage 3 even tiny parameters are partitioned."""
    config = json.loads((ROOT / "ds_configs" / f"zero{stage}.json").read_text())
    config["zero_optimization"] |= {"stage3_param_persistence_threshold": 0} if stage == 3 else {}
    config["zero_optimization"] |= changes
    path = folder / f"zero{stage}{'-'.join(['', *changes])}.json"
    path.write_text(json.dumps(config))
    return path


def execute(command: list[str], check: bool = True) -> subprocess.CompletedProcess:
    """Runs a command on CPU, one thread a process, in a process group of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | IMPORTED_WITH, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the launcher's ranks would run on without it
            raise
    said = f"{' '.join(command)} exited {process.returncode}\n{out[-4000:]}\n{err[-4000:]}"
    assert not check or process.returncode == 0, said
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def make_runs(folder: Path, runs: list[dict], script=SEVERAL_RUNS, **options) -> subprocess.CompletedProcess:
    """Makes runs in one process a rank, with the options of `run_script`."""
    (folder / "runs.json").write_text(json.dumps(runs))
    return run_script(script, str(folder / "runs.json"), **options)


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder)]


def assert_same(run: Path, whole: Path) -> None:
    """Both have the same lines of metrics, weights and answers, to the last bit, with `train.average` and without."""
    mine, other = ([{key: line.get(key) for key in EXACT} for line in metrics(folder)] for folder in (run, whole))
    assert mine == other
    files = ["model/model.safetensors", "predictions/test.json"]
    for file in files + [f"unaveraged/{file}" for file in files if (whole / "unaveraged").is_dir()]:
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file


def complete(folder: Path) -> list[int]:
    """The updates of the run's complete checkpoints."""
    return sorted(int(f.parent.name.split("-")[1]) for f in folder.glob("checkpoints/update-*/complete.json"))


def error(folder: Path) -> str:
    """The error, one line, that ended a run of `several_runs.py` in this folder."""
    [line] = folder.with_name(f"{folder.name}.error").read_text().splitlines()
    return line
