"""Runs scripts in processes forked from one that has imported everything: importing takes 10 s of a core each time.

Tests call `run_script`. The server is this file, started as a script once for all test workers. Every script is
`__main__` of a fresh process with its own environment, arguments and streams. Unlike under `python SCRIPT`, all ranks
hash strings alike, and the interpreter is not shut down. Where a script or what it starts, such as Slurm, runs
`sys.executable`, that is `python_stand_in`, whose programs are forked as well.
"""

import atexit
import fcntl
import functools
import gc
import importlib
import io
import itertools
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
HANGS = 1500  # s; a busy machine may take ten times as long
# what the server's environment fixes for all processes forked from it
IMPORTED_WITH = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
ADDRESS = "TESTS_FORK_SERVER"  # an abstract Unix socket's name, in the environment of the test workers
PYTHON = "TESTS_PYTHON"  # `python_stand_in`, in the environment of forked scripts and of what they start
FIRST, SIZE, RANGES = 10_000, 200, 50  # below the ports of the package and of outgoing connections


def run_script(
    script: Path | str,
    *arguments: str,
    ranks: int | None = None,
    check: bool = True,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess:
    """Runs a script to its end, on CPU with one thread: returns the first exit code that is not 0, and all output.

    A name is that of a module, as `python -m` runs it. `ranks` processes have a launcher's variables; None: one has
    none, as under `python`. With `check`, an exit code other than 0 is an AssertionError, as a script that hangs always
    is.
    """
    server = _server()
    with tempfile.TemporaryDirectory(prefix="fork-") as name:
        folder = Path(name)
        order = {"command": [str(script), *arguments], "cwd": str(cwd or Path.cwd()), "folder": name}
        env = (env or os.environ) | IMPORTED_WITH | {PYTHON: python_stand_in(), ADDRESS: os.environ[ADDRESS]}
        order |= {"env": env, "ranks": ranks, "port": free_port() if ranks else None}
        server.write(json.dumps(order).encode() + b"\n")
        group = int(server.readline())
        try:
            hangs = not select.select([server], [], [], HANGS)[0]
        finally:
            with suppress(ProcessLookupError):  # also what ranks that ended have left behind
                os.killpg(group, signal.SIGKILL)
            server.readline()
        out, err = ((folder / stream).read_text(errors="replace") for stream in ("out", "err"))
        codes = ["hangs"] if hangs else json.loads((folder / "codes").read_text())
    code = next(filter(None, codes), 0)
    if hangs or (check and code != 0):
        said = f"{script} {' '.join(arguments)} on {ranks or 1} rank(s) ended with {codes}"
        raise AssertionError(f"{said}\n{out[-4000:]}\n{err[-4000:]}")
    return subprocess.CompletedProcess([str(script), *arguments], code, out, err)


@functools.cache
def _server() -> io.RawIOBase:
    """This worker's connection, which reads no more than a line."""
    if ADDRESS not in os.environ:
        start_server()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{os.environ[ADDRESS]}")
    connection.sendall(b"s")
    return connection.makefile("rwb", buffering=0)


def start_server() -> None:
    """Starts the server for this process and those that it starts. It ends with this process, and after the others."""
    os.environ[ADDRESS] = f"swep_ds-tests-{os.getpid()}"
    here = socket.socket(socket.AF_UNIX)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{os.environ[ADDRESS]}")
        listener.listen()
        here.connect(listener.getsockname())
        server = subprocess.Popen([sys.executable, __file__], env=os.environ | IMPORTED_WITH, stdin=listener)

    def end() -> None:
        _server.cache_clear()
        here.close()
        server.wait()

    atexit.register(end)


@functools.cache
def python_stand_in() -> str:
    """The path of a program that forks from the server of this process what it is to run in place of `python`."""
    folder = tempfile.mkdtemp(prefix="python-")
    atexit.register(shutil.rmtree, folder)
    program = Path(folder, "python")
    stand_in = f"{sys.executable} -ES {Path(__file__).with_name('stand_in.py')}"
    program.write_text(f'#!/bin/sh\n{PYTHON}="$0" exec {stand_in} "$@"\n')
    program.chmod(0o755)
    return str(program)


def free_port() -> int:
    """A free TCP port that no other test gets for a long time.

    Processes that ask at the same time have separate ranges: each locks its range for as long as it lives.
    """
    for port in itertools.islice(_ports(), SIZE):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise OSError(f"none of {SIZE} ports is free")


@functools.cache
def _ports() -> Iterator[int]:
    for number in range(RANGES):
        with suppress(OSError):  # another process has the range, or another user the file
            file = Path(tempfile.gettempdir(), f"swep_ds-tests-ports-{number}.lock")
            fcntl.flock(os.open(file, os.O_CREAT | os.O_WRONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # is never closed
            first = FIRST + number * SIZE
            return itertools.cycle(range(first, first + SIZE))
    raise OSError(f"all {RANGES} ranges of ports are taken")


# The server


def serve(listener: socket.socket) -> None:
    """Forks a process for each worker that connects. Ends when the first connection, its starter's, has ended."""
    starter, _ = listener.accept()
    workers = []
    while starter not in select.select([listener, starter], [], [])[0]:
        connection, _ = listener.accept()
        workers.append(os.fork())
        if not workers[-1]:
            listener.close()
            kind, streams, *_ = socket.recv_fds(connection, 1, 3)
            if kind == b"p":
                stand_in(connection, streams)
            else:
                obey(connection)
            os._exit(0)
        connection.close()
    for worker in workers:
        os.waitpid(worker, 0)


def obey(connection: socket.socket) -> None:
    """Reads one order per line; answers with the script's process group, and with a second line when it has ended."""
    orders = connection.makefile()
    for line in orders:
        child = os.fork()
        if not child:
            orders.close()
            connection.close()
            launch(json.loads(line))
        connection.sendall(b"%d\n" % child)
        os.waitpid(child, 0)
        connection.sendall(b"over\n")


def launch(order: dict) -> NoReturn:
    """Forks the ranks as their group's leader, waits, and writes their exit codes to `codes` in the folder."""
    os.setsid()
    children = []
    for rank in range(order["ranks"] or 1):
        child = os.fork()
        if not child:
            become(order, rank)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    Path(order["folder"], "codes").write_text(json.dumps(codes))
    os._exit(0)


def stand_in(connection: socket.socket, streams: list[int]) -> None:
    """Forks a program with the standard streams of the client. Sends the client its process ID, then its exit code.
    Kills the program if the client ends first."""
    order = json.loads(connection.makefile().readline())
    program = os.fork()
    if not program:
        connection.close()
        os.setsid()
        for stream, descriptor in enumerate(streams):
            os.dup2(descriptor, stream)
        run(order["command"], order["cwd"], order["env"])
    connection.sendall(b"%d\n" % program)
    ended = os.pidfd_open(program)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(program, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % code)


def become(order: dict, rank: int) -> NoReturn:
    """A process that runs the script and ends."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(order["folder"], name), os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    env = order["env"]
    if order["ranks"]:
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order["ranks"])}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])}
    run(order["command"], order["cwd"], env)


def run(command: list[str], cwd: str, env: dict[str, str]) -> NoReturn:
    os.chdir(cwd)
    os.environ.clear()
    os.environ |= env
    sys.executable = env[PYTHON]
    program, *arguments = command
    sys.argv = [program, *arguments]
    code = 0
    try:
        if program.endswith(".py"):
            sys.path[0] = str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # shutting the interpreter down takes 2 s


if __name__ == "__main__":
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import torch
    from transformers import AutoModel

    import swep_ds.analysis.report
    import swep_ds.pipeline.run  # noqa: F401
    from swep_ds.data.quickstart import ENCODER

    for name in ("bert.modeling_bert", "t5.modeling_t5"):  # models and engines import these late
        importlib.import_module(f"transformers.models.{name}")
    importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    with torch.random.fork_rng(devices=[]):  # for the first load, transformers compiles what it renames
        AutoModel.from_pretrained(ENCODER)
    gc.collect()
    gc.freeze()  # the imported objects need not be scanned, nor copied, in every process
    serve(listener)
    os._exit(0)
