"""The model of communication: its volumes are what two ranks really send; its times by hand."""

import json
import os
import subprocess
import sys

import pytest
import torch

from swep_ds.cost.breakdown import PARTS
from swep_ds.cost.scaling import COUNTS, SCHEDULES, Cluster, predict, tables, volumes
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import ds_config, prepare

SCRIPT = ROOT / "tests" / "support" / "loop_costs.py"
BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}
# the stop vote is in the host's memory; the kernel's plain PyTorch version, which no GPU with Triton runs, looks for
# real tokens
KNOWN = {"vote.py", "torch_impl.py"}


def between_logged_updates(loop: dict) -> set[str]:
    """Files that read a tensor's value then."""
    return {file for update, file, *_ in loop["reads"] if 0 < update < 5} - KNOWN


@pytest.mark.slow
def test_what_two_ranks_send_and_where_their_loop_spends_its_time(tmp_path):
    out = tmp_path / "figures.json"
    run_script(SCRIPT, str(out), str(prepare(tmp_path)), str(ds_config(tmp_path, 2)), ranks=2)
    figures = json.loads(out.read_text())
    assert len(figures["traffic"]) == 10
    for stage, schedule, live, parameters, sent, calls in figures["traffic"]:
        case = f"ZeRO-{stage}, {schedule}, {live}"
        expected = volumes(stage, BY_NAME[schedule], parameters, 4, live or 10**9)
        # the rest are norms, and at ZeRO-3 the weights that are too small to be partitioned
        assert {name for name, size in sent.items() if size > 0.01 * 4 * parameters} == set(expected), case
        for name, size in expected.items():
            # a weight that its neighbour in the backward uses again is not gathered twice; parts are padded
            assert sent[name] == pytest.approx(size, rel=0.05 if stage == 3 else 1e-3), (case, name)
        assert set(calls) == set(sent)

    loop = figures["loop"]
    assert set(loop["shares"]) == set(PARTS)
    assert sum(loop["shares"].values()) == pytest.approx(1)
    # SWEP in split execution at ZeRO-2: gradients twice, weights once, and a norm
    d, names = 16, ("all_reduce", "all_gather_into_tensor")
    weights = loop["collective_bytes"]["all_gather_into_tensor"]
    assert weights / 4 > 3 * d**2
    assert loop["collective_bytes"]["all_reduce"] == pytest.approx(2 * weights, rel=0.01)
    assert set(loop["collective_bytes"]) == set(names)
    assert between_logged_updates(loop) == set()
    assert any(file == "metrics.py" for update, file, *_ in loop["reads"] if update in (0, 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_of_this_package_waits_for_the_gpu_between_logged_updates(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), str(out), str(prepare(tmp_path)), str(ds_config(tmp_path, 2))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cuda"}  # the tests' own is "cpu"
    subprocess.run(command, env=environment, check=True)
    loop = json.loads(out.read_text())["loop"]
    assert loop["device"] == "cuda"
    assert between_logged_updates(loop) == set()
    # those of the logged updates, and where the benchmark itself looks at its clock
    assert {file.rsplit("/", 1)[1] for file in loop["waits"]} <= {"loop.py", "metrics.py", "breakdown.py"}


def test_times_are_those_of_rings():
    cluster = Cluster(1.0, 8, 100.0, 10.0, 0.5, 2.0)
    assert cluster.seconds(1000.0, 2, 3, 1) == 0
    # 3 of 4 parts at 100 bytes a second, 3 steps of half a second in each of 3 calls; twice
    assert cluster.seconds(1000.0, 2, 3, 4) == pytest.approx(2 * (7.5 + 3 * 3 * 0.5))
    # 8 adapters of a node carry 80 bytes a second; a ring over 2 nodes leaves a node twice
    steps = 15 / 16 * (2 * 2.0 + 14 * 0.5)
    assert cluster.seconds(1000.0, 1, 1, 16) == pytest.approx(15 / 16 * 1000 / 80 + steps)


def test_split_execution_pays_twice_at_stage_2_and_nothing_at_stages_0_and_1():
    split, joint = BY_NAME["swep:split"], BY_NAME["swep:joint"]

    def sent(stage, schedule, live=10**9):
        times = {"all_reduce": 2}
        return sum(times.get(name, 1) * size for name, size in volumes(stage, schedule, 100, 2, live).items())

    assert [sent(stage, split) for stage in range(4)] == [400, 600, 1000, 800]
    assert [sent(stage, BY_NAME["swep:split, coalesced"]) for stage in range(4)] == [400, 600, 600, 600]
    assert [sent(stage, joint) for stage in range(4)] == [400, 600, 600, 400]
    assert sent(3, joint, live=99) == 1000  # both passes gather for their forwards and backwards


def test_the_model_covers_all_and_says_what_it_assumes():
    job = {"precision": "bf16", "parameters": 110_000_000, "modules": 100, "width": 2, "reduce_bucket": 10_000_000}
    job |= {"flops": {"mle": 8e12, "swep:split": 16e12, "swep:joint": 16e12}}
    job |= {"operations": [[stage, name, 1000] for stage in range(4) for name in job["flops"]]}
    rows = predict(job)
    assert len(rows) == 4 * 4 * len(COUNTS)
    for row in rows:
        assert (row["bytes_sent"] == 0) == (row["ranks"] == 1)
        assert 0 < row["efficiency"] <= 1
        assert row["compute_seconds"] == pytest.approx(job["flops"][row["schedule"].split(",")[0]] / (989e12 * 0.4))
        assert row["host_seconds"] == pytest.approx(1000 * 5e-6)  # less than the device computes
        if row["ranks"] == 1:
            assert row["efficiency"] == 1
    [sent] = [r["bytes_sent"] for r in rows if (r["stage"], r["schedule"], r["ranks"]) == (0, "mle", 1024)]
    assert sent == pytest.approx(2 * 220e6 * 1023 / 1024)
    text, _ = tables(job, rows)
    assert all(name in text for name in Cluster.__dataclass_fields__)
    assert "mle at ZeRO-0 1,000" in text
    slow = predict(job | {"operations": [[*row[:2], 10**5] for row in job["operations"]]})[0]
    assert (slow["ranks"], slow["update_seconds"]) == (1, pytest.approx(0.5))  # the host's 10^5 times 5 us
    assert slow["efficiency"] == pytest.approx(slow["compute_seconds"] / 0.5)
    in_fp32 = predict(job | {"precision": "fp32"})[0]["compute_seconds"]
    assert in_fp32 == pytest.approx(job["flops"]["mle"] / (67e12 * 0.4))
