"""What the Triton kernels compile to, without a GPU:  python scripts/kernel_report.py [--check]

Prints registers, spills, shared memory, access widths and instructions per element of each kernel, and for known
GPUs the picoseconds an element costs memory, instruction issue and the special-function units. With --check, exits
with 1 where the budget of `swep_ds.kernels.aot` is broken.
"""

import argparse
import sys

from swep_ds.kernels import MODES, aot


def table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", nargs="+", choices=list(aot.WARP_SIZES), default=list(aot.WARP_SIZES))
    parser.add_argument("--width", nargs="+", type=int, default=[768, 1024], help="embedding widths d")
    parser.add_argument("--dtype", nargs="+", choices=list(aot.BITS), default=["bf16"])
    parser.add_argument("--mode", nargs="+", choices=list(MODES), default=["learned"])
    parser.add_argument("--rounds", type=int, default=aot.ROUNDS, help="Philox rounds, to see what they cost")
    parser.add_argument("--check", action="store_true", help="exit with 1 where the budget is broken")
    args = parser.parse_args()

    kernels, times, shortfalls = [], [], []
    for direction in ("forward", "backward"):
        for mode in args.mode:
            for arch in args.arch:
                for dtype in args.dtype:
                    for d in args.width:
                        result = aot.report(direction, arch, d, dtype, mode, args.rounds)
                        name = [direction, mode, arch, dtype, str(d)]
                        kernels.append(
                            name
                            + ["x".join(map(str, result.tile[:2])), str(result.registers), str(result.spilled_bytes)]
                            + [str(result.shared_bytes), f"{result.load_bits}/{result.store_bits}"]
                            + [f"{result.bytes_per_element:g}", f"{result.instructions:.1f}"]
                            + [f"{count:.1f}" for count in result.counts.values()]
                        )
                        for machine in aot.MACHINES:
                            if machine.arch == arch:
                                limits = result.times(machine)
                                row = [*name, machine.name, *(f"{1e12 * s:.2f}" for s in limits.values())]
                                times.append([*row, max(limits, key=limits.get)])
                        shortfalls += aot.shortfalls(result)
    classes = list(result.counts)
    print("Kernels; the columns from `instructions` on are per element.\n")
    header = ["kernel", "mode", "arch", "dtype", "d", "tile", "registers", "spilled B", "shared B", "load/store bits"]
    print(table([*header, "bytes", "instructions", *classes], kernels))
    print("\nPicoseconds per element, and what limits.\n")
    print(table(["kernel", "mode", "arch", "dtype", "d", "GPU", "memory", "issue", "special", "limit"], times))
    if args.check:
        print("\n" + ("\n".join(shortfalls) or "Within the budget."))
    return 1 if args.check and shortfalls else 0


if __name__ == "__main__":
    sys.exit(main())
