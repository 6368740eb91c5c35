"""Matmuls on a GPU with tensor cores.

Each block computes an m x n tile; tiles of the factors are copied to shared memory while the previous ones are
multiplied. On targets with wgmma, producer warps copy and instructions read shared memory; otherwise all warps copy,
and multiply fragments in registers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from compiler.analysis.nests import size
from compiler.ir.dtype import f32
from compiler.ir.expr import loads
from compiler.ir.statement import Kernel
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import by_groups, recognise
from compiler.schedule.cost import gpu as cost
from compiler.schedule.gpu import boxed_sums, conv, matmul, tiles
from compiler.schedule.gpu.matmul import WARP, Matmul, fits_cluster
from compiler.schedule.gpu.matmul_axes import (
    PIECES,
    ROW,
    Axis,
    EpilogueOperand,
    Factor,
    MatmulAxes,
    candidate_matmuls,
)
from compiler.schedule.gpu.tiles import Tiling
from compiler.schedule.name_suffixes import numbered
from compiler.schedule.space.gpu.plan import lanes
from compiler.schedule.space.members import Member
from compiler.schedule.steps import (
    Bind,
    Cache,
    Collapse,
    Distribute,
    LoadAhead,
    Multicast,
    Pad,
    Persist,
    Promote,
    Raster,
    Reorder,
    Schedule,
    Split,
    SplitTf32,
    Step,
    Tensorize,
    Writeback,
)
from compiler.targets.target import Instruction, Target

LEAST_DEPTH = 16  # shorter sums are not worth tiles
LEAST_ROWS = 2  # few suffice: a mostly empty instruction still reads the other factor only once
COMPUTED_SLOWDOWN = 2.0  # slowdown if operands are computed instead of copied
SHORT_RUN_SLOWDOWN = 3.0  # slowdown of single warps that copy and store short runs of a box: 3 to 5 on an H200
GROUP = 8  # rows of blocks that advance through the columns together, so that their operands stay in L2
WARPS, FROM_SHARED, FROM_REGISTERS = "mlc_mma_sync", "mlc_wgmma", "mlc_wgmma_rs"  # functions of instructions
SPLITTING_WARPS = 3  # warps that split a tile's elements into two tf32 numbers, besides the copying one


def space(kernel: Kernel, target: Target) -> tuple[str, Iterator[Member]] | None:
    """The family of a kernel and its tilings; None if it has no contraction that the target has an instruction for.

    At equal cost, contractions with a result that is contiguous along n come first.
    """
    found = recognise(kernel)
    if found is None:
        return None
    found, splits = by_groups(found)
    tensors = {p.name: p for p in kernel.params}
    boxes = [*conv.candidate_matmuls(found, tensors), *boxed_sums.candidate_matmuls(found, tensors)]
    views = [(p, tilings) for p in (*boxes, *candidate_matmuls(found, tensors)) if (tilings := _tilings(p, target))]
    if not views:
        return None
    groups = any(min(some, key=tiles.sort_key).row.threads > WARP for _, some in views)
    heap = [
        (_estimate(p, t, groups, target), not p.across, n, *tiles.sort_key(t), m)
        for n, (p, some) in enumerate(views)
        for m, t in enumerate(some)
    ]
    boxed = any(p.m.boxed or p.n.boxed or p.k.boxed for p in boxes)
    return "convolutions" if boxed else "contractions", _members(heap, views, target, splits, groups)


def _members(
    heap: list[tuple[float, bool, int, float, int, int, int]],
    views: list[tuple[MatmulAxes, Sequence[Tiling]]],
    target: Target,
    splits: list[Step],
    groups: bool,
) -> Iterator[Member]:
    """Members by estimate; ties: first the earlier view of the contraction, then the larger tile."""
    heapq.heapify(heap)
    sizes = [_matmul_sizes(p) for p, _ in views]
    while heap:
        clocks, _, n, *_, m = heapq.heappop(heap)
        p, tilings = views[n]
        yield Member(
            clocks, partial(_steps, p, tilings[m], target, splits), partial(_price, p, sizes[n], tilings[m], groups)
        )


def _price(p: MatmulAxes, sizes: Matmul, t: Tiling, groups: bool, target: Target) -> float:
    block = cost.Block(t.row, (t.m, t.n, t.k), t.grid, t.depth, t.parts, t.cluster)
    return _estimate(p, replace(t, clocks=cost.matmul_clocks(sizes, block, target)[0]), groups, target)


def _steps(p: MatmulAxes, t: Tiling, target: Target, splits: list[Step]) -> tuple[Step, ...]:
    own_axes = replace(p, m=replace(p.m), n=replace(p.n), k=replace(p.k))
    return MatmulPlan(own_axes, t, target, list(splits)).schedule().steps


def _estimate(p: MatmulAxes, t: Tiling, groups: bool, target: Target) -> float:
    """Clocks including preparatory copies; `groups` says that some candidates use warpgroups. Operands that are
    computed stall the computing threads for about as long as the matmul takes."""
    clocks = t.clocks + cost.preparation_clocks(p.copied, target)
    if groups and t.terms == 1 and p.n.boxed and t.row.threads == WARP:
        clocks *= SHORT_RUN_SLOWDOWN
    return clocks if p.a.operand.copied and p.b.operand.copied else COMPUTED_SLOWDOWN * clocks


def _tilings(p: MatmulAxes, target: Target) -> Sequence[Tiling]:
    """The tilings of one view as a matmul; none if a matmul does not pay or there is no instruction."""
    if min(p.m.size, p.n.size) < LEAST_ROWS or p.k.size < LEAST_DEPTH:
        return []
    found: Sequence[Tiling] = tiles.space(_matmul_sizes(p), _instructions(p, target), target)
    if p.result is not None and p.result.how and p.result.twin:
        found = [t for t in found if t.row.function == FROM_SHARED and t.parts == 1]
    return found


def _matmul_sizes(p: MatmulAxes) -> Matmul:
    acc = p.found.first.value.dtype
    terms = 3 if acc is f32 and p.a.value.dtype is f32 else 1
    batch = math.prod(map(size, p.batch))
    out = p.result.bytes if p.result and p.result.how else 0
    boxes = tuple(map(size, p.m.loops)) if p.m.boxed else (), tuple(map(size, p.n.loops)) if p.n.boxed else ()
    others = {x.buffer for s in p.found.after for x in loads(s)} - {x.buffer for x in p.joined}
    return Matmul(
        p.m.size, p.n.size, p.k.size, batch, p.a.operand, p.b.operand, acc.bytes, terms, p.across, out, p.read, boxes,
        (p.m.near, p.n.near), bool(others), math.prod(p.k.box) if p.k.boxed else 0, _sectors_per_element(p),
        sum(x.bytes for x in p.joined if x.is_block and x is not p.initial), len(p.k.loops) == 1 and not p.k.boxed,
        (_count_vectors(p, (True, False)), _count_vectors(p, (False, True))), p.initial.bytes if p.initial else 0,
    )  # fmt: skip


def _count_vectors(p: MatmulAxes, along: tuple[bool, bool]) -> int:
    """The number of epilogue operands that are vectors along m only, or n only."""
    return sum(x.along == along for x in p.joined)


def _sectors_per_element(p: MatmulAxes) -> float:
    """Memory sectors per element stored by a warp if rows of the result are unaligned: the warp has eight rows or
    columns with four pairs of neighbours, or four elements, each."""
    if p.result is None or p.result.how:
        return 0.0
    pairs = p.across and p.result.piece >= 2 * p.result.bytes
    return (8 if p.across else 4) / (2 * WARP if pairs else WARP)


def _instructions(p: MatmulAxes, target: Target) -> tuple[Instruction, ...]:
    """The target's instructions for these types, layouts and memories of the operands."""
    kinds = {x.value.dtype.name for x in (p.a, p.b)}
    acc = p.found.first.value.dtype.name
    fit = [r for r in target.instructions if {r.a_type, r.b_type} == kinds and r.acc_type == acc]
    rows = [r for r in fit if r.function == WARPS] if p.across else []
    deepest = max((r.m * r.k for r in rows), default=0)
    layout = "mk" if p.a.order[1] == "k" else "km", "nk" if p.b.order[1] == "k" else "kn"
    by_tma = p.a.even and p.b.even and "tma" in target.features
    wide = [r for r in fit if r.function in (FROM_SHARED, FROM_REGISTERS) and layout in r.layouts and by_tma]
    whole = [r for r in wide if layout[1] == "nk" or r.n * p.b.operand.bytes % ROW == 0]
    split = [r for r in whole if r.function == FROM_REGISTERS and r.a_type == "f32" and r.n <= 128]
    plain = [r for r in whole if r.function == FROM_SHARED and r.a_type != "f32"]
    return (*(r for r in rows if r.m * r.k == deepest), *plain, *split)


@dataclass
class MatmulPlan:
    """The steps for a matmul with one tiling."""

    p: MatmulAxes
    t: Tiling
    target: Target
    steps: list[Step] = field(default_factory=list)
    cluster: tuple[str, ...] = ()  # the loop over blocks that share copies, if any

    # ---- steps

    def schedule(self) -> Schedule:
        add, t, (m, n, k) = self.steps.append, self.t, (self.p.m, self.p.n, self.p.k)
        self.steps += self.p.copies
        around = [f.var for f in self.p.batch]
        order = [*around, *(f.var for x in (m, n) for f in x.loops)]
        if order != [f.var for f in self.p.found.rows]:
            add(Reorder(tuple(order)))
        depth = [f.var for f in k.loops]
        if depth != [f.var for f in self.p.found.depth]:
            add(Reorder(tuple(depth)))
        for x, length in ((m, t.m), (n, t.n)):
            if x.boxed:
                self.steps += conv.split_into_boxes(x, length)
            else:
                naming.collapse([f.var for f in x.loops], self.steps)
        if k.boxed:
            self.steps += conv.split_into_boxes(k, t.k)
        else:
            naming.collapse(depth, self.steps)
        batch = naming.collapse(around, self.steps)
        grid = [batch] if batch else []
        for x, length in ((m, t.m), (n, t.n)):
            if not x.boxed:
                self.split(x, length)
        self.split_clusters()
        grid += self.raster()
        if t.parts > 1:
            grid += self.split_reduction()
        self.steps += [*(Bind(var, "blocks") for var in grid), *(Bind(var, "cluster") for var in self.cluster)]
        nests = Distribute(self.acc, (m.name, n.name), (m.name, n.name), "registers")
        add(nests)
        self.mainloop(nests)
        if t.ahead:
            self.load_ahead(nests.last)
        if t.blocks:
            every = "".join(grid)
            add(Persist(tuple(grid), t.blocks // math.prod(t.cluster), (f"{every}_block", f"{every}_turn", every)))
        return Schedule(tuple(self.steps))

    @property
    def initial(self) -> EpilogueOperand | None:
        """The operand as whose block the tile of the result starts."""
        return self.p.initial if matmul.has_result_tile(self.t.row, self.t.parts) else None

    @property
    def acc(self) -> str:
        return self.p.found.accumulator

    def split(self, x: Axis, factor: int) -> None:
        into = naming.pieces(x.name)
        self.steps.append(Split(x.name, factor, into))
        x.outer, x.name = into

    def load_ahead(self, nest: tuple[str, ...]) -> None:
        """Load operands of the epilogue before the sum, so that they arrive meanwhile."""
        for x in self.p.joined:
            if (x.is_block and not self.t.whole) or x is self.initial:
                continue
            tile = f"{x.buffer}_ahead"
            into = numbered(f"{tile}_at", sum(x.along))
            self.steps.append(LoadAhead(x.buffer, tile, nest, into))
            self.bind_lanes(into)

    def split_clusters(self) -> None:
        """Split the loop over tiles whose blocks share copies, if any do."""
        down, across = self.t.cluster
        x, blocks = (self.p.m, down) if down > 1 else (self.p.n, across)
        if blocks > 1:
            outer, inner = naming.pieces(x.outer)
            self.steps.append(Split(x.outer, blocks, (outer, inner)))
            x.outer, self.cluster = outer, (inner,)

    def raster(self) -> list[str]:
        """Bind order of the loops over tiles, or over clusters of them, slowest first.

        If there are many tiles both ways, groups of rows advance through the columns together. Otherwise the shorter
        way runs fastest: concurrent blocks share tiles of the longer way's operand, which is then read from memory
        once.
        """
        m, n = self.p.m, self.p.n
        down, across = self.t.cluster
        rows, columns = -(-m.size // (self.t.m * down)), -(-n.size // (self.t.n * across))
        outer = [n.outer, m.outer] if rows <= GROUP and rows < columns else [m.outer, n.outer]
        self.steps.append(Reorder((*outer, *self.cluster, m.name, n.name)))
        if min(rows, columns) <= GROUP:
            return outer
        every = m.outer + n.outer
        self.steps.append(Raster(m.outer, n.outer, GROUP, every))
        return [every]

    def split_reduction(self) -> list[str]:
        """Split the sum over blocks (split-k). Each block of a cluster combines its share of rows of the tile; without
        a cluster, the last block combines all."""
        add, t, (m, n, k) = self.steps.append, self.t, (self.p.m, self.p.n, self.p.k)
        (outer, rows), (inner, columns) = [(m, t.m), (n, t.n)] if self.p.across else [(n, t.n), (m, t.m)]
        if not self.p.across:
            add(Reorder((n.name, m.name)))
        space = "cluster" if fits_cluster(t.parts, (t.m, t.n), self.target) else "device"
        # Half a warp stores 8 bytes to each of 4 rows, or 4 bytes to each of 8 columns: padding puts these in different
        # banks.
        pad = 0 if space == "device" else 8 if self.p.across else 4
        unit = t.parts * t.k
        if not k.boxed and k.size % unit:
            add(Pad((k.name,), (-(-k.size // unit) * unit,)))
        split = naming.split_reduction(self.acc, k.outer or k.name, t.parts, (outer.name, inner.name), space, pad)
        add(split)
        if not self.p.across:
            add(Reorder((m.name, n.name)))
        (row, column), (part, partials) = split.combining, split.into
        whole = all(x.boxed or x.size % long == 0 for x, long in ((m, t.m), (n, t.n)))
        if not whole:
            add(Pad((row, column), (rows, columns)))
        if space == "cluster":
            block, own = naming.pieces(row)
            self.steps += [Split(row, rows // t.parts, (block, own)), Bind(block, "blocks")]
            row = own
        each = row + column
        add(Collapse(row, column, each))
        lane_args = lanes(t.threads, matmul.NEIGHBOURS if whole else matmul.neighbours(inner.size))
        # A thread loads all partial results of its elements before it stores any.
        nests = Distribute(split.total, (each,), (each,), "registers")
        add(nests)
        add(Reorder((partials, each)))
        self.steps += [Bind(x, "lanes", lane_args) for x in (*nests.first, *nests.last)]
        self.steps += [Bind(each, "lanes", lane_args), Bind(partials, "unroll")]
        return [part]

    def steps_of_sum(self, nests: Distribute) -> list[tuple[str, ...]]:
        """Split the sum into steps of whole tiles; return the loops before and after it."""
        add, t, (m, n, k) = self.steps.append, self.t, (self.p.m, self.p.n, self.p.k)
        if not k.boxed:
            self.split(k, t.k)
        add(Reorder((k.outer, m.name, n.name, k.name)))
        ends = [nests.first, nests.last]
        add(Pad(ends[0], (t.m, t.n)))
        add(Pad((m.name, n.name, k.name), (t.m, t.n, t.k)))
        add(Pad(ends[1], (t.m, t.n)))
        return ends

    def mainloop(self, nests: Distribute) -> None:
        add, t, (m, n, k) = self.steps.append, self.t, (self.p.m, self.p.n, self.p.k)
        ends = self.steps_of_sum(nests)
        self.writeback(ends[1])
        tiles_of = self.cache_factor(self.p.a, m, "tile", t.m), self.cache_factor(self.p.b, n, "panel", t.n)
        down, _ = t.cluster
        self.steps += [Multicast(tiles_of[1 if down > 1 else 0], var) for var in self.cluster]
        if t.terms > 1 or t.row.coarse:
            chunk = Promote(self.acc, k.outer, f"{self.acc}_chunk")
            add(chunk)
            ends += [chunk.first, chunk.last]
        for end in ends:
            self.bind_lanes(end)
        if t.row.function == FROM_SHARED:
            self.pipeline(1, t.m * t.n * (2 if t.row.coarse else 1))
            add(Tensorize((m.name, n.name, k.name), t.row.name, t.grid))
        elif t.row.function == FROM_REGISTERS:
            # Registers for sums, the sums of one step, and half a tile of the left factor as two tf32 parts.
            self.pipeline(1 + SPLITTING_WARPS, 2 * t.m * t.n + 3 * t.m * t.k // 2)
            self.multiply_tf32_halves(*tiles_of)
        else:
            add(Bind(k.outer, "pipeline", (("depth", t.depth),)))
            self.multiply_fragments(*tiles_of)

    def pipeline(self, producers: int, tile_words: int) -> None:
        """Pipeline with producer warps; the computing threads together hold `tile_words` words of tiles."""
        if self.t.ahead:
            tile_words += (self.t.ahead + matmul.WORKING_REGISTERS - matmul.OTHER_REGISTERS) * self.t.threads
        registers = matmul.register_arguments(tile_words // self.t.threads, self.t.threads, producers, self.target)
        args = ("depth", self.t.depth), ("producers", producers), *registers
        self.steps.append(Bind(self.p.k.outer, "pipeline", args))

    def multiply_fragments(self, tile_a: str, tile_b: str) -> None:
        """Tensorize matmuls of fragments that are loaded from shared memory, one instruction deep at a time."""
        add, t, (m, n, k) = self.steps.append, self.t, (self.p.m, self.p.n, self.p.k)
        step, inner = naming.pieces(k.name)
        add(Split(k.name, t.row.k, (step, inner)))
        add(Reorder((step, m.name, n.name, inner)))
        add(Bind(step, "unroll"))
        nest = (m.name, n.name, inner)
        pieces = f"{tile_a}_piece", f"{tile_b}_piece"
        add(Cache(tile_a, pieces[0], (m.name, inner), "registers", "plain"))
        add(Cache(tile_b, pieces[1], (n.name, inner), "registers", "plain"))
        if t.terms > 1:
            halves = SplitTf32(nest, pieces, (*nest, *pieces))
            add(halves)
            for _, _, *loops in halves.halves:
                self.bind_lanes(tuple(loops))
            self.tensorize(halves.small, halves.cross, nest)
        else:
            self.tensorize(nest)

    def writeback(self, nest: tuple[str, ...]) -> None:
        """Store results through a tile in shared memory by one copy, which knows the tensor's bounds."""
        p, t, r = self.p, self.t, self.p.result
        if r is None or not r.how or not matmul.has_result_tile(t.row, t.parts):
            return
        if (r.m_ends or p.m.size % t.m == 0) and (r.n_ends or p.n.size % t.n == 0):
            swizzle = _swizzle((t.n if p.across else t.m) * r.bytes)
            initial = self.initial.buffer if self.initial else ""
            self.steps.append(Writeback(r.buffer, f"{r.buffer}_out", nest, r.how, swizzle, initial=initial))

    def multiply_tf32_halves(self, tile_a: str, tile_b: str) -> None:
        """Split both factors into two tf32 numbers: the right one in shared memory, the left one in registers, half a
        tile at a time while the other half is multiplied."""
        add, (m, n, k) = self.steps.append, (x.name for x in (self.p.m, self.p.n, self.p.k))
        (half, inner), piece = naming.pieces(k), f"{tile_a}_piece"
        add(Split(k, self.t.k // 2, (half, inner)))
        add(Reorder((half, m, n, inner)))
        add(Bind(half, "unroll"))
        add(Cache(tile_a, piece, (m, inner), "registers", "plain"))
        nest = m, n, inner
        halves = SplitTf32(nest, (piece, tile_b), (*nest, piece, tile_b))
        add(halves)
        (_, _, *left), (_, _, row, column) = halves.halves
        self.bind_lanes(tuple(left))
        self.steps += [Bind(row, "lanes", lanes(SPLITTING_WARPS * WARP, 1)), Bind(column, "lanes", (("vector", 4),))]
        self.tensorize(halves.small, halves.cross, nest)

    def tensorize(self, *nests: tuple[str, ...]) -> None:
        self.steps += [Tensorize(nest, self.t.row.name, self.t.grid) for nest in nests]

    def bind_lanes(self, nest: tuple[str, ...]) -> None:
        self.steps.append(Bind(nest[0], "lanes", (("threads", self.t.threads),)))
        self.steps += [Bind(var, "lanes") for var in nest[1:]]

    def cache_factor(self, x: Factor, own: Axis, word: str, length: int) -> str:
        """A factor's tile in shared memory; a factor that is not copied is computed by all threads."""
        name = f"{x.buffer}_{word}"
        part = {"own": (own.name, length), "k": (self.p.k.name, self.t.k)}
        loops = [part[word] for word in x.order]
        swizzle = _swizzle(loops[1][1] * x.operand.bytes)
        how = "" if not x.operand.copied else "cp.async" if x.operand.piece in PIECES else "plain"
        if self.t.row.function != WARPS:
            how = "tma"
        into = "" if how else f"{name}_at"
        self.steps.append(Cache(x.buffer, name, (loops[0][0], loops[1][0]), "shared", how, swizzle, into))
        if not how:
            along = own.size if x.order[1] == "own" else self.p.k.size  # neighbours are all within bounds or all beyond
            vector = x.side if along % x.side == 0 and loops[1][1] % x.side == 0 else 1
            self.steps.append(Bind(into, "lanes", lanes(self.t.threads, vector)))
        return name


def _swizzle(row: int) -> int:
    """The widest swizzle whose panels divide rows of so many bytes."""
    return next(w for w in (128, 64, 32, 0) if not w or row % w == 0)
