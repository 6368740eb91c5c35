"""The shape of a loop nest: its rows, the loops inside them, and their order in memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compiler.analysis import access
from compiler.ir import loop, tile
from compiler.ir.expr import Const, Expr, Load, Op, Var, static, substitute
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import Ranges, extent_range

F = TypeVar("F", loop.For, tile.For)
Body = tuple[Stmt, ...]


@dataclass(frozen=True)
class Row:
    """Row loops that collapse into one: its name, its extent, and the innermost original loop."""

    name: str
    extent: int
    last: loop.For


def perfect(of: type[F], body: Body, kinds: Collection[str] = ("parallel",)) -> tuple[list[F], Body]:
    """The perfectly nested loops of these kinds, outermost first, and the body of the last."""
    loops: list[F] = []
    while len(body) == 1 and isinstance(f := body[0], of) and f.kind in kinds:
        loops.append(f)
        body = f.body
    return loops, body


def store_after_lets(body: Body) -> Store | None:
    """The store after lets, with these inlined; None for other bodies."""
    if not body or not all(isinstance(s, Let) for s in body[:-1]) or not isinstance(body[-1], Store):
        return None
    table: dict[Expr, Expr] = {}
    for s in body[:-1]:
        assert isinstance(s, Let)
        table[Var(s.name, s.value.dtype)] = substitute(s.value, table)
    return body[-1].replace(value=substitute(body[-1].value, table))


def rows_of(f: loop.For) -> tuple[list[loop.For], Body]:
    """The perfectly nested parallel loops from `f` inwards, and the body of the last."""
    return perfect(loop.For, (f,))


def loop_ranges(loops: Iterable[loop.For | tile.For]) -> dict[str, Range]:
    """The range of each loop's variable."""
    return {f.var: extent_range(f.extent) for f in loops}


def size(f: loop.For) -> int:
    """The extent of a loop with a known extent."""
    return static(f.extent)


def iterations(*loops: loop.For) -> int:
    """How often the innermost of nested loops runs; loops of unknown extent count as one iteration."""
    return math.prod(int(f.extent.value) for f in loops if isinstance(f.extent, Const))


def wrap(nest: Sequence[loop.For] | Sequence[tile.For], body: Body) -> Body:
    """`body` inside copies of these loops."""
    for f in reversed(nest):
        body = (f.replace(body=body),)
    return body


def bound(kernel: Kernel) -> set[str]:
    """The names that a kernel of Loop IR binds: loops, values and scalars."""
    named = (s for s in within(kernel.body) if isinstance(s, loop.For | Let | Init))
    return {s.var if isinstance(s, loop.For) else s.name for s in named}


def has_checks(kernel: Kernel) -> bool:
    """Whether a kernel checks data, and so may stop the program."""
    return any(isinstance(n, Op) and n.name == "require" for s in kernel.body for n in s.walk())


def accumulated(body: Body) -> dict[str, str]:
    """Scalars from outside that the statements accumulate into, with their reductions."""
    found = [n for s in body for n in s.walk()]
    inside = {n.name for n in found if isinstance(n, Init)}
    return {n.name: n.op for n in found if isinstance(n, Accum) and n.name not in inside}


def totalled(body: Body) -> Body:
    """The statements of a scan up to its accumulation, if it computes a running total and stores results of it."""
    at = next((n for n, s in enumerate(body) if isinstance(s, Accum)), len(body))
    plain = all(isinstance(s, Let) for s in body[:at]) and all(isinstance(s, Let | Store) for s in body[at + 1 :])
    return body[: at + 1] if plain and at < len(body) else ()


def overwrites_only(body: Body) -> bool:
    """Whether the statements neither read nor accumulate into what they store."""
    found = [n for s in body for n in s.walk()]
    loaded = {n.buffer for n in found if isinstance(n, Load)}
    return all(n.op == "set" and n.buffer not in loaded for n in found if isinstance(n, Store))


def paths_of(body: tuple[Stmt, ...]) -> list[list[loop.For]]:
    """For every innermost loop, the loops from `body` to it."""
    out: list[list[loop.For]] = []
    for s in body:
        if isinstance(s, loop.For):
            out += [[s, *path] for path in paths_of(s.body)] or [[s]]
    return out


def contiguous(strides: list[int | None]) -> float:
    """The share of accesses with stride 1, of those whose stride is not 0."""
    moving = [s for s in strides if s != 0]
    return sum(s == 1 for s in moving) / len(moving) if moving else 0.0


def sides(body: tuple[Stmt, ...], row: Var, tensors: Mapping[str, Tensor], ranges: Ranges) -> tuple[float, float]:
    """The shares of a row's elements that are contiguous from row to row, and along the loops around them.

    An element counts once, however often it is read. Elements with stride 0 in the direction in question do not count.
    """
    touched = list(_element_strides(body, (), tensors, ranges, row))
    across = [(n, at) for n, at, _ in touched if at != 0]
    along = [(n, at) for n, _, at in touched if at != 0]
    return _contiguous_share(across), _contiguous_share(along)


def _contiguous_share(moving: list[tuple[int, int | None]]) -> float:
    total = sum(n for n, _ in moving)
    return sum(n for n, at in moving if at == 1) / total if total else 0.0


def _element_strides(
    body: tuple[Stmt, ...], around: tuple[loop.For, ...], tensors: Mapping[str, Tensor], ranges: Ranges, row: Var
) -> Iterator[tuple[int, int | None, int | None]]:
    """For each access: elements touched, stride from row to row, and stride along its innermost loop."""
    for s in body:
        if isinstance(s, loop.For):
            yield from _element_strides(s.body, (*around, s), tensors, ranges, row)
        elif isinstance(s, If):
            yield from _element_strides(s.body, around, tensors, ranges, row)
        else:
            for buffer, index, _ in access.accesses((s,)):
                if buffer in tensors:
                    place = access.address(index, tensors[buffer], ranges)
                    moves = [access.stride(place, Var(f.var)) for f in around]
                    count = iterations(*(f for f, at in zip(around, moves, strict=True) if at != 0))
                    yield count, access.stride(place, row), moves[-1] if moves else 0


def used_as_value(body: tuple[Stmt, ...], loops: set[Var]) -> bool:
    """Whether a loop variable occurs outside the index of a load or store."""

    def visible(n: object) -> bool:
        match n:
            case Load():
                return False
            case Store(_, _, value, _):
                return visible(value)
            case Var():
                return n in loops
        return any(visible(c) for c in n.children())  # type: ignore[attr-defined]

    return any(map(visible, body))


def as_stored(
    rows: list[loop.For], inside: Body, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> list[loop.For]:
    """The rows in memory order of the first store, if it is contiguous along a row that is not innermost."""
    for s in inside:
        if isinstance(s, Store):
            place = access.address(s.index, tensors[s.buffer], ranges)
            steps = {r.var: access.stride(place, Var(r.var)) for r in rows}
            known = [abs(n) for n in steps.values() if n is not None]
            if len(known) < len(rows) or 1 not in known or known[-1] == 1:
                return rows
            return sorted(rows, key=lambda r: -abs(steps[r.var] or 0))
    return rows


def in_memory_order(
    loops: list[loop.For], body: Body, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> list[loop.For]:
    """Perfectly nested loops of one kind, other than scans, in the memory order of what their body stores; in the order
    of its loads if it stores nothing or has loops, and more accesses are contiguous then."""
    if len(loops) < 2 or not all(isinstance(f.extent, Const) for f in loops):
        return loops
    inner = [n for s in body for n in s.walk() if isinstance(n, loop.For)]
    if not inner and any(isinstance(s, Store) for s in body):
        return as_stored(loops, body, tensors, ranges)
    known = {**ranges, **loop_ranges(inner)}
    shares = {f.var: sides(body, Var(f.var), tensors, known) for f in loops[::-1]}
    nearest = max(shares, key=lambda var: shares[var][0])
    across, along = shares[loops[-1].var]
    if shares[nearest][0] <= across or shares[nearest][0] < along:
        return loops
    for buffer, index, _ in access.accesses(body):
        place = access.address(index, tensors[buffer], known) if buffer in tensors else None
        steps = {f.var: access.stride(place, Var(f.var)) or 0 for f in loops} if place else {}
        if steps.get(nearest) == 1 and all(steps.values()):
            return sorted(loops, key=lambda f: -abs(steps[f.var]))
    return sorted(loops, key=lambda f: f.var == nearest)


def even(
    outer: loop.For, inner: loop.For, inside: tuple[Stmt, ...], tensors: dict[str, Tensor], ranges: dict[str, Range]
) -> bool:
    """Whether every address has one constant stride through both loops, so that they can be collapsed."""
    if not isinstance(inner.extent, Const):
        return False
    i, j, n = Var(outer.var), Var(inner.var), int(inner.extent.value)
    inner_stride = access.strides(inside, j, tensors, ranges)
    outer_stride = access.strides(inside, i, tensors, ranges)
    if any(a is None or b is None or b != a * n for a, b in zip(inner_stride, outer_stride, strict=True)):
        return False
    return not used_as_value(inside, {i, j})
