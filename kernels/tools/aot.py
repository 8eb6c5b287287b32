"""What the kernels compile to, found without a GPU: registers, spills, access widths, instructions per element.

Triton compiles ahead of time for any architecture, and its wheel carries NVIDIA's disassembler. Instruction counts
are static: a loop's body counts once for each trip, everything else once, the path of all-padding tiles and rare
slow paths included, so what a GPU executes is a little less. This module must run in a process without
TRITON_INTERPRET.

The times per element are limits, not predictions. The memory-bound time is bytes over the rate of a device copy;
the issue-bound time is instructions over the issue rate; the special-function time counts log2, exp2, sqrt, sin
and cos, which NVIDIA's SMs run at 16 lanes a cycle and AMD's CUs at a quarter of their rate, as they do 64-bit
multiplications. A kernel is at the memory limit where the first is the largest.
"""

import math
import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from .. import triton_kernels
from ..modes import MODES, elements_moved
from ..philox import ROUNDS
from ..tiles import Tile, launch_options, tile
from . import latency, noise_ablation

WARP_SIZES = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "gfx90a": 64, "gfx942": 64}
BITS = {"fp32": 32, "bf16": 16, "fp16": 16}
BUDGET = {"forward": 44, "backward": 56}
"""Instructions per element at most, in bf16 on sm_90."""


class Machine(NamedTuple):
    """A GPU: its rate for a device copy (bytes/s), SMs or CUs, clock (Hz), and lanes issued a cycle by each of them."""

    name: str
    arch: str
    copy_rate: float
    units: int
    clock: float
    lanes: int
    special_lanes: int


MACHINES = (
    Machine("A100", "sm_80", 1.75e12, 108, 1.41e9, 128, 16),
    Machine("H100", "sm_90", 3.0e12, 132, 1.755e9, 128, 16),
    Machine("H200", "sm_90", 4.3e12, 132, 1.755e9, 128, 16),
    # copy rates assumed below: of the peak, 90% on NVIDIA's, as above, and 80% on AMD's
    Machine("B200", "sm_100", 7.2e12, 148, 1.965e9, 128, 16),
    Machine("MI250X, one die", "gfx90a", 1.3e12, 110, 1.7e9, 64, 16),
    Machine("MI300X", "gfx942", 4.2e12, 304, 2.1e9, 64, 16),
)

NVIDIA_CLASSES = (  # first match wins
    ("special", r"MUFU"),
    ("memory", r"LD|ST"),
    ("wide multiply", r"IMAD\.(WIDE|HI)"),
    ("convert", r"I2F|F2F|F2I"),
    ("float", r"F|HFMA"),
    ("integer", r"IMAD|IADD|LOP3|SHF|LEA|ISETP|PRMT|SEL|IABS|IMNMX|VIMNMX"),
    ("other", r""),
)
AMD_CLASSES = (
    ("special", r"v_(log|exp|sqrt|sin|cos|rcp|rsq)_"),
    ("memory", r"global_|buffer_|ds_|s_load|flat_|scratch_"),
    ("wide multiply", r"v_mad_u64_u32|v_mul_hi_u32|v_mul_lo_u32"),
    ("convert", r"v_cvt_"),
    ("float", r"v_.*_(f32|f16|bf16)"),
    ("integer", r"v_"),
    ("other", r""),  # the scalar unit issues beside the vector units
)


@dataclass(frozen=True)
class Report:
    """What one kernel compiled to. Counts are instructions per element of [N, T, d], one lane's share."""

    direction: str
    arch: str
    d: int
    dtype: str
    tile: Tile
    registers: int
    spilled_bytes: int
    shared_bytes: int
    load_bits: int
    store_bits: int  # width of the accesses that move most bytes, like load_bits
    counts: dict[str, float]
    bytes_per_element: float
    program: list[latency.Step] = field(default_factory=list, repr=False)
    """What a program executes on real tokens; empty on AMD."""

    @property
    def resident_warps(self) -> int | None:
        """Warps that an SM holds; None on AMD."""
        return latency.resident_warps(self.registers, self.tile.warps) if self.program else None

    @property
    def loads_in_flight(self) -> int | None:
        """Loads that a warp has on the way at most; None on AMD."""
        return latency.loads_in_flight(self.program) if self.program else None

    def share_of_copy(self, machine: Machine, nanoseconds: float) -> float:
        """Share of a copy's speed by the model of `latency.py`, for programs of one warp on sm_90."""
        rate = machine.copy_rate / (machine.units * machine.clock)
        return latency.share_of_copy(self.program, self.resident_warps, nanoseconds * 1e-9 * machine.clock, rate)

    @property
    def instructions(self) -> float:
        """Instructions per element that compete for issue: all on NVIDIA, the vector unit's on AMD."""
        total = sum(self.counts.values())
        return total - self.counts.get("other", 0.0) if self.arch.startswith("gfx") else total

    def times(self, machine: Machine) -> dict[str, float]:
        """Seconds per element for each limit of a machine."""
        unit_rate = machine.units * machine.clock
        slow = self.counts.get("special", 0.0)
        if self.arch.startswith("gfx"):
            slow += self.counts.get("wide multiply", 0.0)
        return {
            "memory": self.bytes_per_element / machine.copy_rate,
            "issue": self.instructions / (unit_rate * machine.lanes),
            "special": slow / (unit_rate * machine.special_lanes),
        }


def _compile(kernel, arch: str, signature: dict[str, str], fixed: dict[str, object], aligned: list[str], shape: Tile):
    """The compiled kernel; `aligned` names arguments divisible by 16, which a launch would find out."""
    index = kernel.arg_names.index
    source = ASTSource(
        kernel,
        signature | dict.fromkeys(fixed, "constexpr"),
        {(index(name),): value for name, value in fixed.items()},
        {(index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    backend, name = ("hip", arch) if arch.startswith("gfx") else ("cuda", int(arch.removeprefix("sm_")))
    target = GPUTarget(backend, name, WARP_SIZES[arch])
    return triton.compile(source, target=target, options=launch_options(shape))


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
    """(tile, compiled kernel) for contiguous, 16-byte aligned tensors of `dtype` ("fp32", "bf16", "fp16").

    `types` replaces the types of arguments; `constants` replaces compile-time arguments, or makes others such;
    `shape` is the tile, by default the one that a launch takes.
    """
    flags, types = MODES[mode], types or {}
    shape = shape or tile(arch, direction, d, BITS[dtype] // 8, WARP_SIZES[arch])
    kernel = getattr(triton_kernels, f"perturb_{direction}")
    fixed = {
        "D": d,
        "LEARNED_MU": flags.learned_mu,
        "LEARNED_SIGMA": flags.learned_sigma,
        "ADDITIVE": flags.additive,
        "DRAWS": flags.draws,
        "HAS_MASK": True,
        "KEY_ON_DEVICE": False,
        "ROUNDS": ROUNDS,
        "MATH": "amd" if arch.startswith("gfx") else "nvidia",
        "BLOCK_ROWS": shape.rows,
        "BLOCK_COLS": shape.cols,
    }
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
    return shape, _compile(kernel, arch, signature, fixed, aligned, shape)


def report(
    direction: str,
    arch: str,
    d: int,
    dtype: str = "bf16",
    mode: str = "learned",
    types: dict[str, str] | None = None,
    constants: dict[str, object] | None = None,
    shape: Tile | None = None,
) -> Report:
    """Compile a kernel (arguments: `compile_kernel`) and take its machine code apart."""
    shape, compiled = compile_kernel(direction, arch, d, dtype, mode, types, constants, shape)
    return _report(direction, arch, d, dtype, shape, compiled, *elements_moved(direction, MODES[mode]))


def ablation_reports(arch: str) -> dict[str, Report]:
    """The variants of noise_ablation.py in bfloat16, at d = 1024, compiled for tiles of a whole row.

    In a loop, the slow paths of expensive noise would lie outside its body, and count once for all trips.
    """
    d, lanes = 1024, WARP_SIZES[arch]
    row = Tile(8 * lanes // 256, 256, 1)
    variants = noise_ablation.VARIANTS.items()
    reports = {name: report("forward", arch, d, constants=constants, shape=row) for name, constants in variants}
    # one program a row in four warps, Triton's default: one trip over the whole row
    kernel, shape = noise_ablation.randn_forward, Tile(1, d // 4, 4)
    signature = {name: "*bf16" for name in kernel.arg_names if name.endswith("_ptr")}
    aligned = list(signature)
    signature |= {"kl_ptr": "*fp32", "inverse_alpha": "fp32", "root_alpha": "fp32", "seed": "i32"}
    compiled = _compile(kernel, arch, signature, {"D": d, "BLOCK_D": d}, aligned, shape)
    moved = elements_moved("forward", MODES["learned"])
    return reports | {noise_ablation.RANDN: _report("forward", arch, d, "bf16", shape, compiled, *moved)}


def _report(direction, arch, d, dtype, shape, compiled, reads, writes) -> Report:
    amd = arch.startswith("gfx")
    if amd:
        steps, (code, resources) = [], _amd_code(compiled.asm["amdgcn"])
    else:
        steps, resources = _nvidia_code(compiled.asm["cubin"])
        # forward branches give None, as in _amd_code
        code = [(s.opcode, s.target if s.target is not None and s.target <= i else None) for i, s in enumerate(steps)]
    lanes = WARP_SIZES[arch] * shape.warps
    tile_elements = 4 * shape.rows * shape.cols
    trips = math.ceil(d // 4 / shape.cols)
    weights = _weights(code, trips, tile_elements * reads * BITS[dtype] // lanes)
    classes = AMD_CLASSES if amd else NVIDIA_CLASSES
    counts = dict.fromkeys([name for name, _ in classes], 0.0)
    for (opcode, _), weight in zip(code, weights, strict=True):
        name = next(name for name, pattern in classes if re.match(pattern, opcode))
        counts[name] += weight * lanes / (shape.rows * d)
    moved = Counter()
    for access in map(_access, [opcode for opcode, _ in code]):
        moved[access] += access[1]
    return Report(
        direction, arch, d, dtype, shape, **resources,
        load_bits=max((access for access in moved if access[0] == "load"), key=moved.get)[1],
        store_bits=max((access for access in moved if access[0] == "store"), key=moved.get)[1],
        counts=counts, bytes_per_element=(reads + writes) * BITS[dtype] / 8,
        program=latency.executed(steps, trips) if steps else [],
    )  # fmt: skip


Code = list[tuple[str, int | None]]
"""Instructions in order: opcode, and for a backward branch the index it jumps to."""


def _nvidia_code(cubin: bytes) -> tuple[list[latency.Step], dict[str, int]]:
    tools = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        outputs = [
            subprocess.run(
                [os.path.join(tools, tool), *options, file.name], capture_output=True, encoding="utf-8", check=True
            )
            for tool, *options in (("nvdisasm", "-c", "-hex"), ("cuobjdump", "-res-usage"))
        ]
    usage = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", outputs[1].stdout))
    return latency.decode(outputs[0].stdout), {
        "registers": int(usage["REG"]),
        "spilled_bytes": int(usage["STACK"]),
        "shared_bytes": int(usage["SHARED"]),
    }


def _amd_code(assembly: str) -> tuple[Code, dict[str, int]]:
    labels: dict[str, int] = {}
    code: Code = []
    for line in assembly.splitlines():
        if match := re.match(r"(\.L\w+):", line):
            labels[match.group(1)] = len(code)
        elif match := re.match(r"\s+([a-z]+_[a-z0-9_]+)", line):
            to = re.search(r"\.LBB\d+_\d+", line) if re.match(r"s_c?branch", match.group(1)) else None
            # labels further down are not known yet: forward branches give None
            code.append((match.group(1), labels.get(to.group()) if to else None))
    usage = {key: int(value) for key, value in re.findall(r"^\s+\.(\w+):\s+(\d+)\s*$", assembly, re.MULTILINE)}
    return code, {
        "registers": usage["vgpr_count"],
        "spilled_bytes": usage["private_segment_fixed_size"] + 4 * usage["vgpr_spill_count"],
        "shared_bytes": usage["group_segment_fixed_size"],
    }


def _access(opcode: str) -> tuple[str, int]:
    """("load" or "store", bits a lane) of an access to global memory; ("", 0) for any other instruction."""
    if match := re.match(
        r"(?:global|buffer)_(load|store)_\w*?(dwordx4|b128|dwordx2|b64|dword|b32|short|b16|byte|u8)", opcode
    ):
        sizes = {"dwordx4": 128, "b128": 128, "dwordx2": 64, "b64": 64, "dword": 32, "b32": 32, "short": 16, "b16": 16}
        return match.group(1), sizes.get(match.group(2), 8)
    return latency.access(opcode)


def _weights(code: Code, trips: int, bits_a_tile: int) -> list[float]:
    """How often each instruction runs: the loop over a row's tiles `trips` times, everything else once.

    That loop is the one that loads; its body may hold several tiles, as a lane reads `bits_a_tile` for each.
    """
    weights = [1.0] * len(code)
    loops = [(target, end) for end, (_, target) in enumerate(code) if target is not None]
    loaded = {
        (start, end): sum(
            bits for kind, bits in (_access(opcode) for opcode, _ in code[start : end + 1]) if kind == "load"
        )
        for start, end in loops
    }
    if trips > 1 and any(loaded.values()):
        (start, end), bits = max(loaded.items(), key=lambda item: (item[1], item[0][1] - item[0][0]))
        weights[start : end + 1] = [trips / max(1, round(bits / bits_a_tile))] * (end + 1 - start)
    return weights


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
