"""Estimated cycles of a CPU core, from a few numbers of a kernel and the `costs` of the target.

A core executes two multiply-adds and two loads from the first-level cache per cycle; an accumulator can be added to
again after some cycles of latency. The meaning and source of each cost is documented beside the target's costs.
"""

from __future__ import annotations

from compiler.ir.multiples import ceildiv
from compiler.targets.cpu import INTERLEAVED_BLOCK, TILE_BLOCK
from compiler.targets.target import Instruction, Target, costs

LINE = 64  # bytes
PAGE = 4096  # bytes that loads and stores in order prefetch ahead: the hardware's own prefetch stops at each page
EVEN = 1.05  # the most work that one core may have, relative to an equal share, for the work to count as even
PANEL, DOT, INTERLEAVED = "mlc_fma_block", "mlc_dot_block", INTERLEAVED_BLOCK  # functions of instructions
TILED = TILE_BLOCK
REGISTER = 16  # rows and columns of sums in a tile register


def vector(
    target: Target,
    accesses: int,
    stores: int,
    *,
    sums: bool,
    unroll: int,
    moved: int,
    past: bool,
    waits: float = 0.0,
    ahead: int = 0,
) -> float:
    """Cycles of one vector of an innermost loop with `accesses` accesses, of which `stores` store.

    `unroll` vectors run at a time, each with its own accumulator if the loop `sums`. The kernel moves `moved` bytes;
    with `past`, stores bypass the caches. Prefetches of what lies `ahead` save the cycles that a vector `waits`.
    """
    c = costs(target)
    cycles = max(float(accesses), c["latency"] / unroll if sums else 0.0)
    store_cycles = c["memory"] if past else 2 * c["memory"] if exceeds_caches(target, moved) else c["shared"]
    return cycles + stores * store_cycles + (c["load"] if ahead else waits)


def exposed(target: Target, moved: int, sweep: int, sweeps: int, calls: bool) -> float:
    """Cycles per vector that a kernel waits for memory, which prefetches in its first or second `sweep` (0, 1) save.

    The only sweep over a row can prefetch the row that it reads, unless that is in the second-level cache. The second
    of several `sweeps` can prefetch the next row, which pays if that is in no cache or, where the sweep also computes
    functions (`calls`), beyond the second level.
    """
    c = costs(target)
    if sweep == 0 and moved > target.l2:
        return c["exposed"] if sweeps == 1 else 0.0
    if sweep == 1 and exceeds_caches(target, moved):
        return c["exposed.next"]
    return c["exposed.shared"] if sweep == 1 and calls and moved > target.l2 else 0.0


def exposed_stream(target: Target, moved: int) -> float:
    """Cycles per vector that a kernel waits for data that it reads and writes in order, which prefetches save."""
    return costs(target)["exposed.stream"] if moved > target.l2 else 0.0


def exceeds_caches(target: Target, moved: int) -> bool:
    """Whether stored data leaves the caches before it is read again; lines are also read before they are changed."""
    return moved > costs(target)["past"] * target.l3


def imbalance(blocks: int, cores: int) -> float:
    """Load imbalance of `blocks` equal blocks: time of the busiest core over that of an even distribution."""
    return ceildiv(blocks, cores) * cores / blocks


def columns(target: Target, vectors: int) -> float:
    """Cycles per vector for a row of `vectors` vectors of columns, which share cache lines."""
    c = costs(target)
    return c["column"] + c["column.line"] / vectors


def accesses(share: float, lanes: int) -> float:
    """Cycles of one vector's access if a `share` of accesses is contiguous and the rest go lane by lane."""
    return share + (1 - share) * lanes


def scattered(target: Target, elements: int, lanes: int) -> float:
    """Cycles of one vector's access that gathers groups of `elements` neighbours, each group in another cache line."""
    return lanes / elements * costs(target)["shared"]


def window(target: Target, taps: int, size: int, lanes: int, together: int) -> float:
    """Cycles of one of the `taps` of a window, for `together` vectors of `lanes` elements of `size` bytes.

    Vectors start anywhere in a cache line. Accumulator latency is hidden as long as the core can hold the instructions
    of more than one window in flight.
    """
    c = costs(target)
    lines = 1 + (lanes - 1) * size / LINE
    in_flight = c["flight"] / (taps * (together + 2))  # plus the weight's load and loop overhead
    return max(together * lines * c["near"], c["latency"] / max(1.0, in_flight)) + c["load"]


def step(m: int, n: int, size: int, target: Target, row: Instruction) -> float:
    """Cycles of a step of k (a vector of k for `DOT`) for m x n elements of `size` bytes, partial tiles included."""
    is_dot, c = row.function == DOT, costs(target)
    near, far = c["near"], c["far"]

    def tile(m: int, n: int) -> float:
        vectors = n if is_dot else ceildiv(n, target.lanes(size))
        if not m or not n:
            return 0.0
        if row.function == TILED:
            rows, columns = ceildiv(m, REGISTER), ceildiv(n, REGISTER)
            return max(rows * columns * c["tile"], (rows + columns) * c["tile.load"])
        if is_dot:
            return max(m * vectors / 2, m * far + vectors * near, c["latency"]) + (m + vectors) * c["load"]
        if row.function == INTERLEAVED:  # the panel was just packed into the first-level cache
            return max(m * vectors / 2, (m + vectors) * near, c["latency"])
        return max(m * vectors / 2, m * near + vectors * far, c["latency"]) + (m + vectors) * c["panel"]

    (full_rows, edge_rows), (full_columns, edge_columns) = divmod(m, row.m), divmod(n, row.n)
    return (
        full_columns * (full_rows * tile(row.m, row.n) + tile(edge_rows, row.n))
        + full_rows * tile(row.m, edge_columns)
        + tile(edge_rows, edge_columns)
    )


def fetching(target: Target, held: int) -> float:
    """Cycles to read `held` bytes of an operand again: zero if they fit in the second-level cache."""
    return held / LINE * costs(target)["shared"] if held > target.l2 else 0.0


def packing(target: Target, along: bool, direct: bool, streamed: bool = False) -> float:
    """Cycles to pack an element: copied `along` its row, from the second level or `streamed` from beyond, transposed
    (`direct`), or computed."""
    copy = "copy.streamed" if streamed else "copy"
    return costs(target)[copy if along else "transpose" if direct else "compute"]
