from functools import partial

import pytest

from tests.support import qa_files


@pytest.fixture
def save(tmp_path):
    """Writes bytes, text or a JSON value to a file `name` and returns its path."""
    return partial(qa_files.save, tmp_path)
