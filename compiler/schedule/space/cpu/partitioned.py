"""CPU rows partitioned where a condition on the position changes; each part is vectorised on its own.

Examples are concatenations, rolls, and reflected or circular padding: within a part, accesses are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from compiler.analysis import access
from compiler.analysis.breakpoints import breakpoints, part_of, written_out
from compiler.analysis.nests import contiguous, overwrites_only
from compiler.analysis.vectors import fitting_width
from compiler.ir.expr import Const, Load, Op, Var, dim, names, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Stmt, Store
from compiler.schedule import names as naming
from compiler.schedule.cost import cpu as cost
from compiler.schedule.space.cpu.nests import Nest, touched
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Partition, Split, Step

MOST_CUTS = 15  # each part is code of its own
MOST_EDGES = 4  # for rows with loops inside, which are more code


@dataclass(frozen=True)
class _Part:
    """Some iterations of a row: their body, their number, and whether they can be lanes of vectors."""

    body: tuple[Stmt, ...]
    length: int
    lanes: bool

    def width(self, most: int) -> int:
        """Lanes of the vectors for these iterations, at most `most`."""
        return fitting_width(most, dim(self.length)) if self.lanes and most > 1 else 1


@dataclass(frozen=True)
class _Rows:
    """The iterations to partition: of the innermost row loop or, after the split `before`, of each of its pieces."""

    name: str
    var: str
    length: int
    body: tuple[Stmt, ...]
    known: dict[str, Range]
    before: tuple[Split, ...] = ()

    def part(self, nest: Nest, start: int, end: int) -> _Part:
        """The iterations from `start` to before `end`."""
        var, within = Var(self.var), self.known | {self.var: (0, end - start - 1)}
        body = part_of(self.body, var, start, end, self.known)
        return _Part(body, end - start, not access.not_vectorizable(body, var, nest.memory.tensors, within))

    def cycles(self, nest: Nest, parts: list[_Part], width: int) -> float:
        """Relative cycles of a row made of these parts: contiguous accesses go by vectors, others lane by lane."""
        out = 0.0
        for part in parts:
            known = self.known | {self.var: (0, part.length - 1)}
            share = contiguous(access.strides(part.body, Var(self.var), nest.memory.tensors, known))
            lanes = part.width(width)
            out += touched(part.body) * cost.accesses(share, lanes) * -(-part.length // lanes)
        return out


def _rows(nest: Nest) -> _Rows | None:
    """The innermost rows, if they are one loop of known extent; else None."""
    row = nest.groups[-1]
    if len(row.loops) > 1 or not isinstance(row.extent, Const):
        return None
    known = nest.known(f for path in nest.paths for f in path)
    return _Rows(row.name, nest.last.var, int(row.extent.value), nest.inside, known)


def _in_pieces(rows: _Rows, least: int) -> _Rows:
    """The rows split where their quotients change, as with images that follow each other in memory; unchanged if the
    pieces would be shorter than `least`."""
    var = Var(rows.var)
    found = {
        int(by.value)
        for s in rows.body
        for n in s.walk()
        if isinstance(n, Op) and n.name in ("floordiv", "mod") and var in linear(n.args[0])[0]
        for by in n.args[1:]
        if isinstance(by, Const)
    }
    length = next(iter(found)) if len(found) == 1 else 0
    if length < least or rows.length % length or rows.length == length:
        return rows
    piece, inner = naming.pieces(rows.name)
    known = rows.known | {piece: (0, rows.length // length - 1), inner: (0, length - 1)}
    body = simplify(substitute(rows.body, {var: Var(piece) * length + Var(inner)}), known)
    return _Rows(inner, inner, length, body, known, (Split(rows.name, length, (piece, inner)),))


def space(nest: Nest, least: float) -> Iterator[Member]:
    """Partitioned schedules of rows; `least` is the cost of the cheapest schedule that leaves rows whole."""
    rows = _rows(nest)
    if rows is None or nest.stored_at or written_out(nest.inside) is None:
        return
    cuts = breakpoints(rows.body, Var(rows.var), rows.length, rows.known, MOST_CUTS)
    if not cuts:
        return
    whole = _Part(nest.inside, rows.length, nest.rows_as_lanes)
    parts = [rows.part(nest, start, end) for start, end in pairwise((0, *cuts, rows.length))]
    before = rows.cycles(nest, [whole], nest.lanes)
    stores = _stores(nest)
    ways = [
        (width, past, least * rows.cycles(nest, parts, width) / before * share)
        for width in _widths(nest)
        for past, share in stores.items()
        if not past or all(_aligned(nest, part, width) for part in parts)
    ]
    yield from ranked(
        Member(cycles, partial(_steps, nest, rows, cuts, parts, width, past)) for width, past, cycles in ways
    )


def guarded(nest: Nest, scalar: float) -> Iterator[Member]:
    """Partitions of rows that cannot be lanes, around short inner loops, so that most parts can: the guards of their
    loads, such as image edges for windows, then hold. Rows one by one cost `scalar`."""
    whole = _rows(nest)
    if whole is None or nest.stored_at or not nest.lanes > 1:
        return
    rows = _in_pieces(whole, nest.lanes)
    cuts = breakpoints(rows.body, Var(rows.var), rows.length, rows.known, MOST_EDGES, edges=True)
    bounds = pairwise((0, *cuts, rows.length)) if cuts else ()
    parts = [rows.part(nest, start, end) for start, end in bounds]
    one_by_one = touched(nest.inside) * rows.length
    widths = [w for w in _widths(nest) if w <= nest.memory.target.lanes(_widest_loaded(nest))] if parts else []
    ways = [(width, rows.cycles(nest, parts, width) / one_by_one) for width in widths]
    yield from ranked(Member(scalar * c, partial(_steps, nest, rows, cuts, parts, w, False)) for w, c in ways if c < 1)


def _widest_loaded(nest: Nest) -> int:
    """Bytes of the widest loaded elements that differ from row to row, including those that are only compared."""
    own = [n.dtype.bytes for s in nest.inside for n in s.walk() if isinstance(n, Load) and nest.last.var in names(n)]
    return max(own, default=1)


def _stores(nest: Nest) -> dict[bool, float]:
    """Whether vectors may be stored past the caches, with the cost relative to the better choice."""
    every = [
        cost.vector(nest.memory.target, nest.accesses, nest.stores, sums=False, unroll=1, moved=nest.memory.moved,
                    past=past)
        for past in ((False, True) if nest.stores else (False,))
    ]  # fmt: skip
    return {past > 0: cycles / min(every) for past, cycles in enumerate(every)}


def _aligned(nest: Nest, part: _Part, width: int) -> bool:
    """Whether every vector that a part stores is aligned in memory, as stores past the caches require."""
    known, lanes = nest.ranges | {nest.last.var: (0, part.length - 1)}, part.width(width)
    places = [
        linear(access.address(n.index, nest.memory.tensors[n.buffer], known)) for n in part.body if isinstance(n, Store)
    ]
    return all(
        start % lanes == 0 and all(by % lanes == 0 for atom, by in terms.items() if atom != Var(nest.last.var))
        for terms, start in places
    )


def _widths(nest: Nest) -> tuple[int, ...]:
    return (nest.lanes, nest.lanes // 2) if nest.lanes > 2 else (nest.lanes,)


def _steps(nest: Nest, rows: _Rows, cuts: tuple[int, ...], parts: list[_Part], width: int, past: bool) -> list[Step]:
    outer = nest.groups[:-1]
    names = tuple(f"{rows.name}{n}" for n in range(len(parts)))
    steps: list[Step] = [*nest.collapsed, *(Bind(g.name, "blocks") for g in outer[:1])]
    for split in rows.before:
        steps += [split, *(() if outer else (Bind(split.into[0], "blocks"),))]
    steps.append(Partition(rows.name, cuts, names))
    for name, part in zip(names, parts, strict=True):
        if (lanes := part.width(width)) > 1:
            again = bool(nest.paths or rows.before) and part.length % lanes > 1 and overwrites_only(part.body)
            marks = [word for word, wanted in (("past", past), ("again", again)) if wanted]
            args = (("width", lanes), ("unroll", 1), *((word, 1) for word in marks))
            steps.append(Bind(name, "vector", args))
    return steps
