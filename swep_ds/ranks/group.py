"""The process group: ranks started by `deepspeed`, `torchrun`, `srun` or plain `python` join it and end cleanly.

Notable (DeepSpeed 0.19):
- On CPU, `init_distributed` would compile a shared-memory operator (40 s) that leaves 69 MB per rank in /dev/shm
  for good. It is switched off; gloo alone does the work.
- DeepSpeed's collectives time out after 10 minutes. Ranks may wait longer, while one prepares data or writes a model,
  and the heartbeat notices a dead rank: see `wait_long`.
- Without `engine.destroy()`, barrier and `destroy_process_group()` a few per cent of runs die at interpreter exit.
"""

import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import datasets
import deepspeed
import deepspeed.ops
import torch
import torch.distributed as dist
import transformers
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups
from torch.distributed import distributed_c10d

from swep_ds.common.errors import EXIT_DONE, InputError, RunExit, Stopped, as_input_error, denied, reason
from swep_ds.ranks import accelerator
from swep_ds.ranks.heartbeat import Heartbeat, HeartbeatClient, HeartbeatServer
from swep_ds.ranks.launch import VARIABLES, Launch, is_first_on_node, read_launch, report
from swep_ds.ranks.launcher import free_port
from swep_ds.ranks.rendezvous import meet
from swep_ds.ranks.signals import exit_single_rank, request

MAX_WAIT = timedelta(hours=6)  # for live ranks; the heartbeat notices dead ones
ALONE_SECONDS = 30.0  # for the other ranks to reach a common end

T = TypeVar("T")
_hosts: list[str] = []  # by rank
_heartbeat: Heartbeat | None = None  # None: there is one rank
step_listeners: list[Callable[[str], None]] = []  # called with each step of `progress`


@contextmanager
def process_group() -> Iterator[None]:
    """Joins the process group and leaves it cleanly; inside, `rank()`, `world_size()` and `device()` hold.

    If a rank dies, or ends with an exception that is not a `RunExit`, all others end within seconds and name it
    (`swep_ds.ranks.heartbeat`).

    Raises:
        InputError: the process has a process group already, the launcher's variables make no sense, a node has fewer
            devices than ranks, or the ranks cannot reach each other.
        RunExit: from the block, which must raise it on all ranks alike (`on_all_ranks`). A SystemExit from the block
            becomes an InputError.
    """
    if dist.is_initialized():
        raise InputError(
            "torch.distributed: this process has a process group already, which a run would destroy at its end: "
            "destroy it before, or start the run in a process of its own"
        )
    with _named_rank() as launch, quiet(), _restored():
        _join(launch)
        try:
            _connect(launch)
            yield
            _leave(EXIT_DONE)
        except (RunExit, SystemExit) as end:
            if isinstance(end, SystemExit):  # a plug-in's: its code 0 would look like a finished run
                end = InputError(f"sys.exit({end.code!r}) was called during the run: remove it from the plug-in's code")
            if world_size() > 1:
                report(end)  # before the launcher sees one rank end and kills the others
            _leave(end.exit_code, end)
            raise end
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and request.caught:
                request.interrupt()
            if _heartbeat:
                _heartbeat.fail(error)
            else:
                dist.destroy_process_group()
            raise


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries log errors alone, and show no progress bars, inside."""
    logger, level = logging.getLogger("DeepSpeed"), logging.getLogger("DeepSpeed").level
    verbosity, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    datasets_bars = datasets.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        # a single rank's barrier has no device_id, and takes the device that `_join` has set
        warnings.filterwarnings("ignore", message=r"barrier\(\): using the device")
        logger.setLevel(logging.ERROR)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            logger.setLevel(level)
            transformers.logging.set_verbosity(verbosity)
            if bars:
                transformers.logging.enable_progress_bar()
            if not datasets_bars:
                datasets.enable_progress_bars()


@contextmanager
def _restored() -> Iterator[None]:
    """Takes back what PyTorch, DeepSpeed and this module change in the process: another group may follow."""
    linear, on_cpu = torch.nn.functional.linear, get_accelerator().device_name() == "cpu"
    hook = sys.excepthook  # a group's begins each line of a traceback with the rank
    # on a GPU nothing changes it, and reading it would probe every operator, with a line on stdout for each that fails
    operators = dict(deepspeed.ops.__compatible_ops__) if on_cpu else {}
    try:
        yield
    finally:
        torch.nn.functional.linear = linear  # ZeRO-3 puts its own in place
        sys.excepthook = hook
        groups._WORLD_GROUP = None
        if on_cpu:
            deepspeed.ops.__compatible_ops__.update(operators)


@contextmanager
def _named_rank() -> Iterator[Launch]:
    """Sets the launcher's variables that are missing, and removes them again: children would inherit them."""
    launch, before = read_launch(), dict(os.environ)
    filled_in = {*VARIABLES, "SWEP_DS_LOCAL_ID"} - set(os.environ)
    os.environ.update(launch.variables(free_port()))
    if "RANK" in filled_in and accelerator.device_count() == 1:
        os.environ["LOCAL_RANK"] = "0"  # with --gpus-per-task=1 every task sees one device, its own
    try:
        yield launch
    finally:
        for name in (*VARIABLES, "SWEP_DS_LOCAL_ID"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def _join(launch: Launch) -> None:
    backend, local = get_accelerator().communication_backend_name(), int(os.environ["LOCAL_RANK"])
    fault, device = "", None
    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        backend = "gloo"
    elif local >= (devices := get_accelerator().device_count()):
        fix = "start fewer ranks" if devices else "for a run on the CPU set DS_ACCELERATOR=cpu"
        fault = f"rank {launch.rank} wants device {local} of a node with {devices}: {fix}"
    else:
        try:
            get_accelerator().set_device(local)
            device = accelerator.unique_name(local)
        except RuntimeError as error:  # such as: another process has the device for itself
            fault = f"rank {launch.rank}, host {socket.gethostname()}: device {local} cannot be used ({reason(error)})"
    # keep the store until the group has its own
    store = meet(launch, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), fault, device)
    with as_input_error("the ranks cannot form a process group", "check the network between them, and its variables"):
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
    del store
    wait_long()


def wait_long() -> None:
    """Lets the collectives of all existing groups wait for `MAX_WAIT`."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(MAX_WAIT, group)


def _connect(launch: Launch) -> None:
    """Starts the heartbeat, so that no rank waits for a dead one."""
    places = gather((os.environ.get("SLURMD_NODENAME") or socket.gethostname(), launch.local_rank))
    _hosts[:] = [name for name, _ in places]
    for name in _hosts:
        if all(local for host, local in places if host == name):
            raise InputError(f"LOCAL_RANK: no rank of host {name} has 0: number the ranks of each node from 0")
    if world_size() == 1:
        request.joined(exit_single_rank)
        return
    name = os.environ["MASTER_ADDR"]

    def listen() -> HeartbeatServer | None:
        with as_input_error("rank 0 cannot listen to any port", "allow processes on its host to listen on TCP ports"):
            return HeartbeatServer(_hosts) if is_main() else None

    def connect() -> None:
        global _heartbeat  # at once: if another rank fails here, this one says goodbye as well
        what = f"MASTER_ADDR {name}: port {address.port} of rank 0 cannot be reached"
        with as_input_error(what, "the nodes must reach each other on all ports"):
            _heartbeat = server or HeartbeatClient(rank(), _hosts, name, address, reports=is_first_on_node())

    server = on_all_ranks(listen)
    address = gather(server and server.address)[0]
    on_all_ranks(connect)
    request.joined(_heartbeat.stop)


def _leave(code: int, end: RunExit | None = None) -> None:
    """Leaves the group. Collective; if only this rank comes, the others end with it after `ALONE_SECONDS`."""
    global _heartbeat
    request.fix_exit_code(code)
    alone = None
    if _heartbeat and end and not isinstance(end, Stopped):  # the ranks agreed to stop
        alone = threading.Timer(ALONE_SECONDS, _heartbeat.fail, (end,))
        alone.daemon = True
        alone.start()
    dist.barrier()
    if alone:
        alone.cancel()
    if _heartbeat:
        _heartbeat.close()
        _heartbeat = None
    dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank()


def world_size() -> int:
    return dist.get_world_size()


def is_main() -> bool:
    """Whether this is rank 0."""
    return rank() == 0


def device() -> torch.device:
    """This rank's device; on a GPU with its index."""
    return torch.device(get_accelerator().current_device_name())


def host(rank: int) -> str:
    """The name of the machine that a rank runs on."""
    return _hosts[rank]


def progress(step: str) -> None:
    """Notes that this rank begins a step, for reports of deaths and stalls. All ranks take the same steps; it costs
    next to nothing."""
    if _heartbeat:
        _heartbeat.progress(step)
    for listener in step_listeners:
        listener(step)


def watch_stalls(seconds: float) -> None:
    """From now on rank 0 warns which ranks are behind whenever none has taken a step for `seconds`."""
    if _heartbeat:
        _heartbeat.watch(seconds)


def synchronize() -> None:
    """Waits for the device, so that the clock can be read."""
    if device().type != "cpu":
        get_accelerator().synchronize()


def gather(value: T) -> list[T]:
    """Every rank's picklable value, in rank order. Collective."""
    values: list = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def on_all_ranks(step: Callable[[], T]) -> T:
    """Runs `step` on every rank. If it raises InputError or PermissionError on any, raises an InputError on all.
    Collective."""
    value, fault = None, None
    try:
        value = step()
    except InputError as error:
        fault = str(error)
    except PermissionError as error:
        if not (end := denied(error)):
            raise
        fault = str(end)
    faults = gather(fault)
    if any(faults):
        number, message = next((n, m) for n, m in enumerate(faults) if m)
        where = "" if all(m == message for m in faults) else f" (on rank {number}, host {_hosts[number]})"
        raise InputError(message + where)
    return value


def from_rank0(step: Callable[[], T]) -> T:
    """Runs `step` on rank 0 and gives its picklable value to all ranks. Raises as `on_all_ranks`. Collective."""
    return gather(on_all_ranks(lambda: step() if is_main() else None))[0]


def local_rank_zero_first(step: Callable[[], T]) -> T:
    """Runs `step` on each node's first rank, then on the others, which find its result in the node's cache."""
    first = is_first_on_node()
    value = on_all_ranks(lambda: step() if first else None)
    return on_all_ranks(lambda: value if first else step())
