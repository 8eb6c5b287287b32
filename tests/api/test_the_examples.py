"""The examples run as they are, for a few updates on a small part of the quick start's text."""

import json
import runpy
import sys

import pytest
from transformers import AutoModelForQuestionAnswering

import swep_ds as sd
from swep_ds.data.quickstart import corpus
from tests.api.test_extending import registry  # noqa: F401 (a fixture)
from tests.support.fork_server import ROOT

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
    tested = {"trainer.py", "plain_loop.py", "own_method.py", "own_data.py"}
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


def test_own_method(example, registry, tmp_path):  # noqa: F811
    example("own_method.py", "--output_dir", str(tmp_path / "run"), "--max_updates", "2")
    assert sd.Run(tmp_path / "run").results.method == "rotation"


def test_own_data(example, registry, tmp_path):  # noqa: F811
    text = "Who did it?\tAnn did it in May.\tAnn\nWhen did Ann do it?\tAnn did it in May.\tMay\n"
    (tmp_path / "own.tsv").write_text(text)
    named = [part for option in ("--train", "--test") for part in (option, str(tmp_path / "own.tsv"))]
    example("own_data.py", *named, "--output_dir", str(tmp_path / "run"), "--max_updates", "2")
    assert sd.Run(tmp_path / "run").scores["test"]["total"] == 2
