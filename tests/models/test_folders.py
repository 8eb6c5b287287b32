"""What can be in the place of a model's folder or its files."""

import errno
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers.utils import import_utils

from swep_ds.common.errors import printable
from swep_ds.models.folders import load_config
from swep_ds.models.hub import load_tokenizer, model_checksum, resolve_model
from swep_ds.pipeline.saved_model import load_saved
from tests.support import tiny, tiny_models
from tests.support.bad_input import change_json, refused


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "model"
    tiny_models.model("bert", vocab_size=200).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)
    return folder


def load(folder: Path | str):
    load_tokenizer(str(folder))
    return tiny_models.load(resolve_model(str(folder)))


LOADERS = {"tokenizer": load_tokenizer, "config": load_config, "saved": load_saved, "trained": tiny_models.load}


def put_adapter(folder: Path) -> None:
    model = get_peft_model(tiny_models.model("bert", vocab_size=200), LoraConfig(task_type="QUESTION_ANS"))
    model.save_pretrained(folder)


ADAPTERS = [(loader, lacking) for loader in LOADERS for lacking in ((), ("model.safetensors",))]
ADAPTERS += [(loader, ("model.safetensors", "config.json")) for loader in LOADERS if loader != "trained"]


@pytest.mark.parametrize(("loader", "without"), ADAPTERS)
def test_an_adapter_is_refused_whatever_stands_beside_it(loader, without, folder):
    """transformers would apply it without the head that was trained with it, or fetch its base model."""
    put_adapter(folder)
    for name in without:
        (folder / name).unlink()
    message = refused(LOADERS[loader], str(folder))
    assert message.endswith(
        f"{folder}: holds an adapter (adapter_config.json): merge it (merge_and_unload), save model and tokenizer, and "
        "name that folder"
    )


def test_a_merged_adapter_is_a_model(folder):
    put_adapter(folder)
    merged = PeftModel.from_pretrained(tiny_models.model("bert", vocab_size=200), folder).merge_and_unload()
    merged.save_pretrained(folder / "merged")
    assert torch.equal(tiny_models.load(folder / "merged").model.qa_outputs.weight, merged.qa_outputs.weight)


def cached(folder: Path, cache: Path, monkeypatch) -> str:
    """The hub id of a folder that is put into the hub's cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    kept = cache / "models--me--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folder, kept / "snapshots" / ("0" * 40))
    return "me/model"


@pytest.mark.parametrize("loader", ["tokenizer", "config", "saved"])
def test_so_is_one_in_the_hubs_cache(loader, folder, tmp_path, monkeypatch):
    put_adapter(folder)
    message = refused(LOADERS[loader], cached(folder, tmp_path / "cache", monkeypatch))
    assert "me/model: holds an adapter (adapter_config.json)" in message


@pytest.mark.parametrize("name", ["~nobody_of_this_name/bert"])
def test_a_name_that_cannot_be_looked_up(name):
    for option, loader in (("model.name", load_tokenizer), ("model", load_saved), ("model.name", resolve_model)):
        message = refused(loader, name)
        assert message.startswith(f"{option} {printable(name[:100])}")
        assert len(message) < 1000


def test_a_model_that_was_never_fetched_is_told_offline(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for loader in (load_tokenizer, load_config):
        assert refused(loader, "me/model") == (
            "model.name me/model: not a folder, and not in the hub's cache (HF_HUB_OFFLINE is set): name a local "
            "folder, or fetch it once without HF_HUB_OFFLINE"
        )
    cached(folder, tmp_path, monkeypatch)
    load_tokenizer("me/model")
    load_config("me/model")


def test_a_file_in_place_of_a_folder(folder):
    file = folder / "config.json"
    for loader in (load_tokenizer, resolve_model):
        assert refused(loader, str(file)).startswith(f"model.name {file}: is not a folder: name the folder that holds")


def test_a_folder_in_the_home_directory(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/model") == str(folder)
    load_tokenizer("~/model")


def test_a_folder_without_permission(folder, monkeypatch):
    def is_file(path: Path) -> bool:  # root may read everything
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", is_file)
    assert refused(load_tokenizer, str(folder)) == (
        f"model.name {folder}: the folder cannot be listed ([Errno 13] Permission denied: "
        f"'{folder}/adapter_config.json'): give this user permission to read it"
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_files_that_are_not_json_objects(name, content, folder):
    (folder / name).write_text(content)
    message = refused(load, folder)
    assert message.startswith(f"model.name {folder}: ")


FOREIGN = {
    "attn_implementation": ["owner/kernel", "owner/kernel@main:function", "flash_attention_2", {"": "owner/kernel"}, 7],
    "_attn_implementation": ["owner/kernel"],
    "_attn_implementation_internal": ["owner/kernel"],
    "experts_implementation": ["owner/kernel"],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}],
    "fusion_config": [{"patch_embeddings": True}],
    "transformers_weights": ["../other.safetensors"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in FOREIGN.items() for value in values])
def test_settings_that_ask_for_code_or_other_files(field, value, folder, monkeypatch):
    """As if Hugging Face's `kernels` were installed, which fetches attention from the hub and runs it."""
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda *_: True)
    for settings in ({field: value}, {field: None, "decoder": {field: value}}):
        change_json(folder / "config.json", **settings)
        for loader in (load_tokenizer, load_saved):
            assert f"its config.json has {field}, which may need code from the hub" in refused(loader, str(folder))


def test_settings_that_only_look_like_it(folder):
    """transformers 4.46 to 4.51 wrote the first one."""
    change_json(folder / "config.json", _attn_implementation_autoset=True, attn_implementation="eager")
    load(folder)


def test_a_checksum_changes_with_what_decides_the_models_numbers(folder):
    assert model_checksum("google-bert/bert-base-uncased") is None
    before = model_checksum(str(folder))
    (folder / "model.safetensors").touch()
    (folder / "README.md").write_text("about it")
    assert model_checksum(str(folder)) == before
    sums = {before}
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        file = folder / name
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        sums.add(model_checksum(str(folder)))
        file.write_bytes(content)
    assert len(sums) == 4
