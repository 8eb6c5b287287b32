"""Training batches: who sees which window when, and that the weights make global means exact at any split."""

import math
from itertools import product

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch, Padding, TrainingBatches
from tests.support import tiny

SPLITS = {"micro": st.integers(1, 4), "accumulation": st.integers(1, 3), "world": st.integers(1, 3)}


def windows(n: int, types: bool = True, seed: int = 0) -> datasets.Dataset:
    """n windows of 3 to 12 random tokens; row i's first token is 100 + i."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 13, n)
    columns = {
        "input_ids": [[100 + i, *rng.integers(5, 50, size - 1).tolist()] for i, size in enumerate(lengths)],
        "length": lengths.tolist(),
        "start_position": rng.integers(0, 3, n).tolist(),
        "end_position": rng.integers(0, 3, n).tolist(),
    }
    if types:
        columns["token_type_ids"] = [[0] + [1] * (size - 1) for size in lengths]
    return datasets.Dataset.from_dict(columns)


def ranks(
    features, micro=2, accumulation=1, world=1, epochs=1.0, max_updates=None, seed=0, max_tokens=None, grouped=True
) -> list[TrainingBatches]:
    """The batches of every rank."""
    padding = Padding(0, 0 if "token_type_ids" in features.column_names else None)
    return [
        TrainingBatches(
            features,
            padding,
            micro_batch_size=micro,
            max_tokens=max_tokens,
            accumulation=accumulation,
            rank=rank,
            world_size=world,
            epochs=epochs,
            max_updates=max_updates,
            seed=seed,
            group_by_length=grouped,
        )
        for rank in range(world)
    ]


def update(batches: list[TrainingBatches], number: int) -> list[Batch]:
    """All micro-batches of an update, over ranks and micro-steps."""
    accumulation = batches[0].accumulation
    return [rank[number * accumulation + micro] for micro, rank in product(range(accumulation), batches)]


def real(micro_batches: list[Batch]) -> list[int]:
    return [int(row) for b in micro_batches for row, weight in zip(b.sample_id, b.weight, strict=True) if weight > 0]


@settings(max_examples=20)
@given(n=st.integers(1, 40), grouped=st.booleans(), **SPLITS)
def test_an_epoch_has_every_window_exactly_once(n, grouped, micro, accumulation, world):
    batches = ranks(windows(n), micro, accumulation, world, epochs=2, grouped=grouped)
    per_epoch = math.ceil(n / (micro * accumulation * world))
    assert {rank.updates for rank in batches} == {2 * per_epoch}
    assert {len(rank) for rank in batches} == {2 * per_epoch * accumulation}
    for epoch in range(2):
        seen = [row for u in range(per_epoch) for row in real(update(batches, epoch * per_epoch + u))]
        assert sorted(seen) == list(range(n))


@settings(max_examples=20)
@given(n=st.integers(1, 40), **SPLITS)
def test_weights_make_the_engines_mean_the_mean_over_the_global_batch(n, micro, accumulation, world):
    features = windows(n)
    loss_of_window = np.random.default_rng(1).normal(size=n)
    loss_of_token = np.random.default_rng(2).normal(size=(n, 12))
    batches = ranks(features, micro, accumulation, world)
    for number in range(batches[0].updates):
        micro_batches = update(batches, number)
        rows = real(micro_batches)
        # the engine adds up micro_batches / (ranks x accumulation)
        engine = np.mean([(b.weight.double().numpy() * loss_of_window[b.sample_id]).sum() for b in micro_batches])
        assert engine == pytest.approx(loss_of_window[rows].mean(), rel=1e-6, abs=1e-7)
        tokens = [loss_of_token[row, : features[row]["length"]] for row in rows]
        engine = np.mean(
            [
                sum(
                    weight * loss_of_token[row, : features[row]["length"]].sum()
                    for row, weight in zip(b.sample_id.tolist(), b.token_weight.tolist(), strict=True)
                )
                for b in micro_batches
            ]
        )
        assert engine == pytest.approx(np.concatenate(tokens).mean(), rel=1e-6, abs=1e-7)


@settings(max_examples=20)
@given(n=st.integers(1, 40), seed=st.integers(0, 3), grouped=st.booleans(), **SPLITS)
def test_an_update_has_the_same_windows_and_padding_at_any_split(n, seed, grouped, micro, accumulation, world):
    features = windows(n)
    whole = ranks(features, micro * accumulation * world, seed=seed, grouped=grouped)
    split = ranks(features, micro, accumulation, world, seed=seed, grouped=grouped)
    assert whole[0].updates == split[0].updates
    for number in range(whole[0].updates):
        micro_batches = update(split, number)
        (together,) = update(whole, number)
        assert sorted(real(micro_batches)) == sorted(together.sample_id.tolist())
        widths = {b.input_ids.shape[1] for b in micro_batches}
        assert widths == {together.input_ids.shape[1]} == {max(features[together.sample_id.tolist()]["length"])}


@settings(max_examples=20)
@given(n=st.integers(1, 40), grouped=st.booleans(), data=st.data(), **SPLITS)
def test_an_item_does_not_depend_on_the_items_before(n, grouped, data, micro, accumulation, world):
    features = windows(n)
    through, fresh = (ranks(features, micro, accumulation, world, epochs=3, grouped=grouped)[-1] for _ in range(2))
    items = [through[k] for k in range(len(through))]
    k = data.draw(st.integers(0, len(items) - 1))
    for left, right in zip(items[k], fresh[k], strict=True):
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.parametrize("grouped", [True, False])
def test_order_differs_between_epochs_and_seeds_and_not_between_runs(grouped):
    features = windows(30)

    def order(seed: int, epoch: int) -> tuple[int, ...]:
        (batches,) = ranks(features, micro=3, epochs=2, seed=seed, grouped=grouped)
        return tuple(row for update in range(10) for row in batches.windows(epoch * 10 + update).tolist())

    assert order(0, 0) == order(0, 0)
    assert len({order(seed, epoch) for seed in range(3) for epoch in range(2)}) == 6


def test_windows_of_an_update_are_of_similar_length_and_updates_are_not_in_order_of_length():
    (batches,) = ranks(windows(400), micro=8)
    lengths = [batches.lengths[batches.windows(update)] for update in range(batches.updates)]
    padding = 1 - sum(map(sum, lengths)) / sum(len(update_lengths) * max(update_lengths) for update_lengths in lengths)
    assert padding < 0.05  # a third and more in batches at random
    longest = [max(update_lengths) for update_lengths in lengths]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_ungrouped_updates_are_as_random_as_a_shuffle():
    """The published procedure's batches, each padded to its longest window: lengths of an update tell nothing."""
    (batches,) = ranks(windows(4000), micro=8, grouped=False)
    lengths = np.array([batches.lengths[batches.windows(update)] for update in range(batches.updates)])
    assert lengths.mean(1).var() == pytest.approx(lengths.var() / 8, rel=0.2)  # 3 deviations of 500 updates' variance
    assert batches[0].input_ids.shape == (8, lengths[0].max())


@pytest.mark.parametrize(
    ("n", "epochs", "max_updates", "expected"),
    [
        (42, 2, None, 12),  # 6 updates an epoch, the last of 2 windows
        (42, 0.5, None, 3),
        (42, 0.01, None, 1),
        (42, 2, 5, 5),
        (42, 2, 500, 12),
        (80, 1.1, None, 11),  # 1.1 * 10 is 11.000000000000002
        (40, 1 / 3, None, 2),
    ],
)
def test_number_of_updates(n, epochs, max_updates, expected):
    (batches,) = ranks(windows(n), micro=8, epochs=epochs, max_updates=max_updates)
    assert (batches.updates, len(batches)) == (expected, expected)


def test_columns_padding_and_token_types():
    features = windows(4)
    (batches,) = ranks(features, micro=4)
    batch = batches[0]
    width = max(features["length"])
    for i, row in enumerate(batch.sample_id.tolist()):
        window = features[row]
        rest = width - window["length"]
        assert batch.input_ids[i].tolist() == window["input_ids"] + [0] * rest
        assert batch.attention_mask[i].tolist() == [1] * window["length"] + [0] * rest
        assert batch.token_type_ids[i].tolist() == window["token_type_ids"] + [0] * rest
        assert batch.start_position[i] == window["start_position"]
        assert batch.end_position[i] == window["end_position"]
    integers = (*batch[:3], batch.start_position, batch.end_position, batch.sample_id)
    assert {t.dtype for t in integers} == {torch.int64}
    assert batch.weight.dtype == batch.token_weight.dtype == torch.float32
    assert batch.lengths == tuple(features[batch.sample_id.tolist()]["length"])


@pytest.mark.parametrize(("tokenizer", "token", "types"), [("wordpiece", 0, 0), ("byte_bpe", 1, None)])
def test_padding_is_the_tokenizers(tokenizer, token, types):
    assert Padding.of(tiny.TOKENIZERS[tokenizer]()) == Padding(token, types)
    inputs = Padding(token, types).inputs({"input_ids": [[7, 8, 9], [5]], "token_type_ids": [[0, 1, 1], [1]]}, 4)
    assert inputs["input_ids"].tolist() == [[7, 8, 9, token], [5, token, token, token]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert ("token_type_ids" in inputs) == (types is not None)


# Budgets of tokens


@settings(max_examples=20)
@given(
    n=st.integers(1, 60),
    max_tokens=st.integers(12, 60),
    world=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    grouped=st.booleans(),
)
def test_a_budget_bounds_every_micro_batch_and_gives_all_ranks_equal_work(n, max_tokens, world, accumulation, grouped):
    features = windows(n)
    batches = ranks(features, 99, accumulation, world, epochs=2, max_tokens=max_tokens, grouped=grouped)
    assert len({rank.updates for rank in batches}) == 1
    seen = []
    for number in range(batches[0].updates):
        micro_batches = update(batches, number)
        assert all(b.input_ids.numel() <= max_tokens for b in micro_batches)
        assert len({b.input_ids.shape[1] for b in micro_batches}) == 1
        rows = real(micro_batches)
        assert sorted(rows) == sorted(batches[0].windows(number).tolist())
        sizes = [int((b.weight > 0).sum()) for b in micro_batches]
        assert max(sizes) - min(sizes) <= 1
        # the engine's mean over micro-batches and ranks is the mean over the update's windows
        value = np.random.default_rng(number).normal(size=n)
        engine = np.mean([(b.weight.double().numpy() * value[b.sample_id]).sum() for b in micro_batches])
        assert engine == pytest.approx(value[rows].mean(), rel=1e-6, abs=1e-7)
        seen += rows
    assert sorted(seen) == sorted([*range(n)] * 2)


def squad_like(n: int) -> datasets.Dataset:
    """Lengths spread as SQuAD's: most windows from 100 to 250 tokens, a tail up to 384."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5.05, 0.35, n), 40, 384).astype(int)
    return datasets.Dataset.from_dict({"input_ids": [[1]] * n, "length": lengths.tolist()})


@pytest.mark.parametrize("budget", [None, 2048, 8192])
def test_padding_is_below_three_percent_on_lengths_like_squads(budget):
    (batches,) = ranks(squad_like(6000), micro=8, accumulation=2, epochs=1.5, max_tokens=budget)
    lengths = [batches.lengths[batches.windows(update)] for update in range(batches.updates)]
    real, padded = sum(map(sum, lengths)), sum(len(update_lengths) * max(update_lengths) for update_lengths in lengths)
    assert 1 - real / padded < 0.03
    if budget:  # and the budget is used: what is left is less than a window in each micro-batch
        assert np.median([len(update_lengths) * max(update_lengths) for update_lengths in lengths]) > 0.9 * 2 * budget
    first = {tuple(batches.windows(update)) for update in range(batches.updates_per_epoch)}
    assert not first & {tuple(batches.windows(update)) for update in range(batches.updates_per_epoch, batches.updates)}


@pytest.mark.parametrize("epochs", [2.3, 1000.0])
@pytest.mark.parametrize("max_updates", [1, 7, 20, 23])
def test_with_a_budget_no_epoch_is_cut_that_max_updates_leave_out(monkeypatch, epochs, max_updates):
    cut, shuffled = [], TrainingBatches._shuffled
    monkeypatch.setattr(TrainingBatches, "_shuffled", lambda self, epoch: cut.append(epoch) or shuffled(self, epoch))
    features = windows(40)
    [whole] = ranks(features, 99, epochs=2.3, max_tokens=60)
    each = whole.updates_per_epoch
    cut.clear()
    [batches] = ranks(features, 99, epochs=epochs, max_updates=max_updates, max_tokens=60)
    assert batches.updates == (max_updates if epochs > 3 else min(max_updates, whole.updates))
    assert len(cut) <= 2 + max_updates // (each - 2)
    for number in range(min(whole.updates, batches.updates)):
        assert batches.windows(number).tolist() == whole.windows(number).tolist()


def test_a_window_longer_than_the_budget_is_refused():
    with pytest.raises(InputError, match=r"train\.max_tokens 11: the longest window has 12 tokens: raise it"):
        ranks(windows(60), max_tokens=11)
