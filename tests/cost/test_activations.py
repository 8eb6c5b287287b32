"""Counted activations: as many bytes as real tensors save in a real forward."""

import pytest
import torch

from swep_ds.cost.activations import Activations, count_activations
from swep_ds.methods import METHODS, build
from swep_ds.methods.base import MicroStep
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.training.settings import TrainSection
from tests.support import tiny_batches, tiny_models

LENGTHS = (40, 33, 21)
N, T = len(LENGTHS), max(LENGTHS)


def objective(architecture: str, method: str = "mle", device: str = "cpu", **changes) -> Objective:
    with torch.device(device):
        model = tiny_models.model(architecture, dropout=0.1, **changes)
    qa = (GenerativeQA if model.config.is_encoder_decoder else ExtractiveQA)(model)
    with torch.device(device):
        return Objective(qa, build(METHODS[method](name=method), qa.hidden_size, qa.embedding_size), 0).train()


def windows(architecture: str):
    make = tiny_batches.generative if architecture in tiny_models.SEQ2SEQ else tiny_batches.batch
    return make(LENGTHS, dtype=torch.float32)


def count(architecture: str, method: str = "mle", model=None, on_gpu=False, answer=None, **settings) -> Activations:
    module = objective(architecture, method, "meta", **(model or {}))
    return count_activations(module, windows(architecture), TrainSection(**settings), on_gpu=on_gpu, answer=answer)


def really_saved(module: Objective, batch) -> int:
    weights = {parameter.data_ptr() for parameter in module.parameters()}
    saved = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(batch, MicroStep(0))
    return sum(saved.values())


@pytest.mark.parametrize("architecture", [*tiny_models.ARCHITECTURES, *tiny_models.SEQ2SEQ])
def test_one_pass_is_what_real_tensors_take(architecture):
    real = really_saved(objective(architecture), windows(architecture))
    assert count(architecture).plain == pytest.approx(real, rel=0.01)


def test_split_holds_one_pass_and_joint_both():
    joint = count("bert", "swep", execution="joint").plain
    assert joint == pytest.approx(really_saved(objective("bert", "swep"), windows("bert")), rel=0.01)
    assert 0.45 * joint < count("bert", "swep", execution="split").plain < 0.6 * joint


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("mle", "swep", "ssmba")])
def test_every_method_can_be_counted(method):
    passes = 2 if method in ("r_drop", "r3f", "pdr", "lnsr") else 1  # compared passes share a micro-step
    single = count("bert").plain
    assert 0.95 * passes * single < count("bert", method).plain < 1.2 * passes * single


def test_half_precision_takes_half_and_fused_attention_keeps_no_probabilities():
    wide = {"hidden_size": 128, "intermediate_size": 512}
    full, half = (count("bert", model=wide, precision=precision).plain for precision in ("fp32", "bf16"))
    assert 0.5 * full < half < 0.65 * full  # dropout's masks and the loss stay
    less = count("bert").plain - count("bert", on_gpu=True).plain
    assert less > 2 * N * 2 * T * T * 4  # 2 layers and 2 heads: the probabilities, beside what dropout keeps


@pytest.mark.parametrize("architecture", ["bert", "deberta-v2", "t5"])
def test_checkpointing_keeps_the_inputs_of_layers_and_one_layer(architecture):
    two = count(architecture)
    assert 2 * N * T * 16 * 4 < two.checkpointed < two.plain
    six = count(architecture, model={"num_hidden_layers": 6, "num_layers": 6, "num_decoder_layers": 6})
    assert six.plain - two.plain > 5 * (six.checkpointed - two.checkpointed)
    assert six.checkpointed - two.checkpointed >= 4 * N * T * 16 * 4  # the inputs of four more layers, or of eight


@pytest.mark.parametrize(("architecture", "method"), [("bert", "swep"), ("deberta-v2", "mle"), ("t5", "swep")])
def test_autocast_copies_every_weight_once(architecture, method):
    module = objective(architecture, method)
    with torch.autocast("cpu", torch.bfloat16):
        real = really_saved(module, windows(architecture))
    counted = count(architecture, method, precision="autocast", execution="joint")
    assert counted.plain + counted.casts == pytest.approx(real, rel=0.01)
    cast = [m for m in module.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv1d)]
    assert counted.casts == 2 * sum(p.numel() for m in cast for p in m.parameters(recurse=False))
    assert count(architecture).casts == 0


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_an_answer_keeps_what_generation_really_caches(architecture):
    batch = tiny_batches.generative((40,))
    model = tiny_models.model(architecture)
    generation = {"num_beams": 4, "max_new_tokens": 6, "min_new_tokens": 6, "return_dict_in_generate": True}
    cache = model.generate(batch.input_ids, attention_mask=batch.attention_mask, **generation).past_key_values
    layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    assert 4 * count(architecture, answer=(40, 6)).answer == kept
