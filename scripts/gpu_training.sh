#!/usr/bin/env bash
# Everything about training that only a GPU can measure. Nothing is downloaded.
#   usage: scripts/gpu_training.sh ENCODER DATA OUT
#     ENCODER  local folder of a small pretrained encoder
#     DATA     folder with new_wiki_v1.0.json.gz and amazon_reviews_v1.0.json.gz (SQuADShifts)
#     OUT      folder for the logs and results.json files
# At the end it prints one line per run: EM and F1 per data set, and samples per second.
set -euo pipefail
encoder=$(realpath "$1") data=$(realpath "$2") out=$(realpath -m "$3")
cd "$(dirname "$0")/.."
mkdir -p "$out"
train() {  # NAME DS_CONFIG [train.py arguments]
  local name=$1 config=$2
  shift 2
  deepspeed scripts/train.py --ds_config "ds_configs/$config.json" --output_dir "$out/$name" "$@" >"$out/$name.log" 2>&1 ||
    { tail -n 30 "$out/$name.log"; echo "FAILED $name"; return 1; }
}
new_wiki=(--recipe new_wikipedia --set "model.name=$encoder" --set "data.train=$data/new_wiki_v1.0.json.gz"
  --set "data.eval.amazon=$data/amazon_reviews_v1.0.json.gz" --set train.precision=bf16)

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
train quickstart zero2
train quickstart-bf16-zero3 zero3 --set train.precision=bf16
train new-wiki-zero3-swep zero3 "${new_wiki[@]}" --set train.epochs=1

shape() {  # NAME HIDDEN LAYERS HEADS [ATTENTION_DROPOUT]: a BERT of random weights with the encoder's tokenizer
  echo '{"model_type": "bert", "vocab_size": 30522, "hidden_size": '"$2"', "num_hidden_layers": '"$3"',
    "num_attention_heads": '"$4"', "intermediate_size": '$((4 * $2))',
    "attention_probs_dropout_prob": '"${5:-0.1}"'}' >"$out/$1.json"
  python3 scripts/random_model.py "$out/$1.json" "$out/$1" >"$out/$1.log" 2>&1
  cp "$encoder"/tokenizer* "$out/$1"
}
bench() {  # NAME SHAPE [--set ...]: FLOPs and memory against the published procedure, which always runs in fp32
  echo "== $1"
  python3 scripts/bench_training.py "${new_wiki[@]}" --set train.micro_batch_size=32 --updates 40 --warmup 10 \
    --set "model.name=$out/$2" "${@:3}" --json "$out/bench-$1.json" 2>"$out/bench-$1.log" ||
    { tail -n 30 "$out/bench-$1.log"; echo "FAILED $1"; return 1; }
}
profile() {  # NAME SHAPE: the kernels that take a SWEP update's time
  echo "== profile of $1"
  python3 scripts/bench_training.py "${new_wiki[@]}" --set train.micro_batch_size=32 --updates 10 --warmup 10 \
    --set "model.name=$out/$2" --profile --methods swep:split --json "$out/profile-$1.json" 2>"$out/profile-$1.log" ||
    { tail -n 30 "$out/profile-$1.log"; echo "FAILED profile-$1"; return 1; }
}
shape bert-base 768 12 12
shape bert-base-undropped 768 12 12 0.0
shape bert-large 1024 24 16
bench base-fp32 bert-base --set train.precision=fp32
bench base-bf16 bert-base
# one attention kernel for all windows has no dropout of attention weights: neither model has it
bench base-bf16-undropped bert-base-undropped
bench base-bf16-packing bert-base-undropped --set train.packing=true
bench base-bf16-compile bert-base --set train.compile=true
bench large-bf16 bert-large
profile base-bf16 bert-base
profile large-bf16 bert-large
python3 scripts/bench_training.py "${new_wiki[@]}" --set train.micro_batch_size=32 --set "model.name=$out/bert-base" \
  --scaling --updates 40 --warmup 10 --json "$out/scaling.json"
rm -r "$out/bert-base" "$out/bert-base-undropped" "$out/bert-large"

for seed in 0 1 2; do
  for method in mle swep; do
    extra=()
    [ $method = mle ] && extra=(--set method.name=mle)
    train "new-wiki-$method-$seed" zero2 "${new_wiki[@]}" "${extra[@]}" --set "seed=$seed"
  done
done
python3 - "$out" <<'PY'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/results.json")):
    r = json.loads(path.read_text())
    scores = "  ".join(f"{k} {v['exact_match']:.2f}/{v['f1']:.2f}" for k, v in r["eval"].items())
    print(f"{path.parent.name:28} {r['train']['samples_per_second']:8.1f} samples/s  {scores}")
PY
