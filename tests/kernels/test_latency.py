"""The model of warps, on machine code of a few lines whose times are worked out by hand."""

import pytest

pytest.importorskip("triton")

from swep_ds.kernels.tools import latency
from swep_ds.kernels.tools.latency import NONE, Step


def word(stall, write=NONE, read=NONE, waits=0):
    """The upper half of an instruction that has this control code."""
    return (stall | write << 5 | read << 8 | waits << 11) << 41


def line(text, *control, **more):
    return f"        /*0010*/  {text} ;  /* 0x{1:016x} */\n        /* 0x{word(*control, **more):016x} */\n"


def test_control_codes_and_branches_are_read():
    text = line("@!P1 BRA `(.L_x_0)", 5) + ".L_x_1:\n" + line("@P2 LDG.E.128 R24, desc[UR8][R84.64+0x600]", 2, 3)
    text += line("MUFU.COS R5, R24", 1, 0, 1, waits=0b1000) + line("@P1 BRA `(.L_x_1)", 5) + line("EXIT", 5)
    text += ".L_x_0:\n" + line("STG.E.128 [R2.64], RZ", 1, waits=0b100001) + line("EXIT", 5) + line("NOP", 0)
    steps = latency.decode(text)
    assert steps == [
        Step("BRA", True, 5, 5, NONE, NONE, ()),
        Step("LDG.E.128", True, None, 2, 3, NONE, ()),
        Step("MUFU.COS", False, None, 1, 0, 1, (3,)),
        Step("BRA", True, 1, 5, NONE, NONE, ()),
        Step("EXIT", False, None, 5, NONE, NONE, ()),
        Step("STG.E.128", False, None, 1, NONE, NONE, (0, 5)),
        Step("EXIT", False, None, 5, NONE, NONE, ()),
    ]
    # the way of real tokens computes; the other one, taken by padding, writes zeros
    opcodes = [step.opcode for step in latency.executed(steps, 2)]
    assert opcodes == ["BRA", "LDG.E.128", "MUFU.COS", "BRA", "LDG.E.128", "MUFU.COS", "BRA", "EXIT"]


def test_the_control_code_of_a_real_instruction():
    """I2F, after which the disassembly of a kernel waits for barrier 0 with the next MUFU."""
    text = "/*00d0*/ I2F.RP R0, R7 ; /* 0x0000000700007306 */\n/* 0x000e300000209400 */\n"
    text += "/*00e0*/ MUFU.RCP R0, R0 ; /* 0x0000000000007308 */\n/* 0x001e240000001000 */\n"
    first, second = latency.decode(text)
    assert (first.stall, first.write_barrier, first.read_barrier, first.waits) == (8, 0, NONE, ())
    assert (second.stall, second.write_barrier, second.waits) == (2, 0, (0,))


@pytest.mark.parametrize(
    ("registers", "warps", "resident"), [(128, 1, 16), (129, 1, 12), (96, 1, 20), (80, 1, 24), (32, 1, 32), (96, 4, 20)]
)
def test_residency_follows_from_registers(registers, warps, resident):
    assert latency.resident_warps(registers, warps) == resident


def loads(number, each_waits):
    """A program of `number` loads of 512 bytes, waited for one by one or together, and nothing else."""
    path = []
    for _ in range(number):
        path.append(Step("LDG.E.128", False, None, 1, 0, NONE, (0,) if each_waits else ()))
    return [*path, Step("EXIT", False, None, 5, NONE, NONE, (0,))]


def test_loads_in_flight_end_at_a_wait():
    assert latency.loads_in_flight(loads(5, each_waits=True)) == 1
    assert latency.loads_in_flight(loads(5, each_waits=False)) == 5


def test_few_loads_in_flight_are_bound_by_latency_and_many_by_the_memory():
    """By Little's law: 16 warps * 512 bytes * loads in flight / (latency * rate)."""
    slow = latency.share_of_copy(loads(40, each_waits=True), 16, latency=2000, rate=16.0)
    assert slow == pytest.approx(16 * 512 / (2000 * 16.0), rel=0.05)
    assert latency.share_of_copy(loads(40, each_waits=False), 16, latency=2000, rate=16.0) == pytest.approx(1, rel=0.05)


def test_a_busy_pipe_bounds_the_share():
    """A load and 1,000 special functions of 8 cycles, on 4 schedulers: 4 * 512 bytes in 8,000 cycles."""
    functions = [Step("MUFU.COS", False, None, 1, NONE, NONE, ())] * 1000
    path = [*loads(1, each_waits=False)[:1], *functions, *loads(0, each_waits=False)]
    assert latency.share_of_copy(path, 16, latency=100, rate=1.0) == pytest.approx(4 * 512 / 8000, rel=0.05)
