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


def predecessors(launches: Sequence[Launch]) -> list[int]:
    """For each launch, the earlier launches that it must follow: they touch what it changes, or change what it touches.

    >>> predecessors([Launch(frozenset("x"), frozenset("x")), Launch(frozenset("xy"), frozenset("y"))])
    [0, 1]
    """
    masks, users, writers, all_launches = [], dict[str, int](), dict[str, int](), 0
    for n, x in enumerate(launches):
        mask = all_launches if x.last else 0
        for name in x.uses:
            mask |= (users if name in x.writes else writers).get(name, 0)
            users[name] = users.get(name, 0) | 1 << n
        for name in x.writes:
            writers[name] = writers.get(name, 0) | 1 << n
        masks.append(mask)
        all_launches |= 1 << n
    return masks


def least_peak(launches: Sequence[Launch], sizes: Mapping[str, int]) -> int:
    """A lower bound of the peak bytes of buffers in `sizes` over all orders: at each launch, the buffers that it uses,
    and those used by both a predecessor and a successor."""
    earlier = predecessors(launches)
    later = [0] * len(launches)
    for n, found in enumerate(earlier):
        for k in _bit_positions(found):
            earlier[n] |= earlier[k]
    for n in reversed(range(len(launches))):
        for k in _bit_positions(earlier[n]):
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
    needs, users = predecessors(launches), _users(launches, sizes)
    buffers_of = [[(users[x], sizes[x]) for x in sorted(launch.uses) if x in sizes] for launch in launches]
    given_order = _State()
    for n in range(len(launches)):
        given_order = _next_state(given_order, n, buffers_of[n])
    states = [_State()]
    for _ in launches:
        found: dict[int, _State] = {}
        for state in states:
            for n in _ready_launches(state.done, needs):
                new = _next_state(state, n, buffers_of[n])
                known = found.get(new.done)
                if known is None or new.peak < known.peak:
                    found[new.done] = new
        states = sorted(found.values(), key=lambda s: (s.peak, s.alive))[:WIDTH]
    best = min(given_order, *states, key=lambda s: s.peak)
    return _launch_order(best)


def _users(launches: Sequence[Launch], sizes: Collection[str]) -> dict[str, int]:
    users = dict.fromkeys(sizes, 0)
    for n, launch in enumerate(launches):
        for x in launch.uses & users.keys():
            users[x] |= 1 << n
    return users


def _next_state(state: _State, n: int, buffers: Sequence[tuple[int, int]]) -> _State:
    """The state after launch n, whose buffers have these users and sizes."""
    done = state.done | 1 << n
    high = state.alive + sum(size for users, size in buffers if not users & state.done)
    alive = high - sum(size for users, size in buffers if not users & ~done)
    return _State(done, alive, max(state.peak, high), (state, n))


def _ready_launches(done: int, needs: Sequence[int]) -> Iterator[int]:
    return (n for n, found in enumerate(needs) if not done >> n & 1 and not found & ~done)


def _launch_order(state: _State) -> list[int]:
    order = []
    while state.order is not None:
        state, n = state.order
        order.append(n)
    return order[::-1]


def _bit_positions(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
