"""Recognise a contraction in a loop nest: its two factors, its parallel loops and its reduction loops.

Each loop plays one of four parts: m occurs only in one factor, n only in the other, k is summed over, and all others
are the batch. n is the loop along which the result is contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.analysis.nests import perfect, size
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Op, Var, dim, loads, names, substitute
from compiler.ir.index import simplify
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt, Store
from compiler.schedule import names as naming
from compiler.schedule.steps import Split, Step


@dataclass(frozen=True)
class Contraction:
    """A sum of products `left` * `right` in `accumulator`, inside the parallel loops `rows`, over the loops `depth`.

    `first` initialises the accumulator; `after` are the statements that follow the sum.
    """

    accumulator: str
    rows: tuple[loop.For, ...]
    depth: tuple[loop.For, ...]
    left: Expr
    right: Expr
    first: Init
    after: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[loop.For, ...]:
        """All loops, outermost first."""
        return (*self.rows, *self.depth)


def recognise(kernel: Kernel, integers: bool = False) -> Contraction | None:
    """The contraction of a kernel that is one nest: parallel loops around a sum of products and then stores; else None.

    All extents must be known. Integer sums are accepted only with `integers`.
    """
    rows, body = perfect(loop.For, kernel.body)
    place = next((n for n, s in enumerate(body) if isinstance(s, Init)), None)
    if not rows or place is None or place + 1 >= len(body):
        return None
    first, nest, after = body[place], body[place + 1], body[place + 2 :]
    depth: list[loop.For] = []
    while isinstance(nest, loop.For) and nest.kind == "reduce":
        depth.append(nest)
        *lets, nest = nest.body
        if not all(isinstance(s, Let) for s in lets) or (lets and isinstance(nest, loop.For)):
            return None
    assert isinstance(first, Init)
    values = [s for s in (*body[:place], *(depth[-1].body if depth else ())) if isinstance(s, Let)]
    simple = all(isinstance(s, Let) for s in body[:place]) and all(isinstance(s, Let | Store) for s in after)
    known = all(isinstance(f.extent, Const) and f.extent.value for f in (*rows, *depth))
    match nest:
        case Accum(name, "sum", value) if depth and simple and known and name == first.name:
            if not (integers or value.dtype.is_float):
                return None
            for s in reversed(values):
                value = substitute(value, {Var(s.name, s.value.dtype): s.value})
            match value:
                case Op("mul", (left, right)) if loads(left) and loads(right):
                    return Contraction(name, tuple(rows), tuple(depth), left, right, first, after)
    return None


def by_groups(c: Contraction) -> tuple[Contraction, list[Step]]:
    """Split a row that one factor indexes only by group (`j // 16`): the group becomes a batch loop. Returns the
    contraction after the steps, and the steps."""
    for f in c.rows:
        var, count = Var(f.var), size(f)
        length = next((d for e in (c.left, c.right) if (d := _group_size(e, var)) and count % d == 0 and d < count), 0)
        if length:
            outer, inner = map(Var, naming.pieces(f.var))
            new = (
                f.replace(var=outer.name, extent=dim(count // length)),
                f.replace(var=inner.name, extent=dim(length)),
            )
            known = {outer.name: (0, count // length - 1), inner.name: (0, length - 1)}
            table = {var: outer * length + inner}
            left, right = (simplify(substitute(x, table), known) for x in (c.left, c.right))
            after = simplify(substitute(c.after, table), known)
            rows = tuple(x for g in c.rows for x in (new if g is f else (g,)))
            contraction, more = by_groups(replace(c, rows=rows, left=left, right=right, after=after))
            return contraction, [Split(f.var, length, (outer.name, inner.name)), *more]
    return c, []


def _group_size(factor: Expr, var: Var) -> int:
    """The divisor d if `var` occurs in the factor only as `var // d`; otherwise 0."""
    found = {n: n.args[1] for n in factor.walk() if isinstance(n, Op) and n.name == "floordiv" and n.args[0] is var}
    rest = substitute(factor, dict.fromkeys(found, dim(0)))
    sizes = {int(d.value) for d in found.values() if isinstance(d, Const)}
    return sizes.pop() if len(sizes) == 1 and var.name not in names(rest) else 0


Side = tuple[Expr, list[loop.For]]


def sides(c: Contraction) -> Iterator[tuple[Side, Side]]:
    """Both assignments of the factors to left and right, each with the loops longer than 1 that only it depends on."""
    long = [f for f in c.rows if size(f) > 1]
    for left, right in ((c.left, c.right), (c.right, c.left)):
        rows = [f for f in long if f.var in names(left) and f.var not in names(right)]
        columns = [f for f in long if f.var in names(right) and f.var not in names(left)]
        yield (left, rows), (right, columns)
