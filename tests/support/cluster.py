"""A real Slurm on this machine: munged, slurmctld and two slurmd, as root, without systemd, stopped at the end.

    apt-get install -y slurm-wlm munge              # Debian, Ubuntu; no service needs to run
    python -m tests.support.cluster COMMAND...        # runs a command, such as a shell, in it

All its files are in one folder, even munge's key and socket, so it touches no other Slurm on the machine.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.fork_server import free_port

HOST = socket.gethostname().partition(".")[0]
NODES = (HOST, f"{HOST}-b")  # rank 0 runs on the first; the others look for it by that name
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
SECONDS_TO_START = 180  # enough for a busy machine; a daemon that ends is noticed at once
# the times in AuthInfo and SchedulerParameters make a requeue take seconds, not minutes
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
FirstJobId={first_job}
SlurmUser=root
SlurmdUser=root
AuthInfo=cred_expire=5,socket={folder}/munge/socket
SchedulerParameters=sched_interval=5,bf_interval=5,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
KillWait=10
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class CannotStart(Exception):
    """The reason, in one line, why Slurm cannot start on this machine."""


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Starts Slurm with all its files in an empty folder; yields the environment that its commands need.

    Raises CannotStart: not root, packages are missing, or a daemon does not start.
    """
    if os.geteuid() != 0:
        raise CannotStart("starting Slurm's daemons takes root")
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [program for program in PROGRAMS if not shutil.which(program, path=path)]:
        raise CannotStart(f"{', '.join(missing)} not found: apt-get install -y slurm-wlm munge")
    env = os.environ | {"PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
    for name in ("munge", "state", "log", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True, mode=0o755)
    line = "NodeName={} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs=4 RealMemory=4000"  # so that jobs run together
    nodes = "\n".join(line.format(node, HOST, free_port()) for node in NODES)
    # a rank's port is made of the number of its job, and another suite on this machine must not have the same
    given = {"first_job": free_port(), "port": free_port(), "host": HOST, "names": ",".join(NODES)}
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, nodes=nodes, **given))
    key = folder / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    files = {"key-file": key, "socket": key.with_name("socket"), "pid-file": key.with_name("pid")}
    files |= {"seed-file": key.with_name("seed"), "log-file": folder / "log" / "munged.log"}
    munged = ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())]
    daemons: list[subprocess.Popen] = []
    try:
        daemons.append(_daemon(munged, folder, env))
        _wait(lambda: (folder / "munge" / "socket").exists(), daemons, folder, "munged")
        daemons.append(_daemon(["slurmctld", "-D", "-f", env["SLURM_CONF"]], folder, env))
        daemons += [_daemon(["slurmd", "-D", "-f", env["SLURM_CONF"], "-N", node], folder, env) for node in NODES]
        _wait(lambda: _idle(env) == len(NODES), daemons, folder, "Slurm")
        yield env
    finally:
        _end(daemons, env)


def _daemon(command: list[str], folder: Path, env: dict[str, str]) -> subprocess.Popen:
    with (folder / "log" / "daemons.log").open("a") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=env, start_new_session=True, **streams)


def _wait(condition, daemons: list[subprocess.Popen], folder: Path, what: str) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not condition():
        ended = [daemon.args[0] for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = "; ".join(file.read_text(errors="replace")[-500:] for file in sorted((folder / "log").iterdir()))
            why = f"{ended[0]} ended" if ended else f"it was not up after {SECONDS_TO_START} s"
            raise CannotStart(f"{what}: {why}: {' '.join(logs.split())}")
        time.sleep(0.1)


def _idle(env: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
    return len(subprocess.run(command, env=env, capture_output=True, text=True).stdout.split())


def _end(daemons: list[subprocess.Popen], env: dict[str, str]) -> None:
    """Ends the jobs, then the daemons, then what is left of either."""
    if len(daemons) > 1 and daemons[1].poll() is None:
        subprocess.run(["scancel", "--user=root", "--signal=KILL", "--full"], env=env, capture_output=True, timeout=180)
    for daemon in reversed(daemons):
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.pid != os.getpid() and process.environ().get("SLURM_CONF") == env["SLURM_CONF"]:
                process.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        try:
            with cluster(Path(folder)) as env:
                sys.exit(subprocess.run(sys.argv[1:] or [env.get("SHELL", "/bin/sh")], env=env).returncode)
        except CannotStart as reason:
            sys.exit(str(reason))
