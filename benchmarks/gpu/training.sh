#!/usr/bin/env bash
# Everything about training that only a GPU can measure, the most wanted first: about 30 minutes. Nothing is
# downloaded.
#   usage: benchmarks/gpu/training.sh ENCODER DATA OUT [STEP ...]
#     ENCODER  local folder of a small pretrained encoder
#     DATA     folder with new_wiki_v1.0.json.gz and amazon_reviews_v1.0.json.gz (SQuADShifts)
#     OUT      folder for logs, figures and runs
#     STEP     default: all, in this order. Models of BERT's shapes in bf16, unless it says otherwise
#              base, profile-base           MLE and SWEP in plain PyTorch, Hugging Face's Trainer, at ZeRO-1 and 2 and by
#                                           CUDA graphs: time, kernels, FLOPs, memory; then the kernels that take the time
#              compiled                     the same with compiled models
#              wide-mle, wide-swep          the same on 64 full windows
#              large, profile-large         the large model
#              mle, swep, quickstart, quickstart-zero3   four trainings with their scores
#              deterministic-1, -2, -graphs whether runs with train.deterministic have the same weights: deterministic
#                                           compares two without CUDA graphs, graphs one with them
#              operations                   what an update of the base model launches at each ZeRO stage
#              fp32, tf32                   the base model in float32, then with its matrix products in TF32
# PEAK_TFLOPS is the GPU's in bf16 by its data sheet (default: 989, an H100's or H200's with SXM).
# What happens to a step that fails, a start with less time, a rehearsal without a GPU: steps.sh.
. "$(dirname "$0")/steps.sh"
[ $# -ge 3 ] || fail "usage: benchmarks/gpu/training.sh ENCODER DATA OUT [STEP ...]"
encoder=$(realpath -e "$1") && data=$(realpath -e "$2") || exit 2
for file in new_wiki amazon_reviews; do
  [ -f "$data/${file}_v1.0.json.gz" ] || fail "DATA $data: has no ${file}_v1.0.json.gz"
done
only "${@:4}"

base=(768 12 12) large=(1024 24 16) windows=32 wide=64 updates=40 few_updates=20 warmup=10 few=()
graphs=(zero1+graphs) compiled=zero1+graphs+compile
if rehearsing; then
  graphs=() compiled=zero1+compile  # a CPU has no CUDA graphs
  base=(32 2 2) large=(48 2 2) windows=2 wide=4 updates=2 few_updates=2 warmup=1
  few=(--set data.max_train_examples=64 --set train.max_updates=2 --set data.max_eval_examples=8 --set data.max_length=64
    --set data.doc_stride=16 --set data.max_query_length=16)
fi
new_wiki=(--recipe new_wikipedia --set "model.name=$encoder" --set "data.train=$data/new_wiki_v1.0.json.gz"
  --set "data.eval.amazon=$data/amazon_reviews_v1.0.json.gz" --set train.precision=bf16)

shape() {  # NAME HIDDEN LAYERS HEADS: a BERT of random weights with the encoder's tokenizer
  local folder=$out/models/$1
  [ ! -f "$folder/made" ] || return 0
  echo "== a model of the shape $1"
  mkdir -p "$out/models"
  echo '{"model_type": "bert", "vocab_size": 30522, "hidden_size": '"$2"', "num_hidden_layers": '"$3"',
    "num_attention_heads": '"$4"', "intermediate_size": '$((4 * $2))'}' >"$folder.json"
  timeout 300 "$PYTHON" -m benchmarks.random_model "$folder.json" "$folder" >"$out/shape-$1.log" 2>&1 &&
    find "$encoder" -maxdepth 1 \( -name 'tokenizer*' -o -name 'vocab*' -o -name 'merges*' -o -name 'spiece*' \
      -o -name 'sentencepiece*' -o -name 'spm*' -o -name 'special_tokens_map.json' \) -exec cp -t "$folder" {} + &&
    [ -n "$(find "$folder" -name 'tokenizer*' -o -name 'vocab*' -o -name 'spiece*')" ] && touch "$folder/made" || { tail -n 20 "$out/shape-$1.log"; return 1; }
}
bench() {  # STEP SECONDS SHAPE UPDATES OPTION ...
  step "$1" "$2" "$PYTHON" -m benchmarks.training "${new_wiki[@]}" --set train.micro_batch_size=$windows "${few[@]}" \
    --set "model.name=$out/models/$3" --warmup $warmup --updates "$4" --peak_tflops "${PEAK_TFLOPS:-989}" --json "$out/$1.json" "${@:5}"
}
train() {  # STEP ZERO_STAGE OPTION ...
  step "$1" 180 "$PYTHON" scripts/train.py --ds_config "ds_configs/zero$2.json" --output_dir "$out/runs/$1" "${@:3}" "${few[@]}"
}
scores() {
  "$PYTHON" - "$out" <<'PY'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("runs/*/results.json")):
    r = json.loads(path.read_text())
    scores = "  ".join(f"{k} {v['exact_match']:.2f}/{v['f1']:.2f}" for k, v in r["eval"].items())
    print(f"{path.parent.name:28} {r['train']['samples_per_second']:8.1f} samples/s  {scores}")
PY
}

begin "$3"
pending base profile-base compiled wide-mle wide-swep operations fp32 tf32 && shape base "${base[@]}"
pending large profile-large && shape large "${large[@]}"
both=(--methods mle swep:split --ways)
bench base 300 base $updates "${both[@]}" plain trainer zero1 zero2 "${graphs[@]}"
bench profile-base 150 base 10 --profile "${both[@]}" plain zero1 "${graphs[@]}"
bench compiled 420 base $updates "${both[@]}" plain plain+compile "${graphs[@]}" $compiled
for method in mle swep; do  # one at a time: each shape's graph keeps its memory
  bench wide-$method 240 base $few_updates --methods $method --ways plain "${graphs[@]}" $compiled \
    --set "train.micro_batch_size=$wide" --set "data.train=$out/models/base/train.json" --set data.holdout_fraction=0
done
bench large 300 large $few_updates "${both[@]}" plain zero1 zero2 "${graphs[@]}"
bench profile-large 120 large 10 --profile "${both[@]}" "${graphs[@]:-zero1}"
train mle 1 "${new_wiki[@]}" --set method.name=mle
train swep 1 "${new_wiki[@]}"
train quickstart 1
train quickstart-zero3 3 --set train.precision=bf16
for name in 1 2 graphs; do
  replays=false
  if [ $name = graphs ]; then replays=true; fi
  train deterministic-$name 1 "${new_wiki[@]}" --set train.deterministic=true --set train.max_updates=500 \
    --set data.max_eval_examples=64 --set train.cuda_graphs=$replays
done
same() {  # STEP RUN RUN: whether both have the same weights
  if is_done "$2" && is_done "$3"; then
    step "$1" 10 cmp "$out/runs/$2/model/model.safetensors" "$out/runs/$3/model/model.safetensors"
  else
    skip "$1" "its two runs are not done"
  fi
}
same deterministic deterministic-1 deterministic-2
same graphs deterministic-1 deterministic-graphs
bench operations 240 base 10 --operations
bench fp32 120 base 10 "${both[@]}" zero1 --set train.precision=fp32
if rehearsing; then
  skip tf32 "it needs a GPU"
else
  bench tf32 120 base 10 "${both[@]}" zero1 --set train.precision=tf32
fi
scores
finish
