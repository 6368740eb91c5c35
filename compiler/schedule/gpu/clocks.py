"""How long blocks take that go through a pipeline of tiles each: the work of one of them and a target in; clocks out.

In each step of its pipeline a block multiplies a tile, and the multiprocessor brings the next ones to all the blocks
that it holds. Whichever takes longest decides, and what comes close to it adds its share. Blocks run in waves, the last
of which may be far from full. What a target's `costs` stand for is said there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compiler.targets.target import Target

CLOSE = 3.1  # exponent with which what takes nearly as long as the longest adds to it
BOUND = 6.0  # the same for the whole of a kernel and the traffic with memory that it cannot do without
FEWEST_COLUMNS = 32  # that products of a matrix in registers take the time of


@dataclass(frozen=True)
class Step:
    """A step of a block: products of m x n x k by `groups` of four warps, `terms` of them for each, at `rate`
    multiply-adds a clock; `brought` bytes come, in one of `depth` stages. Of numbers that are made two, warps of the
    producer make those of `prepared` columns."""

    m: int
    n: int
    k: int
    groups: int
    terms: int
    rate: float
    brought: int
    depth: int
    prepared: int = 0


@dataclass(frozen=True)
class Work:
    """`blocks` blocks of `steps` steps, of which a multiprocessor holds `resident`, and at least `read` bytes to read.

    `parts` of them make one tile of `tile` bytes together, in a cluster or not; of tiles that are not `whole`, elements
    are added up one by one. Blocks that `stay` make one tile after another. It takes `change` clocks more than usual
    to begin with others.
    """

    blocks: int
    steps: int
    resident: int
    read: int
    tile: int
    parts: int = 1
    cluster: bool = False
    whole: bool = True
    stay: bool = False
    change: float = 0.0


def step(s: Step, resident: int, costs: Mapping[str, float]) -> float:
    """Clocks of a step of `resident` blocks of one multiprocessor, by warps of their own and wgmma."""
    split = s.terms > 1
    columns = max(s.n, FEWEST_COLUMNS) if split else s.n
    products = s.m * columns * s.k * s.terms / (s.rate * costs["reached.split" if split else "reached"])
    alone = products / s.groups + costs["beside.split" if split else "beside"]
    prepared = costs["prepare"] + costs["prepare.column"] * s.prepared if s.prepared else 0.0
    brought = resident * s.brought / costs["l2"]
    waited = costs["latency"] / max(s.depth - 1, 1)
    return _close((resident * products, alone, prepared, brought, waited), CLOSE)


def total(w: Work, step_of: Callable[[int], float], target: Target) -> float:
    """Clocks of a kernel whose multiprocessors take `step_of(n)` for a step of n blocks each."""
    costs = dict(target.costs)
    slots = target.cores * w.resident
    if w.cluster:
        together = dict(target.clusters).get(w.parts, target.cores // w.parts)
        slots = together * w.parts * w.resident
    full, rest = divmod(w.blocks, slots)

    def wave(resident: int) -> float:
        made = w.steps * step_of(resident) + (0.0 if w.stay else costs["fill"] + w.change)
        added = resident * w.tile * (1.0 if w.whole else costs["ragged"])
        if w.cluster:
            made += costs["cluster"] + costs["cluster.byte"] * added
        elif w.parts > 1:
            made += costs["store.byte"] * resident * w.tile
        return made

    out = costs["start"] + full * wave(w.resident) + (wave(-(-rest // target.cores)) if rest else 0.0)
    if w.parts > 1 and not w.cluster:
        out += costs["ticket"] + costs["sum.byte"] * w.parts * w.tile * (1.0 if w.whole else costs["ragged"])
    return _close((out, w.read / (costs["dram"] * target.cores)), BOUND)


def _close(clocks: tuple[float, ...], exponent: float) -> float:
    longest = max(clocks)
    return longest * math.pow(sum(math.pow(c / longest, exponent) for c in clocks), 1 / exponent)
