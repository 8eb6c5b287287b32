"""The ranks of a run: `from swep_ds import ranks`, then `ranks.rank()`, `ranks.gather(value)` and so on, from
`group.py`. That is imported at the first use, as PyTorch and DeepSpeed take seconds."""

from typing import Any

_NAMES = {"process_group", "wait_long", "rank", "world_size", "is_main", "device", "host", "progress", "step"}
_NAMES |= {"synchronize", "gather", "on_all_ranks", "from_rank0", "local_rank_zero_first", "set_deterministic"}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swep_ds.ranks import group

    return getattr(group, name)
