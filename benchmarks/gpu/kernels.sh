#!/usr/bin/env bash
# Everything about the kernels that only a GPU can show, the most wanted first: about 11 to 14 minutes.
#   usage: benchmarks/gpu/kernels.sh [OUT [STEP ...]]
#     OUT   folder for what the steps print (STEP.log) and measure (STEP.json); default: results/kernels
#     STEP  default: all, in this order
#           test        the kernel tests that use the GPU
#           bfloat16    the benchmark at two widths and three sizes: speed relative to a copy
#           tune-768, -1024   the fastest tiles, by width
#           report      what this machine's Triton compiles
# Each step that measures compares the kernel with float64 first and ends if it is wrong. The others run whatever `test`
# says, because it also tests what has no influence on the numbers: compilations and memory.
# What happens to a step that fails, a start with less time, a rehearsal without a GPU: steps.sh.
. "$(dirname "$0")/steps.sh"
out=${1:-results/kernels}
only "${@:2}"

right=(tests/kernels/test_{cuda,triton}.py -n 8)
sizes=(--dtype bfloat16 --width 768 1024 --tokens 3072 32768 131072)
compiled=()
if rehearsing; then
  right=(tests/kernels/test_tiles.py)
  sizes=(--device cpu --dtype float32 --width 16 --tokens 64)
  compiled=(--width 128 --dtype fp32)
fi

begin "$out"
step test 400 "$PYTHON" -m pytest "${right[@]}"
step bfloat16 240 "$PYTHON" -m benchmarks.kernels "${sizes[@]}" --output "$out/bfloat16"
for width in 768 1024; do
  if rehearsing; then
    skip tune-$width "it needs a GPU"
  else
    step tune-$width 240 "$PYTHON" -m benchmarks.kernels.tune --width $width
  fi
done
step report 120 "$PYTHON" -m benchmarks.kernels.report "${compiled[@]}"
finish
