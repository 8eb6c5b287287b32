#!/usr/bin/env bash
# Compares what updates of large models take on one device with --plan. Random weights, nothing is downloaded.
#   usage: scripts/gpu_large.sh OUT [MODEL ...]
#     OUT    folder for the models (2 bytes a parameter, removed again), logs and figures
#     MODEL  a name that scripts/random_model.py knows, or a config.json; by default all these names
# Each model is trained for a few updates with SWEP and with MLE, with the ds_config that --plan takes for SWEP; a model
# that fits with none is left out. At the end it prints a line for each: measured and planned peak memory, tokens per
# second.
set -euo pipefail
out=$(realpath -m "$1")
shift
[ $# -gt 0 ] || set -- deberta-v2-xxlarge xlm-roberta-xl t5-3b t5-11b
models=()
for model in "$@"; do
  [ -f "$model" ] && model=$(realpath "$model")
  models+=("$model")
done
cd "$(dirname "$0")/.."
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
run() {  # LOG COMMAND ...
  "${@:2}" >"$1.log" 2>&1 || { tail -n 30 "$1.log"; echo "FAILED $1"; return 1; }
}
for model in "${models[@]}"; do
  here=$out/$(basename "$model" .json)
  mkdir -p "$here"
  run "$here/model" python3 scripts/random_model.py "$model" "$here/model"
  recipe=xl_encoder
  grep -Eq '"model_type": "(m|um)?t5"' "$here/model/config.json" && recipe=large_t5
  run "$here/plan" python3 scripts/train.py --plan --recipe $recipe --set "model.name=$here/model" \
    --set "data.train=$here/model/train.json" --set 'data.eval={}' --set train.gradient_accumulation_steps=1
  command=$(grep '^    .* scripts/train.py ' "$here/plan.log" || true)
  if [ -n "$command" ]; then
    eval "chosen=(${command#* scripts/train.py})"
    for method in swep mle; do
      run "$here/plan-$method" python3 scripts/train.py --plan "${chosen[@]}" --set method.name=$method
      name=$method
      [ $method = swep ] && name=swep:split
      run "$here/$method" python3 scripts/bench_training.py "${chosen[@]}" --methods $name --updates 2 --warmup 0 \
        --json "$here/$method.json" || true
    done
  else
    tail -n 2 "$here/plan.log"
  fi
  rm -r "$here/model"
done
python3 - "$out" <<'PY'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/*.json")):
    [row] = json.loads(path.read_text())["rows"]
    text = path.with_name(f"plan-{path.stem}.log").read_text()
    unit = 2**30 if "memory per device, GiB" in text else 2**20
    [line] = [line for line in text.splitlines() if line.startswith("│")]
    config, *sizes = line.replace("│", " ").replace(",", "").split()
    planned = float(sizes[8]) * unit
    print(f"{path.parent.name:20} {path.stem:5} {config:14} peak {row['peak_bytes'] / 2**30:7.2f} GiB, planned "
          f"{planned / 2**30:7.2f} GiB; {row['tokens_per_second']:9.1f} tokens/s")
PY
