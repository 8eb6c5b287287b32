from hypothesis import given
from hypothesis import strategies as st
from swep_ds.kernels.tiles import TABLE, UNTUNED, tile, untuned


@given(
    d=st.integers(1, 2048).map(lambda quarter: 4 * quarter),
    warp_size=st.sampled_from([32, 64]),
    itemsize=st.sampled_from([2, 4]),
)
def test_a_tile_for_every_width(d, warp_size, itemsize):
    found = tile("an architecture of tomorrow", "forward", d, itemsize, warp_size)
    for number in found:
        assert number >= 1
        assert number & (number - 1) == 0
    assert found.rows * found.cols <= 8 * warp_size * found.warps
    trips = -(-d // 4 // found.cols)
    assert trips == 1 or found.cols >= 4
    assert trips * found.cols < 2 * (d // 4) + found.cols


def test_768_is_walked_without_idle_lanes():
    assert untuned(768, 32) == (4, 64, 1)


def test_entries_marked_untuned_are_what_the_rule_gives():
    for arch, entries in TABLE.items():
        for d, entry in entries.items():
            if entry.source == UNTUNED:
                expected = untuned(d, 64 if arch.startswith("gfx9") else 32)
                assert entry.forward == entry.backward == expected


def test_a_tuned_entry_wins(monkeypatch):
    entry = TABLE["sm_90"][768]
    monkeypatch.setitem(TABLE["sm_90"], 768, entry._replace(backward=entry.forward._replace(rows=16), source="a GPU"))
    assert tile("sm_90", "backward", 768, 2, 32) == (16, 64, 1)
    assert tile("sm_90", "backward", 768, 4, 32) == (8, 64, 1)
    assert tile("sm_90", "forward", 768, 2, 32) == entry.forward
