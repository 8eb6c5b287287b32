"""Requests to stop of one process, which imports no PyTorch; tests/training/test_stopping.py has those of ranks."""

import subprocess
import sys

from tests.tiny_run import ROOT

FORKS = """
import os, signal, time
from swep_ds.stop_signals import request
request.catch(stoppable=True, alone=True)
with request.deferred():
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    time.sleep(0.2)
    assert request.number == 0
"""
COMPILES = """
import os, signal, subprocess, time
from swep_ds.command import main
def command():
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.2)
    subprocess.run(["sh", "-c", "kill -USR1 $$"], check=True)
main(command, stoppable=True)
"""


def run(script: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=20)


def test_a_signal_to_a_process_that_a_library_forked_is_no_request():
    ended = run(FORKS)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_a_signal_to_the_process_group_did_to_a_compiler_is_no_fault():
    ended = run(COMPILES)
    assert ended.returncode == 75
    assert ended.stderr.startswith("stopped: on request (SIGUSR1), outside training; ")
