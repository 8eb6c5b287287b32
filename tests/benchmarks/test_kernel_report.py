import os
import re

import pytest

from tests.support import scripts

pytest.importorskip("triton")

import triton

from swep_ds.kernels import triton_kernels

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="Triton compiles nothing under TRITON_INTERPRET=1"
)
KEY = ("seed_low", "seed_high", "draw")
DOCUMENTATION = (scripts.ROOT / "kernels/README.md").read_text()


def rows(text):
    """The cells of the tables' rows that begin with a kernel's name."""
    lines = [line for line in text.splitlines() if line.startswith(("| forward", "| backward"))]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


@pytest.mark.slow
def test_the_budget_holds_as_the_documentation_says():
    """`benchmarks/kernels/report.py` itself takes all architectures and widths."""
    archs = ["sm_90"]
    code, printed, _ = scripts.run("benchmarks/kernels/report.py", "--check", "--width", "768", "--arch", *archs)
    assert code == 0, printed
    compiled = rows(printed)
    assert len(compiled) == 2 * len(archs)
    for row in compiled:
        assert row[5:8] == ["0", "0", "128/128"], row  # no spills, no trip through shared memory, wide accesses
    for direction, most in (("forward", 44), ("backward", 56)):
        assert all(float(row[9]) <= most for row in compiled if row[:2] == [direction, "sm_90"])
    version = re.search(r"Triton (\d+\.\d+)", DOCUMENTATION).group(1)
    if triton.__version__.startswith(f"{version}."):
        assert [row for row in rows(DOCUMENTATION) if row[2] == "768" and row[1] in archs] == compiled


def test_what_changes_from_call_to_call_compiles_no_new_kernel():
    for kernel in (triton_kernels.perturb_forward, triton_kernels.perturb_backward):
        parameters = [p for p in kernel.params if p.name in (*KEY, "T", "mask_n", "grad_kl_n")]
        assert parameters
        assert all(p.do_not_specialize for p in parameters)
