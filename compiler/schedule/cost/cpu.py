"""Cycles of a core of a CPU: an estimate from a few numbers of a kernel and the `costs` of the target.

A core does two multiply-adds and two loads from near memory a cycle, and an accumulator is ready for its next some
cycles later. What the numbers stand for, and where they are from, is said beside the target's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from compiler.targets.target import Target


@functools.cache
def costs(target: Target) -> Mapping[str, float]:
    """The numbers of a target by name."""
    return dict(target.costs)


def vector(
    target: Target,
    accesses: int,
    stores: int,
    *,
    sums: bool,
    unroll: int,
    moved: int,
    past: bool,
    first: bool,
    ahead: bool,
) -> float:
    """Cycles of a vector of an innermost loop, of which `stores` of the accesses store, `unroll` vectors at a time.

    A sum waits for what its accumulator was before. `moved` are the bytes that the whole kernel moves, which come from
    memory where the loop is the `first` to read them and they do not fit in the second level.
    """
    c = costs(target)
    cycles = max(float(accesses), c["latency"] / unroll if sums else 0.0)
    line = c["memory"] if past else 2 * c["memory"] if goes_past(target, moved) else c["shared"]
    waits = 0.0 if ahead or not (first and moved > target.l2) else c["exposed"]
    return cycles + stores * line + waits + (c["load"] if ahead else 0.0)


def goes_past(target: Target, moved: int) -> bool:
    """Little of what a kernel stores is still in the caches when it is read: lines are read, changed and written."""
    return moved > costs(target)["past"] * target.l3


def columns(target: Target, together: int) -> float:
    """Cycles of a row of so many vectors of columns, which share lines of memory, for each of them."""
    c = costs(target)
    return c["column"] + c["column.line"] / together


def accesses(share: float, lanes: int) -> float:
    """Cycles of an access for a vector, of which such a share goes along neighbours and the rest lane by lane."""
    return share + (1 - share) * lanes
