#!/usr/bin/env bash
# Everything about the kernels that only a GPU can show, the most wanted first: about 11 to 14 minutes.
#   usage: scripts/gpu_kernels.sh [OUT [STEP ...]]
#     OUT   folder for what the steps print (STEP.log) and measure (STEP.json); default: results/kernels
#     STEP  default: all, in this order
#           test            the kernel tests that use the GPU
#           bfloat16        the benchmark at two widths and three sizes: speed beside a copy, memory, the aims
#           tune            entries for kernels/tiles.py
#           host            host time of a call, launches included
#           noise_ablation  the forward with other ways to draw, from a copy to tl.randn
#           report          what this machine's Triton compiles
# Nothing is measured after a kernel that computed a wrong result, or before `test` has run.
# What happens to a step that fails, a start with less time, a rehearsal without a GPU: gpu_steps.sh.
. "$(dirname "$0")/gpu_steps.sh"
out=${1:-results/kernels}
only "${@:2}"

needs_gpu="it needs a GPU"
right=(tests/kernels/test_{cuda,triton}.py -n 8)
sizes=(--dtype bfloat16 --width 768 1024 --tokens 3072 32768 131072)
host=() compiled=()
if rehearsing; then
  right=(tests/kernels/test_tiles.py)
  sizes=(--device cpu --dtype float32 --width 16 --tokens 64)
  host=(--device cpu) compiled=(--width 128 --dtype fp32)
fi

begin "$out"
if step test 200 "$PYTHON" -m pytest "${right[@]}" || { ! wanted test && is_done test; }; then
  step bfloat16 240 "$PYTHON" scripts/bench_kernels.py "${sizes[@]}" --output "$out/bfloat16"
  if rehearsing; then
    skip tune "$needs_gpu"
  else
    step tune 420 "$PYTHON" scripts/tune_kernels.py --width 768 1024
  fi
  step host 60 "$PYTHON" scripts/bench_kernels.py --host "${host[@]}" --output "$out/host"
  if rehearsing; then
    skip noise_ablation "$needs_gpu"
  else
    step noise_ablation 60 "$PYTHON" scripts/bench_kernels.py --noise_ablation --output "$out/noise_ablation"
  fi
else
  for name in bfloat16 tune host noise_ablation; do skip "$name" "the step test is not done"; done
fi
step report 120 "$PYTHON" scripts/kernel_report.py "${compiled[@]}"
finish
