"""train.deterministic: what it switches on, and that a run leaves the process as it was."""

import os

import pytest
import torch

from swep_ds.ranks.group import process_group
from swep_ds.training.determinism import CUBLAS, FLASH_ATTENTION, set_deterministic


@pytest.mark.parametrize("before", [True, False])
def test_it_is_switched_on_and_off_and_a_run_leaves_it_as_it_was(monkeypatch, before):
    for name in (CUBLAS, FLASH_ATTENTION):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    torch.use_deterministic_algorithms(before)
    try:
        with process_group():
            set_deterministic(True)
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()  # attention's backward only warns there
            assert (os.environ[CUBLAS], os.environ[FLASH_ATTENTION]) == (":4096:8", "1")
            set_deterministic(not before)
        assert torch.are_deterministic_algorithms_enabled() == before
        assert not {CUBLAS, FLASH_ATTENTION} & set(os.environ)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
