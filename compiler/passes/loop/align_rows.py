"""Align the rows of temporaries that matmuls read or write, so that wide accesses can start at each row.

A bulk copy to or from shared memory, and a vector access of a thread, start at a multiple of 16 bytes. Contiguous rows
of 50,257 16-bit elements start at any even address: before a matmul could read them in tiles, all of them would be
copied, and threads would store one element at a time. A temporary is internal to the program, so its rows may be
padded. The padding is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compiler.ir.expr import Load, Op
from compiler.ir.statement import Kernel, Program, Store
from compiler.ir.tensor import Tensor, aligned_rows
from compiler.schedule.contraction_nest import recognise


def align_rows(program: Program) -> Program:
    """Pad the rows of temporaries that contractions use, if every kernel accesses the whole temporary."""
    used = {name for k in program.kernels for name in _contraction_buffers(k)}
    users = users_by_name(program)
    chosen = {
        t.name: t.replace(strides=strides) for t in program.temps
        if t.name in used and (strides := aligned_rows(t)) is not t.strides and is_used_in_own_shape(users[t.name], t)
    }  # fmt: skip
    return replace_temporaries(program, chosen) if chosen else program


def replace_temporaries(program: Program, chosen: Mapping[str, Tensor]) -> Program:
    """The program with the temporaries in `chosen` replaced by those of the same name there."""

    def replaced(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(chosen.get(t.name, t) for t in tensors)

    kernels = tuple(k.replace(params=replaced(k.params)) for k in program.kernels)
    return program.replace(temps=replaced(program.temps), kernels=kernels)


def users_by_name(program: Program) -> Mapping[str, Sequence[Kernel]]:
    """By name of a tensor, the kernels that have it as a parameter, in any view."""
    found: dict[str, list[Kernel]] = {t.name: [] for t in program.temps}
    for k in program.kernels:
        for name in dict.fromkeys(p.name for p in k.params):
            found.setdefault(name, []).append(k)
    return found


def _contraction_buffers(kernel: Kernel) -> Iterator[str]:
    """The buffers of a contraction's factors, and those that it writes."""
    found = recognise(kernel)
    if found is not None:
        yield from kernel.writes
        yield from (n.buffer for side in (found.left, found.right) for n in side.walk() if isinstance(n, Load))


def is_used_in_own_shape(users: Sequence[Kernel], t: Tensor) -> bool:
    """Whether each kernel sees the temporary in its own shape and no index divides an axis, which needs dense rows."""
    if any(p != t for k in users for p in k.params if p.name == t.name):
        return False
    accesses = (
        n for k in users for s in k.body for n in s.walk() if isinstance(n, Load | Store) and n.buffer == t.name
    )
    parts = (n for a in accesses for i in a.index for n in i.walk())
    return not any(isinstance(n, Op) and n.name in ("floordiv", "mod") for n in parts)
