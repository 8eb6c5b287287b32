"""The report as a reader meets it: with a keyboard, a screen reader, on a phone, in the dark."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
import yaml

from swep_ds.analysis import report
from swep_ds.evaluation.scores import SQUAD
from swep_ds.pipeline.examples import reported_examples
from swep_ds.pipeline.recipe import Recipe
from tests.support import browser
from tests.support.bad_input import change_json
from tests.support.report_runs import Page, contrast, write_runs

DOMAINS = ("encyclopedia", "news", "forum", "reviews", "biomedicine")
NAMES = ("exact_match", "f1")
MAX_HEIGHT = 6200  # pixels of a page 1400 wide: seven screens
STYLE = Path(report.__file__).with_name("report.css.jinja")


def answer(example, run: int) -> str:
    """A right answer, a longer one, another one or none, as a hash of the question says."""
    gold = example.answers[0]
    begin = example.context.find(gold)
    wrong = ["", *example.context.split()[:2], example.context[begin : begin + 3 * len(gold)]]
    number = crc32(f"{example.id} {run}".encode()) % 16
    return wrong[number] if number < len(wrong) else gold


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The report, against another run, of a run that was tested on five domains."""
    home = tmp_path_factory.mktemp("page")
    write_runs(home)
    for run, folder in enumerate((home / "run", home / "other")):
        tree = yaml.safe_load((folder / "recipe.yaml").read_text())
        tree["data"] |= {"eval": {name: f"quickstart:{name}" for name in DOMAINS}, "max_eval_examples": 60}
        tree["train"]["learning_rate"] *= 1 + run
        (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
        recipe = Recipe.load(str(folder / "recipe.yaml"))
        shutil.rmtree(folder / "predictions")
        for kind in ("predictions", "confidence"):
            (folder / kind).mkdir()
        scores = {}
        for name in recipe.test_sets:
            examples = reported_examples(recipe, name)
            answers = {example.id: answer(example, run) for example in examples}
            (folder / "predictions" / f"{name}.json").write_text(json.dumps(answers))
            scores[name] = SQUAD.score(answers, {example.id: example.answers for example in examples})
            # as of a set with unanswerable questions, which has one more table
            parts = {f"{part}{metric}": 50.0 for part in ("has_answer_", "no_answer_") for metric in NAMES}
            scores[name] |= parts | {"has_answer_total": 40, "no_answer_total": 20}
            sure = {id_: crc32(id_.encode()) % 100 / 100 for id_ in answers}
            (folder / "confidence" / f"{name}.json").write_text(json.dumps(sure))
        change_json(folder / "results.json", eval=scores)
    return report.write_report(home / "run", home / "other")[0]


def test_what_the_confidences_say(page):
    said = " ".join(Page(page).texts["confidence"].split())
    assert "On biomedicine its confidence is 50 % on average, and 82 % of its answers are exactly right." in said
    assert "% of the questions of other domains in this test with at least 80 % of these answers right." in said


def test_headings_are_in_order_and_everything_has_a_name_for_a_screen_reader(page):
    elements = Page(page).elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    by_id = {attributes["id"] for _, attributes in elements if "id" in attributes}
    for tag, attributes in elements:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "section":
            assert attributes["aria-labelledby"] in by_id
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "a":
            assert attributes["href"].removeprefix("#") in by_id
        if "plot" in attributes.get("class", "").split() and tag == "td":
            assert attributes["aria-hidden"] == "true"  # its numbers are in the other cells
        if attributes.get("class") == "scroll":  # a keyboard scrolls it
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
    assert page.count("<details") == len(re.findall(r"<details( open)?><summary>\S", page))
    assert page.count("<main") == page.count("<h1") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_is_readable(theme):
    """WCAG 2.2, 1.4.3: a contrast of at least 4.5 of text, and 1.4.11: 3 of marks."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in STYLE.read_text().split("@media")[:2])
    colours = light if theme == "light" else dark
    assert colours.keys() == light.keys()

    def readable(name: str, behind: str = "page") -> float:
        return contrast(colours[name], colours[behind])

    assert min(readable(name) for name in ("text", "soft", "source", "shifted", "accepted")) >= 4.5
    assert min(readable("text", behind) for behind in ("predicted", "panel")) >= 4.5
    assert min(readable(f"line-{number}") for number in range(1, 5)) >= 3


@pytest.mark.skipif(browser.BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1400, 400])
def test_in_a_browser_nothing_overlaps_or_scrolls_sideways(page, tmp_path, width):
    shown = browser.measure(page, tmp_path, width)
    assert shown["width"] == width
    assert shown["fonts"] == ["loaded", "loaded"]
    assert shown["texts"] > 300
    assert shown["scroll"] <= width
    assert shown["outside"] == []
    assert shown["overlaps"] == []
    if width == 1400:
        assert shown["height"] <= MAX_HEIGHT
