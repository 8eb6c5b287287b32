"""Models with random weights for measuring: every weight is there, and texts fill their windows."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM

from benchmarks import random_model
from swep_ds.models.hub import fit_tokenizer, load_tokenizer
from tests.support import tiny_models


def test_named_models_have_their_published_sizes():
    billions = {"deberta-v2-xxlarge": 1.56, "xlm-roberta-xl": 3.48, "t5-3b": 2.85, "t5-11b": 11.31}
    for name, settings in random_model.CONFIGS.items():
        config = AutoConfig.for_model(**settings)
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForQuestionAnswering
        with torch.device("meta"):
            model = auto_class.from_config(config)
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions[name], abs=0.01)


@pytest.mark.parametrize("architecture", ["deberta-v2", "t5"])
def test_every_weight_is_made_once(architecture):
    model = tiny_models.model(architecture)
    mismatch = model.load_state_dict(dict(random_model.random_weights(model)), strict=False)
    assert not mismatch.unexpected_keys
    assert set(mismatch.missing_keys) == set(model.all_tied_weights_keys)
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_the_tokenizer_gives_what_the_model_takes(tmp_path, monkeypatch):
    """XLM-R has one token type, so its windows must carry none."""
    settings = {"model_type": "xlm-roberta-xl", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"intermediate_size": 32, "vocab_size": 9000, "max_position_embeddings": 514, "type_vocab_size": 1}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    folder = tmp_path / "model"
    monkeypatch.setattr("sys.argv", ["random_model.py", str(tmp_path / "config.json"), str(folder)])
    random_model.write()
    tokenizer, model = load_tokenizer(str(folder)), tiny_models.load(folder).model
    fit_tokenizer(tokenizer, model, "model x")
    inputs = tokenizer("Who built it?", "The abbot did.", return_tensors="pt")
    assert "token_type_ids" not in inputs
    assert model(**inputs).start_logits.shape == inputs["input_ids"].shape
