"""The launcher's environment: what each launcher sets, and what makes no sense."""

import pytest

from swep_ds.common.errors import InputError
from swep_ds.ranks.environment import LaunchError, is_first_on_node, read_launch, report

WHOLE = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"}
SLURM |= {"SLURM_STEP_ID": "0"}
STEP = SLURM | {"MASTER_ADDR": "127.0.0.1"}


def test_each_launcher_is_read():
    assert read_launch({}) == {}
    assert read_launch(WHOLE | {"HOME": "/"}) == WHOLE
    port = str(20000 + 7919 * 77 % 12000)
    read = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    assert read_launch(STEP) == read
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
