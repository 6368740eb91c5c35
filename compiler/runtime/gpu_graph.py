"""Replay a CUDA graph in place of a sequence of launches, once that pays.

A graph contains addresses, so it is replayed only for the same addresses. These are the caller's own tensors, alive and
of the right size: nothing is copied or kept alive.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.runtime.device import Driver

Addresses = tuple[int, ...]
# Allocators reuse the same few blocks, so a graph is captured the third time that a set of addresses is seen
# (MIN_SIGHTS), and up to MAX_GRAPHS graphs are kept. A capture costs as much as some runs and pays after MIN_REPLAYS
# replays. Each time a graph is evicted before, addresses must from then on be seen twice as often, up to MAX_SIGHTS
# times.
MIN_SIGHTS, MAX_GRAPHS, MAX_REMEMBERED, MIN_REPLAYS, MAX_SIGHTS = 3, 8, 256, 8, 1 << 20


class Replays:
    """The graphs of one program, by the addresses of its buffers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._graphs: dict[Addresses, tuple[int, int]] = {}  # with the number of replays, least recently used first
        self._sights: dict[Addresses, int] = {}
        self._sights_needed = MIN_SIGHTS

    def run(self, addresses: Addresses, stream: int, enqueue: Callable[[int], None]) -> None:
        """Run the launches that `enqueue` puts into a stream, directly or by a graph, whichever costs less."""
        graph, replays = self._graphs.pop(addresses, (None, 0))
        if graph is None and self._count_sight(addresses) < self._sights_needed:
            return enqueue(stream)
        if graph is None:
            graph = self._capture(enqueue)
        self._graphs[addresses] = graph, replays + 1
        return self._driver.replay(graph, stream)

    def _count_sight(self, addresses: Addresses) -> int:
        if len(self._sights) >= MAX_REMEMBERED:
            self._sights.clear()
        self._sights[addresses] = times = self._sights.get(addresses, 0) + 1
        return times

    def _capture(self, enqueue: Callable[[int], None]) -> int:
        if len(self._graphs) >= MAX_GRAPHS:
            oldest, replays = self._graphs.pop(next(iter(self._graphs)))
            self._driver.drop(oldest)
            self._sights_needed = MIN_SIGHTS if replays >= MIN_REPLAYS else min(2 * self._sights_needed, MAX_SIGHTS)
        return self._driver.capture(enqueue)

    def close(self) -> None:
        """Destroy all graphs."""
        while self._graphs:
            self._driver.drop(self._graphs.popitem()[1][0])
