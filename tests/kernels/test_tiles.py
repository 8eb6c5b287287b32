from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from swep_ds.kernels.triton_impl import launch_options, tile


@given(
    d=st.integers(1, 2048).map(lambda quarter: 4 * quarter),
    warp_size=st.sampled_from([32, 64]),
    itemsize=st.sampled_from([2, 4]),
)
def test_a_tile_for_every_width(d, warp_size, itemsize):
    shape = tile("an architecture of tomorrow", "forward", d, itemsize, warp_size)
    for number in shape[:3]:
        assert number >= 1
        assert number & (number - 1) == 0
    assert shape.rows * shape.cols <= 8 * warp_size * shape.warps
    trips = -(-d // 4 // shape.cols)
    assert trips == 1 or shape.cols >= 4
    assert trips * shape.cols < 2 * (d // 4) + shape.cols


def test_768_is_walked_without_idle_lanes_and_registers_are_capped_where_the_forward_has_room():
    assert tile("sm_100", "forward", 768, 2, 32) == (4, 64, 1, None)
    capped = [("sm_80", "forward"), ("sm_90", "forward")]
    for target in product(("sm_80", "sm_90", "sm_100", "gfx942"), ("forward", "backward")):
        cap = launch_options(tile(*target, 768, 2, 32)).get("maxnreg")
        assert cap == (128 if target in capped else None)


def test_four_bytes_an_element_fill_the_same_accesses_with_half_the_counters():
    for width in (256, 768, 8192):
        assert tile("sm_100", "backward", width, 2, 32) == (4, 64, 1, None)
        assert tile("sm_100", "backward", width, 4, 32) == (2, 64, 1, None)
