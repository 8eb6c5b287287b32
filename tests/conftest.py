"""All tests run on CPU and offline, and keep tokenised windows out of the user's cache."""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

settings.register_profile("tests", deadline=None)  # a busy machine is no fault
settings.load_profile("tests")

_datasets_cache = tempfile.mkdtemp(prefix="swep_ds-tests-")
atexit.register(shutil.rmtree, _datasets_cache, ignore_errors=True)
# before anything imports deepspeed or datasets; the runs that tests start inherit them
os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": _datasets_cache}


def pytest_collection_modifyitems(items):
    """Files with slow tests first: one that is begun last would keep a worker waiting that has no file left."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
