"""The keyed order of a mix a second time, in plain loops: which windows every update takes."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

UPDATES_SORTED_TOGETHER = 50


def rows_of_updates(
    lengths: Sequence[int],
    sizes: Sequence[int],
    weights: Sequence[float],
    *,
    seed: int,
    epochs: int,
    global_batch: int,
    by_length: bool = True,
) -> list[list[int]]:
    """The rows of every update, in its order. `sizes` are the windows of each source, whose rows follow each other."""
    updates = []
    for epoch in range(epochs):
        order = in_turn([source_rows(number, sizes, weights, seed, epoch) for number in range(len(sizes))])
        cut = []
        for first in range(0, len(order), UPDATES_SORTED_TOGETHER * global_batch):
            stretch = order[first : first + UPDATES_SORTED_TOGETHER * global_batch]
            if by_length:
                by_source = []
                begin = 0
                for size in sizes:
                    mine = [row for row in stretch if begin <= row < begin + size]
                    by_source.append(sorted(mine, key=lambda row: lengths[row]))
                    begin += size
                stretch = in_turn(by_source)
            cut += [stretch[i : i + global_batch] for i in range(0, len(stretch), global_batch)]
        updates += [cut[number] for number in np.random.default_rng([seed, epoch]).permutation(len(cut))]
    return updates


def source_rows(number: int, sizes: Sequence[int], weights: Sequence[float], seed: int, epoch: int) -> list[int]:
    """Those of one source in an epoch: where its last epoch ended, one shuffled pass after the other goes on."""
    count = max(1, round(sum(sizes) * weights[number] / sum(weights)))
    rows = []
    for place in range(epoch * count, (epoch + 1) * count):
        one_pass, place_in_pass = divmod(place, sizes[number])
        shuffled = np.random.default_rng([seed, one_pass, number + 1]).permutation(sizes[number])
        rows.append(sum(sizes[:number]) + int(shuffled[place_in_pass]))
    return rows


def in_turn(by_source: Sequence[list[int]]) -> list[int]:
    """The rows of all sources: next comes the source of which the smallest part has come, counting half of that row."""
    taken = [0] * len(by_source)
    order = []
    while len(order) < sum(map(len, by_source)):
        parts = []
        for number, rows in enumerate(by_source):
            if taken[number] < len(rows):
                parts.append((Fraction(2 * taken[number] + 1, 2 * len(rows)), number))
        _, number = min(parts)
        order.append(by_source[number][taken[number]])
        taken[number] += 1
    return order
