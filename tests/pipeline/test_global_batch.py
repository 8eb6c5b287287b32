"""The global batch of a run: kept on another number of ranks, or refused."""

import pytest

from swep_ds.common.errors import InputError
from swep_ds.pipeline.folder import GlobalBatch
from swep_ds.pipeline.recipe import Recipe


def split(micro: int, steps: int, **train) -> Recipe:
    tree = {"model": {"name": "m"}, "method": {"name": "swep"}, "data": {"train": "t", "eval": {"x": "y"}}}
    settings = {"micro_batch_size": micro, "gradient_accumulation_steps": steps, **train}
    return Recipe.model_validate(tree | {"train": settings})


@pytest.mark.parametrize(
    ("windows", "world_size", "asked", "kept"),
    [
        (32, 4, (8, 1), (8, 1)),
        (32, 2, (8, 1), (8, 2)),
        (32, 1, (8, 1), (8, 4)),
        (32, 8, (8, 1), (4, 1)),
        (32, 32, (8, 1), (1, 1)),
        (24, 1, (3, 2), (3, 8)),
        (24, 3, (3, 4), (2, 4)),  # 8 windows per rank, which 3 do not divide
        (14, 2, (2, 7), (1, 7)),
    ],
)
def test_the_global_batch_is_kept_on_other_ranks(windows, world_size, asked, kept):
    assert GlobalBatch(windows, *asked).split(split(*asked), world_size) == split(*kept)


@pytest.mark.parametrize(("world_size", "steps"), [(4, 2), (1, 8), (2, 4), (8, 1)])
def test_a_budget_of_tokens_is_kept_by_the_number_of_micro_batches(world_size, steps):
    kept = GlobalBatch(8, 8, 2).split(split(8, 2, max_tokens=4096), world_size)
    assert kept == split(8, steps, max_tokens=4096)


@pytest.mark.parametrize(
    ("began", "asked", "world_size", "said"),
    [
        (GlobalBatch(32, 8, 1), split(8, 1), 3, "3 ranks cannot share evenly: start it on 1, 2, 4, 8, 16, 32 rank"),
        (GlobalBatch(8, 8, 2), split(8, 2, max_tokens=4096), 3, "8, which 3 ranks cannot share"),
        (GlobalBatch(8, 8, 2), split(8, 4, max_tokens=4096), 4, r"^train\.gradient_accumulation_steps 4 x 4 rank"),
        (GlobalBatch(12, 8, 1), split(8, 1), 1, "is a global batch of 8, and the run began with 12"),
        (GlobalBatch(16, 8, 1), split(8, 2), 2, r"size 8 x train\.gradient_accumulation_steps 2 x 2 rank\(s\) is a g"),
    ],
)
def test_a_global_batch_that_cannot_be_kept_is_refused(began, asked, world_size, said):
    with pytest.raises(InputError, match=said):
        began.split(asked, world_size)


def test_a_recipe_may_split_its_global_batch_anew():
    assert GlobalBatch(16, 8, 1).split(split(4, 2), 2) == split(4, 2)
