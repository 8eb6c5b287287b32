# The steps of benchmarks/gpu/*.sh, which source this file. Each step has a time limit, a log and a mark.
#   begin OUT                  makes the folder of the results, and checks that there is a GPU
#   step NAME SECONDS COMMAND  runs COMMAND unless OUT/NAME.done is there; OUT/NAME.log has its output, of all starts
#   skip NAME REASON           reports a step that is not run
#   only STEP ...              before the steps: runs only these
#   finish                     prints what became of the steps, packs OUT/archive.tar.xz and exits
# A step that fails or exceeds its limit is reported, and the next one runs. Starting the script again runs what is not
# done yet. To repeat a step, delete its mark.
# Exit codes: 0 all steps are done or skipped; 1 a step failed; 2 bad input; 75 no step failed, but some wait for the
# next start.
# Environment:
#   CALL_SECONDS  how long this start may take: no step runs longer (default: no limit). A step waits for the next start
#                 if less than half of its limit is left, because a killed step begins anew. The first that runs does
#                 not wait.
#   SITE          folder of packages that `pip install --target` filled, such as prepare.sh's (put on PYTHONPATH)
#   REHEARSE=1    no GPU: the CPU runs each step on tiny models, to see that the commands work, in OUT/rehearsal. A step
#                 that needs a GPU is skipped. The figures say nothing about a GPU.
set -uo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
SITE=${SITE:-${TMPDIR:-/tmp}/swep-ds-site}
PYTHON=${PYTHON:-python3}
GRACE=60          # s from SIGTERM to SIGKILL: a run saves a checkpoint
AT_THE_END=15     # s of CALL_SECONDS that are kept for the archive
CPU_FACTOR=20     # by which a rehearsal may take longer
export PYTHONPATH=$ROOT:$SITE${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
declare -A state=() seconds=()
names=() chosen=() child='' interrupted='' ran=''
trap 'interrupted=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' INT TERM HUP

fail() { echo "$(basename "$0"): $*" >&2; exit 2; }

rehearsing() { [ -n "${REHEARSE:-}" ]; }

begin() {
  [[ ${CALL_SECONDS:-1} =~ ^[1-9][0-9]*$ ]] || fail "CALL_SECONDS $CALL_SECONDS: give whole seconds"
  out=$(realpath -m "$1")
  if rehearsing; then
    out=$out/rehearsal
    export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
  elif ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    fail "PyTorch sees no GPU: REHEARSE=1 tries the steps on the CPU"
  fi
  mkdir -p "$out" || fail "OUT $out: cannot be made"
  cd "$ROOT" || exit
}

only() { chosen=("$@"); }

wanted() { [ ${#chosen[@]} -eq 0 ] || [[ " ${chosen[*]} " == *" $1 "* ]]; }

is_done() { [ -f "$out/$1.done" ]; }

pending() {  # STEP ...: whether one of these is to run
  local name
  for name; do wanted "$name" && ! is_done "$name" && return 0; done
  return 1
}

note() {  # STEP STATE
  [ -n "${state[$1]:-}" ] || names+=("$1")
  state[$1]=$2
}

enough() {  # LEFT MOST: whether a step with the limit MOST starts when LEFT seconds are left
  [ "$1" -gt 0 ] && { [ -z "$ran" ] || [ $((2 * $1)) -ge "$2" ]; }
}

skip() { if wanted "$1"; then note "$1" "skipped: $2"; fi; }

step() {  # NAME SECONDS COMMAND ...: 0 if it is done
  local name=$1 most=$2 limit left code=0 began=$SECONDS log=$out/$1.log
  wanted "$name" || return 1
  if is_done "$name"; then
    note "$name" done
    seconds[$name]=$(cat "$out/$name.done")
    return 0
  fi
  if rehearsing; then most=$((CPU_FACTOR * most)); fi
  limit=$most
  if [ -n "${CALL_SECONDS:-}" ]; then
    left=$((CALL_SECONDS - SECONDS - AT_THE_END))
    [ "$left" -ge "$limit" ] || limit=$left
  fi
  if [ -n "$interrupted" ] || ! enough "$limit" "$most"; then
    note "$name" "waits for the next start"
    return 1
  fi
  ran=1
  echo "== $name"
  if [ -s "$log" ]; then printf '\n== started again, %s\n' "$(date -u +%FT%TZ)" >>"$log"; fi
  timeout -k "$GRACE" "$limit" "${@:3}" >>"$log" 2>&1 </dev/null &
  child=$!
  wait "$child" || code=$?
  while kill -0 "$child" 2>/dev/null; do code=0; wait "$child" || code=$?; done  # a signal interrupts `wait`
  child=''
  seconds[$name]=$((SECONDS - began))
  if [ "$code" -eq 0 ]; then
    echo "${seconds[$name]}" >"$out/$name.done"
    note "$name" done
    tail -n 3 "$log"
  elif [ -n "$interrupted" ] || { [ "$limit" -lt "$most" ] && [ "${seconds[$name]}" -ge "$limit" ]; }; then
    note "$name" "stopped: resumes at the next start"
  else
    if [ "${seconds[$name]}" -ge "$limit" ]; then note "$name" "FAILED: exceeded $limit s"
    else note "$name" "FAILED: exit code $code"; fi
    tail -n 20 "$log"
  fi
  [ "$code" -eq 0 ]
}

pack() {  # figures, predictions and logs; files of one name follow each other, because they have much in common
  "$PYTHON" - "$out" <<'PY'
import lzma, os, pathlib, sys, tarfile

out = pathlib.Path(sys.argv[1])
# weights, and what a table does not read
LEFT_OUT = {"models", "model", "checkpoints", "confidence", "calibrated", "n_best", "null_odds"}
figures = []
for folder, below, names in os.walk(out):  # checkpoints may vanish meanwhile: free_disk
    below[:] = set(below) - LEFT_OUT
    figures += [pathlib.Path(folder, name) for name in names if name != ".lock"]
figures = [path for path in figures if path.is_file() and path.suffix not in (".safetensors", ".xz", ".part", ".html")]
part = out / "archive.tar.xz.part"
filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 2**23}]
with lzma.open(part, "wb", filters=filters) as compressed, tarfile.open(fileobj=compressed, mode="w|") as archive:
    for path in sorted(figures, key=lambda path: (path.name, path)):
        archive.add(path, path.relative_to(out))
part.rename(out / "archive.tar.xz")
print(f"{out}/archive.tar.xz: {len(figures)} files, {(out / 'archive.tar.xz').stat().st_size / 2**20:.1f} MiB")
PY
}

finish() {
  local name code=0
  for name in "${chosen[@]}"; do [ -n "${state[$name]:-}" ] || note "$name" "FAILED: there is no such step"; done
  {
    rehearsing && echo "a rehearsal on the CPU: no time in here says anything about a GPU"
    for name in "${names[@]}"; do printf '%-28s %5s s  %s\n' "$name" "${seconds[$name]:--}" "${state[$name]}"; done
  } | tee "$out/steps.txt"
  pack || fail "$out/archive.tar.xz: cannot be written"
  for name in "${names[@]}"; do
    case ${state[$name]} in
      FAILED*) exit 1 ;;
      stopped* | waits*) code=75 ;;
    esac
  done
  exit $code
}
