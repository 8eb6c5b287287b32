"""train.deterministic: what it switches on, and what it refuses."""

import os

import pytest
import torch

from swep_ds.common.errors import InputError
from swep_ds.training.determinism import (
    CUBLAS,
    FLASH_ATTENTION,
    deterministic_restored,
    naming_operation,
    set_deterministic,
)


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    for name in (CUBLAS, FLASH_ATTENTION):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def test_it_is_switched_on_and_off():
    set_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()  # attention's backward only warns there
    assert (os.environ[CUBLAS], os.environ[FLASH_ATTENTION]) == (":4096:8", "1")
    set_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("before", [True, False])
def test_a_run_leaves_it_as_it_was(before):
    torch.use_deterministic_algorithms(before)
    with deterministic_restored():
        set_deterministic(not before)
    assert torch.are_deterministic_algorithms_enabled() == before
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert not {CUBLAS, FLASH_ATTENTION} & set(os.environ)


def test_an_operation_without_a_deterministic_version_is_named():
    def put():
        return torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))

    with naming_operation():
        put()
    set_deterministic(True)
    message = r"^train.deterministic: PyTorch has no deterministic version of put_ on this device: set it to false, .*$"
    with pytest.raises(InputError, match=message), naming_operation():
        put()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), naming_operation():
        torch.ones(2, 3) @ torch.ones(2, 3)
