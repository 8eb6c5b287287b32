"""An estimate, without a GPU, of the share of a copy's speed that a kernel reaches on sm_90: a model of its warps.

Two things decide how much of the memory's rate a kernel can use: how many warps its registers leave room for, and how
many loads each of them has in flight before it waits. Both are in the machine code. Every instruction carries a control
code: the cycles until the warp's next instruction, the scoreboard barriers that it releases with its result and with
its operands, and the barriers it waits for. The model replays these, instruction by instruction, for all warps of an
SM. `ASSUMPTIONS` is what it takes for granted.
"""

import heapq
import re
from typing import NamedTuple

LATENCIES = (500, 700, 900)
"""Nanoseconds from a load's turn at the memory to its data."""
REGISTERS, SCHEDULERS, MAX_WARPS, MAX_PROGRAMS = 65536, 4, 64, 32
"""An SM of sm_80, sm_90 or sm_100: registers, schedulers, and the warps and programs that fit at most."""
LAUNCH = 200
"""Cycles from the last instruction of a program to the first of the next in its place."""
PIPES = (  # first match wins: opcodes, cycles for which a warp's instruction occupies the pipe
    (r"MUFU|[IF]2[IF](?!P)", 8),
    (r"IMAD", 2),
    (r"IADD|LOP3|SHF|LEA|I2FP|F2FP|ISETP|PRMT|SEL|IABS|I?MNMX|VIMNMX|SGXT|FSETP|FSEL|PLOP3", 2),
    (r"LDG|STG", 4),
)
RESULT, OPERANDS = 24, 16
"""Cycles until a barrier is released by a result that is not loaded, and by operands that were read."""
NONE = 7
"""In a control code: no barrier."""
ASSUMPTIONS = f"""\
The share of a copy is that of a model, not a measurement. One SM of sm_90 holds as many warps as its registers allow,
each in order, by the control codes of the machine code. {SCHEDULERS} schedulers each issue an instruction a cycle, that
of the warp that has been ready longest. A warp's instruction occupies its pipe for 8 cycles (special functions,
conversions by I2F and F2I), 4 (memory), 2 (integers, IMAD) or 1. Memory is one queue that serves loads and stores in
order at the SM's share of a copy's rate; data arrive a fixed time after a load's turn, from the L2 (mask, sample id) as
from DRAM. {LAUNCH} cycles lie between a program and the next in its place. Tokens are all real; the grid has no end."""


class Step(NamedTuple):
    """An instruction: what it is, what it releases and what it waits for. Barriers are 0 to 5."""

    opcode: str
    conditional: bool
    target: int | None  # index that a branch jumps to
    stall: int  # cycles until the warp's next instruction
    write_barrier: int  # released by the result
    read_barrier: int  # released by the operands
    waits: tuple[int, ...]


def decode(disassembly: str) -> list[Step]:
    """The instructions of `nvdisasm -c -hex`. The control code is bits 105 to 121 of the 128 of an instruction."""
    labels: dict[str, int] = {}
    texts: list[tuple[str, bool, str | None]] = []
    words: list[int] = []
    for line in disassembly.splitlines():
        if match := re.match(r"(\.L\w+):", line):
            labels[match.group(1)] = len(texts)
        if match := re.search(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_.]+)", line):
            to = re.search(r"\(?(\.L_x_\d+)\)?", line)
            texts.append((match.group(2), bool(match.group(1)), to and to.group(1)))
        words += [int(word, 16) for word in re.findall(r"/\* 0x([0-9a-f]{16}) \*/", line)]
    steps = []
    for (opcode, conditional, label), high in zip(texts, words[1::2], strict=True):
        code = high >> 41
        waits = tuple(barrier for barrier in range(6) if code >> 11 + barrier & 1)
        steps.append(Step(opcode, conditional, labels.get(label), code & 15, code >> 5 & 7, code >> 8 & 7, waits))
    while steps and steps[-1].opcode == "NOP":  # fill the last line of the instruction cache
        steps.pop()
    return steps


def executed(steps: list[Step], trips: int) -> list[Step]:
    """The instructions that a program executes on rows of real tokens, its loop `trips` times."""

    def work(start: int) -> int:
        """Special functions from `start` to the program's end: padding needs none."""
        number = 0
        for step in steps[start:]:
            number += step.opcode.startswith("MUFU")
            if not step.conditional and step.opcode in ("EXIT", "BRA"):
                break
        return number

    path, at, turns = [], 0, 0
    while True:
        step = steps[at]
        path.append(step)
        at += 1
        if step.opcode == "EXIT" and not step.conditional:
            return path
        if not step.opcode.startswith("BRA") or step.opcode == "BRA.DIV":  # BRA.DIV: only of a warp that has diverged
            continue
        if step.target < at:
            turns += 1
            taken = turns < trips
        else:
            taken = not step.conditional or work(step.target) > work(at)
        at = step.target if taken else at


def access(opcode: str) -> tuple[str, int]:
    """("load" or "store", bits a lane) of an access to global memory; ("", 0) for any other instruction."""
    if match := re.match(r"(LD|ST)G\.E(?:\.\w+)*?(?:\.(?:[US](8|16)|(64|128)))?$", opcode):
        return {"LD": "load", "ST": "store"}[match.group(1)], int(match.group(2) or match.group(3) or 32)
    return "", 0


def resident_warps(registers: int, warps: int) -> int:
    """Warps on an SM for programs of `warps` warps with so many registers a thread, which come in blocks of 8."""
    fit = SCHEDULERS * (REGISTERS // SCHEDULERS // (32 * 8 * -(-registers // 8)))
    return warps * min(min(fit, MAX_WARPS) // warps, MAX_PROGRAMS)


def loads_in_flight(path: list[Step]) -> int:
    """The most loads of 64 bits a lane or more that a warp has issued and not yet waited for."""
    most, pending = 0, []
    for step in path:
        pending = [barrier for barrier in pending if barrier not in step.waits]
        kind, bits = access(step.opcode)
        if kind == "load" and bits >= 64:
            pending.append(step.write_barrier)
            most = max(most, len(pending))
    return most


class _Issue(NamedTuple):
    """What an instruction means to the model: its control code, its pipe and its bytes."""

    stall: int
    waits: tuple[int, ...]
    write_barrier: int
    read_barrier: int
    pipe: int
    occupies: int  # cycles of the pipe
    bytes: int
    loads: bool


def _issue(step: Step) -> _Issue:
    pipe = next((number for number, (opcodes, _) in enumerate(PIPES) if re.match(opcodes, step.opcode)), len(PIPES))
    occupies = PIPES[pipe][1] if pipe < len(PIPES) else 1
    kind, bits = access(step.opcode)
    size = 4 * bits if bits >= 64 else 32  # 32 lanes of the tile, or one sector: mask, sample id, KL
    control = max(1, step.stall), step.waits, step.write_barrier, step.read_barrier
    return _Issue(*control, pipe, occupies, size if kind else 0, kind == "load")


def share_of_copy(path: list[Step], warps: int, latency: float, rate: float) -> float:
    """The share of `rate` that the accesses of 64 bits a lane or more reach, over 4 programs a warp after the first 2.

    Args:
        path: instructions of a program of one warp, from `executed`.
        warps: warps on the SM.
        latency: cycles from a load's turn at the memory to its data.
        rate: bytes a cycle that a copy moves on this SM.
    """
    issues = [_issue(step) for step in path]
    last = len(issues) - 1
    ready = [(300.0 * warp, warp) for warp in range(warps)]  # (cycle, warp); launched one after the other
    at = [0] * warps
    released = [[0.0] * (NONE + 1) for _ in range(warps)]  # cycle of each barrier
    scheduler_free = [0.0] * SCHEDULERS
    pipe_free = [[0.0] * (len(PIPES) + 1) for _ in range(SCHEDULERS)]
    memory_free, moved, ended, start = 0.0, 0, 0, (0.0, 0)
    while ended < 6 * warps:
        now, warp = heapq.heappop(ready)
        scheduler, barriers = warp % SCHEDULERS, released[warp]
        stall, waits, write_barrier, read_barrier, pipe, occupies, size, loads = issues[at[warp]]
        free = max(scheduler_free[scheduler], pipe_free[scheduler][pipe])
        for barrier in waits:
            free = max(free, barriers[barrier])
        if free > now:
            heapq.heappush(ready, (free, warp))
            continue
        scheduler_free[scheduler], pipe_free[scheduler][pipe] = now + 1, now + occupies
        result = now + RESULT
        if size:
            memory_free = max(memory_free, now) + size / rate
            moved += size if size > 32 else 0
            result = memory_free + latency if loads else result
        if write_barrier != NONE:
            barriers[write_barrier] = max(barriers[write_barrier], result)
        if read_barrier != NONE:
            barriers[read_barrier] = max(barriers[read_barrier], now + OPERANDS)
        if at[warp] < last:
            at[warp] += 1
            heapq.heappush(ready, (now + stall, warp))
        else:
            at[warp], released[warp] = 0, [0.0] * (NONE + 1)
            ended += 1
            if ended == 2 * warps:
                start = now, moved
            heapq.heappush(ready, (now + LAUNCH, warp))
    return (moved - start[1]) / (now - start[0]) / rate
