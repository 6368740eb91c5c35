"""Blocks of chained matmuls with results in registers: what attention and chains share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from compiler.analysis.online_softmax import For
from compiler.ir import loop
from compiler.schedule import names as naming
from compiler.schedule.gpu import matmul, matmul_axes
from compiler.schedule.gpu.matmul import WARP
from compiler.schedule.steps import Bind, Cache, Promote, Reorder, Split, SplitTf32, Step, Tensorize, names_made
from compiler.targets.target import Instruction, Target

CHUNK = 32  # keys, or steps of depth, whose three tf32 products are summed before they are added to the accumulator
DEPTH = 2  # blocks of columns in shared memory (pipeline stages)
# Columns of a block and pipeline stages, for blocks of one warp, which waits for memory. One query of 64 sequences by
# 16 heads of 4096 keys and 64 features, whose keys threads copy, took 240 us on an H200 with three stages, 253 with
# two. Where the copy engine copies them, the two are level, and 32 columns are faster for 128 features of 64 sequences
# (128 us, 132 with 64 columns) and slower for one sequence (67 and 65.5).
SINGLE_WARP = ((64, 2), (32, 2), (64, 3))
SINGLE_WARP_COPYING = ((64, 3), (64, 2), (32, 2))
WARPS = (8, 4, 2)  # warps per block, most first: with more, columns are read fewer times
NARROW = 64  # features: three blocks of one warpgroup and 128 columns fit
MOST_FEATURES = 128  # for single warps: wider sums do not fit in registers
PANEL = 32  # features per step of a threefold product: sums and pieces of 48 registers


@dataclass(frozen=True)
class Way:
    """Instructions for scores and values; queries, keys and threads per block; the unit for padding sizes; pipeline
    stages."""

    score: Instruction
    value: Instruction
    rows: int
    keys: int
    threads: int
    unit: int
    by_tma: bool
    stages: int = DEPTH

    @property
    def grid(self) -> tuple[int, int]:
        """The grid of thread groups: along rows only, because a softmax needs whole rows."""
        return self.threads // self.score.threads, 1

    @property
    def threefold(self) -> bool:
        """Whether a product of f32 is three products of tf32."""
        return self.score.a_type == "f32"

    @property
    def uses_warpgroups(self) -> bool:
        """Whether warpgroups multiply, with operands in shared memory (wgmma)."""
        return self.score.b_space == "shared"

    @property
    def overlaps(self) -> bool:
        """Whether the softmax of a block of keys overlaps with the matmul of the previous block's values.

        A single warpgroup leaves the overlap to other blocks of its multiprocessor: late weights made it 5 % slower on
        an H200, where two warpgroups with 128 features gained 16 %.
        """
        return self.uses_warpgroups and self.rows > self.score.m


def instructions(target: Target, kind: str) -> list[Instruction]:
    """Instructions that multiply factors of type `kind` and accumulate in f32."""
    return [r for r in target.instructions if (r.a_type, r.b_type, r.acc_type) == (kind, kind, "f32")]


def warpgroup_way(score: Instruction, value: Instruction, groups: int, columns: int, by_tma: bool) -> Way:
    """The way with so many warpgroups, each with the rows of one instruction."""
    return Way(score, value, groups * score.m, columns, groups * score.threads, score.k, by_tma)


def warp_ways(
    rows: list[Instruction], most: int, columns: int, by_tma: bool, queries: int | None = None
) -> Iterator[Way]:
    """Ways with single warps, each with the rows of one instruction, and at most `most` columns per block.

    If there are so few `queries` that one warp has rows for all, a block is that warp, with several sizes of blocks.
    """
    sync = max((r for r in rows if r.function == "mlc_mma_sync"), key=lambda r: r.m * r.k, default=None)
    if sync is not None:
        threefold = sync.a_type == "f32"
        count = most if threefold else min(most, matmul.up(columns, sync.k))
        unit = CHUNK if threefold else sync.k
        if queries is None or queries > sync.m:
            yield from (Way(sync, sync, n * sync.m, count, n * WARP, unit, by_tma) for n in WARPS)
            return
        sizes = ((min(n, count), stages) for n, stages in (SINGLE_WARP if by_tma else SINGLE_WARP_COPYING))
        yield from (Way(sync, sync, sync.m, n, WARP, unit, by_tma, stages) for n, stages in dict.fromkeys(sizes))


@dataclass
class Steps:
    """The steps for one way, collected one by one."""

    way: Way
    steps: list[Step] = field(default_factory=list)

    def bind_lanes(self, rows: str, *columns: str) -> None:
        self.steps.append(Bind(rows, "lanes", (("threads", self.way.threads),)))
        self.steps += [Bind(x, "lanes") for x in columns]

    def bind_grid(self, rows: str, batch: Iterable[For], rows_first: bool) -> None:
        """Bind the grid. With `rows_first`, blocks of all heads with the longest rows start first."""
        outer = [x.var for x in batch]
        if rows_first:
            self.steps.append(Reorder((rows, *outer)))
        self.steps += [Bind(x, "blocks") for x in (*outer, rows)]

    def pipeline(self, loop: str, tile_words: int, target: Target, overlapped: bool = False) -> None:
        """Pipeline the copies of the next block of columns; each thread holds `tile_words` words of tiles."""
        producers = (("producers", 1),) if self.way.by_tma else ()
        overlap = (("overlap", 1),) if overlapped else ()
        registers = (
            matmul.register_arguments(tile_words, self.way.threads, 1, target) if self.way.uses_warpgroups else ()
        )
        self.steps.append(Bind(loop, "pipeline", (("depth", self.way.stages), *producers, *overlap, *registers)))

    def cache_shared(
        self, x: matmul_axes.Factor, word: str, own: dict[str, tuple[str, int]], panels: bool = True
    ) -> str:
        """Cache a factor in shared memory; `own` has the loop and length of each part, the contiguous part is last."""
        name = f"{x.buffer}_{word}"
        loops = (own[x.order[0]][0], own[x.order[1]][0])
        row = own[x.order[1]][1] * x.operand.bytes
        # A transposed 32-bit operand is loaded element by element, from four rows that lie side by side in panels of 32
        # bytes. Wider panels would need as many addresses as there are columns.
        widths = (32, 0) if self.way.threefold and x.order[1] == "own" and panels else (128, 64, 32, 0)
        swizzle = next(w for w in widths if not w or row % w == 0)
        how = "" if not x.operand.copied else "cp.async" if x.operand.piece in matmul_axes.PIECES else "plain"
        into = "" if how else f"{name}_at"
        self.steps.append(Cache(x.buffer, name, loops, "shared", "tma" if self.way.by_tma else how, swizzle, into))
        if into:
            self.bind_lanes(into)
        return name

    def fresh_name(self, name: str) -> str:
        """The name, with an underscore added if an earlier step creates that name."""
        return f"{name}_" if any(name in names_made(s) for s in self.steps) else name

    def tensorize(
        self, acc: str, nest: tuple[str, str, str], operands: tuple[str, str], row: Instruction, width: int = 0
    ) -> None:
        """Tensorize a matmul of shared tiles by pieces of the depth; an empty operand name is in registers.

        `width` is the number of columns, if they may exceed those of one step.
        """
        add, (m, n, k) = self.steps.append, nest
        if self.way.uses_warpgroups:
            add(Tensorize(nest, row.name, self.way.grid))
            return
        if self.way.threefold:
            panel = next(p for p in range(PANEL, 0, -row.n) if width % p == 0)
            around: list[str] = []
            if width > panel:
                panels, piece = naming.pieces(n)
                add(Split(n, panel, (panels, piece)))
                around, n = [panels], piece
            chunks, steps = naming.pieces(k)
            add(Split(k, CHUNK, (chunks, steps)))
            add(Reorder((*around, chunks, m, n, steps)))
            self.steps += [Bind(x, "unroll") for x in around]
            chunk = Promote(acc, chunks, f"{acc}_chunk")
            add(chunk)
            for loops in (chunk.first, chunk.last):
                self.bind_lanes(*loops)
            k = steps
        each, step = naming.pieces(k)
        self.steps += [Split(k, row.k, (each, step)), Reorder((each, m, n, step)), Bind(each, "unroll")]
        inner = m, n, step
        pieces = [(self.fresh_name(f"{x}_piece"), x, own) for x, own in zip(operands, (m, n), strict=True) if x]
        self.steps += [Cache(x, piece, (own, inner[2]), "registers", "plain") for piece, x, own in pieces]
        if self.way.threefold:
            a, b = (piece for piece, _, _ in pieces)
            halves = SplitTf32(inner, (a, b), (*inner, a, b))
            add(halves)
            for _, _, row_loop, column in halves.halves:
                self.bind_lanes(row_loop, column)
            self.steps += [Tensorize(x, row.name, self.way.grid) for x in (halves.small, halves.cross)]
        add(Tensorize(inner, row.name, self.way.grid))


def as_loop(f: For) -> loop.For:
    return loop.For(f.var, f.extent, f.kind, ())
