"""Find hazards of asynchronous tensor instructions (HGMMA, QGMMA, IGMMA of sm_90a) in a disassembly: instructions that
access registers of a matmul before a wait for it.

A matmul is in flight from its issue until, on every path, a WARPGROUP.DEPBAR.LE gsb0, N comes after more than N groups
have ended since. A group ends with the matmul marked gsb0, and a wait does not cover matmuls whose group has not ended.
Until then its accumulators must not be read or written, except by matmuls into exactly the same registers, which
execute in order, and a left operand in registers must not be written. ptxas should guarantee this, and has failed to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.runtime import sass, sass_paths
from compiler.runtime.sass_code import Code, Instruction, numbers, parsed, registers, touched

_MATMUL = re.compile(r"[HQI]GMMA\.(?:SP\.)?64x(\d+)x\d+\.(\w+)")
LEFT = 4  # registers per thread of a left operand: 64 rows of 32 bytes over 128 threads
PATHS = 4000  # the most blocks visited per matmul; beyond that a suspected hazard is reported

Flying = Mapping[int, int]  # matmuls in flight -> number of groups ended since, including its own


@dataclass(frozen=True)
class Matmul:
    """Register masks of a tensor instruction: `writes`, the `left` operand (0 if in memory), and the added accumulators
    that it does not write (`other`). `last`: whether its group ends with it."""

    writes: int
    left: int
    other: int
    last: bool


@dataclass(frozen=True)
class Kernel:
    """A kernel with its matmuls, and its waits with the number of groups that each leaves in flight, by index."""

    code: Code
    matmuls: Mapping[int, Matmul]
    waits: Mapping[int, int]


@dataclass(frozen=True)
class Hazard:
    """`instruction` reads or writes (`does`) registers of `matmul`, which may be in flight."""

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
    """The hazards of each kernel of a disassembly that has any, at most one per instruction."""
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
    """Hazards: the joined dataflow finds suspects, and a walk over the paths from each matmul confirms them."""
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
    """What may be in flight at the start of each reachable block; a join keeps the lower number of ended groups."""
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
    """Number of groups ended since a matmul after instruction `i`; None if the matmul is known to be complete."""
    if i in kernel.matmuls:
        return ended + (kernel.matmuls[i].last and not kernel.code.instructions[i].guard)
    return ended if ended <= kernel.waits.get(i, ended) else None


def _reached(kernel: Kernel, matmul: int, suspects: frozenset[int]) -> set[int]:
    """The suspects that some path without contradicting branches reaches from a matmul still in flight. A path that
    returns to a block forgets what it knows of values. After PATHS blocks, all suspects are returned."""
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
    """Whether instruction `i` conflicts with a matmul in flight: ("reads" or "writes", mask of registers), or None."""
    own, other = kernel.matmuls.get(i), kernel.matmuls[matmul]
    reads, writes = (own.left | own.other, own.writes) if own else touched(kernel.code.instructions[i])
    written = writes & (other.left if own and own.writes == other.writes else other.left | other.writes)
    read = reads & other.writes
    return ("writes", written) if written else ("reads", read) if read else None


def _matmul(x: Instruction) -> Matmul:
    """Parse `HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0`: a left operand in registers precedes gdesc, and the
    addend follows it (RZ for none). 128 threads hold 64x32 sums of 4 or 2 bytes."""
    found = _MATMUL.match(x.opcode)
    assert found is not None
    count = int(found[1]) // (4 if found[2] == "F16" else 2)
    at = next(n for n, o in enumerate(x.operands) if o.startswith("gdesc"))
    writes, other = (registers(x.operands[n], count, 1) for n in (0, at + 1))
    left = registers(x.operands[1], LEFT, 1) if at == 2 else 0
    return Matmul(writes, left, other & ~writes, "gsb0" in x.operands)
