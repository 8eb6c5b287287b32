"""The files of DeepSpeed's checkpoints: how they are written, so that a full disk and later damage are noticed, and
read, so that no code in them is run."""

import os
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch.utils.serialization import config

from swep_ds.common.files import ChecksumWriter


class Writer:
    """Writes an engine's files. A write that fails raises nothing until `finish`, and nothing more follows:
    DeepSpeed's saving has collectives, in which the other ranks would wait for one whose disk is full."""

    def __init__(self):
        self._fault: OSError | None = None
        self._written: dict[str, str] = {}

    def finish(self) -> dict[str, str]:
        """The checksums, by name, of the files written since the last call. Raises OSError: a write failed."""
        written = self._written
        fault = self._fault
        self._written = {}
        self._fault = None
        if fault is not None:
            raise fault
        return written

    def save(self, state_dict: dict[str, Any], path: str) -> None:
        if self._fault is not None:
            return
        try:
            # nothing compares PyTorch's own checksums, which take four times as long
            with ChecksumWriter(path) as file, config.patch("save.compute_crc32", False):
                torch.save(state_dict, file)
                file.flush()
                os.fsync(file.fileno())  # the manifest must not survive a power cut without it
                self._written[Path(path).name] = file.checksum.hexdigest()
        except (OSError, RuntimeError) as error:
            cause = error if isinstance(error, OSError) else error.__context__  # PyTorch hides it
            if not isinstance(cause, OSError):
                raise
            self._fault = OSError(cause.errno, cause.strerror, path)


def read_state(file: Path) -> dict[str, Any]:
    """What DeepSpeed saved in a file; tensors are mapped, and read when they are used. Raises UnpicklingError: there is
    more than tensors, plain values and a few classes of DeepSpeed. No code is run."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def member(kind: type[Enum], name: str) -> Enum:
        """Replaces `getattr`, which Python 3.11.0 to 3.11.3 pickles for every member of an enumeration."""
        if kind is not ZeroStageEnum:
            raise UnpicklingError(f"getattr of {kind}, which no checkpoint of DeepSpeed calls")
        return kind[name]

    known = [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, (member, "builtins.getattr")]
    with torch.serialization.safe_globals(known):
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)
