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
from compiler.runtime.sass_code import Code, Instruction, accessed_registers, numbers, parse, registers

_MATMUL = re.compile(r"[HQI]GMMA\.(?:SP\.)?64x(\d+)x\d+\.(\w+)")
LEFT_REGISTERS = 4  # registers per thread of a left operand: 64 rows of 32 bytes over 128 threads
MAX_BLOCKS = 4000  # the most blocks visited per matmul; beyond that a suspected hazard is reported

InFlight = Mapping[int, int]  # matmuls in flight -> number of groups ended since, including its own


@dataclass(frozen=True)
class Matmul:
    """Register masks of a tensor instruction: `writes`, the `left` operand (0 if in memory), and the added accumulators
    that it does not write (`addend`). `last`: whether its group ends with it."""

    writes: int
    left: int
    addend: int
    last: bool


@dataclass(frozen=True)
class Kernel:
    """A kernel with its matmuls, and its waits with the number of groups that each leaves in flight, by index."""

    code: Code
    matmuls: Mapping[int, Matmul]
    waits: Mapping[int, int]


@dataclass(frozen=True)
class Hazard:
    """`instruction` reads or writes (`access`) registers of `matmul`, which may be in flight."""

    instruction: Instruction
    access: str
    registers: tuple[int, ...]
    matmul: Instruction

    def __str__(self) -> str:
        names = ", ".join(f"R{r}" for r in self.registers)
        return (
            f"`{self.instruction}` at 0x{self.instruction.offset:04x} {self.access} {names} while `{self.matmul}` at "
            f"0x{self.matmul.offset:04x} may be under way"
        )


def hazards(text: str) -> dict[str, tuple[Hazard, ...]]:
    """The hazards of each kernel of a disassembly that has any, at most one per instruction."""
    kernels = {name: _kernel(body) for name, body in sass.bodies(text).items() if _MATMUL.search(body)}
    hazards_by_kernel = {name: tuple(_hazards(kernel)) for name, kernel in kernels.items()}
    return {name: kernel_hazards for name, kernel_hazards in hazards_by_kernel.items() if kernel_hazards}


def _kernel(body: str) -> Kernel:
    code = parse(body)
    indexed = list(enumerate(code.instructions))
    matmuls = {i: _matmul(x) for i, x in indexed if _MATMUL.match(x.opcode)}
    waits = {i: x for i, x in indexed if x.opcode == "WARPGROUP.DEPBAR.LE" and x.operands[0] == "gsb0" and not x.guard}
    return Kernel(code, matmuls, {i: int(x.operands[1], 16) for i, x in waits.items()})


def _hazards(kernel: Kernel) -> Iterator[Hazard]:
    """Hazards: the joined dataflow finds suspects, and a walk over the paths from each matmul confirms them."""
    suspects: dict[int, set[int]] = {}  # by matmul
    for start, in_flight in _fixed_point(kernel).items():
        for i in range(start, kernel.code.blocks[start][0]):
            for m in in_flight:
                if _conflict(kernel, i, m):
                    suspects.setdefault(m, set()).add(i)
            in_flight = _in_flight_after(kernel, i, in_flight)
    confirmed: dict[int, int] = {}
    for m, instructions in sorted(suspects.items()):
        confirmed |= dict.fromkeys(_reachable_suspects(kernel, m, frozenset(instructions)), m)
    for i, m in sorted(confirmed.items()):
        access, mask = _conflict(kernel, i, m) or ("", 0)
        yield Hazard(kernel.code.instructions[i], access, numbers(mask), kernel.code.instructions[m])


# ---- what is under way


def _fixed_point(kernel: Kernel) -> dict[int, InFlight]:
    """What may be in flight at the start of each reachable block; a join keeps the lower number of ended groups."""
    entry: dict[int, InFlight] = {0: {}}
    worklist = [0]
    while worklist:
        start = worklist.pop()
        in_flight = entry[start]
        end, following = kernel.code.blocks[start]
        for i in range(start, end):
            in_flight = _in_flight_after(kernel, i, in_flight)
        for n in following:
            recorded = entry.get(n, {})
            joined = {m: min(x[m] for x in (recorded, in_flight) if m in x) for m in {**recorded, **in_flight}}
            if n not in entry or joined != recorded:
                entry[n] = joined
                worklist.append(n)
    return entry


def _in_flight_after(kernel: Kernel, i: int, in_flight: InFlight) -> InFlight:
    if i not in kernel.matmuls and i not in kernel.waits:
        return in_flight
    updated = ((m, _groups_ended_after(kernel, i, n)) for m, n in in_flight.items())
    remaining = {m: n for m, n in updated if n is not None}
    return {**remaining, i: int(kernel.matmuls[i].last)} if i in kernel.matmuls else remaining


def _groups_ended_after(kernel: Kernel, i: int, ended: int) -> int | None:
    """Number of groups ended since a matmul after instruction `i`; None if the matmul is known to be complete."""
    if i in kernel.matmuls:
        return ended + (kernel.matmuls[i].last and not kernel.code.instructions[i].guard)
    return ended if ended <= kernel.waits.get(i, ended) else None


def _reachable_suspects(kernel: Kernel, matmul: int, suspects: frozenset[int]) -> set[int]:
    """The suspects that some path without contradicting branches reaches from a matmul still in flight. A path that
    returns to a block forgets what it knows of values. After MAX_BLOCKS blocks, all suspects are returned."""
    start = max(a for a in kernel.code.blocks if a <= matmul)
    reached: set[int] = set()
    revisited: set[tuple[int, int | None]] = set()
    worklist: list[tuple[int, int | None, sass_paths.Path, frozenset[int]]] = [
        (start, None, sass_paths.Path(), frozenset())
    ]
    for _ in range(MAX_BLOCKS):
        if not worklist:
            return reached
        block, ended, path, seen = worklist.pop()
        if block in seen:
            if (block, ended) in revisited:
                continue
            revisited.add((block, ended))
            path = sass_paths.Path()
        for i in range(block, kernel.code.blocks[block][0]):
            if ended is not None and i in suspects:
                reached.add(i)
            if ended is not None and (ended := _groups_ended_after(kernel, i, ended)) is None:
                break
            if ended is None and i == matmul:
                ended = int(kernel.matmuls[i].last)
            own_matmul, x = kernel.matmuls.get(i), kernel.code.instructions[i]
            sass_paths.step(path, x, own_matmul.writes if own_matmul else accessed_registers(x)[1])
        else:
            worklist += [
                (n, ended, next_path, seen | {block}) for n, next_path in _successor_paths(kernel, block, path)
            ]
    return set(suspects)


def _successor_paths(kernel: Kernel, block: int, path: sass_paths.Path) -> Iterator[tuple[int, sass_paths.Path]]:
    end, following = kernel.code.blocks[block]
    for n in following:
        next_path = path.copy()
        if sass_paths.branch(next_path, kernel.code.instructions[end - 1], taken=n != end):
            yield n, next_path


# ---- registers


def _conflict(kernel: Kernel, i: int, matmul: int) -> tuple[str, int] | None:
    """Whether instruction `i` conflicts with a matmul in flight: ("reads" or "writes", mask of registers), or None."""
    own_matmul, other = kernel.matmuls.get(i), kernel.matmuls[matmul]
    reads, writes = (
        (own_matmul.left | own_matmul.addend, own_matmul.writes)
        if own_matmul
        else accessed_registers(kernel.code.instructions[i])
    )
    written = writes & (other.left if own_matmul and own_matmul.writes == other.writes else other.left | other.writes)
    read = reads & other.writes
    return ("writes", written) if written else ("reads", read) if read else None


def _matmul(x: Instruction) -> Matmul:
    """Parse `HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0`: a left operand in registers precedes gdesc, and the
    addend follows it (RZ for none). 128 threads hold 64x32 sums of 4 or 2 bytes."""
    match = _MATMUL.match(x.opcode)
    assert match is not None
    count = int(match[1]) // (4 if match[2] == "F16" else 2)
    descriptor = next(n for n, o in enumerate(x.operands) if o.startswith("gdesc"))
    writes, addend = (registers(x.operands[n], count, 1) for n in (0, descriptor + 1))
    left = registers(x.operands[1], LEFT_REGISTERS, 1) if descriptor == 2 else 0
    return Matmul(writes, left, addend & ~writes, "gsb0" in x.operands)
