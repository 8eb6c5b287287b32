"""The noisy pass of a logged update at ZeRO-3 on two ranks, by vocabulary."""

import atexit
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.growth.engines import HIDDEN, make_batch, make_engine
from swep_ds.methods.base import MicroStep, PassState
from swep_ds.ranks.group import process_group
from swep_ds.ranks.launcher import free_port
from swep_ds.training.engine import Engine

SIZES = (30_000, 120_000)
LARGE = (120_000, 250_002)
UNIT = "words of 256 dimensions"
BASELINE = "the clean pass"
WINDOWS, TOKENS = 8, 256
CLEAN, NOISY, END = range(3)


class Ranks:
    """This process as rank 0, and rank 1 in a process of its own, which does what rank 0 asks for."""

    def __init__(self, vocabulary: int):
        launch = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= launch | {"MASTER_PORT": str(free_port())}
        other = os.environ | {"RANK": "1", "LOCAL_RANK": "1"}
        subprocess.Popen([sys.executable, "-m", __spec__.name, str(vocabulary)], env=other)
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
        self._stack = ExitStack()
        self._stack.enter_context(process_group())
        self.engine = make_engine("zero3", vocabulary, accumulation=1000)  # no step is measured
        for _ in range(3):  # DeepSpeed records the order of modules, and then fetches ahead
            self.do(CLEAN)
            self.do(NOISY)
        atexit.register(self._end)  # after the measurement, which would count rank 1 if it had ended

    def _end(self) -> None:
        self.do(END)
        self._stack.close()

    def do(self, part: int) -> None:
        dist.broadcast(torch.tensor(part), 0)
        if part != END:
            run_part(self.engine, part)


def run_part(engine: Engine, part: int) -> None:
    """A pass of a logged update, forward and backward."""
    carried = PassState(hidden=torch.ones(WINDOWS, TOKENS, HIDDEN)) if part == NOISY else PassState()
    loss, _, _ = engine(make_batch(WINDOWS, TOKENS), replace(MicroStep(0, measure=True), part=part, carried=carried))
    engine.backward(loss)


ranks: Ranks


def prepare(size: int, folder: Path) -> None:
    (folder / "vocabulary").write_text(str(size), encoding="utf-8")


def warm_up(folder: Path) -> None:
    global ranks
    ranks = Ranks(int((folder / "vocabulary").read_text(encoding="utf-8")))


def ours(size: int, folder: Path) -> None:
    ranks.do(NOISY)


def baseline(size: int, folder: Path) -> None:
    ranks.do(CLEAN)


if __name__ == "__main__":
    with process_group():
        engine = make_engine("zero3", int(sys.argv[1]), accumulation=1000)
        part = torch.tensor(CLEAN)
        while True:
            dist.broadcast(part, 0)
            if part == END:
                break
            run_part(engine, int(part))
