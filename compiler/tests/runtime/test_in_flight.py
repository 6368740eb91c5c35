"""Registers of matmuls under way: disassemblies that break each rule and that keep it, and ptxas at work."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.checks import inspection
from compiler.execution.gpu_programs import HEADERS
from compiler.runtime import cubin, in_flight, resources, sass
from compiler.runtime.sass_code import Instruction, accessed_registers, numbers

LAST = "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8].tnspA, R24, gsb0"
READ = "F2FP.BF16.F32.PACK_AB R8, R26, R24"


def disassembly(lines: str) -> str:
    """The lines as nvdisasm prints them; a label stands on a line of its own, before a colon."""
    out, offset = [".text.k:"], 0
    for line in filter(None, (x.strip() for x in lines.splitlines())):
        if line.endswith(":"):
            out.append(f".L_{line}")
        else:
            out.append(f"        /*{offset:04x}*/  " + re.sub(r"\b(x_\d+)", r"`(.L_\1)", line) + " ;")
            offset += 16
    return "\n".join(out)


def found(lines: str) -> list[str]:
    """Instructions that are reported, with what they do."""
    some = in_flight.hazards(disassembly(lines)).get("k", ())
    return [f"{h.instruction.offset >> 4} {h.access} {' '.join(f'R{n}' for n in h.registers)}" for h in some]


GOOD = {
    "waited for": f"{LAST}\nWARPGROUP.DEPBAR.LE gsb0, 0x0\n{READ}",
    "the group before the latest": f"""
        HGMMA.64x32x16.F32.BF16 R40, gdesc[UR8], R40, gsb0
        {LAST}
        WARPGROUP.DEPBAR.LE gsb0, 0x1
        FADD R2, R40, R55""",
    "chained": f"{LAST.replace(', gsb0', '')}\n{LAST}\nWARPGROUP.DEPBAR.LE gsb0, 0x0\n{READ}",
    "other registers": f"{LAST}\nFADD R23, R40, UR24\nSTS.128 [R20], R40\nEXIT",
    "of 16 bits": "HGMMA.64x32x16.F16 R24, gdesc[UR8], R24, gsb0\nMOV R32, R33\nEXIT",
    "read of a left operand": "HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0\nMOV R8, R7\nEXIT",
    "a wait on both sides": f"""
        {LAST}
        @P0 BRA x_1
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        BRA x_2
        x_1:
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        x_2:
        {READ}""",
    "a wait in the last step, of which a counter says that it is": f"""
        MOV R3, RZ
        x_1:
        VIADD R2, R3, 0x1
        ISETP.GE.U32.AND P0, PT, R2, 0x9, PT
        {LAST}
        @!P0 BRA x_2
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        BRA x_3
        x_2:
        WARPGROUP.DEPBAR.LE gsb0, 0x1
        x_3:
        ISETP.NE.AND P0, PT, R3, 0x8, PT
        MOV R3, R2
        @P0 BRA x_1
        {READ}""",
    "the same predicate, copied": f"""
        PLOP3.LUT P1, PT, PT, PT, UP0, 0x80, 0x0
        {LAST}
        @UP0 BRA x_2
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        x_2:
        @P1 EXIT
        {READ}""",
    "reached only behind the wait": f"{LAST}\nBSSY B0, x_1\nWARPGROUP.DEPBAR.LE gsb0, 0x0\nBSYNC B0\nx_1:\n{READ}",
}
BAD = {
    "not waited for": (f"{LAST}\n{READ}", "1 reads R24 R26"),
    "before the wait": (f"{LAST}\n{READ}\nWARPGROUP.DEPBAR.LE gsb0, 0x0", "1 reads R24 R26"),
    "the latest group": (f"{LAST}\nWARPGROUP.DEPBAR.LE gsb0, 0x1\n{READ}", "2 reads R24 R26"),
    "a wait that not every thread comes to": (f"{LAST}\n@P0 WARPGROUP.DEPBAR.LE gsb0, 0x0\n{READ}", "2 reads R24 R26"),
    "another wait": (f"{LAST}\nDEPBAR.LE SB0, 0x0\n{READ}", "2 reads R24 R26"),
    "a group that has not ended": (
        f"{LAST}\n{LAST.replace(', gsb0', '')}\nWARPGROUP.DEPBAR.LE gsb0, 0x0\n{READ}", "3 reads R24 R26"),
    "written": (f"{LAST}\nMOV R39, RZ", "1 writes R39"),
    "guarded": (f"{LAST}\n@!P3 FADD R2, -R39.reuse, |R3|", "1 reads R39"),
    "of fp8": ("QGMMA.64x16x32.F32.E4M3.E4M3 R24, gdesc[UR8], RZ, !UPT, gsb0\nMOV R2, R31", "1 reads R31"),
    "of int8": ("IGMMA.64x16x32.S8.S8 R24, gdesc[UR8], R24, gsb0\nI2FP.F32.S32 R2, R31", "1 reads R31"),
    "wide": (f"{LAST}\nSTS.128 [R8], R36", "1 reads R36 R37 R38 R39"),
    "in an address": (f"{LAST}\nLDG.E R2, desc[UR4][R38.64+0x10]", "1 reads R38 R39"),
    "left operand written": (
        "HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0\nLDS.64 R6, [R9]", "1 writes R6 R7"),
    "left operand that another matmul adds to": (
        f"{LAST}\nHGMMA.64x16x16.F32.BF16 R44, R36, gdesc[UR8], R44, gsb0", "1 reads R36 R37 R38 R39"),
    "matmul into some of the same registers": (
        f"{LAST}\nHGMMA.64x16x16.F32.BF16 R32, gdesc[UR8], RZ, !UPT, gsb0",
        "1 writes R32 R33 R34 R35 R36 R37 R38 R39"),
    "a branch round the wait": (
        f"{LAST}\n@P0 BRA x_1\nWARPGROUP.DEPBAR.LE gsb0, 0x0\nx_1:\n{READ}\nEXIT", "3 reads R24 R26"),
    "a path of two": (f"""
        {LAST}
        @P0 BRA x_1
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        {READ}
        EXIT
        x_1:
        {READ}
        EXIT""", "5 reads R24 R26"),
    "a loop, in its next step": (
        f"x_1:\nFADD R2, R24, R2\n{LAST}\n@P0 BRA x_1\nWARPGROUP.DEPBAR.LE gsb0, 0x0\n{READ}", "0 reads R24"),
    "a counter that says nothing of the wait": (f"""
        x_1:
        VIADD R2, R3, 0x1
        ISETP.GE.U32.AND P0, PT, R2, 0x9, PT
        {LAST}
        @!P0 BRA x_2
        WARPGROUP.DEPBAR.LE gsb0, 0x0
        x_2:
        ISETP.NE.AND P0, PT, R3, 0x7, PT
        MOV R3, R2
        @P0 BRA x_1
        {READ}""", "8 reads R24 R26"),
    "a predicate that changes": (
        f"{LAST}\n@P0 BRA x_1\nWARPGROUP.DEPBAR.LE gsb0, 0x0\nx_1:\nLDS R2, [R3]\nISETP.NE.AND P0, PT, R2, RZ, PT\n"
        f"@P0 EXIT\n{READ}", "6 reads R24 R26"),
    "behind a table of jumps": (f"{LAST}\nBRX R2 -0x10\nEXIT\n{READ}", "3 reads R24 R26"),
    "in what is called": (f"{LAST}\nCALL.REL.NOINC x_1\nEXIT\nx_1:\n{READ}\nRET.REL.NODEC R2", "3 reads R24 R26"),
    "where threads meet": (
        f"BSSY B0, x_1\n@P0 BRA x_2\n{LAST}\nx_2:\nBSYNC B0\nWARPGROUP.DEPBAR.LE gsb0, 0x0\nx_1:\n{READ}",
        "5 reads R24 R26"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_what_has_been_waited_for_is_not_reported(name: str) -> None:
    assert found(GOOD[name]) == []


@pytest.mark.parametrize("name", BAD)
def test_what_may_be_under_way_is_reported(name: str) -> None:
    lines, report = BAD[name]
    assert found(lines) == [report]


def test_a_report_names_both_instructions_and_the_registers() -> None:
    ((hazard,),) = in_flight.hazards(disassembly(f"{LAST}\n{READ}")).values()
    assert str(hazard) == f"`{READ}` at 0x0010 reads R24, R26 while `{LAST}` at 0x0000 may be under way"


@pytest.mark.parametrize(
    ("line", "reads", "writes"),
    [
        ("LDS.128 R4, [R9+0x10]", (9,), (4, 5, 6, 7)),
        ("LDSM.16.MT88.4 R4, [R9]", (9,), (4, 5, 6, 7)),
        ("STG.E.64 desc[UR4][R2.64], R6", (2, 3, 6, 7), ()),
        ("IMAD.WIDE.U32 R4, R2, 0x4, R6", (2, 6, 7), (4, 5)),
        ("DFMA R4, R2, R6, R8", (2, 3, 6, 7, 8, 9), (4, 5)),
        ("HMMA.16816.F32.BF16 R56, R28.reuse, R8, RZ", (8, 9, 28, 29, 30, 31), (56, 57, 58, 59)),
        ("ISETP.GE.AND P1, PT, R4, R5, PT", (4, 5), ()),
        ("SHFL.IDX PT, R3, R0, RZ, 0x1f", (0,), (3,)),
        ("CS2R R4, SRZ", (), (4, 5)),
        ("LDGSTS.E.BYPASS.128 [R5+UR4], desc[UR8][R2.64]", (2, 3, 5), ()),
        ("R2UR UR4, R7", (7,), ()),
    ],
)
def test_registers_of_instructions(line: str, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
    opcode, _, operands = line.partition(" ")
    read, written = accessed_registers(Instruction(0, "", opcode, tuple(operands.split(", "))))
    assert (numbers(read), numbers(written)) == (reads, writes)


needs_tools = pytest.mark.skipif(
    sass.disassembler() is None or (cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None),
    reason="no CUDA compiler or no disassembler on this machine",
)
PROGRAMS = {
    "matmul": (torch.matmul, (4096, 576), (576, 128)),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (8, 64, 56, 56), (64, 64, 3, 3)),
}


@needs_tools
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sum_whose_last_step_does_not_wait_is_read_too_early(name: str, tmp_path: Path) -> None:
    """What ptxas 13.0 does to a sum of 9 steps in a loop that ends while matmuls run, and what is emitted instead.

    It does so where threads store one element at a time, as they do without stmatrix.
    """
    function, *shapes = PROGRAMS[name]
    inputs = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    target = compiler.target("sm_90a")
    target = target.replace(features=tuple(f for f in target.features if f != "stmatrix"))
    lowered = compiler.lower(compiler.capture(function, inputs).program, target)
    text = lowered.stages["cuda"]
    assert not any("under way" in c for k in inspection.inspect([lowered], tmp_path)[0] for c in k.complaints)
    early = re.sub(
        r"if \([^;{]*\) \{\s*(mlc_wgmma_wait<1>\(\);)\s*\} else \{\s*mlc_wgmma_wait<0>\(\);\s*\}", r"\1", text
    )
    assert early != text
    early = early.replace("mlc_wgmma_idle()", "mlc_wgmma_wait<0>()")
    made = cubin.build_cubin(early, "sm_90a", include=(HEADERS,), cache=tmp_path)
    (told,) = [c for c in resources.inspect(made).complaints if "under way" in c]
    assert re.search(r"F2FP\S+ R\d+, R\d+, R\d+` at 0x\w+ reads R.* while `HGMMA\.64x\d+x16\.F32\.BF16 .* more$", told)
