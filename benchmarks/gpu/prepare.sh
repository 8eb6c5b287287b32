#!/usr/bin/env bash
# Whether a machine with a GPU can run this project, in about half a minute. Run it before the others.
#   usage: benchmarks/gpu/prepare.sh OUT [WHEELS]
#     OUT     folder for the logs
#     WHEELS  folder of wheels that the machine lacks; they are installed, without a network, into SITE (steps.sh)
# Every start runs all steps: install; versions (memory, device, driver, packages); kernels (each one launched and
# compared with float64); updates (at each ZeRO stage, all at the same time).
# What happens to a step that fails, a start with less time, a rehearsal without a GPU: steps.sh.
. "$(dirname "$0")/steps.sh"
[ $# -ge 1 ] || fail "usage: benchmarks/gpu/prepare.sh OUT [WHEELS]"
if [ $# -ge 2 ]; then wheels=$(realpath "$2") || exit 2; fi

versions='
free -g || head -n 3 /proc/meminfo
"$0" -c "$1"
exec "$0" scripts/train.py --preflight --ds_config ds_configs/zero1.json --output_dir "$2"
'
# packages that --preflight does not name: those below data and models, and those of the tests
packages='
from importlib.metadata import PackageNotFoundError, version
for name in ("numpy", "pyarrow", "fsspec", "typing_extensions", "pydantic", "pytest", "pytest-xdist", "hypothesis"):
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "is missing")
'
kernels='
from deepspeed.accelerator import get_accelerator
import torch
from swep_ds.kernels import MODES, perturb
from swep_ds.kernels.op import implementation
from benchmarks.kernels import bench
device = get_accelerator().device_name()
print("implementation:", implementation(device, torch.float32).__name__ if device == "cpu" else "Triton")
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    bench.check(768, dtype, device)
batch = bench.inputs(2, 64, 768, torch.bfloat16, device)
for name, mode in MODES.items():
    params = batch["params"] if mode.needs_params else None
    tensors = batch["embeddings"], params, batch["mask"], batch["sample_ids"]
    perturbed, kl = perturb(*tensors, seed=1, draw=1, prior_variance=0.1, mode=name)
    (perturbed.float().sum() + kl.sum()).backward()
    assert batch["embeddings"].grad.isfinite().all()
    print(name, "forward and backward ran")
'
update='exec "$0" -m benchmarks.training --methods swep:split --ds_config "ds_configs/zero$1.json" \
  --set train.precision=bf16 --set data.eval={} --set data.max_train_examples=256 --updates 2 --warmup 1'

begin "$1"
rm -f "$out"/*.done  # they were another machine's, or were made before something was installed
if [ -n "${wheels:-}" ]; then
  step install 120 "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$SITE" \
    "$wheels"/*.whl
fi
step versions 120 bash -c "$versions" "$PYTHON" "$packages" "$out/runs/preflight"
step kernels 120 "$PYTHON" -c "$kernels"
step updates 120 bash -c 'printf "%s\n" 0 1 2 3 | xargs -P "$(nproc)" -n 1 bash -c "$0" "$1"' "$update" "$PYTHON"
finish
