"""Coordinates of tokens before and after: which tokens, in which order, the same each time."""

import sys

import numpy as np
import pytest

from swep_ds.analysis import tsne
from swep_ds.analysis.tsne import coordinates, draw
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


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    assert "pip install scikit-learn" in refused(coordinates, None, [])
