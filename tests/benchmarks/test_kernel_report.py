import os
import re

import pytest

from tests.support import scripts

pytest.importorskip("triton")

import triton

from benchmarks.kernels import aot
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
    archs = ["sm_90", "gfx942"]
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


WIDE = {name: "i64" for name in triton_kernels.perturb_forward.arg_names if re.fullmatch("T|.*_[nt]", name)}
MIXED = {"params_ptr": "*bf16", "grad_params_ptr": "*bf16", "mask_ptr": "*i64"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("direction", "arch", "d", "dtype", "mode", "types", "constants"),
    [
        # extents and strides beyond 32 bits
        ("forward", "sm_90", 768, "bf16", "additive", WIDE, {}),
        # half precision, a width that leaves a ragged end, seed and draw on the device
        ("forward", "gfx90a", 100, "fp16", "prior", dict.fromkeys(KEY, "*i64"), {"KEY_ON_DEVICE": True}),
        # mixed dtypes, as under autocast; a mask of integers
        ("backward", "sm_80", 768, "fp32", "fixed_mu", MIXED, {}),
    ],
)
def test_what_callers_may_pass_compiles_without_spills(direction, arch, d, dtype, mode, types, constants):
    wide = "i64" in types.values()  # a launch lifts the register cap then
    shape = aot.tile(arch, direction, d, aot.BITS[dtype] // 8, 32)._replace(maxnreg=None) if wide else None
    report = aot.report(direction, arch, d, dtype, mode, types=types, constants=constants, shape=shape)
    assert report.spilled_bytes == 0


def test_what_changes_from_call_to_call_compiles_no_new_kernel():
    for kernel in (triton_kernels.perturb_forward, triton_kernels.perturb_backward):
        parameters = [p for p in kernel.params if p.name in (*KEY, "T", "mask_n", "grad_kl_n")]
        assert parameters
        assert all(p.do_not_specialize for p in parameters)
