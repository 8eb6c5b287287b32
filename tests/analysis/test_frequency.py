"""The table by word frequency: every figure against plain loops."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch

from swep_ds.analysis import frequency
from swep_ds.analysis.frequency import by_frequency, markdown, neighbour_distance, ranking
from swep_ds.analysis.trained_run import answer_windows
from tests.support.finished import load

BANDS = ((0, 5), (5, 40), (40, 5000), (5000, 10_000))


def test_neighbours_against_a_loop():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(23, 4)).astype(np.float32)
    table[1] = table[0]  # equal rows are neighbours at distance 0
    words = rng.permutation(23)[:6]
    with mock.patch.object(frequency, "ROWS", 4):
        means = neighbour_distance(torch.from_numpy(table), words)
    for word, mean in zip(words, means, strict=True):
        distances = [np.linalg.norm(table[word].astype(float) - row) for k, row in enumerate(table) if k != word]
        assert mean == pytest.approx(np.mean(sorted(distances)[:5]), abs=1e-6)


@pytest.mark.parametrize("method", ["swep", "prior_aug"])
def test_the_table_against_loops(tmp_path, monkeypatch, method):
    monkeypatch.setattr(frequency, "BANDS", BANDS)
    run = load(tmp_path, method)
    examples = run.training_examples()
    table = by_frequency(run, examples, max_windows=len(examples))

    counts: Counter = Counter()
    for text in {text for example in examples for text in (example.question, example.context)}:
        counts.update(run.tokenizer(text, add_special_tokens=False)["input_ids"])
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    assert ranking(run, examples) == ranked

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
    for (first, last), band in zip(BANDS, table["bands"], strict=True):
        words = ranked[first:last]
        seen = [word for word in words if word in moved]
        assert (band["ranks"], band["words"], band["words_seen"]) == ([first + 1, last], len(words), len(seen))
        assert (band["neighbour_distance"] is None) == (not words)
        for name, means in (("moved_distance", moved), ("mu", mus)):
            expected = None
            if seen and means:
                expected = pytest.approx(np.mean([np.mean(means[word]) for word in seen]), rel=1e-4)
            assert band[name] == expected

    text = markdown(table, "a run")
    assert "| frequency rank | [1, 5] | (5, 40] | (40, 5000] | (5000, 10000] |" in text
    assert "| mean mu, paper (BERT-base) | 1.2153 | 1.2402 | 1.2495 | 1.2543 |" in text
    assert (", beta constant;" in text) == (method == "swep")
