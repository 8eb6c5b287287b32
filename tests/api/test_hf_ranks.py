"""The Trainer with a method on two ranks: DDP and its own DeepSpeed compute what one process computes."""

import json

import pytest

from tests.api.test_hf import losses, trainer
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_engine import ON_RANKS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", ["ddp", "zero3"])
def test_losses_are_those_of_one_process_and_a_resumed_training_is_the_whole_one(case, tmp_path):
    run_script(ROOT / "tests" / "support" / "trainer_on_ranks.py", str(tmp_path), case, ranks=2)
    saved = json.loads((tmp_path / f"{case}.json").read_text())
    alone = trainer(tmp_path / "alone", ON_RANKS, accumulation=4)
    alone.train()
    assert saved["whole"] == pytest.approx(losses(alone), rel=1e-5)
    assert saved["resumed"] == saved["whole"]
    assert saved["bare"]
