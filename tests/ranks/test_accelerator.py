"""One answer to which device computes, for the whole package: that of DeepSpeed's accelerator."""

from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
import torch
from deepspeed.accelerator import get_accelerator

from swep_ds.cost.plan import GIB, Devices
from swep_ds.ranks import accelerator

MEMORY = psutil.virtual_memory()


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: MEMORY)  # what is free changes


def test_a_gpu_that_deepspeed_does_not_use_is_not_there(monkeypatch):
    fail = Mock(side_effect=AssertionError("of a GPU that is not used"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("device_count", "get_device_name", "get_device_properties", "max_memory_allocated", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, fail)
    assert accelerator.device_type() == get_accelerator().device_name() == "cpu"
    assert not accelerator.on_gpu()
    assert not accelerator.has_tf32()
    assert (accelerator.device_count(), accelerator.product_name()) == (0, None)
    assert accelerator.peak_memory_bytes() > 2**20
    assert Devices.parse("") == Devices(1, MEMORY.available, False, MEMORY.available)


def test_a_gpu_that_deepspeed_uses_is(monkeypatch):
    monkeypatch.setattr(accelerator, "device_type", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda: 123)
    vendor = ModuleType("vendor")
    vendor.mem_get_info = lambda number: (60 * GIB, 80 * GIB)
    vendor.get_device_properties = lambda number: SimpleNamespace(total_memory=(80 - number) * GIB)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: vendor)
    assert accelerator.product_name() == "cuda"
    vendor.get_device_name = lambda: "NVIDIA H200"
    assert accelerator.product_name() == "NVIDIA H200"
    assert accelerator.on_gpu()
    assert not accelerator.emulates(torch.bfloat16)
    assert accelerator.machine() == "2 x NVIDIA H200, 80 GiB each"
    assert Devices.parse("") == Devices(2, 60 * GIB, True, MEMORY.available)
    assert accelerator.peak_memory_bytes() == 123


@pytest.mark.parametrize(
    ("capabilities", "emulated"),
    [
        ({"avx512_bf16": False, "amx_bf16": True, "avx512_fp16": False, "amx_fp16": False}, (False, True)),
        ({"neon": True, "bf16": False, "fp16_arith": True}, (True, False)),
        ({"architecture": "ppc64le"}, (False, False)),  # PyTorch does not tell
    ],
)
def test_half_precision_is_emulated_by_a_cpu_without_instructions_for_it(monkeypatch, capabilities, emulated):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert (accelerator.emulates(torch.bfloat16), accelerator.emulates(torch.float16)) == emulated
    assert not accelerator.emulates(torch.float32)
