"""All tests run on CPU, offline, with one thread per process.

They read nothing of the user's and leave nothing behind: the home directory, Hugging Face's caches and the current
folder are temporary, the locale is fixed, and variables that would change a run are gone.
"""

import atexit
import compileall
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from swep_ds.ranks.environment import warn_once  # imports no PyTorch
from tests.support import fork_server

# a busy machine is not a fault, and failed examples do not belong in the repository
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("tests")

_temporary = tempfile.mkdtemp(prefix="swep_ds-tests-")
atexit.register(shutil.rmtree, _temporary, ignore_errors=True)
# variables of the job, the shell or the user who starts the tests
INHERITED = ("SLURM", "SBATCH_", "RANK", "LOCAL_", "WORLD_SIZE", "MASTER_", "CROSS_", "TORCHELASTIC_", "SWEP_")
INHERITED += ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "WANDB_", "XDG_", "LC_", "DS_", "NCCL_")
for _name in [name for name in os.environ if name.startswith(INHERITED)]:
    del os.environ[_name]
_home = Path(_temporary, "home")
_home.mkdir()
# before anything imports deepspeed or datasets; the runs that tests start inherit them
os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "HOME": str(_home), "LC_ALL": "C.UTF-8"}
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(_home / "hypothesis")  # it caches character tables, database or not
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # for processes whose current folder is not the checkout
os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for another worker's core are slower than one
# a shell's `&` has its commands ignore SIGINT, and programs that they start inherit that: tests send SIGINT to theirs
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Makes what all processes of the tests share, before any of them."""
    if hasattr(config, "workerinput"):
        return
    for folder in ("swep_ds", "kernels", "tests/support"):  # under PYTHONDONTWRITEBYTECODE each would compile it anew
        compileall.compile_dir(fork_server.ROOT / folder, quiet=2)
    if config.getoption("numprocesses", None):
        fork_server.start_server()


@pytest.fixture(scope="session", autouse=True)
def _no_checkout(tmp_path_factory):
    """The current folder is empty: runs/, data/ and wandb/ of the checkout are the user's."""
    os.chdir(tmp_path_factory.mktemp("current"))


@pytest.fixture(autouse=True)
def _warns_again():
    warn_once.cache_clear()


def pytest_collection_modifyitems(items):
    """Starts with the files that have slow tests, so that no worker waits at the end for one begun last."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
