"""Blocking of a matmul on a CPU: from its size, operands and target, the candidate instructions and block sizes.

Everything follows from the sizes of the caches and from estimated cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ir.multiples import ceildiv
from compiler.schedule.cost import cpu as cost
from compiler.schedule.cost.cpu import step
from compiler.targets.cpu import GROUPED
from compiler.targets.target import Instruction, Target, costs

STREAMS = 32  # rows that hardware prefetches at once from memory
STREAM_DEPTH = 8  # rows of a matrix read once that are read side by side: one stream each for the prefetcher
BLOCK_COLUMNS = 128  # columns of a block of B that many rows reuse, at least: A is read once for each block
SHALLOWEST = 128  # products per part of a loop: accumulators are loaded and stored once for each part
NARROWEST = 512  # columns of a block, if there are as many: long rows of B are read faster
PAGE = 4096  # rows that are multiples of this many bytes apart map to the same sets of a first-level cache
SELDOM = 2  # row tiles that read narrow panels of a matrix in place
OFTEN = 16  # row tiles that read a matrix before a copy in better order pays
STRIPPED = 96  # with more rows, a block of B is multiplied in strips
INTERLEAVED_PANEL = 24 << 10  # bytes that mlc_interleaved_block lays out at a time
ROWS = 8  # instructions that are tried for a block, the fastest first
WORTH_CORES = 1 << 22  # multiply-adds, some 50 us of one core: less is not worth waking another core
MANY = 16  # times an instruction's block: partial blocks are negligible
PANEL, DOT, INTERLEAVED, TILED = cost.PANEL, cost.DOT, cost.INTERLEAVED, cost.TILED
LONGEST = 4096  # of k in a block of instructions that divide it again; a length that is not known needs blocks
TILED_ROWS = 512  # rows of a block, at least: B is laid out for each


@dataclass(frozen=True)
class Operand:
    """An operand of a matmul in memory.

    `direct`: an instruction can read it in place. `along`: the part "m", "n" or "k" along which it is contiguous, or
    "". `step`: bytes between steps of k. `narrow`: its elements are narrower than the sum's. `unit`, `k_unit`:
    multiples that blocks along its own part and along k should have, so that inner loops stay whole. `dense`: each row
    along k starts where the previous one ends. `k_last`: extent of the innermost of several loops of k. `within`: the
    depth of k that is a block of its buffer. `run`, `k_run`: elements along its own part and along k that are packed
    by one loop, 0 if there is no such limit. `converted`: memory has another type, from which loads convert.
    """

    direct: bool
    along: str
    step: int
    narrow: bool
    unit: int = 1
    k_unit: int = 1
    dense: bool = False
    k_last: int = 1
    within: int = 0
    run: int = 0
    k_run: int = 0
    converted: bool = False


@dataclass(frozen=True)
class Matmul:
    """acc[m, n] = sum over k of a[m, k] * b[k, n], `batch` times.

    `dtype` and `bytes` are those of the sum, `factor` and `size` those of the factors as an instruction takes them.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Operand
    b: Operand
    dtype: str
    bytes: int
    factor: str
    size: int


@dataclass(frozen=True)
class Blocking:
    """The instruction, block sizes, operands to pack, number of cores, and estimated cycles.

    With `strips`, blocks of columns are the outer loop, and within a block of rows, strips of as many rows as the
    instruction has run along all columns.
    """

    row: Instruction
    m: int
    n: int
    k: int
    pack_a: bool
    pack_b: bool
    cores: int
    cycles: float
    strips: bool = False

    @property
    def flat(self) -> bool:
        """Whether vectors run along k."""
        return self.row.function == DOT


def space(p: Matmul, target: Target) -> list[Blocking]:
    """The blockings of a matmul, fewest cycles first; empty if the target has no instruction for the types."""
    functions = {r.function for r in target.instructions if _takes(r, p)}
    if p.b.along != "k" and (p.b.direct or p.b.along == "n"):
        functions.discard(DOT)
    if p.m == 1:  # there may be no loop of rows
        functions.discard(TILED)
    kinds = [list(_by(function, p, target)) for function in (PANEL, DOT, INTERLEAVED, TILED) if function in functions]
    kinds = sorted((x for x in kinds if x), key=lambda x: (x[0].cycles, -x[0].row.m * x[0].row.n))
    made = (b for x in kinds for b in x)
    if p.dtype == "i32":  # products of bytes; a tile would widen them
        made = (replace(b, pack_a=False, pack_b=False) for x in kinds for b in x if not b.pack_b)
    return sorted((_balanced(p, b) for b in made), key=lambda b: b.cycles)


def _balanced(p: Matmul, b: Blocking) -> Blocking:
    """The blocking with its cycles scaled by the load imbalance between cores."""
    blocks = p.batch * ceildiv(p.m, b.m) * ceildiv(p.n, b.n)
    return replace(b, cycles=b.cycles * cost.imbalance(blocks, b.cores))


def _takes(r: Instruction, p: Matmul) -> bool:
    return (r.a_type, r.b_type, r.acc_type) == (p.factor, p.factor, p.dtype)


def _steps(p: Matmul, row: Instruction, target: Target) -> float:
    """How many steps an instruction takes along k: by vectors, pairs or single elements."""
    neighbours = p.bytes // p.size if row.function in GROUPED else 1
    return p.k / (target.lanes(p.size) if row.function == DOT else neighbours)


def _by(function: str, p: Matmul, target: Target) -> Iterator[Blocking]:
    """Blockings for instructions of one function, that with the fastest instruction first."""
    rows = [r for r in target.instructions if r.function == function and _takes(r, p)]
    rows = [r for r in rows if r.m <= p.m or function == TILED]  # whose tiles may have fewer rows
    timed = sorted((step(p.m, p.n, p.bytes, target, r), _loads(p, r, target), n) for n, r in enumerate(rows))[:ROWS]
    if timed:
        (least, _, best), *others = timed
        for made in _blocks(p, target, rows[best]):
            yield made
            yield from _beside(p, made, target)
            steps = _steps(p, made.row, target)
            for cycles, _, n in others:
                yield replace(made, row=rows[n], cycles=made.cycles + steps * (cycles - least))


def _loads(p: Matmul, row: Instruction, target: Target) -> float:
    """Loads per multiply-add of an instruction."""
    vectors = row.n if row.function == DOT else row.n // target.lanes(p.bytes)
    return (row.m + vectors) / (row.m * vectors)


def _beside(p: Matmul, b: Blocking, target: Target) -> Iterator[Blocking]:
    """Variants of a blocking: smaller blocks, which may pack an operand more often, and optional packing."""
    if b.m > 2 * b.row.m:
        m = cut(p.m, b.m // 2, _rows(p, b.row, b.m // 2))
        laid_out = b.pack_b + (b.row.function == INTERLEAVED)  # times, for each block of rows
        each = laid_out * p.k * p.n * _packing_b(p, "k" if b.flat else "n", target, b.k)
        each += 0.0 if b.strips else cost.fetching(target, p.k * p.n * p.size)
        yield replace(b, m=m, cycles=b.cycles + (ceildiv(p.m, m) - ceildiv(p.m, b.m)) * each)
    if b.n > 2 * b.row.n:
        yield replace(b, n=cut(p.n, b.n // 2, p.b.unit if 1 < p.b.unit <= b.n // 2 else b.row.n))
    if not b.pack_b:
        each = _packing_b(p, "k" if b.flat else "n", target, b.k)
        yield replace(b, pack_b=True, cycles=b.cycles + p.k * p.n * each)
    if not b.pack_a and not b.strips:
        yield replace(b, pack_a=True, cycles=b.cycles + p.m * p.k * packing(p.a, "k", target, b.k))


def _blocks(p: Matmul, target: Target, row: Instruction) -> list[Blocking]:
    plain = p.a.direct and p.b.direct and not (p.a.narrow or p.b.narrow)
    if row.function == PANEL and plain and p.m > STRIPPED:
        fits = p.m * row.n * p.bytes <= target.l2 // 4
        in_place = [_in_place(p, target, row)] if fits and _is_streamed(p, target, "n") else []
        return [_strips(p, target, row), *in_place]
    if row.function == TILED:
        return [_tiled(p, target, row)]
    return [_interleaved(p, target, row) if row.function == INTERLEAVED else _tiles(p, target, row)]


def _interleaved(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """Blocking for `INTERLEAVED`: as many rows as possible reuse each panel of B, because laying out a panel, once for
    each block of rows, takes as long as 20 rows.

    Panels go through all of k. Half the second-level cache holds a block of the result and the part of A that belongs
    to a panel.
    """
    half, wide = target.l2 // 2, p.b.unit if p.b.unit > 1 else row.n
    beside = INTERLEAVED_PANEL // (row.n * p.bytes) * p.bytes  # bytes of a row of A
    k = _depth(p, LONGEST, target.lanes(p.size))
    m = cut(p.m, half // (beside + BLOCK_COLUMNS * p.bytes), row.m)
    n = cut(p.n, (half - m * beside) // (m * p.bytes), wide)
    cores = _cores(p, target)
    if p.batch * ceildiv(p.m, m) * ceildiv(p.n, n) < cores:
        n = cut(p.n, ceildiv(p.n * p.batch * ceildiv(p.m, m), cores), wide)
    pack_a, pack_b = _packs_grouped(p)
    cycles = _steps(p, row, target) * step(p.m, p.n, p.bytes, target, row)
    cycles += p.k * p.n * ceildiv(p.m, m) * packing(p.b, "n", target, k)
    cycles += p.k * p.n * ceildiv(p.m, m) * packing(p.b, "n", target, k) if pack_b else 0
    cycles += p.m * p.k * packing(p.a, "k", target, k) if pack_a else 0
    cycles += ceildiv(p.m, m) * cost.fetching(target, p.k * p.n * p.size)
    return Blocking(row, m, n, k, pack_a, pack_b, cores, cycles)


def _tiled(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """Blocking for `TILED`, which divides its block again: half the second-level cache holds a block of the result."""
    k = _depth(p, LONGEST, target.lanes(p.size))
    most = max(TILED_ROWS, target.l2 // 2 // (p.n * p.bytes))
    m = cut(p.m, most, _rows(p, row, most))
    wide = p.b.unit if p.b.unit > 1 else row.n
    n = cut(p.n, target.l2 // 2 // (m * p.bytes), wide)
    cores = _cores(p, target)
    others = p.batch * ceildiv(p.m, m)
    if others * ceildiv(p.n, n) < cores:
        n = cut(p.n, ceildiv(p.n * others, cores), wide)
    pack_a, pack_b = _packs_grouped(p)
    # One factor is laid out again for each block of the other: A if B lies along k, and is the larger one.
    turned = p.b.along == "k" and not pack_b and m <= n
    laid_out = p.m * p.k * ceildiv(p.n, n) if turned else p.k * p.n * ceildiv(p.m, m)
    cycles = _steps(p, row, target) * step(p.m, p.n, p.bytes, target, row)
    cycles += laid_out * cost.packing(target, not turned and p.b.along == "n", True)
    cycles += p.k * p.n * ceildiv(p.m, m) * packing(p.b, "n", target, k) if pack_b else 0
    cycles += p.m * p.k * packing(p.a, "k", target, k) if pack_a else 0
    return Blocking(row, m, n, k, pack_a, pack_b, cores, cycles)


def _cores(p: Matmul, target: Target) -> int:
    """The number of cores that are worth waking."""
    return target.cores if p.m * p.n * p.k * p.batch >= WORTH_CORES else 1


def _packs_grouped(p: Matmul) -> tuple[bool, bool]:
    """Whether A and B are packed for an instruction of `GROUPED`, which loads neighbours as they are."""
    return not p.a.direct or p.a.along != "k" or p.a.converted, not p.b.direct or p.b.converted


def _strips(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """Blocking for many rows: a block of B takes half the second-level cache and is multiplied by strips of A.

    A strip has the instruction's rows. It stays in the first level, with its accumulators, while all columns of the
    block stream from the second. If the block is not deep enough for all of k, accumulators of many rows wait in the
    second level. B is packed in panels as wide as the instruction, unless one block is all of B: in place, each row may
    be on its own page.
    """
    size, l1, l2 = p.bytes, target.l1, target.l2
    k = cut(p.k, max(l2 // 2 // (BLOCK_COLUMNS * size), target.lanes(size)), target.lanes(size))
    n = cut(p.n, min(l2 // 2 // (k * size), l1 // 2 // (row.m * size)), row.n)
    cores = _cores(p, target)
    if p.batch * ceildiv(p.n, n) < cores:
        n = cut(p.n, ceildiv(p.n * p.batch, cores), row.n)
    m = min(row.m, p.m)
    if k < p.k:
        m = cut(p.m, l2 // 4 // (n * size), row.m)
    # If blocks of columns do not divide evenly, each core takes a share of the rows instead of strips: B is packed for
    # each block of rows.
    if cost.imbalance(p.batch * ceildiv(p.n, n), cores) > cost.EVEN:
        m = cut(p.m, min(l2 // 4 // (n * size), ceildiv(p.m, cores)), row.m)
    pack_b = p.b.along != "n" or k < p.k or p.b.step != n * size or p.b.step % PAGE == 0
    times = ceildiv(p.m, m) if k < p.k or m > row.m else 1
    cycles = p.k * step(p.m, p.n, p.bytes, target, row) + (
        p.k * p.n * times * _packing_b(p, "n", target, k) if pack_b else 0
    )
    return Blocking(row, m, n, k, False, pack_b, cores, cycles, strips=True)


def _in_place(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """Blocking for many rows that reads B in place, in shallow blocks of long rows.

    A block of B and one of the result take a quarter of the second-level cache each. The result is loaded and stored
    once for each block of k.
    """
    k = _depth(p, SHALLOWEST, target.lanes(p.size))
    n = cut(p.n, target.l2 // 4 // (max(p.m * p.bytes, k * p.size)), row.n)
    cores, lines = _cores(p, target), p.m * p.n * p.bytes / cost.LINE
    if p.batch * ceildiv(p.n, n) < cores:
        n = min(p.n, ceildiv(ceildiv(p.n * p.batch, cores), row.n) * row.n)
    pack_a = _packs_a(p, row, k)
    cycles = p.k * step(p.m, p.n, p.bytes, target, row) + lines * ceildiv(p.k, k) * costs(target)["shared"]
    cycles += p.m * p.k * packing(p.a, "k", target, k) if pack_a else 0
    return Blocking(row, p.m, n, k, pack_a, False, cores, cycles)


def _tiles(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """Blocking by tiles; blocks are smaller if there would be too few for all cores."""
    flat = row.function == DOT
    pack_b = _packs_b(p, target, row)
    m, n, k = _block(p, target, row, pack_b)
    pack_a = _packs_a(p, row, k)
    cores = _cores(p, target)
    others = p.batch * ceildiv(p.m, m)
    if others * ceildiv(p.n, n) < cores:
        share = ceildiv(p.n * others, cores)
        # With many columns summed along vectors, a few more or less cost little, and whole vectors store best. Loops
        # that stay whole can be packed by vectors.
        whole = target.lanes(p.size) if flat and share >= MANY * row.n else row.n
        whole = p.b.unit if 1 < p.b.unit <= share else whole
        n = min(p.n, ceildiv(share, whole) * whole)
    cycles = _steps(p, row, target) * step(p.m, p.n, p.bytes, target, row) + (
        p.m * p.n * ceildiv(p.k, k) * costs(target)["lanes"] if flat else 0
    )
    cycles += p.k * p.n * ceildiv(p.m, m) * _packing_b(p, "k" if flat else "n", target, k) if pack_b else 0
    cycles += p.m * p.k * packing(p.a, "k", target, k) if pack_a else 0
    cycles += ceildiv(p.m, m) * cost.fetching(target, p.k * p.n * p.size)
    return Blocking(row, m, n, k, pack_a, pack_b, cores, cycles)


def _packs_b(p: Matmul, target: Target, row: Instruction) -> bool:
    """Whether B cannot be read in place, or is read so often that a copy in better order pays."""
    tiles, is_narrow = ceildiv(p.m, row.m), row.n * p.size < costs(target)["in_place.bytes"]
    often = (tiles > OFTEN and (p.b.step % PAGE == 0 or p.b.narrow)) or (tiles > SELDOM and is_narrow)
    return not p.b.direct or (p.b.along != "k" if row.function == DOT else often or p.b.along != "n")


def _packs_a(p: Matmul, row: Instruction, k: int) -> bool:
    """Whether A cannot be read in place, in blocks of this depth `k`, or is read so often that a copy pays.

    Rows that are whole pages apart map to the same sets of the first-level cache, which should hold a panel of B.
    """
    if not p.a.direct or p.a.narrow:
        return True
    paged = p.a.dense and p.k * p.size % PAGE == 0
    if row.function != DOT:
        return paged and p.m > row.m and p.n > OFTEN * row.n
    # A tile has the same layout as A, unless rows that are whole pages long are padded.
    same = p.a.dense and k == p.k and not paged
    return p.a.along != "k" or (p.m > row.m and p.n > OFTEN * row.n and not same)


def _block(p: Matmul, target: Target, row: Instruction, pack_b: bool) -> tuple[int, int, int]:
    """Block sizes m, n and k.

    A panel of B (k x the instruction's columns) takes half the first-level cache. A packed block of B, a block of the
    result, and, if vectors run along k, a packed block of A take a quarter of the second level each, or half if B is
    packed. A matrix that is read once by a single row of tiles and exceeds the second level is read in long rows
    instead.
    """
    flat, size, l1, l2 = row.function == DOT, p.size, target.l1, target.l2
    one = p.m <= row.m
    if one and not flat and not pack_b and p.k * p.n * size > l2:
        return p.m, cut(p.n, l2 // 4 // (p.m * p.bytes), row.n), STREAM_DEPTH
    share = 2 if pack_b else 4
    deep = max(64, l1 * 2 // (share * row.n * size))
    if one and flat and p.m * p.k * size <= l2 // 4:
        deep = p.k  # B is read once: best from end to end
    k = _depth(p, deep if flat or pack_b else min(deep, _rows_in_place(p, target)), target.lanes(size))
    if flat and k > deep and p.n > OFTEN * row.n:  # rows of A, which are read as often, also fit beside the panel
        k = _several(p, l1 // ((row.m + row.n) * size), target.lanes(size)) or k
    held = l2 // share // (BLOCK_COLUMNS * size)  # of k, for a block of so many rows or columns
    if not flat and k > max(deep, held):
        k = _several(p, held, 1) or k
    most = l2 // share // ((k if flat else NARROWEST) * size)
    m = cut(p.m, most, _rows(p, row, most))
    wide = max(m * p.bytes, k * size if pack_b else 1)
    return m, cut(p.n, l2 // share // wide, p.b.unit if p.b.unit > 1 else row.n), k


def _rows_in_place(p: Matmul, target: Target) -> int:
    """Rows of a block of B that is read in place: hardware prefetches fewer of them from memory than from a cache."""
    from_memory = cost.exceeds_caches(target, p.k * p.n * p.size)
    return STREAMS if from_memory else int(costs(target)["in_place.rows"])


def _rows(p: Matmul, row: Instruction, most: int) -> int:
    """The multiple that blocks of at most `most` rows should have: whole inner loops if several play the part of m."""
    return p.a.unit if 1 < p.a.unit <= most else row.m


def _depth(p: Matmul, most: int, lanes: int) -> int:
    """A block of k of at most `most`: whole inner loops or, if these are too long, a part of the innermost loop.

    A part that divides the innermost loop has a fixed position in the others, and may be a block of its buffer.
    """
    unit, last = _inner(p)
    parts = [n for n in range(SHALLOWEST, min(most, last) + 1) if n % lanes == 0 == last % n]
    if unit > most and parts:
        return max(parts)
    return p.k if p.k <= most else cut(p.k, most, unit if unit > 1 else lanes)


def _several(p: Matmul, most: int, lanes: int) -> int:
    """A block of k of at most `most`: iterations of the innermost loop that divide the inner loops; 0 if none."""
    unit, last = _inner(p)
    return max((n for n in range(last, min(most, unit) + 1, last) if n % lanes == 0 == unit % n), default=0)


def _inner(p: Matmul) -> tuple[int, int]:
    """Extents of the inner loops of k together and of the innermost, for operands not readable along all of k."""
    return max(p.a.k_unit, p.b.k_unit), max(p.a.k_last, p.b.k_last)


def cut(size: int, block: int, multiple: int) -> int:
    """The size of about equal blocks: a multiple of `multiple`, at most `block` if possible, at most `size`."""
    even = ceildiv(size, ceildiv(size, max(block // multiple * multiple, multiple)))
    return min(size, ceildiv(even, multiple) * multiple)


def _packing_b(p: Matmul, along: str, target: Target, k: int) -> float:
    """Cycles to pack an element of B for an instruction that takes vectors of memory as they are."""
    return packing(p.b, along, target, k, _is_streamed(p, target, along))


def _is_streamed(p: Matmul, target: Target, along: str) -> bool:
    """Whether B, contiguous along this part, is read from beyond the second-level cache."""
    return p.b.along == along and p.k * p.n * p.size > target.l2 // 2


def packing(x: Operand, along: str, target: Target, k: int, streamed: bool = False) -> float:
    """Cycles to pack one element into a tile that is contiguous along this part, in blocks of depth `k`.

    A `streamed` operand comes from beyond the second-level cache.
    """
    direct, run = x.direct or k <= x.within, x.k_run if along == "k" else x.run
    rows = costs(target)["row"] / run if run else 0.0
    return cost.packing(target, x.along == along, direct and not x.narrow, streamed) + rows
