"""No model's own code is ever run: not that which comes beside its weights, not that in pickled weights."""

import builtins
import json
import os
from pathlib import Path

import pytest
import torch

from swep_ds.methods.ssmba_samples.masked_lm import load_masked_lm
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.hub import load_tokenizer
from swep_ds.models.seq2seq import GenerativeQA
from swep_ds.pipeline.saved import load_saved
from tests.support import tiny, tiny_models
from tests.support.bad_input import refused

LOADERS = {
    "extractive": lambda name: ExtractiveQA.load(name, activation_checkpointing=False),
    "generative": lambda name: GenerativeQA.load(name, beams=1, max_answer_tokens=4, activation_checkpointing=False),
    "saved": load_saved,
    "masked": lambda name: load_masked_lm(name, torch.device("cpu")),
}


@pytest.fixture
def trace(tmp_path, monkeypatch) -> Path:
    """Exists once foreign code was run. A question on the terminal fails the test."""
    monkeypatch.setattr(builtins, "input", lambda prompt: pytest.fail(f"asked on the terminal: {prompt}"))
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path, trace) -> Path:
    folder = tmp_path / "model"
    tiny.wordpiece().save_pretrained(folder)
    (folder / "code.py").write_text(f"from pathlib import Path\nPath({str(trace)!r}).touch()\n")
    classes = ("AutoConfig", "AutoModelForQuestionAnswering", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM")
    config = {"model_type": "of_its_own", "auto_map": {name: f"code.{name}" for name in classes}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("loader", LOADERS)
def test_a_model_with_its_own_code_is_refused(folder, trace, loader):
    message = refused(LOADERS[loader], str(folder))
    assert f"{folder}: no model can be built from its config.json (" in message
    assert "name a model that transformers itself has a class for" in message
    assert not trace.exists()


def test_so_is_a_tokenizer_with_its_own_code(folder, trace):
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "transformers itself has a class for" in refused(load_tokenizer, str(folder))
    assert not trace.exists()


class Runs:
    """Pickled, it runs code when it is read."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_pickled_weights_run_no_code(tmp_path, trace):
    model = tiny_models.model("bert")
    model.config.save_pretrained(tmp_path / "pickled")
    torch.save(model.state_dict() | {"more": Runs(trace)}, tmp_path / "pickled" / "pytorch_model.bin")
    message = refused(LOADERS["extractive"], str(tmp_path / "pickled"))
    assert message.startswith(f"model.name {tmp_path}/pickled: cannot load (")
    assert not trace.exists()
