"""Matmuls of blocks whose results stay in registers: their instructions, and the steps that all of them share."""

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

CHUNK = 32  # keys, or steps of depth, whose three products by tf32 are summed before they are added to what was
DEPTH = 2  # blocks of columns in shared memory
WARPS = (8, 4, 2)  # of a block where each multiplies by itself, most first: the more, the fewer times columns are read
NARROW = 64  # features: three blocks of a group and 128 columns fit
MOST_FEATURES = 128  # of one warp: wider sums do not fit in registers beside the rest
PANEL = 32  # features that are multiplied together where a product takes three: sums and pieces of 48 registers


@dataclass(frozen=True)
class Way:
    """The instructions for scores and for values; a block's queries, keys and threads; what sizes are padded to."""

    score: Instruction
    value: Instruction
    rows: int
    keys: int
    threads: int
    unit: int
    by_tma: bool

    @property
    def grid(self) -> tuple[int, int]:
        """A softmax needs whole rows."""
        return self.threads // self.score.threads, 1

    @property
    def threefold(self) -> bool:
        """A matmul of f32 is three of tf32."""
        return self.score.a_type == "f32"

    @property
    def by_groups(self) -> bool:
        """Four warps multiply together what stays in shared memory."""
        return self.score.b_space == "shared"

    @property
    def overlaps(self) -> bool:
        """The softmax of a block of keys runs beside the matmul with the values before it.

        A group alone leaves that to the other blocks of its multiprocessor: weights that come late made it 5 % slower
        on an H200, where two groups of 128 features gained 16 %.
        """
        return self.by_groups and self.rows > self.score.m


def instructions(target: Target, kind: str) -> list[Instruction]:
    """Those that multiply factors of a type and add the products in f32."""
    return [r for r in target.instructions if (r.a_type, r.b_type, r.acc_type) == (kind, kind, "f32")]


def by_groups(score: Instruction, value: Instruction, groups: int, columns: int, by_tma: bool) -> Way:
    """So many groups of four warps, each with the rows of an instruction."""
    return Way(score, value, groups * score.m, columns, groups * score.threads, score.k, by_tma)


def by_warps(rows: list[Instruction], most: int, columns: int, by_tma: bool) -> Iterator[Way]:
    """Warps that multiply by themselves, each with the rows of an instruction; `most` columns to a block."""
    sync = max((r for r in rows if r.function == "mlc_mma_sync"), key=lambda r: r.m * r.k, default=None)
    if sync is not None:
        threefold = sync.a_type == "f32"
        count = most if threefold else min(most, matmul.up(columns, sync.k))
        unit = CHUNK if threefold else sync.k
        yield from (Way(sync, sync, n * sync.m, count, n * WARP, unit, by_tma) for n in WARPS)


@dataclass
class Steps:
    """Steps for one way, added one by one."""

    way: Way
    steps: list[Step] = field(default_factory=list)

    def spread(self, rows: str, *columns: str) -> None:
        self.steps.append(Bind(rows, "lanes", (("threads", self.way.threads),)))
        self.steps += [Bind(x, "lanes") for x in columns]

    def over_blocks(self, rows: str, batch: Iterable[For], rows_first: bool) -> None:
        """The blocks of the grid, of which those with most to do begin first where `rows_first`."""
        outer = [x.var for x in batch]
        if rows_first:
            self.steps.append(Reorder((rows, *outer)))
        self.steps += [Bind(x, "blocks") for x in (*outer, rows)]

    def pipeline(self, loop: str, held: int, target: Target, late: bool = False) -> None:
        """Copies of the next block of columns beside the computation; groups of threads hold so many words each."""
        producers = (("producers", 1),) if self.way.by_tma else ()
        overlap = (("overlap", 1),) if late else ()
        registers = matmul.reallocated(held, self.way.threads, 1, target) if self.way.by_groups else ()
        self.steps.append(Bind(loop, "pipeline", (("depth", DEPTH), *producers, *overlap, *registers)))

    def shared(self, x: matmul_axes.Factor, word: str, own: dict[str, tuple[str, int]], panels: bool = True) -> str:
        """A factor's tile in shared memory, in rows along the last of its parts; `own` are their loops and lengths."""
        name = f"{x.buffer}_{word}"
        loops = (own[x.order[0]][0], own[x.order[1]][0])
        row = own[x.order[1]][1] * x.operand.bytes
        # What is 32 bits wide is not transposed as it is loaded, but taken element by element: from four rows, that lie
        # side by side in panels of 32 bytes. Wider panels would take as many addresses as there are columns.
        widths = (32, 0) if self.way.threefold and x.order[1] == "own" and panels else (128, 64, 32, 0)
        swizzle = next(w for w in widths if not w or row % w == 0)
        how = "" if not x.operand.copied else "cp.async" if x.operand.piece in matmul_axes.PIECES else "plain"
        into = "" if how else f"{name}_at"
        self.steps.append(Cache(x.buffer, name, loops, "shared", "tma" if self.way.by_tma else how, swizzle, into))
        if into:
            self.spread(into)
        return name

    def free(self, name: str) -> str:
        """The name, with an underscore behind it where a step before makes something that is called so."""
        return f"{name}_" if any(name in names_made(s) for s in self.steps) else name

    def contraction(
        self, acc: str, nest: tuple[str, str, str], operands: tuple[str, str], row: Instruction, width: int = 0
    ) -> None:
        """The matmul of what is in shared memory, a piece of the depth at a time; an operand without a name is not.

        `width` is how many columns there are, where they may be more than go together.
        """
        add, (m, n, k) = self.steps.append, nest
        if self.way.by_groups:
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
                self.spread(*loops)
            k = steps
        each, step = naming.pieces(k)
        self.steps += [Split(k, row.k, (each, step)), Reorder((each, m, n, step)), Bind(each, "unroll")]
        inner = m, n, step
        pieces = [(self.free(f"{x}_piece"), x, own) for x, own in zip(operands, (m, n), strict=True) if x]
        self.steps += [Cache(x, piece, (own, inner[2]), "registers", "plain") for piece, x, own in pieces]
        if self.way.threefold:
            a, b = (piece for piece, _, _ in pieces)
            halves = SplitTf32(inner, (a, b), (*inner, a, b))
            add(halves)
            for _, _, row_loop, column in halves.halves:
                self.spread(row_loop, column)
            self.steps += [Tensorize(x, row.name, self.way.grid) for x in (halves.small, halves.cross)]
        add(Tensorize(inner, row.name, self.way.grid))


def as_loop(f: For) -> loop.For:
    return loop.For(f.var, f.extent, f.kind, ())
