"""The report as a reader meets it: with a keyboard, a screen reader, on a phone, in the dark."""

import base64
import json
import re
import shutil
import subprocess
from itertools import pairwise, product
from pathlib import Path

import matplotlib
import pytest
import yaml

import swep_ds as sd
from swep_ds.analysis import report
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.examples import reported_examples
from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import change_json
from tests.support.fork_server import HANGS
from tests.support.report_runs import Page, contrast, write_runs

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
# Chromium makes no window narrower than 500 pixels, so a frame in the window has the width. Measured in the frame:
# the page's size, texts that overlap, and texts that stand outside
MEASURE = r"""
function measure(view) {
  const page = view.document, boxes = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest(".hidden, .skip, style") || !parent.checkVisibility()) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width && box.height) boxes.push([box, node.data.trim(), parent]);
  }
  const overlaps = [];
  boxes.sort((a, b) => a[0].top - b[0].top);
  for (let i = 0; i < boxes.length; i++)
    for (let j = i + 1; j < boxes.length && boxes[j][0].top < boxes[i][0].bottom - 4; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      const wide = Math.min(a[0].right, b[0].right) - Math.max(a[0].left, b[0].left);
      const high = Math.min(a[0].bottom, b[0].bottom) - b[0].top;
      if (wide > 2 && high > 0.4 * Math.min(a[0].height, b[0].height)) overlaps.push([a[1], b[1]]);
    }
  const outside = boxes.filter(([box, , parent]) => box.right > view.innerWidth + 1 && !parent.closest(".scroll"));
  const {scrollWidth: scroll, scrollHeight: height} = page.documentElement;
  return {fonts: [...page.fonts].map(font => font.status), width: view.innerWidth, scroll, height,
    texts: boxes.length, overlaps, outside: outside.map(box => box[1])};
}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    """The report, against another run, of a run that was tested at home and on another domain."""
    home = write_runs(tmp_path_factory.mktemp("page"))
    for run, folder in enumerate((home / "run", home / "other")):
        tree = yaml.safe_load((folder / "recipe.yaml").read_text())
        sources = {name: f"quickstart:{name}" for name in ("encyclopedia", "news")}
        tree["data"] |= {"eval": sources, "max_eval_examples": 60}
        (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
        (folder / "confidence").mkdir()
        scores = {}
        for name in sources:
            golds = {e.id: e.answers for e in reported_examples(Recipe.load(str(folder / "recipe.yaml")), name)}
            answers = {id_: gold[0] if (number + run) % 4 else "" for number, (id_, gold) in enumerate(golds.items())}
            (folder / "predictions" / f"{name}.json").write_text(json.dumps(answers))
            # as of a set with unanswerable questions, which has one more table
            parts = {
                f"{part}_{metric}": 50.0 for part in ("has_answer", "no_answer") for metric in ("exact_match", "f1")
            }
            scores[name] = Scorer().score(answers, golds) | parts | {"has_answer_total": 40, "no_answer_total": 20}
            sure = {id_: number % 7 / 7 for number, id_ in enumerate(answers)}
            (folder / "confidence" / f"{name}.json").write_text(json.dumps(sure))
        change_json(folder / "results.json", eval=scores)
    sd.forecast([home / "run"])
    labels = {"mean": 61.0, "low": 55.0, "high": 67.0}
    change_json(home / "run" / "forecast" / "news.json", labelled=25, with_labels={"exact_match": labels, "f1": labels})
    return report.write_report(home / "run", home / "other")[0]


def test_what_the_confidences_say(page):
    said = Page(page).texts["confidence"]
    assert "On encyclopedia its confidence is 41 % on average, and 75 % of its answers are exactly right." in said
    assert "% of the questions of other domains in this test with at least 80 % of these answers right." in said


def test_forecasts_are_beside_what_labels_and_answers_say(page):
    said = " ".join(Page(page).texts["forecast"].split())
    assert "with 25 labels 61.0 55.0 to 67.0" in said
    assert re.search(
        r"news [\d.]+ [\d.]+ to [\d.]+ [\d.]+ [\d.]+ to [\d.]+ [\d.]+, [\d.]+ 60 confidence of 1 run", said
    )


def test_headings_are_in_order_and_everything_has_a_name_for_a_screen_reader(page):
    elements = Page(page).elements
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in pairwise(levels))
    by_id = {attributes["id"] for _, attributes in elements if "id" in attributes}
    for tag, attributes in elements:
        if tag == "svg":
            assert attributes["role"] == "img"
        if tag == "svg" or attributes.get("class") == "scroll":
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
    assert page.count("<details") == len(re.findall(r"<details( open)?><summary>\S", page))
    assert page.count("<main") == page.count("<h1") == 1


def test_the_palette_is_readable():
    """WCAG 2.2, 1.4.3: a contrast of at least 4.5 of text, and 1.4.11: 3 of marks."""
    style = Path(report.__file__).with_name("report.css.jinja").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media")[:2])
    assert light.keys() == dark.keys()
    pairs = [(name, "page", 4.5) for name in ("text", "soft", "source", "shifted", "accepted")]
    pairs += [("text", "predicted", 4.5), ("text", "panel", 4.5)]
    pairs += [(f"line-{number}", "page", 3) for number in range(1, 5)]
    for colours, (name, behind, least) in product((light, dark), pairs):
        assert contrast(colours[name], colours[behind]) >= least, name


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1400, 400])
def test_in_a_browser_nothing_overlaps_or_scrolls_sideways(page, tmp_path, width):
    # in a wide font, so that lines break alike whatever fonts a machine has
    style = "* { font-family: Fixed !important }"
    for weight, name in ((400, "DejaVuSans"), (700, "DejaVuSans-Bold")):
        font = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf").read_bytes()
        source = f"data:font/ttf;base64,{base64.b64encode(font).decode()}"  # a page may not load a font from a file
        style += f" @font-face {{ font-family: Fixed; font-weight: {weight}; src: url({source}) }}"
    frame = f"{page}<style>{style}</style>".replace("&", "&amp;").replace('"', "&quot;")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><script>{MEASURE}</script>'
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{frame}" onload="'
        "const pre = document.body.appendChild(document.createElement('pre')); pre.id = 'measured'; "
        'pre.textContent = JSON.stringify(measure(this.contentWindow))"></iframe>'
    )
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / outer.stem}", f"--window-size={width + 40},1000"]
    command += ["--dump-dom", outer.as_uri()]
    printed = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=HANGS)
    shown = json.loads(Page(printed.stdout).texts["measured"])
    expected = {"width": width, "fonts": ["loaded", "loaded"], "outside": [], "overlaps": []}
    assert {name: shown[name] for name in expected} == expected
    assert shown["texts"] > 300
    assert shown["scroll"] <= width
    if width == 1400:
        assert shown["height"] <= 7 * 900  # seven screens
