#!/usr/bin/env bash
# The sweeps science_e1, then science_e2, several runs at a time on one GPU (README.md).
#   usage: studies/science/gpu.sh ENCODER DATA OUT
#     ENCODER  local folder of the encoder
#     DATA     folder with squad_dev.jsonl.gz and bioasq.jsonl.gz (MRQA), new_wiki_v1.0.json.gz and
#              amazon_reviews_v1.0.json.gz (SQuADShifts)
#     OUT      folder for the runs
# All arms of a seed run before the next seed; a seed counts when all of its arms are done. The archive has results,
# predictions and logs of the finished runs, no weights; unpacked in OUT, also on another machine, it lets the sweep
# resume there if ENCODER and DATA have the same paths. Steps: e1, e2 (each ends with its table). Environment, in addition
# to that of benchmarks/gpu/steps.sh:
#   JOBS  runs at a time (default: three for four cores)
# NVIDIA's MPS is started for the runs if it is there: their kernels then share the GPU, and without it they take turns.
# With MPS a GPU fault of one run ends the others, too; the next start repeats them. If CUDA_MPS_PIPE_DIRECTORY is set,
# MPS is left as it is.
# What happens to a step that fails, a start with less time, a rehearsal without a GPU: benchmarks/gpu/steps.sh.
. "$(dirname "$0")/../../benchmarks/gpu/steps.sh"
[ $# -eq 3 ] || fail "usage: studies/science/gpu.sh ENCODER DATA OUT"
encoder=$(realpath -e "$1") && data=$(realpath -e "$2") || exit 2
for file in {squad_dev,bioasq}.jsonl.gz {new_wiki,amazon_reviews}_v1.0.json.gz; do
  [ -f "$data/$file" ] || fail "DATA $data: has no $file"
done
JOBS=${JOBS:-$((($(nproc) * 3 + 3) / 4))}
GRACE=75 AT_THE_END=95  # s: the sweep lets its runs save a checkpoint for 60 s, then kills them

few=()
if rehearsing; then
  few=(--set data.max_train_examples=48 --set train.max_updates=2 --set data.max_eval_examples=24 --set data.max_length=64
    --set data.doc_stride=16 --set data.max_query_length=16)
fi

begin "$3"
# a finished run's checkpoint is 0.4 GB, of no more use, and 180 of them may fill the disk
free_disk() {
  local results
  for results in "$out"/e?/*/results.json; do
    [ ! -f "$results" ] || rm -rf "${results%/*}/checkpoints"
  done
}
mps=''  # folder of the daemon that this script has started
stop_mps() {
  [ -n "$mps" ] || return 0
  echo quit -t 5 | timeout 30 nvidia-cuda-mps-control >>"$out/mps/control.txt" 2>&1
  rm -rf "$mps"
  mps=''
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}
start_mps() {
  [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
  if command -v nvidia-cuda-mps-control >/dev/null && mkdir -p "$out/mps" &&
    mps=$(mktemp -d /tmp/swep-ds-mps-XXXXXX); then  # a short path: a socket's has at most 107 characters
    export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$out/mps
    # a daemon that runs but whose server does not would fail every run
    if {
      timeout 30 env -u CUDA_VISIBLE_DEVICES nvidia-cuda-mps-control -d &&
        timeout 60 "$PYTHON" -c 'import torch; torch.ones(1, device="cuda").item()' &&
        echo get_server_list | timeout 30 nvidia-cuda-mps-control | grep '^[0-9]'
    } >>"$out/mps/control.txt" 2>&1 </dev/null; then
      echo "MPS: $JOBS runs at a time share the GPU's processors"
      return
    fi
    stop_mps
  fi
  echo "MPS does not start: $JOBS runs at a time take turns on the GPU"
}
while sleep 20; do free_disk; done >/dev/null 2>&1 &
freeing=$!
trap 'kill $freeing; free_disk; stop_mps' EXIT
if ! rehearsing && pending e1 e2; then start_mps; fi
for name in e1 e2; do
  sweep=studies/science/science_$name.yaml
  if rehearsing; then
    printf '%s\n' "extends: $ROOT/$sweep" "seeds: [100]" >"$out/$name.yaml"
    sweep=$out/$name.yaml
  fi
  step $name 7200 "$PYTHON" -m swep_ds sweep "$sweep" --jobs "$JOBS" --runs_per_device "$JOBS" --output_dir "$out/$name" \
    --set "model.name=$encoder" --set "data.train=$data/squad_dev.jsonl.gz" \
    --set "data.eval.new_wiki=$data/new_wiki_v1.0.json.gz" --set "data.eval.amazon=$data/amazon_reviews_v1.0.json.gz" \
    --set "data.eval.bioasq=$data/bioasq.jsonl.gz" "${few[@]}"
done
finish
