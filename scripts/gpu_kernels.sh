#!/usr/bin/env bash
# All that issue 3 asks of a GPU, in one go: correctness first, then the ladder, the benchmark and the tile table.
#   bash scripts/gpu_kernels.sh [OUTPUT_DIR]
# Stops at the first failure: no figure comes from a kernel that computes the wrong thing.
set -euo pipefail
output=${1:-results/kernels}
mkdir -p "$output"
python -m pytest tests/kernels
python scripts/kernel_report.py --check | tee "$output/report.md"
python scripts/bench_kernels.py --ladder --tokens 32768 --width 768 1024 | tee "$output/ladder.md"
python scripts/bench_kernels.py --output "$output/bench" | tee "$output/bench.md"
python scripts/tune_kernels.py | tee "$output/tiles.txt"
