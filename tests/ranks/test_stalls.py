"""Which ranks are behind, with the test's own clock."""

import pytest

from swep_ds.ranks.stalls import RankStatus, StallWatch, ranks_of


def statuses(*steps: int, now: float = 0.0) -> list[RankStatus]:
    ranks = [RankStatus(rank, f"node{rank // 4}", 100 + rank) for rank in range(len(steps))]
    for rank, count in zip(ranks, steps, strict=True):
        rank.hear(count, f"update {count}, data", now)
    return ranks


def hear(ranks: list[RankStatus], now: float, *, but: tuple[int, ...] = ()) -> None:
    for status in ranks:
        if status.rank not in but:
            status.hear(status.steps, status.step, now)


def test_it_reports_when_the_time_is_up_and_each_time_it_has_doubled():
    ranks, watch = statuses(5, 5), StallWatch(10, now=0)
    reported = []
    for now in range(100):
        hear(ranks, now)
        if watch.look(ranks, now):
            reported.append(now)
    assert reported == [10, 20, 40, 80]


def test_what_moves_is_not_a_stall_and_restarts_the_clock():
    ranks, watch = statuses(5, 5), StallWatch(10, now=0)
    for now in range(1, 60):
        hear(ranks, now)
        if now % 9 == 0:
            ranks[1].hear(ranks[1].steps + 1, "evaluation, batch 1", now)
        assert watch.look(ranks, now) is None
    assert watch.look(ranks, 64) is not None
    ranks[0].hear(9, "update 9, data", 70)
    assert watch.look(ranks, 79) is None
    assert watch.look(ranks, 80) is not None


def test_set_up_before_the_watch_began_does_not_count():
    assert StallWatch(10, now=1000).look(statuses(0, 0), 1009) is None


def test_the_ranks_with_the_fewest_steps_are_behind():
    ranks = statuses(*[7] * 5, 6, 7, 7)
    ranks[5].moved = -12.0
    hear(ranks, 600)
    assert StallWatch(600, now=0).look(ranks, 600) == (
        "no progress for 600 s: rank 5 (node1, pid 105) has been in update 6, data for 612 s; "
        "ranks 0-4, 6-7 wait in update 7, data"
    )


def test_a_silent_rank_is_named_first_even_where_all_are_in_the_same_step():
    ranks = statuses(*[7] * 4)
    hear(ranks, 60, but=(2,))
    assert StallWatch(60, now=0).look(ranks, 60) == (
        "no progress for 60 s: rank 2 (node0, pid 102) has been silent for 60 s, last in update 7, data; "
        "ranks 0-1, 3 wait in update 7, data"
    )


def test_all_in_one_step_and_many_behind():
    ranks = statuses(*[7] * 3)
    assert StallWatch(5, now=0).look(ranks, 5).endswith(": ranks 0-2 wait in update 7, data")
    ranks = statuses(*[6] * 9, 7)
    report = StallWatch(5, now=0).look(ranks, 5)
    assert "rank 3 (node0, pid 103) has been in update 6, data for 5 s; likewise ranks 4-8; rank 9 waits in" in report


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([3], "rank 3"), ([1, 0], "ranks 0-1"), ([0, 2, 3, 4, 9], "ranks 0, 2-4, 9"), ([5, 7], "ranks 5, 7")],
)
def test_ranks_are_listed_by_runs(numbers, said):
    assert ranks_of(numbers) == said
