"""Elementwise CPU rows whose load indices need arithmetic, such as resized images.

The indices along a row are the same for all rows, so a vector of columns goes down a strip of rows, with its indices in
registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from compiler.analysis import access
from compiler.analysis.nests import overwrites_only
from compiler.analysis.vectors import fitting_width
from compiler.ir.expr import Const, Expr, Load, Op, Var, names
from compiler.ir.linear import linear
from compiler.ir.multiples import ceildiv
from compiler.ir.statement import Let, Store
from compiler.schedule import names as naming
from compiler.schedule.space.cpu.nests import Nest
from compiler.schedule.space.members import Member
from compiler.schedule.steps import Bind, Reorder, SplitShifted, Step

ROWS = 256  # rows per strip: the cost of indices is amortised, and the cache lines stay in the near caches


def space(nest: Nest, least: float) -> Iterator[Member]:
    """The schedule by strips, if it applies; rows as they are cost `least`."""
    *others, row = nest.groups
    elementwise = all(isinstance(s, Let | Store) and (isinstance(s, Let) or s.op == "set") for s in nest.inside)
    if not others or not elementwise or nest.stored_at or not nest.rows_as_lanes:
        return
    extents = [g.extent for g in (others[-1], row)]
    places = _places(nest)
    width = fitting_width(nest.lanes, row.extent)
    if width == 1 or len(row.loops) > 1 or not places or not all(isinstance(n, Const) for n in extents):
        return
    arithmetic = sum(isinstance(n, Op) for n in {n for p in places for n in p.walk()})
    yield Member(least * nest.accesses / (nest.accesses + arithmetic), lambda: _steps(nest, width))


def _places(nest: Nest) -> set[Expr]:
    """Non-linear parts of addresses that vary by lane but not by row; empty if one varies by row or data."""
    var, known = Var(nest.last.var), nest.known(())
    rows = {f.var for f in nest.groups[-2].loops}
    out: set[Expr] = set()
    for n in {n for s in nest.inside for n in s.walk() if isinstance(n, Load)}:
        for atom in linear(access.address(n.index, nest.memory.tensors[n.buffer], known))[0]:
            if var.name in names(atom) and atom is not var and not _repeats(atom, var, nest.lanes):
                if names(atom) & rows or any(isinstance(x, Load) for x in atom.walk()):
                    return set()
                out.add(atom)
    return out


def _repeats(atom: Expr, var: Var, lanes: int) -> bool:
    """Whether it is a quotient or remainder whose differences between lanes are the same in every vector."""
    match atom:
        case Op("floordiv" | "mod", (arg, Const(by))):
            own = linear(arg)[0].get(var, 0)
            return own != 0 and gcd(own * lanes, int(by)) == by
    return False


def _steps(nest: Nest, width: int) -> Iterator[Step]:
    yield from nest.collapsed
    *outer, rows, row = (g.name for g in nest.groups)
    strip, extents = rows, [int(g.extent.value) for g in nest.groups[-2:] if isinstance(g.extent, Const)]
    most = ROWS if outer else min(ROWS, ceildiv(extents[0], nest.memory.target.cores))
    if extents[0] > most:
        pieces, strip = naming.pieces(rows)
        yield SplitShifted(rows, most, (pieces, strip))
        outer.append(pieces)
    yield Reorder((*outer, row, strip))
    if outer:
        yield Bind(outer[0], "blocks")
    again = extents[1] % width > 1 and overwrites_only(nest.inside)
    yield Bind(row, "vector", (("width", width), ("unroll", 1), *((("again", 1),) if again else ())))
