"""Which ranks hold up the others when none has moved for long."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

SILENT_SECONDS = 2.0  # a live rank is heard more often; grows with the ranks, to 16 s for 1,024
SHOWN = 4  # ranks that a report describes one by one


@dataclass
class RankStatus:
    """Where a rank is. All ranks take the same steps: the one that has taken the fewest is behind."""

    rank: int
    host: str
    pid: int
    steps: int = 0
    step: str = "set-up"  # the last one
    moved: float = 0.0  # when it began, by rank 0's clock
    heard: float = 0.0  # when rank 0 last heard of the rank

    def hear(self, steps: int, step: str, now: float) -> None:
        if steps != self.steps:
            self.steps, self.step, self.moved = steps, step, now
        self.heard = now

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


class StallWatch:
    """Reports when no rank has moved for `seconds`, and again each time that this has doubled."""

    def __init__(self, seconds: float, now: float):
        self.seconds = self._due = seconds
        self._began = now

    def look(self, statuses: Sequence[RankStatus], now: float) -> str | None:
        """A report of one line if it is due."""
        stalled = now - max(self._began, *(status.moved for status in statuses))
        if stalled < self.seconds:
            self._due = self.seconds
        if stalled < self._due:
            return None
        self._due = 2 * stalled
        return f"no progress for {stalled:.0f} s: {_who_is_behind(statuses, now)}"


def _who_is_behind(statuses: Sequence[RankStatus], now: float) -> str:
    newest = max(status.heard for status in statuses)
    patience = max(SILENT_SECONDS, len(statuses) / 64)
    silent = [status for status in statuses if newest - status.heard > patience]
    rest = sorted((status for status in statuses if status not in silent), key=attrgetter("steps", "rank"))
    parts = _described(silent, lambda status: f"has been silent for {now - status.heard:.0f} s, last in {status.step}")
    groups = [list(group) for _, group in groupby(rest, key=attrgetter("steps"))]
    if len(groups) > 1 and not silent:
        parts += _described(groups.pop(0), lambda status: f"has been in {status.step} for {now - status.moved:.0f} s")
    for group in groups:
        waits = "waits" if len(group) == 1 else "wait"
        parts.append(f"{ranks_of(status.rank for status in group)} {waits} in {group[0].step}")
    return "; ".join(parts)


def _described(statuses: Sequence[RankStatus], describe: Callable[[RankStatus], str]) -> list[str]:
    parts = [f"{status} {describe(status)}" for status in statuses[:SHOWN]]
    if len(statuses) > SHOWN:
        parts.append(f"likewise {ranks_of(status.rank for status in statuses[SHOWN:])}")
    return parts


def ranks_of(numbers: Iterable[int]) -> str:
    """Names ranks, as in "ranks 0-4, 6"."""
    pairs = enumerate(sorted(numbers))
    runs = [[number for _, number in run] for _, run in groupby(pairs, key=lambda pair: pair[1] - pair[0])]
    plural = len(runs) > 1 or len(runs[0]) > 1
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'ranks' if plural else 'rank'} {listed}"
