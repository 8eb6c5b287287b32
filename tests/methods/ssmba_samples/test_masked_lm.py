"""Masked language models: which are taken, and what is drawn from them."""

import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertModel, MobileBertConfig

from swep_ds.methods.ssmba_samples import masked_lm
from swep_ds.methods.ssmba_samples.masked_lm import draw, load_masked_lm, logits_at
from tests.support import bad_input, tiny, tiny_masked_lm, tiny_models

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return tiny_masked_lm.save(tmp_path_factory.mktemp("bert"), tiny.wordpiece())


def refused(name: str) -> str:
    message = bad_input.refused(load_masked_lm, name, CPU)
    assert message.startswith(f"--model {name}: ")
    return message


def test_an_encoder_without_the_head(folder, tmp_path):
    BertModel.from_pretrained(folder).save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    for name in (str(tmp_path), "quickstart:encoder"):
        assert "has no weights for cls.predictions" in refused(name)
        assert "it is without a trained masked-language-model head: name a model with one" in refused(name)


def test_a_wrong_name_and_a_tokenizer_without_a_mask_token(folder, tmp_path):
    assert "no tokenizer to load there" in refused("nowhere")
    tokenizer = tiny.wordpiece.__wrapped__()
    tokenizer.mask_token = None
    shutil.copytree(folder, tmp_path / "maskless")
    tokenizer.save_pretrained(tmp_path / "maskless")
    assert "has no mask token" in refused(str(tmp_path / "maskless"))


SMALL = {"hidden_size": 16, "embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8}
CONFIGS = {name: tiny_models.config(name) for name in ("bert", "roberta", "modernbert")}
CONFIGS["mobilebert"] = MobileBertConfig(**tiny_models.COMMON | SMALL)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_logits_at_some_places_are_those_of_all(architecture):
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(CONFIGS[architecture]).eval()
    ids, mask = torch.randint(5, 60, (3, 9)), torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    rows, positions = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 8, 3, 0])
    inputs = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        some = logits_at(model, inputs, rows, positions)
        everywhere = model(**inputs).logits  # after: the hook is gone
    assert everywhere.shape == (3, 9, 64)
    torch.testing.assert_close(some, everywhere[rows, positions])


def test_draws_invert_the_softmax_over_the_candidates(monkeypatch):
    """Against NumPy; a draw is the number of candidates whose cumulated probability u has passed."""
    monkeypatch.setattr(masked_lm, "PLACES_AT_A_TIME", 7)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 5, 11)).astype(np.float32)
    logits[1, 2, 1] = logits[1, 2, 5] = -1e30  # probability 0
    candidates = np.array([1, 4, 5, 8, 10])
    rows, positions = rng.integers(0, 3, 200), rng.integers(0, 5, 200)
    rows[:40], positions[:40] = 1, 2
    uniforms = rng.random(200)
    uniforms[:4] = [0.0, 1 - 2**-53, 0.0, 1 - 2**-53]

    monkeypatch.setattr(masked_lm, "logits_at", lambda model, inputs, *at: torch.from_numpy(logits)[at])
    drawn = draw(None, {}, *map(torch.from_numpy, (rows, positions, uniforms, candidates)))

    weights = np.exp(logits[rows, positions][:, candidates].astype(np.float64))
    cumulated = np.cumsum(weights, 1) / weights.sum(1, keepdims=True)
    expected = candidates[np.minimum((cumulated <= uniforms[:, None]).sum(1), 4)]
    assert drawn.tolist() == expected.tolist()
    assert drawn[:4].tolist() == [4, 10, 4, 10]
    assert not {1, 5} & set(drawn[:40].tolist())
