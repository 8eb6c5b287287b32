"""Coordinates of tokens before and after: which tokens, in which order, the same each time."""

import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from swep_ds.analysis import tsne
from swep_ds.analysis.tsne import LABELLED, coordinates, draw
from tests.support.bad_input import refused
from tests.support.finished import load, windows_of


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
    monkeypatch.setattr(tsne, "MAX_TOKENS", 12)
    few = coordinates(run, windows)
    assert coordinates(run, windows).equals(few)
    assert len(few) == 4 * 12
    draw(few, "swep", tmp_path)
    drawn = (tmp_path / "tsne.svg").read_text()
    spaces = ("a  Word embeddings", "b  Contextual embeddings (last hidden state)")
    for label in (*spaces, "before perturbation", "after perturbation", "swep (12 tokens)"):
        assert f"<!-- {label} -->" in drawn
    assert sum(drawn.count(f"<!-- {token} -->") for token in set(few["token"])) >= 2  # the farthest of each panel


def test_labels_do_not_cover_each_other_in_panels_of_one_size(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = [
        {"space": space, "when": when, "token": f"t{k}", "x": scale * rng.random(), "y": rng.random()}
        for space, scale in (("word", 9), ("contextual", 1))
        for when in ("before", "after")
        for k in range(30)
    ]
    figures = []
    monkeypatch.setattr(tsne, "Figure", lambda **options: figures.append(Figure(**options)) or figures[0])
    draw(pd.DataFrame(rows), "swep", tmp_path)
    boxes = [axes.get_window_extent() for axes in figures[0].axes]
    assert [box.width for box in boxes] == pytest.approx([box.height for box in boxes], rel=0.01)
    for axes in figures[0].axes:
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        assert right - left == pytest.approx(high - low)
        assert 1 <= len(axes.texts) <= LABELLED
        drawn = [text.get_window_extent() for text in axes.texts]
        assert not any(a.overlaps(b) for k, a in enumerate(drawn) for b in drawn[k + 1 :])


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    assert "pip install scikit-learn" in refused(coordinates, None, [])
