"""Engines in the tests' own process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from deepspeed.utils import groups

from swep_ds.ranks.group import process_group


@contextmanager
def one_rank() -> Iterator[None]:
    """`process_group`, and then removes what DeepSpeed leaves: its groups, and ZeRO-3's own `linear` in PyTorch."""
    linear = torch.nn.functional.linear
    try:
        with process_group():
            yield
    finally:
        torch.nn.functional.linear = linear
        groups._WORLD_GROUP = None
