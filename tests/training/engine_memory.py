"""Started under a launcher: what engines hold and what their updates reach, beside `model_states`, as JSON.

Arguments: the output file; it lists [stage, offload, precision, bytes held, the most, states, peak] for every engine;
the most is null on several ranks and with offload.
"""

import gc
import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertForQuestionAnswering

from swep_ds import distributed as ranks
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.recipe import Recipe
from swep_ds.training.benchmark import contend
from swep_ds.training.ds_config import resolve_ds_config
from swep_ds.training.engine import build_engine
from swep_ds.training.memory import model_states
from tests.tiny_batches import batch

SIZES = {"vocab_size": 4000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
# smaller than the word embeddings, so that both ways of reduction are taken
BUCKET = 100_000
OFFLOAD = {"device": "cpu", "pin_memory": True}


def held() -> int:
    """Bytes of all tensors that Python knows, every storage once."""
    gc.collect()
    storages = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor):
            for tensor in (one, one.grad if one.is_leaf else None):
                if tensor is not None and tensor.device.type != "meta":
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def measure(stage: int, offload: bool, precision: str) -> list:
    recipe = Recipe.load("quickstart", ["train.micro_batch_size=1", f"train.precision={precision}"])
    zero = {"stage": stage, "reduce_bucket_size": BUCKET, "stage3_param_persistence_threshold": 200}
    zero |= {"offload_optimizer": OFFLOAD} if offload else {}
    zero |= {"offload_param": OFFLOAD} if offload and stage == 3 else {}
    before = held()
    engines = []

    def make():
        model = BertForQuestionAnswering(BertConfig(**SIZES, intermediate_size=512, max_position_embeddings=64))
        qa = ExtractiveQA(model)
        objective = Objective(qa, build(recipe.method, qa.hidden_size, qa.embedding_size), recipe.seed)
        shapes = [tuple(parameter.shape) for parameter in objective.parameters()]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"zero_optimization": zero}, file)
            file.flush()
            setup = {"world_size": ranks.world_size(), "micro_steps": 2, "hidden_size": 128, "on_cpu": True}
            config = resolve_ds_config(file.name, recipe, **setup)
        how = {"precision": precision, "optimizer": "adamw", "world_size": ranks.world_size(), "on_gpu": False}
        engines.extend([build_engine(objective, config, recipe.train, 100), model_states(shapes, config, **how)])
        return engines[0]

    windows, peak = batch((4,), dtype=torch.float32), None
    if ranks.world_size() == 1 and not offload:  # gloo holds buckets for a time of its own
        peak = contend("swep", make, "split", windows).peak_bytes
    else:
        make()
    engine, states = engines
    for number in range(2):  # Adam's moments are there from the first on
        carried = None
        for part in range(2):
            loss, carried, _ = engine(windows, number, 0.0, part, carried)
            engine.backward(loss * 2)
            del loss
            if number == part == 1:
                # gloo's thread lets go of the last bucket in a while; where parts begin makes ranks differ
                now = max(min(sizes) for sizes in zip(*(ranks.gather(held() - before) for _ in range(5)), strict=True))
            engine.step()
    engine.destroy()
    return [stage, offload, precision, now, peak, states.total(), states.peak(0)]


if __name__ == "__main__":
    gc.freeze()  # what the imports left behind holds no tensor of these
    with ranks.process_group():
        ways = [(0, False), (1, False), (2, False), (3, False), (2, True), (3, True)]
        measured = [measure(*way, precision) for precision in ("fp32", "bf16") for way in ways]
        if ranks.is_main():
            Path(sys.argv[-1]).write_text(json.dumps(measured))
