"""Makes the runs that a JSON file lists, each by ranks forked from this process, which imports everything once.

A run is {"name", "ranks", "set", "output_dir"}, and optionally "faults": {rank: [step, fault, ...]}. When a rank
reaches a step, as `ranks.progress` names it, it meets the faults in order: the name of a signal, which it sends itself,
or "raise". A rank that stops itself (SIGSTOP) is killed once another rank has warned of it. "{rank}" in "output_dir"
gives each rank a folder of its own. `results.json`, next to the list, has for each run the exit codes and the ranks'
stderr; a run that hangs is killed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from swep_ds import ranks
from swep_ds.commands.cli import main
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.run import run
from swep_ds.ranks import stopping
from tests.support.ports import free_port

MAX_SECONDS = 600  # s, of a run


def meet(faults: list[str]) -> None:
    for fault in faults:
        if fault == "raise":
            raise ZeroDivisionError("of the test")
        os.kill(os.getpid(), signal.Signals[fault])


def train(asked: dict, folder: Path, rank: int) -> None:
    faults = asked.get("faults", {}).get(str(rank), [None])
    due = iter([faults])

    def listen(step: str) -> None:
        if step == faults[0] and next(due, None):
            meet(faults[1:])

    ranks.step_listeners.append(listen)
    stopping.request.allowed = True
    recipe = Recipe.load(str(folder / asked.get("recipe", "recipe.yaml")), asked["set"])
    with ranks.process_group():
        run(recipe, str(folder / "zero2.json"), folder / asked["output_dir"].format(rank=rank), "auto")


def become(rank: int, asked: dict, folder: Path, port: int) -> None:
    for stream, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{asked['name']}.{rank}.{suffix}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    world = str(asked["ranks"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    main(lambda: train(asked, folder, rank))


def is_called_silent(rank: int, errors: Path) -> bool:
    return f"no answer from rank {rank} " in errors.read_text()


def make(asked: dict, folder: Path) -> dict:
    port, children = free_port(), {}
    for rank in range(asked["ranks"]):
        pid = os.fork()
        if pid == 0:
            become(rank, asked, folder, port)
        children[pid] = rank
    errors = [folder / f"{asked['name']}.{rank}.err" for rank in range(asked["ranks"])]
    codes, began, stopped = {}, time.monotonic(), set()
    while len(codes) < len(children):
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            stopped.add(pid)
        elif pid:
            codes[children[pid]] = os.waitstatus_to_exitcode(status)
            continue
        late = time.monotonic() - began > MAX_SECONDS
        for pid, rank in children.items():
            warned = pid in stopped and any(is_called_silent(rank, file) for file in errors)
            if rank not in codes and (late or warned):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return {"codes": [codes[rank] for rank in range(asked["ranks"])], "said": [file.read_text() for file in errors]}


if __name__ == "__main__":
    plan = Path(sys.argv[1])
    results = {}
    for asked in json.loads(plan.read_text()):
        results[asked["name"]] = make(asked, plan.parent)
    (plan.parent / "results.json").write_text(json.dumps(results))
