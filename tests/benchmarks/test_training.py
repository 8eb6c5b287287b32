"""What a benchmark of updates says about each method, on a tiny model (no timing is judged), and the published
procedure's loss against its formulas."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from benchmarks.training import __main__
from benchmarks.training.candidates import largest_batch, sample
from benchmarks.training.updates import Published, plain_update, trainer_update
from swep_ds.methods import build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.pipeline.recipe import Recipe
from tests.data.test_batches import ranks, windows
from tests.support import tiny_models
from tests.support.bad_input import refused
from tests.support.fork_server import run_script
from tests.support.tiny_batches import batch
from tests.support.tiny_run import ds_config, prepare


def bench(folder, *options: str, ranks: int = 1) -> tuple[dict, str]:
    few = ["--updates", "2", "--warmup", "3", "--json", str(folder / "bench.json")]
    ended = run_script("benchmarks.training", "--recipe", str(prepare(folder)), *few, *options, ranks=ranks)
    return json.loads((folder / "bench.json").read_text()), ended.stdout


@pytest.mark.slow
def test_methods_and_ways_to_train_them_are_measured_side_by_side(tmp_path):
    ways = ["zero1", "plain", "trainer"]
    methods = ["mle", "swep", "swep:joint", "published"]
    figures, said = bench(tmp_path, "--methods", *methods, "--ways", *ways, "--peak_tflops", "1")
    rows = {row["name"]: row for row in figures["rows"]}
    mle = [f"mle {way}" for way in ways]
    swep = [f"{method} {way}" for method in ("swep", "swep:joint") for way in ("zero1", "plain")]
    assert list(rows) == [*mle, *swep, "published", "published:random"]
    assert [row["zero_stage"] for row in rows.values()] == [1, None, None, 1, None, 1, None, None, None]
    first = rows["mle zero1"]
    assert first["time_ratio"] == first["process_ratio"] == first["memory_ratio"] == 1
    bases = {name: row.get("compared_with") for name, row in rows.items()}
    assert {name for name, base in bases.items() if base == "mle zero1"} == {*mle, swep[0], swep[2], "published"}
    assert (bases["swep plain"], bases["swep:joint plain"]) == ("swep zero1", "swep:joint zero1")
    assert math.isfinite(rows["swep plain"]["time_ratio"])
    assert bases["published:random"] is None  # on other batches
    assert all(row["share_of_peak"] == row["flops_per_second"] / 1e12 > 0 for row in rows.values())
    sizes = [rows[f"{method} zero1"]["peak_bytes"] for method in methods[:3]]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    assert [name for name, row in rows.items() if row["peak_bytes"] is None] == ["mle trainer"]  # it needs a GPU
    # random batches waste more of their positions
    assert rows["published"]["padding"] == first["padding"] < rows["published:random"]["padding"]
    times = rows["swep zero1"]["samples_per_second"] / rows["published:random"]["samples_per_second"]
    assert rows["swep zero1"]["speed_to_published"] == pytest.approx(times)
    assert all(name in said for name in rows)


@pytest.mark.slow
def test_several_ranks_are_measured_side_by_side(tmp_path):
    figures, _ = bench(tmp_path, "--methods", "mle", "swep", "--ds_config", str(ds_config(tmp_path, 3)), ranks=2)
    assert (figures["ranks"], [row["name"] for row in figures["rows"]]) == (2, ["mle", "swep"])
    assert {row["zero_stage"] for row in figures["rows"]} == {3}


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
        (["--operations", "--methods", "published"], "in plain PyTorch: leave out --ds_config, --ways, published"),
        (["--methods", "all", "mle"], "--methods: mle is given twice: leave one out"),
        (
            ["--ways", "zero1", "--set", "train.cuda_graphs=true"],
            "--set train.cuda_graphs: with --ways, a way that ends in +graphs sets it: leave --set out",
        ),
        (["--methods", "mle", "--ways", "plian"], "--ways plian: is neither plain, trainer nor a ds_config ("),
        (["--methods", "swep", "--ways", "trainer"], "Hugging Face's Trainer trains mle: add it to --methods"),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmarks.training", *arguments])
        assert message in refused(__main__.bench)


def test_loss_and_gradient_of_the_published_procedure_are_those_of_its_formulas():
    torch.manual_seed(3)
    published = Published(ExtractiveQA(tiny_models.model("bert", dropout=0.0))).double().train()
    given, model = batch(), published.qa.model
    torch.manual_seed(5)
    published(given)[0].backward()

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
    torch.testing.assert_close(published(given)[0], expected)
    parameters = [p for p in published.parameters() if p.grad is not None]
    for parameter, gradient in zip(parameters, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_a_plain_loop_and_the_trainer_make_the_update_of_adamw_on_the_models_own_loss():
    """The last batch has no answers, which the Trainer refuses. With Adam's usual epsilon a gradient of rounding errors
    alone, such as a key's bias has, would change a weight as much as any other."""
    windows = batch()
    settings = ["train.max_grad_norm=0.1", "train.learning_rate=1e-3", "train.adam_epsilon=1e-3"]
    recipe = Recipe.load("quickstart", ["method.name=mle", *settings])
    inputs = {"input_ids": windows.input_ids, "attention_mask": windows.attention_mask}
    answers = {"start_positions": windows.start_position, "end_positions": windows.end_position}
    expected = tiny_models.model("bert", dropout=0.0).train()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-3, eps=1e-3, weight_decay=0.0)
    looped, trained = (ExtractiveQA(tiny_models.model("bert", dropout=0.0)) for _ in range(2))
    objective = Objective(looped, build(recipe.method, looped.hidden_size, looped.embedding_size), 0)
    plain, trainer = plain_update(objective, recipe.train), trainer_update(trained.model, recipe.train)
    for number in range(2):
        optimizer.zero_grad()
        expected(**inputs, **answers).loss.backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
        optimizer.step()
        plain(windows, number)
        trainer(windows, number)
    for qa in (looped, trained):
        for mine, theirs in zip(qa.model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match="did not return a loss"):
        trainer(windows._replace(start_position=None), 2)
