"""Two ranks that compare DeepSpeed's gradients with those of a plain loop, for every case of a JSON file.

Started with that file; forks the ranks, which build one engine after the other in one process group. A case is {"name",
"method", "execution", "ds_config"}, and if wanted "loses": true: rank 1 then loses the gradient of its last backward.

`results.json` beside the file has for each case a list of updates: {"norm", "gradients": {parameter: {"distance",
"norm", "parts"}}}. The first "norm" is the engine's, of the whole gradient. Of each parameter there is the norm of the
difference between the engine's gradient and the plain loop's, the norm of the latter, and the norms of the parts that
it is the sum of: one for each rank and backward.

The engine's gradient is what its optimizer was given: Adam with beta1 = 0 keeps exactly that as its first moment. The
plain loop has PyTorch alone: the same weights in bf16, a backward for every pass, micro-batch and rank, and sums in
float32.
"""

import gc
import json
import os
import sys
from copy import deepcopy
from pathlib import Path
from unittest import mock

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 (what engines import when they are made)
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import Tensor

from swep_ds import ranks
from swep_ds.data.batches import Batch
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.recipe import Recipe
from swep_ds.training.ds_config import resolve_ds_config
from swep_ds.training.engine import build_engine
from swep_ds.training.loop import seed_dropout
from tests.support import tiny_batches, tiny_models

RANKS, UPDATES, ACCUMULATION, SEED = 2, 2, 2, 0
LINEAR = torch.nn.functional.linear  # ZeRO-3 puts another in its place, which the plain loop must not use
SETTINGS = {
    "swep": {"beta": 1e-3, "initialisation": "default"},
    "r_drop": {"divergence_weight": 5.0},  # so that it is no small part of the gradient
}


def recipe(case: dict) -> Recipe:
    train = {
        "precision": "bf16",
        "execution": case["execution"],
        "micro_batch_size": 3,
        "gradient_accumulation_steps": ACCUMULATION,
        "adam_betas": [0.0, 0.999],
        "learning_rate": 1e-2,  # weights that an update did not reach would show in the next gradient
        "max_grad_norm": 0.0,
    }
    sections = {"train": train, "method": {"name": case["method"], **SETTINGS[case["method"]]}}
    return Recipe.model_validate(sections | {"model": {"name": "tiny"}, "data": {"train": "none", "eval": {}}})


def batch(update: int, micro_step: int) -> Batch:
    """This rank's, other windows on every rank and in every micro-step."""
    number = (update * ACCUMULATION + micro_step) * RANKS + ranks.rank()
    made = tiny_batches.batch((12, 7, 9), seed=number, dtype=torch.float32)
    return made._replace(sample_id=made.sample_id + 10 * number)


def plain_gradients(objective: Objective, update: int) -> dict[str, Tensor]:
    """By parameter, [ranks * backwards, ...] float32: what every backward of an update adds to the mean gradient."""
    parameters = dict(objective.named_parameters())
    backwards = []
    seed_dropout(SEED, update)
    for micro_step in range(ACCUMULATION):
        carried = None
        for part in range(objective.micro_steps("split")):
            objective.zero_grad(set_to_none=False)
            loss, carried, _ = objective(batch(update, micro_step), update, 0.0, part, carried)
            loss.backward()
            backwards.append(torch.cat([p.grad.float().flatten() for p in parameters.values()]))
    mine = torch.stack(backwards) / (RANKS * ACCUMULATION)
    everyone = mine.new_empty(RANKS * len(mine), mine.shape[1])
    dist.all_gather_into_tensor(everyone, mine)
    pieces = everyone.split([p.numel() for p in parameters.values()], dim=1)
    return {name: piece.view(-1, *p.shape) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}


def compare(case: dict) -> list[dict]:
    """A dictionary for each update."""
    chosen = recipe(case)
    torch.manual_seed(1)
    qa = ExtractiveQA(tiny_models.model("bert", dropout=0.1, num_hidden_layers=1))
    objective = Objective(qa, build(chosen.method, qa.hidden_size, qa.embedding_size), SEED).train()
    plain = deepcopy(objective).bfloat16()
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    micro_steps = objective.micro_steps(case["execution"])
    config = resolve_ds_config(
        case["ds_config"], chosen, world_size=RANKS, micro_steps=micro_steps, hidden_size=16, on_cpu=True
    )
    engine = build_engine(objective, config, chosen.train, updates=1000)
    engine.train()
    parts: list[int | None] = [None] if case["execution"] == "joint" else [*range(micro_steps)]
    seen = []
    for update in range(UPDATES):
        with torch.no_grad():
            for mine, theirs in zip(plain.parameters(), objective.parameters(), strict=True):
                mine.copy_(safe_get_full_fp32_param(theirs))  # the engine computes with bf16 copies of these
        seed_dropout(SEED, update)
        for micro_step in range(ACCUMULATION):
            carried = None
            for part in parts:
                loss, carried, _ = engine(batch(update, micro_step), update, 0.0, part, carried)
                last = (update, micro_step, part) == (UPDATES - 1, ACCUMULATION - 1, parts[-1])
                kept = 0.0 if case.get("loses") and ranks.rank() == 1 and last else 1.0
                engine.backward(kept * micro_steps * loss)
                engine.step()
        with mock.patch.object(torch.nn.functional, "linear", LINEAR):
            expected = plain_gradients(plain, update)
        line = {"norm": float(engine.get_global_grad_norm()), "gradients": {}}
        for name, parameter in objective.named_parameters():
            whole = expected[name].sum(0)
            given = safe_get_full_optimizer_state(parameter, "exp_avg")
            line["gradients"][name] = {
                "distance": (given - whole).norm().item(),
                "norm": whole.norm().item(),
                "parts": expected[name].flatten(1).norm(dim=1).tolist(),
            }
        seen.append(line)
    engine.destroy()
    return seen


def work(rank: int, folder: Path, cases: list[dict], port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    gc.freeze()  # what the imports left behind need not be looked through after every case
    results = {}
    with ranks.process_group():
        for case in cases:
            results[case["name"]] = compare(case)
            gc.collect()
    if rank == 0:
        (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    plan, port, children = Path(sys.argv[1]), ranks.free_port(), []
    for rank in range(RANKS):
        if (child := os.fork()) == 0:
            work(rank, plan.parent, json.loads(plan.read_text()), port)
            os._exit(0)  # what an interpreter's end would clean up belongs to the parent
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(map(abs, codes)))
