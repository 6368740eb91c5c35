"""GPU schedules of rows whose loops read what earlier loops of the row wrote at other places, such as merge sorts.

A block takes a row, synchronises its threads after each loop, and keeps intermediate data in shared memory.
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
RESERVED_BYTES = 2048  # bytes of shared memory that stay free


def space(kernel: Kernel, private: Set[str], target: Target) -> Iterator[Member] | None:
    """Schedules, cheapest first; None for kernels of another kind."""
    found = sequence(kernel, private)
    if found is None:
        return None
    rows, nests = found
    threads = max(LEAST_THREADS, min(MOST_THREADS, 1 << (max(iterations(*nest) for nest in nests) - 1).bit_length()))
    return _members(kernel, private, target, rows, nests, threads)


def _members(
    kernel: Kernel, private: Set[str], target: Target, rows: list[loop.For], nests: list[list[loop.For]], threads: int
) -> Iterator[Member]:
    """Schedules by number of threads per row, each half of the one before, with twice as many iterations."""
    while threads >= LEAST_THREADS:
        clocks = sum(cost.reduction_clocks(target, iterations(*nest), 1, threads) for nest in nests)
        yield Member(clocks, partial(_steps, kernel, private, target, rows, nests, threads))
        threads //= 2


def _steps(
    kernel: Kernel, private: Set[str], target: Target, rows: list[loop.For], nests: list[list[loop.For]], threads: int
) -> list[Step]:
    steps: list[Step] = []
    name = naming.collapse([f.var for f in rows], steps)
    steps += [Bind(name, "blocks")]
    free_bytes = target.shared - RESERVED_BYTES
    for p in kernel.params:
        size = product(p.shape)
        row_bytes = int(size.value) // iterations(*rows) * p.dtype.bytes if isinstance(size, Const) else free_bytes
        if p.name in private and row_bytes <= free_bytes:
            steps.append(StoreAt(p.name, name, "shared"))
            free_bytes -= row_bytes
    for nest in nests:
        steps.append(Bind(naming.collapse([f.var for f in nest], steps), "lanes", (("threads", threads),)))
    return steps
