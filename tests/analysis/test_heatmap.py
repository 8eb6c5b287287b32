"""Distances per word against a loop, nearest words against products with the whole table; pages for any browser."""

import numpy as np
import pytest

from swep_ds.analysis.heatmap import AROUND, Scale, _near_answer, nearest_words, page, word_distances
from swep_ds.analysis.trained_run import TextWord
from tests.support.finished import load, windows_of
from tests.support.report_runs import contrast

QUESTION = [TextWord("Who", "question", [], 0.1), TextWord("<b>&", "question", [], 0.3)]
WORDS = [*QUESTION, TextWord("In", "context", [], 0.2), TextWord("1998", "answer", [], 0.5)]


@pytest.mark.parametrize("method", ["swep", "gaussian_dropout"])
def test_a_words_distance_is_the_mean_over_its_tokens_and_over_draws(tmp_path, method):
    run = load(tmp_path, method)
    windows = windows_of(run, 5)
    for window, words in zip(windows, word_distances(run, windows), strict=True):
        example = window.example
        before, draws = run.perturb(run.batch([window]), run.draws)
        moved = np.mean([np.sqrt(((draw.embeddings - before)[0].numpy() ** 2).sum(-1)) for draw in draws], axis=0)
        assert [word[:2] for word in words] == [word[:2] for word in window.words]
        position = 1  # after [CLS]
        for word in words[: len(example.question.split())]:
            pieces = len(run.tokenizer(word.text, add_special_tokens=False)["input_ids"])
            assert word.distance == pytest.approx(np.mean(moved[position : position + pieces]), rel=1e-4)
            position += pieces


@pytest.mark.parametrize("method", ["swep", "adv_aug"])
def test_nearest_words_of_every_token(tmp_path, method):
    settings = {"initialisation": "default"} if method == "swep" else {"step_size": 0.5}
    run = load(tmp_path, method, **settings)
    windows = windows_of(run, 3)
    table = run.qa.model.get_input_embeddings().weight.numpy()
    expected = []
    for window in windows:
        before, [perturbed] = run.perturb(run.batch([window]))
        ids = [window.input_ids, *((e[0].numpy() @ table.T).argmax(-1) for e in (before, perturbed.embeddings))]
        for word in window.words:
            for at in word.positions:
                names = run.tokenizer.convert_ids_to_tokens([int(row[at]) for row in ids])
                expected.append([window.example.id, word.part, word.text, *names])
    rows = nearest_words(run, windows)
    assert rows.columns.tolist() == ["question_id", "part", "word", "token", "nearest_before", "nearest_after"]
    assert rows.to_numpy().tolist() == expected
    assert set(rows["part"]) == {"question", "context", "answer"}
    changed = rows["token"] != rows["nearest_after"]
    assert 0 < np.mean(rows["token"] != rows["nearest_before"]) < np.mean(changed) < 1


def test_a_page_is_escaped_coloured_and_labelled():
    # the 2nd and 98th percentiles of the distances are the ends of the scale
    text = page(["q<1>", "q2"], [WORDS, WORDS], "swep, seed 0", 16)
    assert "<h2>q&lt;1&gt;</h2>" in text
    assert text.count('class="heatmap"') == text.count("&lt;b&gt;&amp;") == 2
    assert "<b>&" not in text
    assert 'title="0.5000">1998<' in text
    low, high = Scale.of([[TextWord("x", "question", [], distance) for distance in (*np.linspace(1, 2, 100), 50)]])
    assert 1.0 <= low < 1.1 < 1.9 < high < 3
    assert Scale.of([[TextWord("x", "question", [], 0.0)]]) == (0.0, 1.0)
    low, high = Scale.of([WORDS, WORDS])
    assert f"over 16 draws): ≤ {low:.3g} <span" in text  # what lies beyond the ends has their colours
    assert f"</span> ≥ {high:.3g};" in text
    assert "one draw): " in page(["q"], [WORDS], "swep", 1)
    # 0.2 is a quarter of the way, so between the second and the third of six colours; 0.3 between the third and fourth
    expected = ["#ffffcc", "#fec561", "#ffe895", "#fc4e2a"]
    assert [Scale(0.1, 0.5).colour(word.distance) for word in WORDS] == expected
    # WCAG 2: black text is readable at a contrast of at least 4.5
    assert min(contrast("#000000", Scale(0.0, 1.0).colour(share / 20)) for share in range(21)) >= 4.5


def test_a_context_is_cut_around_the_answer():
    context = [TextWord(f"w{k}", "answer" if k in (30, 31) else "context", []) for k in range(99)]
    assert _near_answer(QUESTION + context) == QUESTION + context[30 - AROUND : 32 + AROUND]
    assert _near_answer(QUESTION + context[:50]) == QUESTION + context[30 - AROUND : 50]
