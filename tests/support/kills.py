"""Kills training runs and checks that nothing is lost (docs/clusters.md).

    python tests/support/kills.py --kills 20 --seed 0

Each run of a tiny model, on 2 ranks under the `deepspeed` launcher, loses a random rank to SIGKILL at a random moment:
while it starts or trains, while it writes a checkpoint, while it evaluates and exports. Started again with
`--resume auto`, it must resume from the newest complete checkpoint, and end with the losses, answers and weights of an
undisturbed run, bit for bit. Prints a table; exits 1 if anything differs.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.ports import free_port  # noqa: E402
from tests.support.tiny_run import DEEPSPEED, assert_same, ds_config, metrics, prepare  # noqa: E402

RANKS = 2
UPDATES, EVERY = 60, 3  # in a run, and from checkpoint to checkpoint
SETTINGS = {"train.max_updates": UPDATES, "train.checkpoint_every": EVERY, "train.micro_batch_size": 4}
MOMENTS = ("training", "checkpoint", "start", "end")
WEIGHTS = (8, 8, 2, 2)
SECONDS_TO_START = 6.0  # roughly, from the start of the ranks to the first update
SECONDS_TO_END = 30  # after a kill, for the launcher and all ranks
SECONDS_TO_FINISH = 180  # for an undisturbed start


@dataclass(frozen=True)
class Kill:
    """Which rank was killed when, and how that start ended."""

    moment: str
    rank: int
    logged: int  # updates in metrics.jsonl
    writing: bool  # whether a checkpoint was incomplete
    seconds: float  # until all processes had ended
    code: int
    named: bool  # whether the output names the rank
    whole: list[int]  # updates of the complete checkpoints


class Start:
    """A start of a run under the `deepspeed` launcher, in a process group of its own."""

    def __init__(self, folder: Path, name: str):
        self.run, self.log = folder / name, folder / f"{name}.log"
        command = [str(DEEPSPEED), "-q", "--num_accelerators", str(RANKS), "--master_port", str(free_port())]
        command += [str(ROOT / "scripts" / "train.py"), "--output_dir", str(self.run), "--resume", "auto"]
        command += ["--recipe", str(folder / "recipe.yaml"), "--ds_config", str(ds_config(folder, 2))]
        command += [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
        env = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with self.log.open("w") as log:
            streams = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            self.process = subprocess.Popen(command, env=env, start_new_session=True, **streams)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def resumed_from(self) -> int:
        """The update that it resumed from; 0 = the beginning."""
        match = re.search(r"resuming from \S*update-(\d+)", self.said())
        return int(match[1]) if match else 0

    def ranks(self) -> dict[int, int]:
        """The process ids of the live ranks, by rank."""
        pids = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                local = re.search(r"train\.py --local_rank=(\d+)", " ".join(process.cmdline()))
                if local:
                    pids[int(local[1])] = process.pid
        return pids

    def updates(self) -> int:
        file = self.run / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.is_file() else 0

    def is_writing(self) -> bool:
        return any(not (tag / "complete.json").exists() for tag in self.run.glob("checkpoints/update-*"))

    def until(self, condition) -> None:
        """Waits for a condition.

        Raises:
            AssertionError: the start ended first.
        """
        while not condition():
            assert self.process.poll() is None, f"ended before it was killed\n{self.said()[-4000:]}"
            time.sleep(0.001)

    def wait(self, seconds: float) -> tuple[int, float]:
        """(exit code, seconds until all its processes had ended).

        Raises:
            AssertionError: some still run after that time; they are killed.
        """
        began = time.monotonic()
        while self.process.poll() is None or self._left():
            if time.monotonic() > began + seconds:
                self.close()
                raise AssertionError(f"processes were left after {seconds} s\n{self.said()[-4000:]}")
            time.sleep(0.05)
        return self.process.returncode, time.monotonic() - began

    def _left(self) -> bool:
        """Whether a process of the group runs; a launcher may end before its ranks."""
        for process in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError):
                if os.getpgid(process.pid) == self.process.pid and process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
        return False

    def close(self) -> None:
        """Kills what is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill(self, moment: str, rng: random.Random) -> Kill:
        """Kills a random rank at a random moment of that kind.

        Raises:
            AssertionError: the run ended first, or did not end in time.
        """
        rank = rng.randrange(RANKS)
        self.until(lambda: len(self.ranks()) == RANKS)
        if moment == "start":
            time.sleep(rng.uniform(0, SECONDS_TO_START))
        elif moment == "end":
            self.until(lambda: self.updates() == UPDATES)
            time.sleep(rng.uniform(0, 0.3))
        else:
            first = self.updates() + 1  # updates logged after the last checkpoint are repeated first
            target = rng.randint(first, max(first, UPDATES - 2 * EVERY))
            self.until(lambda: self.updates() >= target)
            if moment == "checkpoint":
                self.until(self.is_writing)
                time.sleep(rng.uniform(0, 0.02))
            else:
                time.sleep(rng.uniform(0, 0.1))
        os.kill(self.ranks()[rank], signal.SIGKILL)
        logged, writing = self.updates(), self.is_writing()
        code, seconds = self.wait(SECONDS_TO_END)
        named = re.search(rf"\brank {rank}\b", self.said()) is not None
        return Kill(moment, rank, logged, writing, seconds, code, named, whole_checkpoints(self.run))


def whole_checkpoints(run: Path) -> list[int]:
    """The updates of the checkpoints whose files all exist with the right size and are readable."""

    def whole(file: Path, size: int) -> bool:
        if not file.is_file() or file.stat().st_size != size:
            return False
        return file.suffix != ".pt" or (zipfile.is_zipfile(file) and zipfile.ZipFile(file).testzip() is None)

    manifests = [(file.parent, json.loads(file.read_text())) for file in run.glob("checkpoints/update-*/complete.json")]
    tags = [tag for tag, content in manifests if all(whole(tag / n, f["size"]) for n, f in content["files"].items())]
    return sorted(int(tag.name.removeprefix("update-")) for tag in tags)


def undisturbed(folder: Path) -> Path:
    """Prepares the recipe and runs the reference."""
    prepare(folder, dropout=0.1)
    finish(start := Start(folder, "undisturbed"))
    return start.run


def finish(start: Start) -> None:
    code, _ = start.wait(SECONDS_TO_FINISH)
    assert code == 0, start.said()[-4000:]


def disturbed(folder: Path, name: str, rng: random.Random, moments: Sequence[str]) -> list[Kill]:
    """Kills a run once per moment, lets its last start finish, and compares it with the undisturbed one.

    Raises:
        AssertionError: a killed start did not end in time or succeeded, a start did not resume from the newest complete
            checkpoint, a killed start that trained did not name the dead rank, or the runs differ.
    """
    kills: list[Kill] = []
    for moment in [*moments, None]:
        start = Start(folder, name)
        try:
            if moment is None:
                finish(start)
            else:
                kills.append(start.kill(moment, rng))
                assert kills[-1].code != 0, start.said()[-4000:]
                assert kills[-1].named or moment in ("start", "end"), start.said()[-4000:]
        finally:
            start.close()
        if moment != "start" and (before := kills[:-1] if moment else kills):
            assert start.resumed_from() == max(before[-1].whole, default=0), start.said()[-4000:]
    run = folder / name
    logged = [line["update"] for line in metrics(run)]
    assert logged == list(range(1, UPDATES + 1)), "an update is missing or logged twice"
    assert_same(run, folder / "undisturbed")
    assert json.loads((run / "results.json").read_text())["eval"]
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="runs, of which each is killed once (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, broken, slowest = random.Random(arguments.seed), 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        undisturbed(folder)
        print("| kill | moment | rank | update | half-written checkpoint | ended after, s | exit | rank named | run |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for number in range(arguments.kills):
            [moment] = rng.choices(MOMENTS, WEIGHTS)
            try:
                [kill] = disturbed(folder, f"run-{number}", rng, [moment])
            except AssertionError as error:
                broken += 1
                print(f"| {number + 1} | {moment} | | | | | | | BROKEN |\n\n{error}\n", flush=True)
                continue
            slowest = max(slowest, kill.seconds)
            yes = {True: "yes", False: "no"}
            row = [number + 1, moment, kill.rank, kill.logged, yes[kill.writing], f"{kill.seconds:.1f}", kill.code]
            print(f"| {' | '.join(map(str, [*row, yes[kill.named], 'equal']))} |", flush=True)
    whole = arguments.kills - broken
    print(
        f"\n{whole} of {arguments.kills} runs complete and equal, bit for bit; the slowest ended after {slowest:.1f} s"
    )
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
