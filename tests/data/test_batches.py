import math
from itertools import chain, product
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from swep_ds.common.errors import InputError
from swep_ds.data.batches import Batch, TrainingBatches, padded_inputs
from tests.support import tiny
from tests.support.mixed_order import rows_of_updates


def windows(n: int) -> datasets.Dataset:
    """n windows of 3 to 12 random tokens; row i's first token is 100 + i."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 13, n)
    columns = {
        "input_ids": [[100 + i, *rng.integers(5, 50, size - 1).tolist()] for i, size in enumerate(lengths)],
        "length": lengths.tolist(),
        "start_position": rng.integers(0, 3, n).tolist(),
        "end_position": rng.integers(0, 3, n).tolist(),
        "token_type_ids": [[0] + [1] * (size - 1) for size in lengths],
    }
    return datasets.Dataset.from_dict(columns)


def ranks(features, micro=2, accumulation=1, world=1, **options) -> list[TrainingBatches]:
    """The batches of every rank."""
    tokenizer = SimpleNamespace(pad_token_id=0, pad_token_type_id=0, model_input_names=features.column_names)
    options = {"epochs": 1.0, "max_updates": None, "seed": 0} | options
    options |= {"micro_batch_size": micro, "accumulation": accumulation, "world_size": world}
    return [TrainingBatches(features, tokenizer, rank=rank, **options) for rank in range(world)]


def update(batches: list[TrainingBatches], number: int) -> list[Batch]:
    """All micro-batches of an update, over ranks and micro-steps."""
    accumulation = batches[0].accumulation
    return [rank[number * accumulation + micro] for micro, rank in product(range(accumulation), batches)]


def real(micro_batches: list[Batch]) -> list[int]:
    return [int(row) for b in micro_batches for row, weight in zip(b.sample_id, b.weight, strict=True) if weight > 0]


def filled(order: list[int], widths: list[int], micro_batches: int, budget: int) -> list[list[int]]:
    """The rows in their order, in updates of so many micro-batches: each takes rows for as long as they fit."""
    updates = [[]]
    for row in order:
        longer = [*updates[-1], row]
        if math.ceil(len(longer) / micro_batches) * max(widths[row] for row in longer) > budget:
            updates.append([])
            longer = [row]
        updates[-1] = longer
    return updates


UNSHRUNK = (Phase.explicit, Phase.generate)  # making a failing case smaller would take minutes


@settings(max_examples=40, deadline=None, phases=UNSHRUNK)
@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 3),
    grouped=st.booleans(),
    budget=st.none() | st.integers(12, 60),
    micro=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    world=st.integers(1, 3),
    multiple=st.sampled_from([1, 4, 5]),
)
def test_an_epoch_has_each_window_once_and_an_update_is_the_same_at_any_split(
    n, seed, grouped, budget, micro, accumulation, world, multiple
):
    features = windows(n)
    lengths = np.array(features["length"][:])
    values = np.random.default_rng(1).normal(size=n)
    options = {"epochs": 2, "seed": seed, "max_tokens": budget, "group_by_length": grouped}
    options["pad_to_multiple_of"] = multiple
    split = ranks(features, micro, accumulation, world, **options)
    alone = ranks(features, micro, accumulation * world, **options)
    assert {len(rank) for rank in split} == {alone[0].updates * accumulation}
    seen = []
    for number in range(alone[0].updates):
        parts = update(split, number)
        rows = real(parts)
        assert sorted(rows) == sorted(real(update(alone, number))) == sorted(alone[0].windows(number).tolist())
        widths = {batch.input_ids.shape[1] for batch in parts + update(alone, number)}
        rounded = math.ceil(lengths[rows].max() / multiple) * multiple
        assert widths == {min(rounded, lengths.max())}  # the model may take no more
        before = {batch.width if batch.width is None else batch.width.item() for batch in parts}
        assert before == {None if multiple == 1 else lengths[rows].max()}
        if budget:
            assert all(batch.input_ids.numel() <= budget for batch in parts)
            sizes = [int((batch.weight > 0).sum()) for batch in parts]
            assert max(sizes) - min(sizes) <= 1
        # the engine's mean over micro-batches and ranks is the mean over the update's windows, or over its tokens
        for name, count in (("weight", len(rows)), ("token_weight", lengths[rows].sum())):
            engine = np.mean([(getattr(b, name).double().numpy() * values[b.sample_id]).sum() for b in parts])
            assert engine == pytest.approx(values[rows].sum() / count, rel=1e-6, abs=1e-7)
        seen += rows
    assert sorted(seen[:n]) == sorted(seen[n:]) == [*range(n)]
    if budget:
        rng = np.random.default_rng([seed, 0])
        rng.permutation(n)
        unshuffled = np.argsort(rng.permutation(alone[0].updates_per_epoch))
        updates = [alone[0].windows(number).tolist() for number in unshuffled]
        widths = np.minimum(-(-lengths // multiple) * multiple, lengths.max()).tolist()
        assert updates == filled(list(chain(*updates)), widths, accumulation * world, budget)


@settings(max_examples=25, deadline=None, phases=UNSHRUNK)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=3),
    weights=st.lists(st.sampled_from([0.001, 0.3, 1, 7]), min_size=3, max_size=3),
    seed=st.integers(0, 3),
    grouped=st.booleans(),
    micro=st.integers(1, 4),
    world=st.integers(1, 3),
)
def test_the_order_of_a_mix_is_that_of_plain_loops_at_any_split(sizes, weights, seed, grouped, micro, world):
    features = windows(sum(sizes))
    mix = list(zip(sizes, weights, strict=False))
    options = {"epochs": 3, "seed": seed, "group_by_length": grouped, "mix": mix}
    split = ranks(features, micro, 2, world, **options)
    [alone] = ranks(features, 2 * micro * world, **options)
    order = {"seed": seed, "epochs": 3, "global_batch": 2 * micro * world, "by_length": grouped}
    expected = rows_of_updates(features["length"], sizes, weights[: len(sizes)], **order)
    assert [alone.windows(update).tolist() for update in range(alone.updates)] == expected
    ends = np.cumsum(sizes)
    shares = np.array([weight for _, weight in mix]) / sum(weight for _, weight in mix)
    counted = np.zeros(sum(sizes), int)
    for number, rows in enumerate(expected):
        assert sorted(real(update(split, number))) == sorted(rows)
        if min(shares) * sum(sizes) >= 1:  # else a source has one window an epoch, which is more than its share
            counts = np.bincount(np.searchsorted(ends, rows, side="right"), minlength=len(sizes))
            assert np.abs(counts - shares * len(rows)).max() <= 2
        np.add.at(counted, rows, 1)
        if (number + 1) % alone.updates_per_epoch == 0:  # passes go on over epochs
            assert all(np.ptp(part) <= 1 for part in np.split(counted, ends[:-1]))
    [budgeted] = ranks(features, max_tokens=60, **options)  # which decides how many windows an update takes
    rows = np.concatenate([budgeted.windows(update) for update in range(budgeted.updates)])
    assert sorted(rows) == sorted(np.concatenate(expected))


@pytest.mark.parametrize("grouped", [True, False])
def test_order_differs_between_epochs_and_seeds_and_not_between_runs(grouped):
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        (batches,) = ranks(windows(30), micro=3, epochs=2, seed=seed, group_by_length=grouped)
        return tuple(np.concatenate([batches.windows(epoch * 10 + update) for update in range(10)]).tolist())

    assert order(0, 0) == order(0, 0)
    assert len({order(seed, epoch) for seed in range(3) for epoch in range(2)}) == 6


def test_ungrouped_updates_are_as_random_as_a_shuffle():
    """The published procedure's batches: lengths of an update tell nothing."""
    (batches,) = ranks(windows(4000), micro=8, group_by_length=False)
    lengths = np.array([batches.lengths[batches.windows(update)] for update in range(batches.updates)])
    assert lengths.mean(1).var() == pytest.approx(lengths.var() / 8, rel=0.2)  # 3 deviations of 500 updates' variance


@pytest.mark.parametrize(
    ("n", "epochs", "max_updates", "expected"),
    [
        (42, 2, None, 12),  # 6 updates an epoch, the last of 2 windows
        (42, 0.5, None, 3),
        (42, 0.01, None, 1),
        (42, 2, 500, 12),
        (80, 1.1, None, 11),  # 1.1 * 10 is 11.000000000000002
        (40, 1 / 3, None, 2),
    ],
)
def test_number_of_updates(n, epochs, max_updates, expected):
    (batches,) = ranks(windows(n), micro=8, epochs=epochs, max_updates=max_updates)
    assert (batches.updates, len(batches)) == (expected, expected)


@pytest.mark.parametrize(("tokenizer", "token", "types"), [("wordpiece", 0, 0), ("byte_bpe", 1, None)])
def test_columns_are_padded_as_the_tokenizer_says(tokenizer, token, types):
    xlnet = SimpleNamespace(model_input_names=["input_ids", "token_type_ids"], pad_token_id=5, pad_token_type_id=3)
    inputs = padded_inputs(xlnet, {"input_ids": [[9]], "token_type_ids": [[0]]}, 2)
    assert {name: values.tolist() for name, values in inputs.items()} == {
        "input_ids": [[9, 5]],
        "attention_mask": [[1, 0]],
        "token_type_ids": [[0, 3]],
    }
    features = windows(4)
    (batches,) = ranks(features, micro=4)
    batches.tokenizer = tiny.TOKENIZERS[tokenizer]()
    batch = batches[0]
    assert (batch.token_type_ids is None) == (types is None)
    padded = {"input_ids": token, "attention_mask": 0} | ({"token_type_ids": types} if types is not None else {})
    for i, row in enumerate(batch.sample_id.tolist()):
        window = features[row] | {"attention_mask": [1] * features[row]["length"]}
        for name, value in padded.items():
            rest = [value] * (max(features["length"]) - window["length"])
            assert getattr(batch, name)[i].tolist() == window[name] + rest
        for name in ("start_position", "end_position"):
            assert getattr(batch, name)[i] == window[name]
    integers = (*(getattr(batch, name) for name in padded), batch.start_position, batch.end_position, batch.sample_id)
    assert {t.dtype for t in integers} == {torch.int64}
    assert batch.weight.dtype == batch.token_weight.dtype == torch.float32
    assert batch.lengths == tuple(features[batch.sample_id.tolist()]["length"])
    # attention is faster without a mask, but only the shortest window can say that there is no padding
    assert batch.padding_mask is batch._replace(lengths=None).padding_mask is batch.attention_mask
    (alone,) = ranks(features, micro=1)
    assert alone[0].padding_mask is None
    (rounded,) = ranks(features, micro=1, pad_to_multiple_of=5)
    padded = [rounded[n] for n in range(4) if rounded[n].lengths[0] < rounded.width(n)]
    assert padded
    assert all(each.padding_mask is each.attention_mask for each in padded)


@pytest.mark.parametrize(("multiple", "most", "width"), [(1, 5, 5), (4, 30, 8), (4, 6, 6)])
def test_targets_are_padded_with_what_the_loss_ignores(multiple, most, width):
    sizes = [3, 1, 5, 2]
    features = windows(4).add_column("target_ids", [[7 + row] * size for row, size in enumerate(sizes)])
    (batches,) = ranks(features, micro=4, pad_to_multiple_of=multiple, max_target_length=most)
    batch = batches[0]
    expected = [[7 + row] * sizes[row] + [-100] * (width - sizes[row]) for row in batch.sample_id.tolist()]
    assert batch.target_ids.tolist() == expected
    assert batch.start_position is batch.end_position is None


@pytest.mark.parametrize("budget", [None, 2048, 8192])
def test_padding_is_below_three_percent_on_lengths_like_squads(budget):
    """Most windows have 100 to 250 tokens, with a tail up to 384."""
    spread = np.clip(np.random.default_rng(0).lognormal(5.05, 0.35, 6000), 40, 384).astype(int)
    features = datasets.Dataset.from_dict({"input_ids": [[1]] * 6000, "length": spread.tolist()})
    (batches,) = ranks(features, micro=8, accumulation=2, epochs=1.5, max_tokens=budget)
    lengths = [batches.lengths[batches.windows(update)] for update in range(batches.updates)]
    positions = [len(of_update) * max(of_update) for of_update in lengths]
    assert 1 - sum(map(sum, lengths)) / sum(positions) < 0.03
    if budget:  # and the budget is used: what is left is less than a window in each micro-batch
        assert np.median(positions) > 0.9 * 2 * budget
    else:  # rounding makes few shapes of many, of the same windows
        (rounded,) = ranks(features, micro=8, accumulation=2, epochs=1.5, pad_to_multiple_of=16)
        assert len(set(map(rounded.width, range(rounded.updates)))) <= 24 < 100 < len(set(map(max, lengths)))
        assert all((rounded.windows(update) == batches.windows(update)).all() for update in range(batches.updates))
        wide = sum(map(rounded.width, range(rounded.updates))) / sum(map(max, lengths))
        assert 1 < wide < 1.06
    longest = [max(of_update) for of_update in lengths]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)
    first = {tuple(batches.windows(update)) for update in range(batches.updates_per_epoch)}
    assert not first & {tuple(batches.windows(update)) for update in range(batches.updates_per_epoch, batches.updates)}


@pytest.mark.parametrize("max_updates", [1, 7, 23])
def test_max_updates_cut_a_training_short_and_no_later_epoch_is_laid_out(monkeypatch, max_updates):
    laid_out, shuffled = [], TrainingBatches._shuffled
    monkeypatch.setattr(
        TrainingBatches, "_shuffled", lambda self, epoch: laid_out.append(epoch) or shuffled(self, epoch)
    )
    features = windows(40)
    [whole] = ranks(features, epochs=4, max_tokens=60)
    laid_out.clear()
    [batches] = ranks(features, epochs=1000.0, max_updates=max_updates, max_tokens=60)
    assert batches.updates == max_updates < whole.updates
    assert len(laid_out) <= 2 + max_updates // (whole.updates_per_epoch - 2)
    for number in range(max_updates):
        assert batches.windows(number).tolist() == whole.windows(number).tolist()


def test_a_window_longer_than_the_budget_is_refused():
    with pytest.raises(InputError, match=r"train\.max_tokens 11: the longest window has 12 tokens: raise it"):
        ranks(windows(60), max_tokens=11)
