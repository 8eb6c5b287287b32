"""Requests to stop of one process, which imports no PyTorch; tests/training/test_stopping.py has those of ranks."""

import sys

from tests.tiny_run import execute

FORKS = """
import os, signal, time
from swep_ds.stop_signals import request
request.catch()
with request.deferred():
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.write(there, b".")
        time.sleep(3600)
        os._exit(0)
    os.read(here, 1)  # the child has come past what Python does first in it
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.kill(os.getpid(), signal.SIGUSR1)
    while not request.number:
        time.sleep(0.01)
    assert request.number == signal.SIGUSR1  # the first signal of this process, so the child's was none
    os._exit(0)
"""
COMPILES = """
import os, signal, subprocess, time
from swep_ds.command import main
from swep_ds.stop_signals import request
def command():
    os.kill(os.getpid(), signal.SIGUSR1)
    while not request.number:
        time.sleep(0.01)
    subprocess.run(["sh", "-c", "kill -USR1 $$"], check=True)
main(command, stoppable=True)
"""


def test_a_signal_to_a_process_that_a_library_forked_is_no_request():
    ended = execute([sys.executable, "-c", FORKS])
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_a_signal_to_the_process_group_did_to_a_compiler_is_no_fault():
    ended = execute([sys.executable, "-c", COMPILES], check=False)
    assert ended.returncode == 75
    assert ended.stderr.startswith("stopped: on request (SIGUSR1), outside training; ")
