"""Cycles of a core of a CPU: an estimate from a few numbers of a kernel and the `costs` of the target.

A core does two multiply-adds and two loads from near memory a cycle, and an accumulator is ready for its next some
cycles later. What the numbers stand for, and where they are from, is said beside the target's.
"""

from __future__ import annotations

from compiler.ir.multiples import ceildiv
from compiler.targets.target import Instruction, Target, costs

LINE = 64  # bytes
EVEN = 1.05  # the most that one core may have of what would be its share
PANEL, DOT, PAIRS = "mlc_fma_block", "mlc_dot_block", "mlc_pair_block"  # functions of instructions


def vector(
    target: Target,
    accesses: int,
    stores: int,
    *,
    sums: bool,
    unroll: int,
    moved: int,
    past: bool,
    first: bool,
    ahead: bool,
) -> float:
    """Cycles of a vector of an innermost loop, of which `stores` of the accesses store, `unroll` vectors at a time.

    A sum waits for what its accumulator was before. `moved` are the bytes that the whole kernel moves, which come from
    memory where the loop is the `first` to read them and they do not fit in the second level.
    """
    c = costs(target)
    cycles = max(float(accesses), c["latency"] / unroll if sums else 0.0)
    line = c["memory"] if past else 2 * c["memory"] if goes_past(target, moved) else c["shared"]
    waits = 0.0 if ahead or not (first and moved > target.l2) else c["exposed"]
    return cycles + stores * line + waits + (c["load"] if ahead else 0.0)


def goes_past(target: Target, moved: int) -> bool:
    """Little of what a kernel stores is still in the caches when it is read: lines are read, changed and written."""
    return moved > costs(target)["past"] * target.l3


def imbalance(blocks: int, cores: int) -> float:
    """The time of the core that has most of so many equal blocks, over the time that each would take of even shares."""
    return ceildiv(blocks, cores) * cores / blocks


def columns(target: Target, together: int) -> float:
    """Cycles of a row of so many vectors of columns, which share lines of memory, for each of them."""
    c = costs(target)
    return c["column"] + c["column.line"] / together


def accesses(share: float, lanes: int) -> float:
    """Cycles of an access for a vector, of which such a share goes along neighbours and the rest lane by lane."""
    return share + (1 - share) * lanes


def scattered(target: Target, elements: int, lanes: int) -> float:
    """Cycles of an access for a vector, made of so many neighbours at a time which each lie in another line."""
    return lanes / elements * costs(target)["shared"]


def window(target: Target, taps: int, size: int, lanes: int, together: int) -> float:
    """Cycles of one of the `taps` of a window, for so many vectors of elements of `size` bytes that go together.

    They lie anywhere in the lines of memory. Accumulators that wait for their sums hold up no others as long as the
    core has room for the instructions of more than one window.
    """
    c = costs(target)
    lines = 1 + (lanes - 1) * size / LINE
    windows = c["flight"] / (taps * (together + 2))  # a load of the weight, and a share of the loop, beside the sums
    return max(together * lines * c["near"], c["latency"] / max(1.0, windows)) + c["load"]


def step(m: int, n: int, size: int, target: Target, row: Instruction) -> float:
    """Cycles of one step of k (of one vector of k) for all of m x n elements of `size` bytes, rests included."""
    flat, c = row.function == DOT, costs(target)
    near, far = c["near"], c["far"]

    def tile(m: int, n: int) -> float:
        vectors = n if flat else ceildiv(n, target.lanes(size))
        if not m or not n:
            return 0.0
        if flat:
            return max(m * vectors / 2, m * far + vectors * near, c["latency"]) + (m + vectors) * c["load"]
        if row.function == PAIRS:  # a panel of them was laid out in the first level just before
            return max(m * vectors / 2, (m + vectors) * near, c["latency"])
        return max(m * vectors / 2, m * near + vectors * far, c["latency"]) + (m + vectors) * c["panel"]

    (down, low), (across, narrow) = divmod(m, row.m), divmod(n, row.n)
    return across * (down * tile(row.m, row.n) + tile(low, row.n)) + down * tile(row.m, narrow) + tile(low, narrow)


def fetching(target: Target, held: int) -> float:
    """Cycles to read so many bytes of an operand once again, which stay in the second level only if they fit."""
    return held / LINE * costs(target)["shared"] if held > target.l2 else 0.0


def packing(target: Target, along: bool, direct: bool) -> float:
    """Cycles to pack an element: of a row that lies along the tile's, against the grain, or by any other means."""
    return costs(target)["copy" if along else "transpose" if direct else "compute"]
