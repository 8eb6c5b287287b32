"""What the Triton kernels compile to, found without a GPU:

    python scripts/kernel_report.py                     # registers, spills, access widths, instructions, limits
    python scripts/kernel_report.py --check             # the same, and exit code 1 if the budget is broken
    python scripts/kernel_report.py --noise_ablation    # what drawing costs, from no noise to tl.randn

The first table shows what each kernel compiled to, the second its instructions by class, the third the picoseconds
that an element costs the memory, the instruction issue and the special-function units of known GPUs. The largest is
the limit; it is given as a multiple of the memory's or, if that is it, of the next. The last table, of sm_90, shows the
warps on an SM, the loads that each has in flight, and the share of a copy's speed by a model of both.
`swep_ds.kernels.tools.aot` defines what is counted, `latency` the model.
"""

import argparse
import os
import sys

from swep_ds.commands import cli
from swep_ds.kernels import MODES, arguments
from swep_ds.kernels.tools import aot, latency

LIMITS = ["memory", "issue", "special", "limit"]


def table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
    )


def limits(result: aot.Report) -> list[list[str]]:
    """A row for each known GPU of the architecture: its name and its LIMITS."""
    rows = []
    for machine in aot.MACHINES:
        if machine.arch == result.arch:
            times = result.times(machine)
            *_, second, first = sorted(times, key=times.get)
            other = second if first == "memory" else "memory"
            picoseconds = [f"{1e12 * s:.2f}" for s in times.values()]
            rows.append([machine.name, *picoseconds, f"{first}, {times[first] / times[other]:.1f} x {other}"])
    return rows


def kernels(archs: list[str], widths: list[int], dtype: str, mode: str) -> list[aot.Report]:
    """Reports the kernels of one mode and dtype."""
    reports = [aot.report(k, arch, d, dtype, mode) for k in ("forward", "backward") for arch in archs for d in widths]
    compiled, classes, bounds = [], [], []
    for r in reports:
        name = [r.direction, r.arch, str(r.d)]
        resources = [r.registers, r.spilled_bytes, r.shared_bytes, f"{r.load_bits}/{r.store_bits}"]
        shape = f"{r.tile.rows} x {r.tile.cols}"
        compiled.append([*name, shape, *map(str, resources), f"{r.bytes_per_element:g}", f"{r.instructions:.1f}"])
        classes.append([*name, *(f"{count:.1f}" for count in r.counts.values())])
        bounds += [[*name, *row] for row in limits(r)]
    header = ["kernel", "arch", "d"]
    resources = ["tile", "registers", "spilled B", "shared B", "load/store bits", "bytes", "instructions"]
    print(f"{mode}, {dtype}; bytes and instructions per element\n")
    print(table([*header, *resources], compiled), table([*header, *reports[0].counts], classes), sep="\n\n")
    print("\n" + table([*header, "GPU", *LIMITS], bounds) + "\n")
    modelled = [[*row, *shares] for r in reports for row, shares in estimates(r)]
    if modelled:
        shares = [f"of copy, {nanoseconds} ns" for nanoseconds in latency.LATENCIES]
        print(table([*header, "GPU", "warps an SM", "loads in flight", *shares], modelled))
        print("\n" + latency.ASSUMPTIONS + "\n")
    return reports


def estimates(r: aot.Report) -> list[tuple[list[str], list[str]]]:
    """For each GPU of sm_90: kernel, residency and loads in flight; shares of a copy by the model."""
    return [
        (
            [r.direction, r.arch, str(r.d), machine.name, str(r.resident_warps), str(r.loads_in_flight)],
            [f"{min(1.0, r.share_of_copy(machine, nanoseconds)):.0%}" for nanoseconds in latency.LATENCIES],
        )
        for machine in aot.MACHINES
        if machine.arch == r.arch == "sm_90"
    ]


def noise_ablation(archs: list[str]) -> None:
    rows = []
    for arch in archs:
        for name, r in aot.ablation_reports(arch).items():
            rows += [[name, arch, str(r.d), f"{r.instructions:.1f}", *row] for row in limits(r)]
    print(table(["noise of the forward, bf16", "arch", "d", "instructions", "GPU", *LIMITS], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--arch", nargs="+", choices=list(aot.WARP_SIZES), default=list(aot.WARP_SIZES))
    parser.add_argument("--width", nargs="+", type=arguments.width, help="embedding widths d (default: 768 1024)")
    parser.add_argument("--dtype", nargs="+", choices=list(aot.BITS), help="(default: bf16)")
    parser.add_argument("--mode", nargs="+", choices=list(MODES), help="(default: learned)")
    section = parser.add_mutually_exclusive_group()
    section.add_argument("--check", action="store_true", help="exit with 1 if the budget is broken")
    section.add_argument("--noise_ablation", action="store_true", help="only the noise ablation of the forward")
    args = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 is set, under which Triton compiles nothing; unset it")
    if args.noise_ablation:
        if args.width or args.dtype or args.mode:
            fix = "leave out --width, --dtype and --mode"
            parser.error(f"--noise_ablation is about learned noise, bf16 and d = 1024: {fix}")
        noise_ablation(args.arch)
        return
    widths = args.width or [768, 1024]
    reports = [
        r
        for mode in args.mode or ["learned"]
        for dtype in args.dtype or ["bf16"]
        for r in kernels(args.arch, widths, dtype, mode)
    ]
    if args.check:
        shortfalls = [line for r in reports for line in aot.shortfalls(r)]
        print("\n".join(shortfalls) or "Within the budget.")
        sys.exit(1 if shortfalls else 0)


if __name__ == "__main__":
    cli.main(main)
