"""The size of a matrix product, where its operands lie, and a target in; the instruction and the tiles to use out.

Everything follows from an estimate of clocks. A multiprocessor is busy with the products of the tiles it holds, with
reading their operands from shared memory or with bringing these there, whichever takes longest; one tile alone waits
for memory the more the shallower its pipeline is; and the grid runs in waves, the last of which may be far from full.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from compiler.schedule.gpu import clocks
from compiler.schedule.gpu.boxes import box, count
from compiler.targets.target import Instruction, Target

Sizes = tuple[int, int, int]

WARP = 32
LATENCY = 800.0  # clocks from the request of a tile in global memory to its arrival (Luo et al. 2024, arXiv:2402.13499)
FROM_L2 = (
    56.0  # bytes a clock for each multiprocessor: what tiles of 128 x 128 need that reach 0.9 of cuBLAS on an H200
)
FROM_DRAM = 20.0  # bytes a clock for each multiprocessor: 4.8 TB/s over 132 of them at 1.75 GHz
FROM_SHARED = 128.0  # bytes a clock for each multiprocessor: 32 banks of 4 bytes
LANES = 128.0  # scalar operations a clock for each multiprocessor
REACHED = 0.85  # of the multiply-adds that a multiprocessor could do: the best kernels there are, at the clock they run
HALVES = 6.0  # scalar operations to load an f32 number, make two of tf32 out of it, and add up what they gave
STEP = 60.0  # clocks of a step of the pipeline that no other work covers: its barrier and its addresses
START = 1500.0  # clocks until the first block computes and after the last one has stored
CHANGE = 2500.0  # clocks more that a block alone on its multiprocessor takes to begin and end, where tiles are boxes
LAUNCH = 3000.0  # clocks that a second launch costs
APART = 8  # elements by which rows of what they pass on lie further apart than they are long
CLUSTER = 1000.0  # clocks in which the blocks of a cluster pass each other what they have
TICKETS = LAUNCH  # the same for blocks that pass it through memory of all: no more than a launch
MOST_BLOCKS = 8  # of a cluster
MOST_REGISTERS = 255  # of a thread
OTHER_REGISTERS = 40  # addresses, counters, and what the compiler needs
ROW = 128  # bytes
DEEPEST = 4  # stages of a pipeline: with three tiles under way the latency is covered
DEEPEST_APART = 8  # where copies have warps of their own: more bytes under way for tiles that are small
MOST_PARTS = 32
COPYING = 4  # warps that copy, and prepare what they copied
GROUP = 128  # threads of a group of warps that may give registers away
KEPT, KEPT_SPLITTING = 24, 56  # registers that each of them keeps; the second where it makes two of numbers as well
RESERVED = 1024  # bytes of shared memory that each block takes beside its own (CUDA C++ Programming Guide 13)


@dataclass(frozen=True)
class Operand:
    """A factor: the bytes of an element, whether it is copied as a block of its buffer or computed element by element,
    and the widest piece, in bytes, that begins at a multiple of itself wherever a row of the block begins."""

    bytes: int
    copied: bool
    piece: int


@dataclass(frozen=True)
class Product:
    """acc[m, n] = sum over k of a[m, k] * b[k, n], `batch` times; `terms` products by the instruction for each.

    `across` says that the result is contiguous along n, `out_bytes` how large the elements of a tile of it are that
    leaves through shared memory, 0 where it does not. `read` is how many bytes of both operands there are in memory,
    where those of a's and b's elements are not. Where tiles are boxes of several loops, `loops` are the extents of
    those that make m and n, and `near` says of which neighbours are neighbours in the result.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Operand
    b: Operand
    acc_bytes: int
    terms: int = 1
    across: bool = True
    out_bytes: int = 0
    read: int = 0
    loops: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    near: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Tiling:
    """The instruction, and how often for each product; the tile of each part, the threads that multiply it, stages of
    its pipeline, parts of k, and clocks in all; how many blocks make tile after tile, 0 where each makes one."""

    row: Instruction
    terms: int
    m: int
    n: int
    k: int
    threads: int
    depth: int
    parts: int
    clocks: float
    blocks: int = 0


# Tiles of a thread block, and the warps that multiply them.
_TILES = (
    (256, 128, 8), (128, 256, 8), (128, 128, 8), (128, 128, 4), (256, 64, 8), (64, 256, 8), (128, 64, 4), (64, 128, 4),
    (64, 64, 4), (128, 32, 4), (32, 128, 4), (32, 64, 4), (64, 32, 4), (32, 32, 4), (16, 128, 4), (16, 64, 4),
    (16, 32, 2), (32, 32, 2), (16, 256, 8), (32, 256, 8),
)  # fmt: skip
# Rows of tiles by wgmma and the groups of four warps that multiply them. Four groups would have too few registers each.
_GROUPS = ((64, 1), (128, 2))
_FROM_REGISTERS = ((64, 1), (128, 1), (128, 2), (256, 2))
COLUMNS = 16  # a tile has a multiple of so many, or fewer
SHARED_COLUMNS = 64  # fewer do not pay for a second row of instructions by the same warps


def choose(p: Product, rows: tuple[Instruction, ...], target: Target) -> Tiling | None:
    """The tiling of fewest clocks by one of these instructions; None if no tile fits the target.

    Where an element of the result takes one product, groups of warps, which multiply twice as fast as single ones, go
    first: the estimates of the two kinds were not fitted to the same times, and do not compare for small products.
    """
    found = list(_all(p, rows, target))
    if p.terms == 1:
        found = [t for t in found if t.row.threads > WARP] or found
    return min(found, key=lambda t: (t.clocks, -t.m * t.n, -t.depth), default=None)


def _all(p: Product, rows: tuple[Instruction, ...], target: Target) -> Iterator[Tiling]:
    k = ROW // max(p.a.bytes, p.b.bytes)  # a row of a tile is as long as all banks of shared memory are wide
    for row in rows:
        wide = row.threads > WARP
        groups = _GROUPS if row.a_space == "shared" else _FROM_REGISTERS
        for m, n, warps in [(m, row.n, 4 * g) for m, g in groups] if wide else _TILES:
            grid = (warps // 4, 1) if wide else warp_grid(m, n, warps, row)
            if grid is None or (m >= 2 * _up(p.m, row.m) and m > row.m) or (n >= 2 * _up(p.n, 8) and n > 32):
                continue
            if wide and ((m > row.m * warps // 4 and n < SHARED_COLUMNS) or (n % COLUMNS and n > COLUMNS)):
                continue
            stage = stage_bytes(p, row, m, n, k)
            longest = min(DEEPEST_APART if wide else DEEPEST, max(2, -(-p.k // k)))
            if registers(p, row, (m, n), grid) > _available(warps * WARP, wide, p.terms > 1, target):
                continue
            for parts in _parts(p, k):
                out = _beside(p, row, (m, n), parts, target)
                deepest = min(longest, (target.shared - RESERVED - out) // stage)
                # A shallow pipeline may leave room for a second block.
                least = 1 if row.a_space == "shared" and p.k <= k and any(p.loops) else min(3 if wide else 2, longest)
                for depth in {d for d in (least, 3, 4, deepest) if least <= d <= deepest}:
                    takes, blocks = _clocks(p, row, (m, n, k), grid, depth, parts, target)
                    if math.isfinite(takes):
                        yield Tiling(row, p.terms, m, n, k, warps * WARP, depth, parts, takes, blocks)


def warp_grid(m: int, n: int, warps: int, row: Instruction) -> tuple[int, int] | None:
    """How the warps of a block share its tile: so that each reads as little as can be; None if they cannot."""
    found = [
        (m // down + n // across, down, across)
        for down in range(1, warps + 1)
        for across in [warps // down]
        if down * across == warps and m % (down * row.m) == 0 and n % (across * row.n) == 0
    ]
    return min(found)[1:] if found else None


def stage_bytes(p: Product, row: Instruction, m: int, n: int, k: int) -> int:
    """Shared memory of a stage: both tiles, and b twice more where wgmma reads two tf32 numbers for each of it."""
    halves = 2 * n * k * p.b.bytes if p.terms > 1 and row.threads > WARP else 0
    return k * (m * p.a.bytes + n * p.b.bytes) + halves


def _beside(p: Product, row: Instruction, tile: tuple[int, int], parts: int, target: Target) -> int:
    """Shared memory beside the pipeline's: for the result, or for what the blocks of a cluster add up."""
    if parts > 1:
        held = (tile[0] * tile[1] + APART * max(tile)) * p.acc_bytes
        return held if in_cluster(parts, tile, target) else 0
    return tile[0] * tile[1] * p.out_bytes if row.a_space == "shared" else 0


def _available(threads: int, wide: bool, split: bool, target: Target) -> int:
    """Registers that a thread may have; warps that only copy give theirs to those that multiply."""
    if not wide:
        return MOST_REGISTERS
    alike = target.registers // (threads + WARP) // 8 * 8
    launched = target.registers // (threads + GROUP) // 8 * 8
    given = (launched * (threads + GROUP) - (KEPT_SPLITTING if split else KEPT) * GROUP) // threads // 8 * 8
    return min(MOST_REGISTERS, max(alike, given))


def registers(p: Product, row: Instruction, tile: tuple[int, int], grid: tuple[int, int]) -> int:
    """32-bit registers of a thread: accumulators, and fragments, which are loaded a step ahead."""
    m, n = tile[0] // grid[0], tile[1] // grid[1]
    sums = m * n * p.acc_bytes * (2 if p.terms > 1 else 1)
    held = row.k * (m * p.a.bytes + n * p.b.bytes) * (3 if p.terms > 1 else 2)
    if row.threads > WARP:
        held = 0 if row.a_space == "shared" else 4 * row.k * m * p.a.bytes
    return (sums + held) // (4 * row.threads) + OTHER_REGISTERS


def _parts(p: Product, k: int) -> Iterator[int]:
    """Into how many parts of whole tiles the sum may be split, each at least four of them long."""
    parts = 1
    while parts <= MOST_PARTS and (parts == 1 or (p.k % (parts * k) == 0 and p.k >= 4 * parts * k)):
        yield parts
        parts *= 2


def _clocks(
    p: Product, row: Instruction, tile: Sizes, grid: tuple[int, int], depth: int, parts: int, target: Target
) -> tuple[float, int]:
    """Clocks in all, and how many blocks stay for tile after tile, 0 where each makes one."""
    m, n, k = tile
    apart = row.threads > WARP  # warps of their own copy, and the products read shared memory
    groups = math.prod(grid)
    threads = groups * row.threads + (WARP * (1 if p.terms == 1 else COPYING) if apart else 0)
    tiles = _count(p.m, p.loops[0], m, p.near[0]) * _count(p.n, p.loops[1], n, p.near[1]) * p.batch * parts
    stage = stage_bytes(p, row, m, n, k)
    out = _beside(p, row, (m, n), parts, target)
    fits = min(
        (target.shared + RESERVED) // (stage * depth + out + RESERVED),
        target.threads // threads,
        max(target.registers // (_up(registers(p, row, (m, n), grid), 8) * threads), 1),
        target.blocks,
    )
    if not fits:
        return math.inf, 0
    steps = _over(_over(p.k, parts), k)
    read = p.read or p.batch * p.k * (p.m * p.a.bytes + p.n * p.b.bytes)
    cluster = parts > 1 and in_cluster(parts, (m, n), target)
    boxes = any(p.loops)
    # Split numbers are stored from registers: blocks that stay gain nothing there. Where memory decides, blocks that
    # come when others have ended share it out better.
    busy = target.costs and read / dict(target.costs)["dram"] < p.m * p.n * p.k * p.batch / _rate("wgmma", row, target)
    stay = row.a_space == "shared" and parts == 1 and tiles > target.cores * fits and bool(busy) and not boxes

    def step(resident: int) -> float:
        if not apart:
            return _by_warps(p, row, tile, grid, depth, resident, target)
        rate = _rate("wgmma", row, target)
        prepared = n if p.terms > 1 else 0
        brought = k * (m * p.a.bytes + n * p.b.bytes)
        s = clocks.Step(m, n, k, groups, p.terms, rate, brought, depth, prepared)
        return clocks.step(s, resident, dict(target.costs))

    if target.costs:
        whole = p.m % m == 0 and p.n % n == 0
        size = m * n * p.acc_bytes
        change = CHANGE if boxes and fits == 1 and apart else 0.0
        work = clocks.Work(tiles, steps, fits, read, size, parts, cluster, whole, stay, change)
        return clocks.total(work, step, target), target.cores * fits if stay else 0
    resident = min(fits, _over(tiles, target.cores))
    # Without a tile in shared memory, groups of lanes write 16 or 32 bytes here and there.
    stored = m * n * p.acc_bytes / FROM_DRAM * (0.5 if out and p.across else 1 if out or p.across else 2)
    total = _over(tiles, target.cores * fits) * (LATENCY + steps * step(resident) + resident * stored) + START
    if parts > 1:
        gathered = CLUSTER if cluster else TICKETS
        total += gathered + 2 * parts * p.m * p.n * p.batch * p.acc_bytes / (FROM_L2 * target.cores)
    return max(total, read / (FROM_DRAM * target.cores)), 0


def _rate(unit: str, row: Instruction, target: Target) -> float:
    """Multiply-adds a clock of a unit's instruction."""
    return dict(target.rates).get(f"{unit}.{row.name.split('.')[2]}", 64)


def _by_warps(
    p: Product, row: Instruction, tile: Sizes, grid: tuple[int, int], depth: int, resident: int, target: Target
) -> float:
    """Clocks of a step of so many blocks in which all warps copy, and multiply what they have in registers."""
    (m, n, k), (down, across) = tile, grid
    groups = down * across
    # Each of the four schedulers needs a warp to keep its tensor core busy, and a second to hide what else that does.
    warps = resident * groups * row.threads // WARP
    busy = min(1.0, warps / 4) * (1.0 if warps >= 8 else 0.8)
    products = m * n * k * p.terms / (REACHED * _rate("mma", row, target) * busy)
    if p.terms > 1:
        products += HALVES * groups * k * (m // down + n // across) / LANES
    read = groups * k * (m // down * p.a.bytes + n // across * p.b.bytes) / FROM_SHARED
    products += read / 2  # what one warp loads, no other covers, as there are few
    made = (0.0 if p.a.copied else 1.5) * m * k / 4 + (0.0 if p.b.copied else 1.5) * n * k / 4
    pieces = _moves(p.a, m * k) + _moves(p.b, n * k)
    moved = k * (m * p.a.bytes + n * p.b.bytes)
    return max(resident * max(products, read, moved / FROM_L2, made + pieces), LATENCY / max(depth - 1, 1)) + STEP


def copying(copies: tuple[int, ...], target: Target) -> float:
    """Clocks of copies beforehand that move so many bytes each."""
    return sum(LAUNCH + n / (FROM_DRAM * target.cores) for n in copies)


def in_cluster(parts: int, tile: tuple[int, int], target: Target) -> bool:
    """Parts of a sum can be made by the blocks of a cluster, to which the rows and columns of a tile are dealt out."""
    return "cluster" in target.features and parts <= MOST_BLOCKS and all(n % parts == 0 for n in tile)


def _moves(x: Operand, elements: int) -> float:
    """Clocks in which copies of so many elements are issued: 32 lanes of 16 bytes every four clocks, or as many
    pieces."""
    return elements * x.bytes / x.piece / 8 if x.copied else 0.0


def _count(size: int, loops: tuple[int, ...], length: int, near: bool) -> int:
    """Tiles of so many rows."""
    return count(loops, box(loops, length, near=near)) if loops else _over(size, length)


def _up(a: int, b: int) -> int:
    return -(-a // b) * b


def _over(a: int, b: int) -> int:
    return -(-a // b)
