"""Makes the runs that a JSON file lists, each by ranks forked from this process, which imports everything once.

A run is {"name", "ranks", "set", "output_dir"}, and if wanted "faults": {rank: [step, fault, ...]}. Where a rank comes
to a step as `ranks.progress` names it, it meets the faults one after the other: the name of a signal that it sends
itself, a number of seconds to wait, or "raise". A rank that stops itself (SIGSTOP) is killed after `STOPPED_SECONDS`.
`results.json` beside the list has for each run the exit codes, what was said on stderr, and the seconds from the first
fault to the last rank's end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 (what engines and models import when they are made)
import transformers.models.bert.modeling_bert  # noqa: F401

from swep_ds import distributed as ranks
from swep_ds.command import main
from swep_ds.recipe import Recipe
from swep_ds.run import run

LONGEST = 60  # s, of a run
STOPPED_SECONDS = 8.0


def meet(faults: list, marker: Path) -> None:
    marker.touch()
    for fault in faults:
        if fault == "raise":
            raise ZeroDivisionError("of the test")
        if isinstance(fault, str):
            os.kill(os.getpid(), signal.Signals[fault])
        else:
            time.sleep(fault)


def train(one: dict, folder: Path, rank: int) -> None:
    faults = one.get("faults", {}).get(str(rank), [None])
    progress, marker = ranks.progress, folder / f"{one['name']}.fault"

    def progress_and_meet(step: str) -> None:
        progress(step)
        if step == faults[0] and not met:
            met.append(step)
            meet(faults[1:], marker)

    met = []
    ranks.progress = progress_and_meet
    if faults[0] == "imports":
        meet(faults[1:], marker)
    recipe = Recipe.load(str(folder / one.get("recipe", "recipe.yaml")), one["set"])
    with ranks.process_group():
        run(recipe, str(folder / "zero2.json"), folder / one["output_dir"], "auto")


def become(rank: int, one: dict, folder: Path, port: int) -> None:
    for stream, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{one['name']}.{rank}.{suffix}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    world = str(one["ranks"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main(lambda: train(one, folder, rank), stoppable=True)


def make(one: dict, folder: Path) -> dict:
    port, children = ranks.free_port(), {}
    for rank in range(one["ranks"]):
        pid = os.fork()
        if pid == 0:
            become(rank, one, folder, port)
        children[pid] = rank
    codes, began, stopped = {}, time.time(), {}
    while len(codes) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            stopped[pid] = time.time()
        elif pid:
            codes[children[pid]] = os.waitstatus_to_exitcode(status)
            continue
        late = time.time() - began > LONGEST
        for pid, rank in children.items():
            if rank not in codes and (late or time.time() - stopped.get(pid, time.time()) > STOPPED_SECONDS):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    marker = folder / f"{one['name']}.fault"
    seconds = time.time() - marker.stat().st_mtime if marker.exists() else None
    said = [(folder / f"{one['name']}.{rank}.err").read_text() for rank in range(one["ranks"])]
    return {"codes": [codes[rank] for rank in range(one["ranks"])], "said": said, "seconds": seconds}


if __name__ == "__main__":
    plan = Path(sys.argv[1])
    results = {}
    for one in json.loads(plan.read_text()):
        results[one["name"]] = make(one, plan.parent)
    (plan.parent / "results.json").write_text(json.dumps(results))
