"""Members of a space of schedules: lazily combined, cheapest first, without constructing schedules.

A space is an iterator of members by increasing cost; members of equal cost keep their order. The steps of a member are
made only when they are asked for, so that finding the first member, the heuristic's choice, costs only the estimates.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from compiler.schedule.steps import Schedule, Step
from compiler.targets.target import Target

Steps = Callable[[], Iterable[Step]]
Price = Callable[[Target], float]


@dataclass(frozen=True)
class Member:
    """Steps for a kernel or a part of it, and their cost: cycles of a CPU core, clocks of a GPU multiprocessor.

    `price`, if known, computes their cost on the same target with other cost parameters.
    """

    cost: float
    steps: Steps = field(repr=False, compare=False)
    price: Price | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Planned:
    """A legal schedule of a kernel, constructed on first use, with its family and its estimated cost.

    The cost is the time of the whole kernel in cycles of a CPU core or clocks of a GPU multiprocessor.
    """

    family: str
    cost: float
    make: Steps = field(repr=False, compare=False)
    price: Price | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def schedule(self) -> Schedule:
        return Schedule(tuple(self.make()))


def fixed(cost: float, *steps: Step) -> Iterator[Member]:
    """A space with one member."""
    yield Member(cost, lambda: steps)


def priced(price: Price, target: Target, steps: Steps) -> Member:
    """A member whose cost is `price(target)`."""
    return Member(price(target), steps, price)


def ranked(members: Iterable[Member]) -> Iterator[Member]:
    """The members sorted by cost."""
    yield from sorted(members, key=lambda m: m.cost)


def either(*spaces: Iterable[Member]) -> Iterator[Member]:
    """The members of all spaces, merged by cost."""
    return heapq.merge(*spaces, key=lambda m: m.cost)


def both(*spaces: Iterable[Member]) -> Iterator[Member]:
    """All combinations of one member per space, cheapest first: costs are added, steps concatenated."""
    parts = [_Replayed(iter(s)) for s in spaces]
    start = (0,) * len(parts)
    heap = [(_total_cost(parts, start), start)] if all(p.has(0) for p in parts) else []
    visited = {start}
    while heap:
        cost, choice = heapq.heappop(heap)
        yield Member(cost, functools.partial(_concatenate, [p.seen[n] for p, n in zip(parts, choice, strict=True)]))
        for d, part in enumerate(parts):
            neighbour = (*choice[:d], choice[d] + 1, *choice[d + 1 :])
            if neighbour not in visited and part.has(neighbour[d]):
                visited.add(neighbour)
                heapq.heappush(heap, (_total_cost(parts, neighbour), neighbour))


def above(least: float, members: Iterator[Member]) -> Iterator[Member]:
    """The members with their costs shifted so that the cheapest costs `least`."""
    first = next(members, None)
    if first is not None:
        for m in itertools.chain((first,), members):
            yield Member(least + (m.cost - first.cost), m.steps)


def after(members: Iterable[Member], *steps: Step) -> Iterator[Member]:
    """The members with `steps` before their own."""
    for m in members:
        yield replace(m, steps=functools.partial(_prepend, steps, m.steps))


def relative(costs: Sequence[float]) -> list[float]:
    """Each cost divided by the least one."""
    least = min(costs, default=1.0)
    return [c / least for c in costs]


@dataclass
class _Replayed:
    """An iterator with memory of what it has yielded."""

    rest: Iterator[Member]
    seen: list[Member] = field(default_factory=list)

    def has(self, number: int) -> bool:
        while len(self.seen) <= number:
            member = next(self.rest, None)
            if member is None:
                return False
            self.seen.append(member)
        return True


def _total_cost(parts: Sequence[_Replayed], at: Sequence[int]) -> float:
    return sum(p.seen[n].cost for p, n in zip(parts, at, strict=True))


def _prepend(first: Sequence[Step], rest: Steps) -> list[Step]:
    return [*first, *rest()]


def _concatenate(members: Sequence[Member]) -> list[Step]:
    return [step for m in members for step in m.steps()]
