"""A full disk, perhaps on one rank only: one line says so, and nothing is lost."""

import os
from pathlib import Path

import pytest

from tests.support.tiny_run import complete, error, losses, prepare
from tests.training.test_conversion import make, start

pytestmark = pytest.mark.slow
GO_ON = "train.on_checkpoint_failure=continue"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("full")
    (folder / "model-bert").mkdir()
    prepare(folder / "model-bert")
    runs = [
        start(folder, "whole", 2, 2),
        start(folder, "stopped", 2, 2, full=[1, 4], fails=True),
        start(folder, "again", 2, 2, resume=str(folder / "stopped" / "checkpoints")),
        start(folder, "go-on", 2, 2, GO_ON, full=[0, 4]),
        start(folder, "whole", 2, 2, full=[0, "model"], fails=True),
    ]
    make(folder, 2, runs)
    return folder


def test_a_checkpoint_that_one_rank_cannot_write_stops_the_run(folder):
    run = folder / "stopped"
    said = error(run)
    assert said.startswith("the checkpoint of update 4 is lost, earlier ones stay: cannot write ")
    assert f"{run / 'checkpoints' / 'update-00000004'}/zero_pp_rank_1_mp_rank_00_optim_states.pt: " in said
    assert f"File too large (on rank 1, host {os.uname().nodename})" in said
    assert complete(run) == [2]
    assert (run / "checkpoints" / "latest").read_text() == "update-00000002"
    assert [f.name for f in run.glob("checkpoints/update-*")] == ["update-00000002"]
    assert len(losses(run)) == 4


def test_it_resumes_from_the_earlier_one_once_there_is_room(folder):
    assert losses(folder / "again") == losses(folder / "whole")[2:]
    assert complete(folder / "again") == [4, 6]


def test_a_run_that_is_to_continue_does_and_writes_the_next_one(folder):
    run = folder / "go-on"
    assert losses(run) == losses(folder / "whole")
    assert complete(run) == [2, 6]
    assert (run / "results.json").is_file()


def test_a_model_that_cannot_be_written_leaves_that_of_an_earlier_start(folder):
    run = folder / "whole"
    said = error(run)
    assert said.startswith(f"cannot write {run / 'unaveraged' / 'model'}: ")
    assert "File too large" in said
    assert "(on rank 0, " in said
    assert complete(run) == [4, 6]
    assert not list(run.rglob(".model.unfinished"))
    for file in ("model/model.safetensors", "results.json"):
        assert (run / file).is_file()
