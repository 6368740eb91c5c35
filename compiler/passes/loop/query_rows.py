"""Bring a nest over rows, joined from kernels, into the form of a softmax-weighted sum (Loop IR to Loop IR).

When a model decodes, a head has one query. Heads that share keys and values, as in grouped-query attention, are the
queries of one matmul; they are the rest of a loop of which keys know only the quotient.
"""

from __future__ import annotations

from collections.abc import Set

from compiler.analysis import kernel_names
from compiler.analysis.nests import bound, loop_ranges, perfect, wrap
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Op, Var, dim, names, static, substitute
from compiler.ir.index import simplify
from compiler.ir.statement import Kernel, Stmt, Store


def with_queries(kernel: Kernel) -> Kernel:
    """The kernel with the row loop that is divided in indices split by the divisor; else with a loop of one query."""
    rows, body = perfect(loop.For, kernel.body)
    taken = bound(kernel) | {p.name for p in kernel.params}
    query = kernel_names.free("query", taken)
    for f in reversed(rows):
        group = min(_divisors(f, body), default=0)
        if group:
            group_var = kernel_names.free("group", taken)
            each = (loop.For(group_var, dim(static(f.extent) // group), "parallel", ()), _query(query, group))
            split = [y for x in rows for y in (each if x is f else (x,))]
            moved = substitute(body, {Var(f.var): Var(group_var) * group + Var(query)})
            return kernel.replace(body=wrap(split, simplify(moved, loop_ranges(split))))
    return kernel.replace(body=wrap([*rows, _query(query, 1)], body)) if rows else kernel


def with_row_values(kernel: Kernel, private: Set[str]) -> Kernel:
    """The kernel without the `private` buffers that only pass a value on within a row, such as its maximum."""
    rows, body = perfect(loop.For, kernel.body)
    passed: dict[Expr, Expr] = {}
    out: list[Stmt] = []
    for s in body:
        match s:
            case Store(buffer, index, Var() as value, "set") if buffer in private and _is_row(index, rows):
                passed[Load(buffer, index, value.dtype)] = value
            case _:
                out.append(substitute((s,), passed)[0])
    kept = {n.buffer for s in out for n in s.walk() if isinstance(n, Load | Store)}
    if not passed or kept & {x.buffer for x in passed if isinstance(x, Load)}:
        return kernel
    params = tuple(p for p in kernel.params if p.name in kept)
    writes = tuple(w for w in kernel.writes if w in kept)
    return kernel.replace(params=params, writes=writes, body=wrap(rows, tuple(out)))


def _is_row(index: tuple[Expr, ...], rows: list[loop.For]) -> bool:
    return all(names(i) <= {f.var for f in rows} for i in index)


def _query(name: str, extent: int) -> loop.For:
    return loop.For(name, dim(extent), "parallel", ())


def _divisors(f: loop.For, body: tuple[Stmt, ...]) -> set[int]:
    """The numbers, larger than 1 and divisors of its extent, by which statements divide a loop's variable."""
    quotients = (n for s in body for n in s.walk() if isinstance(n, Op) and n.name == "floordiv")
    found = (n.args[1] for n in quotients if n.args[0] is Var(f.var))
    sizes = {int(d.value) for d in found if isinstance(d, Const)}
    return {d for d in sizes if d > 1 and isinstance(f.extent, Const) and static(f.extent) % d == 0}
