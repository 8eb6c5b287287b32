"""A rank whose memory is measured: `python -m benchmarks.shapes.rank FOLDER DS_CONFIG RESUME [--set ...]`, also started
by a launcher.

Makes the run in FOLDER as `swep-ds train` makes it, and writes `memory-RANK.json` there: for each phase of the run its
peak in bytes, the bytes left at its end and its CPU seconds. Memory is what Linux calls RssAnon, less that after the
imports: pages of files, such as mapped weights, are not in it.
"""

import argparse
import gc
import json
import threading
import time
from pathlib import Path
from unittest import mock

from swep_ds.commands.cli import GC_THRESHOLDS, Parser, add_set_option, main
from swep_ds.commands.train import report
from swep_ds.common.files import user_path
from swep_ds.pipeline.recipe import Recipe

EVERY = 0.02  # seconds between two samples
STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    [line] = [line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


def phase_of(step: str) -> str:
    """The phase that a step of `ranks.progress` belongs to."""
    if step.startswith("update "):
        return "checkpoint" if step.endswith("checkpoint") else "training"
    return step.partition(",")[0]


class Meter:
    """Samples this process's memory in a thread of its own, by phase."""

    def __init__(self):
        self._before = anonymous_bytes()
        self._ended = threading.Event()
        self._phase = "loading"
        self._began = time.process_time()
        self.phases: dict[str, dict[str, float]] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            self._sample()

    def _sample(self) -> None:
        size = anonymous_bytes() - self._before
        seen = self.phases.setdefault(self._phase, {"peak": 0, "seconds": 0.0})
        seen["peak"] = max(seen["peak"], size)
        seen["end"] = size

    def enter(self, phase: str) -> None:
        """Ends the current phase and begins another. The name of an earlier phase continues that one."""
        if phase == self._phase:
            return
        self._sample()
        now = time.process_time()
        self.phases[self._phase]["seconds"] += now - self._began
        self._phase = phase
        self._began = now

    def close(self) -> None:
        self.enter("end")
        self._ended.set()
        self._thread.join()


def measured_run() -> None:
    options = Parser(description=__doc__)
    options.add_argument("folder", type=user_path)
    options.add_argument("ds_config")
    options.add_argument("resume", help="auto, or a checkpoint's folder")
    add_set_option(options, "the recipe")
    options.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # added by the deepspeed launcher
    given = options.parse_args()
    import swep_ds.analysis.report
    import swep_ds.models.extractive
    import swep_ds.models.seq2seq  # noqa: F401
    from swep_ds.pipeline.run import run
    from swep_ds.ranks import group

    recipe = Recipe.load("quickstart", given.set)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with group.process_group():
        meter = Meter()
        noted = group.progress

        def progress(step: str) -> None:
            noted(step)
            meter.enter(phase_of(step))

        with mock.patch.object(group, "progress", progress):
            run(recipe, given.ds_config, given.folder, given.resume, report)
        meter.close()
        file = given.folder / f"memory-{group.rank()}.json"
        file.write_text(json.dumps(meter.phases, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(measured_run)
