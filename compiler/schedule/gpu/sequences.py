"""A loop nest and a GPU in; a schedule out where loops inside rows read what others of them have made, here and there.

As in a sort, which merges what it has merged before: a block takes a row, its threads meet at a barrier after each loop
and keep what is in between in shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set

from compiler.analysis.nests import rows_of
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, product
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt
from compiler.schedule.steps import Bind, Collapse, Fold, Schedule, Step
from compiler.targets.target import Target

MOST_THREADS = 1024
LEAST_THREADS = 32
EXCHANGED = 2048  # bytes of shared memory that stay free
LOADS = 32  # that a multiprocessor serves in a clock
LAUNCH = 4000  # clocks from the end of a kernel until the next one has got going


def choose(kernel: Kernel, private: Set[str], target: Target) -> Schedule | None:
    """The schedule; None for a kernel of another kind."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], loop.For):
        return None
    rows, inside = rows_of(kernel.body[0])
    nests = [rows_of(s)[0] for s in inside if isinstance(s, loop.For) and s.kind == "parallel"]
    if not rows or len(nests) != len(inside) or not reads_here_and_there(kernel, private):
        return None
    if not all(isinstance(f.extent, Const) for f in (*rows, *(f for nest in nests for f in nest))):
        return None
    steps: list[Step] = []
    name = _merged(rows, steps)
    threads = max(LEAST_THREADS, min(MOST_THREADS, 1 << (max(map(_count, nests)) - 1).bit_length()))
    steps += [Bind(name, "blocks")]
    left = target.shared - EXCHANGED
    for p in kernel.params:
        size = product(p.shape)
        held = int(size.value) // _count(rows) * p.dtype.bytes if isinstance(size, Const) else left
        if p.name in private and held <= left:
            steps.append(Fold(p.name, name, "shared"))
            left -= held
    for nest in nests:
        steps.append(Bind(_merged(nest, steps), "lanes", (("threads", threads),)))
    return Schedule(tuple(steps))


def pays(kernel: Kernel, rows: int, target: Target) -> bool:
    """Whether a kernel takes less time more, on one block for each of so many rows, than starting it takes."""
    every = sum(map(_loads, kernel.body)) / LOADS
    return every / rows * -(-rows // target.cores) - every / target.cores < LAUNCH


def reads_here_and_there(kernel: Kernel, buffers: Set[str]) -> bool:
    """An element of one of these buffers is loaded from a place that data decide."""
    data: set[str] = set()
    for n in (n for s in kernel.body for n in s.walk()):
        match n:
            case Let(name, value) | Init(name, value) | Accum(name, _, value) if _decided((value,), data):
                data.add(name)
    loads = (n for s in kernel.body for n in s.walk() if isinstance(n, Load) and n.buffer in buffers)
    return any(_decided(n.index, data) for n in loads)


def _decided(exprs: Iterable[Expr], data: Set[str]) -> bool:
    return any(isinstance(n, Load) or (isinstance(n, Var) and n.name in data) for e in exprs for n in e.walk())


def _merged(nest: list[loop.For], steps: list[Step]) -> str:
    """The name of the loops made one, by steps that are added."""
    name = nest[0].var
    for f in nest[1:]:
        steps.append(Collapse(name, f.var, name + f.var))
        name += f.var
    return name


def _count(nest: list[loop.For]) -> int:
    return math.prod(int(f.extent.value) for f in nest if isinstance(f.extent, Const))


def _loads(s: Stmt) -> int:
    """How many elements a statement loads."""
    if isinstance(s, loop.For):
        often = int(s.extent.value) if isinstance(s.extent, Const) else 1
        return often * sum(map(_loads, s.body))
    return sum(isinstance(n, Load) for n in s.walk())
