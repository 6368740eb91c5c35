"""Order of kernel launches: dependences, an order with little memory alive at once, and a lower bound for all orders.

Sets of launches are bits of an integer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

WIDTH = 32  # beam width of the search


@dataclass(frozen=True)
class Launch:
    """The buffers that a launch uses, and those that it changes; a launch that is `last` depends on all before it."""

    uses: frozenset[str]
    writes: frozenset[str]
    last: bool = False


@dataclass(frozen=True)
class _State:
    """A partial order: launches done, bytes alive, peak bytes, and the previous state with the launch taken from it."""

    done: int = 0
    alive: int = 0
    peak: int = 0
    order: tuple[_State, int] | None = field(default=None, compare=False)


def before(launches: Sequence[Launch]) -> list[int]:
    """For each launch, the earlier launches that it must follow: they touch what it changes, or change what it touches.

    >>> before([Launch(frozenset("x"), frozenset("x")), Launch(frozenset("xy"), frozenset("y"))])
    [0, 1]
    """
    made, users, writers, every = [], dict[str, int](), dict[str, int](), 0
    for n, x in enumerate(launches):
        found = every if x.last else 0
        for name in x.uses:
            found |= (users if name in x.writes else writers).get(name, 0)
            users[name] = users.get(name, 0) | 1 << n
        for name in x.writes:
            writers[name] = writers.get(name, 0) | 1 << n
        made.append(found)
        every |= 1 << n
    return made


def least(launches: Sequence[Launch], sizes: Mapping[str, int]) -> int:
    """A lower bound of the peak bytes of buffers in `sizes` over all orders: at each launch, the buffers that it uses,
    and those used by both a predecessor and a successor."""
    earlier = before(launches)
    later = [0] * len(launches)
    for n, found in enumerate(earlier):
        for k in _bits(found):
            earlier[n] |= earlier[k]
    for n in reversed(range(len(launches))):
        for k in _bits(earlier[n]):
            later[k] |= 1 << n | later[n]
    users = _users(launches, sizes)
    return max(
        (
            sum(sizes[x] for x, u in users.items() if u >> n & 1 or (u & earlier[n] and u & later[n]))
            for n in range(len(launches))
        ),
        default=0,
    )


def ordered(launches: Sequence[Launch], sizes: Mapping[str, int]) -> list[int]:
    """Launches in an order with few bytes alive at once, by beam search of width `WIDTH`, or in the given order."""
    needs, users = before(launches), _users(launches, sizes)
    mine = [[(users[x], sizes[x]) for x in sorted(launch.uses) if x in sizes] for launch in launches]
    as_they_are = _State()
    for n in range(len(launches)):
        as_they_are = _after(as_they_are, n, mine[n])
    states = [_State()]
    for _ in launches:
        found: dict[int, _State] = {}
        for state in states:
            for n in _ready(state.done, needs):
                new = _after(state, n, mine[n])
                known = found.get(new.done)
                if known is None or new.peak < known.peak:
                    found[new.done] = new
        states = sorted(found.values(), key=lambda s: (s.peak, s.alive))[:WIDTH]
    best = min(as_they_are, *states, key=lambda s: s.peak)
    return _way(best)


def _users(launches: Sequence[Launch], sizes: Collection[str]) -> dict[str, int]:
    made = dict.fromkeys(sizes, 0)
    for n, launch in enumerate(launches):
        for x in launch.uses & made.keys():
            made[x] |= 1 << n
    return made


def _after(state: _State, n: int, buffers: Sequence[tuple[int, int]]) -> _State:
    """The state after launch n, whose buffers have these users and sizes."""
    done = state.done | 1 << n
    high = state.alive + sum(size for users, size in buffers if not users & state.done)
    alive = high - sum(size for users, size in buffers if not users & ~done)
    return _State(done, alive, max(state.peak, high), (state, n))


def _ready(done: int, needs: Sequence[int]) -> Iterator[int]:
    return (n for n, found in enumerate(needs) if not done >> n & 1 and not found & ~done)


def _way(state: _State) -> list[int]:
    made = []
    while state.order is not None:
        state, n = state.order
        made.append(n)
    return made[::-1]


def _bits(found: int) -> Iterator[int]:
    while found:
        low = found & -found
        yield low.bit_length() - 1
        found ^= low
