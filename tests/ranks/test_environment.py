"""The launcher's environment: what each launcher sets, and what makes no sense."""

import pytest

from swep_ds.common.errors import InputError
from swep_ds.ranks.environment import Launch, is_first_on_node, read_launch, report

WHOLE = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"}
SLURM |= {"SLURM_STEP_ID": "0"}
STEP = SLURM | {"MASTER_ADDR": "127.0.0.1"}


def test_each_launcher_is_read():
    assert read_launch({}) == Launch(0, 0, 1, None, None)
    assert read_launch(WHOLE) == Launch(2, 0, 4, "127.0.0.1", 29500)
    assert read_launch(STEP) == Launch(3, 1, 4, "127.0.0.1", 20000 + 7919 * 77 % 12000)
    assert read_launch(STEP | {"SLURM_STEP_NUM_TASKS": "1"}) == read_launch({})
    assert read_launch(STEP | {"MASTER_PORT": "5", "WORLD_SIZE": "4"}).master_port == 5  # exported by a job script
    assert read_launch(STEP | {"SLURM_JOB_ID": "4228000000"}).rank == 3  # of a federation
    assert read_launch(WHOLE | {"LOCAL_RANK": "3"}).local_rank == 3  # whoever sets them may number them as they like
    assert read_launch(WHOLE | {"MASTER_ADDR": "::1"}).master_addr == "::1"


@pytest.mark.parametrize(
    ("env", "changes", "said"),
    [
        (WHOLE, {"RANK": "4"}, "environment variable RANK='4' must be a whole number from 0 to 3"),
        (WHOLE, {"WORLD_SIZE": "0"}, "environment variable WORLD_SIZE='0' must be a whole number of at least 1"),
        (WHOLE, {"MASTER_PORT": None}, "some of the launcher's variables but not MASTER_PORT: start with"),
        (STEP, {"SLURM_PROCID": "x"}, "environment variable SLURM_PROCID='x' must be a whole number from 0 to 3"),
        (STEP, {"SLURM_LOCALID": None}, "environment variable SLURM_LOCALID is not set"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(env, changes, said):
    with pytest.raises(InputError, match=said):
        read_launch({name: value for name, value in (env | changes).items() if value is not None})


def test_slurm_is_asked_for_the_first_host_of_several_nodes_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    several = SLURM | {"SLURM_STEP_NODELIST": "n[1-2]"}
    with pytest.raises(InputError, match=r"^scontrol show hostnames n\[1-2\] failed .*: export MASTER_ADDR"):
        read_launch(several)
    assert read_launch(several | {"SLURM_STEP_NUM_NODES": "1"}).master_addr == "127.0.0.1"
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho localhost\necho n2\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert read_launch(several).master_addr == "localhost"


def test_a_fault_is_printed_by_the_first_rank_of_a_node_but_a_wrong_start_by_every_process(monkeypatch, capsys):
    for name, value in (WHOLE | {"LOCAL_RANK": "1", "MASTER_PORT": "0"}).items():
        monkeypatch.setenv(name, value)
    assert not is_first_on_node()
    report(InputError("seen by all"))
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError) as caught:
        read_launch()
    report(caught.value)
    assert capsys.readouterr().err.startswith("error: environment variable MASTER_PORT='0' must be")
