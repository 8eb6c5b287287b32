"""What the kernels compile to, found without a GPU: registers, spills, shared memory, access widths, instructions.

Triton compiles ahead of time for any architecture, and its wheel carries NVIDIA's disassembler. Instruction counts
are static: a loop's body counts once for each trip, everything else once, the path of all-padding tiles and rare
slow paths included, so what a GPU executes is a little less. This module must run in a process without
TRITON_INTERPRET.
"""

import math
import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.kernels.bench import elements_moved
from swep_ds.kernels import triton_kernels
from swep_ds.kernels.modes import MODES
from swep_ds.kernels.triton_impl import Tile, launch_options, tile
from swep_ds.kernels.triton_impl import constants as constants_of

WARP_SIZES = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "gfx90a": 64, "gfx942": 64}
BITS = {"fp32": 32, "bf16": 16, "fp16": 16}
BUDGET = {"forward": 44, "backward": 56}
"""Instructions per element at most, in bf16 on sm_90."""
AMD_ISSUED = r"v_|global_|buffer_|ds_|s_load|flat_|scratch_"
"""AMD's instructions that compete for issue: those of the scalar unit do not."""
Code = list[tuple[str, int | None]]
"""Instructions in order: opcode, and for a backward branch the index it jumps to."""


@dataclass(frozen=True)
class Report:
    """What one kernel compiled to.

    load_bits, store_bits: width of the accesses that move most bytes.
    bytes, instructions: per element of [N, T, d]; instructions are one lane's share.
    """

    direction: str
    arch: str
    d: int
    dtype: str
    tile: Tile
    registers: int
    spilled_bytes: int
    shared_bytes: int
    load_bits: int
    store_bits: int
    bytes: float
    instructions: float


def compile_kernel(
    direction: str,
    arch: str,
    d: int,
    dtype: str = "bf16",
    mode: str = "learned",
    types: dict[str, str] | None = None,
    constants: dict[str, object] | None = None,
    shape: Tile | None = None,
):
    """Returns (tile, compiled kernel) for contiguous, 16-byte aligned tensors of `dtype` ("fp32", "bf16", "fp16").

    `types` replaces the types of arguments; `constants` replaces compile-time arguments, or makes others such;
    `shape` is the tile, by default the one that a launch takes.
    """
    types = types or {}
    shape = shape or tile(arch, direction, d, BITS[dtype] // 8, WARP_SIZES[arch])
    kernel = getattr(triton_kernels, f"perturb_{direction}")
    math_kind = "amd" if arch.startswith("gfx") else "nvidia"
    fixed = constants_of(shape, math_kind, d, MODES[mode], True, False)
    # the innermost strides of contiguous tensors are 1, which Triton makes a constant at launch too
    fixed |= dict.fromkeys([a for a in kernel.arg_names if re.search(r"_d$|^(mask|grad_kl)_t$|^ids_n$", a)], 1)
    fixed = {name: value for name, value in fixed.items() if name not in types} | (constants or {})
    pointers = {"mask_ptr": "*i1", "sample_ids_ptr": "*i64", "kl_ptr": "*fp32", "grad_kl_ptr": "*fp32"}
    signature, aligned = {}, []
    for name in kernel.arg_names:
        if name.endswith("_ptr"):
            signature[name] = types.get(name) or pointers.get(name, f"*{dtype}")
            aligned.append(name)
        elif name in types:
            signature[name] = types[name]
        elif name in ("inverse_alpha", "log2_root_alpha", "fixed_sigma", "fixed_kl"):
            signature[name] = "fp32"
        elif name not in fixed:
            signature[name] = "i32"
            if re.match(r"(embeddings|params|grad)_[nt]$", name):
                aligned.append(name)
    index = kernel.arg_names.index
    source = ASTSource(
        kernel,
        signature | dict.fromkeys(fixed, "constexpr"),
        {(index(name),): value for name, value in fixed.items()},
        {(index(name),): [["tt.divisibility", 16]] for name in aligned},  # a launch would find this out
    )
    backend, name = ("hip", arch) if arch.startswith("gfx") else ("cuda", int(arch.removeprefix("sm_")))
    target = GPUTarget(backend, name, WARP_SIZES[arch])
    return shape, triton.compile(source, target=target, options=launch_options(shape))


def report(direction: str, arch: str, d: int, dtype: str = "bf16", mode: str = "learned", **changes) -> Report:
    """Compiles a kernel and takes its machine code apart; `changes` are further arguments of `compile_kernel`."""
    shape, compiled = compile_kernel(direction, arch, d, dtype, mode, **changes)
    if arch.startswith("gfx"):
        code, resources = _amd_code(compiled.asm["amdgcn"])
        issued = AMD_ISSUED
    else:
        code, resources = _nvidia_code(compiled.asm["cubin"])
        issued = ""
    lanes = WARP_SIZES[arch] * shape.warps
    reads, writes = elements_moved(direction, MODES[mode])
    bits_a_tile = 4 * shape.rows * shape.cols * reads * BITS[dtype] // lanes
    tiles = math.ceil(d // 4 / shape.cols)
    programs = tiles if direction == "backward" else 1  # for each row; one of the forward walks over its tiles
    weights = _weights(code, tiles // programs, bits_a_tile)
    counted = sum(weight for (opcode, _), weight in zip(code, weights, strict=True) if re.match(issued, opcode))
    moved = Counter()
    for opcode, _ in code:
        access = _access(opcode)
        moved[access] += access[1]
    return Report(
        direction, arch, d, dtype, shape, **resources,
        load_bits=max((access for access in moved if access[0] == "load"), key=moved.get)[1],
        store_bits=max((access for access in moved if access[0] == "store"), key=moved.get)[1],
        bytes=(reads + writes) * BITS[dtype] / 8,
        instructions=counted * programs * lanes / (shape.rows * d),
    )  # fmt: skip


def shortfalls(result: Report) -> list[str]:
    """What breaks the budget: spills anywhere; in bf16 narrow accesses; on sm_90 in bf16 too many instructions."""
    name = f"{result.direction} {result.arch} {result.dtype} d = {result.d}"
    faults = []
    if result.spilled_bytes:
        faults.append(f"{name}: spills {result.spilled_bytes} bytes")
    if result.dtype == "bf16" and min(result.load_bits, result.store_bits) < 128:
        faults.append(f"{name}: {result.load_bits}-bit loads and {result.store_bits}-bit stores, 128 wanted")
    if (result.arch, result.dtype) == ("sm_90", "bf16") and result.instructions > BUDGET[result.direction]:
        faults.append(f"{name}: {result.instructions:.1f} instructions, {BUDGET[result.direction]} allowed")
    return faults


def _nvidia_code(cubin: bytes) -> tuple[Code, dict[str, int]]:
    tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()

        def run(tool: str, option: str) -> str:
            command = [os.path.join(tools, tool), option, file.name]
            return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout

        code = _instructions(run("nvdisasm", "-c"), r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)")
        usage = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", run("cuobjdump", "-res-usage")))
    while code[-1][0] == "NOP":  # fill the last line of the instruction cache
        code.pop()
    names = {"registers": "REG", "spilled_bytes": "STACK", "shared_bytes": "SHARED"}
    return code, {name: int(usage[key]) for name, key in names.items()}


def _amd_code(assembly: str) -> tuple[Code, dict[str, int]]:
    usage = {key: int(value) for key, value in re.findall(r"^\s+\.(\w+):\s+(\d+)\s*$", assembly, re.MULTILINE)}
    return _instructions(assembly, r"^\s+([a-z]+_[a-z0-9_]+)"), {
        "registers": usage["vgpr_count"],
        "spilled_bytes": usage["private_segment_fixed_size"] + 4 * usage["vgpr_spill_count"],
        "shared_bytes": usage["group_segment_fixed_size"],
    }


def _instructions(assembly: str, opcode: str) -> Code:
    labels: dict[str, int] = {}
    code: Code = []
    for line in assembly.splitlines():
        if match := re.match(r"(\.L\w+):", line):
            labels[match[1]] = len(code)
        elif match := re.search(opcode, line):
            to = re.search(r"\.L(?:BB\d+|_x)_\d+", line)
            # labels further down are not known yet: forward branches give None
            code.append((match[1], labels.get(to[0]) if to else None))
    return code


def _access(opcode: str) -> tuple[str, int]:
    """("load" or "store", bits a lane) of an access to global memory; ("", 0) for any other instruction."""
    if match := re.match(r"(LD|ST)G\.E(?:\.\w+)*?(?:\.(?:[US](8|16)|(64|128)))?$", opcode):
        return {"LD": "load", "ST": "store"}[match[1]], int(match[2] or match[3] or 32)
    if match := re.match(
        r"(?:global|buffer)_(load|store)_\w*?(dwordx4|b128|dwordx2|b64|dword|b32|short|b16|byte|u8)", opcode
    ):
        sizes = {"dwordx4": 128, "b128": 128, "dwordx2": 64, "b64": 64, "dword": 32, "b32": 32, "short": 16, "b16": 16}
        return match[1], sizes.get(match[2], 8)
    return "", 0


def _weights(code: Code, trips: int, bits_a_tile: int) -> list[float]:
    """How often each instruction runs: the loop over a row's tiles `trips` times, everything else once.

    That loop is the one that loads; its body may hold several tiles, as a lane reads `bits_a_tile` for each.
    """
    weights = [1.0] * len(code)
    loops = [(target, end) for end, (_, target) in enumerate(code) if target is not None]
    if trips == 1 or not loops:
        return weights

    def loaded(loop: tuple[int, int]) -> int:
        accesses = [_access(opcode) for opcode, _ in code[loop[0] : loop[1] + 1]]
        return sum(bits for kind, bits in accesses if kind == "load")

    start, end = max(loops, key=lambda loop: (loaded(loop), loop[1] - loop[0]))
    if bits := loaded((start, end)):
        weights[start : end + 1] = [trips / max(1, round(bits / bits_a_tile))] * (end + 1 - start)
    return weights
