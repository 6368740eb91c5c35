"""Estimated clocks of GPU kernels without matmuls: row-wise and pointwise.

The slowest of several resources decides: block launch rate of the whole machine, memory bandwidth, bandwidth of the
nearest cache (L1), instruction issue of four schedulers, and the latency that resident blocks wait in each wave, for
memory and barriers. Resources close to the slowest add a share (`smooth_max`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.analysis import access
from compiler.ir.expr import Op
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor
from compiler.schedule.cost.gpu import BOUND_EXPONENT, smooth_max
from compiler.targets.target import Target, costs

WARP = 32
MAX_THREADS = 1024  # threads per block at most
L2_NEAR_DIVISOR = 16  # data up to 1/16 of the L2 counts as near: it was probably just written and is still cached
# Instructions per operation, where more than one: counted for the device functions of CUDA 13 (f32).
_INSTRUCTIONS = {
    "exp": 8,
    "log": 8,
    "erf": 20,
    "tanh": 15,
    "div": 8,
    "rsqrt": 4,
    "sqrt": 6,
    "sin": 20,
    "cos": 20,
    "pow": 30,
}


@dataclass(frozen=True)
class Threads:
    """A kernel of `blocks` blocks of `threads` threads.

    `memory_bytes` are read from or written to memory once; `cache_bytes` pass between threads and the nearest cache. A
    thread waits `memory_waits` times for memory and `cache_waits` times for a cache, and issues `instructions` besides
    the fixed cost of each of its `rounds`. Threads combine values in `reductions`, `reduction_width` threads in each. A
    block uses `shared` bytes of shared memory.
    """

    blocks: int
    threads: int
    memory_bytes: float
    cache_bytes: float
    memory_waits: float
    instructions: float
    cache_waits: float = 0.0
    reductions: int = 0
    reduction_width: int = 1
    rounds: int = 1
    shared: int = 0


def clocks(w: Threads, target: Target) -> float:
    """Estimated clocks of a kernel."""
    c = costs(target)
    warps = -(-w.threads // WARP)
    fitting = target.shared // w.shared if w.shared else target.blocks
    resident = max(1, min(target.threads // (warps * WARP), target.blocks, fitting))
    blocks_per_core = -(-w.blocks // target.cores)
    is_cached = w.memory_bytes <= target.l2 / L2_NEAR_DIVISOR
    latency = (
        w.memory_waits * c["near" if is_cached else "wait"] + w.cache_waits * c["near"] + w.instructions * c["serial"]
    )
    # A tree within each warp, then an exchange between warps through shared memory.
    latency += w.reductions * (
        c["level"] * math.log2(max(w.reduction_width, 2)) + c["across"] * (w.reduction_width - 1) / MAX_THREADS
    )
    barrier_clocks = c["barrier"] + c["tree"] * w.reductions if w.reductions else 0.0
    busy = smooth_max(
        (
            blocks_per_core * w.cache_bytes / max(w.blocks, 1) / c["nearest"],
            blocks_per_core * warps * (c["warp"] * w.rounds + barrier_clocks + w.instructions / 4),
            (-(-blocks_per_core // resident) - 1) * latency,
        ),
        c["threads.close"],
    )
    stream_clocks = w.memory_bytes / (c["stream.near" if is_cached else "stream"] * target.cores)
    return c["begin"] + latency + smooth_max((w.blocks / c["blocks"], stream_clocks, busy), BOUND_EXPONENT)


def operations(body: Iterable[Stmt]) -> int:
    """Instructions of statements, without their memory accesses."""
    return sum(_INSTRUCTIONS.get(n.name, 1) for s in body for n in s.walk() if isinstance(n, Op))


def element_bytes(body: Iterable[Stmt], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes per element of each buffer that the statements access."""
    return {b: tensors[b].dtype.bytes for b, _, _ in access.accesses(tuple(body)) if b in tensors}
