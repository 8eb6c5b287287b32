"""Triton decides at import whether it interprets, so the interpreter runs in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="test_triton.py runs on the GPU itself")
def test_triton_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    tests = str(Path(__file__).with_name("test_triton.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests]
    result = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
