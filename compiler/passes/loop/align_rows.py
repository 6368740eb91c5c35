"""Loop IR in, Loop IR out: rows of temporaries that matmuls read or write begin where wide accesses may.

A bulk copy to or from shared memory, and a vector of a thread, begin at a multiple of 16 bytes. Rows of 50,257 elements
of 16 bits that lie one behind the other begin at any even address: before a matmul can read them in tiles, all of them
are copied, and threads store one element at a time. A temporary is the program's own, so its rows may be further apart
than they are long. What lies between two rows is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compiler.ir.expr import Load, Op
from compiler.ir.statement import Kernel, Program, Store
from compiler.ir.tensor import Tensor, aligned_rows
from compiler.schedule.contraction_nest import recognise


def align_rows(program: Program) -> Program:
    """Temporaries of contractions with their rows apart, where every kernel sees the whole temporary as it is."""
    used = {name for k in program.kernels for name in _of_contraction(k)}
    users = users_by_name(program)
    chosen = {
        t.name: t.replace(strides=strides) for t in program.temps
        if t.name in used and (strides := aligned_rows(t)) is not t.strides and seen_whole(users[t.name], t)
    }  # fmt: skip
    return laid_out(program, chosen) if chosen else program


def laid_out(program: Program, chosen: Mapping[str, Tensor]) -> Program:
    """The program with temporaries of these names as they are there."""

    def placed(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(chosen.get(t.name, t) for t in tensors)

    kernels = tuple(k.replace(params=placed(k.params)) for k in program.kernels)
    return program.replace(temps=placed(program.temps), kernels=kernels)


def users_by_name(program: Program) -> Mapping[str, Sequence[Kernel]]:
    """The kernels that have a tensor of each name among their parameters, whatever they see of it."""
    found: dict[str, list[Kernel]] = {t.name: [] for t in program.temps}
    for k in program.kernels:
        for name in dict.fromkeys(p.name for p in k.params):
            found.setdefault(name, []).append(k)
    return found


def _of_contraction(kernel: Kernel) -> Iterator[str]:
    """The buffers that a contraction takes its factors from, and those that it writes."""
    found = recognise(kernel)
    if found is not None:
        yield from kernel.writes
        yield from (n.buffer for side in (found.left, found.right) for n in side.walk() if isinstance(n, Load))


def seen_whole(users: Sequence[Kernel], t: Tensor) -> bool:
    """Each kernel has the temporary's own shape, and no index takes an axis apart that only dense rows make one."""
    if any(p != t for k in users for p in k.params if p.name == t.name):
        return False
    accesses = (
        n for k in users for s in k.body for n in s.walk() if isinstance(n, Load | Store) and n.buffer == t.name
    )
    parts = (n for a in accesses for i in a.index for n in i.walk())
    return not any(isinstance(n, Op) and n.name in ("floordiv", "mod") for n in parts)
