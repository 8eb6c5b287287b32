"""Resuming: bit for bit what an uninterrupted run does, and only ever from a whole checkpoint. Runs are stopped by an
exception, by SIGKILL while a checkpoint is being written, or by a full disk, and resume in new processes."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swep_ds.common.files import read_json
from tests.support.tiny_run import assert_same, complete, ds_config, error, losses, make_runs, metrics, prepare, squad

pytestmark = pytest.mark.slow

UPDATES, EVERY, STOP = 7, 2, 5  # checkpoints after updates 2, 4, 6, 7
EMA = {"train.average": "ema", "train.average_decay": 0.8}
START = {"train.average": "start", "train.coalesce_grad_reduction": True, "train.label_smoothing": 0.1}
BY_STAGE = {1: EMA, 2: START, 3: EMA}
# run that ends early -> ZeRO stage, ranks, the uninterrupted run, lines of metrics, checkpoints
EARLY = {
    "stopped": (1, 1, "whole-1", STOP, [2, 4]),  # with CUDA graphs in both starts; the other one has none
    "full": (2, 2, "whole-2", 4, [2]),  # a full disk on a rank
    "killed": (3, 2, "whole-3", 6, [2, 4]),  # and a file of a rank is then damaged: it resumes from 2
}


def start(folder: Path, output: str, stage: int, accumulation: int = 1, **more) -> dict:
    """A run for `several_runs.py`, with a checkpoint after every second update unless `every` says otherwise."""
    changes = {
        "data.train": str(folder / "train.json"),
        "train.micro_batch_size": 4,
        "train.gradient_accumulation_steps": accumulation,
        "train.max_updates": UPDATES,
        "train.checkpoint_every": more.pop("every", EVERY),
        "train.keep_checkpoints": more.pop("keep", 2),
        **BY_STAGE[stage],
        "method.kl_target": 4000,
        "method.noise_learning_rate": 5e-3,
        "method.noise_max_grad_norm": 0.3,
    }
    if stage == 3:
        sources = [{"source": str(folder / name), "weight": 1} for name in ("train.json", "more.json")]
        changes["data.train"] = json.dumps(sources)
    return {
        "recipe": str(folder / "recipe.yaml"),
        "set": [f"{key}={value}" for key, value in changes.items()],
        "ds_config": str(ds_config(folder, stage)),
        "output_dir": str(folder / output),
        **more,
    }


def tag(run: Path, update: int) -> Path:
    return run / "checkpoints" / f"update-{update:08d}"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> Path:
    """The folder of all runs, after their second starts: two launches per world size."""
    folder = tmp_path_factory.mktemp("resume")
    prepare(folder, dropout=0.1, num_hidden_layers=1)
    (folder / "more.json").write_text(json.dumps(squad(5, seed=2)))  # seen several times an epoch
    single = [start(folder, "whole-1", 1, every=1000), start(folder, "stopped", 1, graphs=True, stop_after=STOP)]
    make_runs(folder, single, ranks=1)
    several = [
        start(folder, "whole-2", 2, 2, every=1000),
        start(folder, "whole-3", 3, 2, every=1000),
        start(folder, "full", 2, 2, full=[1, 4], fails=True),
        start(folder, "killed", 3, 2, kill=[1, 6]),  # ends them all
    ]
    assert make_runs(folder, several, ranks=2, check=False).returncode != 0
    # what second starts find: whole checkpoints, more lines of metrics than these hold, and a half-written checkpoint
    for run, (*_, lines, kept) in EARLY.items():
        assert complete(folder / run) == kept
        assert (folder / run / "checkpoints" / "latest").read_text() == f"update-{kept[-1]:08d}"
        assert len(losses(folder / run)) == lines
    assert tag(folder / "killed", 6).is_dir()
    [damaged] = tag(folder / "killed", 4).glob("*_rank_1_*optim_states.pt")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 16
    damaged.write_bytes(content)
    assert not tag(folder / "full", 4).exists()
    shutil.copytree(folder / "stopped", folder / "earlier")
    elsewhere = str(shutil.copytree(folder / "stopped" / "checkpoints", folder / "elsewhere"))
    single = [
        start(folder, "stopped", 1, graphs=True),
        start(folder, "whole-1", 1),
        start(folder, "earlier", 1, every=1, keep=1, resume=str(tag(folder / "earlier", 2)), stop_after=4),
        start(folder, "branch", 1, resume=elsewhere),
    ]
    make_runs(folder, single, ranks=1)
    several = [
        start(folder, "killed", 3, 2),
        start(folder, "full", 2, 2),
        start(folder, "whole-2", 2, 2, every=1000, full=[0, "model"], fails=True),
        start(folder, "unlike", 2, set_on_1=[f"data.train={folder / 'test.json'}"], fails=True),
    ]
    (folder / "full.error").rename(folder / "first-full.error")
    made = make_runs(folder, several, ranks=2)
    (folder / "said").write_text(made.stdout + made.stderr)
    return folder


@pytest.mark.parametrize("name", EARLY)
def test_a_run_that_ended_early_resumes_bit_for_bit_and_so_does_the_mean_of_its_weights(resumed, name):
    stage, ranks, whole, *_ = EARLY[name]
    run = resumed / name
    assert_same(run, resumed / whole)
    assert len({line["beta"] for line in metrics(run)}) == UPDATES  # it has a state
    if stage == 3:
        sources = [read_json(folder / "results.json")["mix"] for folder in (run, run / "unaveraged")]
        assert sources[0] == sources[1]
        assert [(part["share"], part["questions"], part["windows"] >= part["questions"]) for part in sources[0]] == [
            (0.5, 42, True),
            (0.5, 5, True),
        ]
    files = sorted(file.name for file in tag(run, UPDATES).glob("average_*"))
    assert files == [f"average_rank_{rank}.pt" for rank in range(ranks if stage else 1)]
    averaged, plain = (load_file(folder / "model" / "model.safetensors") for folder in (run, run / "unaveraged"))
    assert not any(torch.equal(averaged[key], plain[key]) for key in plain)
    noise, of_plain = ((folder / "noise.safetensors").read_bytes() for folder in (run, run / "unaveraged"))
    assert noise == of_plain  # it is not averaged
    assert sorted(file.name for file in run.glob("checkpoints/update-*")) == ["update-00000006", "update-00000007"]
    assert (run / "checkpoints" / "latest").read_text() == "update-00000007"


def test_damage_on_a_rank_makes_all_ranks_resume_from_the_next_older_checkpoint(resumed):
    said = (resumed / "said").read_text()
    assert said.count("has changed since it was written") == 1
    damaged = tag(resumed / "killed", 4)
    file = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    assert f"{damaged}: the checkpoint is damaged ({file} has changed since it was written): delete " in said
    assert f"(on rank 1, host {os.uname().nodename})" in said
    assert f"resuming from {tag(resumed / 'killed', 2)}: 2 of 7 updates are done" in said


def test_a_full_disk_on_one_rank_stops_the_run_and_leaves_the_model_of_an_earlier_start(resumed):
    said = error(resumed / "first-full")
    assert said.startswith("the checkpoint of update 4 is lost, earlier ones stay: cannot write ")
    assert "update-00000004/zero_pp_rank_1_mp_rank_00_optim_states.pt: File too large: make room" in said
    assert "(on rank 1, host " in said
    run = resumed / "whole-2"
    said = error(run)
    assert said.startswith(f"cannot write {run / 'unaveraged' / 'model'}: ")
    assert "File too large" in said
    assert not list(run.rglob(".model.unfinished"))
    for file in ("model/model.safetensors", "results.json"):
        assert (run / file).is_file()


def test_ranks_that_were_given_other_settings_do_not_start(resumed):
    said = error(resumed / "unlike")
    assert "rank 1 (here, host " in said
    assert f"starts with other settings than rank 0 (there, host {os.uname().nodename}): data.train " in said
    assert not (resumed / "unlike" / "recipe.yaml").exists()


def test_a_run_can_resume_from_another_runs_checkpoint_or_from_an_earlier_one_of_its_own(resumed):
    assert complete(resumed / "whole-1") == [UPDATES]  # a finished run trains nothing more
    whole, branch = losses(resumed / "whole-1"), metrics(resumed / "branch")
    assert [line["update"] for line in branch] == list(range(5, UPDATES + 1))
    assert [line["loss"] for line in branch] == whole[4:]
    run = resumed / "earlier"  # held 2 and 4; resumed from 2, wrote 3, keeping one
    assert (run / "checkpoints" / "latest").read_text() == "update-00000003"
    assert complete(run) == [3]  # 4 is of the abandoned branch
    assert losses(run) == whole[:4]
