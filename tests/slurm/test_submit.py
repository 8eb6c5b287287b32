"""`swep-ds submit`: what it would submit, and what it refuses; tests/slurm/test_slurm.py submits to Slurm."""

import shlex
import sys
from pathlib import Path

import pytest

from swep_ds.commands.submit import submit as submit_command
from swep_ds.sweeps.sweep import read_sweep
from tests.support.bad_input import refused
from tests.support.fork_server import ROOT
from tests.support.sweep_files import finish, write

RUN, CPU = ["--ds_config", "zero2"], ["--cpu_ranks_per_node", "1"]


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Calls `submit` in an empty folder; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["swep-ds submit", *words])
        submit_command()
        return capsys.readouterr().out

    return call


def command(printed: str) -> list[str]:
    """The words of the sbatch command after its environment variables."""
    words = shlex.split(printed.splitlines()[0])
    assert all(word.startswith("SWEP_DS_") for word in words[:4])
    return words[4:]


def test_a_training_is_one_job_with_a_task_per_gpu_and_a_folder_that_stays(submit, tmp_path):
    options = ["--nodes", "2", "--gpus_per_node", "8", "--time", "12:00:00", "--partition", "gpu"]
    printed = submit("train", *options, "--sbatch=--qos=high", "--dry_run", "--", *RUN, "--set", "seed=3")
    words = command(printed)
    script = words.index(str(ROOT / "scripts" / "slurm" / "train.sbatch"))
    folder = tmp_path / "runs" / "quickstart-swep-seed3"
    assert words[:script] == [
        *("sbatch", "--parsable", "--export=ALL", "--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8"),
        *("--time=12:00:00", "--partition=gpu"),
        *(f"--job-name={folder.name}", f"--output={folder}.slurm-%j.log", "--qos=high"),
    ]
    assert words[script + 1 :] == [*RUN, "--set", "seed=3", "--output_dir", str(folder)]
    for part in ("train.sbatch", "restart.sh"):
        assert (ROOT / "scripts" / "slurm" / part).read_text() in printed
    assert printed.startswith(f"SWEP_DS_ROOT={ROOT} SWEP_DS_PYTHON={sys.executable} SWEP_DS_MAX_RESTARTS=20 ")


def test_without_gpus_none_are_asked_for(submit, tmp_path):
    options = ["--cpu_ranks_per_node", "3", "--cpus_per_rank", "4", "--max_restarts", "0", "--dry_run"]
    printed = submit("train", *options, "--", *RUN, "--output_dir", str(tmp_path / "new" / "run"))
    words = command(printed)
    assert words[2:6] == ["--export=ALL", "--nodes=1", "--ntasks-per-node=3", "--cpus-per-task=4"]
    assert words[7] == f"--output={tmp_path}/new/run.slurm-%j.log"
    assert "SWEP_DS_MAX_RESTARTS=0 " in printed
    assert not (tmp_path / "new").exists()


def test_a_sweep_is_an_array_of_the_runs_that_are_not_done(submit, tmp_path):
    folder = tmp_path / "runs"
    variants = {name: {"method.name": name} for name in ("mle", "swep", "neftune", "r_drop")}
    file = write(tmp_path, variants=variants, ds_config="zero0")
    whole = ["sweep", "--gpus_per_node", "1", "--parallel", "2", "--dry_run", "--", file, "--output_dir", str(folder)]
    words = command(submit(*whole))
    assert "--array=0,1,2,3%2" in words
    assert f"--output={folder}/slurm-%A_%a.log" in words
    cells = read_sweep(file, folder)[1]
    script = words.index(str(ROOT / "scripts" / "slurm" / "sweep.sbatch"))
    assert words[script + 1 :] == [file, "--output_dir", str(folder)]
    for number in (1, 3):
        finish(cells[number])
    assert "--array=0,2%2" in command(submit(*whole))
    for number in (0, 2):
        finish(cells[number])
    assert refused(submit, *whole).endswith("all 4 runs of the sweep are done: see --table")


def test_the_documents_commands_are_submitted(submit, tmp_path):
    (tmp_path / "ds_configs").symlink_to(ROOT / "ds_configs")
    document = (ROOT / "docs" / "clusters.md").read_text().replace("\\\n", " ")
    commands = [line for line in document.splitlines() if line.startswith("swep-ds submit")]
    assert len(commands) >= 3
    for line in commands:
        before, _, after = line.removesuffix("--dry_run").partition(" -- ")
        assert "sbatch" in command(submit(*shlex.split(before)[2:], "--dry_run", "--", *shlex.split(after)))


def test_bad_options_are_refused_before_the_job_is_queued(submit, tmp_path):
    (tmp_path / "cut.json").write_text("{")
    (tmp_path / "other.json").write_text('{"gradient_clipping": 7}')
    for words, said in (
        (["train", *CPU], "put the options of `swep-ds train` after `--`"),
        (["train", *CPU, "--recipe", "quickstart"], "unrecognized arguments: --recipe"),
        (["train", *CPU, "--parallel", "2", "--", *RUN], "--parallel is for sweeps"),
        (["train", *CPU, "--", *RUN, "--resume", "runs/x"], "every start of the job would repeat it"),
        (["train", *CPU, "--", *RUN, "--ranks", "8"], "--ranks: srun starts the ranks: leave it out"),
        (["train", *CPU, "--", *RUN, "--plan", "8x80"], "--plan: trains nothing: run it without submit"),
        (["train", *CPU, "--sbatch=account=lab", "--", *RUN], "--sbatch=account=lab: is not an option"),
        (["train", *CPU, "--", *RUN, "--output_dir", str(ROOT / "docs")], "docs: holds files that belong to no ru"),
        (["train", *CPU, "--", *RUN, "--set", "train.precision=fp16"], "train.precision: fp16 needs a GPU"),
        (["sweep", *CPU, "--", "quickstart", "--set", "train.precision=fp16"], "train.precision: fp16 needs a GPU"),
        (["train", *CPU, "--", "--ds_config", "cut.json"], "cut.json: not JSON"),
        (["train", *CPU, "--", "--ds_config", "other.json"], "gradient_clipping = 7, but"),
        (["sweep", *CPU, "--", "quickstart_methods", "--ds_config", "other.json"], "gradient_clipping = 7, but"),
        (["sweep", *CPU, "--", "quickstart_methods", "--jobs", "2"], "leave out --jobs, --ranks, --cell"),
    ):
        assert said in refused(submit, *words)
    for option in ("--nodes=3", "--ntasks", "-N=3", "-n8"):
        said = refused(submit, "train", *CPU, f"--sbatch={option}", "--", *RUN)
        assert f"--sbatch={option}: give the number of ranks by --no" in said
    assert not (tmp_path / "runs").exists()


def put_on_path(monkeypatch, folder: Path, sbatch: str) -> None:
    (folder / "sbatch").write_text(f"#!/bin/sh\n{sbatch}\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_job_knows_nothing_of_the_job_that_submits_it(submit, tmp_path, monkeypatch):
    put_on_path(monkeypatch, tmp_path, sbatch=f'env >{tmp_path}/env\necho "7;cluster"')
    leaking = {"SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SBATCH_SIGNAL", "PMI_RANK"}
    kept = {"SLURM_CONF", "SBATCH_ACCOUNT", "HF_HOME"}
    for name in leaking | kept:
        monkeypatch.setenv(name, "x")
    for inside in (False, True):
        if inside:
            monkeypatch.setenv("SLURM_JOB_ID", "7")
        said = submit("train", *CPU, "--time", "60", "--", *RUN, "--output_dir", str(tmp_path / "logs" / "run"))
        assert said == f"job 7, its log is in {tmp_path / 'logs'}\n"
        given = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
        assert given >= kept | {"SWEP_DS_ROOT"}
        assert given & (leaking | {"SLURM_JOB_ID"}) == (set() if inside else leaking)


def test_what_sbatch_says_is_passed_on_in_a_line(submit, tmp_path, monkeypatch):
    words = ["train", *CPU, "--", *RUN, "--output_dir", str(tmp_path / "run")]
    monkeypatch.setenv("PATH", "")
    assert refused(submit, *words).startswith("sbatch: no such command: submit on a machine of a Slurm cluster")
    put_on_path(monkeypatch, tmp_path, sbatch="echo sbatch: error: no partition: gpu >&2\nexit 1")
    assert refused(submit, *words).startswith("sbatch refused the job: sbatch: error: no partition: gpu")
