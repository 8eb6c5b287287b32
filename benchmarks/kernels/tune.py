"""Times tiles of the Triton kernels on this GPU beside those of `tile` in `kernels/triton_impl.py`:

    python -m benchmarks.kernels.tune --width 768 1024

It names another tile if that is at least 2% faster, which is more than measurement noise. Where one is, change the rule
in `tile` for the architecture, and measure again with `python -m benchmarks.kernels`.
"""

import argparse
import functools
import itertools
from collections.abc import Callable

import torch

from benchmarks.kernels import bench
from swep_ds.commands import cli
from swep_ds.kernels import MODES, triton_impl
from swep_ds.kernels.triton_impl import Tile

CAPS = (128, 96, 80, 72)  # registers a thread at most: 12 warps an SM or so without a cap, then 16, 20, 24 and 28
CAPPED = 4  # tiles that are tried with each cap: a tile compiles for about a second


def candidates(d: int, warp_size: int) -> list[Tile]:
    """Tiles with 4, 8 or 16 counters a thread and 1 to 4 warps, without a cap."""
    quarter, result = d // 4, []
    for warps in (1, 2, 4):
        for total in (n * warps * warp_size for n in (4, 8, 16)):
            cols = [2**k for k in range(5, 11) if 2**k <= total and quarter % 2**k == 0]
            result += [Tile(total // c, c, warps) for c in cols]
    return result


def overrides(tile: Tile, arch: str) -> dict[str, int | None]:
    """The arguments of `triton_impl` that replace the default tile's."""
    caps = {"maxnreg": tile.maxnreg} if arch.startswith("sm_") else {}
    return {"BLOCK_ROWS": tile.rows, "BLOCK_COLS": tile.cols, "num_warps": tile.warps} | caps


def entry(direction: str, d: int, sizes: list[int], device: torch.device, name: str) -> str:
    """The line that is printed for one kernel and width; `name` is the GPU's.

    The best tile has the least mean, over the numbers of tokens, of its time as a multiple of the default tile's.
    On NVIDIA the best `CAPPED` of the tiles without a cap are then tried with each cap.
    """
    arch, _, warp_size = triton_impl.target(device)
    default = triton_impl.tile(arch, direction, d, 2, warp_size)
    calls: list[Callable[..., object]] = []
    for tokens in sizes:
        batch = bench.inputs(*bench.shape(tokens), d, torch.bfloat16, device.type)
        tensors = [batch[key].detach() for key in ("embeddings", "params", "mask", "sample_ids")]
        gradients = [batch["grad"], batch["grad_kl"]] if direction == "backward" else []
        call = functools.partial(getattr(triton_impl, direction), *gradients, *tensors, bench.SEED, 1, bench.ALPHA)
        calls.append(functools.partial(call, MODES["learned"]))
    timed: dict[Tile, list[float]] = {}

    def measure(tile: Tile) -> None:
        if tile not in timed:
            options = overrides(tile, arch)
            timed[tile] = [bench.seconds(functools.partial(call, **options), device.type)[0] for call in calls]

    def multiple(tile: Tile) -> float:
        ratios = [new / old for new, old in zip(timed[tile], timed[default], strict=True)]
        return sum(ratios) / len(ratios)

    for tile in (default, *candidates(d, warp_size)):
        measure(tile)
    if arch.startswith("sm_"):
        uncapped = sorted((tile for tile in timed if tile.maxnreg is None), key=multiple)
        for tile, cap in itertools.product(uncapped[:CAPPED], CAPS):
            measure(tile._replace(maxnreg=cap))
    best = min(timed, key=multiple)
    if multiple(best) > 0.98:
        best = default
    times, was = (", ".join(f"{1e6 * seconds:.1f}" for seconds in timed[tile]) for tile in (best, default))
    return f"{name}, {arch}, {direction}, d = {d}: {best}: {times} us; the default {was}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--width", nargs="+", type=bench.width, default=[128, 256, 384, 512, 768, 1024, 2048, 4096])
    parser.add_argument("--tokens", nargs="+", type=bench.tokens, default=[8192, 32768, 131072])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("tuning needs a GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    for d in args.width:
        bench.check(d, torch.bfloat16, "cuda")
        for direction in ("forward", "backward"):
            print(entry(direction, d, args.tokens, device, torch.cuda.get_device_name()), flush=True)


if __name__ == "__main__":
    cli.main(main)
