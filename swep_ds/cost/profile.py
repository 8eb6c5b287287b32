"""The operations, or on a GPU the kernels, that take the most of an update's time."""

from collections.abc import Callable, Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from swep_ds import ranks
from swep_ds.common.errors import InputError

SHOWN = 15


def profile_updates(update: Callable[[], None], updates: int) -> list[dict[str, Any]]:
    """Profiles `updates` updates, after one that does not count; returns the rows of `rank_events`.
    Raises InputError: the device's profiler is not allowed to record."""
    on_gpu = ranks.device().type == "cuda"
    update()
    ranks.synchronize()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as recorded:
        for _ in range(updates):
            update()
        ranks.synchronize()
    return rank_events(recorded.key_averages(), updates, on_gpu=on_gpu)


def rank_events(events: Iterable[Any], updates: int, *, on_gpu: bool) -> list[dict[str, Any]]:
    """Ranks the profiler's events, summed up by name, by their own time, without what they call.

    Returns:
        The SHOWN slowest, and last all others as one row: `name`, `seconds` and `calls` per update, and `share` of the
        total time. On a GPU these are kernels, copies and fills, by the device's clock, without idle time; elsewhere
        operations, by the host's clock.

    Raises:
        InputError: there is no event of the device.
    """
    kind, clock = (DeviceType.CUDA, "self_device_time_total") if on_gpu else (DeviceType.CPU, "self_cpu_time_total")
    timed = [
        (event.key, getattr(event, clock), event.count)
        for event in events
        if event.device_type == kind and not (on_gpu and event.is_user_annotation)  # it has its kernels' time
    ]
    if not timed:
        raise InputError("the profiler recorded nothing: allow it to read this GPU's performance counters")
    timed.sort(key=lambda row: row[1], reverse=True)
    shown, others = timed[:SHOWN], timed[SHOWN:]
    if others:
        _, times, counts = zip(*others, strict=True)
        shown.append((f"{len(others)} others", sum(times), sum(counts)))
    total = sum(time for _, time, _ in shown)  # microseconds
    return [
        {"name": name, "seconds": time / 1e6 / updates, "calls": count / updates, "share": time / total}
        for name, time, count in shown
    ]


def table(name: str, rows: list[dict[str, Any]]) -> Table:
    """The rows of `profile_updates` for the candidate `name`."""
    kind = "kernels" if ranks.device().type == "cuda" else "operations"
    total = sum(row["seconds"] for row in rows)
    shown = Table(title=f"{name}: {kind} by their own time, {1000 * total:.1f} ms per update in total")
    shown.add_column("", no_wrap=True, max_width=110)
    for title in ("ms/update", "calls/update", "share"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{1000 * row['seconds']:.3f}", f"{row['calls']:,.1f}", f"{row['share']:.1%}"]
        shown.add_row(escape(row["name"]), *cells)
    return shown
