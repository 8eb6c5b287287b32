"""Requests to stop in one process, and Ctrl-C in a script; tests/ranks/test_stopping.py has those of several ranks."""

import os
import signal
import sys

import pytest

from swep_ds.common.errors import Stopped
from swep_ds.ranks import stopping
from swep_ds.ranks.group import process_group
from swep_ds.ranks.stopping import SIGNALS, StopRequest, StopVote
from tests.support.tiny_run import execute

INTERRUPTED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests behind its back ignores it
from swep_ds.commands.cli import main
def sleeps():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3600)
    finally:
        print("cleaned up")
main(sleeps)
"""


def test_ctrl_c_ends_a_script_with_one_line():
    ended = execute([sys.executable, "-c", INTERRUPTED], check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned up\n", "stopped: by SIGINT\n")


@pytest.fixture
def request_(monkeypatch):
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr(stopping, "request", request)
    with process_group():
        yield request
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(*numbers: int, then: BaseException | None = None) -> None:
    """A training loop in which these signals come."""
    with StopVote() as vote:
        for number in numbers:
            os.kill(os.getpid(), number)
        assert vote.asked() == numbers[0]
        if then:
            raise then


def test_signals_are_requests_in_the_training_loop_of_a_script_only_and_what_a_shell_ignores_is_ignored(request_):
    with pytest.raises(KeyboardInterrupt):
        signalled(signal.SIGINT)
    assert not request_.number
    request_.allowed = True
    with pytest.raises(KeyboardInterrupt):  # what is left over when the loop ends
        signalled(signal.SIGINT)
    assert request_.number == signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    request_.number = 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for a program behind its back
    with StopVote():
        os.kill(os.getpid(), signal.SIGINT)
    assert not request_.number


def test_a_second_signal_counts_after_a_while(request_, monkeypatch):
    request_.allowed = True
    with pytest.raises(Stopped):  # the deepspeed command forwards a signal that the ranks have had
        signalled(signal.SIGTERM, signal.SIGUSR1, then=Stopped("of the test"))
    os.kill(os.getpid(), signal.SIGTERM)  # still taken, though the loop has ended: the run's exit code is 75
    monkeypatch.setattr(stopping, "REPEAT_SECONDS", 0.0)
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    os.kill(os.getpid(), signal.SIGTERM)
    assert raised == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
