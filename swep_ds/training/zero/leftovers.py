"""What DeepSpeed's engines leave behind in Python modules and classes, also those that are destroyed."""

from inspect import getclosurevars

import torch
from deepspeed.runtime import torch_autocast
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator


def forget_engine() -> None:
    """Undoes it, when no engine is in use: later ones would send other dtypes, PyTorch would round otherwise, and
    ZeRO-3's would keep their weights and moments."""
    torch_autocast.TORCH_AUTOCAST_INITIALIZED = False
    if torch.nn.functional.linear.__module__.startswith("deepspeed"):
        torch.nn.functional.linear = torch._C._nn.linear
    FWD_MODULE_STACK.clear()
    cached = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    getclosurevars(cached).nonlocals["func"].cache_clear()  # DeepSpeed wraps the cache in another function
