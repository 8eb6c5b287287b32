"""Tiles of the Triton kernels per architecture, width and direction: a checked-in table, no tuning at run time.

Ranks that tune apart would sum the KL in different orders, and a run would stall while it tunes. The noise does
not depend on the tile. `scripts/tune_kernels.py` measures tiles on a GPU and prints rows for this table.
"""

from typing import NamedTuple

UNTUNED = "untuned"


class Tile(NamedTuple):
    """A program takes `rows` tokens and walks over a row's d/4 counters, `cols` (a power of two) at a time."""

    rows: int
    cols: int
    warps: int


class Entry(NamedTuple):
    """Tiles for storage of two bytes an element, and where they come from: a GPU's name, or UNTUNED."""

    forward: Tile
    backward: Tile
    source: str


def untuned(d: int, warp_size: int) -> Tile:
    """The tile, for storage of two bytes an element, of a width that nobody has tuned.

    One warp a program, so that nothing waits at a barrier and padding is skipped in small steps; 8 counters a
    thread, so that a thread's share of a word is one access of 128 bits; `cols` the largest power of two that
    divides the d/4 counters of a row, so that no lane idles (d = 768 is walked as 3 x 64). Where that would be
    under 8, the end of the row is masked instead.
    """
    quarter = d // 4
    cols = quarter & -quarter
    if cols < 8:
        cols = 1 << (quarter - 1).bit_length()
    cols = min(cols, 8 * warp_size)
    return Tile(8 * warp_size // cols, cols, 1)


def tile(arch: str, direction: str, d: int, itemsize: int, warp_size: int) -> Tile:
    """The tile to launch on `arch` ("sm_90", "gfx942", ...) for `direction` ("forward", "backward")."""
    entry = TABLE.get(arch, {}).get(d)
    wide = getattr(entry, direction) if entry else untuned(d, warp_size)
    if itemsize <= 2:
        return wide
    # four bytes an element: half as many counters fill the same 128-bit accesses
    return wide._replace(rows=wide.rows // 2) if wide.rows > 1 else wide._replace(cols=wide.cols // 2)


TABLE: dict[str, dict[int, Entry]] = {
    "sm_80": {
        128: Entry(Tile(8, 32, 1), Tile(8, 32, 1), UNTUNED),
        256: Entry(Tile(4, 64, 1), Tile(4, 64, 1), UNTUNED),
        384: Entry(Tile(8, 32, 1), Tile(8, 32, 1), UNTUNED),
        512: Entry(Tile(2, 128, 1), Tile(2, 128, 1), UNTUNED),
        768: Entry(Tile(4, 64, 1), Tile(4, 64, 1), UNTUNED),
        1024: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
        2048: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
        4096: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
    },
    "sm_90": {
        128: Entry(Tile(8, 32, 1), Tile(8, 32, 1), UNTUNED),
        256: Entry(Tile(4, 64, 1), Tile(4, 64, 1), UNTUNED),
        384: Entry(Tile(8, 32, 1), Tile(8, 32, 1), UNTUNED),
        512: Entry(Tile(2, 128, 1), Tile(2, 128, 1), UNTUNED),
        768: Entry(Tile(4, 64, 1), Tile(4, 64, 1), UNTUNED),
        1024: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
        2048: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
        4096: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
    },
    "sm_100": {
        128: Entry(Tile(8, 32, 1), Tile(8, 32, 1), UNTUNED),
        256: Entry(Tile(4, 64, 1), Tile(4, 64, 1), UNTUNED),
        384: Entry(Tile(8, 32, 1), Tile(8, 32, 1), UNTUNED),
        512: Entry(Tile(2, 128, 1), Tile(2, 128, 1), UNTUNED),
        768: Entry(Tile(4, 64, 1), Tile(4, 64, 1), UNTUNED),
        1024: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
        2048: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
        4096: Entry(Tile(1, 256, 1), Tile(1, 256, 1), UNTUNED),
    },
    "gfx90a": {
        128: Entry(Tile(16, 32, 1), Tile(16, 32, 1), UNTUNED),
        256: Entry(Tile(8, 64, 1), Tile(8, 64, 1), UNTUNED),
        384: Entry(Tile(16, 32, 1), Tile(16, 32, 1), UNTUNED),
        512: Entry(Tile(4, 128, 1), Tile(4, 128, 1), UNTUNED),
        768: Entry(Tile(8, 64, 1), Tile(8, 64, 1), UNTUNED),
        1024: Entry(Tile(2, 256, 1), Tile(2, 256, 1), UNTUNED),
        2048: Entry(Tile(1, 512, 1), Tile(1, 512, 1), UNTUNED),
        4096: Entry(Tile(1, 512, 1), Tile(1, 512, 1), UNTUNED),
    },
    "gfx942": {
        128: Entry(Tile(16, 32, 1), Tile(16, 32, 1), UNTUNED),
        256: Entry(Tile(8, 64, 1), Tile(8, 64, 1), UNTUNED),
        384: Entry(Tile(16, 32, 1), Tile(16, 32, 1), UNTUNED),
        512: Entry(Tile(4, 128, 1), Tile(4, 128, 1), UNTUNED),
        768: Entry(Tile(8, 64, 1), Tile(8, 64, 1), UNTUNED),
        1024: Entry(Tile(2, 256, 1), Tile(2, 256, 1), UNTUNED),
        2048: Entry(Tile(1, 512, 1), Tile(1, 512, 1), UNTUNED),
        4096: Entry(Tile(1, 512, 1), Tile(1, 512, 1), UNTUNED),
    },
}
