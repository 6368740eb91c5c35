"""A matmul as the tiles of a GPU make it: its sizes and operands, and what a tile of it takes up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.ir.multiples import ceildiv
from compiler.schedule.gpu.box_shapes import box, count
from compiler.targets.legal import GROUP, MOST_REGISTERS, consumer_registers
from compiler.targets.target import Instruction, Target

Sizes = tuple[int, int, int]

WARP = 32
APART = 8  # elements by which rows of what blocks of a cluster pass on lie further apart than they are long
MOST_BLOCKS = 8  # of a cluster
OTHER_REGISTERS = 40  # addresses, counters, and what the compiler needs
BESIDES = 64  # registers of a thread that computes, beyond what it holds of tiles
KEPT, KEPT_PREPARING = 24, 56  # registers of a thread that only asks for copies, and of one that prepares what comes
RESERVED = 1024  # bytes of shared memory that each block takes beside its own (CUDA C++ Programming Guide 13)


@dataclass(frozen=True)
class Operand:
    """A factor: the bytes of an element, whether it is copied as a block of its buffer or computed element by element,
    and the widest piece, in bytes, that begins at a multiple of itself wherever a row of the block begins. `widened`
    says that it is computed of elements of fewer bytes, such as the integers of a quantized weight."""

    bytes: int
    copied: bool
    piece: int
    widened: bool = False


@dataclass(frozen=True)
class Matmul:
    """acc[m, n] = sum over k of a[m, k] * b[k, n], `batch` times; `terms` products by the instruction for each.

    `across` says that the result is contiguous along n, `out_bytes` how large the elements of a tile of it are that
    leaves through shared memory, 0 where it does not. `read` is how many bytes of both operands there are in memory,
    where those of a's and b's elements are not. Where tiles are boxes of several loops, `loops` are the extents of
    those that make m and n, and `near` says of which neighbours are neighbours in the result. What is done with a sum
    loads `ahead` bytes for each that can be loaded before it, and as many `vectors` along m and along n; `joined` says
    that it loads others. `sectors` is in how many sectors of memory a warp stores an element, where rows of the result
    begin anywhere. A sum over boxes goes through `step` elements of k at a time. One over a single loop, of which
    operands are zero behind its end, is `cut` anywhere.
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


def stage_bytes(p: Matmul, row: Instruction, m: int, n: int, k: int) -> int:
    """Shared memory of a stage: both tiles, and b twice more where wgmma reads two tf32 numbers for each of it."""
    halves = 2 * n * k * p.b.bytes if p.terms > 1 and row.threads > WARP else 0
    return k * (m * p.a.bytes + n * p.b.bytes) + halves


def beside(p: Matmul, row: Instruction, tile: tuple[int, int], parts: int, target: Target) -> int:
    """Shared memory beside the pipeline's: for the result, or for what the blocks of a cluster add up."""
    if parts > 1:
        held = (tile[0] * tile[1] + APART * max(tile)) * p.acc_bytes
        return held if in_cluster(parts, tile, target) else 0
    return tile[0] * tile[1] * p.out_bytes if row.a_space == "shared" else 0


def available(threads: int, wide: bool, split: bool, target: Target) -> int:
    """Registers that a thread may have; warps that only copy give theirs to those that multiply."""
    if not wide:
        return MOST_REGISTERS
    alike = target.registers // (threads + WARP) // 8 * 8
    return min(MOST_REGISTERS, max(alike, consumer_registers(threads, KEPT_PREPARING if split else KEPT, target)))


def reallocated(held: int, threads: int, producers: int, target: Target) -> tuple[tuple[str, int], ...]:
    """What a pipeline says of registers: nothing, where threads that compute and hold so many words of tiles in them
    get as many as they need when all get alike."""
    alike = min(target.registers // (threads + producers * WARP) // 8 * 8, MOST_REGISTERS)
    grouped = target.registers // up(threads + producers * WARP, GROUP) // 8 * 8  # ptxas counts whole groups of warps
    fits = BESIDES + held <= alike and OTHER_REGISTERS + held <= grouped
    if "setmaxnreg" not in target.features or threads % GROUP or fits:
        return ()
    kept = KEPT if producers == 1 else KEPT_PREPARING
    return ("producer_registers", kept), ("consumer_registers", consumer_registers(threads, kept, target))


def registers(p: Matmul, row: Instruction, tile: tuple[int, int], grid: tuple[int, int]) -> int:
    """32-bit registers of a thread: accumulators, and fragments, which are loaded a step ahead."""
    m, n = tile[0] // grid[0], tile[1] // grid[1]
    sums = m * n * p.acc_bytes * (2 if p.terms > 1 or row.coarse else 1)
    held = row.k * (m * p.a.bytes + n * p.b.bytes) * (3 if p.terms > 1 else 2)
    if row.threads > WARP:
        held = 0 if row.a_space == "shared" else 4 * row.k * m * p.a.bytes
    return (sums + held) // (4 * row.threads) + OTHER_REGISTERS


def ahead(
    p: Matmul, row: Instruction, tile: tuple[int, int], grid: tuple[int, int], parts: int, target: Target
) -> tuple[int, bool]:
    """32-bit registers of a thread for what its results are joined with, if it has so many and other warps copy; none
    for parts of a sum. Whether that is all, or vectors alone, for which there are registers rather than for blocks."""
    if parts > 1 or row.threads <= WARP:
        return 0, False
    m, n = (x // g for x, g in zip(tile, grid, strict=True))
    # Of 64 rows by 8 columns a thread has two of each (PTX ISA, "Register fragments for wgmma"). Values that are not
    # loaded in pairs have a register each.
    vectors = m // 32 * p.vectors[0] + n // 4 * p.vectors[1]
    paired = p.across and p.m % tile[0] == 0 and p.n % tile[1] == 0
    words = vectors + m * n // row.threads * (ceildiv(p.ahead, 2) if paired else p.ahead) // 2
    free = available(math.prod(grid) * row.threads, True, p.terms > 1, target) - registers(p, row, tile, grid)
    free -= BESIDES - OTHER_REGISTERS
    return (words, True) if words <= free else (vectors, False) if vectors <= free else (0, False)


def in_cluster(parts: int, tile: tuple[int, int], target: Target) -> bool:
    """Parts of a sum can be made by the blocks of a cluster, to which the rows and columns of a tile are dealt out."""
    return "cluster" in target.features and parts <= MOST_BLOCKS and all(n % parts == 0 for n in tile)


def tiles(size: int, loops: tuple[int, ...], length: int, near: bool) -> int:
    """Tiles of so many rows."""
    return count(loops, box(loops, length, near=near)) if loops else ceildiv(size, length)


def up(a: int, b: int) -> int:
    """The least multiple of `b` that is at least `a`."""
    return -(-a // b) * b
