"""The main job on its embedded default, as a user starts it: it learns, from a model that knows nothing."""

import json

import pytest

from tests.tiny_run import DEEPSPEED, execute

pytestmark = pytest.mark.slow
COMMAND = [str(DEEPSPEED), "scripts/train.py", "--ds_config", "ds_configs/zero2.json", "--output_dir"]


def exact_match(folder) -> dict[str, float]:
    scores = json.loads((folder / "results.json").read_text())["eval"]
    assert list(scores) == ["encyclopedia", "news", "forum", "reviews", "biomedicine"]
    return {name: one["exact_match"] for name, one in scores.items()}


def test_the_quick_start_learns(tmp_path):
    execute([*COMMAND, str(tmp_path / "run")], seconds=560)
    source, *shifted = exact_match(tmp_path / "run").values()
    assert source >= 60
    assert all(5 <= score <= source - 10 for score in shifted)


def test_without_fine_tuning_it_knows_nothing(tmp_path):
    untrained = ("train.max_updates=1", "train.learning_rate=1e-30", "data.max_eval_examples=60")
    execute([*COMMAND, str(tmp_path / "run"), *(word for one in untrained for word in ("--set", one))], seconds=300)
    assert max(exact_match(tmp_path / "run").values()) < 5
