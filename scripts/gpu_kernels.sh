#!/usr/bin/env bash
# All that only a GPU can tell about the kernels, in steps.
#   usage: scripts/gpu_kernels.sh [OUT [STEP ...]]
#     OUT   folder for what the steps print (STEP.md) and measure (STEP.json, STEP.png); default results/kernels
#     STEP  of test, report, host, ladder, bfloat16, float16, float32, tune; default: all, in this order
#           test      the kernel tests, on the GPU itself; report    what this machine's Triton compiles
#           host      host time of a call, launches included; ladder    what the noise costs, from a copy to tl.randn
#           a dtype   the benchmark: speed, memory, the aims; tune      entries for kernels/tiles.py
# A step should take less than 10 minutes and is cut off there; a benchmark cut off keeps the sizes it has done.
# The script ends at the first step that fails: no figure comes after a kernel that computed the wrong thing.
set -euo pipefail
out=$(realpath -m "${1:-results/kernels}")
steps=("${@:2}")
[ ${#steps[@]} -gt 0 ] || steps=(test report host ladder bfloat16 float16 float32 tune)
cd "$(dirname "$0")/.."
mkdir -p "$out"

for step in "${steps[@]}"; do
  case $step in
    test) command=(-m pytest tests/kernels) ;;
    report) command=(scripts/kernel_report.py) ;;
    host | ladder) command=(scripts/bench_kernels.py "--$step" --output "$out/$step") ;;
    bfloat16 | float16 | float32) command=(scripts/bench_kernels.py --dtype "$step" --output "$out/$step") ;;
    tune) command=(scripts/tune_kernels.py) ;;
    *) echo "gpu_kernels.sh: there is no step $step" >&2; exit 2 ;;
  esac
  echo "== $step"
  timeout 600 python3 "${command[@]}" 2>&1 | tee "$out/$step.md"
done
