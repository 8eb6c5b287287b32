"""The code that a model card shows runs on the model and gives QuestionAnswerer's answer."""

import json
import re
from pathlib import Path

import pytest

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.windows import WindowCutter
from swep_ds.evaluation.results import Evaluated
from swep_ds.pipeline.export import model_card
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import ReadingSettings, load_saved
from tests.support import tiny
from tests.support.tiny_run import prepare

QUESTION, TEXT = "Who founded it?", "It was founded in 1204 by an abbot."


@pytest.fixture(scope="module", params=["bert", "roberta", "t5"])
def folder(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    prepare(path, architecture=request.param)
    return path


def code_blocks(folder: Path, threshold: float | None) -> list[str]:
    recipe = Recipe.load(str(folder / "recipe.yaml"), ["eval.max_answer_tokens=4", "data.max_target_length=4"])
    reading = ReadingSettings.of(recipe, Evaluated({}, {}, threshold))
    (folder / "model" / READING).write_text(json.dumps(reading.model_dump()))
    if recipe.task == "generative":
        load_saved(str(folder / "model")).qa.generation.save_pretrained(folder / "model")  # as an export has it
    card = model_card(recipe, Evaluated({}, {}, threshold))
    assert "\n\n\n" not in card
    blocks = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert [len(block.splitlines()) <= 24 for block in blocks] == [True, True]
    return [block.replace("PATH_OF_THIS_FOLDER", str(folder / "model")) for block in blocks]


@pytest.mark.parametrize("threshold", [None, -1e6, 1e6])
def test_both_ways_to_ask_give_the_same_answer(folder, threshold, capsys):
    ours, plain = code_blocks(folder, threshold)
    [reply] = QuestionAnswerer(str(folder / "model"))(QUESTION, TEXT)
    exec(ours, {})
    assert f"{[reply]}\n" == capsys.readouterr().out
    if reply.start is None and threshold is not None:  # generate() alone declines by writing nothing
        return
    exec(plain, {})
    shown = capsys.readouterr().out.strip()
    assert shown == (reply.text or "no answer")
    if threshold is not None:
        assert (shown == "no answer") == (threshold < 0)


@pytest.mark.parametrize("folder", ["bert", "roberta"], indirect=True)  # the code for t5 takes only the first window
def test_the_code_cuts_a_long_text_as_the_run_did(folder):
    _, plain = code_blocks(folder, None)
    saved, text = load_saved(str(folder / "model")), " ".join(tiny.SENTENCES)
    there = {}
    exec(plain.replace(TEXT, text), there)
    cutter = WindowCutter(saved.tokenizer, saved.windows)
    tokens = cutter.encode(text)
    windows = list(cutter.windows(len(cutter.encode(QUESTION).ids), len(tokens.ids)))
    assert len(windows) > 2
    begins = [there["windows"].sequence_ids(number).index(1) for number in range(len(there["offsets"]))]
    cut = [there["offsets"][number, place, 0].item() for number, place in enumerate(begins)]
    assert cut == [int(tokens.starts[begin]) for begin, *_ in windows]
