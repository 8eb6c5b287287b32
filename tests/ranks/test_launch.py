"""The launcher's environment: what each launcher sets, and what makes no sense."""

import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swep_ds.common.errors import InputError
from swep_ds.ranks import launch as launcher
from swep_ds.ranks.launch import (
    Launch,
    LaunchError,
    check_libraries,
    is_first_on_node,
    read_launch,
    report,
    visible_devices,
)

WHOLE = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
STEP = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "MASTER_ADDR": "127.0.0.1",
}
OF_WHOLE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_WORLD_SIZE")  # numbers
OF_STEP = [name for name in STEP if name != "MASTER_ADDR"]
NUMBERS = ["", " ", "abc", "-1", "1.0", "1e3", "0x1", "+1", "1_0", "٣", "1\n", "9" * 5000, "nan"]


def test_each_launcher_is_read():
    assert read_launch({}) == Launch(0, 0, 1, None, None, None)
    assert read_launch(WHOLE) == Launch(2, 0, 4, "127.0.0.1", 29500, None)
    assert read_launch(WHOLE | {"LOCAL_WORLD_SIZE": "2"}) == Launch(2, 0, 4, "127.0.0.1", 29500, None)
    assert read_launch(WHOLE | {"CROSS_SIZE": "2"}).job.startswith("parent ")
    assert read_launch(STEP) == Launch(3, 1, 4, "127.0.0.1", 20000 + 7919 * 77 % 12000, "Slurm 77.0")
    assert read_launch(STEP | {"SLURM_STEP_NUM_TASKS": "1"}) == read_launch({})
    assert read_launch(STEP | {"MASTER_PORT": "5"}).master_port == 5
    assert read_launch(STEP | {"SLURM_JOB_ID": "4228000000"}).job == "Slurm 4228000000.0"  # of a federation
    assert read_launch(WHOLE | {"LOCAL_RANK": "3"}).local_rank == 3  # whoever sets them may number them as they like
    assert read_launch(WHOLE | {"MASTER_ADDR": "::1"}).master_addr == "::1"


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize(("env", "name"), [(WHOLE, name) for name in OF_WHOLE] + [(STEP, name) for name in OF_STEP])
def test_what_is_not_a_number_is_refused_by_its_name(env, name, value):
    with pytest.raises(InputError, match=f"^environment variable {name}="):
        read_launch(env | {name: value})


@pytest.mark.parametrize("name", [name for name in OF_STEP if name != "SLURM_STEP_NUM_TASKS"])
def test_a_variable_of_slurm_that_is_missing_is_named(name):
    with pytest.raises(InputError, match=f"^environment variable {name} is not set"):
        read_launch({key: value for key, value in STEP.items() if key != name})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"RANK": "4"}, r"RANK='4' must be a whole number from 0 to 3 \(WORLD_SIZE is 4\)"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({"WORLD_SIZE": "999999999"}, "WORLD_SIZE='999999999'"),
        ({"LOCAL_RANK": "4"}, r"LOCAL_RANK='4' must be a whole number from 0 to 3 \(WORLD_SIZE is 4\)"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, r"LOCAL_RANK='2' .* \(LOCAL_WORLD_SIZE is 2\)"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE='5'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT='0' must be a whole number from 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536'"),
        ({"MASTER_ADDR": ""}, r"MASTER_ADDR='' has no address \(it is empty\)"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "MASTER_ADDR='no.such.host.invalid' has no address"),
        ({"MASTER_ADDR": "x" * 300}, "MASTER_ADDR='xxx"),
        ({"MASTER_ADDR": "a\0b"}, "MASTER_ADDR='a"),
        ({"MASTER_ADDR": "a..b"}, "MASTER_ADDR='a..b'"),
    ],
)
def test_what_contradicts_the_rest_is_refused(changes, named, monkeypatch):
    monkeypatch.setattr(launcher, "RESOLVE_SECONDS", 0.0)
    with pytest.raises(InputError, match=f"^environment variable {named}") as caught:
        read_launch(WHOLE | changes)
    assert len(str(caught.value)) < 300


@given(st.dictionaries(st.sampled_from([*WHOLE, *STEP, "LOCAL_WORLD_SIZE"]), st.sampled_from(["", "0", "1", "x", "2"])))
def test_any_environment_gives_a_launch_that_holds_together_or_an_error(env):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher.socket, "getaddrinfo", lambda *_, **__: [])
        patch.setattr(launcher.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, "node1\nnode2\n"))
        try:
            launch = read_launch(env)
        except InputError:
            return
    assert 0 <= launch.rank < launch.world_size
    assert 0 <= launch.local_rank < launch.world_size
    assert launch.master_port is None or 0 < launch.master_port < 65536


def test_a_host_that_gets_its_name_later_is_waited_for(monkeypatch):
    answers = iter([socket.gaierror(-2, "Name or service not known"), socket.gaierror(-3, "Temporary failure"), None])

    def look_up(*_, **__):
        if error := next(answers):
            raise error

    monkeypatch.setattr(launcher.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(launcher.time, "sleep", lambda _: None)
    assert read_launch(WHOLE | {"MASTER_ADDR": "job-master-0"}).master_addr == "job-master-0"


def test_some_of_the_variables_are_not_enough():
    for name in WHOLE:
        with pytest.raises(LaunchError, match="some of the launcher's variables but not"):
            read_launch({key: value for key, value in WHOLE.items() if key != name})


@pytest.mark.parametrize("answer", ["", "exit 1", "echo", None])
def test_without_an_answer_of_scontrol_the_address_is_asked_for(answer, tmp_path, monkeypatch):
    if answer is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if answer is not None else str(tmp_path))
    env = {name: value for name, value in STEP.items() if name != "MASTER_ADDR"}
    with pytest.raises(InputError, match=r"^scontrol show hostnames n\[1-2\] failed .*: export MASTER_ADDR"):
        read_launch(env | {"SLURM_STEP_NODELIST": "n[1-2]"})


def test_a_step_on_a_single_node_needs_none_of_slurms_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    env = {name: value for name, value in STEP.items() if name != "MASTER_ADDR"}
    assert read_launch(env | {"SLURM_STEP_NUM_NODES": "1"}).master_addr == "127.0.0.1"


def test_only_where_a_launcher_started_the_first_rank_the_others_keep_silent(monkeypatch, capsys):
    """A process that was started by hand with a wrong port must end with a message."""
    for name, value in (WHOLE | {"LOCAL_RANK": "1", "MASTER_PORT": "0"}).items():
        monkeypatch.setenv(name, value)
    for launched in (False, True):
        if launched:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with pytest.raises(InputError) as caught:
            read_launch()
        report(caught.value)
        assert (capsys.readouterr().err == "") == launched
    monkeypatch.setenv("LOCAL_RANK", "x")
    assert is_first_on_node()


def test_variables_of_libraries_are_looked_at_first(monkeypatch):
    for name, value in (
        ("DS_ACCELERATOR", "nonsense"),
        ("DS_ACCELERATOR", ""),
        ("SWEP_KERNELS", "cuda"),
        ("TORCH_DISTRIBUTED_DEBUG", "x"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(InputError, match=f"^environment variable {name}='{value}' must be one of "):
                check_libraries()
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "Info")  # in any case, says PyTorch
    check_libraries()


def test_restarts_are_a_number(monkeypatch):
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    assert launcher.slurm_restarts() == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert launcher.slurm_restarts() == 3
    monkeypatch.setenv("SLURM_RESTART_COUNT", "three")
    with pytest.raises(InputError, match=r"^environment variable SLURM_RESTART_COUNT='three'"):
        launcher.slurm_restarts()


@pytest.mark.parametrize("given", ["abc", "0,0", "0,,1", "0,1,2", "0", ","])
def test_visible_devices_are_those_that_there_are(given, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5")
    assert visible_devices("CUDA_VISIBLE_DEVICES", 2) == ["4", "GPU-5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with pytest.raises(InputError, match=r"^environment variable CUDA_VISIBLE_DEVICES="):
        visible_devices("CUDA_VISIBLE_DEVICES", 2)
