"""All ranks meet before the process group is made: a wrong start gives one line at once, not a timeout much later.

Notable (PyTorch 2.13):
- `TCPStore` waits forever if another program answers on the port, whatever its timeout: it is made in a thread.
- The store's server lives as long as rank 0, so the port of a run that trains answers like that of a new run. A rank
  that comes last there knows by its number of arrival that this is another run.
"""

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from swep_ds.common.console import say_on_stderr
from swep_ds.common.errors import InputError, as_input_error, reason
from swep_ds.ranks.launch import Launch, is_first_on_node
from swep_ds.ranks.stalls import ranks_of

JOIN = timedelta(minutes=10)  # for all ranks to start
QUIET_SECONDS = 20.0  # until a wait is reported
ANSWER_SECONDS = 60.0  # for a reachable store to answer
POLL_SECONDS = 0.1
LINGER_SECONDS = 30.0  # rank 0 serves the store until the others have read the fault

Arrival = dict[str, Any]
_meetings = itertools.count()  # numbers the meetings of this process, alike on all ranks


class Wait:
    """Waits for other ranks: prints once what for, and ends after `JOIN`."""

    def __init__(self):
        self._began, self._printed = time.monotonic(), False

    def step(self, what: Callable[[], str]) -> None:
        """Sleeps a moment. Raises InputError: the wait has lasted for `JOIN`."""
        waited = time.monotonic() - self._began
        if waited > JOIN.total_seconds():
            raise InputError(f"waited {waited / 60:.0f} minutes for {what()}: start all ranks, each with its own RANK")
        if waited > QUIET_SECONDS and not self._printed:
            self._printed = True
            if is_first_on_node():
                say_on_stderr(f"waiting for {what()}, {JOIN.total_seconds() / 60:.0f} minutes at most")
        time.sleep(POLL_SECONDS)


def meet(launch: Launch, address: str, port: int, fault: str, device: str | None = None) -> dist.Store:
    """Waits for all ranks. The caller keeps the store until the process group has its own.

    Args:
        address, port: where rank 0 serves the store.
        fault: why this rank cannot take part; empty if it can.
        device: tells this rank's accelerator from all others; None on the CPU.

    Raises:
        InputError: on all ranks, if one has a fault, their numbers do not fit together or two share a device, which
            NCCL refuses; on the ranks that see it, if
            the port is in use or rank 0 cannot be reached.
    """
    wait, meeting = Wait(), next(_meetings)
    store = _reach(launch, address, port, wait)
    place = f"MASTER_ADDR {address}, MASTER_PORT {port}"
    try:
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store of torchrun's agent outlives a start
        _arrive(dist.PrefixStore(f"swep_ds/{start}/{meeting}", store), launch, place, fault, device, wait)
    except RuntimeError as error:  # from the store: rank 0 is gone
        raise InputError(f"{place}: rank 0 ended before all ranks were there ({reason(error, 100)})") from None
    return store


def _reach(launch: Launch, address: str, port: int, wait: Wait) -> dist.Store:
    options = {"timeout": JOIN, "wait_for_workers": False}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # torchrun's agent serves the store itself
        options["multi_tenant"] = True
        if launch.rank == 0:
            return _serve(address, port, options)
    while True:
        try:
            socket.create_connection((address, port), timeout=ANSWER_SECONDS).close()
            break
        except OSError as error:
            why = error.strerror or str(error)
            wait.step(lambda why=why: f"rank 0 at MASTER_ADDR {address}, MASTER_PORT {port} ({why})")
    return _connect(address, port, options)


def _serve(address: str, port: int, options: dict[str, Any]) -> dist.Store:
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=True, **options)
    except RuntimeError as error:
        if "address already in use" not in str(error).lower():
            raise InputError(f"MASTER_PORT {port}: cannot be listened to ({reason(error)}): choose another") from None
        raise InputError(
            f"MASTER_PORT {port}: another process listens on it, such as another run: choose a free port "
            f"(deepspeed --master_port, torchrun --master-port, else export MASTER_PORT)"
        ) from None
    fix = "give the name or address of the host that rank 0 runs on"
    with as_input_error(f"MASTER_ADDR {address}: rank 0 cannot reach itself there", fix):
        socket.create_connection((address, port), timeout=ANSWER_SECONDS).close()
    return store


def _connect(address: str, port: int, options: dict[str, Any]) -> dist.Store:
    results: list[dist.Store | str] = []

    def connect() -> None:
        try:
            results.append(dist.TCPStore(address, port, is_master=False, **options))
        except RuntimeError as error:
            results.append(reason(error))

    thread = threading.Thread(target=connect, daemon=True, name="rendezvous")
    thread.start()
    thread.join(ANSWER_SECONDS)
    result = results[0] if results else f"no answer within {ANSWER_SECONDS:.0f} s"
    if not isinstance(result, str):
        return result
    raise InputError(
        f"MASTER_ADDR {address}, MASTER_PORT {port}: what listens there is no rank 0 ({result}): choose a free port"
    )


def _arrive(store: dist.Store, launch: Launch, place: str, fault: str, device: str | None, wait: Wait) -> None:
    """Raises InputError unless all ranks arrive without a fault.

    Arrivals are numbered, so that two processes with the same RANK have different numbers.
    """
    mine = {"rank": launch.rank, "world": launch.world_size, "host": socket.gethostname(), "pid": os.getpid()}
    mine |= {"job": launch.job, "fault": fault, "device": device}
    if launch.rank == 0:
        store.set("rank 0", json.dumps(mine))
    else:
        _check_job(store, mine, place, wait)
    number = store.add("arrived", 1)
    if number > launch.world_size:
        raise InputError(f"{place}: another run, or more than {launch.world_size} ranks, use it: choose a free port")
    store.set(f"arrival {number}", json.dumps(mine))
    arrivals = _wait_for_all(store, launch.world_size, wait)
    faults = [arrival["fault"] for arrival in sorted(arrivals, key=lambda arrival: arrival["rank"])]
    if not (message := _contradiction(arrivals) or next(filter(None, faults), "")):
        return
    until = time.monotonic() + LINGER_SECONDS
    if store.add("read", 1) < len(arrivals) and launch.rank == 0:
        while store.add("read", 0) < len(arrivals) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
    raise InputError(message)


def _check_job(store: dist.Store, mine: Arrival, place: str, wait: Wait) -> None:
    """Raises InputError if rank 0 belongs to another job, which does not notice this rank."""
    while not store.check(["rank 0"]):
        wait.step(lambda: f"rank 0 at {place}")
    main = json.loads(store.get("rank 0"))
    if main["host"] == mine["host"] and main["job"] and mine["job"] and main["job"] != mine["job"]:
        raise InputError(f"{place}: rank 0 of another run (pid {main['pid']}) listens there: choose a free port")


def _wait_for_all(store: dist.Store, world: int, wait: Wait) -> list[Arrival]:
    """The arrivals of all ranks; fewer if some contradict each other."""
    arrivals: list[Arrival] = []
    while True:
        while len(arrivals) < world and store.check([f"arrival {len(arrivals) + 1}"]):
            arrivals.append(json.loads(store.get(f"arrival {len(arrivals) + 1}")))
        if len(arrivals) == world or _contradiction(arrivals):
            return arrivals
        wait.step(lambda: f"{ranks_of(set(range(world)) - {arrival['rank'] for arrival in arrivals})} of {world}")


def _contradiction(arrivals: list[Arrival]) -> str:
    seen: dict[int, Arrival] = {}
    users: dict[str, Arrival] = {}  # by device
    for arrival in arrivals:
        place = f"host {arrival['host']}, pid {arrival['pid']}"
        if arrival["world"] != arrivals[0]["world"]:
            return (
                f"WORLD_SIZE: {arrival['world']} on rank {arrival['rank']} ({place}), {arrivals[0]['world']} on rank "
                f"{arrivals[0]['rank']}: give all ranks the same"
            )
        if (other := seen.setdefault(arrival["rank"], arrival)) is not arrival:
            return (
                f"RANK: two processes have {arrival['rank']} (host {other['host']}, pid {other['pid']}; {place}): "
                "give each rank its own"
            )
        if arrival["device"] and (other := users.setdefault(arrival["device"], arrival)) is not arrival:
            first, second = sorted((other["rank"], arrival["rank"]))
            return (
                f"ranks {first} and {second} have the same device (host {arrival['host']}): start as "
                "many ranks as there are devices"
            )
    return ""
