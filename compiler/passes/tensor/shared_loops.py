"""The loop nest that equations of one kernel share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compiler.ir.expr import Var, loads
from compiler.ir.tensor import Axis, Equation, Order, Reduce, Scan, Scatter, expressions, reads


@dataclass(frozen=True)
class Nest:
    """How the equations of a group share loops.

    `names` maps each (equation, axis) to the name of its loop; `rows` are the loops that all of them share.
    """

    names: dict[tuple[str, str], str]
    rows: tuple[Axis, ...]


def nest(members: Sequence[Equation], stored: Iterable[str]) -> Nest | None:
    """The loop nest that holds `members`; `stored` are those written to memory. None if one nest cannot hold them."""
    stored = set(stored)
    names = _name_loops(members)
    if names is None:
        return None
    sweeps = [e for e in members if isinstance(e, Reduce | Scan)]
    if any(isinstance(e, Scatter | Order) for e in members):
        return Nest(names, members[0].axes) if len(members) == 1 else None
    rows = [_row_loops(e, names) for e in sweeps] or [
        tuple(names[e.name, a.name] for a in e.axes) for e in members if e.name in stored
    ][:1]
    if not rows or any(set(r) != set(rows[0]) for r in rows):
        return None
    shared = set(rows[0])
    for e in members:
        own = {names[e.name, a.name] for a in e.axes}
        if e.name in stored and not (own >= shared if sweeps else own == shared):
            return None
    extents = {names[e.name, a.name]: a.extent for e in members for a in e.axes}
    order = _loop_order(members, names, shared)
    return Nest(names, tuple(Axis(n, extents[n]) for n in order))


def _row_loops(e: Equation, names: dict[tuple[str, str], str]) -> tuple[str, ...]:
    along = e.along if isinstance(e, Scan) else None
    return tuple(names[e.name, a.name] for a in e.axes if a.name != along)


def _loop_order(members: Sequence[Equation], names: dict[tuple[str, str], str], shared: set[str]) -> list[str]:
    """The shared loops in the order of the largest member, which matches memory."""
    largest = max(members, key=lambda e: len(e.axes))
    loops = [names[e.name, a.name] for e in (largest, *members) for a in e.axes]
    return list(dict.fromkeys(n for n in loops if n in shared))


def _name_loops(members: Sequence[Equation]) -> dict[tuple[str, str], str] | None:
    """Name loops such that a reduction or scan is always read at its own axes; None if its readers disagree."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def find(x: tuple[str, str]) -> tuple[str, str]:
        while parent.setdefault(x, x) != x:
            x = parent[x]
        return x

    by_name: dict[str, Equation] = {}
    for e in members:
        over = e.over if isinstance(e, Reduce | Scatter | Order) else ()
        for a in (*e.axes, *over):
            find((e.name, a.name))
        for load in [n for x in expressions(e) for n in loads(x) if n.buffer in by_name]:
            producer = by_name[load.buffer]
            extents = {a.var: a.extent for a in (*e.axes, *over)}
            # A guarded load may cover only part of its producer, or exceed it: then the loops are not the same.
            plain = all(extents.get(i) is a.extent for i, a in zip(load.index, producer.axes, strict=True))  # type: ignore[call-overload]
            plain = plain and len(set(load.index)) == len(load.index)
            if not plain:
                if _depends_on_sweep(producer, by_name):
                    return None
                continue
            for a, i in zip(producer.axes, load.index, strict=True):
                assert isinstance(i, Var)
                parent[find((e.name, i.name))] = find((producer.name, a.name))
        by_name[e.name] = e
    for e in members:  # two axes of one equation must not be unified
        over = e.over if isinstance(e, Reduce | Scatter | Order) else ()
        roots = [find((e.name, a.name)) for a in (*e.axes, *over)]
        if len(set(roots)) != len(roots):
            return None
    # A class of axes is named after its root axis, unless another class has the same name.
    root_count = Counter(x[1] for x in parent if parent[x] == x)
    roots_of = {x: find(x) for x in list(parent)}
    return {x: top[1] if root_count[top[1]] == 1 else "_".join(reversed(top)) for x, top in roots_of.items()}


def _depends_on_sweep(e: Equation, by_name: dict[str, Equation]) -> bool:
    return isinstance(e, Reduce | Scan) or any(_depends_on_sweep(by_name[n], by_name) for n in reads(e) if n in by_name)
