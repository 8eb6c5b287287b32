"""What a benchmark of updates says about each method, on a tiny model (no timing is judged), and the published
procedure's loss against its formulas."""

import json
import math
import runpy
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from swep_ds.cost import candidates, suite
from swep_ds.cost.candidates import Published, largest_batch, sample
from swep_ds.models.extractive import ExtractiveQA
from tests.data.test_batches import ranks, windows
from tests.support import tiny_models
from tests.support.bad_input import refused
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_batches import batch
from tests.support.tiny_run import ds_config, prepare

BENCH = ROOT / "scripts" / "bench_training.py"


def bench(folder, *methods: str, stage: int, ranks: int = 1) -> tuple[dict, str]:
    recipe, config = str(prepare(folder)), str(ds_config(folder, stage))
    few = ["--updates", "2", "--warmup", "3", "--json", str(folder / "bench.json"), "--methods"]
    ended = run_script(BENCH, "--recipe", recipe, "--ds_config", config, *few, *methods, ranks=ranks)
    return json.loads((folder / "bench.json").read_text()), ended.stdout


@pytest.mark.slow
def test_methods_are_measured_side_by_side(tmp_path):
    names = ["mle", "swep", "swep:joint", "published"]
    figures, said = bench(tmp_path, *names, stage=3)
    rows = {row["name"]: row for row in figures["rows"]}
    assert list(rows) == [*names, "published:random"]
    assert rows["mle"]["time_ratio"] == rows["mle"]["memory_ratio"] == 1
    assert math.isfinite(rows["published"]["time_ratio"])
    assert rows["published:random"]["time_ratio"] is None
    assert all(row["flops_per_second"] > 0 for row in rows.values())
    assert 0 < rows["mle"]["peak_bytes"] < rows["swep"]["peak_bytes"] < rows["swep:joint"]["peak_bytes"]
    # random batches waste more of their positions
    assert rows["published"]["padding"] == rows["mle"]["padding"] < rows["published:random"]["padding"]
    times = rows["swep"]["samples_per_second"] / rows["published:random"]["samples_per_second"]
    assert figures["samples_per_second_to_published"]["swep"] == pytest.approx(times)
    assert all(name in said for name in rows)


@pytest.mark.slow
def test_several_ranks_are_measured_without_the_published_procedure_which_runs_on_one(tmp_path, monkeypatch):
    figures, _ = bench(tmp_path, "mle", "swep", stage=2, ranks=2)
    assert (figures["ranks"], len(figures["rows"])) == (2, 2)
    monkeypatch.setattr(suite, "ranks", SimpleNamespace(process_group=nullcontext, world_size=lambda: 2))
    said = refused(suite.side_by_side, {"published": None}, "zero2", "published", updates=2, warmup=0)
    assert said == "published: runs on one rank: name other --methods, or start one process"


@pytest.mark.parametrize("on_gpu", [False, True])
def test_on_a_gpu_no_candidate_pays_for_the_first_use_of_a_shape(monkeypatch, on_gpu):
    calls = []
    monkeypatch.setattr(candidates.accelerator, "on_gpu", lambda: on_gpu)
    monkeypatch.setattr(candidates.ranks, "synchronize", lambda: None)
    pair = []
    for name in ("mle", "swep"):

        def update(batch, number, name=name):
            calls.append((name, batch))

        pair.append(SimpleNamespace(update=update, batches=["a", "b", "c"], seconds=[]))
    candidates.measure(pair, warmup=1)
    in_turns = [(name, batch) for batch in "abc" for name in ("mle", "swep")]
    first = [(name, batch) for name in ("mle", "swep") for batch in "bc"]
    assert calls == (first + in_turns if on_gpu else in_turns)
    assert [len(each.seconds) for each in pair] == [2, 2]


def test_a_sample_of_updates_stands_for_the_epoch_and_memory_is_that_of_its_largest():
    """One from each tenth of the updates by size: sizes average to the epoch's, to a step between two tenths."""
    [batches] = ranks(windows(400), micro=4, max_updates=3)
    drawn = sample(batches, warmup=2, updates=10)
    assert [batch.sample_id.tolist() for batch in drawn[:2]] == [batch.sample_id.tolist() for batch in drawn[2:4]]
    [epoch] = ranks(windows(400), micro=4)
    rows = {tuple(epoch.windows(number)): epoch[number].input_ids.numel() for number in range(100)}
    assert largest_batch(batches).input_ids.numel() == max(rows.values())
    sizes = sorted(rows[tuple(batch.sample_id.tolist())] for batch in drawn[2:])
    tenths = np.sort(list(rows.values())).reshape(10, 10)
    assert all(low <= size <= high for size, low, high in zip(sizes, tenths.min(1), tenths.max(1), strict=True))
    assert np.mean(sizes) == pytest.approx(tenths.mean(), rel=0.03)


def test_bad_arguments_are_reported_before_anything_is_loaded(monkeypatch):
    for arguments, message in (
        (["--json", "no/such/file.json"], "--json no/such/file.json: there is no folder no/such: make it first"),
        (["--updates", "1"], "--updates: 1 must be at least 2"),
        (["--methods", "mle", "ssmba"], "--methods ssmba: ssmba's update is mle's: measure mle"),
        (["--methods", "mle", "swap"], "'swap' is not a method; did you mean 'swep'?"),
        (["--profile", "--methods", "published"], "published: it has no engine: leave --profile and --op"),
    ):
        monkeypatch.setattr(sys, "argv", ["bench_training.py", *arguments])
        assert message in refused(runpy.run_path(str(BENCH))["bench"])


def test_loss_and_gradient_of_the_published_procedure_are_those_of_its_formulas():
    torch.manual_seed(3)
    published = Published(ExtractiveQA(tiny_models.model("bert", dropout=0.0))).double().train()
    given, model = batch(), published.qa.model
    torch.manual_seed(5)
    published(given).backward()

    words = model.get_input_embeddings()(given.input_ids)
    rest = {"attention_mask": given.attention_mask, "output_hidden_states": True}
    answer = {"start_positions": given.start_position, "end_positions": given.end_position}
    clean = model(inputs_embeds=words, **rest, **answer)
    mu, log_variance = published.method(clean.hidden_states[-1].detach()).chunk(2, -1)
    sigma = log_variance.exp().sqrt()
    torch.manual_seed(5)
    noisy = model(inputs_embeds=words * (mu + sigma * torch.randn_like(mu)), **rest, **answer)
    alpha = (0.1 / 0.9) ** 0.5
    kl_NTd = kl_divergence(Normal(mu, sigma), Normal(torch.ones_like(mu), torch.full_like(mu, alpha**0.5)))
    tokens = [kl_NTd[n, t].sum() for n, t in given.attention_mask.nonzero().tolist()]
    expected = 0.5 * clean.loss + 0.5 * noisy.loss + sum(tokens) / len(tokens)

    torch.manual_seed(5)
    torch.testing.assert_close(published(given), expected)
    parameters = [p for p in published.parameters() if p.grad is not None]
    for parameter, gradient in zip(parameters, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
