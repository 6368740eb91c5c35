"""Compute the elements of a map where they are read, if readers need few of them (Tensor IR to Tensor IR).

The loss of a row of scores reads one element of its log_softmax: computed at the reader from the scores and the row's
reductions, it needs no tensor of all elements. It pays if no other reader needs the map or it costs almost nothing, and
if its sources are in memory anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from compiler.ir.expr import Load, is_short
from compiler.ir.node import Node
from compiler.ir.tensor import Axis, Equation, Map, Order, Program, Reduce, Scan, bound, equations, expressions, reads
from compiler.passes.tensor.compose import inline, readers_of, remove_dead
from compiler.passes.tensor.contractions import count
from compiler.passes.tensor.costs import WORTH_KEEPING, cost

MOST_READ_SHARE = 0.5  # share of a map's elements
MOST_SOURCES = 100  # tensors that a map depends on, directly or not; with more, the value is too long to be repeated


@dataclass(frozen=True)
class _Context:
    """The current equations, their readers, and the outputs, which must be kept."""

    made: dict[str, Equation]
    readers: dict[str, set[str]]
    results: frozenset[str]


def sink(program: Program) -> Program:
    """Inline maps into equations that read few of their elements."""
    by_name = {e.name: e for e in equations(program)}
    readers = readers_of(by_name.values())
    known = _Context(by_name, readers, frozenset(t.name for t in program.outputs))
    lengths: dict[Node, int] = {}
    for name in reversed(tuple(by_name)):
        while producers := {
            n: p for n in reads(by_name[name]) if (p := _sinkable(n, by_name[name], known)) is not None
        }:
            before, made = by_name[name], inline(by_name[name], producers)
            if not is_short(expressions(made), lengths):
                break
            by_name[name] = made
            for n in reads(before):
                readers[n].discard(name)
            for n in reads(by_name[name]):
                readers.setdefault(n, set()).add(name)
    groups = tuple(g.replace(equations=tuple(by_name[e.name] for e in g.equations)) for g in program.groups)
    return remove_dead(program.replace(groups=groups))


def _sinkable(name: str, reader: Equation, known: _Context) -> Map | None:
    """The map of this name if it should be computed in the reader, else None."""
    p = known.made.get(name)
    if not isinstance(p, Map) or name in known.results or not _reads_few_elements(reader, p):
        return None
    others = (known.made[n] for n in known.readers[name])
    if cost(p.value) >= WORTH_KEEPING and not all(_reads_few_elements(r, p) for r in others):
        return None
    kept: dict[tuple[str, str], bool] = {}
    return p if all(_is_kept(n, p, reader, known, kept) for n in reads(p)) else None


def _reads_few_elements(reader: Equation, p: Map) -> bool:
    """Whether the reader is a map or a reduction that loads at most half of the elements of `p`."""
    if not isinstance(reader, Map | Reduce):
        return False
    times = sum(isinstance(n, Load) and n.buffer == p.name for x in expressions(reader) for n in set(x.walk()))
    return times * _points_ratio(bound(reader), p.axes) <= MOST_READ_SHARE


def _points_ratio(axes: Sequence[Axis], whole: Sequence[Axis]) -> float:
    """The number of points of `axes` per point of `whole`; infinite if unknown sizes decide it or `whole` is empty."""
    points, elements = [a.extent for a in axes], [a.extent for a in whole]
    for extent in tuple(points):
        if extent in elements:
            points.remove(extent)
            elements.remove(extent)
    whole_count = count(elements)
    return count(points) / whole_count if 0 < whole_count < math.inf else math.inf


def _is_kept(name: str, p: Map, reader: Equation, known: _Context, kept: dict[tuple[str, str], bool]) -> bool:
    """Whether a tensor that `p` reads is in memory anyway, is far smaller than `p`, or can be sunk with it.

    `kept` has the answers so far, by the tensor's name and that of `p`: many paths lead to a tensor that is read often.
    """
    if (answer := kept.get((name, p.name))) is not None:
        return answer
    if len(kept) >= MOST_SOURCES:
        return False
    kept[name, p.name] = False  # counts as one source from here on
    e = known.made.get(name)
    if e is None or name in known.results or _points_ratio(e.axes, p.axes) <= MOST_READ_SHARE:
        answer = True
    elif isinstance(e, Map):
        answer = cost(e.value) < WORTH_KEEPING and all(_is_kept(n, e, reader, known, kept) for n in reads(e))
    else:
        answer = any(isinstance(known.made[n], Reduce | Scan | Order) for n in known.readers[name] if n != reader.name)
    kept[name, p.name] = answer
    return answer
