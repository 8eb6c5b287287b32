"""The main job on its embedded default, shortened, as a user starts it: it learns, from a model that knows nothing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swep_ds.api.answerer import QuestionAnswerer
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import DEEPSPEED, execute

pytestmark = pytest.mark.slow
ARGUMENTS = [str(ROOT / "scripts" / "train.py"), "--ds_config", str(ROOT / "ds_configs" / "zero2.json")]


def settings(**values: float) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]


def exact_match(folder) -> dict[str, float]:
    scores = json.loads((folder / "results.json").read_text())["eval"]
    assert list(scores) == ["encyclopedia", "news", "forum", "reviews", "biomedicine"]
    return {name: score["exact_match"] for name, score in scores.items()}


def shown() -> Iterator[tuple[str, str, str]]:
    """Text, question and answer of the commands in README.md that ask the model; "" = it declines."""
    readme = (ROOT / "README.md").read_text()
    [text] = re.findall(r'^TEXT="(.+)"$', readme, re.MULTILINE)
    for question, answer in re.findall(
        r'--text "\$TEXT" --question "(.+)"\n# +[\d.]+%  (.+?)(?:    .*)?$', readme, re.M
    ):
        yield text, question, answer.replace("(no answer)", "")


def test_the_quick_start_learns(tmp_path):
    """A third of its updates, to its end: it answers what README.md asks it, whole, and declines what it should."""
    short = settings(train__max_updates=150, data__max_eval_examples=100)
    execute([str(DEEPSPEED), *ARGUMENTS, "--output_dir", str(tmp_path / "run"), *short])
    source, *shifted = exact_match(tmp_path / "run").values()
    assert source >= 50
    assert all(5 <= score <= source - 10 for score in shifted)
    answerer, asked = QuestionAnswerer(tmp_path / "run" / "model"), [*shown()]
    assert [bool(answer) for _, _, answer in asked] == [True, False]
    assert [answerer(question, text)[0].text for text, question, _ in asked] == [answer for _, _, answer in asked]


def test_without_fine_tuning_it_knows_nothing(tmp_path):
    untrained = settings(train__max_updates=1, train__learning_rate=1e-30, data__max_eval_examples=60)
    run_script(Path(ARGUMENTS[0]), *ARGUMENTS[1:], "--output_dir", str(tmp_path / "run"), *untrained)
    assert max(exact_match(tmp_path / "run").values()) < 5
