"""studies/learned_noise/mechanism.py: closed forms on a quadratic nll, and loops."""

import sys
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from swep_ds.methods.base import Inputs, PassState, multiply_by_gaussian
from swep_ds.methods.noise_effect import shuffle
from swep_ds.models.outputs import QAOutput
from tests.support import scripts
from tests.support.finished import finished, load

ALPHA, STIFFNESS = 0.1, 2.0

mechanism = scripts.load("studies/learned_noise/mechanism.py")


class Quadratic(nn.Module):
    """nll = STIFFNESS / 2 * sum(e~^2) over the window's tokens, with embeddings of 1: k is STIFFNESS everywhere."""

    hidden_size = embedding_size = 16

    def embed(self, batch):
        return torch.ones(*batch.input_ids.shape, 16)

    def forward(self, embeddings, batch, *, hidden=False, layers=False):
        nll_N = STIFFNESS / 2 * (embeddings**2 * batch.attention_mask[..., None]).sum((1, 2))
        logits = torch.zeros(len(nll_N), 2, embeddings.shape[1])
        return QAOutput(nll_N, logits, torch.full((len(nll_N), 2), 0.5), torch.ones_like(embeddings))


@pytest.fixture
def run(tmp_path):
    return load(tmp_path, "prior_aug")


def test_curvature_of_a_quadratic_and_the_stationary_point_of_learned_noise(run):
    """mu - 1 = -(alpha / beta) E[g], where E[g] = k mu, and sigma^2 = alpha / (1 + alpha k / beta)."""
    quadratic = replace(run, qa=Quadratic())
    windows = mechanism.sample_windows(quadratic, quadratic.training_examples(), 6, "training")
    table = mechanism.curvature(quadratic, windows, draws=40)
    assert table.kind.tolist() == ["all", "answer", "question", "context", "special"]
    by_kind = table.set_index("kind")
    assert by_kind.k["all"] == pytest.approx(STIFFNESS, rel=0.05)
    assert by_kind.k["context"] == pytest.approx(STIFFNESS, rel=0.05)
    assert by_kind.squared_mean_gradient["all"] == pytest.approx(STIFFNESS**2)  # pairs of noise have its mean exactly
    assert by_kind.tokens["all"] == by_kind.tokens.drop("all").sum()
    ratio = 0.25
    method = mechanism.learn(quadratic, beta=ALPHA * STIFFNESS / ratio, learning_rate=0.01, updates=250)
    delta, log_ratio = method.noise(torch.ones(1, 1, 16)).chunk(2, -1)
    # means over dimensions: Adam keeps each of them in motion
    assert 1 + delta.mean().item() == pytest.approx(1 / (1 + ratio), abs=0.02)
    assert log_ratio.exp().mean().item() == pytest.approx(1 / (1 + ratio), rel=0.07)


def test_effects_against_a_loop(run):
    windows = mechanism.sample_windows(run, run.test_examples(), 5, "source")
    method = mechanism.learn(run, beta=1e-6, learning_rate=0.03, updates=3)
    measured, by_context = mechanism.effects(run, method, windows, draws=2), {}
    batch = run.batch(windows)  # one, as padding takes part in the softmax
    embeddings = run.qa.embed(batch)
    clean = run.qa(embeddings, batch, hidden=True)
    parameters, guess = method.noise(clean.hidden), clean.logits.argmax(-1)
    gold = torch.stack([batch.start_position, batch.end_position], 1)
    for draw in range(2):
        inputs = Inputs(torch.ones_like(embeddings), batch, run.recipe.seed, draw, PassState(clean.hidden), None)
        eps = (multiply_by_gaussian(inputs, ALPHA) - 1) / ALPHA**0.5
        noisy = {"prior": embeddings * (1 + ALPHA**0.5 * eps)}
        for name, values in (("learned", parameters), ("shuffled", shuffle(parameters, inputs))):
            delta, log_ratio = values.chunk(2, -1)
            noisy[name] = embeddings * (1 + delta + ALPHA**0.5 * (log_ratio / 2).exp() * eps)
        log_probs = {name: run.qa(moved, batch).logits.double().log_softmax(-1) for name, moved in noisy.items()}
        for n, window in enumerate(windows):
            row = {}
            for answer, choices in (("gold", gold[n]), ("guess", guess[n])):
                nll = {name: -p[n].gather(1, choices[:, None]).mean().item() for name, p in log_probs.items()}
                row |= {f"{answer}_{name}": nll[name] - nll["prior"] for name in ("learned", "shuffled")}
            delta, log_ratio = parameters[n, : len(window.input_ids)].double().chunk(2, -1)
            terms = delta**2 / ALPHA + log_ratio.exp() - 1 - log_ratio
            row["kl_per_window"] = terms.sum().item() / 2
            by_context.setdefault(window.example.context, []).append(row)
    rows = pd.DataFrame([row for group in by_context.values() for row in group])
    for name, mean in rows.mean().items():
        assert measured[name] == pytest.approx(mean, rel=1e-3, abs=2e-6)
        residuals = [sum(row[name] - mean for row in group) for group in by_context.values()]
        error = np.sqrt(np.sum(np.square(residuals))) / len(rows)
        assert measured[f"{name}_error"] == pytest.approx(error, rel=1e-3, abs=2e-6)


def test_the_script_writes_a_table_for_each_ratio_and_learning_rate(tmp_path, monkeypatch, capsys):
    run = finished(tmp_path, "prior_aug")
    output = tmp_path / "out"
    learn = mock.Mock(wraps=mechanism.learn)
    monkeypatch.setattr(mechanism, "learn", learn)
    options = "--updates 2 --windows 40 --factors 1 2 --ratios 1 10 --output"
    monkeypatch.setattr(sys, "argv", ["mechanism.py", str(run), *options.split(), str(output)])
    with pytest.raises(SystemExit, match="too uncertain to be the unit of beta: give more --windows"):
        mechanism.main()  # a random model has no curvature that can be told from 0
    known = pd.DataFrame({"kind": ["all"], "k": [3.0], "k_error": [0.1]})
    monkeypatch.setattr(mechanism, "curvature", lambda *_: known)
    mechanism.main()
    assert "guess_shuffled" in capsys.readouterr().out
    assert sorted(file.name for file in output.iterdir()) == ["curvature.csv", "mechanism.csv"]
    table = pd.read_csv(output / "mechanism.csv")
    assert table[["ratio", "factor"]].to_numpy().tolist() == [[1, 1], [1, 2], [10, 1], [10, 2]]
    expected = [(0.3, 1e-3), (0.3, 2e-3), (0.03, 1e-3), (0.03, 2e-3)]
    assert [call.args[1:3] for call in learn.call_args_list] == [pytest.approx(pair) for pair in expected]
