"""Times the perturbation, and for comparison eager PyTorch, torch.compile and a copy:

    python -m benchmarks.kernels --output results/kernels    # on a GPU: sizes, dtypes, forward and backward
    python -m benchmarks.kernels --device cpu                # the same on a CPU, fewer sizes

Checks the results against float64 first, and times nothing if they are wrong. Prints a table; with --output it writes
OUTPUT.json, again after each size.
"""

import argparse
import json
import platform
from pathlib import Path

import torch

from benchmarks.kernels import bench
from swep_ds.commands import cli
from swep_ds.common.files import check_output_folder

DTYPES = ("bfloat16", "float16", "float32")
DEFAULTS = {
    "cuda": {"tokens": [512, 3072, 8192, 32768, 131072, 262144], "width": [128, 768, 1024, 4096], "dtype": DTYPES},
    "cpu": {"tokens": [512, 1536], "width": [384, 768], "dtype": ["float32"]},
}
"""Sizes up to those that fill a GPU, and sizes of a batch for training on a CPU."""
STATES = ("cold", "warm")
COLUMNS = ("tokens", "d", "dtype", "implementation", "timed", "pass")
COLUMNS += tuple(f"{state}: {name}" for state in STATES for name in ("us, median", "10% to 90%", "GB/s", "of copy"))


def lines(records: list[dict]) -> list[str]:
    """A line of the table for each implementation, way to time it and pass: figures with a cold L2, then a warm one."""
    results: dict[tuple, dict[str, dict]] = {}
    for record in records:
        way, _, state = record["timed"].partition(", ")
        about = [record[key] for key in ("tokens", "d", "dtype", "implementation")]
        results.setdefault((*about, way, record.get("pass", "out of memory")), {})[state] = record
    table = []
    for about, measured in results.items():
        cells = [*map(str, about)]
        for state in STATES:
            cells += figures(measured[state]) if state in measured else [""] * 4
        table.append(f"| {' | '.join(cells)} |")
    return table


def figures(record: dict) -> list[str]:
    low, high = (1e6 * s for s in record["seconds_10_90"])
    share = f"{record['share_of_copy']:.0%}" if "share_of_copy" in record else ""
    return [f"{1e6 * record['seconds']:.1f}", f"{low:.1f} to {high:.1f}", f"{record['gb_per_s']:.3g}", share]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="(default: cuda)")
    parser.add_argument("--tokens", nargs="+", type=bench.tokens, help="(default: by device)")
    parser.add_argument("--width", nargs="+", type=bench.width, help="embedding widths d (default: by device)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="(default: by device)")
    parser.add_argument("--output", type=Path, help="path of the JSON, without its suffix")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU; pass --device cpu")
    for name, value in DEFAULTS[args.device].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.output:
        check_output_folder("--output", args.output.parent)
        args.output.parent.mkdir(parents=True, exist_ok=True)
    return args


def main() -> None:
    args = parse()
    device = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    if args.device == "cuda":
        device = torch.cuda.get_device_name()
    print(f"{device}, PyTorch {torch.__version__}\n")
    dtypes = [getattr(torch, name) for name in args.dtype]
    for dtype in dtypes:
        for d in args.width:
            bench.check(d, dtype, args.device)
    print(f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS), sep="\n")
    records = []
    for dtype in dtypes:
        for d in args.width:
            for tokens in args.tokens:
                measured = bench.measure(tokens, d, dtype, args.device)
                print(*lines(measured), sep="\n", flush=True)
                records += measured
                if args.output:
                    result = {"device": device, "torch": torch.__version__, "sizes": records}
                    Path(f"{args.output}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    cli.main(main)
