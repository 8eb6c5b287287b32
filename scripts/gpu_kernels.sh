#!/usr/bin/env bash
# Everything about the kernels that only a GPU can show, in steps.
#   usage: scripts/gpu_kernels.sh [OUT [STEP ...]]
#     OUT   folder for what the steps print (STEP.md) and measure (STEP.json); default results/kernels
#     STEP  of test, report, host, ladder, bfloat16, float16, float32, tune; default: all, in this order
#           test      the kernel tests, on the GPU itself; report    what this machine's Triton compiles
#           host      host time of a call, launches included; ladder    the noise ablation, from a copy to tl.randn
#           a dtype   the benchmark: speed, memory, the aims; tune      entries for kernels/tiles.py
# A step is stopped after 10 minutes; a stopped benchmark keeps the sizes it has measured.
# The script ends at the first step that fails: nothing is measured after a kernel that computed a wrong result.
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
