"""Distances per word and by word frequency against loops, nearest words against products with the whole table, pages
for any browser, and the coordinates of tokens before and after: which tokens, in which order, the same each time."""

import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from swep_ds.analysis import word_analyses
from swep_ds.analysis.trained_run import TextWord, answer_windows
from swep_ds.analysis.word_analyses import (
    AROUND,
    LABELLED,
    Scale,
    _near_answer,
    by_frequency,
    coordinates,
    markdown,
    nearest_words,
    neighbour_distance,
    page,
    plot_coordinates,
    ranking,
    word_distances,
)
from tests.support.bad_input import refused
from tests.support.finished import load, windows_of
from tests.support.report_runs import contrast

WORDS = [TextWord("Who", "question", [], 0.1), TextWord("<b>&", "question", [], 0.3)]
WORDS += [TextWord("In", "context", [], 0.2), TextWord("1998", "answer", [], 0.5)]


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
    run = load(tmp_path, method, **({"initialisation": "default"} if method == "swep" else {"step_size": 0.5}))
    windows = windows_of(run, 3)
    table = run.qa.model.get_input_embeddings().weight.numpy()
    expected = []
    for window in windows:
        before, [perturbed] = run.perturb(run.batch([window]))
        ids = [window.input_ids, *((e[0].numpy() @ table.T).argmax(-1) for e in (before, perturbed.embeddings))]
        tokens = [*zip(*map(run.tokenizer.convert_ids_to_tokens, ids), strict=True)]
        for word in window.words:
            expected += [[window.example.id, word.part, word.text, *tokens[at]] for at in word.positions]
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
    colours = [Scale(0.1, 0.5).colour(word.distance) for word in WORDS]
    assert colours == ["#ffffcc", "#fec561", "#ffe895", "#fc4e2a"]
    # WCAG 2: black text is readable at a contrast of at least 4.5
    assert min(contrast("#000000", Scale(0.0, 1.0).colour(share / 20)) for share in range(21)) >= 4.5


def test_a_context_is_cut_around_the_answer():
    context = [TextWord(f"w{k}", "answer" if k in (30, 31) else "context", []) for k in range(99)]
    assert _near_answer(WORDS[:2] + context) == WORDS[:2] + context[30 - AROUND : 32 + AROUND]
    assert _near_answer(WORDS[:2] + context[:50]) == WORDS[:2] + context[30 - AROUND : 50]


def test_neighbours_against_a_loop(monkeypatch):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(23, 4)).astype(np.float32)
    table[1] = table[0]  # equal rows are neighbours at distance 0
    words = rng.permutation(23)[:6]
    monkeypatch.setattr(word_analyses, "ROWS", 4)
    means = neighbour_distance(torch.from_numpy(table), words)
    for word, mean in zip(words, means, strict=True):
        distances = [np.linalg.norm(table[word].astype(float) - row) for k, row in enumerate(table) if k != word]
        assert mean == pytest.approx(np.mean(sorted(distances)[:5]), abs=1e-6)


@pytest.mark.parametrize("method", ["swep", "prior_aug"])
def test_the_table_against_loops(tmp_path, monkeypatch, method):
    bands = ((0, 5), (5, 40), (40, 5000), (5000, 10_000))
    monkeypatch.setattr(word_analyses, "BANDS", bands)
    run = load(tmp_path, method)
    examples = run.training_examples()
    table = by_frequency(run, examples, max_windows=len(examples))

    counts: Counter = Counter()
    for text in {text for example in examples for text in (example.question, example.context)}:
        counts.update(run.tokenizer(text, add_special_tokens=False)["input_ids"])
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    assert ranking(run, examples) == ranking(run, [*examples, *50 * examples[:1]]) == ranked  # a text counts once

    moved, mus = {}, {}
    for window in answer_windows(examples, run.tokenizer, run.windows):
        batch = run.batch([window])
        before, [perturbed] = run.perturb(batch)
        if method == "swep":
            mu_T = (1 + run.method.noise(run.hidden(before, batch))[0, :, :16].mean(-1)).tolist()
        for position in window.positions:
            token = window.input_ids[position]
            moved.setdefault(token, []).append((perturbed.embeddings - before)[0, position].norm().item())
            if method == "swep":
                mus.setdefault(token, []).append(mu_T[position])
    assert table["windows"] == len(examples)
    for (first, last), band in zip(bands, table["bands"], strict=True):
        words = ranked[first:last]
        seen = [word for word in words if word in moved]
        assert (band["ranks"], band["words"], band["words_seen"]) == ([first + 1, last], len(words), len(seen))
        assert (band["neighbour_distance"] is None) == (not words)
        for name, means in (("moved_distance", moved), ("mu", mus)):
            expected = [np.mean(means[word]) for word in seen if means]
            assert band[name] == (pytest.approx(np.mean(expected), rel=1e-4) if expected else None)

    text = markdown(table, "a run")
    assert "| frequency rank | [1, 5] | (5, 40] | (40, 5000] | (5000, 10000] |" in text
    assert "| mean mu, paper (BERT-base) | 1.2153 | 1.2402 | 1.2495 | 1.2543 |" in text
    assert (", beta constant;" in text) == (method == "swep")


@pytest.mark.slow
def test_coordinates_of_all_tokens(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    run = load(tmp_path)
    windows = windows_of(run, 2)
    table = coordinates(run, windows)
    texts = [text for window in windows for text in (window.example.question, window.example.context)]
    tokens = [token for text in texts for token in run.tokenizer.tokenize(text)]
    for _, rows in table.groupby(["space", "when"]):
        assert rows["token"].tolist() == tokens
        assert np.isfinite(rows[["x", "y"]]).all(axis=None)
    monkeypatch.setattr(word_analyses, "MAX_TOKENS", 12)
    few = coordinates(run, windows)
    assert coordinates(run, windows).equals(few)
    assert len(few) == 4 * 12
    plot_coordinates(few, "swep").savefig(tmp_path / "tsne.svg")
    drawn = (tmp_path / "tsne.svg").read_text()
    spaces = ("a  Word embeddings", "b  Contextual embeddings (last hidden state)")
    for label in (*spaces, "before perturbation", "after perturbation", "swep (12 tokens)"):
        assert f"<!-- {label} -->" in drawn
    assert sum(drawn.count(f"<!-- {token} -->") for token in set(few["token"])) >= 2  # the farthest of each panel


def test_labels_do_not_cover_each_other_in_panels_of_one_size():
    rng = np.random.default_rng(0)
    rows = [
        {"space": space, "when": when, "token": f"t{k}", "x": scale * rng.random(), "y": rng.random()}
        for space, scale in (("word", 9), ("contextual", 1))
        for when in ("before", "after")
        for k in range(30)
    ]
    figure = plot_coordinates(pd.DataFrame(rows), "swep")
    figure.draw_without_rendering()
    boxes = [axes.get_window_extent() for axes in figure.axes]
    assert [box.width for box in boxes] == pytest.approx([box.height for box in boxes], rel=0.01)
    for axes in figure.axes:
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        assert right - left == pytest.approx(high - low)
        assert 1 <= len(axes.texts) <= LABELLED
        drawn = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for k, a in enumerate(drawn) for b in drawn[k + 1 :])


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    assert "pip install scikit-learn" in refused(coordinates, None, [])
