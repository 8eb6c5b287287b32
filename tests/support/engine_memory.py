"""Started under a launcher: measures what engines hold, and compares it with `ModelStates`, as JSON.

Arguments: the output file. Its "engines" lists [model, stage, offload, precision, bytes held, peak measured, states,
peak estimated]; there is no measured peak on several ranks and with offload. "casts" lists [stage, bf16 bytes held when
a forward under autocast with activation checkpointing ends, the count of them].
"""

import gc
import json
import os
import sys
import tempfile
import time
import weakref
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForQuestionAnswering, T5Config, T5ForConditionalGeneration

from benchmarks.training.candidates import held_bytes, measure_memory
from benchmarks.training.updates import EngineUpdate
from swep_ds import ranks
from swep_ds.cost.activations import count_activations
from swep_ds.cost.memory import ModelStates
from swep_ds.methods import build
from swep_ds.methods.base import MicroStep, PassState
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.ds_config import complete_ds_config
from swep_ds.training.engine import build_engine
from tests.support.ds_configs import write
from tests.support.tiny_batches import batch, generative

BERT = {"vocab_size": 4000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 512, "max_position_embeddings": 64}
T5 = {"vocab_size": 4000, "d_model": 128, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 2}
BUCKET = 100_000  # smaller than the word embeddings, whose gradient is reduced outside of it
OFFLOAD = {"device": "cpu", "pin_memory": True}


def make_objective(model: str, recipe: Recipe) -> Objective:
    if model == "t5":
        qa = GenerativeQA(T5ForConditionalGeneration(T5Config(**T5, decoder_start_token_id=0)))
    else:
        qa = ExtractiveQA(BertForQuestionAnswering(BertConfig(**BERT)))
    method = build(recipe.method, qa.hidden_size, qa.embedding_size)
    return Objective(qa, method, recipe.seed, recipe.train.label_smoothing)


def make_config(recipe: Recipe, stage: int, offload: bool = False, backwards: int = 2) -> dict:
    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "stage3_param_persistence_threshold": 200}
    if offload:
        zero["offload_optimizer"] = OFFLOAD
    if offload and stage == 3:
        zero["offload_param"] = OFFLOAD
    setup = {"world_size": ranks.world_size(), "backwards": backwards, "hidden_size": 128, "on_cpu": True}
    with tempfile.TemporaryDirectory() as folder:
        return complete_ds_config(str(write(Path(folder), {"zero_optimization": zero})), recipe.train, **setup)


def measure(model: str, stage: int, offload: bool, precision: str, frozen: bool = False) -> list:
    recipe = Recipe.load("quickstart", ["train.micro_batch_size=1", f"train.precision={precision}"])
    config = make_config(recipe, stage, offload)
    before = held_bytes()
    made = []

    def make():
        objective = make_objective(model, recipe)
        if frozen:
            objective.qa.words.requires_grad_(False)
        states = ModelStates(objective, config, recipe.train, ranks.world_size(), on_cpu=False).planned()
        made.extend([build_engine(objective, config, recipe.train, 100), states])
        return made[0]

    windows = generative((4,), (3,), dtype=torch.float32) if model == "t5" else batch((4,), dtype=torch.float32)
    peak = None
    if ranks.world_size() == 1 and not offload:  # gloo holds buckets for some time
        _, peak = measure_memory(lambda: EngineUpdate(make()), windows)
    else:
        make()
    engine, states = made
    total = states.parameters + states.optimizer + states.buffers + states.gradients + states.host
    for number in range(2):  # Adam's moments are there from the first on
        carried = PassState()
        for part in range(2):
            loss, carried, _ = engine(windows, MicroStep(number, 0.0, part, carried))
            engine.backward(loss)
            del loss
            if number == part == 1:
                now = least_held(before, total)
            engine.step()
    engine.destroy()
    in_training = states.phases(0)["training"]
    return [f"{model}{', frozen' * frozen}", stage, offload, precision, now, peak, total, in_training]


def least_held(before: int, expected: int) -> int:
    """Bytes on the rank that holds most, when gloo's threads have released their last buckets."""
    seen = [ranks.gather(held_bytes() - before)]
    while (least := max(map(min, zip(*seen, strict=True)))) > 1.05 * expected and len(seen) < 300:
        time.sleep(0.1)  # on a busy machine the threads may not have run yet
        seen.append(ranks.gather(held_bytes() - before))
    return least


class HalfTensors(TorchDispatchMode):
    """Bytes of the live bf16 storages that were allocated under this mode."""

    def __init__(self):
        super().__init__()
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16:
            storage = result.untyped_storage()
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        return result


def measure_casts(stage: int) -> list[int]:
    sets = ["train.precision=autocast", "train.micro_batch_size=1", "method.name=mle"]
    recipe = Recipe.load("quickstart", sets)
    windows = batch((4,), dtype=torch.float32)
    with torch.device("meta"):
        counted = count_activations(make_objective("bert", recipe), windows, recipe.train, on_gpu=False).casts
    objective = make_objective("bert", recipe)
    objective.qa.model.gradient_checkpointing_enable({"use_reentrant": False})
    engine = build_engine(objective, make_config(recipe, stage, backwards=1), recipe.train, 100)
    engine.train()
    held = []
    hook = objective.register_forward_hook(lambda *_: held.append(sum(mode.sizes.values())))  # autocast is still on
    with HalfTensors() as mode:
        loss, *_ = engine(windows, MicroStep(0, part=0))
    hook.remove()
    engine.backward(loss)
    engine.step()
    engine.destroy()
    return [stage, held[0], counted]


if __name__ == "__main__":
    gc.freeze()  # objects of the imports hold no tensor that is measured
    with ranks.process_group():
        cases = [("bert", stage, False, "bf16") for stage in (1, 2, 3)] + [("t5", 3, False, "autocast", True)]
        if ranks.world_size() > 1:
            cases += [("bert", 2, True, "bf16"), ("bert", 3, True, "bf16")]  # one rank's are the same, and no peak
        else:  # several ranks' are the same
            cases += [("bert", 0, False, "fp32"), ("bert", 0, False, "autocast"), ("bert", 2, False, "fp32")]
            cases += [("t5", 2, False, "autocast"), ("bert", 1, False, "fp32", True)]
        casts = [measure_casts(2)]  # first: ZeRO-3 replaces torch.nn.functional.linear for good
        measured = {"engines": [measure(*case) for case in cases], "casts": [*casts, measure_casts(3)]}
        if ranks.is_main():
            Path(sys.argv[-1]).write_text(json.dumps(measured))
    os._exit(0)  # sometimes a thread of so many engines outlives the interpreter, and aborts it
