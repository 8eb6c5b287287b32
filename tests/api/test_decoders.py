"""Decoders with a head for spans: windows from their tokenizer, training with SWEP, answers."""

import json

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, LlamaConfig, Qwen2Config

import swep_ds as sd
from tests.support import tiny
from tests.support.tiny_run import squad

COMMON = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
COMMON |= {"intermediate_size": 32, "max_position_embeddings": 128}


@pytest.mark.slow
@pytest.mark.parametrize("config", [LlamaConfig, Qwen2Config])
def test_a_decoder_trains_and_answers(config, tmp_path):
    tokenizer = tiny.byte_bpe()
    torch.manual_seed(0)
    settings = config(**COMMON, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    AutoModelForQuestionAnswering.from_config(settings).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "train.json").write_text(json.dumps(squad(12)))
    recipe = sd.Recipe(
        model={"name": str(tmp_path / "model")},
        method=sd.Swep(beta=1e-4),
        data={"train": str(tmp_path / "train.json"), "eval": {"same": str(tmp_path / "train.json")}, "max_length": 96},
        train={"max_updates": 60, "epochs": 60, "learning_rate": 1e-2, "micro_batch_size": 12, "log_every": 10},
    )
    run = sd.train(recipe, output_dir=tmp_path / "run")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]
    assert lines[-1]["kl_per_window"] > 0
    answers = json.loads((run.path / "predictions" / "same.json").read_text())
    contexts = {qa["id"]: part["context"] for a in squad(12)["data"] for part in a["paragraphs"] for qa in part["qas"]}
    assert all(answer and answer in contexts[question] for question, answer in answers.items())
