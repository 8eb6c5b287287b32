"""Times tiles of the Triton kernels on this GPU and prints entries for MEASURED in `kernels/tiles.py`:

    python scripts/tune_kernels.py --width 768 1024

A tile replaces the current one if it is at least 2% faster, so that measurement noise does not churn the table.
"""

import argparse
import functools

import torch

from swep_ds import cli
from swep_ds.kernels import MODES, arguments, tiles, triton_impl
from swep_ds.kernels.tools import bench


def candidates(d: int, warp_size: int) -> list[tiles.Tile]:
    """The default tile, then others with 8 or 16 counters a thread and 1 to 4 warps."""
    quarter, result = d // 4, [tiles.default(d, warp_size)]
    for warps in (1, 2, 4):
        for total in (8 * warps * warp_size, 16 * warps * warp_size):
            cols = [2**k for k in range(5, 11) if 2**k <= total and quarter % 2**k == 0]
            result += [tiles.Tile(total // c, c, warps) for c in cols]
    return list(dict.fromkeys(result))


def entry(direction: str, d: int, tokens: int, device: torch.device, name: str) -> str:
    """The line of the table for one kernel and width; `name` is the GPU's."""
    batch = bench.inputs(*bench.shape(tokens), d, torch.bfloat16, device.type)
    tensors = [batch[key].detach() for key in ("embeddings", "params", "mask", "sample_ids")]
    gradients = [batch["grad"], batch["grad_kl"]] if direction == "backward" else []
    run = functools.partial(getattr(triton_impl, direction), *gradients, *tensors, bench.SEED, 1, bench.ALPHA)

    def time(tile: tiles.Tile) -> float:
        options = {"BLOCK_ROWS": tile.rows, "BLOCK_COLS": tile.cols, "num_warps": tile.warps}
        return bench.seconds(functools.partial(run, MODES["learned"], **options), device.type)[0]

    arch, _, warp_size = triton_impl.target(device)
    current = tiles.tile(arch, direction, d, 2, warp_size)
    timed = {tile: time(tile) for tile in dict.fromkeys([current, *candidates(d, warp_size)])}
    best = min(timed, key=timed.get)
    if timed[best] > 0.98 * timed[current]:
        best = current
    times = f"{1e6 * timed[best]:.1f} us, was {1e6 * timed[current]:.1f}"
    return f'    ("{arch}", "{direction}", {d}): Tile({best.rows}, {best.cols}, {best.warps}),  # {name}: {times}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", nargs="+", type=arguments.width, default=[128, 256, 384, 512, 768, 1024, 2048, 4096])
    parser.add_argument("--tokens", type=arguments.tokens, default=32768)
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
