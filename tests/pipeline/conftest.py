"""Of all tests of the pipeline."""

import pytest

from swep_ds.pipeline.recipe import warn_once


@pytest.fixture(autouse=True)
def _warns_again():
    warn_once.cache_clear()
