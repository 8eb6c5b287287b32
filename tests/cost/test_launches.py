"""How many operations an update gives the device: what counts, and a budget that no change may exceed unnoticed."""

import json

import pytest
import torch

from swep_ds.cost.launches import PLAIN, count_launches, count_plain_launches, watch_launches
from swep_ds.kernels import perturb
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from swep_ds.training.engine import build_engine
from tests.support import tiny_models, tiny_run
from tests.support.engine_memory import make_config
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_batches import batch

# in bf16, for a 12-layer BERT with 199 tensors and a dropout of 0.1, by method and ZeRO stage
BUDGET = {("mle", 1): 1300, ("mle", 2): 1300, ("swep", 1): 2600, ("swep", 2): 2800}


def bert(method: str) -> tuple[Objective, Recipe]:
    recipe = Recipe.load("quickstart", ["train.micro_batch_size=3", f"method.name={method}", "train.precision=bf16"])
    qa = ExtractiveQA(tiny_models.model("bert", dropout=0.1, num_hidden_layers=12))
    return Objective(qa, build(recipe.method, qa.hidden_size, qa.embedding_size), recipe.seed), recipe


def test_an_update_launches_no_more_operations_than_its_budget():
    windows = batch(dtype=torch.float32)
    with process_group():
        objective, recipe = bert("mle")
        plain = count_plain_launches(objective, windows, recipe.train)
        counted = {}
        for method, stage in BUDGET:
            objective, recipe = bert(method)
            assert len(list(objective.qa.parameters())) == 199
            config = make_config(recipe, stage, micro_steps=len(objective.parts("split")))
            engine = build_engine(objective, config, recipe.train, 100)
            counted[method, stage] = count_launches(engine, windows, "split")
            engine.destroy()
    for case, budget in BUDGET.items():
        counts = counted[case]
        assert counts["all"] <= budget, (case, counts)
        assert counts["all"] == sum(counts[phase] for phase in ("forward", "backward", "step", "statistics"))
        assert counts["step"] < 70  # and none for each of the 199 gradients
        assert counts["reads"] == 0, (case, counts)
    # the engine adds a copy of each gradient to its bucket, and little else
    assert counted["mle", 1]["forward"] == plain["forward"]
    assert counted["mle", 1]["backward"] - plain["backward"] < 199 + 20


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
    expected = {"forward": 2, "backward": 2, "step": 4, "statistics": 0, "all": 8, "reads": 1}
    assert launches.totals() == expected
    assert launches.operations["step"]["swep_ds::perturb"] == 1


@pytest.mark.slow
def test_the_command_counts_at_every_stage_beside_a_loop_of_pytorch_alone(tmp_path):
    recipe, out = tiny_run.prepare(tmp_path), tmp_path / "operations.json"
    script = ROOT / "scripts" / "bench_training.py"
    options = ["--recipe", str(recipe), "--ds_config", str(tiny_run.ds_config(tmp_path, 1)), "--methods", "mle"]
    ended = run_script(script, "--operations", *options, "--json", str(out))
    rows = json.loads(out.read_text())["operations"]
    assert [(row["name"], row["stage"]) for row in rows] == [("mle", stage) for stage in (PLAIN, 0, 1, 2, 3)]
    alone, *staged = rows
    assert all(row["all"] > alone["all"] for row in staged)
    assert f"{alone['all']:,}" in ended.stdout
