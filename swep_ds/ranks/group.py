"""The process group: ranks started by `deepspeed`, `torchrun`, `srun` or plain `python` join it and end cleanly.
Without `engine.destroy()`, barrier and `destroy_process_group()` a few per cent of runs die at interpreter exit."""

import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import datasets
import torch
import torch.distributed as dist
from deepspeed import comm
from deepspeed.accelerator import get_accelerator
from torch.distributed import distributed_c10d

from swep_ds.common.console import Console, quiet, say_on_stderr
from swep_ds.common.errors import InputError, RunExit, Stopped, as_input_error, denied
from swep_ds.ranks import accelerator, heartbeat
from swep_ds.ranks.accelerator import device
from swep_ds.ranks.environment import LaunchError, is_first_on_node, read_launch, report
from swep_ds.ranks.launcher import free_port

JOIN = timedelta(minutes=10)  # for all ranks to start
QUIET_SECONDS = 20.0  # until a wait for the others is reported
SAID_SECONDS = 2.0  # from which on a step's time is printed
MAX_WAIT = timedelta(hours=6)  # for live ranks; the heartbeat notices dead ones
ALONE_SECONDS = 30.0  # for the other ranks to reach a common end
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # PyTorch refuses a value that is not deterministic
FLASH_ATTENTION = "FLASH_ATTENTION_DETERMINISTIC"  # read by transformers for `model.attention: flash_attention_2`

T = TypeVar("T")
rank = dist.get_rank
world_size = dist.get_world_size
_hosts: list[str] = []  # by rank
_heartbeat: heartbeat.Heartbeat | None = None  # None: there is one rank


@contextmanager
def process_group() -> Iterator[None]:
    """Joins the process group and leaves it cleanly; inside, `rank()`, `world_size()` and `device()` hold.

    If a rank dies, or ends with an exception that is not a `RunExit`, all others end within seconds and name it. The
    block must raise a `RunExit` on every rank (`on_all_ranks`). Raises InputError: the process cannot be a rank, or the
    ranks cannot reach each other.
    """
    if dist.is_initialized():  # a run would destroy it at its end
        raise InputError("torch.distributed has a process group already: start the run in a process of its own")
    with _restored(), quiet(datasets.utils.logging):
        _join()
        try:
            _connect()
            yield
            _leave()
        except RunExit as end:
            if world_size() > 1:
                report(end)  # before the launcher sees one rank end and kills the others
            _leave(end)
            raise
        except BaseException as error:
            if _heartbeat:
                _heartbeat.fail(error)
            _destroy()
            raise


@contextmanager
def _restored() -> Iterator[None]:
    """Sets the launcher's variables that are missing. Afterwards they are gone again, as children would inherit them,
    and so is what PyTorch, DeepSpeed and `set_deterministic` change in the process: another group may follow."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    variables = read_launch() or alone | {"MASTER_PORT": str(free_port())}
    variables["SWEP_DS_LOCAL_ID"] = variables["LOCAL_RANK"]
    if "RANK" not in os.environ and accelerator.device_count() == 1:
        variables["LOCAL_RANK"] = "0"  # with --gpus-per-task=1 every task sees one device, its own
    before = {name: os.environ.get(name) for name in (*variables, CUBLAS, FLASH_ATTENTION)}
    os.environ |= variables
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    linear = torch.nn.functional.linear
    hook = sys.excepthook  # a group's begins each line of a traceback with the rank
    try:
        yield
    finally:
        for name in before:
            os.environ.pop(name, None)
        os.environ |= {name: value for name, value in before.items() if value is not None}
        if is_deterministic != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(is_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fills
        torch.nn.functional.linear = linear  # ZeRO-3 puts its own in place
        sys.excepthook = hook


def set_deterministic(on: bool) -> None:
    """Switches `train.deterministic` until the process group ends: on a GPU, equal runs on the same devices and
    versions then have equal numbers, to the last bit; else atomic additions and cuBLAS's choice of a workspace change
    the order of sums. Call it before anything is computed: cuBLAS reads its setting at its first use."""
    if on:
        os.environ.setdefault(CUBLAS, ":4096:8")
        os.environ[FLASH_ATTENTION] = "1"
        # would write to each new tensor, so that a read before the first write is noticed
        torch.utils.deterministic.fill_uninitialized_memory = False
    if on != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
        torch.use_deterministic_algorithms(on)


def _join() -> None:
    world = os.environ["WORLD_SIZE"]
    if world != "1":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a rank has sockets to all others
    backend = "gloo"
    bound = None  # the device that NCCL's groups are bound to, as DeepSpeed would bind them
    if get_accelerator().device_name() != "cpu":
        backend = get_accelerator().communication_backend_name()
        local = int(os.environ["LOCAL_RANK"])
        devices = get_accelerator().device_count()
        if local >= devices:
            fix = "start fewer ranks" if devices else "for a run on the CPU set DS_ACCELERATOR=cpu"
            raise LaunchError(f"rank {os.environ['RANK']} wants device {local} of a node with {devices}: {fix}")
        get_accelerator().set_device(local)
        if get_accelerator().device_name() == "cuda" and world != "1":
            bound = device()
    place = f"MASTER_ADDR {os.environ['MASTER_ADDR']}, MASTER_PORT {os.environ['MASTER_PORT']}"
    minutes = JOIN.total_seconds() / 60
    said = f"waiting for all {world} ranks to reach {place}, {minutes:.0f} minutes at most"
    waits = threading.Timer(QUIET_SECONDS, say_on_stderr, (said,))
    waits.daemon = True
    if is_first_on_node():
        waits.start()
    fix = "start every rank with its own RANK, device and the same WORLD_SIZE, or choose another port or network"
    try:
        with as_input_error(f"{place}: the ranks cannot form a process group", fix):
            dist.init_process_group(backend, timeout=JOIN, device_id=bound)
    finally:
        waits.cancel()
    wait_long()


def wait_long() -> None:
    """Lets the collectives of all existing groups wait for `MAX_WAIT`, as one rank may prepare data for an hour."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(MAX_WAIT, group)


def _connect() -> None:
    """Starts the heartbeat, so that no rank waits for a dead one."""
    global _heartbeat
    places = gather((os.environ.get("SLURMD_NODENAME") or socket.gethostname(), os.getpid()))
    _hosts[:] = [host for host, _ in places]
    if world_size() == 1:
        return
    names = [f"rank {number} ({host}, pid {pid})" for number, (host, pid) in enumerate(places)]
    address = os.environ["MASTER_ADDR"]
    listener = heartbeat.listen(world_size()) if is_main() else None
    port = from_rank0(lambda: listener.getsockname()[1])

    def connect() -> dict[int, heartbeat.Connection]:
        what = f"MASTER_ADDR {address}, port {port} of rank 0"
        with as_input_error(what, "the nodes must reach each other on all ports"):
            if listener:
                return heartbeat.accept(listener, world_size())
            return heartbeat.connect(rank(), address, port)

    _heartbeat = heartbeat.Heartbeat(rank(), names, on_all_ranks(connect), reports=is_first_on_node())


def _leave(end: RunExit | None = None) -> None:
    """Leaves the group. Collective; if only this rank comes, the others end with it after `ALONE_SECONDS`."""
    global _heartbeat
    alone = threading.Timer(ALONE_SECONDS, lambda: _heartbeat.fail(end))
    alone.daemon = True
    if _heartbeat and end and not isinstance(end, Stopped):  # the ranks agreed to stop
        alone.start()
    dist.barrier()
    alone.cancel()
    if _heartbeat:
        _heartbeat.close()
        _heartbeat = None
    _destroy()


def _destroy() -> None:
    """Destroys the group, with what DeepSpeed keeps of it where DeepSpeed has joined: another group may follow."""
    if comm.is_initialized():
        comm.destroy_process_group()
    else:
        dist.destroy_process_group()


def is_main() -> bool:
    return rank() == 0


def host(rank: int) -> str:
    return _hosts[rank]


def progress(step: str) -> None:
    """Notes that this rank begins a step, for reports of deaths and stalls."""
    if _heartbeat:
        _heartbeat.progress(step)


@contextmanager
def step(name: str, size: Callable[[], int]) -> Iterator[None]:
    """A step that reads or writes `size()` bytes, noted by `progress`. If it takes seconds, rank 0 prints how many."""
    progress(name)
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    if seconds >= SAID_SECONDS and is_main():
        Console().print(f"{name}: {size() / 1e9:.2f} GB in {seconds:.0f} s")


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
    """Runs `step` on every rank. A RunExit that it raises on any rank, or a PermissionError as an InputError, is raised
    on all, with the rank unless all say the same. Collective."""
    value = fault = None
    try:
        value = step()
    except RunExit as error:
        fault = error
    except PermissionError as error:
        fault = denied(error) or InputError(str(error))
    faults = gather(fault)
    for number, other in enumerate(faults):
        if other and len({*map(str, faults)}) > 1:
            raise type(other)(f"{other} (on rank {number}, host {_hosts[number]})")
        if other:
            raise other
    return value


def from_rank0(step: Callable[[], T]) -> T:
    """Runs `step` on rank 0 and gives its picklable value to all ranks. Raises as `on_all_ranks`. Collective."""
    return gather(on_all_ranks(lambda: step() if is_main() else None))[0]


def local_rank_zero_first(step: Callable[[], T]) -> T:
    """Runs `step` on each node's first rank, then on the others, which find its result in the node's cache."""
    if is_first_on_node():
        value = on_all_ranks(step)
        on_all_ranks(lambda: None)
        return value
    on_all_ranks(lambda: None)
    return on_all_ranks(step)
