"""A fault in writing, on whichever rank, as one exception on all of them."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError

from swep_ds.common.errors import InputError, RunExit, WriteFailed
from swep_ds.ranks import writing
from swep_ds.ranks.writing import write_on_all_ranks, write_on_rank0


def on_rank(monkeypatch, rank: int, others: list[RunExit | None]) -> None:
    alone = SimpleNamespace(rank=lambda: rank, is_main=lambda: rank == 0)
    alone.gather = lambda mine: [*others, pickle.loads(pickle.dumps(mine))]
    monkeypatch.setattr(writing, "ranks", alone)


def test_file_reason_rank_and_host_in_one_line(monkeypatch):
    """Of a fault in a file of weights; a full disk: tests/training/test_checkpoints.py."""
    on_rank(monkeypatch, 3, [None, None])
    with pytest.raises(WriteFailed) as caught:
        write_on_all_ranks(Mock(side_effect=SafetensorError("Error: I/O error:\nfull")), Path("run"))
    said = "cannot write run: Error: I/O error: full"
    assert str(caught.value) == f"{said} (on rank 3, host {os.uname().nodename})"


@pytest.mark.parametrize("fault", [WriteFailed("cannot write x"), InputError("tracking.to: x")])
def test_the_fault_of_any_rank_is_raised_on_every_rank_as_it_is(monkeypatch, fault):
    for rank, others, step in ((1, [fault], None), (0, [None], Mock(side_effect=fault))):
        on_rank(monkeypatch, rank, others)
        with pytest.raises(type(fault), match=f"^{fault}$"):
            write_on_all_ranks(step, Path("run"))
    with pytest.raises(KeyError):  # a fault of the program
        write_on_all_ranks(Mock(side_effect=KeyError("x")), Path("run"))


def test_only_rank_0_writes_what_is_for_it(monkeypatch, tmp_path):
    for rank, value in ((1, None), (0, 1)):
        on_rank(monkeypatch, rank, [])
        assert write_on_rank0(lambda: (tmp_path / "file").write_text("x"), tmp_path) == value
        assert (tmp_path / "file").exists() == (rank == 0)
