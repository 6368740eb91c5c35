"""Tilings of a matmul on a GPU: candidate instructions and tiles with their estimated clocks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compiler.ir.multiples import ceildiv
from compiler.schedule.cost import gpu as cost
from compiler.schedule.gpu import matmul
from compiler.schedule.gpu.matmul import RESERVED, WARP, Matmul
from compiler.targets.legal import SWIZZLED_ROWS, grids
from compiler.targets.target import Instruction, Target

ROW = 128  # bytes
MAX_DEPTH = 4  # pipeline stages: three tiles in flight cover the latency
MAX_DEPTH_WITH_PRODUCERS = 8  # with producer warps: small tiles need more bytes in flight
MOST_PARTS, COMPUTING = 32, 4
CLUSTERS = (2, 4)  # blocks that share copies


@dataclass(frozen=True)
class Tiling:
    """One tiling of a matmul.

    The instruction, and how many of its products make one; the tile; the threads that multiply it; pipeline stages;
    parts of k (split-k); estimated clocks of the whole kernel; the number of persistent blocks, 0 if each block
    computes one tile; and the grid of thread groups that share a tile.
    """

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
    grid: tuple[int, int] = (1, 1)
    ahead: int = 0  # registers per thread for operands of the epilogue that are loaded before the sum
    whole: bool = False  # whether these are all such operands, rather than only vectors along m or n
    cluster: tuple[int, int] = (1, 1)  # blocks along m and n; those along m share the copies of b, along n those of a


# Rows and columns of a block's tile, and the warps that multiply it.
_TILES = (
    (256, 128, 8), (128, 256, 8), (128, 128, 8), (128, 128, 4), (256, 64, 8), (64, 256, 8), (128, 64, 4), (64, 128, 4),
    (64, 64, 4), (128, 32, 4), (32, 128, 4), (32, 64, 4), (64, 32, 4), (32, 32, 4), (16, 128, 4), (16, 64, 4),
    (16, 32, 2), (32, 32, 2), (16, 256, 8), (32, 256, 8),
)  # fmt: skip
# For few columns, as in one group of a grouped convolution.
_NARROW_TILES = ((128, 8, 4), (256, 8, 8), (128, 16, 4), (256, 16, 8))
# Rows of tiles for wgmma, and the warpgroups that multiply them. Four warpgroups would have too few registers each.
_GROUPS = ((64, 1), (128, 2), (256, 2))
_REGISTER_GROUPS = ((64, 1), (128, 1), (128, 2), (256, 2))
COLUMNS = 16  # a tile has a multiple of so many columns, or fewer
SHARED_COLUMNS = 64  # with fewer columns, more rows per warpgroup do not pay


@functools.lru_cache(maxsize=1 << 12)
def space(p: Matmul, rows: tuple[Instruction, ...], target: Target) -> tuple[Tiling, ...]:
    """The tilings with these instructions that fit the target.

    If a product takes one instruction, warpgroup instructions exclude those of single warps, which are half as fast:
    the cost models of the two were fitted to different timings and are not comparable for small matmuls.
    """
    groups = [r for r in rows if r.threads > WARP] if p.terms == 1 else []
    return tuple(_tilings(p, groups, target)) or tuple(_tilings(p, rows, target))


def sort_key(t: Tiling) -> tuple[float, int, int]:
    """Sort key: fewest clocks, then the larger tile, then the deeper pipeline."""
    return t.clocks, -t.m * t.n, -t.depth


def _tilings(p: Matmul, rows: Iterable[Instruction], target: Target) -> Iterator[Tiling]:
    k = p.step or ROW // max(p.a.bytes, p.b.bytes)  # the width of all shared-memory banks
    for row in rows:
        yield from _tilings_of_depth(p, row, k, target)
        if p.a.widened or p.b.widened:  # nothing overlaps the widening, so larger steps are better
            for deep in (n for n in (2 * k, 4 * k) if p.k % n == 0):
                yield from _tilings_of_depth(p, row, deep, target)


def _tilings_of_depth(p: Matmul, row: Instruction, k: int, target: Target) -> Iterator[Tiling]:
    """Tilings with this instruction in steps of `k` along the sum."""
    wide = row.threads > WARP
    longest = min(MAX_DEPTH_WITH_PRODUCERS if wide else MAX_DEPTH, max(2, ceildiv(p.k, k)))
    # A shallow pipeline may leave room for a second block.
    least = 1 if row.a_space == "shared" and p.k <= k and any(p.loops) else min(3 if wide else 2, longest)
    for m, n, warps, grid in _block_shapes(p, row):
        if matmul.registers(p, row, (m, n), grid) > matmul.max_registers(warps * WARP, wide, p.terms > 1, target):
            continue
        stage = matmul.stage_bytes(p, row, m, n, k)
        for parts in _split_counts(p, k):
            result_bytes = matmul.result_bytes(p, row, (m, n), parts, target)
            epilogue_registers = matmul.epilogue_registers(p, row, (m, n), grid, parts, target)
            deepest = min(longest, (target.shared - RESERVED - result_bytes) // stage)
            depths = {d for d in (least, 3, 4, deepest) if least <= d <= deepest}
            for depth, cluster in itertools.product(depths, _clusters(p, row, (m, n, k), parts, target)):
                block = cost.Block(row, (m, n, k), grid, depth, parts, cluster)
                clocks, blocks = cost.matmul_clocks(p, block, target)
                if math.isfinite(clocks):
                    yield Tiling(
                        row, p.terms, m, n, k, warps * WARP, depth, parts, clocks, blocks, grid, *epilogue_registers,
                        cluster,
                    )  # fmt: skip


def _block_shapes(p: Matmul, row: Instruction) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """Rows and columns of tiles not much larger than the result, with their warps and the grid of these."""
    wide = row.threads > WARP
    groups = _GROUPS if row.a_space == "shared" else _REGISTER_GROUPS
    few = [x for x in _NARROW_TILES if p.n <= x[1]]
    for m, n, warps in [(m, row.n, 4 * g) for m, g in groups] if wide else [*_TILES, *few]:
        grid = (warps // 4, 1) if wide else next(iter(grids(m, n, warps, row)), None)
        tall = m >= 2 * matmul.up(p.m, row.m) and m > row.m
        broad = n >= 2 * matmul.up(p.n, 8) and n > 32
        narrow = m > row.m * warps // 4 and n < SHARED_COLUMNS
        odd = n % COLUMNS and n > COLUMNS
        if grid is not None and not tall and not broad and not (wide and (narrow or odd)):
            yield m, n, warps, grid


def _clusters(p: Matmul, row: Instruction, tile: matmul.Sizes, parts: int, target: Target) -> Iterator[tuple[int, int]]:
    """Clusters of blocks that may share copies: these divide the tiles of an axis, and rows of what they share."""
    yield 1, 1
    is_copied = row.a_space == "shared" and p.a.copied and p.b.copied
    if parts > 1 or any(p.loops) or not is_copied or "cluster" not in target.features:
        return
    m, n, k = tile
    for blocks in CLUSTERS:
        unit = SWIZZLED_ROWS * blocks
        if ceildiv(p.m, m) % blocks == 0 and n % unit == k % unit == 0:
            yield blocks, 1
        if ceildiv(p.n, n) % blocks == 0 and m % unit == k % unit == 0:
            yield 1, blocks


def _split_counts(p: Matmul, k: int) -> Iterator[int]:
    """Into how many parts the sum may be split (split-k), each at least four steps long: any number of boxes, or a
    power of two, where the last part may be padded with zeros."""
    yield 1
    # If operands are computed, more blocks hide each other's waits for memory.
    for parts in range(2, MOST_PARTS * (1 if p.a.copied and p.b.copied else COMPUTING) + 1):
        fits = (p.cut or p.k % (parts * k) == 0) and (p.step or parts & (parts - 1) == 0)
        if fits and p.k >= 4 * parts * k:
            yield parts
