"""Kernels that read along one axis and write along another, on a GPU: through tiles in shared memory.

Both sides then move whole vectors. Rows of a tile are an odd number of elements apart, so that threads that go down a
column use different banks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

from compiler.analysis import access
from compiler.analysis.nests import iterations, loop_ranges, size
from compiler.ir import loop
from compiler.ir.expr import Load, Var
from compiler.ir.statement import Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.name_suffixes import numbered
from compiler.schedule.space.gpu.plan import THREADS, lanes
from compiler.schedule.space.members import Member
from compiler.schedule.steps import Bind, Collapse, Reorder, Split, Stage, Step

WIDEST = 16  # bytes per instruction
LEAST = 16  # a shorter side of a tile is less than a cache line
MOST = 64
CHOICES = 4  # sides to try along an axis
BANK = 4  # bytes of a bank of shared memory
SHARED = 48 * 1024  # bytes that every block may use


def space(rows: list[loop.For], inside: tuple[Stmt, ...], tensors: Mapping[str, Tensor]) -> Iterator[Member]:
    """Tilings for perfectly nested `rows` around statements without loops; none if they would not help.

    If the largest tiles do not fit, there are none.
    """
    if len(rows) < 2 or any(within(inside, loop.For)):
        return
    transposed = _transposed_loads(rows, inside, tensors)
    if transposed is None:
        return
    read_loop, buffers = transposed
    sizes = [tensors[b].dtype.bytes for b in buffers]
    store_bytes = max(tensors[s.buffer].dtype.bytes for s in inside if isinstance(s, Store))
    widest, elements = max(1, WIDEST // min(*sizes, store_bytes)), float(iterations(*rows))
    sides = [_sides(f, widest) for f in (read_loop, rows[-1])]
    if not all(sides) or sum((sides[0][0] + 1) * (sides[1][0] + 1) * size for size in sizes) > SHARED:
        return
    for first in sides[0][:CHOICES]:
        for second in sides[1][:CHOICES]:
            if sum((first + 1) * (second + 1) * size for size in sizes) <= SHARED:
                clocks = elements * sum(
                    cost.tile_access_clocks(side, math.gcd(side, widest)) for side in (first, second)
                )
                yield Member(clocks, partial(_steps, rows, inside, tensors, read_loop, buffers, (first, second)))


def untiled(rows: list[loop.For]) -> float:
    """Clocks of the kernel without tiles: a cache line per element that is accessed across."""
    return 2 * iterations(*rows) * cost.tile_access_clocks(1, 1)


def _steps(
    rows: list[loop.For],
    inside: tuple[Stmt, ...],
    tensors: Mapping[str, Tensor],
    read_loop: loop.For,
    buffers: list[str],
    sides: tuple[int, int],
) -> list[Step]:
    (first, second), written = sides, rows[-1]
    sizes = [tensors[b].dtype.bytes for b in buffers]
    store_bytes = max(tensors[s.buffer].dtype.bytes for s in inside if isinstance(s, Store))
    i, j = read_loop.var, written.var
    others = [f.var for f in rows if f not in (read_loop, written)]
    rows_of, columns_of = naming.pieces(i), naming.pieces(j)
    steps: list[Step] = [Split(i, first, rows_of), Split(j, second, columns_of)]
    outer, last = [*others, rows_of[0], columns_of[0]], (rows_of[1], columns_of[1])
    steps.append(Reorder((*outer, *last)))
    for b, bytes_ in zip(buffers, sizes, strict=True):
        steps.append(Stage(b, f"{b}_tile", outer[-1], "shared", numbered(f"{b}_tile_at", 2), max(1, BANK // bytes_)))
    steps += [Bind(name, "blocks") for name in naming.grid(outer, steps)]
    for b, bytes_ in zip(buffers, sizes, strict=True):
        row, column = numbered(f"{b}_tile_at", 2)
        vector = math.gcd(first, WIDEST // bytes_)
        steps += [Collapse(row, column, row + column), Bind(row + column, "lanes", lanes(THREADS, vector))]
    each = "".join(last)
    return [*steps, Collapse(*last, each), Bind(each, "lanes", lanes(THREADS, math.gcd(second, WIDEST // store_bytes)))]


def _sides(f: loop.For, vector: int) -> list[int]:
    """Sides that divide the loop's extent: multiples of `vector` first, then longest first."""
    divisors = [n for n in range(LEAST, MOST + 1) if size(f) % n == 0]
    return sorted(divisors, key=lambda n: (n % vector != 0, -n))


def _transposed_loads(
    rows: list[loop.For], inside: tuple[Stmt, ...], tensors: Mapping[str, Tensor]
) -> tuple[loop.For, list[str]] | None:
    """The loop along which some loads, but not the stores, are contiguous, and the buffers of these loads."""
    ranges = loop_ranges(rows)
    last = Var(rows[-1].var)
    stores = [s for s in inside if isinstance(s, Store)]
    if not stores or any(s.op != "set" for s in stores):
        return None
    if any(access.stride(access.address(s.index, tensors[s.buffer], ranges), last) != 1 for s in stores):
        return None
    uses: dict[str, set[tuple[object, ...]]] = {}
    for s in inside:
        for n in s.walk():
            if isinstance(n, Load):
                uses.setdefault(n.buffer, set()).add(n.index)
    found: dict[str, list[str]] = {}
    for b, indices in uses.items():
        index = next(iter(indices))
        place = access.address(index, tensors[b], ranges)  # type: ignore[arg-type]
        if access.stride(place, last) in (0, 1):
            continue
        along = [f for f in rows[:-1] if access.stride(place, Var(f.var)) == 1]
        if len(indices) == 1 and along and _in_order(index, Var(along[0].var), last):
            found.setdefault(along[0].var, []).append(b)
    if not found:
        return None
    name, buffers = max(found.items(), key=lambda x: len(x[1]))
    return next(f for f in rows if f.var == name), buffers


def _in_order(index: tuple[object, ...], inner: Var, outer: Var) -> bool:
    """Whether both variables index an axis of their own, the contiguous one later."""
    return inner in index and outer in index and index.index(outer) < index.index(inner)
