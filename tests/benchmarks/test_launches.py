"""How many operations an update gives the device, with a budget that no change may exceed unnoticed; what two ranks
send in an update, as docs/performance.md says; and that the training loop waits for no value."""

import json
import os
import subprocess
import sys

import pytest
import torch

from benchmarks.training.launches import PLAIN, count_launches, count_plain_launches, watch_launches
from swep_ds.kernels import perturb
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from tests.support import tiny_models
from tests.support.engine_memory import make_config
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_batches import batch
from tests.support.tiny_run import ds_config, prepare

# in bf16, for a 12-layer BERT with 199 tensors and a dropout of 0.1, by method and ZeRO stage
BUDGET = {("mle", 1): 1050, ("mle", 2): 1300, ("swep", 1): 2250, ("swep", 2): 2800}
LOOP_COSTS = ROOT / "tests" / "support" / "loop_costs.py"
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


def bert(method: str) -> tuple[Objective, Recipe]:
    recipe = Recipe.load("quickstart", ["train.micro_batch_size=3", f"method.name={method}", "train.precision=bf16"])
    qa = ExtractiveQA(tiny_models.model("bert", dropout=0.1, num_hidden_layers=12))
    return Objective(qa, build(recipe.method, qa.hidden_size, qa.embedding_size), recipe.seed), recipe


def test_an_update_launches_no_more_operations_than_its_budget():
    windows = batch(dtype=torch.float32)
    with process_group():
        objective, recipe = bert("mle")
        plain = count_plain_launches(objective, windows, recipe.train)
        for case, budget in BUDGET.items():
            method, stage = case
            objective, recipe = bert(method)
            assert len(list(objective.qa.parameters())) == 199
            config = make_config(recipe, stage, backwards=len(objective.parts("split")))
            engine = build_engine(objective, config, recipe.train, 100)
            counts = count_launches(engine, windows)
            engine.destroy()
            assert counts["all"] <= budget, (case, counts)
            assert counts["all"] == sum(counts[phase] for phase in ("forward", "backward", "step", "statistics"))
            assert counts["step"] < 70  # and none for each of the 199 gradients
            assert counts["reads"] == 0, (case, counts)
            if case == ("mle", 1):  # the engine adds nothing before the step
                assert counts["forward"] == plain["forward"]
                assert counts["backward"] - plain["backward"] < 10


def test_views_and_allocations_do_not_count_and_the_perturbation_counts_once():
    with watch_launches() as launches:
        with launches.phase("forward"):
            x = torch.empty(2, 4, 8).normal_()  # 1
            y = x.view(8, 8).t()[1:].detach() * 2  # 1
        with launches.phase("data"):
            y + 1
        with launches.phase("backward"):
            y.sum().item()  # 2, the second one a read
        with launches.phase("step"):
            ids, mask = torch.arange(2), torch.ones(2, 4)  # 2
            perturb(x, None, mask.long(), ids, seed=1, draw=1, prior_variance=0.1, mode="prior")  # 2, with the cast
    assert launches.totals() == {"forward": 2, "backward": 2, "step": 4, "statistics": 0, "all": 8, "reads": 1}
    assert launches.operations["step"]["swep_ds::perturb"] == 1


@pytest.mark.slow
def test_the_command_counts_at_every_stage_beside_a_loop_of_pytorch_alone(tmp_path):
    out = tmp_path / "operations.json"
    options = ["--recipe", str(prepare(tmp_path)), "--methods", "mle"]
    ended = run_script("benchmarks.training", "--operations", *options, "--json", str(out))
    rows = json.loads(out.read_text())["operations"]
    assert [(row["name"], row["stage"]) for row in rows] == [("mle", stage) for stage in (PLAIN, 0, 1, 2, 3)]
    alone, *staged = rows
    assert all(row["all"] > alone["all"] for row in staged)
    assert f"{alone['all']:,}" in ended.stdout


@pytest.mark.slow
def test_what_two_ranks_send_and_read(tmp_path):
    out = tmp_path / "figures.json"
    run_script(LOOP_COSTS, str(out), json.dumps([*SENT]), str(prepare(tmp_path)), str(ds_config(tmp_path, 2)), ranks=2)
    figures = json.loads(out.read_text())
    for (case, (reductions, gathers)), (parameters, sent) in zip(SENT.items(), figures["sent"], strict=True):
        stage = case[0]
        expected = {"reduce_scatter_tensor" if stage in (1, 3) else "all_reduce": reductions}
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
    command = [sys.executable, str(LOOP_COSTS), str(out), "[]", str(prepare(tmp_path)), str(ds_config(tmp_path, 2))]
    subprocess.run(command, env=os.environ | {"DS_ACCELERATOR": "cuda"}, check=True)  # the tests' own is "cpu"
    loop = json.loads(out.read_text())["loop"]
    assert loop["device"] == "cuda"
    assert set(loop["between"]) <= KNOWN
    assert loop["waits"] == []
