"""The main job on its embedded default, shortened, as a user starts it: it learns, from a model that knows nothing."""

import json
import re
from pathlib import Path

import pytest

from swep_ds.api.answerer import QuestionAnswerer
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import make_runs

pytestmark = pytest.mark.slow
ZERO2 = str(ROOT / "ds_configs" / "zero2.json")


def exact_matches(run: Path) -> list[float]:
    """In percent, on the source domain, then on each shifted one."""
    scores = json.loads((run / "results.json").read_text())["eval"]
    assert list(scores) == ["encyclopedia", "news", "forum", "reviews", "biomedicine"]
    return [score["exact_match"] for score in scores.values()]


def test_the_quick_start_learns_and_answers_or_declines_what_the_readme_asks_it(tmp_path):
    run = tmp_path / "run"
    settings = ["train.max_updates=80", "data.max_eval_examples=50"]
    options = [word for setting in settings for word in ("--set", setting)]
    run_script(ROOT / "scripts" / "train.py", "--ds_config", ZERO2, "--output_dir", str(run), *options)
    source, *shifted = exact_matches(run)
    assert source >= 50
    assert 5 <= sum(shifted) / len(shifted) <= source - 10
    readme = (ROOT / "README.md").read_text()
    [text] = re.findall(r'^TEXT="(.+)"$', readme, re.MULTILINE)
    asked = re.findall(r'--text "\$TEXT" --question "(.+)"\n# +[\d.]+%  (.+?)(?:    .*)?$', readme, re.MULTILINE)
    answers = [answer.replace("(no answer)", "") for _, answer in asked]
    assert [bool(answer) for answer in answers] == [True, False]
    answerer = QuestionAnswerer(run / "model")
    assert [answerer(question, text)[0].text for question, _ in asked] == answers


def test_without_fine_tuning_it_knows_nothing(tmp_path):
    untrained = ["train.max_updates=1", "train.learning_rate=1e-30", "data.max_eval_examples=30"]
    run = {"recipe": "quickstart", "set": [*untrained, "data.train_fraction=0.01"], "ds_config": ZERO2}
    make_runs(tmp_path, [run | {"output_dir": str(tmp_path / "run")}])
    assert max(exact_matches(tmp_path / "run")) < 5
