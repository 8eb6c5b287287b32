"""Which ranks hold up the others, when none has moved for long."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

SILENT_SECONDS = 2.0  # a rank that moves or waits is heard of more often; up to 16 times as long with 1,024 ranks
SHOWN = 4  # ranks that a report describes one by one


@dataclass
class RankStatus:
    """Where a rank is. All ranks take the same steps: who has taken fewest is behind."""

    rank: int
    host: str
    pid: int
    steps: int = 0
    step: str = "set-up"  # the last one
    moved: float = 0.0  # when it was taken, on rank 0's clock
    heard: float = 0.0  # when the rank was last heard of

    def hear(self, steps: int, step: str, now: float) -> None:
        if steps != self.steps:
            self.steps, self.step, self.moved = steps, step, now
        self.heard = now

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


class StallWatch:
    """Reports that no rank has moved for `seconds`, and again each time that this has doubled.

    It only reports: who waits long may have its reasons.
    """

    def __init__(self, seconds: float, now: float):
        self.seconds = self._due = seconds
        self._began = now

    def look(self, standings: Sequence[RankStatus], now: float) -> str | None:
        """A report in one line, if one is due."""
        stalled = now - max(self._began, *(one.moved for one in standings))
        if stalled < self.seconds:
            self._due = self.seconds
        if stalled < self._due:
            return None
        self._due = 2 * stalled
        return f"no progress for {stalled:.0f} s: {_who_is_behind(standings, now)}"


def _who_is_behind(standings: Sequence[RankStatus], now: float) -> str:
    newest = max(one.heard for one in standings)
    patience = max(SILENT_SECONDS, len(standings) / 64)
    silent = [one for one in standings if newest - one.heard > patience]
    rest = sorted((one for one in standings if one not in silent), key=lambda one: (one.steps, one.rank))
    parts = _described(silent, lambda one: f"has been silent for {now - one.heard:.0f} s, last in {one.step}")
    groups = [list(group) for _, group in groupby(rest, key=lambda one: one.steps)]
    if len(groups) > 1 and not silent:
        parts += _described(groups.pop(0), lambda one: f"is in {one.step}, since {now - one.moved:.0f} s")
    for group in groups:
        waits = "waits" if len(group) == 1 else "wait"
        parts.append(f"{ranks_of(one.rank for one in group)} {waits} in {group[0].step}")
    return "; ".join(parts)


def _described(standings: Sequence[RankStatus], how) -> list[str]:
    parts = [f"{one} {how(one)}" for one in standings[:SHOWN]]
    if len(standings) > SHOWN:
        parts.append(f"the same of {ranks_of(one.rank for one in standings[SHOWN:])}")
    return parts


def ranks_of(numbers: Iterable[int]) -> str:
    """As in "ranks 0-4, 6"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    several = len(runs) > 1 or len(runs[0]) > 1
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{'ranks' if several else 'rank'} {listed}"
