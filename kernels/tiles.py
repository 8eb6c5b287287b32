"""The tile that a Triton kernel runs with: a measured one if there is one, else the default of its width.

Nothing is tuned at run time: a run would stall, and ranks that chose different tiles would sum the KL in different
orders. The noise does not depend on the tile.
"""

from typing import NamedTuple


class Tile(NamedTuple):
    """A program takes `rows` tokens and walks over the d/4 counters of a row, `cols` (a power of two) at a time."""

    rows: int
    cols: int
    warps: int
    maxnreg: int | None = None
    """Most registers a thread may use, which decides how many warps fit on an SM. NVIDIA only."""


MEASURED: dict[tuple[str, str, int], Tile] = {}
"""(architecture, direction, d): the fastest tile for storage of two bytes an element, as `scripts/tune_kernels.py`
prints it on a GPU. Empty, because it has not run on a GPU yet."""


def default(arch: str, direction: str, d: int, warp_size: int) -> Tile:
    """The tile of a width without a measurement, for storage of two bytes an element.

    One warp a program, so that nothing waits at a barrier and padding is skipped in small steps; 8 counters a
    thread, so that a thread's share of a word is one access of 128 bits; `cols` is the largest power of two that
    divides the d/4 counters of a row, so that no lane idles (d = 768 is walked as 3 x 64), and at most two a thread, so
    that a program waits for the mask of four rows at once. Where `cols` would be under 8, the end of the row is masked
    instead.

    The forward of sm_80 and sm_90 takes at most 128 registers: 16 warps fit an SM, and the inner loop spills nothing.
    Without the cap, ptxas takes more and 12 fit. On sm_100 it spills under this cap.
    """
    quarter = d // 4
    cols = quarter & -quarter
    if cols < 8:
        cols = 1 << (quarter - 1).bit_length()
    cols = min(cols, 2 * warp_size)
    capped = direction == "forward" and arch.startswith(("sm_8", "sm_9"))
    return Tile(8 * warp_size // cols, cols, 1, 128 if capped else None)


def tile(arch: str, direction: str, d: int, itemsize: int, warp_size: int) -> Tile:
    """The tile to launch on `arch` ("sm_90", "gfx942", ...) for `direction` ("forward", "backward")."""
    wide = MEASURED.get((arch, direction, d)) or default(arch, direction, d, warp_size)
    if itemsize <= 2:
        return wide
    # four bytes an element: half as many counters fill the same 128-bit accesses
    return wide._replace(rows=wide.rows // 2) if wide.rows > 1 else wide._replace(cols=wide.cols // 2)


def launch_options(shape: Tile) -> dict[str, int | bool]:
    """What Triton takes to compile and launch a kernel with a tile, in addition to its constants."""
    options = {"num_warps": shape.warps, "enable_fp_fusion": True}  # fusion's default changed, and bits with it
    return options if shape.maxnreg is None else options | {"maxnreg": shape.maxnreg}
