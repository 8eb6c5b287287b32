"""Distances per word against a loop; pages that any browser reads."""

import re

import numpy as np
import pytest

from swep_ds.analysis.heatmap import Word, fragment, legend, limits, page, word_distances
from swep_ds.analysis.windows import answer_windows
from swep_ds.data.example import Example
from tests.support.finished import load

WORDS = [
    Word("Who", True, False, 0.1),
    Word("<b>&", True, False, 0.3),
    Word("In", False, False, 0.2),
    Word("1998", False, True, 0.5),
]


@pytest.mark.parametrize("method", ["swep", "gaussian_dropout"])
def test_a_words_distance_is_the_mean_over_its_tokens_and_over_draws(tmp_path, method):
    run = load(tmp_path, method)
    examples = run.test_examples()[:5]
    windows = answer_windows(examples, run.tokenizer, run.windows)
    for example, window, words in zip(examples, windows, word_distances(run, windows), strict=True):
        before, draws = run.perturb_often(run.batch([window]), run.draws)
        moved = np.mean([np.sqrt(((draw.embeddings - before)[0].numpy() ** 2).sum(-1)) for draw in draws], axis=0)
        assert [word.text for word in words if word.question] == example.question.split()
        assert {word.text for word in words if not word.question} <= set(example.context.split())
        assert any(word.answer for word in words)
        position = 1  # after [CLS]
        for word in words[: len(example.question.split())]:
            pieces = len(run.tokenizer(word.text, add_special_tokens=False)["input_ids"])
            assert word.distance == pytest.approx(np.mean(moved[position : position + pieces]), rel=1e-4)
            position += pieces


def test_generated_answers_have_a_heat_map_too(tmp_path):
    run = load(tmp_path, architecture="t5")
    example = Example("q", "When was it opened?", "The old bridge was opened in 1998.", ("1998",), None, "a")
    [words] = word_distances(run, answer_windows([example], run.tokenizer, run.windows))
    assert [word.text for word in words] == [*example.question.split(), *example.context.split()]
    assert [word.text for word in words if word.answer] == ["1998."]


def test_a_fragment_is_escaped_coloured_and_labelled():
    text = fragment(WORDS, (0.1, 0.5))
    assert "&lt;b&gt;&amp;" in text
    assert "<b>&" not in text
    assert "<script" not in text
    assert 'title="0.5000">1998<' in text
    colours = dict(re.findall(r'background:(#\w{6});[^"]*" title="([\d.]+)"', text))
    # 0.2 is a quarter of the way, so between the second and the third of six colours; 0.3 between the third and fourth
    expected = {"0.1000": "#ffffcc", "0.2000": "#ffe896", "0.3000": "#fec661", "0.5000": "#fc4e2a"}
    assert {value: colour for colour, value in colours.items()} == expected
    scale = legend((0.1, 0.5), 16)
    assert "≤ 0.1 <span" in scale  # what lies beyond the ends has their colours
    assert "</span> ≥ 0.5;" in scale
    assert "over 16 draws" in scale


def test_a_fragment_may_be_cut_around_the_answer():
    words = [Word("Who", True, False, 0.1), *(Word(f"w{k}", False, k in (5, 6), 0.1) for k in range(12))]
    shown = re.sub("<[^>]*>", "", fragment(words, (0.0, 1.0), around=2))
    assert shown == "Question: WhoContext: … w3 w4 w5 w6 w7 w8 …"
    assert "…" not in fragment(words, (0.0, 1.0), around=6)


def test_black_text_is_readable_on_every_colour():
    """WCAG 2: a contrast of at least 4.5."""
    words = [Word("x", True, False, share / 20) for share in range(21)]
    for colour in re.findall(r"background:#(\w{6})", fragment(words, (0.0, 1.0))):
        channels = (int(colour[k : k + 2], 16) / 255 for k in (0, 2, 4))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = np.dot([0.2126, 0.7152, 0.0722], linear)
        assert (luminance + 0.05) / 0.05 >= 4.5


def test_the_scale_leaves_outliers_out():
    words = [Word("x", True, False, 1 + k / 100) for k in range(100)] + [Word("x", True, False, 50.0)]
    low, high = limits([words])
    assert 1.0 <= low < 1.1
    assert 1.9 < high < 3
    assert limits([[Word("x", True, False, 0.0)]]) == (0.0, 1.0)


def test_a_page_of_several_examples():
    html = page(["q<1>", "q2"], [WORDS, WORDS], "swep, seed 0", 1)
    assert html.startswith("<!DOCTYPE html>")
    assert "q&lt;1&gt;" in html
    assert html.count('class="heatmap"') == 2
