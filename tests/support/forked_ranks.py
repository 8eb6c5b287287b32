"""Makes the runs that a JSON file lists, each by ranks forked from this process, which imports everything once.

A run is {"name", "ranks", "set", "output_dir"}, and optionally "faults": {rank: [step, signal]}: when the rank reaches
a step, as `ranks.progress` names it, it sends itself the signal. "{rank}" in "output_dir" gives each rank a folder of
its own. `results.json`, next to the list, has for each run the exit codes and the ranks' stderr.
"""

import json
import os
import signal
import sys
from pathlib import Path

import swep_ds.pipeline.run  # noqa: F401 (before the ranks are forked)
from swep_ds.commands import train
from swep_ds.commands.cli import main
from swep_ds.ranks import group, writing
from tests.support.fork_server import free_port

train.report = lambda folder: ("", {})  # takes longer than the training
writing.SHARED_SECONDS = 0.5  # on one machine


def become(rank: int, asked: dict, folder: Path, port: int) -> None:
    for stream, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{asked['name']}.{rank}.{suffix}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(asked["ranks"])}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    faults = asked.get("faults", {}).get(str(rank), [])

    def meet(step: str, progress=group.progress) -> None:
        progress(step)
        if faults and step == faults[0]:
            name = faults[1]
            faults.clear()
            os.kill(os.getpid(), signal.Signals[name])

    group.progress = meet
    sys.argv = ["train.py", "--recipe", str(folder / "recipe.yaml")]
    sys.argv += ["--ds_config", str(folder / "zero2.json")]
    sys.argv += ["--output_dir", str(folder / asked["output_dir"].format(rank=rank))]
    sys.argv += [word for setting in asked["set"] for word in ("--set", setting)]
    main(train.train)


def make(asked: dict, folder: Path) -> dict:
    port = free_port()
    children = []
    for rank in range(asked["ranks"]):
        pid = os.fork()
        if pid == 0:
            become(rank, asked, folder, port)
        children.append(pid)
    errors = [folder / f"{asked['name']}.{rank}.err" for rank in range(asked["ranks"])]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return {"codes": codes, "said": [file.read_text() for file in errors]}


if __name__ == "__main__":
    plan = Path(sys.argv[1])
    results = {asked["name"]: make(asked, plan.parent) for asked in json.loads(plan.read_text())}
    (plan.parent / "results.json").write_text(json.dumps(results))
