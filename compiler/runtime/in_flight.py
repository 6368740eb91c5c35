"""Registers of tensor instructions that run while threads go on (HGMMA, QGMMA, IGMMA of sm_90a): a disassembly in; the
instructions that touch such registers before a wait out.

A matmul is under way from where it is issued until, on every path, a WARPGROUP.DEPBAR.LE gsb0, N has seen more than N
groups end since; a group ends with the matmul that is marked gsb0, and no wait is for those whose group has not ended.
Until then its accumulators are neither read nor written but by matmuls into all of the same registers, which run in
order, and a left operand in registers is not written. ptxas is to keep to this, and has not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.runtime import sass, sass_paths
from compiler.runtime.sass_code import Code, Instruction, numbers, parsed, registers, touched

_MATMUL = re.compile(r"[HQI]GMMA\.(?:SP\.)?64x(\d+)x\d+\.(\w+)")
LEFT = 4  # registers of a left operand: 64 rows of 32 bytes, by 128 threads
PATHS = 4000  # blocks that are gone through for one matmul before a hazard is taken to be real

Flying = Mapping[int, int]  # matmuls under way: how many groups have ended since, its own included


@dataclass(frozen=True)
class Matmul:
    """Registers of a tensor instruction: what it writes; its left operand, if that is there; what it adds to and does
    not write. And whether its group ends with it."""

    writes: int
    left: int
    other: int
    last: bool


@dataclass(frozen=True)
class Kernel:
    """Its matmuls, and how many groups each wait leaves under way, by index."""

    code: Code
    matmuls: Mapping[int, Matmul]
    waits: Mapping[int, int]


@dataclass(frozen=True)
class Hazard:
    """`instruction` `does` read or write registers that `matmul` may not be done with."""

    instruction: Instruction
    does: str
    registers: tuple[int, ...]
    matmul: Instruction

    def __str__(self) -> str:
        some = ", ".join(f"R{r}" for r in self.registers)
        return (
            f"`{self.instruction}` at 0x{self.instruction.offset:04x} {self.does} {some} while `{self.matmul}` at "
            f"0x{self.matmul.offset:04x} may be under way"
        )


def hazards(text: str) -> dict[str, tuple[Hazard, ...]]:
    """Of the kernels of a disassembly those that touch registers of matmuls under way; one hazard an instruction."""
    kernels = {name: _kernel(body) for name, body in sass.bodies(text).items() if _MATMUL.search(body)}
    found = {name: tuple(_hazards(kernel)) for name, kernel in kernels.items()}
    return {name: some for name, some in found.items() if some}


def _kernel(body: str) -> Kernel:
    code = parsed(body)
    every = list(enumerate(code.instructions))
    matmuls = {i: _matmul(x) for i, x in every if _MATMUL.match(x.opcode)}
    waits = {i: x for i, x in every if x.opcode == "WARPGROUP.DEPBAR.LE" and x.operands[0] == "gsb0" and not x.guard}
    return Kernel(code, matmuls, {i: int(x.operands[1], 16) for i, x in waits.items()})


def _hazards(kernel: Kernel) -> Iterator[Hazard]:
    """Where paths meet, what one of them has waited for may be under way; so each matmul's own paths are asked then."""
    suspects: dict[int, set[int]] = {}  # by matmul
    for start, flying in _fixed_point(kernel).items():
        for i in range(start, kernel.code.blocks[start][0]):
            for m in flying:
                if _clash(kernel, i, m):
                    suspects.setdefault(m, set()).add(i)
            flying = _after(kernel, i, flying)
    found: dict[int, int] = {}
    for m, some in sorted(suspects.items()):
        found |= dict.fromkeys(_reached(kernel, m, frozenset(some)), m)
    for i, m in sorted(found.items()):
        does, mask = _clash(kernel, i, m) or ("", 0)
        yield Hazard(kernel.code.instructions[i], does, numbers(mask), kernel.code.instructions[m])


# ---- what is under way


def _fixed_point(kernel: Kernel) -> dict[int, Flying]:
    """What may be under way where each block that is reached begins: of two paths, whichever has ended fewer groups."""
    entry: dict[int, Flying] = {0: {}}
    waiting = [0]
    while waiting:
        start = waiting.pop()
        flying = entry[start]
        end, following = kernel.code.blocks[start]
        for i in range(start, end):
            flying = _after(kernel, i, flying)
        for n in following:
            known = entry.get(n, {})
            joined = {m: min(x[m] for x in (known, flying) if m in x) for m in {**known, **flying}}
            if n not in entry or joined != known:
                entry[n] = joined
                waiting.append(n)
    return entry


def _after(kernel: Kernel, i: int, flying: Flying) -> Flying:
    if i not in kernel.matmuls and i not in kernel.waits:
        return flying
    later = ((m, _older(kernel, i, n)) for m, n in flying.items())
    now = {m: n for m, n in later if n is not None}
    return {**now, i: int(kernel.matmuls[i].last)} if i in kernel.matmuls else now


def _older(kernel: Kernel, i: int, ended: int) -> int | None:
    """How many groups have ended since a matmul was issued, an instruction later; None where it is known to be done."""
    if i in kernel.matmuls:
        return ended + (kernel.matmuls[i].last and not kernel.code.instructions[i].guard)
    return ended if ended <= kernel.waits.get(i, ended) else None


def _reached(kernel: Kernel, matmul: int, suspects: frozenset[int]) -> set[int]:
    """Which of the suspects a path leads to from a matmul that no wait has ended, unless its branches contradict each
    other. What is known on the way is forgotten where the path comes to a block again."""
    start = max(a for a in kernel.code.blocks if a <= matmul)
    found: set[int] = set()
    forgetful: set[tuple[int, int | None]] = set()
    waiting: list[tuple[int, int | None, sass_paths.Path, frozenset[int]]] = [
        (start, None, sass_paths.Path(), frozenset())
    ]
    for _ in range(PATHS):
        if not waiting:
            return found
        at, ended, path, seen = waiting.pop()
        if at in seen:
            if (at, ended) in forgetful:
                continue
            forgetful.add((at, ended))
            path = sass_paths.Path()
        for i in range(at, kernel.code.blocks[at][0]):
            if ended is not None and i in suspects:
                found.add(i)
            if ended is not None and (ended := _older(kernel, i, ended)) is None:
                break
            if ended is None and i == matmul:
                ended = int(kernel.matmuls[i].last)
            own, x = kernel.matmuls.get(i), kernel.code.instructions[i]
            sass_paths.step(path, x, own.writes if own else touched(x)[1])
        else:
            waiting += [(n, ended, further, seen | {at}) for n, further in _onwards(kernel, at, path)]
    return set(suspects)


def _onwards(kernel: Kernel, at: int, path: sass_paths.Path) -> Iterator[tuple[int, sass_paths.Path]]:
    end, following = kernel.code.blocks[at]
    for n in following:
        further = path.copy()
        if sass_paths.branch(further, kernel.code.instructions[end - 1], taken=n != end):
            yield n, further


# ---- registers


def _clash(kernel: Kernel, i: int, matmul: int) -> tuple[str, int] | None:
    """What an instruction does to which registers of a matmul that is under way."""
    own, other = kernel.matmuls.get(i), kernel.matmuls[matmul]
    reads, writes = (own.left | own.other, own.writes) if own else touched(kernel.code.instructions[i])
    written = writes & (other.left if own and own.writes == other.writes else other.left | other.writes)
    read = reads & other.writes
    return ("writes", written) if written else ("reads", read) if read else None


def _matmul(x: Instruction) -> Matmul:
    """Of `HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0`: a left operand in registers stands before gdesc, what is
    added to behind it, RZ where that is nothing. 128 threads have 64x32 sums of 4 or 2 bytes."""
    found = _MATMUL.match(x.opcode)
    assert found is not None
    count = int(found[1]) // (4 if found[2] == "F16" else 2)
    at = next(n for n, o in enumerate(x.operands) if o.startswith("gdesc"))
    writes, other = (registers(x.operands[n], count, 1) for n in (0, at + 1))
    left = registers(x.operands[1], LEFT, 1) if at == 2 else 0
    return Matmul(writes, left, other & ~writes, "gsb0" in x.operands)
