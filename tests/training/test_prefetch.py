"""Batches made ahead are the batches; no timing is judged."""

import threading
import time

import pytest
import torch

from swep_ds.training.loop import AHEAD, prefetch
from tests.data.test_batches import ranks, windows

CPU = torch.device("cpu")


@pytest.mark.parametrize("first", [0, 5, 29, 30])
def test_they_are_those_of_the_data_set_in_its_order(first):
    [batches] = ranks(windows(19), micro=2, epochs=3)  # 10 micro-steps an epoch
    yielded = list(prefetch(batches, first, CPU))
    assert len(yielded) == 30 - first
    for number, batch in enumerate(yielded, first):
        for mine, expected in zip(batch, batches[number], strict=True):
            assert torch.equal(mine, expected) if isinstance(mine, torch.Tensor) else mine == expected


def test_no_more_than_a_few_are_made_ahead_and_closing_ends_the_thread():
    [batches] = ranks(windows(40), micro=2)
    asked = []

    class Noted(type(batches)):
        def __getitem__(self, number):
            asked.append(number)
            return super().__getitem__(number)

    batches.__class__ = Noted
    before = set(threading.enumerate())
    yielded = prefetch(batches, 0, CPU)
    for _ in range(3):
        next(yielded)
    while len(asked) < 3 + AHEAD:  # the thread makes them when it comes to run
        time.sleep(0.01)
    yielded.close()
    assert not set(threading.enumerate()) - before
    assert asked == list(range(3 + AHEAD))
