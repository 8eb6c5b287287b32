"""A trimmed model computes the same from the texts whose words it has, whatever the kind of its tokenizer."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from swep_ds.commands import trim as command
from swep_ds.models.hub import load_tokenizer
from swep_ds.pipeline import vocabulary
from swep_ds.pipeline.vocabulary import trim
from tests.support import tiny, tiny_models
from tests.support.tiny_objective import JOINT, gradients, objective, windows

TEXTS = ("Who founded the monastery?", "An abbot of the northern valley.")
OTHER = "Zwölf große Brücken über den Fluß, 10 mg täglich \u20ac."
CASES = [("bert", "wordpiece"), ("roberta", "byte_bpe"), ("deberta-v2", "unigram")]
CASES += [("t5", "unigram"), ("mt5", "unigram"), ("bart", "byte_bpe")]


def save(folder: Path, architecture: str, kind: str) -> Path:
    """With rows that no token has, as T5's."""
    tokenizer = tiny.TOKENIZERS[kind]()
    changes = {"vocab_size": len(tokenizer) + 12}
    changes |= {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.cls_token_id}
    changes |= {"eos_token_id": tokenizer.sep_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    model = tiny_models.model(architecture, **changes)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "reading.json").write_text("{}")
    (folder / "spiece.model").write_bytes(b"of the whole vocabulary")
    return folder


def logits(folder: Path, *texts: str) -> tuple[torch.Tensor, list[str]]:
    """In float64 at the tokens of a question and a text, and these tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = tiny_models.transformers
    config = AutoConfig.from_pretrained(folder)
    auto = kind.AutoModelForSeq2SeqLM if config.is_encoder_decoder else kind.AutoModelForQuestionAnswering
    model = auto.from_pretrained(folder).eval()
    inputs = tokenizer(*texts, return_tensors="pt")
    more = {"labels": inputs["input_ids"][:, :4]} if config.is_encoder_decoder else {}
    with torch.no_grad():
        output = model(**inputs, **more)
    values = output.logits if config.is_encoder_decoder else torch.stack([output.start_logits, output.end_logits])
    return values, tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_texts_of_kept_words_have_the_same_words_and_logits(tmp_path, architecture, kind):
    source = save(tmp_path / "whole", architecture, kind)
    before, after = trim(str(source), TEXTS, tmp_path / "trimmed")
    whole, trimmed = (load_tokenizer(str(tmp_path / name)) for name in ("whole", "trimmed"))
    assert after == len(trimmed) < len(whole) == before - 12
    kept = [whole.get_vocab()[word] for word in sorted(trimmed.get_vocab(), key=trimmed.get_vocab().get)]
    assert kept == sorted(kept)  # in the same order
    expected, words = logits(source, *TEXTS)
    values, same = logits(tmp_path / "trimmed", *TEXTS)
    assert same == words
    if AutoConfig.from_pretrained(source).is_encoder_decoder:
        expected = expected[..., kept]
    assert torch.equal(values, expected)
    unknown = whole.unk_token
    assert trimmed.tokenize(OTHER).count(unknown) == whole.tokenize(OTHER).count(unknown)
    for name, special in whole.special_tokens_map.items():
        assert trimmed.special_tokens_map[name] == special
    config = json.loads((tmp_path / "trimmed" / "config.json").read_text())
    assert config["vocab_size"] == after
    for field, token in (("pad_token_id", whole.pad_token), ("eos_token_id", whole.sep_token)):
        assert config[field] == trimmed.convert_tokens_to_ids(token)
    assert len({file.stat().st_mode for file in (tmp_path / "trimmed").iterdir()}) == 1  # all read what one may read
    assert {file.name for file in (tmp_path / "trimmed").iterdir()} - {"generation_config.json"} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "reading.json",
    }


@pytest.mark.parametrize(
    ("architecture", "kept"),
    [
        ("electra", {"electra.embeddings.word_embeddings.weight"}),
        ("t5", {"shared.weight"}),  # its output layer, too
        ("t5-v1.1", {"shared.weight"}),  # which has an output layer of its own
        ("bart", {"model.shared.weight"}),
    ],
)
def test_frozen_are_the_words_of_encoder_and_decoder_and_a_tied_output_layer(architecture, kept):
    module = objective("swep", architecture, beta=1e-3, initialisation="default")
    module.qa.words.requires_grad_(False)
    loss, *_ = module(windows(architecture), JOINT)
    learnt = gradients(module, loss)
    names = {name for name, parameter in module.qa.model.named_parameters() if not parameter.requires_grad}
    assert names == kept
    assert not {f"qa.model.{name}" for name in names} & learnt.keys()
    assert all(learnt[f"method.noise.{name}"].abs().max() > 0 for name, _ in module.method.noise.named_parameters())
    assert ("qa.model.lm_head.weight" in learnt) == (architecture == "t5-v1.1")


def test_the_command_reads_texts_and_data(tmp_path, monkeypatch, capsys):
    source = save(tmp_path / "whole", "bert", "wordpiece")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.md").write_text(TEXTS[0])
    (tmp_path / "data.json").write_text(json.dumps([{"question": TEXTS[1], "context": "of the"}]))
    for name, words in (("texts", ["--texts", "texts"]), ("both", ["--texts", "texts", "--data", "data.json"])):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["swep-ds trim", str(source), *words, "--output", f"models/{name}"])
        command.trim()
    kept = [set(load_tokenizer(str(tmp_path / "models" / name)).get_vocab()) for name in ("texts", "both")]
    assert kept[0] < kept[1]
    assert capsys.readouterr().out.splitlines()[-1] == f"kept {len(kept[1])} of 212 words: models/both"
    monkeypatch.setattr(vocabulary, "save_tokenizer", Mock(side_effect=OSError("the disk is full")))
    with pytest.raises(OSError, match="full"):
        trim(str(source), TEXTS, tmp_path / "models" / "broken")
    assert {folder.name for folder in (tmp_path / "models").iterdir()} == {"texts", "both"}
