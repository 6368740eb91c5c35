"""Clocks of kernels of a GPU whose threads go over memory by themselves: of rows, and element by element.

Such a kernel takes as long as what takes longest: blocks come from one place, so many a clock for the whole machine;
memory gives so many bytes; the nearest cache of a multiprocessor gives so many to its threads; its four schedulers
issue what its warps do; and blocks that a multiprocessor holds together wait for memory and for each other, wave by
wave. What comes close to the longest adds its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.analysis import access
from compiler.ir.expr import Op
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor
from compiler.schedule.cost.gpu import BOUND, close
from compiler.targets.target import Target, costs

WARP = 32
MOST = 1024  # threads of a block
OFTEN = 16  # times as much as fits in the L2 is near: what is no more than that was just made, and is there
# Instructions of an operation beside one for most: what the device functions of CUDA 13 come to (f32).
_LONG = {"exp": 8, "log": 8, "erf": 20, "tanh": 15, "div": 8, "rsqrt": 4, "sqrt": 6, "sin": 20, "cos": 20, "pow": 30}


@dataclass(frozen=True)
class Threads:
    """`blocks` blocks of `threads` threads. `held` bytes are in memory and come or go once; `moved` bytes go between
    threads and the nearest cache.

    A thread waits `waits` times for memory, and `nears` times for what a cache has; `issued` is how many instructions
    it takes beside what beginning does, which it does so many `turns`; `trees` is how often threads combine what they
    have, `together` of them. A block holds `shared` bytes of shared memory.
    """

    blocks: int
    threads: int
    held: float
    moved: float
    waits: float
    issued: float
    nears: float = 0.0
    trees: int = 0
    together: int = 1
    turns: int = 1
    shared: int = 0


def clocks(w: Threads, target: Target) -> float:
    """Clocks of a kernel."""
    c = costs(target)
    warps = -(-w.threads // WARP)
    fitting = target.shared // w.shared if w.shared else target.blocks
    resident = max(1, min(target.threads // (warps * WARP), target.blocks, fitting))
    share = -(-w.blocks // target.cores)
    near = w.held <= target.l2 / OFTEN
    waited = w.waits * c["near" if near else "wait"] + w.nears * c["near"] + w.issued * c["serial"]
    # A tree in a warp; then warps exchange through shared memory.
    waited += w.trees * (c["level"] * math.log2(max(w.together, 2)) + c["across"] * (w.together - 1) / MOST)
    shared = c["barrier"] + c["tree"] * w.trees if w.trees else 0.0
    busy = close(
        (
            share * w.moved / max(w.blocks, 1) / c["nearest"],
            share * warps * (c["warp"] * w.turns + shared + w.issued / 4),
            (-(-share // resident) - 1) * waited,
        ),
        c["threads.close"],
    )
    given = w.held / (c["stream.near" if near else "stream"] * target.cores)
    return c["begin"] + waited + close((w.blocks / c["blocks"], given, busy), BOUND)


def operations(body: Iterable[Stmt]) -> int:
    """Instructions of statements beside their accesses."""
    return sum(_LONG.get(n.name, 1) for s in body for n in s.walk() if isinstance(n, Op))


def accessed(body: Iterable[Stmt], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The bytes of an element of each buffer that statements access."""
    return {b: tensors[b].dtype.bytes for b, _, _ in access.accesses(tuple(body)) if b in tensors}
