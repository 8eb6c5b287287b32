"""What can be in the place of a model's folder or its files; no model's own code is ever run."""

import builtins
import json
import os
import shutil

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers.utils import import_utils

from swep_ds.methods.ssmba_samples.augment import AugmentSettings, Reconstructor
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.folders import model_checksum, resolve_model, weight_files
from swep_ds.models.hub import load_config, load_tokenizer
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.saved import load_saved
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    tiny_models.model("bert", vocab_size=200).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)
    return folder


LOADERS = (load_tokenizer, load_config, load_saved)


def test_an_adapter_is_refused_with_its_model_or_without_and_taken_once_it_is_merged(folder, tmp_path, monkeypatch):
    """transformers would apply it without the head that was trained with it, or fetch its base model."""
    model = get_peft_model(tiny_models.model("bert", vocab_size=200), LoraConfig(task_type="QUESTION_ANS"))
    model.save_pretrained(folder)
    said = "holds an adapter (adapter_config.json): merge it (merge_and_unload), save model and tokenizer, and name"
    for loader in (*LOADERS, tiny_models.load):
        assert said in refused(loader, str(folder))
    cache = tmp_path / "cache" / "models--me--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, cache / "snapshots" / ("0" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for loader in LOADERS:
        assert f"me/model: {said}" in refused(loader, "me/model")
    merged = PeftModel.from_pretrained(tiny_models.model("bert", vocab_size=200), folder).merge_and_unload()
    merged.save_pretrained(folder / "merged")
    assert torch.equal(tiny_models.load(folder / "merged").model.qa_outputs.weight, merged.qa_outputs.weight)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        for loader in LOADERS:
            assert said in refused(loader, str(folder))


def test_names_of_no_folder_and_folders_of_no_model(folder, tmp_path, monkeypatch):
    file = folder / "config.json"
    for name in (str(file), "./no"):
        assert refused(resolve_model, name).startswith(f"model.name {name}: no such folder: name the folder that holds")
    for loader in (load_tokenizer, load_config):  # offline, and never fetched
        assert refused(loader, "me/model").startswith("model.name me/model: no ")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model") == str(folder)
    load_tokenizer("~/model")
    (tmp_path / "empty").mkdir()
    assert "or in a folder with a config.json" in refused(load_config, str(tmp_path / "empty"))
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_text("{")
        assert refused(load_tokenizer, str(folder)).startswith(f"model.name {folder}: ")


def test_settings_that_ask_for_code_or_are_of_quantised_weights_and_some_that_only_look_like_it(folder, monkeypatch):
    """As if Hugging Face's `kernels` were installed, which fetches attention from the hub and runs it."""
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda *_: True)
    whole = (folder / "config.json").read_text()
    for field, value in (
        ("attn_implementation", "owner/kernel@main:function"),
        ("attn_implementation", "flash_attention_2"),
        ("_attn_implementation", {"": "owner/kernel"}),
        ("experts_implementation", "owner/kernel"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}),
    ):
        for settings in ({field: value}, {"decoder": {field: value}}):
            (folder / "config.json").write_text(whole)
            change_json(folder / "config.json", **settings)
            for loader in (load_tokenizer, load_saved):
                assert f"its config.json has {field}, which may need code from the hub" in refused(loader, str(folder))
    (folder / "config.json").write_text(whole)  # transformers 4.46 to 4.51 wrote the first of these two
    change_json(folder / "config.json", _attn_implementation_autoset=True, attn_implementation="eager")
    tiny_models.load(folder)


def test_a_checksum_changes_with_what_decides_the_models_numbers(folder):
    assert model_checksum("google-bert/bert-base-uncased") is None
    before = model_checksum(str(folder))
    (folder / "model.safetensors").touch()
    (folder / "README.md").write_text("about it")
    assert model_checksum(str(folder)) == before
    sums = {before}
    (folder / "spiece.model").write_bytes(bytes(2**20 + 1))
    for name in ("generation_config.json", "vocab.txt", "reading.json"):
        (folder / name).write_text("{}")
    sums.add(model_checksum(str(folder)))
    names = ["model.safetensors", "config.json", "tokenizer.json", "spiece.model"]
    for name in (*names, "generation_config.json", "vocab.txt", "reading.json"):
        file = folder / name
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        sums.add(model_checksum(str(folder)))
        file.write_bytes(content)
    assert len(sums) == 9


def test_a_checksum_is_of_the_weights_that_are_loaded_all_shards_of_them(folder):
    """transformers prefers safetensors, whole or in shards, to pickled weights."""
    (folder / "pytorch_model.bin").write_bytes(b"not loaded")
    assert weight_files(folder) == [folder / "model.safetensors"]
    (folder / "model.safetensors").unlink()
    tiny_models.model("bert", vocab_size=200).save_pretrained(folder, max_shard_size="8KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert weight_files(folder) == shards
    before = model_checksum(str(folder))
    shards[-1].write_bytes(shards[-1].read_bytes() + b"x")
    assert model_checksum(str(folder)) != before


def test_no_code_of_a_models_own_is_run(tmp_path, monkeypatch):
    """Neither that beside its weights or its tokenizer, nor that in pickled ones."""
    monkeypatch.setattr(builtins, "input", lambda prompt: pytest.fail(f"asked on the terminal: {prompt}"))
    trace = tmp_path / "ran"
    tiny.wordpiece().save_pretrained(tmp_path)
    (tmp_path / "code.py").write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\n")
    classes = ("AutoConfig", "AutoModelForQuestionAnswering", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM")
    config = {"model_type": "of_its_own", "auto_map": {name: f"code.{name}" for name in classes}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for loader in (
        lambda name: ExtractiveQA.load(name, activation_checkpointing=False),
        lambda name: GenerativeQA.load(name, activation_checkpointing=False),
        lambda name: Reconstructor(name, AugmentSettings(), torch.device("cpu")),
        load_saved,
    ):
        message = refused(loader, str(tmp_path))
        assert f"{tmp_path}: no model can be built from its config.json (" in message
        assert "name a model that transformers itself has a class for" in message
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "transformers itself has a class for" in refused(load_tokenizer, str(tmp_path))
    assert not trace.exists()

    class Runs:
        def __reduce__(self):
            return os.mkdir, (str(trace),)

    model = tiny_models.model("bert")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict() | {"more": Runs()}, tmp_path / "pytorch_model.bin")
    assert refused(tiny_models.load, tmp_path).startswith(f"model.name {tmp_path}: cannot load (")
    assert not trace.exists()
