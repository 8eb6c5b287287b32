"""A config.json that makes no model is refused in one line, whether weights are there or not."""

import json
from pathlib import Path

import pytest

from swep_ds.errors import InputError
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny_models


def refused(name: Path, kind=GenerativeQA, **how) -> str:
    with pytest.raises(InputError) as caught:
        kind.load(str(name), activation_checkpointing=False, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


FAULTS = {
    "a wrong type": ({"d_model": "wide"}, "d_model' expected int, got str"),
    "zero": ({"d_model": 0}, "Error: "),
    "no number of heads": ({"num_heads": -1}, "RuntimeError: "),
    "unknown": ({"model_type": "t9"}, "model type `t9`"),
    "no type": ({"model_type": None}, "model type `None`"),
}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_config_that_makes_no_model(fault, weights, tmp_path):
    tiny_models.model("t5").save_pretrained(tmp_path)
    changes, said = FAULTS[fault]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    message = refused(tmp_path, weights=weights)
    assert message.startswith(f"model.name {tmp_path}: ")
    assert said in message


@pytest.mark.parametrize("content", ["[1, 2]", '{"model_type": ', "7"])
def test_a_config_that_is_none(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    assert refused(tmp_path).startswith(f"model.name {tmp_path}: its config.json: ")


def test_a_sequence_to_sequence_model_extracts_nothing(tmp_path):
    tiny_models.model("t5").save_pretrained(tmp_path)
    said = f"task extractive: {tmp_path} is a sequence-to-sequence model (t5): set task to generative"
    assert refused(tmp_path, ExtractiveQA) == said
