"""A matmul for a GPU: its sizes and operands, and the registers and shared memory that a tile of it uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.ir.multiples import ceildiv
from compiler.schedule.gpu.box_shapes import box, count
from compiler.targets.legal import MOST_REGISTERS, WARPGROUP, consumer_registers
from compiler.targets.target import Instruction, Target

Sizes = tuple[int, int, int]

WARP = 32
CACHE_LINE, SECTOR = 128, 32  # bytes
ROW_PADDING = 8  # elements of padding per row of the partial sums that blocks of a cluster exchange
MOST_BLOCKS = 8  # of a cluster
NEIGHBOURS = 4  # adjacent elements of a result that a thread combines (split-k)
OTHER_REGISTERS = 40  # addresses, counters, and temporaries of the compiler
WORKING_REGISTERS = 64  # registers of a computing thread in addition to its tiles
KEPT, KEPT_PREPARING = 24, 56  # registers of a thread that only issues copies, and of one that prepares copied data
RESERVED = 1024  # bytes of shared memory reserved per block by the system (CUDA C++ Programming Guide 13)


@dataclass(frozen=True)
class Operand:
    """An operand: bytes per element, and whether it is `copied` as a block of its buffer or computed.

    `piece` is the widest alignment in bytes that the start of every row of the block has and a copy can use; rows are
    `aligned` to so many bytes, at most a cache line. A `widened` operand is computed from elements of fewer bytes, such
    as the integers of a quantized weight.
    """

    bytes: int
    copied: bool
    piece: int
    widened: bool = False
    aligned: int = CACHE_LINE


@dataclass(frozen=True)
class Matmul:
    """acc[m, n] = sum over k of a[m, k] * b[k, n], `batch` times, by `terms` instructions per product.

    The result is contiguous along n if `across`, else along m. A tile of it leaves through shared memory with elements
    of `out_bytes` bytes, or 0. `read` are the bytes of both operands in memory, if elements are loaded repeatedly; 0
    for the bytes of a and b. If tiles are boxes of several loops, `loops` are the extents of the loops of m and n, and
    `near` says on which side neighbours are neighbours in the result. The epilogue can load `ahead` bytes per result,
    and as many `vectors` along m and along n, before the sum; `joined` says that it loads others, too. A tile of the
    result can start as an operand with `initial` bytes per result. `sectors` is the number of memory sectors per
    element that a warp stores if rows of the result are unaligned. A sum over boxes takes `step` elements of k at a
    time. A sum over a single loop whose operands are zero beyond its end may be `cut` anywhere.
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
    joined: bool = False
    step: int = 0
    sectors: float = 0.0
    ahead: int = 0
    cut: bool = False
    vectors: tuple[int, int] = (0, 0)
    initial: int = 0


def stage_bytes(p: Matmul, row: Instruction, m: int, n: int, k: int) -> int:
    """Bytes of shared memory per pipeline stage: both tiles, and b twice more if wgmma reads it as two tf32 parts."""
    halves = 2 * n * k * p.b.bytes if p.terms > 1 and row.threads > WARP else 0
    return k * (m * p.a.bytes + n * p.b.bytes) + halves


def result_bytes(p: Matmul, row: Instruction, tile: tuple[int, int], parts: int, target: Target) -> int:
    """Bytes of shared memory besides the pipeline: for the result's tile, or for a cluster's partial sums."""
    if parts > 1:
        held = (tile[0] * tile[1] + ROW_PADDING * max(tile)) * p.acc_bytes
        return held if fits_cluster(parts, tile, target) else 0
    return tile[0] * tile[1] * p.out_bytes if row.a_space == "shared" else 0


def has_result_tile(row: Instruction, parts: int) -> bool:
    """Whether results leave through a tile in shared memory, if they can: not if blocks exchange parts of the sum."""
    return row.a_space == "shared" and parts == 1


def ahead_bytes(p: Matmul, row: Instruction, parts: int) -> int:
    """Bytes per result of the epilogue's operands that may be loaded to registers before the sum: without the one as
    which the result's tile starts."""
    return p.ahead + (0 if has_result_tile(row, parts) else p.initial)


def max_registers(threads: int, wide: bool, split: bool, target: Target) -> int:
    """Registers that a computing thread may use; producer warps give theirs to computing warps."""
    if not wide:
        return MOST_REGISTERS
    equal_share = target.registers // (threads + WARP) // 8 * 8
    return min(MOST_REGISTERS, max(equal_share, consumer_registers(threads, KEPT_PREPARING if split else KEPT, target)))


def register_arguments(tile_words: int, threads: int, producers: int, target: Target) -> tuple[tuple[str, int], ...]:
    """Arguments of a pipeline that reallocate registers; none if computing threads, which hold `tile_words` words,
    get enough registers when all threads get equally many."""
    equal_share = min(target.registers // (threads + producers * WARP) // 8 * 8, MOST_REGISTERS)
    # ptxas counts whole groups of warps.
    grouped_share = target.registers // up(threads + producers * WARP, WARPGROUP) // 8 * 8
    fits = WORKING_REGISTERS + tile_words <= equal_share and OTHER_REGISTERS + tile_words <= grouped_share
    if "setmaxnreg" not in target.features or threads % WARPGROUP or fits:
        return ()
    kept = KEPT if producers == 1 else KEPT_PREPARING
    return ("producer_registers", kept), ("consumer_registers", consumer_registers(threads, kept, target))


def registers(p: Matmul, row: Instruction, tile: tuple[int, int], grid: tuple[int, int]) -> int:
    """32-bit registers of a thread: accumulators, and fragments that are loaded one step ahead."""
    m, n = tile[0] // grid[0], tile[1] // grid[1]
    sums = m * n * p.acc_bytes * (2 if p.terms > 1 or row.coarse else 1)
    fragments = row.k * (m * p.a.bytes + n * p.b.bytes) * (3 if p.terms > 1 else 2)
    if row.threads > WARP:
        fragments = 0 if row.a_space == "shared" else 4 * row.k * m * p.a.bytes
    return (sums + fragments) // (4 * row.threads) + OTHER_REGISTERS


def epilogue_registers(
    p: Matmul, row: Instruction, tile: tuple[int, int], grid: tuple[int, int], parts: int, target: Target
) -> tuple[int, bool]:
    """32-bit registers per thread for epilogue operands loaded before the sum, and whether they hold all.

    If registers do not suffice for blocks of operands, they hold only vectors along m or n. 0 if even these do not fit,
    for partial sums (split-k), and if there are no producer warps.
    """
    if parts > 1 or row.threads <= WARP:
        return 0, False
    m, n = (x // g for x, g in zip(tile, grid, strict=True))
    # Of 64 rows by 8 columns a thread has two of each (PTX ISA, "Register fragments for wgmma"). Values that are not
    # loaded in pairs take a register each.
    vectors = m // 32 * p.vectors[0] + n // 4 * p.vectors[1]
    paired = p.across and p.m % tile[0] == 0 and p.n % tile[1] == 0
    ahead = ahead_bytes(p, row, parts)
    all_words = vectors + m * n // row.threads * (ceildiv(ahead, 2) if paired else ahead) // 2
    free = max_registers(math.prod(grid) * row.threads, True, p.terms > 1, target) - registers(p, row, tile, grid)
    free -= WORKING_REGISTERS - OTHER_REGISTERS
    return (all_words, True) if all_words <= free else (vectors, False) if vectors <= free else (0, False)


def fits_cluster(parts: int, tile: tuple[int, int], target: Target) -> bool:
    """Whether a cluster's blocks can split the sum into `parts`, each combining its rows or columns."""
    return "cluster" in target.features and parts <= MOST_BLOCKS and all(n % parts == 0 for n in tile)


def neighbours(size: int) -> int:
    """Adjacent elements, of rows of `size`, that a thread combines from partial sums: vectors that end with the row."""
    return NEIGHBOURS if size % NEIGHBOURS == 0 else 1


def tiles(size: int, loops: tuple[int, ...], length: int, near: bool) -> int:
    """Number of tiles along an axis of `size`, or along boxes of its `loops`."""
    return count(loops, box(loops, length, near=near)) if loops else ceildiv(size, length)


def up(a: int, b: int) -> int:
    """The smallest multiple of `b` that is at least `a`."""
    return -(-a // b) * b
