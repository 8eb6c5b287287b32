"""What the Triton kernels compile to, found without a GPU:

    python -m benchmarks.kernels.report            # registers, spills, shared memory, access widths, instructions
    python -m benchmarks.kernels.report --check    # the same, and exit code 1 if the budget is broken

Bytes and instructions are per element. `benchmarks.kernels.aot` defines what is counted.
"""

import argparse
import os
import sys

from benchmarks.kernels import aot, bench
from swep_ds.commands import cli
from swep_ds.kernels import MODES

HEADER = ("kernel", "arch", "d", "tile", "registers", "spilled B", "shared B", "load/store bits", "bytes")
HEADER += ("instructions",)


def table(reports: list[aot.Report]) -> str:
    rows = [list(HEADER)]
    for r in reports:
        shape, widths = f"{r.tile.rows} x {r.tile.cols}", f"{r.load_bits}/{r.store_bits}"
        cells = [r.direction, r.arch, r.d, shape, r.registers, r.spilled_bytes, r.shared_bytes, widths]
        rows.append([*map(str, cells), f"{r.bytes:g}", f"{r.instructions:.1f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--arch", nargs="+", choices=list(aot.WARP_SIZES), default=list(aot.WARP_SIZES))
    parser.add_argument("--width", nargs="+", type=bench.width, default=[768, 1024], help="embedding widths d")
    parser.add_argument("--dtype", nargs="+", choices=list(aot.BITS), default=["bf16"], help="(default: bf16)")
    parser.add_argument("--mode", nargs="+", choices=list(MODES), default=["learned"], help="(default: learned)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the budget is broken")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 is set, under which Triton compiles nothing; unset it")
    shortfalls = []
    for mode in args.mode:
        for dtype in args.dtype:
            kernels = [(k, arch, d) for k in ("forward", "backward") for arch in args.arch for d in args.width]
            reports = [aot.report(*kernel, dtype, mode) for kernel in kernels]
            print(f"{mode}, {dtype}\n\n{table(reports)}\n")
            shortfalls += [line for report in reports for line in aot.shortfalls(report)]
    if args.check:
        print("\n".join(shortfalls) or "Within the budget.")
        sys.exit(1 if shortfalls else 0)


if __name__ == "__main__":
    cli.main(main)
