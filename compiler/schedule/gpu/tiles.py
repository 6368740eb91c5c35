"""The size of a matmul, where its operands lie, and a target in; the instructions and tiles for it out."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compiler.ir.multiples import ceildiv
from compiler.schedule.cost import gpu as cost
from compiler.schedule.gpu import matmul
from compiler.schedule.gpu.matmul import RESERVED, WARP, Matmul
from compiler.targets.legal import grids
from compiler.targets.target import Instruction, Target

ROW = 128  # bytes
DEEPEST = 4  # stages of a pipeline: with three tiles under way the latency is covered
DEEPEST_APART = 8  # where copies have warps of their own: more bytes under way for tiles that are small
MOST_PARTS, COMPUTING = 32, 4


@dataclass(frozen=True)
class Tiling:
    """The instruction, and how often for each product; the tile of each part, the threads that multiply it, stages of
    its pipeline, parts of k, and clocks in all; how many blocks make tile after tile, 0 where each makes one; and the
    grid in which groups of threads share a tile."""

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
    ahead: int = 0  # registers of a thread for what results are joined with
    whole: bool = False  # that is all of it, rather than vectors alone


# Tiles of a thread block, and the warps that multiply them.
_TILES = (
    (256, 128, 8), (128, 256, 8), (128, 128, 8), (128, 128, 4), (256, 64, 8), (64, 256, 8), (128, 64, 4), (64, 128, 4),
    (64, 64, 4), (128, 32, 4), (32, 128, 4), (32, 64, 4), (64, 32, 4), (32, 32, 4), (16, 128, 4), (16, 64, 4),
    (16, 32, 2), (32, 32, 2), (16, 256, 8), (32, 256, 8),
)  # fmt: skip
# Those of few columns, as a group of a grouped convolution has.
_NARROW = ((128, 8, 4), (256, 8, 8), (128, 16, 4), (256, 16, 8))
# Rows of tiles by wgmma and the groups of four warps that multiply them. Four groups would have too few registers each.
_GROUPS = ((64, 1), (128, 2))
_FROM_REGISTERS = ((64, 1), (128, 1), (128, 2), (256, 2))
COLUMNS = 16  # a tile has a multiple of so many, or fewer
SHARED_COLUMNS = 64  # fewer do not pay for a second row of instructions by the same warps


@functools.lru_cache(maxsize=1 << 12)
def space(p: Matmul, rows: tuple[Instruction, ...], target: Target) -> tuple[Tiling, ...]:
    """The tilings by these instructions that fit the target.

    Where a product of two numbers takes one instruction, groups of warps, which multiply twice as fast as single ones,
    leave no place for these: the estimates of the two kinds were not fitted to the same times, and do not compare for
    small matmuls.
    """
    groups = [r for r in rows if r.threads > WARP] if p.terms == 1 else []
    return tuple(_all(p, groups, target)) or tuple(_all(p, rows, target))


def best(t: Tiling) -> tuple[float, int, int]:
    """Fewest clocks first, then the larger tile and the deeper pipeline."""
    return t.clocks, -t.m * t.n, -t.depth


def _all(p: Matmul, rows: Iterable[Instruction], target: Target) -> Iterator[Tiling]:
    k = p.step or ROW // max(p.a.bytes, p.b.bytes)  # a row of a tile is as long as all banks of shared memory are wide
    for row in rows:
        yield from _of_depth(p, row, k, target)
        if p.a.widened or p.b.widened:  # nothing is under way while it is widened: the more at once the better
            for deep in (n for n in (2 * k, 4 * k) if p.k % n == 0):
                yield from _of_depth(p, row, deep, target)


def _of_depth(p: Matmul, row: Instruction, k: int, target: Target) -> Iterator[Tiling]:
    """Tilings by an instruction in steps of so many along k."""
    wide = row.threads > WARP
    longest = min(DEEPEST_APART if wide else DEEPEST, max(2, ceildiv(p.k, k)))
    # A shallow pipeline may leave room for a second block.
    least = 1 if row.a_space == "shared" and p.k <= k and any(p.loops) else min(3 if wide else 2, longest)
    for m, n, warps, grid in _blocks(p, row):
        if matmul.registers(p, row, (m, n), grid) > matmul.available(warps * WARP, wide, p.terms > 1, target):
            continue
        stage = matmul.stage_bytes(p, row, m, n, k)
        for parts in _parts(p, k):
            out = matmul.beside(p, row, (m, n), parts, target)
            held = matmul.ahead(p, row, (m, n), grid, parts, target)
            deepest = min(longest, (target.shared - RESERVED - out) // stage)
            for depth in {d for d in (least, 3, 4, deepest) if least <= d <= deepest}:
                takes, blocks = cost.matmul_clocks(p, cost.Block(row, (m, n, k), grid, depth, parts), target)
                if math.isfinite(takes):
                    yield Tiling(row, p.terms, m, n, k, warps * WARP, depth, parts, takes, blocks, grid, *held)


def _blocks(p: Matmul, row: Instruction) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """Rows and columns of a block's tile, no more than about those of the result, its warps, and how they share it."""
    wide = row.threads > WARP
    groups = _GROUPS if row.a_space == "shared" else _FROM_REGISTERS
    few = [x for x in _NARROW if p.n <= x[1]]
    for m, n, warps in [(m, row.n, 4 * g) for m, g in groups] if wide else [*_TILES, *few]:
        grid = (warps // 4, 1) if wide else next(iter(grids(m, n, warps, row)), None)
        tall = m >= 2 * matmul.up(p.m, row.m) and m > row.m
        broad = n >= 2 * matmul.up(p.n, 8) and n > 32
        narrow = m > row.m * warps // 4 and n < SHARED_COLUMNS
        odd = n % COLUMNS and n > COLUMNS
        if grid is not None and not tall and not broad and not (wide and (narrow or odd)):
            yield m, n, warps, grid


def _parts(p: Matmul, k: int) -> Iterator[int]:
    """Into how many parts of whole tiles the sum may be split, each at least four of them long: any number of boxes, or
    powers of two, of which the last part may end with zeros."""
    yield 1
    # Of blocks that compute elements several wait for memory side by side.
    for parts in range(2, MOST_PARTS * (1 if p.a.copied and p.b.copied else COMPUTING) + 1):
        fits = (p.cut or p.k % (parts * k) == 0) and (p.step or parts & (parts - 1) == 0)
        if fits and p.k >= 4 * parts * k:
            yield parts
