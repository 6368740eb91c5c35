"""Estimated clocks of GPU kernels without matmuls: row-wise and pointwise.

The slowest of several resources decides: block launch rate of the whole machine, memory bandwidth, bandwidth of the
nearest cache (L1), instruction issue of four schedulers, and the latency that resident blocks wait in each wave, for
memory and barriers. Resources close to the slowest add a share (`close`).
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
MOST = 1024  # threads per block at most
OFTEN = 16  # data up to 1/16 of the L2 counts as near: it was probably just written and is still cached
# Instructions per operation, where more than one: counted for the device functions of CUDA 13 (f32).
_LONG = {"exp": 8, "log": 8, "erf": 20, "tanh": 15, "div": 8, "rsqrt": 4, "sqrt": 6, "sin": 20, "cos": 20, "pow": 30}


@dataclass(frozen=True)
class Threads:
    """A kernel of `blocks` blocks of `threads` threads.

    `held` bytes are read from or written to memory once; `moved` bytes pass between threads and the nearest cache. A
    thread waits `waits` times for memory and `nears` times for a cache, and issues `issued` instructions besides the
    fixed cost of each of its `turns`. Threads combine values in `trees` reductions, `together` threads in each. A block
    uses `shared` bytes of shared memory.
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
    """Estimated clocks of a kernel."""
    c = costs(target)
    warps = -(-w.threads // WARP)
    fitting = target.shared // w.shared if w.shared else target.blocks
    resident = max(1, min(target.threads // (warps * WARP), target.blocks, fitting))
    share = -(-w.blocks // target.cores)
    near = w.held <= target.l2 / OFTEN
    waited = w.waits * c["near" if near else "wait"] + w.nears * c["near"] + w.issued * c["serial"]
    # A tree within each warp, then an exchange between warps through shared memory.
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
    """Instructions of statements, without their memory accesses."""
    return sum(_LONG.get(n.name, 1) for s in body for n in s.walk() if isinstance(n, Op))


def accessed(body: Iterable[Stmt], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes per element of each buffer that the statements access."""
    return {b: tensors[b].dtype.bytes for b, _, _ in access.accesses(tuple(body)) if b in tensors}
