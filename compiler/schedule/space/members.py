"""Members of a space of schedules, cheapest first, made from those of its parts without making any schedule.

A space is an iterator of members in the order of their cost; where costs are equal, what was named first comes first.
The first member of a space is what a heuristic would choose, and costs no more to find than the numbers it rests on:
the steps of a member are made when they are asked for.
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
    """What steps for a kernel or a part of it cost: cycles of a core of a CPU, clocks of a multiprocessor of a GPU.

    The `price` is what they would cost on the same target with other costs, where that is known.
    """

    cost: float
    steps: Steps = field(repr=False, compare=False)
    price: Price | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Planned:
    """A legal schedule of a kernel, made when it is first asked for; the family that it is of, and its estimated cost.

    Costs are cycles of a core of a CPU, or clocks of a multiprocessor of a GPU, until the kernel is done.
    """

    family: str
    cost: float
    make: Steps = field(repr=False, compare=False)
    price: Price | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def schedule(self) -> Schedule:
        return Schedule(tuple(self.make()))


def fixed(cost: float, *steps: Step) -> Iterator[Member]:
    """The one way to do something."""
    yield Member(cost, lambda: steps)


def priced(price: Price, target: Target, steps: Steps) -> Member:
    """A member that costs what its price is on a target."""
    return Member(price(target), steps, price)


def ranked(members: Iterable[Member]) -> Iterator[Member]:
    """Members in the order of their cost."""
    yield from sorted(members, key=lambda m: m.cost)


def either(*spaces: Iterable[Member]) -> Iterator[Member]:
    """The members of all the spaces."""
    return heapq.merge(*spaces, key=lambda m: m.cost)


def both(*spaces: Iterable[Member]) -> Iterator[Member]:
    """One member of each of the spaces, in all combinations: costs add up, steps follow each other."""
    parts = [_Seen(iter(s)) for s in spaces]
    start = (0,) * len(parts)
    heap = [(_cost(parts, start), start)] if all(p.has(0) for p in parts) else []
    met = {start}
    while heap:
        cost, at = heapq.heappop(heap)
        yield Member(cost, functools.partial(_joined, [p.seen[n] for p, n in zip(parts, at, strict=True)]))
        for d, part in enumerate(parts):
            beside = (*at[:d], at[d] + 1, *at[d + 1 :])
            if beside not in met and part.has(beside[d]):
                met.add(beside)
                heapq.heappush(heap, (_cost(parts, beside), beside))


def above(least: float, members: Iterator[Member]) -> Iterator[Member]:
    """The members with costs as much higher than the cheapest one's, which costs `least`."""
    first = next(members, None)
    if first is not None:
        for m in itertools.chain((first,), members):
            yield Member(least + (m.cost - first.cost), m.steps)


def after(members: Iterable[Member], *steps: Step) -> Iterator[Member]:
    """The members with steps before their own."""
    for m in members:
        yield replace(m, steps=functools.partial(_begun, steps, m.steps))


def relative(costs: Sequence[float]) -> list[float]:
    """How many times as much as the cheapest each is."""
    least = min(costs, default=1.0)
    return [c / least for c in costs]


@dataclass
class _Seen:
    """What an iterator has yielded by now."""

    rest: Iterator[Member]
    seen: list[Member] = field(default_factory=list)

    def has(self, number: int) -> bool:
        while len(self.seen) <= number:
            member = next(self.rest, None)
            if member is None:
                return False
            self.seen.append(member)
        return True


def _cost(parts: Sequence[_Seen], at: Sequence[int]) -> float:
    return sum(p.seen[n].cost for p, n in zip(parts, at, strict=True))


def _begun(first: Sequence[Step], rest: Steps) -> list[Step]:
    return [*first, *rest()]


def _joined(members: Sequence[Member]) -> list[Step]:
    return [step for m in members for step in m.steps()]
