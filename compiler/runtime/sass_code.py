"""Parse the disassembly of a kernel for sm_90a (by cuobjdump or nvdisasm) into instructions, the registers that they
access, and a control flow graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_LINE = re.compile(
    r"^(?:(\.L_\w+):|\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Za-z0-9_.]*)\s*([^;\n]*?)\s*;)", re.MULTILINE
)
_TARGET = re.compile(r"(?:^|[ ,(])(0x[0-9a-f]+|\.L_\w+)\)?$")
_ENDS = frozenset({"EXIT", "RET", "KILL"})
_JUMPS = frozenset({"BRA", "JMP"})
_INDIRECT = frozenset({"BRX", "BRXU", "JMX", "JMXU"})

_REGISTER = re.compile(r"\bR(\d+)(\.64)?")
_PLAIN_REGISTER = re.compile(r"R\d+(\.64)?")
_PREDICATE = re.compile(r"!?U?P[\dTR]")
# The number of registers of an operand by opcode; 1 for others.
_WIDTHS = (
    (re.compile(r"(?:LD|ST|ATOM)\w*\.(?:.*\.)?(?:128|4)\b"), 4),
    (re.compile(r"(?:LD|ST|ATOM)\w*\.(?:.*\.)?(?:64|2)\b"), 2),
    (re.compile(r"[HIQB]MMA\."), 4),
    (re.compile(r"D(?:ADD|MUL|FMA|SETP|MNMX|MMA)\b|(?:F2F|F2I|I2F|FRND)\.(?:.*\.)?[FSU]64|CS2R$"), 2),
)
_READ_FIRST = _ENDS | _INDIRECT | {"WARPSYNC", "NANOSLEEP", "BAR"}  # their first operand is no result


@dataclass(frozen=True)
class Instruction:
    """An instruction: its offset in bytes, guard such as !P0, opcode and operands."""

    offset: int
    guard: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        return f"{f'@{self.guard} ' if self.guard else ''}{self.opcode} {', '.join(self.operands)}".strip()


@dataclass(frozen=True)
class Code:
    """Instructions and basic blocks: first instruction -> (end, first instructions of possible successors)."""

    instructions: Sequence[Instruction]
    blocks: Mapping[int, tuple[int, tuple[int, ...]]]


def parse(body: str) -> Code:
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for label, offset, guard, opcode, operands in _LINE.findall(body):
        if label:
            labels[label] = len(code)
        else:
            labels[hex(int(offset, 16))] = len(code)
            parts = tuple(operands.replace("`", "").split(", ")) if operands else ()
            code.append(Instruction(int(offset, 16), "" if guard in ("PT", "UPT") else guard, opcode, parts))
    return Code(code, _blocks(code, labels))


# ---- where instructions lead


def _blocks(code: Sequence[Instruction], labels: Mapping[str, int]) -> dict[int, tuple[int, tuple[int, ...]]]:
    reconvergence: dict[str, list[int]] = {}  # targets of the threads that reconverge at a BSYNC, by its register
    for x in code:
        if x.name == "BSSY":
            reconvergence.setdefault(x.operands[0], []).extend(_branch_targets(x, labels))
    successors = {}
    for i, x in enumerate(code):
        following = _successors(x, i, labels, reconvergence)
        if following != (i + 1,) or x.name in _ENDS:
            successors[i] = tuple(n for n in following if n < len(code))
    leaders = {0}.union(*successors.values(), (i + 1 for i in successors))
    starts = sorted(n for n in leaders if n < len(code))
    return {a: (b, successors.get(b - 1, (b,) if b < len(code) else ())) for a, b in pairwise([*starts, len(code)])}


def _successors(
    x: Instruction, i: int, labels: Mapping[str, int], reconvergence: Mapping[str, list[int]]
) -> tuple[int, ...]:
    """Possible successors of an instruction. Calls return; an indirect jump without a table may reach any label."""
    if x.name in _ENDS:
        return (i + 1,) if x.guard else ()
    if x.name in _INDIRECT:
        table = re.findall(r"\.L_\w+", " ".join(x.operands))
        targets = [labels[name] for name in table if name in labels] or list(labels.values())
    elif x.name == "BSYNC":
        targets = reconvergence.get(x.operands[0], [])
        targets = [i + 1] if i + 1 in targets or not targets else targets
    elif x.name in _JUMPS and not x.guard and len(x.operands) == 1:
        targets = _branch_targets(x, labels)
    elif x.name in _JUMPS or x.name in ("CALL", "WARPSYNC"):
        targets = [i + 1, *_branch_targets(x, labels)]
    else:
        return (i + 1,)
    return tuple(dict.fromkeys([*targets, i + 1] if x.guard else targets))


def _branch_targets(x: Instruction, labels: Mapping[str, int]) -> list[int]:
    match = _TARGET.search(", ".join(x.operands))
    name = match[1] if match else ""
    return [labels[name]] if name in labels else []


# ---- registers, whose sets are bit masks


def accessed_registers(x: Instruction) -> tuple[int, int]:
    """Masks of the registers that an instruction (other than a warpgroup matmul) reads and writes.

    >>> read, written = accessed_registers(Instruction(0, "", "IMAD.WIDE", ("R4", "R2", "0x4", "R6")))
    >>> numbers(read), numbers(written)
    ((2, 6, 7), (4, 5))
    """
    width = next((n for pattern, n in _WIDTHS if pattern.match(x.opcode)), 1)
    is_wide = ".WIDE" in x.opcode  # a product of double width, with an addend
    reads = writes = 0
    for n, o in enumerate(o for o in x.operands if not _PREDICATE.fullmatch(o)):
        if "R" not in o:
            continue
        pair = n in (0, 3) if is_wide else n == 2 and x.name.endswith("MMA")
        size = 1 if "[" in o else 2 if pair else width
        mask = registers(o, size)
        if n == 0 and _PLAIN_REGISTER.fullmatch(o) and "SETP" not in x.name and x.name not in _READ_FIRST:
            writes |= mask
        else:
            reads |= mask
    return reads, writes


def registers(operand: str, width: int, step: int = 0) -> int:
    """Mask of the registers of an operand. A group is aligned to its size, or to `step`."""
    mask = 0
    for number, pair in _REGISTER.findall(operand):
        first, n = int(number), 2 if pair else width
        while first % (step or n):
            n //= 2
        mask |= (1 << n) - 1 << first
    return mask


def numbers(mask: int) -> tuple[int, ...]:
    return tuple(n for n in range(mask.bit_length()) if mask >> n & 1)
