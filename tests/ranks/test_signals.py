"""Requests to stop of one process, which imports no PyTorch; tests/ranks/test_stopping.py has those of ranks."""

import subprocess
import sys

import pytest

from tests.support.tiny_run import execute

FORKS = """
import os, signal, time
from swep_ds.ranks.signals import request
request.catch(stoppable=True, alone=True)
with request.deferred():
    child = os.fork()
    if not child:
        time.sleep(3600)
        os._exit(0)
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
from swep_ds.commands.cli import main
from swep_ds.ranks.signals import request
def command():
    os.kill(os.getpid(), signal.SIGUSR1)
    subprocess.run(["sh", "-c", "kill -USR1 $$"], check=True)
main(command, stoppable=True)
"""
INTERRUPTED = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests behind its back ignores it
from swep_ds.commands.cli import main
def sleeps():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3600)
    finally:
        print("cleaned up")
def waits_in_a_library():
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    os.kill(os.getpid(), signal.SIGINT)
    library.pthread_mutex_lock(mutex)
def turns_it_into_another():
    try:
        sleeps()
    except KeyboardInterrupt:
        raise RuntimeError("of a library") from None
def twice():
    from swep_ds.ranks.signals import request
    with request.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        while not request.number:  # it is taken by a thread, which stamps it
            time.sleep(0.01)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3600)
def ignored():
    from swep_ds.ranks.signals import request
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGINT)
    assert not request.number
if sys.argv[1] == "imports":
    sleeps()
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
main(globals()[sys.argv[1]], stoppable=sys.argv[2:] == ["stoppable"])
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return execute([sys.executable, "-c", script, *arguments], check=False)


def test_a_signal_to_a_process_that_a_library_forked_is_not_a_request():
    ended = run(FORKS)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_a_signal_to_the_process_group_did_to_a_compiler_is_not_a_fault():
    ended = run(COMPILES)
    assert ended.returncode == 75
    assert ended.stderr.startswith("stopped: on request (SIGUSR1), outside training; ")


@pytest.mark.parametrize("where", ["sleeps", "waits_in_a_library", "turns_it_into_another"])
def test_ctrl_c_ends_a_script_with_one_line(where):
    ended = run(INTERRUPTED, where)
    assert (ended.returncode, ended.stderr) == (130, "stopped: by SIGINT\n")
    assert ("cleaned up" in ended.stdout) == (where in ("sleeps", "turns_it_into_another"))


@pytest.mark.parametrize("where", ["sleeps", "waits_in_a_library"])
def test_ctrl_c_outside_of_training_ends_a_run_that_can_be_resumed(where):
    ended = run(INTERRUPTED, where, "stoppable")
    assert ended.returncode == 75
    assert ended.stderr.startswith("stopped: on request (SIGINT), outside training; ")
    assert len(ended.stderr.splitlines()) == 1


def test_a_second_ctrl_c_ends_at_once():
    ended = run(INTERRUPTED, "twice", "stoppable")
    assert (ended.returncode, ended.stderr) == (130, "stopped: at once, by a second signal (SIGINT)\n")


@pytest.mark.parametrize("stoppable", [(), ("stoppable",)])
def test_where_a_shell_ignores_ctrl_c_the_script_does(stoppable):
    ended = run(INTERRUPTED, "ignored", *stoppable)
    assert (ended.returncode, ended.stderr) == (0, "")
