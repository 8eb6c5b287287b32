"""Models for ZeRO-3 are never whole in memory, and are bit for bit what loading them whole gives."""

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

from tests.support import tiny_models
from tests.support.fork_server import ROOT, run_script

pytestmark = pytest.mark.slow
SCRIPT = ROOT / "tests" / "support" / "load_sharded.py"
NAMES = [*tiny_models.ARCHITECTURES, *tiny_models.SEQ2SEQ, "bert-bf16"]  # the last one gets a new head


def test_sharded_weights_and_buffers_are_those_of_the_whole_model(tmp_path):
    for name in NAMES:
        model = tiny_models.model(name.removesuffix("-bf16"))
        if name.endswith("-bf16"):
            model = model.base_model.bfloat16()
        model.save_pretrained(tmp_path / name)
    run_script(SCRIPT, "compare", *(str(tmp_path / name) for name in NAMES), ranks=2)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process's memory is Linux's")
def test_no_rank_ever_holds_the_whole_model(tmp_path):
    sizes = {"hidden_size": 640, "num_attention_heads": 10, "intermediate_size": 2560, "vocab_size": 512}
    torch.manual_seed(0)
    large = BertForQuestionAnswering(BertConfig(num_hidden_layers=24, **sizes))
    large.save_pretrained(tmp_path / "large", max_shard_size="30MB")
    tiny_models.model("bert").save_pretrained(tmp_path / "small")
    run_script(SCRIPT, "memory", str(tmp_path / "small"), str(tmp_path / "large"), ranks=2)
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"large.rank{rank}").read_text())
        assert seen["whole"] > 4 * 118e6
        assert seen["part"] == pytest.approx(seen["whole"] / 2, rel=0.01)
        assert seen["part"] < seen["grown_by"] < 0.7 * seen["whole"]
