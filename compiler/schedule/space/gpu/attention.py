"""A loop nest that sums values weighted by a softmax and a target in; one pass over blocks of keys by tensor cores out.

Each warp has 16 queries of a block. Keys and values come to shared memory while those before are multiplied: by the
copy engine, which a warp of its own asks for them, or else by copies of all threads. Scores and sums stay in registers,
and so do weights of 16 bits: what a thread holds of the scores is what it needs of these as a left operand. That is not
so for weights of 32 bits, which take the way through shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from compiler.analysis import online_softmax
from compiler.ir import loop
from compiler.ir.dtype import f32
from compiler.ir.expr import static
from compiler.ir.index import extent_range
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import size
from compiler.schedule.cost import gpu as cost
from compiler.schedule.gpu import matmul, matmul_axes
from compiler.schedule.gpu.matmul import RESERVED, WARP
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Cache, Online, Promote, Reorder, Schedule, Split, SplitTf32, Step, Tensorize
from compiler.targets.target import Instruction, Target

KEYS = 64  # a block of keys: its scores are 32 registers a thread
CHUNK = 32  # keys, or steps of depth, whose three products by tf32 are summed before they are added to what was
THREEFOLD_KEYS = 32  # a block of keys where a product of f32 takes three of tf32
PANEL = 32  # features that are multiplied together where a product takes three: sums and pieces of 48 registers
# Groups of four warps in a block, each with 64 queries, and keys: two groups read keys and values once for both; of one
# alone, two blocks or more fit in a multiprocessor, and multiply in turn while the other is at its softmax. These were
# the fastest for 512 to 4096 queries on an H200, where blocks with less than every other multiprocessor to fill lost to
# warps that go by themselves, with 32 queries to a block.
GROUPS = ((2, 128), (1, 64))
GROUPS_NARROW = ((1, 128),)
NARROW = 64  # features: three blocks of a group and 128 keys fit
WARPS = (8, 4, 2)  # of a block, most first: the more, the fewer times keys and values are read
DEPTH = 2  # blocks of keys in shared memory
ROWS = 6  # words of a thread: maximum, total and factor of each of its two rows
MOST_FEATURES = 128  # of one warp: the sums of wider values do not fit in registers beside the rest


def space(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Member] | None:
    """Blocks for `kernel`; None if it holds no such sum, or none that the target has instructions for.

    `private` names the temporaries that no other kernel uses.
    """
    found = online_softmax.attention(kernel, private)
    if found is None:
        return None
    return _Plan(*found, {p.name: p for p in kernel.params}, target).space()


@dataclass(frozen=True)
class _Way:
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


@dataclass
class _Plan:
    found: online_softmax.Online
    scores: online_softmax.Scores
    tensors: dict[str, Tensor]
    target: Target
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        f, s = self.found, self.scores
        key = loop.For(online_softmax.KEY.name, f.keys, "parallel", ())
        rows, keys, depth, features = (matmul_axes.axis([_loop(x)]) for x in (f.query, key, s.depth, f.feature))
        every = (*f.rows, f.feature, s.depth, key)
        ranges: dict[str, Range] = {x.var: extent_range(x.extent) for x in every}
        self.queries, self.keys, self.depth, self.features = rows.size, keys.size, depth.size, features.size
        self.q = matmul_axes.factor(s.left, rows, depth, self.tensors, ranges)
        self.k = matmul_axes.factor(s.right, keys, depth, self.tensors, ranges)
        self.v = matmul_axes.factor(f.value, features, keys, self.tensors, ranges)

    # ---- the choice

    def ways(self) -> Iterator[_Way]:
        """From the largest blocks to the smallest; operands are of one type that weights are rounded to."""
        kinds = {x.value.dtype for x in (self.q, self.k, self.v)} | {self.found.weight}
        if len(kinds) != 1 or {self.scores.name.dtype, self.found.accumulator.dtype} != {f32}:
            return
        kind = kinds.pop().name
        rows = [r for r in self.target.instructions if (r.a_type, r.b_type, r.acc_type) == (kind, kind, "f32")]
        by_tma = all(x.even for x in (self.q, self.k, self.v)) and "tma" in self.target.features
        value = [r for r in rows if r.function == "mlc_wgmma_rs" and r.n == self.features]
        if value and kind != "f32" and by_tma and self.depth % 16 == 0:
            for groups, most in GROUPS_NARROW if max(self.depth, self.features) <= NARROW else GROUPS:
                keys = min(most, matmul.up(self.keys, KEYS))
                score = next(r for r in rows if r.function == "mlc_wgmma" and r.n == keys)
                yield _Way(score, value[0], groups * score.m, keys, groups * score.threads, score.k, by_tma)
        if max(self.depth, self.features) > MOST_FEATURES:
            return
        sync = max((r for r in rows if r.function == "mlc_mma_sync"), key=lambda r: r.m * r.k, default=None)
        if sync is not None:
            unit = CHUNK if kind == "f32" else sync.k
            keys = THREEFOLD_KEYS if kind == "f32" else min(KEYS, matmul.up(self.keys, sync.k))
            for warps in WARPS:
                yield _Way(sync, sync, warps * sync.m, keys, warps * WARP, unit, by_tma)

    def space(self) -> Iterator[Member] | None:
        batch = math.prod(size(_loop(f)) for f in self.found.batch)
        fits = [w for w in self.ways() if self.memory(w) + RESERVED <= self.target.shared]
        if not fits:
            return None
        width = self.depth + self.features
        return ranked(
            Member(
                cost.attention(self.target, self.queries, batch, w.rows, self.fills(w, batch), self.keys, width),
                partial(self.schedule, w),
            )
            for w in fits
        )

    def schedule(self, way: _Way) -> tuple[Step, ...]:
        """The steps for one way."""
        return replace(self, steps=[]).applied(way).steps

    def fills(self, way: _Way, batch: int) -> bool:
        """There are blocks for all multiprocessors, or for half of them where each multiplies as fast as it can."""
        blocks = batch * -(-self.queries // way.rows)
        return blocks * (2 if way.by_groups and way.rows == way.score.m else 1) >= self.target.cores

    def near(self) -> bool:
        """Keys and values of all heads stay in the L2, so that queries of all may go at once, those with most first."""
        read = {x.buffer: self.tensors[x.buffer] for x in (self.k, self.v)}
        return sum(t.dtype.bytes * math.prod(map(static, t.shape)) for t in read.values()) <= self.target.l2 // 2

    def memory(self, way: _Way) -> int:
        """Bytes of a block's tiles in shared memory."""
        depth, features = matmul.up(self.depth, way.unit), matmul.up(self.features, way.unit)
        weights = way.rows * way.keys if way.threefold else 0
        masks = sum(self.tensors[x].dtype.bytes for x in self.masks(way)) * DEPTH * way.rows * way.keys
        operands = way.rows * depth + weights + DEPTH * way.keys * (depth + features)
        return self.found.weight.bytes * operands + masks

    def held(self, way: _Way) -> int:
        """Words that a thread of a group holds of sums, scores and weights, and of what there is once a row."""
        width = matmul.up(self.features, way.unit) + way.keys + way.keys * self.found.weight.bytes // 4
        return way.rows * width // way.threads + ROWS

    def masks(self, way: _Way) -> tuple[str, ...]:
        """What scores load by query and key, as far as tensor maps bring it, and it is worth the memory: of 16 bits,
        threads would load few bytes at a time."""
        found = online_softmax.masks(self.found.score, self.found.query.var) if way.by_groups else []
        whole = [x.buffer for x in found if way.keys * x.dtype.bytes % matmul_axes.ROW == 0]
        return tuple(x for x in whole if matmul_axes.even(self.tensors[x]))

    # ---- steps

    def applied(self, way: _Way) -> Schedule:
        add, f = self.steps.append, self.found
        query, depth = f.query.var, self.scores.depth.var
        self.way = way
        where = ("shared", min(f.weight.bytes * way.keys, matmul_axes.ROW)) if way.threefold else ("registers", 0)
        late = int(way.overlaps)
        masks = self.masks(way)
        held = tuple(f"{x}_mask" for x in masks)
        step = Online(
            f.accumulator.name, way.rows, way.keys, unit=way.unit, space=where[0], swizzle=where[1], masks=masks,
            late=late, held=held, **naming.online(f),
        )  # fmt: skip
        add(step)
        made = step.made
        if online_softmax.reach(f.score, query) and self.near():
            add(Reorder((made.blocks[0], *(x.var for x in f.batch))))
        self.steps += [Bind(x.var, "blocks") for x in f.batch]
        add(Bind(made.blocks[0], "blocks"))
        for loops in (made.first, made.begin, made.zero, made.scale, made.last):
            self.spread(*loops)
        if online_softmax.scaled(f.score)[1] is not self.scores.name or self.keys % way.keys:
            self.spread(*made.edge)
        if late:
            self.spread(*made.weight)
        self.spread(*made.row)
        widths = matmul.up(self.depth, way.unit), matmul.up(self.features, way.unit)
        nest = *made.score, depth
        q = self.shared(self.q, "query", {"own": (nest[0], way.rows), "k": (depth, widths[0])})
        k = self.shared(self.k, "key", {"own": (nest[1], way.keys), "k": (depth, widths[0])})
        self.contraction(self.scores.name.name, nest, (q, k), way.score)
        nest = made.value
        v = self.shared(self.v, "value", {"own": (nest[1], widths[1]), "k": (nest[2], way.keys)})
        weights = step.made_tiles[1] if way.threefold else ""
        self.contraction(f.accumulator.name, nest, (weights, v), way.value, widths[1])
        producers = (("producers", 1),) if way.by_tma else ()
        overlap = (("overlap", 1),) if late else ()
        registers = matmul.reallocated(self.held(way), way.threads, 1, self.target) if way.by_groups else ()
        add(Bind(made.blocks[1], "pipeline", (("depth", DEPTH), *producers, *overlap, *registers)))
        return Schedule(tuple(self.steps))

    def spread(self, rows: str, *columns: str) -> None:
        self.steps.append(Bind(rows, "lanes", (("threads", self.way.threads),)))
        self.steps += [Bind(x, "lanes") for x in columns]

    def shared(self, x: matmul_axes.Factor, word: str, own: dict[str, tuple[str, int]]) -> str:
        """A factor's tile in shared memory, in rows along the last of its parts; `own` are their loops and lengths."""
        name = f"{x.buffer}_{word}"
        loops = (own[x.order[0]][0], own[x.order[1]][0])
        row = own[x.order[1]][1] * x.operand.bytes
        # What is 32 bits wide is not transposed as it is loaded, but taken element by element: from four rows, that lie
        # side by side in panels of 32 bytes. Wider panels would take as many addresses as there are columns.
        widths = (32, 0) if self.way.threefold and x.order[1] == "own" and x is not self.q else (128, 64, 32, 0)
        swizzle = next(w for w in widths if not w or row % w == 0)
        how = "" if not x.operand.copied else "cp.async" if x.operand.piece in matmul_axes.PIECES else "plain"
        into = "" if how else f"{name}_at"
        self.steps.append(Cache(x.buffer, name, loops, "shared", "tma" if self.way.by_tma else how, swizzle, into))
        if into:
            self.spread(into)
        return name

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
        pieces = [(f"{x}_piece", x, own) for x, own in zip(operands, (m, n), strict=True) if x]
        self.steps += [Cache(x, piece, (own, inner[2]), "registers", "plain") for piece, x, own in pieces]
        if self.way.threefold:
            a, b = (piece for piece, _, _ in pieces)
            halves = SplitTf32(inner, (a, b), (*inner, a, b))
            add(halves)
            for _, _, row_loop, column in halves.halves:
                self.spread(row_loop, column)
            self.steps += [Tensorize(x, row.name, self.way.grid) for x in (halves.small, halves.cross)]
        add(Tensorize(inner, row.name, self.way.grid))


def _loop(f: online_softmax.For) -> loop.For:
    return loop.For(f.var, f.extent, f.kind, ())
