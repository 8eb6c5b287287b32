"""Coordinates of tokens before and after: which tokens, in which order, the same each time."""

import sys

import numpy as np
import pytest

from swep_ds.analysis.tsne import coordinates, draw
from swep_ds.errors import InputError
from tests.support.finished import load


@pytest.mark.slow
def test_coordinates_of_all_tokens(tmp_path):
    run = load(tmp_path)
    examples = run.test_examples()[:2]
    table = coordinates(run, examples, 500, seed=3)
    tokens = [
        token
        for example in examples
        for text in (example.question, example.context)
        for token in run.tokenizer.tokenize(text)
    ]
    for space in ("word", "contextual"):
        for when in ("before", "after"):
            rows = table[(table["space"] == space) & (table["when"] == when)]
            assert rows["token"].tolist() == tokens
            assert np.isfinite(rows[["x", "y"]]).all(axis=None)
    few = coordinates(run, examples, 12, seed=3)
    assert coordinates(run, examples, 12, seed=3).equals(few)
    assert len(few) == 4 * 12
    draw(few, "swep", [tmp_path / "tsne.svg"])
    drawn = (tmp_path / "tsne.svg").read_text()
    for label in ("Word embeddings", "before perturbation", "after perturbation", "swep (12 tokens)"):
        assert f"<!-- {label} -->" in drawn


def test_what_cannot_be_drawn(tmp_path, monkeypatch):
    run = load(tmp_path, "mle")
    with pytest.raises(InputError, match="t-SNE needs 10 tokens, and there are 0"):
        coordinates(run, [], 500, seed=0)
    with pytest.raises(InputError, match="it perturbs nothing"):
        coordinates(run, run.test_examples()[:1], 500, seed=0)
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(InputError, match=r"pip install 'swep-ds\[analysis\]'"):
        coordinates(run, run.test_examples()[:1], 500, seed=0)
