"""Ranks: found in the environment of `deepspeed`, `torchrun`, `srun` or plain `python`, and ended cleanly.

Notable (DeepSpeed 0.19):
- On CPU, `init_distributed` would compile a shared-memory operator (40 s) that leaves 69 MB per rank in /dev/shm
  for good; it is switched off, gloo alone does the work.
- Its groups' collectives give up after 10 minutes. Ranks may well wait for longer, for data that one prepares or a
  model that one writes, and a dead rank is the lifeline's to notice: see `wait_long`.
- Without `engine.destroy()`, barrier and `destroy_process_group()` a few per cent of runs die at interpreter exit.
"""

import logging
import os
import random
import socket
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import datasets
import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
import transformers
from deepspeed.accelerator import get_accelerator
from torch.distributed import distributed_c10d

from swep_ds import accelerator
from swep_ds.command import is_first_on_node, report
from swep_ds.errors import EXIT_DONE, Ended, InputError, Stopped
from swep_ds.lifeline import Hub, Line, Spoke
from swep_ds.stop_signals import leave_alone, request

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of a launcher
JOIN = timedelta(minutes=10)  # for all ranks to start
LONGEST_WAIT = timedelta(hours=6)  # of a rank for others that live
ALONE_SECONDS = 30.0  # that others may come later to a common end, by what they finish first

T = TypeVar("T")
_hosts: list[str] = []  # by rank
_line: Line | None = None  # None where there is one rank


@contextmanager
def process_group() -> Iterator[None]:
    """Joins the process group and leaves it cleanly; inside, `rank()`, `world_size()` and `device()` hold.

    Where a rank dies, or ends with an exception that is no `Ended`, all others end within seconds and say which
    (`swep_ds.lifeline`).

    Raises:
        InputError: a launcher set some of the rank variables, but not all; a node has fewer devices than ranks; or the
            ranks cannot reach each other.
        Ended: of the block, which must raise it on all ranks alike (`agree`).
    """
    with _named_rank():
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        datasets.disable_progress_bars()
        _join()
        try:
            _connect()
            yield
            _leave(EXIT_DONE)
        except Ended as end:
            report(end)  # before the launcher sees one rank end and kills the others
            _leave(end.exit_code, end)
            raise
        except BaseException as error:
            if _line:
                _line.fail(error)
            raise


@contextmanager
def _named_rank() -> Iterator[None]:
    """The launcher's variables are there. Those filled in go again, or what is started later would inherit them."""
    given = set(os.environ)
    _complete_environment()
    try:
        yield
    finally:
        for name in {*VARIABLES, "SWEP_DS_LOCAL_ID"} - given:
            os.environ.pop(name, None)


def _join() -> None:
    backend, local, missing = get_accelerator().communication_backend_name(), int(os.environ["LOCAL_RANK"]), ""
    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        backend = "gloo"
    elif local >= (devices := get_accelerator().device_count()):
        missing = f"rank {os.environ['RANK']} wants device {local} of a node with {devices}: start fewer ranks"
    else:
        get_accelerator().set_device(local)
    store = _meet(missing)  # kept until the group has its own
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    del store
    wait_long()


def _meet(fault: str) -> dist.Store:
    """Waits for all ranks, of which one may have no device to join a group with.

    Raises:
        InputError: on all ranks, if any has a fault.
    """
    store, number, world = next(dist.rendezvous("env://", timeout=JOIN))
    store.set(f"swep_ds/fault/{number}", fault)
    faults = [one.decode() for one in store.multi_get([f"swep_ds/fault/{rank}" for rank in range(world)])]
    if not any(faults):
        return store
    with suppress(RuntimeError):  # rank 0, which serves the store, goes once all have read
        if store.add("swep_ds/read", 1) == world:
            store.set("swep_ds/all have read", "")
        store.wait(["swep_ds/all have read"])
    raise InputError(next(filter(None, faults)))


def wait_long() -> None:
    """Lets the collectives of all groups that there are wait for `LONGEST_WAIT`."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(LONGEST_WAIT, group)


def _connect() -> None:
    """Ties the ranks together, so that none waits for a dead one."""
    _hosts[:] = gather(os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    if world_size() == 1:
        request.joined(leave_alone)
        return
    address, hub = os.environ["MASTER_ADDR"], None

    def listen() -> Hub | None:
        try:
            return Hub(world_size(), _hosts, address) if is_main() else None
        except OSError as error:
            raise InputError(f"MASTER_ADDR {address}: rank 0 cannot listen there ({error})") from None

    def connect() -> None:
        global _line  # at once: where another rank fails, this one says goodbye as well
        try:
            _line = hub or Spoke(rank(), world_size(), _hosts, address, ticket, tells=is_first_on_node())
        except OSError as error:
            raise InputError(
                f"MASTER_ADDR {address}: port {ticket.port} of rank 0 cannot be reached ({error}): the nodes must "
                "reach each other on all ports"
            ) from None

    hub = agree(listen)
    ticket = gather(hub and hub.ticket)[0]
    agree(connect)
    request.joined(_line.stop)


def _leave(code: int, end: Ended | None = None) -> None:
    """All ranks call this together; one that is alone with what ended it ends the others, which wait elsewhere."""
    global _line
    request.settle(code)
    alone = None
    if _line and end and not isinstance(end, Stopped):  # which all have agreed upon
        alone = threading.Timer(ALONE_SECONDS, _line.fail, (end,))
        alone.daemon = True
        alone.start()
    dist.barrier()
    if alone:
        alone.cancel()
    if _line:
        _line.close()
        _line = None
    dist.destroy_process_group()


def _complete_environment() -> None:
    """Fills in what `srun` and plain `python` do not set."""
    env = os.environ
    if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        if "MASTER_ADDR" not in env:
            command = ["scontrol", "show", "hostnames", env["SLURM_STEP_NODELIST"]]
            try:
                listed = subprocess.run(command, capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise InputError(
                    f"{' '.join(command)} failed ({error}): export MASTER_ADDR in the job script"
                ) from None
            env["MASTER_ADDR"] = listed.stdout.split()[0]
        unique = 100 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])
        env.setdefault("MASTER_PORT", str(20000 + unique % 12000))
        env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
        if accelerator.device_count() == 1:
            env["LOCAL_RANK"] = "0"  # --gpus-per-task=1 shows every task one device, its own
        env["SWEP_DS_LOCAL_ID"] = env["SLURM_LOCALID"]
        env["WORLD_SIZE"] = env["SLURM_STEP_NUM_TASKS"]
    if "RANK" not in env and "WORLD_SIZE" not in env:
        env.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    missing = [name for name in VARIABLES if name not in env]
    if missing:
        raise InputError(
            f"the environment has some of the launcher's variables but not {', '.join(missing)}: start with "
            "`deepspeed`, `torchrun` or `srun`, or unset RANK and WORLD_SIZE for one process"
        )


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now.

    From below those that systems give to outgoing connections: one of these may be gone a second later.
    """
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))  # every address, as the store does
            return port
    raise OSError("none of 100 ports between 20000 and 32000 is free")


def rank() -> int:
    return dist.get_rank()


def world_size() -> int:
    return dist.get_world_size()


def is_main() -> bool:
    return rank() == 0


def device() -> torch.device:
    return torch.device(get_accelerator().current_device_name())


def host(rank: int) -> str:
    """The name of the machine that a rank runs on."""
    return _hosts[rank]


def progress(step: str) -> None:
    """Says where this rank is from now on, to whoever wants to know should it die or stall. All ranks take the same
    steps; this costs next to nothing."""
    if _line:
        _line.progress(step)


def watch_stalls(seconds: float) -> None:
    """From now on rank 0 says which ranks are behind whenever none has taken a step for so long."""
    if _line:
        _line.watch(seconds)


def synchronize() -> None:
    """Waits for the device, so that a clock read next tells the truth."""
    if device().type != "cpu":
        get_accelerator().synchronize()


def gather(value: T) -> list[T]:
    """Every rank's picklable value, in rank order, on all ranks."""
    values: list = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def agree(step: Callable[[], T]) -> T:
    """Runs `step` on every rank; if it raises InputError on any, raises that error on all of them."""
    value, fault = None, None
    try:
        value = step()
    except InputError as error:
        fault = str(error)
    faults = gather(fault)
    if any(faults):
        number, message = next((n, m) for n, m in enumerate(faults) if m)
        where = "" if all(m == message for m in faults) else f" (on rank {number}, host {_hosts[number]})"
        raise InputError(message + where)
    return value


def first_on_each_node(step: Callable[[], T]) -> T:
    """Runs `step` on each node's first rank, then on the others, which find what it left in the node's cache."""
    first = is_first_on_node()
    value = agree(lambda: step() if first else None)
    return agree(lambda: value if first else step())
