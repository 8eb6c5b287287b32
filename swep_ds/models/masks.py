"""SDPA and eager attention masks, built without a host-device synchronisation.

In every forward pass transformers checks whether a padding mask masks anything, to leave it out where nothing is
padded; on a GPU the host then waits for all queued work. Here the host already knows (`Batch.padding_mask`), so a
given mask is used as it is. flash_attention_2 still synchronises in every layer of a padded batch: transformers
removes the padding there and reads from the device how much is left. `packing` avoids that.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS


def without_sync(make_mask: Callable) -> Callable:
    """Wraps one of transformers' mask functions so that it uses the padding mask that it is given."""

    @wraps(make_mask)
    def make(*args, attention_mask: Tensor | None = None, allow_is_bidirectional_skip: bool = False, **kwargs):
        skip = allow_is_bidirectional_skip and attention_mask is None
        return make_mask(*args, attention_mask=attention_mask, allow_is_bidirectional_skip=skip, **kwargs)

    return make


WITHOUT_SYNC = {name: without_sync(ALL_MASK_ATTENTION_FUNCTIONS[name]) for name in ("sdpa", "eager")}


_lock, _overlapping, _before = threading.Lock(), 0, {}  # of `given_masks`


@contextmanager
def given_masks() -> Iterator[None]:
    """Inside, models use the padding masks that they are given. The functions are global to the process: when the last
    of several overlapping blocks ends, in any thread, they are set back to what they were before the first."""
    global _overlapping, _before
    with _lock:
        if not _overlapping:
            _before = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in WITHOUT_SYNC}
            ALL_MASK_ATTENTION_FUNCTIONS.update(WITHOUT_SYNC)
        _overlapping += 1
    try:
        yield
    finally:
        with _lock:
            _overlapping -= 1
            if not _overlapping:
                for name, make_mask in _before.items():
                    del ALL_MASK_ATTENTION_FUNCTIONS[name]  # what is registered for all models shows again
                    if ALL_MASK_ATTENTION_FUNCTIONS[name] is not make_mask:
                        ALL_MASK_ATTENTION_FUNCTIONS[name] = make_mask
