"""Elementwise CPU rows with an operand that is contiguous across the stored rows: a transposed tensor.

Square tiles are transposed by shuffles between vectors. Loads and stores are whole vectors, and every cache line is
used completely while it is in the first level.
"""

from __future__ import annotations

from collections.abc import Iterator

from compiler.analysis import access
from compiler.analysis.vectors import fitting_width
from compiler.ir import loop
from compiler.ir.expr import Const, Load, Var, dim
from compiler.ir.ranges import Range
from compiler.ir.statement import Let, Store
from compiler.ir.tensor import flattened
from compiler.schedule import names as naming
from compiler.schedule.cost import cpu as cost
from compiler.schedule.space.cpu.nests import Group, Nest, touched
from compiler.schedule.space.members import Member
from compiler.schedule.steps import Bind, Flatten, Reorder, SplitShifted, Stage, Step

SQUARE = 16  # elements of a side at most, as in `mlc_square` of render/cpp/copy.h


def space(nest: Nest, least: float, before: float) -> Iterator[Member]:
    """The schedule by squares, if it applies; rows as they are cost `least`, which is `before` cycles per vector."""
    *others, row = nest.groups
    elementwise = all(isinstance(s, Let | Store) and (isinstance(s, Let) or s.op == "set") for s in nest.inside)
    if not others or not elementwise or nest.stored_at or not nest.rows_as_lanes:
        return
    across = [g for g in others if _loads(nest, g)]
    if len(across) != 1 or not all(isinstance(g.extent, Const) for g in nest.groups):
        return
    loads = _loads(nest, across[0])
    side = min(SQUARE, *(nest.memory.target.lanes(x.dtype.bytes) for x in loads))
    if min(int(g.extent.value) for g in (across[0], row) if isinstance(g.extent, Const)) < side:
        return
    flat = _flattened(nest, loads, (across[0], row))
    lanes = fitting_width(min(side, nest.lanes), dim(side))
    if flat is None or lanes == 1:
        return
    turned = cost.packing(nest.memory.target, along=False, direct=True) * len({x.buffer for x in loads})
    cycles = touched(nest.inside) / lanes + turned
    yield Member(least * cycles / before, lambda: _steps(nest, across[0], loads, flat, side, lanes))


def _loads(nest: Nest, group: Group) -> list[Load]:
    """Loads that are contiguous along the rows of this group, but not along the innermost."""
    known = nest.known(())
    found = dict.fromkeys(n for s in nest.inside for n in s.walk() if isinstance(n, Load))
    return [
        n
        for n in found
        if not access.picked(n)
        and n.dtype.kind != "bool"
        and _stride(nest, n, group, known) == 1
        and _stride(nest, n, nest.groups[-1], known) not in (0, 1, None)
    ]


def _stride(nest: Nest, load: Load, group: Group, known: dict[str, Range]) -> int | None:
    place = access.address(load.index, nest.memory.tensors[load.buffer], known)
    return access.stride(place, Var(group.loops[-1].var))


def _flattened(nest: Nest, loads: list[Load], groups: tuple[Group, ...]) -> dict[str, list[Flatten]] | None:
    """For each buffer, the steps that flatten the axes of collapsed rows; None if that is impossible."""
    out: dict[str, list[Flatten]] = {}
    for x in loads:
        if x.buffer in out:
            return None
        out[x.buffer] = []
        for g in groups:
            found = axis(nest, x, g.loops)
            if found is None:
                return None
            if len(g.loops) > 1:
                out[x.buffer].append(Flatten(x.buffer, found, len(g.loops)))
        out[x.buffer].sort(key=lambda s: -s.axis)
    return out


def axis(nest: Nest, load: Load, loops: tuple[loop.For, ...]) -> int | None:
    """The axis from which on the load's indices are exactly `loops`, on axes contiguous together; else None."""
    places = tuple(Var(f.var) for f in loops)
    at = next((d for d in range(len(load.index)) if load.index[d : d + len(places)] == places), None)
    if at is None or any(
        p in set(i.walk()) for p in places for i in (*load.index[:at], *load.index[at + len(places) :])
    ):
        return None
    together = len(places) == 1 or flattened(nest.memory.tensors[load.buffer], at, len(places)) is not None
    return at if together else None


def _steps(
    nest: Nest, across: Group, loads: list[Load], flat: dict[str, list[Flatten]], side: int, lanes: int
) -> Iterator[Step]:
    yield from nest.collapsed
    for steps in flat.values():
        yield from steps
    row = nest.groups[-1]
    (pieces, inner), (columns, column) = naming.pieces(across.name), naming.pieces(row.name)
    yield SplitShifted(across.name, side, (pieces, inner))
    yield SplitShifted(row.name, side, (columns, column))
    outer = [pieces if g is across else g.name for g in nest.groups[:-1]]
    yield Reorder((*outer, columns, inner, column))
    for x in loads:
        yield Stage(x.buffer, f"{x.buffer}_square", columns, "local", how="plain", turned=1)
    yield Bind(outer[0], "blocks")
    yield Bind(column, "vector", (("width", lanes), ("unroll", 1)))
