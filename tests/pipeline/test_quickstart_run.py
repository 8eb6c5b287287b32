"""The main job on its embedded default, shortened, as a user starts it: it learns, from a model that knows nothing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from swep_ds.api.answerer import QuestionAnswerer
from tests.support.fork_server import ROOT, run_script

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


def train(folder: Path, **values: float) -> dict[str, float]:
    options = settings(**values)
    run_script(Path(ARGUMENTS[0]), *ARGUMENTS[1:], "--output_dir", str(folder), *options)
    return exact_match(folder)


def test_the_quick_start_learns(tmp_path):
    """A sixth of its updates, to its end: it answers what README.md asks it, whole, and declines what it should."""
    source, *shifted = train(tmp_path / "run", train__max_updates=80, data__max_eval_examples=50).values()
    assert source >= 50
    assert 5 <= sum(shifted) / len(shifted) <= source - 10
    answerer, asked = QuestionAnswerer(tmp_path / "run" / "model"), [*shown()]
    assert [bool(answer) for _, _, answer in asked] == [True, False]
    assert [answerer(question, text)[0].text for text, question, _ in asked] == [answer for _, _, answer in asked]


def test_without_fine_tuning_it_knows_nothing(tmp_path):
    untrained = {"train__max_updates": 1, "train__learning_rate": 1e-30, "data__max_eval_examples": 30}
    assert max(train(tmp_path / "run", **untrained).values()) < 5
