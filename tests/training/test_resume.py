"""Resuming: bit for bit what an uninterrupted run does, and only ever from a whole checkpoint.

Runs are stopped by an exception, by SIGKILL while a checkpoint is being written, or not at all, and resume in new
processes. One launch per world size makes all first starts, one more all second starts.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny_run import assert_same, complete, ds_config, error, losses, make_runs, metrics, prepare

pytestmark = pytest.mark.slow

UPDATES, EVERY, STOP = 7, 2, 5  # checkpoints after updates 2, 4, 6, 7; stopped runs resume from 4
VARIANTS = [(0, 1, 1), (2, 2, 2), (3, 2, 2)]  # ZeRO stage, ranks, accumulation
EMA = {"train.average": "ema", "train.average_decay": 0.8}
LAST = {"train.average": "last_k", "train.average_last": 0.5, "train.coalesce_grad_reduction": True}
BY_STAGE = {0: EMA, 2: LAST, 3: EMA}


def name(prefix: str, variant: tuple[int, int, int]) -> str:
    return "-".join(map(str, (prefix, *variant)))


def start(folder: Path, output: str, stage: int, accumulation: int = 1, **more) -> dict:
    """A run for `several_runs.py`, with a checkpoint after every second update unless `every` says otherwise."""
    changes = {
        "train.micro_batch_size": 4,
        "train.gradient_accumulation_steps": accumulation,
        "train.max_updates": UPDATES,
        "train.checkpoint_every": more.pop("every", EVERY),
        "train.keep_checkpoints": more.pop("keep", 2),
        "seed": more.pop("seed", 0),
        **BY_STAGE[stage],
        "method.kl_target": 4000,
        "method.noise_learning_rate": 5e-3,
        "method.noise_max_grad_norm": 0.3,
    }
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
def stopped(tmp_path_factory) -> Path:
    """First starts: whole-*, stopped-*, killed."""
    folder = tmp_path_factory.mktemp("resume")
    prepare(folder, dropout=0.1)
    for world_size in (1, 2):
        runs = []
        for variant in VARIANTS:
            stage, ranks, accumulation = variant
            if ranks == world_size:
                runs.append(start(folder, name("whole", variant), stage, accumulation, every=1000))
                runs.append(start(folder, name("stopped", variant), stage, accumulation, stop_after=STOP))
        if world_size == 1:
            make_runs(folder, runs, ranks=1)
        else:
            runs.append(start(folder, "full", 2, 2, full=[1, 4], fails=True))
            runs.append(start(folder, "killed", 3, accumulation=2, kill=[1, 4]))  # ends them all
            assert make_runs(folder, runs, ranks=2, check=False).returncode != 0
    # what second starts find: whole checkpoints, more lines of metrics than these hold, and a half-written checkpoint
    for run, lines, kept in (("stopped-3-2-2", STOP, [2, 4]), ("killed", 4, [2]), ("full", 4, [2])):
        assert complete(folder / run) == kept
        assert (folder / run / "checkpoints" / "latest").read_text() == f"update-{kept[-1]:08d}"
        assert len(losses(folder / run)) == lines
        assert tag(folder / run, 4).is_dir() == (run != "full")
    return folder


@pytest.fixture(scope="module")
def resumed(stopped) -> Path:
    """Second starts of all stopped runs."""
    folder = stopped
    single = folder / "stopped-0-1-1"
    shutil.copytree(single, folder / "earlier")
    elsewhere = str(shutil.copytree(single / "checkpoints", folder / "elsewhere"))
    runs = {ranks: [] for ranks in (1, 2)}
    for variant in VARIANTS:
        stage, ranks, accumulation = variant
        runs[ranks].append(start(folder, name("stopped", variant), stage, accumulation))
    runs[1] += [
        start(folder, "whole-0-1-1", 0),
        start(folder, "earlier", 0, every=1, keep=1, resume=str(tag(folder / "earlier", 2)), stop_after=4),
        start(folder, "branch", 0, resume=elsewhere),
        start(folder, "other-setting", 0, seed=1, resume=elsewhere, fails=True),
    ]
    runs[2] += [
        start(folder, "killed", 3, accumulation=2),
        start(folder, "full", 2, accumulation=2),
        start(folder, "whole-2-2-2", 2, 2, every=1000, full=[0, "model"], fails=True),
        start(folder, "unlike", 2, set_on_1=[f"data.train={folder / 'test.json'}"], fails=True),
    ]
    for ranks, listed in runs.items():
        make_runs(folder, listed, ranks=ranks)
    return folder


def test_a_finished_run_trains_nothing_more_and_ends_again(resumed):
    assert_same(resumed / "whole-0-1-1", resumed / "stopped-0-1-1")
    assert complete(resumed / "whole-0-1-1") == [UPDATES]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: "zero{}-ranks{}-accumulation{}".format(*variant))
def test_a_stopped_run_resumes_bit_for_bit_and_so_does_the_mean_of_its_weights(resumed, variant):
    stage, ranks, _ = variant
    run = resumed / name("stopped", variant)
    assert_same(run, resumed / name("whole", variant))
    assert len({line["beta"] for line in metrics(run)}) == UPDATES  # it has a state
    files = sorted(file.name for file in tag(run, UPDATES).glob("average_*"))
    assert files == [f"average_rank_{rank}.pt" for rank in range(ranks if stage else 1)]
    averaged, plain = (load_file(folder / "model" / "model.safetensors") for folder in (run, run / "unaveraged"))
    assert not any(torch.equal(averaged[key], plain[key]) for key in plain)
    noise, of_plain = ((folder / "noise.safetensors").read_bytes() for folder in (run, run / "unaveraged"))
    assert noise == of_plain  # it is not averaged


def test_a_killed_run_resumes_bit_for_bit(resumed):
    assert_same(resumed / "killed", resumed / "whole-3-2-2")


def test_a_full_disk_on_one_rank_stops_the_run_which_resumes_once_there_is_room(resumed):
    said = error(resumed / "full")
    assert said.startswith("the checkpoint of update 4 is lost, earlier ones stay: cannot write ")
    assert "update-00000004/zero_pp_rank_1_mp_rank_00_optim_states.pt: File too large (on rank 1, host " in said
    assert_same(resumed / "full", resumed / "whole-2-2-2")


def test_a_model_that_cannot_be_written_leaves_that_of_an_earlier_start(resumed):
    run = resumed / "whole-2-2-2"
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


def test_a_checkpoint_of_another_run_must_fit_in_every_setting(resumed):
    assert "the checkpoint does not fit this start (seed 0" in error(resumed / "other-setting")


def test_a_new_folder_can_resume_from_another_runs_checkpoint(resumed):
    whole, branch = losses(resumed / "whole-0-1-1"), metrics(resumed / "branch")
    assert [line["update"] for line in branch] == list(range(5, UPDATES + 1))
    assert [line["loss"] for line in branch] == whole[4:]


def test_number_of_checkpoints_kept(resumed):
    run = resumed / "stopped-2-2-2"
    assert complete(run) == [6, 7]
    assert sorted(f.name for f in run.glob("checkpoints/update-*")) == ["update-00000006", "update-00000007"]
    assert (run / "checkpoints" / "latest").read_text() == "update-00000007"


def test_resuming_from_an_earlier_checkpoint_keeps_the_one_it_just_wrote(resumed):
    run = resumed / "earlier"  # held 2 and 4; resumed from 2, wrote 3, keeping one
    assert (run / "checkpoints" / "latest").read_text() == "update-00000003"
    assert complete(run) == [3]  # 4 is of the abandoned branch
    assert losses(run) == losses(resumed / "whole-0-1-1")[:4]
