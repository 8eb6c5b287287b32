"""What the job scripts do with each exit code, with fakes of Slurm's commands; test_slurm.py runs a real Slurm."""

import os
import subprocess

import pytest

from swep_ds.ranks.environment import note_checkpoint
from tests.support.tiny_run import ROOT

# srun evaluates SAVES and exits with CODE; squeue answers with the words of ANSWERS in turn, then with the last again;
# scontrol fails the first REFUSED times; all record their calls
FAKES = {
    "srun": 'echo "srun $SLURM_WAIT $SLURM_KILL_BAD_EXIT $*" >> calls; eval "$SAVES"; exit $CODE',
    "squeue": """
echo asked >> asked
answers=(${ANSWERS:-RUNNING})
number=$(wc -l < asked)
((number > ${#answers[@]})) && number=${#answers[@]}
case ${answers[number - 1]} in
fails) echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1 ;;
empty) ;;
*) echo "${answers[number - 1]}" ;;
esac
""",
    "scontrol": 'echo "scontrol $*" >> calls; (($(grep -c scontrol calls) > ${REFUSED:-0}))',
    "python": 'echo "python $*" >> calls; exit $CODE',
    "sleep": "exit 0",
}
# what is said of each exit code
WHY = {0: "done", 2: "bad input", 1: "a fault, or a training that diverged", 75: "stopped on request"}
WHY |= {76: "a rank or its node was lost", 137: "a rank died of signal 9"}


@pytest.fixture
def start(tmp_path):
    """Runs a job script; returns (exit code, output, Slurm's commands that it called)."""
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def call(code: int, kind: str = "train", **more: str) -> tuple[int, str, list[str]]:
        for name in ("calls", "asked"):
            (tmp_path / name).write_text("")
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CODE": str(code), "SLURM_JOB_ID": "7"}
        env |= {"SLURM_JOB_NODELIST": "node[1-2]", "SWEP_DS_ROOT": str(ROOT), "SWEP_DS_PYTHON": "python"}
        env |= {"SWEP_DS_MAX_RESTARTS": "2"} | more
        script = ["bash", str(ROOT / "scripts" / "slurm" / f"{kind}.sbatch"), "--set", "a=b c"]
        ended = subprocess.run(script, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert "Traceback" not in ended.stderr
        assert "line " not in ended.stderr  # bash names the line of a command that fails
        return ended.returncode, ended.stdout, (tmp_path / "calls").read_text().splitlines()

    return call


@pytest.mark.parametrize(("code", "why"), WHY.items())
def test_a_run_that_was_stopped_or_killed_is_queued_again_and_no_other(start, code, why):
    again = code >= 75
    ended, said, calls = start(code)
    assert ended == code
    assert said.startswith("swep-ds: job 7, start 1, on node[1-2]\n")
    assert why in said
    assert said.endswith(": restart 1 of at most 2\n") == again
    srun = f"srun 60 0 --label python -u {ROOT}/scripts/train.py --set a=b c"
    assert calls == ([srun, "scontrol requeue 7"] if again else [srun])


def test_restarts_are_bounded_including_slurms_own(start):
    _, said, calls = start(75, SLURM_RESTART_COUNT="1")
    assert "start 2" in said
    assert calls[1:] == ["scontrol requeue 7"]
    code, said, calls = start(0, SLURM_RESTART_COUNT="3")
    assert (code, calls) == (1, [])
    assert said.endswith("2 restarts are used up: not started; submit again to resume\n")


@pytest.mark.parametrize(
    ("code", "why", "more"),
    [
        (75, "2 restarts are used up: not restarted; submit again to resume", {"SLURM_RESTART_COUNT": "2"}),
        (75, "Slurm has ended the job: not restarted from here", {"ANSWERS": "fails empty COMPLETING"}),
        (76, "squeue gives no answer: not restarted; submit again to resume", {"ANSWERS": "fails"}),
        (75, "scontrol requeue failed: not restarted; submit again to resume", {"REFUSED": "1000"}),
    ],
)
def test_a_job_that_cannot_come_back_or_was_cancelled_ends_with_the_code_of_its_run(start, tmp_path, code, why, more):
    ended, said, calls = start(code, **more)
    assert ended == code
    assert said.endswith(f"{why}\n")
    assert "REFUSED" in more or len(calls) == 1
    assert more.get("ANSWERS") != "fails" or len((tmp_path / "asked").read_text().splitlines()) > 10


def test_squeue_and_scontrol_are_asked_again(start):
    code, _, calls = start(75, ANSWERS="fails empty fails empty RUNNING", REFUSED="2")
    assert (code, calls[1:]) == (75, ["scontrol requeue 7"] * 3)


def test_a_job_whose_starts_save_nothing_is_not_started_for_ever(start, tmp_path):
    more = {"SWEP_DS_LOGS": str(tmp_path), "SWEP_DS_MAX_RESTARTS": "20"}
    saves = {"SAVES": 'echo "update 8" >> "$SWEP_DS_PROGRESS"'}

    def restarted(**others: str) -> bool:
        _, said, calls = start(75, **more, **others)
        assert ("3 starts in a row saved no checkpoint: not restarted" in said) == (len(calls) == 1)
        return len(calls) == 2

    assert [restarted() for _ in range(3)] == [True, True, False]
    assert [restarted(), restarted(), restarted(**saves)] == [True] * 3
    assert [restarted() for _ in range(3)] == [True, True, False]
    assert not list(tmp_path.glob(".slurm-*"))
    assert restarted()
    start(0, **more)
    assert not list(tmp_path.glob(".slurm-*"))


def test_a_saved_checkpoint_is_noted_for_the_job_script(tmp_path, monkeypatch):
    note_checkpoint(3)  # outside of Slurm
    monkeypatch.setenv("SWEP_DS_PROGRESS", str(tmp_path / "progress"))
    note_checkpoint(4)
    note_checkpoint(8)
    assert (tmp_path / "progress").read_text() == "update 4\nupdate 8\n"
    monkeypatch.setenv("SWEP_DS_PROGRESS", str(tmp_path / "none" / "progress"))
    note_checkpoint(12)


def test_one_task_of_an_array_is_run_and_requeued(start):
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}
    _, said, calls = start(75, "sweep", **array)
    assert said.startswith("swep-ds: job 5_3, start 1,")
    assert calls == ["python -u -m swep_ds sweep --set a=b c --cell 3 --srun", "scontrol requeue 5_3"]


def test_threads_are_the_tasks_cores(start, tmp_path):
    (tmp_path / "srun").write_text('#!/bin/bash\necho "$OMP_NUM_THREADS $SRUN_CPUS_PER_TASK"\n')
    assert "\n6 6\n" in start(0, SLURM_CPUS_PER_TASK="6")[1]
    assert "\n1 \n" in start(0)[1]
    assert "\n2 6\n" in start(0, SLURM_CPUS_PER_TASK="6", OMP_NUM_THREADS="2")[1]
