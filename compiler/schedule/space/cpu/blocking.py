"""The size of a matmul, where its operands lie, and a target in; instructions and blocks for it out.

Everything follows from the caches and from an estimate of cycles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compiler.ir.multiples import ceildiv
from compiler.schedule.cost import cpu as cost
from compiler.schedule.cost.cpu import step
from compiler.targets.target import Instruction, Target, costs

STREAM_DEPTH = (
    8  # rows of a matrix read once that are read side by side: each is a stream of its own for the prefetcher
)
DEEPEST = 32  # rows of a block of B that is read where it lies: each is a page and a stream to be prefetched
BLOCK_COLUMNS = 128  # columns that a block of B which many rows come by has at least: A is read once for each block
SHALLOWEST = 128  # products of a part of a loop: what it adds to is loaded and stored once for each
NARROWEST = 512  # columns of a block, where there are so many: long rows of B are read faster
PAGE = 4096  # rows that are multiples of this many bytes apart fall on the same sets of a first-level cache
SELDOM, WIDE = 2, 192  # row tiles, and bytes of a panel's row: narrower ones are read too slowly where they lie
OFTEN = 16  # row tiles that read a matrix before a copy of it in better order pays
STRIPPED = 96  # rows that come by a block of B in strips, where there are more
PAIRED_PANEL = 24 << 10  # bytes that mlc_pair_block lays out at a time
ROWS = 8  # instructions that are tried for a block, the fastest first
WORTH_CORES = 1 << 22  # multiply-adds, some 50 us of one core: less is not worth waking another
MANY = 16  # times what an instruction computes: sums of a part of one do not show
PANEL, DOT, PAIRS = cost.PANEL, cost.DOT, cost.PAIRS


@dataclass(frozen=True)
class Operand:
    """A factor: whether an instruction can read it where it lies, along which of "m", "n", "k" it is contiguous,
    how many bytes one step of k moves it, whether its elements are narrower than the sum's, the multiples of which
    blocks should be along its own part and along k (the inner loops of several that play the part stay whole), whether
    the end of each row of k is where the next one begins, how long the innermost of several loops of k is, and whether
    what lies within that is a block of its buffer."""

    direct: bool
    along: str
    step: int
    narrow: bool
    unit: int = 1
    k_unit: int = 1
    dense: bool = False
    k_last: int = 1
    within: bool = False


@dataclass(frozen=True)
class Matmul:
    """acc[m, n] = sum over k of a[m, k] * b[k, n], `batch` times; `dtype` and `bytes` are those of the sum,
    `factor` and `size` those of factors as an instruction takes them."""

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
    """The instruction, the block of each part, what is packed, how many cores it is worth, and the cycles it takes.

    In `strips`, blocks of columns lie around blocks of rows, and within these as many rows as the instruction has go
    along all columns before the next rows do.
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
        """Vectors lie along k."""
        return self.row.function == DOT


def space(p: Matmul, target: Target) -> list[Blocking]:
    """The blockings of a matmul, those of fewest cycles first; none if the target has no instruction for the type."""
    functions = {r.function for r in target.instructions if _takes(r, p)}
    if p.b.along != "k":
        functions.discard(DOT)
    kinds = [list(_by(function, p, target)) for function in (PANEL, DOT, PAIRS) if function in functions]
    kinds = sorted((x for x in kinds if x), key=lambda x: (x[0].cycles, -x[0].row.m * x[0].row.n))
    made = (b for x in kinds for b in x)
    if p.dtype == "i32":  # products of bytes, which a tile would widen
        made = (replace(b, pack_a=False, pack_b=False) for x in kinds for b in x if not b.pack_b)
    return sorted((_balanced(p, b) for b in made), key=lambda b: b.cycles)


def _balanced(p: Matmul, b: Blocking) -> Blocking:
    """The blocking with the cycles that its blocks take where the cores have not all the same number of them."""
    blocks = p.batch * ceildiv(p.m, b.m) * ceildiv(p.n, b.n)
    return replace(b, cycles=b.cycles * cost.imbalance(blocks, b.cores))


def _takes(r: Instruction, p: Matmul) -> bool:
    return (r.a_type, r.b_type, r.acc_type) == (p.factor, p.factor, p.dtype)


def _steps(p: Matmul, row: Instruction, target: Target) -> float:
    """How often an instruction takes the next elements along k: a vector of them, a pair, or one."""
    return p.k / (target.lanes(p.size) if row.function == DOT else p.bytes // p.size if row.function == PAIRS else 1)


def _by(function: str, p: Matmul, target: Target) -> Iterator[Blocking]:
    """Blockings for instructions of one kind, that for the fastest of them first."""
    rows = [r for r in target.instructions if r.function == function and _takes(r, p) and r.m <= p.m]
    timed = sorted((step(p.m, p.n, p.bytes, target, r), _loads(p, r, target), n) for n, r in enumerate(rows))[:ROWS]
    if timed:
        (least, _, best), *others = timed
        made = _blocks(p, target, rows[best])
        yield made
        yield from _beside(p, made, target)
        steps = _steps(p, made.row, target)
        for cycles, _, n in others:
            yield replace(made, row=rows[n], cycles=made.cycles + steps * (cycles - least))


def _loads(p: Matmul, row: Instruction, target: Target) -> float:
    """How many loads an instruction makes for each of its multiply-adds."""
    vectors = row.n if row.function == DOT else row.n // target.lanes(p.bytes)
    return (row.m + vectors) / (row.m * vectors)


def _beside(p: Matmul, b: Blocking, target: Target) -> Iterator[Blocking]:
    """Smaller blocks, for which what is packed may be packed more often, and operands packed that need not be."""
    if b.m > 2 * b.row.m:
        m = cut(p.m, b.m // 2, b.row.m)
        each = p.k * p.n * packing(p.b, "k" if b.flat else "n", target, b.k) if b.pack_b else 0.0
        each += 0.0 if b.strips else cost.fetching(target, p.k * p.n * p.size)
        yield replace(b, m=m, cycles=b.cycles + (ceildiv(p.m, m) - ceildiv(p.m, b.m)) * each)
    if b.n > 2 * b.row.n:
        yield replace(b, n=cut(p.n, b.n // 2, p.b.unit if 1 < p.b.unit <= b.n // 2 else b.row.n))
    if not b.pack_b:
        yield replace(b, pack_b=True, cycles=b.cycles + p.k * p.n * packing(p.b, "k" if b.flat else "n", target, b.k))
    if not b.pack_a and not b.strips:
        yield replace(b, pack_a=True, cycles=b.cycles + p.m * p.k * packing(p.a, "k", target, b.k))


def _blocks(p: Matmul, target: Target, row: Instruction) -> Blocking:
    plain = p.a.direct and p.b.direct and not (p.a.narrow or p.b.narrow)
    if row.function == PANEL and plain and p.m > STRIPPED:
        return _strips(p, target, row)
    return _paired(p, target, row) if row.function == PAIRS else _tiles(p, target, row)


def _paired(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """As many rows as can be come by each panel of B, which is laid out in pairs for each block of them: laying it out
    takes as long as 20 rows do. Panels go down all of k; what stays in half the second level meanwhile is what the rows
    have of A beside a panel, and a block of the result."""
    half, wide = target.l2 // 2, p.b.unit if p.b.unit > 1 else row.n
    beside = PAIRED_PANEL // (row.n * p.bytes) * p.bytes  # bytes of a row of A
    k = _depth(p, p.k, target.lanes(p.size))
    m = cut(p.m, half // (beside + BLOCK_COLUMNS * p.bytes), row.m)
    n = cut(p.n, (half - m * beside) // (m * p.bytes), wide)
    cores = target.cores if p.m * p.n * p.k * p.batch >= WORTH_CORES else 1
    if p.batch * ceildiv(p.m, m) * ceildiv(p.n, n) < cores:
        n = cut(p.n, ceildiv(p.n * p.batch * ceildiv(p.m, m), cores), wide)
    pack_a, pack_b = not p.a.direct or p.a.along != "k", not p.b.direct
    cycles = _steps(p, row, target) * step(p.m, p.n, p.bytes, target, row)
    cycles += p.k * p.n * ceildiv(p.m, m) * packing(p.b, "n", target, k)
    cycles += p.k * p.n * ceildiv(p.m, m) * packing(p.b, "n", target, k) if pack_b else 0
    cycles += p.m * p.k * packing(p.a, "k", target, k) if pack_a else 0
    cycles += ceildiv(p.m, m) * cost.fetching(target, p.k * p.n * p.size)
    return Blocking(row, m, n, k, pack_a, pack_b, cores, cycles)


def _strips(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """Many rows: a block of B takes half the second level, and A comes by it in strips of the instruction's rows.

    A strip stays in the first level while it meets all columns of the block, which stream from the second; so does what
    it adds up to. Only where the block cannot be deep enough for all of k does the sum of many rows wait beside it.
    Unless its block is the whole of it, B is packed in panels as wide as the instruction: where it lies, each of its
    rows may be on a page of its own.
    """
    size, l1, l2 = p.bytes, target.l1, target.l2
    k = cut(p.k, max(l2 // 2 // (BLOCK_COLUMNS * size), target.lanes(size)), target.lanes(size))
    n = cut(p.n, min(l2 // 2 // (k * size), l1 // 2 // (row.m * size)), row.n)
    cores = target.cores if p.m * p.n * p.k * p.batch >= WORTH_CORES else 1
    if p.batch * ceildiv(p.n, n) < cores:
        n = cut(p.n, ceildiv(p.n * p.batch, cores), row.n)
    m = min(row.m, p.m)
    if k < p.k:
        m = cut(p.m, l2 // 4 // (n * size), row.m)
    # Where blocks of columns do not come out even, each core takes its share of the rows, and not strip by strip: B is
    # packed for each block of rows.
    if cost.imbalance(p.batch * ceildiv(p.n, n), cores) > cost.EVEN:
        m = cut(p.m, min(l2 // 4 // (n * size), ceildiv(p.m, cores)), row.m)
    pack_b = p.b.along != "n" or k < p.k or p.b.step != n * size or p.b.step % PAGE == 0
    times = ceildiv(p.m, m) if k < p.k or m > row.m else 1
    cycles = p.k * step(p.m, p.n, p.bytes, target, row) + (
        p.k * p.n * times * packing(p.b, "n", target, k) if pack_b else 0
    )
    return Blocking(row, m, n, k, False, pack_b, cores, cycles, strips=True)


def _tiles(p: Matmul, target: Target, row: Instruction) -> Blocking:
    """The blocks of a matmul by an instruction, which are smaller where there would be too few for all cores."""
    flat = row.function == DOT
    pack_b = _packs_b(p, row)
    m, n, k = _block(p, target, row, pack_b)
    pack_a = _packs_a(p, row, k)
    cores = target.cores if p.m * p.n * p.k * p.batch >= WORTH_CORES else 1
    others = p.batch * ceildiv(p.m, m)
    if others * ceildiv(p.n, n) < cores:
        share = ceildiv(p.n * others, cores)
        # Of many columns summed along vectors, a few more or less cost little; whole vectors of them store best. Loops
        # that stay whole can be packed by vectors.
        whole = target.lanes(p.size) if flat and share >= MANY * row.n else row.n
        n = cut(p.n, share, p.b.unit if 1 < p.b.unit <= share else whole)
    cycles = _steps(p, row, target) * step(p.m, p.n, p.bytes, target, row) + (
        p.m * p.n * ceildiv(p.k, k) * costs(target)["lanes"] if flat else 0
    )
    cycles += p.k * p.n * ceildiv(p.m, m) * packing(p.b, "k" if flat else "n", target, k) if pack_b else 0
    cycles += p.m * p.k * packing(p.a, "k", target, k) if pack_a else 0
    cycles += ceildiv(p.m, m) * cost.fetching(target, p.k * p.n * p.size)
    return Blocking(row, m, n, k, pack_a, pack_b, cores, cycles)


def _packs_b(p: Matmul, row: Instruction) -> bool:
    """B cannot be read where it lies, or is read so often that a copy in better order pays."""
    tiles = ceildiv(p.m, row.m)
    often = (tiles > OFTEN and (p.b.step % PAGE == 0 or p.b.narrow)) or (tiles > SELDOM and row.n * p.size < WIDE)
    return not p.b.direct or (p.b.along != "k" if row.function == DOT else often or p.b.along != "n")


def _packs_a(p: Matmul, row: Instruction, k: int) -> bool:
    """A cannot be read where it lies, in blocks of so much of k, or is read so often that a copy pays.

    Rows that are whole pages apart all fall on the same sets of the first level, where a panel of B wants to stay.
    """
    if not p.a.direct or p.a.narrow:
        return True
    paged = p.a.dense and p.k * p.size % PAGE == 0
    if row.function != DOT:
        return paged and p.m > row.m and p.n > OFTEN * row.n
    # A tile of A would lie as A does, unless its rows, of whole pages, were put further apart.
    same = p.a.dense and k == p.k and not paged
    return p.a.along != "k" or (p.m > row.m and p.n > OFTEN * row.n and not same)


def _block(p: Matmul, target: Target, row: Instruction, pack_b: bool) -> tuple[int, int, int]:
    """Block sizes m, n and k: a panel of B (KC x NR) takes half the first level; what is packed of B, a block of the
    result (MC x NC), and of A where vectors lie along k (MC x KC), a quarter of the second each, or half where B is
    packed.

    A matrix that one row of tiles reads once, and that the second level cannot hold, is read in long rows instead.
    """
    flat, size, l1, l2 = row.function == DOT, p.size, target.l1, target.l2
    one = p.m <= row.m
    if one and not flat and not pack_b and p.k * p.n * size > l2:
        return p.m, cut(p.n, l2 // 4 // (p.m * p.bytes), row.n), STREAM_DEPTH
    share = 2 if pack_b else 4
    deep = max(64, l1 * 2 // (share * row.n * size))
    if one and flat and p.m * p.k * size <= l2 // 4:
        deep = p.k  # B is read once: best from end to end
    k = _depth(p, deep if flat or pack_b else min(deep, DEEPEST), target.lanes(size))
    if flat and k > deep and p.n > OFTEN * row.n:  # rows of A, which are read as often, find room beside the panel, too
        k = _several(p, l1 // ((row.m + row.n) * size), target.lanes(size)) or k
    m = cut(p.m, l2 // share // ((k if flat else NARROWEST) * size), row.m)
    wide = max(m * p.bytes, k * size if pack_b else 1)
    return m, cut(p.n, l2 // share // wide, p.b.unit if p.b.unit > 1 else row.n), k


def _depth(p: Matmul, most: int, lanes: int) -> int:
    """A block of k of at most so much: whole inner loops or, where they are longer together, a part of the innermost.

    A part that divides it has one place in the others, and may be a block of its buffer.
    """
    unit = p.b.k_unit
    parts = [n for n in range(SHALLOWEST, min(most, p.b.k_last) + 1) if n % lanes == 0 == p.b.k_last % n]
    if unit > most and parts:
        return max(parts)
    return cut(p.k, most, unit if unit > 1 else lanes)


def _several(p: Matmul, most: int, lanes: int) -> int:
    """A block of k of at most so much: several of the innermost loop, which divide the inner loops; 0 for none."""
    last, unit = p.b.k_last, p.b.k_unit
    return max((n for n in range(last, min(most, unit) + 1, last) if n % lanes == 0 == unit % n), default=0)


def cut(size: int, block: int, multiple: int) -> int:
    """Blocks of about equal size: multiples of `multiple`, at most `block` where that is one, or all of `size`."""
    even = ceildiv(size, ceildiv(size, max(block // multiple * multiple, multiple)))
    return min(size, ceildiv(even, multiple) * multiple)


def packing(x: Operand, along: str, target: Target, k: int) -> float:
    """Cycles to bring one element into a tile that is contiguous along this part, in blocks of so much of k."""
    direct = x.direct or (x.within and k <= x.k_last)
    return cost.packing(target, x.along == along, direct and not x.narrow)
