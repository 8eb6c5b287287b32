"""The examples run as they are, for a few updates on a small part of the quick start's text."""

import json
import runpy
import sys

import pytest
import torch
from transformers import AutoModelForQuestionAnswering

import swep_ds as sd
from swep_ds.data.quickstart import corpus
from swep_ds.kernels import standard_normal
from tests.api.test_extending import registry  # noqa: F401 (a fixture)
from tests.support.fork_server import ROOT
from tests.support.tiny_objective import JOINT, SEED, away_from_the_prior, gradients, objective, windows

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "examples"


def few_articles(domain: str, split: str, unanswerable: bool = False) -> dict:
    whole = corpus(domain, split, unanswerable)
    return whole | {"data": whole["data"][: 60 if split == "train" else 8]}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setattr("swep_ds.analysis.report.write_report", lambda folder: ("", {}))  # has tests of its own
    monkeypatch.setattr("swep_ds.data.readers.corpus", few_articles)

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.syspath_prepend(str(EXAMPLES))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run


def test_there_are_no_others():
    tested = {"trainer.py", "plain_loop.py", "swep_in_one_file.py", "own_method.py", "own_data.py"}
    assert {file.name for file in EXAMPLES.glob("*.py")} == tested


def test_trainer_with_and_without_low_rank_adapters(example, tmp_path):
    plain, lora = tmp_path / "plain", tmp_path / "lora"
    example("trainer.py", "--output_dir", str(plain), "--max_steps", "2")
    trained = AutoModelForQuestionAnswering.from_pretrained(plain)
    assert all(weights.isfinite().all() for weights in trained.parameters())
    assert (plain / "checkpoint-2" / sd.hf.METHOD_FILE).is_file()
    example("trainer.py", "--output_dir", str(lora), "--max_steps", "2", "--lora")
    assert json.loads((lora / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert not (lora / "model.safetensors").exists()


def test_plain_loop(example, capsys):
    example("plain_loop.py", "--updates", "10")
    printed = capsys.readouterr().out
    assert "update 10: loss" in printed
    assert "nan" not in printed
    assert "of the starts of one training batch are right" in printed


def test_swep_in_one_file_trains(example, capsys):
    example("swep_in_one_file.py", "--updates", "10")
    printed = capsys.readouterr().out
    assert "update 10: loss" in printed
    assert "nan" not in printed


@pytest.mark.parametrize("architecture", ["bert", "electra"])
def test_swep_in_one_file_computes_the_packages_loss_and_gradients(architecture, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = runpy.run_path(str(EXAMPLES / "swep_in_one_file.py"))
    module = away_from_the_prior(objective("swep", architecture, beta=0.01, prior_variance=0.2, mle_weight=0.3))
    batch = windows(architecture)
    [draw] = [key.draw for _, key in module.passes(JOINT) if key]
    loss = module(batch, JOINT)[0]
    expected = gradients(module, loss)

    model, network = module.qa.model, module.method.noise
    generator = example["NoiseGenerator"](module.qa.hidden_size, module.qa.embedding_size, alpha=0.2).double()
    prior = generator.outer.bias.detach().clone()
    generator.inner.load_state_dict(network.inner.state_dict())
    generator.outer.load_state_dict(network.difference.state_dict())
    with torch.no_grad():
        generator.outer.bias += prior  # the package learns the difference from the prior
    key = (SEED, draw, batch.sample_id[:, None], torch.arange(batch.input_ids.shape[1]))
    monkeypatch.setattr("torch.randn_like", lambda words: standard_normal(*key, words.shape[-1], words.dtype))
    given = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    given |= {"start_positions": batch.start_position, "end_positions": batch.end_position}
    module.zero_grad()
    got = example["swep_loss"](model, generator, given, beta=0.01, mle_weight=0.3)
    got.backward()
    assert got.item() == pytest.approx(loss.item(), rel=1e-6)
    others = {"inner": generator.inner, "difference": generator.outer}
    for name, gradient in expected.items():
        if name.startswith("method.noise."):
            _, _, layer, part = name.split(".")
            weights = getattr(others[layer], part)
        else:
            weights = module.get_parameter(name)
        assert (weights.grad - gradient).norm() <= 1e-6 * gradient.norm() + 1e-12, name


def test_own_method(example, registry, tmp_path):  # noqa: F811
    example("own_method.py", "--output_dir", str(tmp_path / "run"), "--max_updates", "2")
    assert sd.Run(tmp_path / "run").results.method == "rotation"


def test_own_data(example, registry, tmp_path):  # noqa: F811
    text = "Who did it?\tAnn did it in May.\tAnn\nWhen did Ann do it?\tAnn did it in May.\tMay\n"
    (tmp_path / "own.tsv").write_text(text)
    named = [part for option in ("--train", "--test") for part in (option, str(tmp_path / "own.tsv"))]
    example("own_data.py", *named, "--output_dir", str(tmp_path / "run"), "--max_updates", "2")
    assert sd.Run(tmp_path / "run").scores["test"]["total"] == 2
