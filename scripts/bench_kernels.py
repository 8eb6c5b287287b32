"""Times the perturbation, and beside it eager PyTorch, torch.compile and a copy:

    python scripts/bench_kernels.py --output results/kernels    # on a GPU: sizes, dtypes, forward and backward
    python scripts/bench_kernels.py --device cpu                # the same on a CPU, fewer sizes
    python scripts/bench_kernels.py --noise_ablation            # on a GPU: other ways to draw in the forward
    python scripts/bench_kernels.py --host [--device cpu]       # host time of an eager call on a tiny batch
    python scripts/bench_kernels.py --update                    # on a CPU: share of a SWEP update

Checks the results against float64 first, and times nothing if they are wrong. Prints a table; with --output it writes
OUTPUT.json, again after each size.
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from swep_ds.commands import cli
from swep_ds.kernels import arguments
from swep_ds.kernels.tools import bench

DTYPES = ("bfloat16", "float16", "float32")
DEFAULTS = {
    "cuda": {"tokens": [512, 3072, 8192, 32768, 131072, 262144], "width": [128, 768, 1024, 4096], "dtype": DTYPES},
    "cpu": {"tokens": [512, 1536], "width": [384, 768], "dtype": ["float32"]},
}
"""Sizes up to those that fill a GPU, and sizes of a batch for training on a CPU."""
NOISE_ABLATION = {"tokens": [32768], "width": [768, 1024]}
TAKES = {
    "sizes": {"device", "tokens", "width", "dtype"},
    "noise_ablation": {"tokens", "width"},
    "host": {"device"},
    "update": {},
}


def show(record: dict) -> str:
    cells = [str(record[key]) for key in ("tokens", "d", "dtype", "implementation", "timed")]
    if record.get("out_of_memory"):
        return "| " + " | ".join([*cells, "out of memory"]) + " |"
    low, high = (1e6 * s for s in record["seconds_10_90"])
    cells += [record["pass"], f"{1e6 * record['seconds']:.1f}", f"{low:.1f} to {high:.1f}", f"{record['gb_per_s']:.3g}"]
    cells.append(f"{record['share_of_copy']:.0%}" if "share_of_copy" in record else "")
    cells.append("" if record["extra_bytes"] is None else f"{record['extra_bytes'] / 2**20:.1f}")
    return "| " + " | ".join(cells) + " |"


def sizes(args: argparse.Namespace, save: Callable[[object], None]) -> None:
    dtypes = [getattr(torch, name) for name in args.dtype]
    for dtype in dtypes:
        for d in args.width:
            bench.check(d, dtype, args.device)
    print(
        "| tokens | d | dtype | implementation | timed | pass | us, median | 10% to 90% | GB/s | of copy | extra MiB |"
    )
    print("|" + " --- |" * 11)
    records = []
    for dtype in dtypes:
        for d in args.width:
            for tokens in args.tokens:
                measured = bench.measure(tokens, d, dtype, args.device)
                print(*map(show, measured), sep="\n", flush=True)
                records += measured
                save(records)
    print(*["", *bench.aims(records)], sep="\n")


def noise_ablation(args: argparse.Namespace, save: Callable[[object], None]) -> None:
    records = []
    print("| tokens | d | noise of the forward, bf16 | us, median | of copy |")
    print("|" + " --- |" * 5)
    for d in args.width:
        bench.check(d, torch.bfloat16, "cuda")
        for tokens in args.tokens:
            times = bench.noise_ablation(tokens, d)
            for name, value in times.items():
                print(f"| {tokens} | {d} | {name} | {1e6 * value:.1f} | {times['copy'] / value:.0%} |", flush=True)
            records.append({"tokens": tokens, "d": d, "seconds": times})
            save(records)


def host(args: argparse.Namespace, save: Callable[[object], None]) -> None:
    bench.check(8, torch.float32, args.device)
    times = bench.host_times(args.device)
    called = list(times["perturb"])
    print("| us of the host a call | " + " | ".join(called) + " |")
    print("|" + " --- |" * (1 + len(called)))
    for entry_point, row in times.items():
        print(f"| {entry_point} | " + " | ".join(f"{1e6 * row[name]:.1f}" for name in called) + " |")
    save(times)


def update(args: argparse.Namespace, save: Callable[[object], None]) -> None:
    bench.check(384, torch.float32, "cpu")
    times = bench.share_of_update()
    for name, value in times.items():
        print(f"{name}: {1e3 * value:.1f} ms, {value / times['update']:.1%} of the update")
    save(times)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--device", choices=["cuda", "cpu"], help="(default: cuda)")
    parser.add_argument("--tokens", nargs="+", type=arguments.tokens, help="(default: by device)")
    parser.add_argument("--width", nargs="+", type=arguments.width, help="embedding widths d (default: by device)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="(default: by device)")
    parser.add_argument("--output", type=Path, help="path of the JSON, without its suffix")
    section = parser.add_mutually_exclusive_group()
    for name, text in (
        ("noise_ablation", "only the noise ablation of the forward, from no noise to tl.randn, on a GPU"),
        ("host", "only the host time of eager calls"),
        ("update", "only the share of a SWEP update of 8 x 192 tokens, on a CPU"),
    ):
        section.add_argument(f"--{name}", dest="section", action="store_const", const=name, default="sizes", help=text)
    args = parser.parse_args()
    for name in ("device", "tokens", "width", "dtype"):
        if getattr(args, name) is not None and name not in TAKES[args.section]:
            parser.error(f"--{args.section} takes no --{name}")
    args.device = args.device or ("cpu" if args.section == "update" else "cuda")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU" + ("" if args.section == "noise_ablation" else "; pass --device cpu"))
    for name, value in (NOISE_ABLATION if args.section == "noise_ablation" else DEFAULTS[args.device]).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.output:
        try:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            Path(f"{args.output}.json").touch()
        except OSError as error:
            parser.error(f"--output {args.output} cannot be written: {error.strerror}")
    return args


def main() -> None:
    args = parse()
    if args.device == "cuda":
        device = torch.cuda.get_device_name()
    else:
        device = f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    print(f"{device}, PyTorch {torch.__version__}\n")

    def save(figures: object) -> None:
        if args.output:
            result = {"device": device, "torch": torch.__version__, args.section: figures}
            Path(f"{args.output}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")

    {"sizes": sizes, "noise_ablation": noise_ablation, "host": host, "update": update}[args.section](args, save)


if __name__ == "__main__":
    cli.main(main)
