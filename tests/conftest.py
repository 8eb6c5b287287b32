"""All tests run on CPU, offline, with one thread per process and a temporary cache of tokenised windows."""

import atexit
import os
import shutil
import signal
import tempfile

from hypothesis import HealthCheck, settings

# a busy machine is not a fault, and failed examples do not belong in the repository
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("tests")

_datasets_cache = tempfile.mkdtemp(prefix="swep_ds-tests-")
atexit.register(shutil.rmtree, _datasets_cache, ignore_errors=True)
# of the job or the shell that starts the tests, if any
INHERITED = ("SLURM", "SBATCH_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "CROSS_", "TORCHELASTIC_", "SWEP_")
for _name in [name for name in os.environ if name.startswith(INHERITED)]:
    del os.environ[_name]
# before anything imports deepspeed or datasets; the runs that tests start inherit them
os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": _datasets_cache}
os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for another worker's core are slower than one
# a shell's `&` has its commands ignore SIGINT, and programs that they start inherit that: tests send SIGINT to theirs
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Starts with the files that have slow tests, so that no worker waits at the end for one begun last."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
