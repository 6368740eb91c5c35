"""Recognise rows whose loops read what earlier loops wrote, at data-dependent places, as in a sort."""

from __future__ import annotations

from collections.abc import Iterable, Set

from compiler.analysis.nests import rows_of
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var
from compiler.ir.statement import Accum, Init, Kernel, Let

Nest = list[loop.For]


def sequence(kernel: Kernel, private: Set[str]) -> tuple[Nest, list[Nest]] | None:
    """The row loops of such a kernel and the nests inside them, all of known extents; None for other kernels.

    `private` names the temporaries that no other kernel uses.
    """
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], loop.For):
        return None
    rows, inside = rows_of(kernel.body[0])
    nests = [rows_of(s)[0] for s in inside if isinstance(s, loop.For) and s.kind == "parallel"]
    if not rows or len(nests) != len(inside) or not _has_data_dependent_load(kernel, private):
        return None
    if not all(isinstance(f.extent, Const) for f in (*rows, *(f for nest in nests for f in nest))):
        return None
    return rows, nests


def _has_data_dependent_load(kernel: Kernel, buffers: Set[str]) -> bool:
    """Whether an element of one of these buffers is loaded at a data-dependent place."""
    data: set[str] = set()
    for n in (n for s in kernel.body for n in s.walk()):
        match n:
            case Let(name, value) | Init(name, value) | Accum(name, _, value) if _depends_on_data((value,), data):
                data.add(name)
    loads = (n for s in kernel.body for n in s.walk() if isinstance(n, Load) and n.buffer in buffers)
    return any(_depends_on_data(n.index, data) for n in loads)


def _depends_on_data(exprs: Iterable[Expr], data: Set[str]) -> bool:
    return any(isinstance(n, Load) or (isinstance(n, Var) and n.name in data) for e in exprs for n in e.walk())
