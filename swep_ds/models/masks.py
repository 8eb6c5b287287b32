"""SDPA and eager attention masks, built without a host-device synchronisation.

In every forward pass transformers checks whether a padding mask masks anything, to leave it out where nothing is
padded; on a GPU the host then waits for all queued work. Here the host already knows (`Batch.padding_mask`), so a
given mask is used as it is. flash_attention_2 still synchronises in every layer of a padded batch: transformers
removes the padding there and reads from the device how much is left. `packing` avoids that.
"""

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


@contextmanager
def given_masks() -> Iterator[None]:
    """Inside, models use the padding masks that they are given; outside, transformers' own functions are in place."""
    before = {name: ALL_MASK_ATTENTION_FUNCTIONS[name] for name in WITHOUT_SYNC}
    ALL_MASK_ATTENTION_FUNCTIONS.update(WITHOUT_SYNC)
    try:
        yield
    finally:
        for name, make_mask in before.items():
            del ALL_MASK_ATTENTION_FUNCTIONS[name]  # what is registered for all models shows again
            if ALL_MASK_ATTENTION_FUNCTIONS[name] is not make_mask:  # this block was inside another one
                ALL_MASK_ATTENTION_FUNCTIONS[name] = make_mask
