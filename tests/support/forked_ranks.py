"""Makes the runs that a JSON file lists, each by ranks forked from this process, which imports everything once.

A run is {"name", "ranks", "set", "output_dir"}, and if wanted "faults": {rank: [step, fault, ...]}. Where a rank comes
to a step as `ranks.progress` names it, it meets the faults one after the other: the name of a signal that it sends
itself and, if that is a request to stop, has taken before it goes on; "wait", for ever; or "raise". A rank that stops
itself (SIGSTOP) is killed once another one has warned of it. "repeat_seconds" is what separates two requests.
`results.json` beside the list has for each run the exit codes and what was said on stderr; a run that hangs is killed.
"""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

from swep_ds import ranks
from swep_ds.cli import main
from swep_ds.pipeline.run import run
from swep_ds.ranks import signals as stop_signals
from swep_ds.recipe import Recipe
from tests.support.ports import free_port

LONGEST = 600  # s, of a run


def meet(faults: list[str]) -> None:
    for fault in faults:
        if fault == "raise":
            raise ZeroDivisionError("of the test")
        if fault == "wait":
            time.sleep(2 * LONGEST)
        else:
            os.kill(os.getpid(), signal.Signals[fault])
            while signal.Signals[fault] in stop_signals.SIGNALS and not stop_signals.request.number:
                time.sleep(0.01)


def train(one: dict, folder: Path, rank: int) -> None:
    faults = one.get("faults", {}).get(str(rank), [None])
    progress = ranks.progress

    def progress_and_meet(step: str) -> None:
        progress(step)
        if step == faults[0] and not met:
            met.append(step)
            meet(faults[1:])

    met = []
    ranks.progress = progress_and_meet
    stop_signals.JOIN_SECONDS = LONGEST
    stop_signals.REPEAT_SECONDS = one.get("repeat_seconds", stop_signals.REPEAT_SECONDS)
    if faults[0] == "imports":
        meet(faults[1:])
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


def is_called_silent(rank: int, errors: Path) -> bool:
    return re.search(rf"rank {rank} \([^)]*\) has been silent", errors.read_text()) is not None


def make(one: dict, folder: Path) -> dict:
    port, children = free_port(), {}
    for rank in range(one["ranks"]):
        pid = os.fork()
        if pid == 0:
            become(rank, one, folder, port)
        children[pid] = rank
    errors = [folder / f"{one['name']}.{rank}.err" for rank in range(one["ranks"])]
    codes, began, stopped = {}, time.monotonic(), set()
    while len(codes) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            stopped.add(pid)
        elif pid:
            codes[children[pid]] = os.waitstatus_to_exitcode(status)
            continue
        late = time.monotonic() - began > LONGEST
        for pid, rank in children.items():
            warned = pid in stopped and any(is_called_silent(rank, file) for file in errors)
            if rank not in codes and (late or warned):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return {"codes": [codes[rank] for rank in range(one["ranks"])], "said": [file.read_text() for file in errors]}


if __name__ == "__main__":
    plan = Path(sys.argv[1])
    results = {}
    for one in json.loads(plan.read_text()):
        results[one["name"]] = make(one, plan.parent)
    (plan.parent / "results.json").write_text(json.dumps(results))
