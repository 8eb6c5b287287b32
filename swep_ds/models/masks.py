"""Masks for SDPA and eager attention that are made without a look at the device.

transformers asks a padding mask in every forward whether anything is padded, to leave it out where nothing is; on a
GPU the host then waits for all that is under way. Here the host knows (`Batch.padding_mask`): a mask that is given is
used. With flash_attention_2 the host still waits wherever windows are padded, in every layer: transformers takes the
padding out there, and reads from the device how much is left. `packing` is free of that.
"""

from collections.abc import Callable
from functools import cache, wraps

from torch import Tensor
from transformers import AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS


def unasked(make: Callable) -> Callable:
    """One of transformers' functions that make masks, which uses the mask that it is given."""

    @wraps(make)
    def made(*args, attention_mask: Tensor | None = None, allow_is_bidirectional_skip: bool = False, **more):
        skip = allow_is_bidirectional_skip and attention_mask is None
        return make(*args, attention_mask=attention_mask, allow_is_bidirectional_skip=skip, **more)

    return made


@cache
def use_given_masks() -> None:
    """From now on, in all models of this process."""
    for name in ("sdpa", "eager"):
        AttentionMaskInterface.register(name, unasked(ALL_MASK_ATTENTION_FUNCTIONS[name]))
