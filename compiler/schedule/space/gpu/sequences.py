"""A loop nest and a GPU in; a schedule out where loops inside rows read what others of them have made, here and there.

As in a sort, which merges what it has merged before: a block takes a row, with a barrier of its threads after each loop
and keep what is in between in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial

from compiler.analysis.nests import iterations
from compiler.analysis.sequences import sequence
from compiler.ir import loop
from compiler.ir.expr import Const, product
from compiler.ir.statement import Kernel
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.space.members import Member
from compiler.schedule.steps import Bind, Step, StoreAt
from compiler.targets.target import Target

MOST_THREADS = 1024
LEAST_THREADS = 32
EXCHANGED = 2048  # bytes of shared memory that stay free


def space(kernel: Kernel, private: Set[str], target: Target) -> Iterator[Member] | None:
    """Its schedules, the cheapest first; None for a kernel of another kind."""
    found = sequence(kernel, private)
    if found is None:
        return None
    rows, nests = found
    threads = max(LEAST_THREADS, min(MOST_THREADS, 1 << (max(iterations(*nest) for nest in nests) - 1).bit_length()))
    return _members(kernel, private, target, rows, nests, threads)


def _members(
    kernel: Kernel, private: Set[str], target: Target, rows: list[loop.For], nests: list[list[loop.For]], threads: int
) -> Iterator[Member]:
    """So many threads for a row, or half as many, and so on: they take so many more turns."""
    while threads >= LEAST_THREADS:
        clocks = sum(cost.waits(target, iterations(*nest), 1, threads) for nest in nests)
        yield Member(clocks, partial(_steps, kernel, private, target, rows, nests, threads))
        threads //= 2


def _steps(
    kernel: Kernel, private: Set[str], target: Target, rows: list[loop.For], nests: list[list[loop.For]], threads: int
) -> list[Step]:
    steps: list[Step] = []
    name = naming.collapse([f.var for f in rows], steps)
    steps += [Bind(name, "blocks")]
    left = target.shared - EXCHANGED
    for p in kernel.params:
        size = product(p.shape)
        held = int(size.value) // iterations(*rows) * p.dtype.bytes if isinstance(size, Const) else left
        if p.name in private and held <= left:
            steps.append(StoreAt(p.name, name, "shared"))
            left -= held
    for nest in nests:
        steps.append(Bind(naming.collapse([f.var for f in nest], steps), "lanes", (("threads", threads),)))
    return steps
