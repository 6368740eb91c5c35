"""A sequence of launches and the addresses that they work on in; one graph replayed in their place, once it pays, out.

A graph holds addresses. It is replayed only for the same ones, which are then the caller's own tensors, alive and of
the right size, so nothing has to be copied or kept.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.runtime.device import Driver

Addresses = tuple[int, ...]
# Allocators hand the same few blocks out again and again: at the third sight of a set of addresses a graph is captured,
# which costs about as much as a hundred launches, and so many are kept.
SIGHTS, KEPT, REMEMBERED = 3, 8, 256


class Replays:
    """Graphs of one program by the addresses of its buffers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._graphs: dict[Addresses, int] = {}  # least recently used first
        self._sights: dict[Addresses, int] = {}

    def run(self, addresses: Addresses, stream: int, enqueue: Callable[[int], None]) -> None:
        """The launches that `enqueue` puts into a stream, by whichever way costs less."""
        graph = self._graphs.pop(addresses, None)
        if graph is None and self._seen(addresses) < SIGHTS:
            return enqueue(stream)
        if graph is None:
            graph = self._captured(enqueue)
        self._graphs[addresses] = graph
        return self._driver.replay(graph, stream)

    def _seen(self, addresses: Addresses) -> int:
        if len(self._sights) >= REMEMBERED:
            self._sights.clear()
        self._sights[addresses] = times = self._sights.get(addresses, 0) + 1
        return times

    def _captured(self, enqueue: Callable[[int], None]) -> int:
        if len(self._graphs) >= KEPT:
            self._driver.drop(self._graphs.pop(next(iter(self._graphs))))
        return self._driver.capture(enqueue)

    def close(self) -> None:
        """Give all graphs back."""
        while self._graphs:
            self._driver.drop(self._graphs.popitem()[1])
