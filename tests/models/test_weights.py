"""Weights that transformers would fill in, or take as they are: anything but a new head is refused in one line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForPreTraining, ElectraForPreTraining

from swep_ds.pipeline.saved import load_saved
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused
from tests.support.tiny_models import load

Weights = dict[str, Tensor]


def write(folder: Path, architecture: str, change: Callable[[Weights], Weights] = dict, **settings) -> Weights:
    """Saves a model with changed weights and config; returns the weights."""
    tiny_models.model(architecture).save_pretrained(folder)
    weights = change(load_file(folder / "model.safetensors"))
    save_file(
        {name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    change_json(folder / "config.json", **settings)
    return weights


def without(pattern: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: value for name, value in weights.items() if not re.search(pattern, name)}


def renamed(prefix: str) -> Callable[[Weights], Weights]:
    return lambda weights: {prefix + name: value for name, value in weights.items()}


def put(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Weights], Weights]:
    return lambda weights: weights | {name: change(weights[name])}


QUERY = "bert.encoder.layer.0.attention.self.query.weight"
FAULTS = {
    "another prefix": ("bert", renamed("student."), {}, r"lack 37 weights .*first bert\."),
    "more layers": ("bert", dict, {"num_hidden_layers": 3}, r"lack 16 weights .*first bert\.encoder\.la"),
    "no embeddings of T5": ("t5", without("shared|embed_tokens|lm_head"), {}, "that its config.json asks for"),
    "no decoder": ("bart", without("decoder"), {}, r"lack \d+ weights .*first model\.decoder\.embed_positions"),
    "another width": ("bert", dict, {"intermediate_size": 48}, r"lack 6 weights in the shapes that .*intermediate"),
    "NaN": ("bert", put(QUERY, lambda w: w * torch.nan), {}, "computes NaN or infinity"),
    "infinity": ("albert", put("qa_outputs.bias", lambda b: b - torch.inf), {}, "computes NaN or infinity"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_are_not_the_models(fault, tmp_path):
    architecture, change, settings, said = FAULTS[fault]
    write(tmp_path, architecture, change, **settings)
    for mapped in (False, True):
        message = refused(load, tmp_path, mapped=mapped)
        assert message.startswith(f"model.name {tmp_path}: ")
        assert re.search(said, message)


TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


@pytest.mark.parametrize("architecture", tiny_models.UNTIED)
def test_an_output_layer_of_its_own_must_be_there(architecture, tmp_path):
    """transformers ties it to the input where it is not, whatever config.json says."""
    weights = write(tmp_path, architecture)
    table = weights.pop("shared.weight")
    rest = {name: value for name, value in weights.items() if name not in TABLES}
    for name in TABLES:
        save_file(rest | {name: table}, tmp_path / "model.safetensors")
        whole = load(tmp_path).model
        assert torch.equal(whole.lm_head.weight, rest["lm_head.weight"])
        assert all(torch.equal(whole.get_parameter(name), table) for name in TABLES)
    write(tmp_path, architecture, without("lm_head"))
    assert "its files lack the output layer that its config.json asks for" in refused(load, tmp_path)
    change_json(tmp_path / "config.json", tie_word_embeddings=True)
    tied = load(tmp_path).model
    assert tied.lm_head.weight is tied.shared.weight


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_only_the_head_may_be_new(architecture, tmp_path):
    backbone = tiny_models.model(architecture).base_model
    backbone.save_pretrained(tmp_path)
    for mapped in (False, True):
        loaded = load(tmp_path, mapped=mapped).model.base_model
        assert all(torch.equal(loaded.get_parameter(name), value) for name, value in backbone.named_parameters())
    tiny.wordpiece().save_pretrained(tmp_path)
    assert "has no weights for" in refused(load_saved, str(tmp_path))  # no head to answer with


@pytest.mark.parametrize("kind", [BertForPreTraining, ElectraForPreTraining])
def test_published_checkpoints_of_other_heads_load(kind, tmp_path):
    """Like bert-base-uncased: with unused heads, pooler and position ids, and with TensorFlow's names."""
    architecture = kind.config_class.model_type
    torch.manual_seed(0)
    published = kind(tiny_models.config(architecture))
    published.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    legacy = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    legacy[f"{architecture}.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(legacy, tmp_path / "model.safetensors", {"format": "pt"})
    for mapped in (False, True):
        loaded = load(tmp_path, mapped=mapped).model.base_model
        for name, value in loaded.named_parameters():
            assert torch.equal(value, published.base_model.get_parameter(name)), name


def test_pickled_weights_shards_and_files_cut_short(tmp_path):
    model = tiny_models.model("bert")

    def assert_loads(mapped: bool) -> None:
        loaded = load(tmp_path, mapped=mapped).model
        assert all(torch.equal(value, model.get_parameter(name)) for name, value in loaded.named_parameters())

    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    for mapped in (False, True):
        assert_loads(mapped)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert_loads(mapped=False)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:100])
    assert refused(load, tmp_path).startswith(f"model.name {tmp_path}: cannot load (")
    shard.unlink()
    assert f"{shard.name}): correct the folder" in refused(load, tmp_path)
