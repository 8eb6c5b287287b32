"""What two ranks send in an update, as docs/performance.md says, and that their training loop waits for no value."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import ds_config, prepare

SCRIPT = ROOT / "tests" / "support" / "loop_costs.py"
# (stage, method, train.coalesce_grad_reduction, how many weights may stay gathered) -> all-reduces or reduce-scatters,
# and gathers, of all parameters
SENT = {
    (0, "swep:split", False, None): (1, 0),
    (1, "swep:split", False, None): (1, 1),
    (2, "swep:split", False, None): (2, 1),
    (2, "swep:joint", False, None): (1, 1),
    (2, "swep:split", True, None): (1, 1),
    (3, "mle", False, None): (1, 1),
    (3, "swep:split", False, None): (2, 2),
    (3, "swep:joint", False, None): (1, 1),
    (3, "swep:split", True, None): (1, 2),
    (3, "mle", False, 1): (1, 2),
}
# the stop vote is in the host's memory; the kernel's plain PyTorch version, which no GPU with Triton runs, looks for
# real tokens
KNOWN = {"stopping.py", "torch_impl.py"}


@pytest.mark.slow
def test_what_two_ranks_send_and_read(tmp_path):
    out = tmp_path / "figures.json"
    run_script(SCRIPT, str(out), json.dumps([*SENT]), str(prepare(tmp_path)), str(ds_config(tmp_path, 2)), ranks=2)
    figures = json.loads(out.read_text())
    for case, (parameters, sent) in zip(SENT, figures["sent"], strict=True):
        reductions, gathers = SENT[case]
        stage = case[0]
        expected = {"reduce_scatter_tensor" if stage == 3 else "all_reduce": reductions}
        if gathers:
            expected["all_gather_into_tensor"] = gathers
        # the rest are norms, and at ZeRO-3 the weights that are too small to be partitioned
        whole = 4 * parameters
        assert {name for name, size in sent.items() if size > 0.01 * whole} == set(expected), case
        for name, times in expected.items():
            # a weight that its neighbour in the backward uses again is not gathered twice; parts are padded
            assert sent[name] == pytest.approx(times * whole, rel=0.05 if stage == 3 else 1e-3), (case, name)
    assert set(figures["loop"]["between"]) <= KNOWN
    assert "instruments.py" in figures["loop"]["logged"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_of_this_package_waits_for_the_gpu_between_logged_updates(tmp_path):
    out = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), str(out), "[]", str(prepare(tmp_path)), str(ds_config(tmp_path, 2))]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cuda"}  # the tests' own is "cpu"
    subprocess.run(command, env=environment, check=True)
    loop = json.loads(out.read_text())["loop"]
    assert loop["device"] == "cuda"
    assert set(loop["between"]) <= KNOWN
    assert loop["waits"] == []
