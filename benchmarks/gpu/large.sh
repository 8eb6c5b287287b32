#!/usr/bin/env bash
# Compares what updates of large models take on one device with --plan: about 5 minutes. Random weights, nothing is
# downloaded.
#   usage: benchmarks/gpu/large.sh OUT [MODEL ...]
#     OUT    folder for logs, figures and the model at hand (2 bytes a parameter, removed again)
#     MODEL  a name that benchmarks/random_model.py knows, or a config.json; default: xlm-roberta-xl, deberta-v2-xxlarge and
#            t5-3b, in this order
# Steps of each model: MODEL-plan (from its config, before a weight is written), MODEL-weights, MODEL-swep and MODEL-mle
# (updates behind two that warm up), with the ds_config that --plan takes for SWEP. A model that fits with none is left
# out. The plan knows the GPU's memory and takes the CPU's as enough, because the CPU memory that a virtual machine reports
# may grow with its use. At the end there is a line for each: measured and planned peak memory, tokens per second.
# What happens to a step that fails, a start with less time, a rehearsal without a GPU: steps.sh.
. "$(dirname "$0")/steps.sh"
[ $# -ge 1 ] || fail "usage: benchmarks/gpu/large.sh OUT [MODEL ...]"
folder=$1
shift
[ $# -gt 0 ] || set -- xlm-roberta-xl deberta-v2-xxlarge t5-3b
models=()
for model in "$@"; do
  [ -f "$model" ] && model=$(realpath "$model")
  models+=("$model")
done

compare() {
  "$PYTHON" - "$out" <<'PY'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
for path in sorted(out.glob("*-swep.json")) + sorted(out.glob("*-mle.json")):
    [row] = json.loads(path.read_text())["rows"]
    name, _, method = path.stem.rpartition("-")
    text = (out / f"{name}-plan-{method}.log").read_text().rpartition("\n== started again")[2]
    unit = 2**30 if "memory per device, and disk, in GiB" in text else 2**20
    [line] = [line for line in text.splitlines() if line.startswith("│")]
    config, *sizes = line.replace("│", " ").replace(",", "").split()
    planned = float(sizes[8]) * unit
    print(f"{name:20} {method:5} {config:14} peak {row['peak_bytes'] / 2**30:7.2f} GiB, planned {planned / 2**30:7.2f} GiB; "
          f"{row['tokens_per_second']:9.1f} tokens/s")
PY
}

begin "$folder"
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}
if rehearsing; then
  plan=(--set train.precision=fp32)  # for this machine, which may have no instructions for bf16
else
  gib=$("$PYTHON" -c 'import torch; print(f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.3f}")') ||
    fail "the GPU's memory cannot be read"
  plan=("1x$gib")
fi
for model in "${models[@]}"; do
  name=$(basename "$model" .json) here=$out/models/$(basename "$model" .json)
  after=("$name-weights" "$name-plan-mle" "$name-swep" "$name-mle")
  mkdir -p "$out/models"
  if ! step "$name-plan" 60 bash -c '
      "$0" -m benchmarks.random_model "$1" "$2" --no_weights || exit
      recipe=xl_encoder
      if grep -Eq "\"model_type\": \"(m|um)?t5\"" "$2/config.json"; then recipe=large_t5; fi
      exec "$0" scripts/train.py --plan "${@:3}" --recipe $recipe --set "model.name=$2" \
        --set "data.train=$2/train.json" --set "data.eval={}" --set train.gradient_accumulation_steps=1' \
      "$PYTHON" "$model" "$here" "${plan[@]}"; then
    for later in "${after[@]}"; do skip "$later" "there is no plan"; done
    continue
  fi
  command=$(tac "$out/$name-plan.log" | sed '/^== started again/q' | grep -m 1 '^    swep-ds train ')
  if [ -z "$command" ]; then
    for later in "${after[@]}"; do skip "$later" "the model fits with no ds_config ($(tail -n 1 "$out/$name-plan.log"))"; done
    continue
  fi
  eval "chosen_options=(${command#* swep-ds train})"
  for method in swep mle; do
    step "$name-plan-$method" 60 "$PYTHON" scripts/train.py --plan "${plan[@]}" "${chosen_options[@]}" \
      --set method.name=$method
  done
  if pending "$name-swep" "$name-mle"; then
    [ -f "$here/model.safetensors" ] || [ -f "$here/model.safetensors.index.json" ] || rm -f "$out/$name-weights.done"
    step "$name-weights" 120 "$PYTHON" -m benchmarks.random_model "$model" "$here"
  fi
  for method in swep:split mle; do
    step "$name-${method%:*}" 270 "$PYTHON" -m benchmarks.training "${chosen_options[@]}" --methods $method --updates 3 \
      --warmup 2 --json "$out/$name-${method%:*}.json"
  done
  pending "$name-swep" "$name-mle" || rm -rf "$here"
done
compare
finish
