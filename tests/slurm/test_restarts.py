"""What the job scripts do with each exit code, with stand-ins for Slurm's commands; in test_slurm.py it is real."""

import os
import subprocess

import pytest

from tests.tiny_run import ROOT

# the step ends as told by CODE; every call is noted
STAND_INS = {
    "srun": 'echo "srun $SLURM_WAIT $SLURM_KILL_BAD_EXIT $*" >> calls; exit $CODE',
    "squeue": "echo ${STATE:-RUNNING}",
    "scontrol": 'echo "scontrol $*" >> calls; exit ${REFUSED:-0}',
    "python": 'echo "python $*" >> calls; exit $CODE',
}


@pytest.fixture
def start(tmp_path):
    """Runs a job script; returns (exit code, what it said, Slurm's commands that it called)."""
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def call(code: int, kind: str = "train", **more: str) -> tuple[int, str, list[str]]:
        (tmp_path / "calls").write_text("")
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CODE": str(code), "SLURM_JOB_ID": "7"}
        env |= {"SLURM_JOB_NODELIST": "node[1-2]", "SWEP_DS_ROOT": str(ROOT), "SWEP_DS_PYTHON": "python"}
        env |= {"SWEP_DS_MAX_RESTARTS": "2"} | more
        script = ["bash", str(ROOT / "scripts" / "slurm" / f"{kind}.sbatch"), "--set", "a=b c"]
        ended = subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert ended.stderr == ""
        return ended.returncode, ended.stdout, (tmp_path / "calls").read_text().splitlines()

    return call


def test_a_run_that_is_done_ends_the_job(start):
    code, said, calls = start(0)
    assert (code, said) == (0, "swep-ds: job 7, start 1, on node[1-2]\nswep-ds: done\n")
    assert calls == [f"srun 60 0 --label python -u {ROOT}/scripts/train.py --set a=b c"]


@pytest.mark.parametrize(
    ("code", "why"), [(2, "bad input"), (1, "a fault, or a training that diverged"), (3, "a fault")]
)
def test_what_a_restart_would_not_mend_ends_the_job(start, code, why):
    ended, said, calls = start(code)
    assert ended == code
    assert f"swep-ds: exit code {code}: {why}" in said
    assert said.endswith(": not restarted\n")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("code", "why"),
    [(75, "stopped on request"), (76, "a rank or its node was lost"), (137, "a rank died of signal 9")],
)
def test_a_run_that_was_stopped_or_killed_is_queued_again(start, code, why):
    _, said, calls = start(code)
    assert said.endswith(f"swep-ds: exit code {code}: {why}: restart 1 of at most 2\n")
    assert calls[1:] == ["scontrol requeue 7"]
    _, said, calls = start(code, SLURM_RESTART_COUNT="1")
    assert "start 2" in said
    assert calls[1:] == ["scontrol requeue 7"]


def test_restarts_are_bounded_slurms_own_too(start):
    code, said, calls = start(75, SLURM_RESTART_COUNT="2")
    assert (code, len(calls)) == (75, 1)
    assert said.endswith("stopped on request; 2 restarts are used up: not restarted; submit again to go on\n")
    code, said, calls = start(0, SLURM_RESTART_COUNT="3")
    assert (code, calls) == (1, [])
    assert said.endswith("2 restarts are used up: not started; submit again to go on\n")


def test_a_job_that_was_cancelled_does_not_come_back(start):
    code, said, calls = start(75, STATE="COMPLETING")
    assert (code, len(calls)) == (75, 1)
    assert said.endswith("stopped on request; Slurm has ended the job: not restarted from here\n")


def test_a_requeue_that_slurm_refuses_is_said(start):
    code, said, _ = start(75, REFUSED="1")
    assert code == 75
    assert said.endswith("scontrol requeue failed: submit again to go on\n")


def test_of_an_array_one_task_is_run_and_queued_again(start):
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}
    _, said, calls = start(75, "sweep", **array)
    assert said.startswith("swep-ds: job 5_3, start 1,")
    assert calls == [f"python -u {ROOT}/scripts/sweep.py --set a=b c --cell 3 --srun", "scontrol requeue 5_3"]


def test_threads_are_the_tasks_cores(start, tmp_path):
    (tmp_path / "srun").write_text('#!/bin/bash\necho "$OMP_NUM_THREADS $SRUN_CPUS_PER_TASK"\n')
    assert "\n6 6\n" in start(0, SLURM_CPUS_PER_TASK="6")[1]
    assert "\n1 \n" in start(0)[1]
    assert "\n2 6\n" in start(0, SLURM_CPUS_PER_TASK="6", OMP_NUM_THREADS="2")[1]
