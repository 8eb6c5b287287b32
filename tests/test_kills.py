"""The short form of tests/kills.py: one run that loses a rank twice."""

import random

import pytest

from tests.kills import SECONDS_TO_END, disturbed, undisturbed


@pytest.mark.slow
def test_a_run_that_loses_a_rank_twice_is_the_run_it_would_have_been(tmp_path):
    undisturbed(tmp_path)
    kills = disturbed(tmp_path, "killed", random.Random(0), ["checkpoint", "end"])
    assert [kill.seconds < SECONDS_TO_END for kill in kills] == [True] * 2
