"""What the kernels compile to, held to the budget, in a process that does not interpret Triton."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]


def report(*arguments):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "scripts/kernel_report.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_budget_holds_on_every_architecture():
    result = report("--check")
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [
        line
        for line in result.stdout.splitlines()
        if re.match(r"\| (forward|backward) +\| learned +\| (sm|gfx)\S+ +\| bf16 +\| \d+ +\| \d+x", line)
    ]
    assert len(rows) == 2 * 5 * 2
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[7:10] == ["0", "0", "128/128"], row  # no spills, no trip through shared memory, wide accesses


@pytest.mark.slow
def test_every_mode_compiles_without_spills():
    modes = ["learned", "additive", "fixed_mu", "fixed_sigma", "no_eps", "prior"]
    result = report("--arch", "sm_90", "--width", "768", "--mode", *modes, "--dtype", "fp32", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


VARIANTS = """
from swep_ds.kernels.aot import compile_kernel
from swep_ds.kernels.triton_kernels import perturb_backward, perturb_forward, philox_words

pointers = {"seed_low": "*i64", "seed_high": "*i64", "draw": "*i64"}
for direction in ("forward", "backward"):
    # seed and draw on the device; every extent and stride beyond 32 bits; expanded, transposed inputs
    names = (perturb_forward if direction == "forward" else perturb_backward).arg_names
    wide = {name: "i64" for name in names if name == "T" or name.endswith(("_n", "_t", "_d"))}
    compile_kernel(direction, "sm_90", 768, types=pointers | wide, constants={"KEY_ON_DEVICE": True})
    # strides of 1, which Triton makes constants; mixed dtypes
    compile_kernel(direction, "sm_90", 768, constants={"embeddings_n": 1, "params_t": 1})
    compile_kernel(direction, "sm_90", 768, "fp32", types={"params_ptr": "*bf16", "grad_params_ptr": "*bf16"})
    # half precision, a mask of integers, a width that leaves a ragged end
    compile_kernel(direction, "gfx942", 100, "fp16", types={"mask_ptr": "*i64"})
for kernel in (perturb_forward, perturb_backward, philox_words):
    # what changes with the draw or the padding must not compile the kernel anew
    varying = ("seed_low", "seed_high", "draw", "k0", "k1", "T", "mask_n", "grad_kl_n")
    found = [p for p in kernel.params if p.name in varying]
    assert found and all(p.do_not_specialize for p in found)
"""


@pytest.mark.slow
def test_what_callers_may_pass_compiles():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    result = subprocess.run([sys.executable, "-c", VARIANTS], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


SASS = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
        /*0020*/              @P0  LDG.E.U8 R5, [R2.64] ;
        /*0030*/                   MUFU.COS R5, R4 ;
        /*0040*/              @!P0 BRA `(.L_x_1) ;
        /*0050*/              @P1  BRA `(.L_x_2) ;
        /*0060*/                   STG.E.64 [R2.64], R4 ;
.L_x_2:
        /*0070*/                   EXIT ;
        /*0080*/                   NOP ;
"""


def test_loops_are_counted_for_each_trip():
    from swep_ds.kernels import aot

    code = aot._parse(SASS, aot.SASS_INSTRUCTION, "BRA", aot.SASS_LABEL)
    opcodes = ["MOV", "LDG.E.128", "LDG.E.U8", "MUFU.COS", "BRA", "BRA", "STG.E.64", "EXIT"]
    assert [opcode for opcode, _ in code] == opcodes
    assert [target for _, target in code] == [None, None, None, None, 1, None, None, None]
    assert [aot._access(opcode) for opcode, _ in code[1:3]] == [("load", 128), ("load", 8)]
    assert aot._access("STG.E.64") == ("store", 64)
    assert aot._access("global_load_dwordx4") == ("load", 128)
    # a tile is 128 bits a lane and the loop holds one: 5 trips of it, everything else once
    assert aot._weights(code, 5, 128) == [1, 5, 5, 5, 5, 1, 1, 1]
    # a body that holds two tiles runs half as often
    assert aot._weights(code, 6, 64) == [1, 3, 3, 3, 3, 1, 1, 1]
