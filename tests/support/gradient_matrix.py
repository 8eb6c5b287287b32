"""Started on two ranks: compares DeepSpeed's gradients with those of a plain loop, for every case in a JSON file.

A case is {"name", "method", "execution", "ds_config"}, and if wanted "coalesce": true, "graphs": true (CUDA graphs, by
their stand-in), and "factor": by which rank 1 multiplies the loss of its last backward.

`results.json` beside the file lists for each case its updates: {"norm", "gradients": {parameter: {"distance", "norm",
"parts"}}}. The first "norm" is the engine's, of the whole gradient. "distance" is the norm of the difference between
the engine's gradient and the plain loop's, "norm" that of the latter, and "parts" are those of its terms, one for each
rank and backward.

The engine's gradient is what its optimizer receives: Adam with beta1 = 0 keeps exactly that as its first moment. The
plain loop uses PyTorch alone: the same weights in bf16, a backward for every pass, micro-batch and rank, and float32
sums.
"""

import gc
import itertools
import json
import sys
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import Tensor

from swep_ds import ranks
from swep_ds.data.batches import Batch
from swep_ds.methods import build
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.ds_config import complete_ds_config
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import run_update, seed_dropout
from tests.support import tiny_batches, tiny_models
from tests.support.graph_stand_in import stand_in_graphs
from tests.support.tiny_objective import split

UPDATES, ACCUMULATION, SEED = 2, 2, 0
LINEAR = torch.nn.functional.linear  # ZeRO-3 replaces it; the plain loop must not use the replacement
SETTINGS = {"swep": {"beta": 1e-3, "initialisation": "default"}, "r_drop": {"divergence_weight": 5.0}}


# with this learning rate the next gradient shows weights that an update did not reach
TRAIN = {"precision": "bf16", "adam_betas": [0.0, 0.999], "learning_rate": 1e-2, "max_grad_norm": 0.0}
TRAIN |= {"micro_batch_size": 3, "gradient_accumulation_steps": ACCUMULATION}


def recipe(case: dict) -> Recipe:
    train = TRAIN | {"execution": case["execution"], "coalesce_grad_reduction": case.get("coalesce", False)}
    sections = {"train": train, "method": {"name": case["method"], **SETTINGS[case["method"]]}}
    return Recipe.model_validate(sections | {"model": {"name": "tiny"}, "data": {"train": "none", "eval": {}}})


def batch(update: int, micro_step: int) -> Batch:
    number = (update * ACCUMULATION + micro_step) * ranks.world_size() + ranks.rank()
    windows = tiny_batches.batch((12, 7, 9), seed=number, dtype=torch.float32)
    return windows._replace(sample_id=windows.sample_id + 10 * number)


def plain_gradients(objective: Objective, update: int) -> dict[str, Tensor]:
    """What every backward adds to the mean gradient, by parameter: [ranks * backwards, ...] in float32."""
    parameters = dict(objective.named_parameters())
    backwards = []
    seed_dropout(SEED, update)
    for micro_step in range(ACCUMULATION):
        for loss, _, _ in split(objective, batch(update, micro_step), update):
            objective.zero_grad(set_to_none=False)
            loss.backward()
            backwards.append(torch.cat([p.grad.float().flatten() for p in parameters.values()]))
    mine = torch.stack(backwards) / (ranks.world_size() * ACCUMULATION)
    everyone = mine.new_empty(ranks.world_size() * len(mine), mine.shape[1])
    dist.all_gather_into_tensor(everyone, mine)
    pieces = everyone.split([p.numel() for p in parameters.values()], dim=1)
    return {name: piece.view(-1, *p.shape) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}


def compare(case: dict) -> list[dict]:
    """One dict per update."""
    chosen = recipe(case)
    torch.manual_seed(1)
    qa = ExtractiveQA(tiny_models.model("bert", dropout=0.1, num_hidden_layers=1))
    objective = Objective(qa, build(chosen.method, qa.hidden_size, qa.embedding_size), SEED).train()
    plain = deepcopy(objective).bfloat16()
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    parts = objective.parts(case["execution"])
    given = {"world_size": ranks.world_size(), "backwards": len(parts), "hidden_size": 16, "on_cpu": True}
    config = complete_ds_config(case["ds_config"], chosen.train, **given)
    with stand_in_graphs(1) if case.get("graphs") else nullcontext():
        engine = build_engine(objective, config, chosen.train, updates=1000)
    engine.train()
    factors = itertools.repeat(1.0)
    backward = engine.backward
    engine.backward = lambda loss: backward(next(factors) * loss)
    lines = []
    for update in range(UPDATES):
        with torch.no_grad():
            for mine, theirs in zip(plain.parameters(), objective.parameters(), strict=True):
                mine.copy_(safe_get_full_fp32_param(theirs))  # the engine computes with bf16 copies of these
        seed_dropout(SEED, update)
        micro_batches = iter([batch(update, micro_step) for micro_step in range(ACCUMULATION)])
        if update == UPDATES - 1 and ranks.rank() == 1:
            factors = iter([*[1.0] * (ACCUMULATION * len(parts) - 1), float(case.get("factor", 1.0))])
        run_update(engine, micro_batches, ACCUMULATION, MicroStep(update))
        with mock.patch.object(torch.nn.functional, "linear", LINEAR):
            expected = plain_gradients(plain, update)
        line = {"norm": float(engine.grad_norm), "gradients": {}}
        if hasattr(engine.deepspeed.optimizer, "_hp_optimizer_states_linked"):
            # ZeRO 1 and 2 link Adam's state right after the first group's step, when the second group has none yet
            engine.deepspeed.optimizer._hp_optimizer_states_linked = False
            engine.deepspeed.optimizer._lazy_init_hp_params_optimizer_state()
        for name, parameter in objective.named_parameters():
            whole = expected[name].sum(0)
            given = safe_get_full_optimizer_state(parameter, "exp_avg")
            line["gradients"][name] = {
                "distance": (given - whole).norm().item(),
                "norm": whole.norm().item(),
                "parts": expected[name].flatten(1).norm(dim=1).tolist(),
            }
        lines.append(line)
    assert not case.get("graphs") or engine.graphs._graphs
    engine.destroy()
    return lines


if __name__ == "__main__":
    plan, results = Path(sys.argv[-1]), {}
    gc.freeze()  # what the imports left behind need not be looked through after every case
    with ranks.process_group():
        for case in json.loads(plan.read_text()):
            results[case["name"]] = compare(case)
            gc.collect()
        if ranks.is_main():
            (plan.parent / "results.json").write_text(json.dumps(results))
