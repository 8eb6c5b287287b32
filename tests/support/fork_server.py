"""Runs scripts in processes forked from one that has imported everything: importing takes 10 s of a core each time.

Tests call `run_script`. The server is this file, started as a script once per test worker. Every script is `__main__`
of a fresh process with its own environment, arguments and streams. Unlike under `python SCRIPT`, all ranks hash strings
alike, and the interpreter is not shut down. Tests of launchers start real processes.
"""

import atexit
import fcntl
import functools
import gc
import importlib
import itertools
import json
import os
import runpy
import select
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
FIRST, SIZE, RANGES = 10_000, 200, 50  # below the ports of the package and of outgoing connections


def run_script(
    script: Path | str, *arguments: str, ranks: int | None = None, check: bool = True, cwd: Path | None = None
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
        order |= {"env": os.environ | IMPORTED_WITH, "ranks": ranks, "port": free_port() if ranks else None}
        server.stdin.write(json.dumps(order).encode() + b"\n")
        group = int(server.stdout.readline())
        try:
            hangs = not select.select([server.stdout], [], [], HANGS)[0]
        finally:
            with suppress(ProcessLookupError):  # also what ranks that ended have left behind
                os.killpg(group, signal.SIGKILL)
            server.stdout.readline()
        out, err = ((folder / stream).read_text(errors="replace") for stream in ("out", "err"))
        codes = ["hangs"] if hangs else json.loads((folder / "codes").read_text())
    code = next(filter(None, codes), 0)
    if hangs or (check and code != 0):
        said = f"{script} {' '.join(arguments)} on {ranks or 1} rank(s) ended with {codes}"
        raise AssertionError(f"{said}\n{out[-4000:]}\n{err[-4000:]}")
    return subprocess.CompletedProcess([str(script), *arguments], code, out, err)


@functools.cache
def _server() -> subprocess.Popen:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}  # reads no more than a line
    server = subprocess.Popen([sys.executable, __file__], env=os.environ | IMPORTED_WITH, **pipes)
    atexit.register(server.communicate)  # it ends with its standard input
    return server


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


def serve(answers: int) -> None:
    """Reads one order per line; answers with the script's process group, and with a second line when it has ended."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            os.close(answers)
            launch(order)
        os.write(answers, b"%d\n" % child)
        os.waitpid(child, 0)
        os.write(answers, b"over\n")


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


def become(order: dict, rank: int) -> NoReturn:
    """A process that runs the script and ends."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(order["folder"], name), os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ |= order["env"]
    if order["ranks"]:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order["ranks"])}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(order["port"])}
    program, *arguments = order["command"]
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
    answers = os.dup(1)
    os.dup2(2, 1)  # imports may print
    import swep_ds.pipeline.run  # noqa: F401

    for name in ("bert.modeling_bert", "t5.modeling_t5"):  # models and engines import these late
        importlib.import_module(f"transformers.models.{name}")
    importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    gc.collect()
    gc.freeze()  # the imported objects need not be scanned, nor copied, in every process
    serve(answers)
    os._exit(0)
