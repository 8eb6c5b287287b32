"""Checks that a change of the code leaves every number of a run as it was, to the last bit.

    python tools/same_numbers.py HEAD~1                             # against the working tree
    python tools/same_numbers.py main my-branch --only swep --only stopped
    python tools/same_numbers.py main --cache /tmp/numbers          # the runs of a commit are made once and kept

Both revisions are copied to a temporary folder and make the same runs there, on CPU, with one thread a process, through
nothing but scripts/train.py, its options and the files that it writes. It compares metrics.jsonl and health.jsonl
without their columns of time and memory, predictions/, results.json and the exported weights.
Exit codes: 0 all runs are equal; 1 a run differs or fails; 2 bad input.

Notable:
- This process imports PyTorch, transformers and DeepSpeed once and forks every run, since importing takes 10 s of a
  core. It starts no threads and never imports `swep_ds`: each run imports its own revision, which is checked.
- Tokenised windows are cached per run: a change in how windows are cut shows.
"""

import atexit
import fnmatch
import gc
import hashlib
import importlib
import json
import math
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOMS = ("swep_ds", "kernels", "scripts", "ds_configs")  # what a run needs of a revision
ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
LAUNCHERS = ("SLURM_", "SWEP_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "CROSS_")  # variables that change a run
PRELOADED = ("torch", "datasets", "transformers", "deepspeed", "safetensors.torch", "matplotlib.backends.backend_svg")
PRELOADED += tuple(f"transformers.models.{name}" for name in ("bert.modeling_bert", "t5.modeling_t5"))
# a softmax does not change when all its inputs shift: the gradients of these are rounding errors, which Adam scales up
WITHOUT_GRADIENT = ("qa_outputs.bias", "self.key.bias", "layer.1.output.LayerNorm.bias")
NOT_COMPARED = re.compile("seconds|per_second|memory|^threads|^versions|^inputs|^questions|^provenance")
STOP_AFTER = 6  # lines of metrics.jsonl, before a run is asked to stop
JOBS = 2  # runs at a time
DONE, STOPPED = 0, 75  # exit codes of scripts/train.py


class Start(NamedTuple):
    """One start of scripts/train.py."""

    settings: Mapping[str, Any] = {}
    stage: int = 1  # ZeRO stage
    ranks: int = 1
    recipe: str = "encoder"  # "encoder" or "t5" for those of `write_inputs`, or the name of a shipped recipe
    folder: str = "run"  # starts of a case that share a folder are one run, resumed
    resume: str | None = None  # the checkpoint that it starts from, a pattern below the case's folder
    stops: bool = False  # gets SIGUSR1 while it trains


def cases() -> dict[str, list[Start]]:
    """All cases by name: the starts that each makes, one after the other."""
    named = {}
    for method in ("swep", "freelb", "r_drop", "adv_aug"):
        for stage in range(4):
            for ranks in (1, 2):
                named[f"{method}-zero{stage}-on{ranks}"] = [Start({"method.name": method}, stage, ranks)]
    dropouts = ("gaussian_dropout", "bernoulli_dropout", "word_dropout")
    for method in ("mle", "prior_aug", *dropouts, "neftune", "symnoise", "r3f", "lnsr", "pdr", "fgm"):
        named[f"{method}-zero2-on1"] = [Start({"method.name": method}, 2)]
    named["swep-divergence"] = [Start({"method.divergence_weight": 1}, 3, 2)]
    for noise in ("additive", "fixed_mu", "fixed_sigma", "no_eps"):
        named[f"swep-{noise}"] = [Start({"method.noise": noise})]
    named["swep-no_mle"] = [Start({"method.mle_weight": 0})]
    named["swep-published"] = [Start({"method.separate_hidden_pass": True, "method.kl_reduction": "mean"})]
    named["joint"] = [Start({"train.execution": "joint"}, stage=3, ranks=2)]
    named["max_tokens"] = [Start({"train.max_tokens": 200}, ranks=2)]
    named["adafactor"] = [Start({"train.optimizer": "adafactor"}, stage=0)]
    named["t5"] = [Start(recipe="t5")]
    named["t5-joint-zero3-on2"] = [Start({"train.execution": "joint"}, 3, 2, "t5")]
    for precision in ("autocast", "bf16"):
        named[precision] = [Start({"train.precision": precision, "train.max_updates": 12}, stage=2)]
    named["selection"] = [Start({"eval.select_on": "test", "train.checkpoint_every": 2, "train.keep_checkpoints": 9})]
    first = {"pretrain.train": "quickstart:encyclopedia", "pretrain.max_train_examples": 42, "pretrain.max_updates": 3}
    named["pretrain"] = [Start(first)]
    for ranks in (1, 2):
        settings = {"train.max_updates": 80, "train.log_every": 1}  # a stop adds a line where none would be
        named[f"stopped-on{ranks}"] = [Start(settings, 2, ranks, stops=stops) for stops in (True, False)]
    settings = {"train.max_updates": 9, "train.checkpoint_every": 3, "train.keep_checkpoints": 9}
    halved = {"train.micro_batch_size": 8}  # the same global batch on one rank
    named["ranks-2-1-2"] = [
        Start(settings, 2, 2, folder="1"),
        Start(settings | halved, 2, 1, folder="2", resume="1/checkpoints/update-*3"),
        Start(settings, 1, 2, folder="3", resume="2/checkpoints/update-*6"),
    ]
    quick = {"train.max_updates": 60, "data.max_eval_examples": 20, "train.log_every": 5}
    named["quickstart"] = [Start(quick, recipe="quickstart")]
    return named


def write_inputs(shipped: Path, folder: Path) -> None:
    """The quick start's models with dropout, a recipe for each, and a ds_config for each stage."""

    def write(file: Path, content: Any) -> None:
        file.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML, too

    for name in ("encoder", "t5"):
        shutil.copytree(shipped / name, folder / name)
        config = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        rates = [field for field in config if "dropout" in field and config[field] == 0]
        write(folder / name / "config.json", config | dict.fromkeys(rates, 0.1))
        write(folder / f"{name}.yaml", recipe(name))
    for stage in range(4):
        config = dict.fromkeys(
            ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"
        )
        config |= {name: {"enabled": "auto"} for name in ("bf16", "fp16")}
        config["zero_optimization"] = {"stage": stage}
        if stage == 3:  # small parameters, too
            config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        write(folder / f"zero{stage}.json", config)


def recipe(model: str) -> dict[str, Any]:
    data = {"train": "quickstart:encyclopedia", "eval": {"test": "quickstart:news"}, "max_target_length": 8}
    data |= {"max_train_examples": 42, "max_eval_examples": 10}
    train = {"max_updates": 6, "epochs": 100, "micro_batch_size": 4, "gradient_accumulation_steps": 2, "log_every": 1}
    return {
        "task": "generative" if model == "t5" else "extractive",
        "model": {"name": f"./inputs/{model}"},
        "method": {"name": "swep", "beta": 1e-3, "initialisation": "default"},
        "data": data | {"max_length": 48, "doc_stride": 16, "max_query_length": 16},
        "train": train | {"learning_rate": 1e-3, "warmup_fraction": 0.2, "weight_decay": 0.1, "max_grad_norm": 0.5},
        "eval": {"beams": 2, "max_answer_tokens": 8},
    }


# Runs


def make(case: list[Start], tree: Path, folder: Path) -> None:
    """Makes a case's starts with the code in `tree`; outcome.json in `folder` then says what failed, or null."""
    if outcome(folder) is None:
        return  # kept from earlier
    making = folder.with_name(f"{folder.name}.{os.getpid()}")
    making.mkdir(parents=True)
    failure = None
    for number, start in enumerate(case, 1):
        codes = launch(start, tree, making)
        expected = STOPPED if start.stops else DONE
        if any(code != expected for code in codes):
            last = (making / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            failure = f"start {number} ended with {codes}, not {expected}: {' '.join(last)[-300:]}"
            break
    for checkpoints in list(making.rglob("checkpoints")):
        shutil.rmtree(checkpoints)
    (making / "outcome.json").write_text(json.dumps(failure), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # another process may have made it meanwhile
        making.rename(folder)


def launch(start: Start, tree: Path, folder: Path) -> list[int]:
    """The exit codes of a start's ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pids = []
    for rank in range(start.ranks):
        pids.append(os.fork())
        if not pids[-1]:
            become(start, rank, port, tree, folder)
    if start.stops:
        metrics = folder / start.folder / "metrics.jsonl"
        ended = False
        while not ended and not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= STOP_AFTER):
            time.sleep(0.01)
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)  # it is there until it is waited for
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def become(start: Start, rank: int, port: int, tree: Path, folder: Path) -> NoReturn:
    """Turns this process into a rank that runs scripts/train.py of `tree` and ends."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(tree)
    cache = folder / "cache"
    os.environ |= {"PYTHONPATH": str(tree), "HF_DATASETS_CACHE": str(cache)}
    sys.modules["datasets"].config.HF_DATASETS_CACHE = cache  # it was imported before
    if start.ranks > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(start.ranks)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    script = tree / "scripts" / "train.py"
    recipe = start.recipe
    configs = "ds_configs"
    if recipe in ("encoder", "t5"):
        recipe = f"inputs/{recipe}.yaml"
        configs = "inputs"
    command = [str(script), "--recipe", recipe, "--ds_config", f"{configs}/zero{start.stage}.json"]
    for name, value in start.settings.items():
        command += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    command += ["--output_dir", str(folder / start.folder)]
    if start.resume:
        command += ["--resume", *map(str, folder.glob(start.resume))]
    sys.argv = command
    sys.path[:1] = [str(script.parent), str(tree)]
    os._exit(run(script, tree))  # taking the interpreter down would take 2 s


def run(script: Path, tree: Path) -> int:
    """Runs a script as the main program, its threads and exit handlers included; returns its exit code."""
    code: object = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] in ("swep_ds", "kernels") and file and not Path(file).is_relative_to(tree):
            print(f"{file} was imported, which is not of this revision", file=sys.stderr)
            code = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


# Comparison


def numbers(folder: Path) -> dict[str, Any]:
    """The values that are compared, of all runs in a folder, by file and place in the file."""
    values: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.name in ("metrics.jsonl", "health.jsonl"):
            lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
            content = flatten({f"update {line['update']}": line for line in lines})
        elif file.name == "results.json" or file.parent.name == "predictions":
            content = flatten(json.loads(file.read_text(encoding="utf-8")))
        elif file.suffix == ".safetensors":
            content = sys.modules["safetensors.torch"].load_file(file)
        else:
            continue
        if file.parent.name != "predictions":
            content = {place: value for place, value in content.items() if not NOT_COMPARED.search(place)}
        values |= {f"{name}: {place}": value for place, value in content.items()}
    return values


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in tree.items():
        below = flatten(value) if isinstance(value, dict) else {}
        flat |= {f"{name}, {place}": leaf for place, leaf in below.items()} if below else {name: value}
    return flat


def same(before: Any, after: Any, tolerance: float) -> bool:
    """Whether two values are equal, numbers to a relative tolerance and weights to the same as an absolute one."""
    if hasattr(before, "dtype") and hasattr(after, "dtype"):
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            return False
        bits = [tensor.contiguous().flatten().view(sys.modules["torch"].uint8) for tensor in (before, after)]
        before, after = before.double(), after.double()
        return bits[0].equal(bits[1]) or bool((before - after).abs().max() <= tolerance)
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=tolerance) or (math.isnan(before) and math.isnan(after))
    return before == after


def outcome(folder: Path) -> str | None:
    """What failed in a case; None where all of its starts ended as they should."""
    file = folder / "outcome.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else "not made"


def compare(before: Path, after: Path, tolerance: float) -> tuple[bool, str]:
    """(whether two folders of the same case are equal, a sentence about it)."""
    for folder, side in ((before, "before"), (after, "after")):
        if failure := outcome(folder):
            return False, f"FAILED {side}: {failure}"
    sides, missing = (numbers(before), numbers(after)), "(missing)"
    pairs = {place: [side.get(place, missing) for side in sides] for place in sides[0] | sides[1]}
    skipped = WITHOUT_GRADIENT if tolerance else ()
    differ = [place for place, pair in pairs.items() if not (same(*pair, tolerance) or place.endswith(skipped))]
    if not differ:
        return True, f"equal ({len(pairs)} values)"
    shown = [f"norm {v.double().norm().item()!r}" if hasattr(v, "dtype") else repr(v)[:80] for v in pairs[differ[0]]]
    return False, f"DIFFERS ({len(differ)} of {len(pairs)} values), first {differ[0]}: {' -> '.join(shown)}"


# Revisions


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], check=True, capture_output=True).stdout


def export(commit: str | None, folder: Path) -> None:
    """Copies the rooms of a commit, or for None of the working tree, to a folder."""
    top = git("rev-parse", "--show-toplevel").decode().strip()
    if commit:
        folder.mkdir()
        subprocess.run(["tar", "-x", "-C", folder], input=git("-C", top, "archive", commit, *ROOMS), check=True)
        return
    for room in ROOMS:
        shutil.copytree(Path(top, room), folder / room, ignore=shutil.ignore_patterns("__pycache__"))


def import_once() -> dict[str, bool]:
    """Imports what all runs need; says which precisions this machine computes in."""
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        del os.environ[name]
    os.environ |= ENVIRONMENT
    for name in PRELOADED:
        importlib.import_module(name)
    if "swep_ds" in sys.modules or threading.active_count() > 1:
        raise SystemExit("an import brought in swep_ds, or started a thread: runs cannot be forked from here")
    gc.collect()
    gc.freeze()  # so that forked processes neither scan nor copy what was imported
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    bf16 = accelerator.is_bf16_supported()
    return {"autocast": bf16, "bf16": bf16}


def digest(case: list[Start], inputs: Path) -> str:
    """A checksum of all that decides the numbers of a case, except the revision's code."""
    content = hashlib.sha256(repr(case).encode())
    for file in sorted(inputs.rglob("*.*")):
        content.update(file.read_bytes())
    for library in ("torch", "transformers", "deepspeed", "tokenizers", "datasets"):
        content.update(version(library).encode())
    return content.hexdigest()[:8]


def comparable(case: list[Start], tree: Path, other: Path) -> list[Start]:
    """The case as `tree` makes it: decoded as published where `other` is older than `eval.whole_words`."""
    recipes = [tree / "swep_ds/pipeline/recipe.py", other / "swep_ds/pipeline/recipe.py"]
    knows = ["whole_words" in file.read_text(encoding="utf-8") for file in recipes]
    if knows == [True, False]:
        return [start._replace(settings={**start.settings, "eval.whole_words": False}) for start in case]
    return case


def check(chosen: dict[str, list[Start]], trees: list[Path], runs: list[Path], pool: Pool, tolerance: float) -> bool:
    """Makes the runs that are not kept from earlier, and prints a line for each case; whether all are equal."""
    making = {}
    for name, case in chosen.items():
        making[name] = []
        for tree, other, folder in zip(trees, reversed(trees), runs, strict=True):
            side = comparable(case, tree, other)
            place = folder / f"{name}-{digest(side, trees[0] / 'inputs')}"
            making[name].append((place, pool.apply_async(make, (side, tree, place))))
    equal = True
    for name, sides in making.items():
        for _, made in sides:
            made.get()
        equal_case, text = compare(*(place for place, _ in sides), tolerance)
        print(f"{name:{max(map(len, chosen))}}  {text}", flush=True)
        equal &= equal_case
    return equal


def main() -> int:
    options = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    options.add_argument("before", metavar="REVISION", help="any name of a commit that git knows")
    options.add_argument("after", metavar="REVISION", nargs="?", help="default: the working tree, as it is now")
    text = "a part of a run's name, or a pattern; repeatable"
    options.add_argument("--only", action="append", metavar="NAME", help=text)
    options.add_argument("--list", action="store_true", help="print the names of the runs, and make none")
    text = "relative of numbers, absolute of weights (default: 0)"
    options.add_argument("--tolerance", type=float, default=0.0, help=text)
    options.add_argument("--cache", type=Path, metavar="FOLDER", help="keep the runs of commits here, and reuse them")
    arguments = options.parse_args()
    patterns = arguments.only or ["*"]
    chosen = {n: c for n, c in cases().items() if any(p in n or fnmatch.fnmatchcase(n, p) for p in patterns)}
    if not chosen:
        options.error(f"--only {' '.join(patterns)}: no run has such a name: --list prints them")
    if arguments.list:
        print("\n".join(chosen))
        return 0
    commits = []
    for name in (arguments.before, arguments.after):
        try:
            commits.append(name and git("rev-parse", "--verify", f"{name}^{{commit}}").decode().strip())
        except subprocess.CalledProcessError:
            options.error(f"{name}: git knows no such commit")
    for name, supported in import_once().items():
        if not supported and chosen.pop(name, None):
            print(f"{name}: skipped, as this device does not compute in it")
    temporary = Path(tempfile.mkdtemp(prefix="same-numbers-"))  # no TemporaryDirectory: forked runs would delete it
    try:
        trees, runs = [temporary / "before", temporary / "after"], []
        for commit, tree in zip(commits, trees, strict=True):
            export(commit, tree)
            kept = arguments.cache and commit and (arguments.cache / commit[:12]).absolute()
            runs.append(kept if kept and kept not in runs else Path(f"{tree}-runs"))
            print(f"{tree.name}: {commit[:12] if commit else 'the working tree'}", flush=True)
        for tree in trees:
            (tree / "inputs").mkdir()
            write_inputs(trees[1] / "swep_ds" / "data" / "quickstart", tree / "inputs")
        with multiprocessing.get_context("fork").Pool(JOBS) as pool:
            equal = check(chosen, trees, runs, pool, arguments.tolerance)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print("all runs are equal" if equal else "NOT all runs are equal")
    return 0 if equal else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # taking the interpreter down would take 2 s
