"""How runs start: what each launcher sets in the environment; and on this machine, its words and each run's devices."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from swep_ds.commands import cli
from swep_ds.common.errors import InputError
from swep_ds.ranks import launcher as module
from swep_ds.ranks.environment import LaunchError, is_first_on_node, read_launch, report
from swep_ds.ranks.launcher import environments, launcher
from tests.support.bad_input import refused

# the part of DeepSpeed's accelerator that a launcher asks
GPUS = SimpleNamespace(device_name=lambda: "cuda", device_count=lambda: 4)
GPUS.visible_devices_envs = lambda: ["CUDA_VISIBLE_DEVICES"]
WHOLE = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"}
SLURM |= {"SLURM_STEP_ID": "0"}
STEP = SLURM | {"MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(module, "get_accelerator", lambda: GPUS)
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 16)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def devices(*arguments, **options) -> list[str]:
    return [job["CUDA_VISIBLE_DEVICES"] for job in environments(*arguments, **options)]


def test_each_job_has_its_own_devices_unless_runs_share_them(gpus, monkeypatch):
    assert devices(2, 2) == ["0,1", "2,3"]
    assert devices(5, 1, sharing=2) == ["0", "1", "2", "3", "0"]
    assert devices(4, 2, sharing=2) == ["0,1", "2,3"] * 2
    assert {job["OMP_NUM_THREADS"] for job in environments(5, 1, sharing=2)} == {"3"}
    assert {job["OMP_NUM_THREADS"] for job in environments(2, 2, sharing=2)} == {"4"}  # every rank's
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a,GPU-2b,GPU-3c,GPU-4d")
    assert devices(2, 1) == ["GPU-1a", "GPU-2b"]


def test_several_processes_start_under_deepspeed(monkeypatch):
    assert launcher(1) == [sys.executable, "-u"]
    on_cpu = launcher(2)
    assert on_cpu[2:4] == ["-m", "deepspeed.launcher.runner"]
    assert on_cpu[on_cpu.index("--num_accelerators") + 1] == "2"
    assert {job["DS_ACCELERATOR"] for job in environments(2, 2)} == {"cpu"}
    monkeypatch.setattr(module, "get_accelerator", lambda: GPUS)  # the environment names the devices
    assert "--num_accelerators" not in launcher(2)
    assert "DS_ACCELERATOR" not in environments(1, 2)[0]


@pytest.mark.slow
def test_a_ranks_last_line_is_the_launchers_too_and_its_exit_code(tmp_path):
    script = tmp_path / "script.py"
    line = "print('error: gone', file=sys.stderr)"
    script.write_text(f"import os, sys\nif os.environ['RANK'] == '0': {line}\nsys.exit(75)")
    run = subprocess.run([*launcher(2), str(script)], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (75, "", "error: gone\n")


def test_ranks_become_the_launcher_of_the_command_with_the_same_options(gpus, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execve", lambda *call: started.append(call))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.setattr(sys, "argv", ["swep-ds train", "--set", "seed=1", "--ranks", "2", "--recipe", "x"])
    cli.launch(2, "train")
    [(program, words, environment)] = started
    assert program == words[0] == sys.executable
    assert words[1:4] == ["-u", "-m", "deepspeed.launcher.runner"]
    assert words[words.index("--module") :] == ["--module", "swep_ds", "train", "--set", "seed=1", "--recipe", "x"]
    assert environment["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert environment["PYTHONSAFEPATH"] == "1"
    cli.launch(None, "train")
    cli.launch(1, "train")  # this process is the rank
    assert len(started) == 1


def test_ranks_that_cannot_be_started(gpus, monkeypatch):
    said = "9 run(s) of 1 rank(s) at a time, 2 to a device: there are 4 devices: lower "
    assert said in refused(environments, 9, 1, sharing=2)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    assert "--ranks: a launcher has already started this process" in refused(cli.launch, 2, "train")


def test_each_launcher_is_read():
    assert read_launch({}) == {}
    assert read_launch(WHOLE | {"HOME": "/"}) == WHOLE
    port = str(20000 + 7919 * 77 % 12000)
    assert read_launch(STEP) == WHOLE | {"RANK": "3", "LOCAL_RANK": "1", "MASTER_PORT": port}
    assert read_launch(STEP | {"SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert read_launch(STEP | {"MASTER_PORT": "5"})["MASTER_PORT"] == "5"  # exported by a job script
    with pytest.raises(InputError, match="some of the launcher's variables but not MASTER_PORT: start with"):
        read_launch({name: value for name, value in WHOLE.items() if name != "MASTER_PORT"})


def test_slurm_is_asked_for_the_first_host_of_several_nodes_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    several = SLURM | {"SLURM_STEP_NODELIST": "n[1-2]"}
    with pytest.raises(InputError, match=r"^scontrol show hostnames n\[1-2\] failed .*: export MASTER_ADDR"):
        read_launch(several)
    assert read_launch(several | {"SLURM_STEP_NUM_NODES": "1"})["MASTER_ADDR"] == "127.0.0.1"
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho localhost\necho n2\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert read_launch(several)["MASTER_ADDR"] == "localhost"


def test_a_fault_is_printed_by_the_first_rank_of_a_node_but_a_wrong_start_by_every_process(monkeypatch, capsys):
    for name, value in (WHOLE | {"LOCAL_RANK": "1"}).items():
        monkeypatch.setenv(name, value)
    assert not is_first_on_node()
    report(InputError("seen by all"))
    report(LaunchError("seen by this one"))
    assert capsys.readouterr().err == "error: seen by this one\n"
    monkeypatch.setenv("LOCAL_RANK", "0")  # rank 2 is the first one of another node
    assert is_first_on_node()
    report(InputError("seen by all"))
    assert capsys.readouterr().err == "error: seen by all\n"
