"""Time tiles of the Triton kernels on the GPU at hand and print rows for `kernels/tiles.py`:

    python scripts/tune_kernels.py --width 768 1024

A tile replaces the present one where it is at least 2% faster, so that noise does not churn the table.
"""

import argparse
import sys

import torch
from swep_ds.kernels import MODES, bench, tiles, triton_impl


def candidates(d: int, warp_size: int) -> list[tiles.Tile]:
    """The untuned tile first, then others of 8 or 16 counters a thread and 1 to 4 warps."""
    quarter, found = d // 4, [tiles.untuned(d, warp_size)]
    for warps in (1, 2, 4):
        for total in (8 * warps * warp_size, 16 * warps * warp_size):
            cols = [2**k for k in range(5, 11) if 2**k <= total and quarter % 2**k == 0]
            found += [tiles.Tile(total // c, c, warps) for c in cols]
    return list(dict.fromkeys(found))


def best(direction: str, batch: dict, warp_size: int) -> tuple[tiles.Tile, float, float]:
    """(fastest tile, its seconds, seconds of the tile the table gives now)."""
    d = batch["embeddings"].shape[-1]
    tensors = [batch[name].detach() for name in ("embeddings", "params", "mask", "sample_ids")]
    gradients = [batch["grad"], batch["grad_kl"]] if direction == "backward" else []

    def time(tile: tiles.Tile) -> float:
        options = {"BLOCK_ROWS": tile.rows, "BLOCK_COLS": tile.cols, "num_warps": tile.warps}
        run = getattr(triton_impl, direction)
        call = lambda: run(*gradients, *tensors, bench.SEED, 1, bench.ALPHA, MODES["learned"], **options)  # noqa: E731
        return bench.seconds(call, "cuda")[0]

    arch = triton_impl._target(tensors[0].device)[0]
    present = tiles.tile(arch, direction, d, 2, warp_size)
    present_time = time(present)
    timed = {tile: time(tile) for tile in candidates(d, warp_size)}
    fastest = min(timed, key=timed.get)
    if timed[fastest] > 0.98 * present_time:
        return present, present_time, present_time
    return fastest, timed[fastest], present_time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", nargs="+", type=int, default=[128, 256, 384, 512, 768, 1024, 2048, 4096])
    parser.add_argument("--tokens", type=int, default=32768)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("tuning needs a GPU")

    arch, _, warp_size = triton_impl._target(torch.device("cuda", torch.cuda.current_device()))
    name = torch.cuda.get_device_name()
    print(f'    "{arch}": {{')
    for d in args.width:
        bench.check(d, torch.bfloat16, "cuda")
        batch = bench.inputs(args.tokens, d, torch.bfloat16, "cuda")
        forward, backward = (best(direction, batch, warp_size) for direction in ("forward", "backward"))
        entry = ", ".join(f"Tile({tile.rows}, {tile.cols}, {tile.warps})" for tile in (forward[0], backward[0]))
        times = ", ".join(f"{1e6 * new:.1f} us, was {1e6 * old:.1f}" for _, new, old in (forward, backward))
        print(f'        {d}: Entry({entry}, "{name}"),  # {times}', flush=True)
    print("    },")
    return 0


if __name__ == "__main__":
    sys.exit(main())
