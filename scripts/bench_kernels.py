"""Time the perturbation beside eager PyTorch, torch.compile and a copy:

    python scripts/bench_kernels.py --output results/kernels            # on a GPU
    python scripts/bench_kernels.py --ladder --tokens 32768 --width 768 # on a GPU: what each part of the noise costs
    python scripts/bench_kernels.py --update                            # on a CPU: share of a SWEP update
    python scripts/bench_kernels.py --device cpu --tokens 1536 --width 384 --dtype float32

Checks the results against float64 first and times nothing if they are wrong. Writes OUTPUT.json and, with matplotlib
installed, OUTPUT.png; prints a table.
"""

import argparse
import importlib.util
import json
import platform
import sys
from pathlib import Path

import torch
from swep_ds.kernels import bench

DTYPES = ("bfloat16", "float16", "float32")
DEFAULTS = {
    "cuda": {"tokens": [512, 3072, 8192, 32768, 131072, 262144], "width": [128, 768, 1024, 4096], "dtype": DTYPES},
    "cpu": {"tokens": [512, 1536], "width": [384, 768], "dtype": ["float32"]},
}
"""Sizes up to what fills a GPU, and sizes of a batch that one trains on a CPU."""


def show(record: dict) -> str:
    cells = [str(record[key]) for key in ("tokens", "d", "dtype", "implementation")]
    if record.get("out_of_memory"):
        return "| " + " | ".join([*cells, "out of memory"]) + " |"
    low, high = (1e6 * s for s in record["seconds_20_80"])
    cells += [record["pass"], f"{1e6 * record['seconds']:.1f}", f"{low:.1f} to {high:.1f}", f"{record['gb_per_s']:.0f}"]
    cells.append(f"{record['share_of_copy']:.0%}" if "share_of_copy" in record else "")
    cells.append("" if record["extra_bytes"] is None else f"{record['extra_bytes'] / 2**20:.1f}")
    return "| " + " | ".join(cells) + " |"


def plot(records: list[dict], path: Path) -> None:
    """GB/s of forward + backward over the number of tokens, a panel for each dtype and width."""
    from matplotlib import pyplot

    panels = sorted({(r["dtype"], r["d"]) for r in records})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3.2), squeeze=False, sharey=True)
    for axis, (dtype, d) in zip(axes[0], panels, strict=True):
        for name in ("copy", "fused", "compiled", "eager"):
            line = [
                r
                for r in records
                if (r["dtype"], r["d"], r["implementation"], r.get("pass")) == (dtype, d, name, "both")
            ]
            if line:
                axis.plot([r["tokens"] for r in line], [r["gb_per_s"] for r in line], marker="o", label=name)
        axis.set(title=f"{dtype}, d = {d}", xscale="log", xlabel="tokens")
    axes[0][0].set_ylabel("GB/s, forward + backward")
    axes[0][0].legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--tokens", nargs="+", type=int, help=f"at most {bench.LENGTH}, or multiples of it (default: by device)"
    )
    parser.add_argument("--width", nargs="+", type=int, help="embedding widths d (default: by device)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="(default: by device)")
    parser.add_argument("--output", type=Path, help="path without suffix for the JSON and the plot")
    parser.add_argument("--ladder", action="store_true", help="only the rungs from a copy to tl.randn, on a GPU")
    parser.add_argument(
        "--update", action="store_true", help="only the share of a SWEP update of 8 x 192 tokens, on a CPU"
    )
    args = parser.parse_args()
    if args.update:
        bench.check(384, torch.float32, "cpu")
        times = bench.share_of_update()
        for name, value in times.items():
            print(f"{name}: {1e3 * value:.1f} ms, {value / times['update']:.1%} of the update")
        return 0
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; pass --device cpu")

    for name, value in DEFAULTS[args.device].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if wrong := [tokens for tokens in args.tokens if tokens > bench.LENGTH and tokens % bench.LENGTH]:
        parser.error(f"--tokens must be at most {bench.LENGTH} or multiples of it; got {wrong[0]}")
    dtypes = {name: getattr(torch, name) for name in args.dtype}
    for dtype in dtypes.values():
        for d in args.width:
            bench.check(d, dtype, args.device)
    device = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else f"CPU ({platform.machine()}), {torch.get_num_threads()} threads"
    )
    print(f"{device}, PyTorch {torch.__version__}\n")
    if args.ladder:
        for d in args.width:
            for tokens in args.tokens:
                times = bench.ladder(tokens, d)
                for name, value in times.items():
                    share = times["copy"] / value
                    print(f"{tokens} tokens, d = {d}: {name}: {1e6 * value:.1f} us, {share:.0%} of the copy")
        return 0
    print("| tokens | d | dtype | implementation | pass | us, median | 20% to 80% | GB/s | of copy | extra MiB |")
    print("|" + " --- |" * 10)
    records = []
    for dtype in dtypes.values():
        for d in args.width:
            for tokens in args.tokens:
                for record in bench.measure(tokens, d, dtype, args.device):
                    print(show(record), flush=True)
                    records.append(record)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        result = {"device": device, "torch": torch.__version__, "records": records}
        args.output.with_suffix(".json").write_text(json.dumps(result, indent=1))
        if importlib.util.find_spec("matplotlib"):
            plot(records, args.output.with_suffix(".png"))
        else:
            print("\nNo plot: matplotlib is not installed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
