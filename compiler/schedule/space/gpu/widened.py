"""Matmuls of few rows by a matrix of small integers (weight-only quantization), on tensor cores.

A pipeline copies the integers to shared memory as they are stored; they are widened on the way to registers. Because a
thread's fragment has few adjacent elements along the sum, the sum is permuted: a thread takes a run of the matrix that
one load brings, and the same run of the other factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from compiler.analysis.nests import size
from compiler.ir import loop
from compiler.ir.expr import const, loads, names
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor, known_bytes
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, recognise, sides
from compiler.schedule.gpu.matmul import RESERVED, WARP, fits_cluster
from compiler.schedule.gpu.matmul_axes import MatmulAxes, axis, factor
from compiler.schedule.gpu.tiles import Tiling
from compiler.schedule.space.gpu.matmul import WARPS, MatmulPlan
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Cache, Collapse, Distribute, Reorder, Split, Stage, Step, Wrap
from compiler.targets.target import Target, costs

MOST_ROWS = 64  # with more, a 16-bit matrix in shared memory pays, which wgmma reads
WIDEST = 16  # bytes per load of a thread
SHARERS = 4  # threads with adjacent pieces of a row of an instruction's operand
REGISTER_DEPTH = 128  # elements of the sum in registers at once
DEPTHS = (4, 6, 8)
PARTS = (1, 2, 4, 8)
TILES = ((32, 2), (64, 2), (64, 4), (128, 4), (128, 8))  # rows of the matrix, and warps
COLUMNS = (8, 16, 32)  # rows of the other factor
STEPS = (128, 256)  # of the sum
WORD = 4  # bytes that an asynchronous copy moves at least
SWIZZLE, ROW = 64, 128  # bytes


@dataclass(frozen=True)
class Widened:
    """A matmul whose left factor is a matrix of the buffer `matrix`; one load brings a `run` of adjacent elements.

    The buffers `side_buffers` it, with their bytes per element of the sum, hold values for several neighbours, such as
    scales; they are copied along if alignment allows. The steps `wrap_steps` make the other factor, a vector, a matrix.
    """

    axes: MatmulAxes
    matrix: str
    run: int
    side_buffers: tuple[tuple[str, float], ...]
    bytes: float  # per element of the matrix
    wrap_steps: tuple[Step, ...] = ()


def space(kernel: Kernel, target: Target) -> tuple[str, Iterator[Member]] | None:
    """The family of a kernel and its members; None if it is no such contraction or the target has no instruction."""
    found = recognise(kernel)
    w = _recognise(found, {p.name: p for p in kernel.params}, target) if found is not None else None
    if w is None:
        return None
    every = list(_tilings(w, target))
    return ("contractions", ranked(Member(t.clocks, partial(_steps, w, t, target)) for t in every)) if every else None


def _steps(w: Widened, t: Tiling, target: Target) -> tuple[Step, ...]:
    p = replace(w.axes, m=replace(w.axes.m), n=replace(w.axes.n), k=replace(w.axes.k))
    return _Plan(p, t, target, list(w.wrap_steps), w).schedule().steps


def _recognise(c: Contraction, tensors: dict[str, Tensor], target: Target) -> Widened | None:
    k = axis(c.depth)
    for (left, rows), (right, columns) in sides(c):
        wrap_steps: tuple[Step, ...] = ()
        contraction = c
        if rows and not columns:
            column = loop.For(f"{rows[0].var}_one", const(1), "parallel", ())
            wrap_steps, columns = (Wrap(c.rows[0].var, column.var),), [column]
            contraction = replace(c, rows=(column, *c.rows))
        if not rows or len(c.depth) != 1:
            continue
        m, n = axis(rows), axis(columns)
        a, b = factor(left, m, k, tensors, {}), factor(right, n, k, tensors, {})
        is_loaded = b.operand.copied if not wrap_steps else len(loads(b.value)) == 1 and b.operand.bytes == 2
        fits = any(r.function == WARPS and {r.a_type, r.b_type} == {a.value.dtype.name, b.value.dtype.name}
                   and (r.m, r.n, r.k) == (16, 8, 16) for r in target.instructions)  # fmt: skip
        if not (a.operand.widened and a.order[1] == "k" and is_loaded and fits and n.size <= MOST_ROWS):
            continue
        tiled = {f.var for f in (*m.loops, *n.loops)}
        batch = tuple(f for f in contraction.rows if f.var not in tiled)
        axes = MatmulAxes(contraction, m, n, k, batch, a, b, False, None)
        return _with_buffers(axes, tensors, wrap_steps)
    return None


def _with_buffers(p: MatmulAxes, tensors: dict[str, Tensor], wrap_steps: tuple[Step, ...]) -> Widened | None:
    """The matmul with the buffer that holds the matrix and those beside it; None if runs do not fit the instruction."""
    element_bytes = {b: known_bytes(tensors[b]) / (p.m.size * p.k.size * math.prod(map(size, p.batch)))
            for b in {x.buffer for x in loads(p.a.value)}}  # fmt: skip
    matrix = max(element_bytes, key=lambda b: element_bytes[b])
    run = WIDEST / element_bytes[matrix]
    if run != int(run) or not 4 <= run <= REGISTER_DEPTH // SHARERS or p.k.size % REGISTER_DEPTH:
        return None
    side_buffers = tuple(
        (b, element_bytes[b]) for b in element_bytes if b != matrix and p.k.name in _index_variables(p, b)
    )
    return Widened(p, matrix, int(run), side_buffers, element_bytes[matrix], wrap_steps)


def _index_variables(p: MatmulAxes, buffer: str) -> set[str]:
    """The variables in the index of a buffer."""
    return {v for x in loads(p.a.value) if x.buffer == buffer for e in x.index for v in names(e)}


def _tilings(w: Widened, target: Target) -> Iterator[Tiling]:
    p = w.axes
    row = next(r for r in target.instructions if r.function == WARPS and r.a_type == p.a.value.dtype.name
               and (r.m, r.n, r.k) == (16, 8, 16))  # fmt: skip
    n = next(x for x in COLUMNS if p.n.size <= x or x is COLUMNS[-1])
    for (m, warps), k, parts in ((x, k, parts) for x in TILES for k in STEPS for parts in PARTS):
        if p.m.size % m or p.k.size % (k * parts) or (parts > 1 and not fits_cluster(parts, (m, n), target)):
            continue
        stage = int(m * k * w.bytes) + k * 2 * (1 if w.wrap_steps else n)
        result_bytes = m * n * 4 if parts > 1 else 0
        for depth in DEPTHS:
            room = (target.shared + RESERVED) // (stage * depth + result_bytes + RESERVED)
            resident = min(room, target.threads // (warps * WARP), target.blocks)
            if resident and depth <= max(3, p.k.size // (k * parts)) + 1:
                t = Tiling(row, 1, m, n, k, warps * WARP, depth, parts, 0.0, 0, (warps, 1))
                yield replace(t, clocks=_clocks(w, t, resident, target))


def _clocks(w: Widened, s: Tiling, most: int, target: Target) -> float:
    """Clocks of waves of up to `most` blocks per multiprocessor, bound by issue, latency or memory."""
    p, c, warps = w.axes, costs(target), s.threads // WARP
    batch = math.prod(map(size, p.batch))
    blocks = p.m.size // s.m * -(-p.n.size // s.n) * s.parts * batch
    steps = p.k.size // (s.k * s.parts)
    element = c["widened.bytes" if w.bytes >= 1 else "widened.halves"]
    issue_clocks = s.m * s.k / warps * element + s.n * s.k * c["widened.other"]
    serial = max(issue_clocks * c["widened.alone"] + c["widened.step"], c["widened.latency"] / (s.depth - 1))

    def wave(resident: int) -> float:
        together = resident * warps * (issue_clocks + c["widened.meeting"] * warps) / c["widened.together"]
        return steps * max(serial, together) + c["widened.wave"]

    full, rest = divmod(blocks, target.cores * most)
    compute_clocks = full * wave(most) + (wave(-(-rest // target.cores)) if rest else 0.0)
    memory_clocks = p.m.size * p.k.size * batch * w.bytes / (c["sync.dram"] * target.cores)
    return max(compute_clocks, memory_clocks) + (c["widened.cluster"] if s.parts > 1 else 0.0)


class _Plan(MatmulPlan):
    """The steps for such a matmul with one tiling."""

    def __init__(self, p: MatmulAxes, t: Tiling, target: Target, steps: list[Step], w: Widened) -> None:
        super().__init__(p, t, target, steps)
        self.w = w

    def mainloop(self, nests: Distribute) -> None:
        add, t, (m, n, k) = self.steps.append, self.t, (self.p.m, self.p.n, self.p.k)
        whole = k.size
        ends = self.steps_of_sum(nests)
        panel = f"{self.p.b.buffer}_panel"
        if self.w.wrap_steps:
            add(Stage(self.p.b.buffer, panel, k.outer, "shared", (), 0, "cp.async"))
        else:
            add(Cache(self.p.b.buffer, panel, (n.name, k.name), "shared", "cp.async", ROW))
        held = f"{self.w.matrix}_tile"
        add(Stage(self.w.matrix, held, k.outer, "shared", (), 0, "cp.async", SWIZZLE))
        for buffer, bytes_ in self.w.side_buffers:
            if bytes_ * t.k % WORD == 0 and bytes_ * whole % WORD == 0:
                add(Stage(buffer, f"{buffer}_tile", k.outer, "shared", (), 0, "cp.async"))
        for end in ends:
            self.bind_lanes(end)
        add(Bind(k.outer, "pipeline", (("depth", t.depth),)))
        depth = self.permute_depth()
        # Per element, the matrix has one byte or half of one; the other factor has 16 bits.
        for tile, own, vector in ((held, m.name, min(self.w.run, WIDEST)), (panel, n.name, WIDEST // 2)):
            rows, columns = naming.pieces(f"{tile}_piece")
            add(Cache(tile, f"{tile}_piece", (own, depth), "registers", "", 0, (rows, columns)))
            lanes = (("threads", t.threads),)
            self.steps += [Bind(rows, "lanes", lanes), Bind(columns, "lanes", (("vector", vector),))]
        self.tensorize((m.name, n.name, depth))

    def permute_depth(self) -> str:
        """Permute the loop over the sum so that an instruction's operand positions are those of a thread's run."""
        add, (m, n, k) = self.steps.append, (self.p.m.name, self.p.n.name, self.p.k.name)
        turn = ""
        if self.t.k > REGISTER_DEPTH:
            turn, k_in = naming.pieces(k)
            add(Split(k, REGISTER_DEPTH, (turn, k_in)))
            k = k_in
        digits = [k]
        for factor_of, word in ((self.w.run * SHARERS, "turn"), (self.w.run, "lane"), (4, "step"), (2, "half")):
            if factor_of < REGISTER_DEPTH:
                outer, inner = f"{k}_{word}", f"{k}_in_{word}"
                add(Split(digits[-1], factor_of, (outer, inner)))
                digits = [*digits[:-1], outer, inner]
        *turns, lane, step, half, pair = digits
        order = [*turns, step, half, lane, pair]
        add(Reorder((*([turn] if turn else []), m, n, *order)))
        if turn:
            add(Bind(turn, "unroll"))
        name = order[0]
        for number, inner in enumerate(order[1:], 1):
            into = f"{k}_dealt" if number == len(order) - 1 else f"{k}_dealt{number}"
            add(Collapse(name, inner, into))
            name = into
        return name
