"""A loop nest that sums products and a target with tensor cores in, the schedule that uses them out.

The loops of such a nest play four parts: m occurs in one factor only, n in the other only, k is what is summed over,
and all others are a batch. n is the loop along which the result is contiguous. Blocks of the grid take a tile of m x n
each; tiles of the factors come to shared memory while those before are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.ir import loop
from compiler.ir.dtype import STORAGE_ONLY, DType, f32
from compiler.ir.expr import Cast, Const, Expr, Load, Var, loads, names
from compiler.ir.index import Range, extent_range, linear
from compiler.ir.statement import Init, Kernel, Let, Store
from compiler.ir.tensor import Tensor
from compiler.schedule import access
from compiler.schedule.contraction import Contraction, by_groups, recognise
from compiler.schedule.gpu import tiles
from compiler.schedule.gpu.tiles import Operand, Product, Tiling
from compiler.schedule.steps import (
    Bind,
    Cache,
    Collapse,
    Compensate,
    Distribute,
    Pad,
    Promote,
    Raster,
    Reorder,
    Schedule,
    Split,
    SplitK,
    Step,
    Tensorize,
)
from compiler.targets.target import Instruction, Target

LEAST_DEPTH = 16  # shorter sums are not worth the tiles
LEAST_ROWS = 9  # fewer rows are read once, whoever multiplies them
GROUP = 8  # rows of blocks that go through the columns together, so that what they read is still in L2
PIECES = (16, 8, 4)  # bytes that an asynchronous copy moves at a time
THREADS = 256


def choose(kernel: Kernel, target: Target) -> Schedule | None:
    """A schedule for `kernel`, or None if it holds no contraction that the target has an instruction for."""
    found = recognise(kernel)
    if found is None:
        return None
    found, splits = by_groups(found)
    made = _Plan(found, {p.name: p for p in kernel.params}, target, splits).schedule()
    return made if made is not None and _fresh(kernel, made) else None


@dataclass
class _Axis:
    """The loop that plays a part, after those that play it were made one; `outer` is its loop over tiles."""

    name: str
    size: int
    loops: tuple[loop.For, ...]
    outer: str = ""


@dataclass(frozen=True)
class _Factor:
    """A factor before it is widened from 16 bits; its buffer, and whether it is contiguous along k, or its own part."""

    value: Expr
    buffer: str
    operand: Operand
    order: tuple[str, str]  # "k" and "own", the contiguous one last


@dataclass
class _Plan:
    found: Contraction
    tensors: dict[str, Tensor]
    target: Target
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        c = self.found
        self.acc: DType = c.first.value.dtype
        long = [f for f in c.rows if _size(f) > 1]
        self.ranges: dict[str, Range] = {f.var: extent_range(f.extent) for f in (*c.rows, *c.depth)}
        own = [
            [f for f in long if f.var in names(x) and f.var not in names(y)]
            for x, y in ((c.left, c.right), (c.right, c.left))
        ]
        contiguous = {
            f.var for f in long for s in c.after if isinstance(s, Store) and self.stride(s.buffer, s.index, f.var) == 1
        }
        swap = not own[1] or any(f.var in contiguous for f in own[0])
        left, right = (c.right, c.left) if swap else (c.left, c.right)
        rows, columns = reversed(own) if swap else own
        self.m, self.n, self.k = self.axis(rows), self.axis(columns), _axis(c.depth)
        tiled = {f.var for x in (self.m, self.n) for f in x.loops}
        self.around = [f for f in c.rows if f.var not in tiled]
        self.a, self.b = self.factor(left, self.m), self.factor(right, self.n)

    def axis(self, loops: Sequence[loop.For]) -> _Axis:
        """The innermost of these loops; those around it are a batch, unless tiles would be left empty."""
        if not loops:
            return _Axis("", 1, ())
        last = _size(loops[-1])
        small = last < 128 and last % 64
        return _axis(loops if small else loops[-1:])

    # ---- where the operands lie

    def stride(self, buffer: str, index: tuple[Expr, ...], var: str) -> int | None:
        return access.stride(access.address(index, self.tensors[buffer], self.ranges), Var(var))

    def factor(self, wide: Expr, own: _Axis) -> _Factor:
        value = wide.arg if isinstance(wide, Cast) and wide.arg.dtype in STORAGE_ONLY else wide
        found = loads(value)
        along = {
            part: any(self.stride(x.buffer, x.index, axis.loops[-1].var) == 1 for x in found)
            for part, axis in (("own", own), ("k", self.k))
            if axis.loops
        }
        order = ("k", "own") if along.get("own") and not along.get("k") else ("own", "k")
        copied = isinstance(value, Load) and self.is_block(value, own)
        piece = self.piece(value) if copied and isinstance(value, Load) else 0
        return _Factor(value, found[0].buffer, Operand(value.dtype.bytes, copied, piece or value.dtype.bytes), order)

    def is_block(self, load: Load, own: _Axis) -> bool:
        """A copy can bring a tile: each part moves one axis by one, the last evenly, and k ends with its axis."""
        last = False
        for part in (own, self.k):
            if len(part.loops) != 1:
                return False
            var = Var(part.name)
            moved = [axis for axis, e in enumerate(load.index) if part.name in names(e)]
            if len(moved) != 1:
                return False
            (axis,) = moved
            terms, rest = linear(load.index[axis])
            others = [t for t in terms if t is not var]
            if terms.get(var) != 1 or any(part.name in names(t) for t in others):
                return False
            end = self.tensors[load.buffer].shape[axis]
            ends = not others and isinstance(end, Const) and int(end.value) == part.size + rest
            if part is self.k and not ends and part.size % self.depth_unit(load):
                return False
            last |= self.stride(load.buffer, load.index, part.name) == 1 and axis == len(load.index) - 1
        first, second = (next(n for n, e in enumerate(load.index) if p.name in names(e)) for p in (own, self.k))
        return last and first != second

    def depth_unit(self, load: Load) -> int:
        return 128 // load.dtype.bytes

    def piece(self, load: Load) -> int:
        """The widest piece that begins at a multiple of itself wherever a row of a tile begins; 0 for none."""
        size = load.dtype.bytes
        place = access.address(load.index, self.tensors[load.buffer], self.ranges)
        terms, rest = linear(place)
        steps = [c * size for c in terms.values() if c != 1] + [rest * size]
        steps += [c.value * size for c in self.tensors[load.buffer].strides[:-1] if isinstance(c, Const)]
        return next((p for p in PIECES if all(s % p == 0 for s in steps)), 0)

    # ---- the choice

    def rows(self) -> tuple[Instruction, ...]:
        """The instructions for these types."""
        kinds = {x.value.dtype for x in (self.a, self.b)}
        if len(kinds) != 1 or (self.acc.bytes != 4 and STORAGE_ONLY[0] in kinds):
            return ()
        kind = kinds.pop().name
        rows = [
            r for r in self.target.instructions
            if r.function == "mlc_mma_sync" and (r.a_type, r.b_type, r.acc_type) == (kind, kind, self.acc.name)
        ]  # fmt: skip
        deepest = max((r.m * r.k for r in rows), default=0)
        return tuple(r for r in rows if r.m * r.k == deepest)

    def schedule(self) -> Schedule | None:
        """The steps; None where there is nothing to gain, or no instruction."""
        if min(self.m.size, self.n.size) < LEAST_ROWS or self.k.size < LEAST_DEPTH:
            return None
        batch = math.prod(_size(f) for f in self.around)
        terms = 3 if self.acc is f32 and self.a.value.dtype is f32 else 1
        sizes = Product(
            self.m.size, self.n.size, self.k.size, batch, self.a.operand, self.b.operand, self.acc.bytes, terms
        )
        made = tiles.choose(sizes, self.rows(), self.target)
        return self.applied(made, terms) if made else None

    # ---- steps

    def applied(self, t: Tiling, terms: int) -> Schedule:
        add, m, n, k = self.steps.append, self.m, self.n, self.k
        around = [f.var for f in self.around]
        order = [*around, *(f.var for x in (m, n) for f in x.loops)]
        if order != [f.var for f in self.found.rows]:
            add(Reorder(tuple(order)))
        for x in (m, n, k):
            self.collapse([f.var for f in x.loops])
        batch = self.collapse(around)
        grid = [batch] if batch else []
        rows = [*grid, m.name, n.name]
        if t.parts > 1:
            add(SplitK(self.found.accumulator, k.name, t.parts))
            self.total(rows)
            grid.insert(0, f"{k.name}_part")
        for x, size in ((m, t.m), (n, t.n)):
            self.split(x, size)
        add(Reorder((m.outer, n.outer, m.name, n.name)))
        grid += self.raster(t)
        self.steps += [Bind(var, "blocks") for var in grid]
        add(Distribute(self.found.accumulator, (m.name, n.name), "registers"))
        self.mainloop(t, terms)
        return Schedule(tuple(self.steps))

    def collapse(self, loops: list[str]) -> str:
        name = loops[0] if loops else ""
        for inner in loops[1:]:
            self.steps.append(Collapse(name, inner))
            name += inner
        return name

    def split(self, x: _Axis, size: int) -> None:
        self.steps.append(Split(x.name, size))
        x.outer, x.name = x.name + "0", x.name + "1"

    def raster(self, t: Tiling) -> list[str]:
        """The loops over tiles; where there are many either way, groups of rows go through the columns together."""
        if -(-self.m.size // t.m) <= GROUP or -(-self.n.size // t.n) <= GROUP:
            return [self.m.outer, self.n.outer]
        self.steps.append(Raster(self.m.outer, self.n.outer, GROUP))
        return [self.m.outer + self.n.outer]

    def total(self, rows: list[str]) -> None:
        """The nest that adds up the parts: each thread has neighbours along the columns."""
        *outer, last = rows
        for var in outer:
            self.steps.append(Bind(f"{var}_sum", "blocks"))
        vector = next(v for v in (4, 2, 1) if self.n.size % v == 0)
        threads = min(THREADS, -(-self.n.size // (vector * tiles.WARP)) * tiles.WARP)
        self.steps.append(Split(f"{last}_sum", threads * vector))
        lanes = (("threads", threads), *((("vector", vector),) if vector > 1 else ()))
        self.steps += [Bind(f"{last}_sum0", "blocks"), Bind(f"{last}_sum1", "lanes", lanes)]

    def mainloop(self, t: Tiling, terms: int) -> None:
        add, m, n, k = self.steps.append, self.m, self.n, self.k
        self.split(k, t.k)
        add(Reorder((k.outer, m.name, n.name, k.name)))
        ends = [tuple(f"{x.name}_{end}" for x in (m, n)) for end in ("first", "last")]
        add(Pad(ends[0], (t.m, t.n)))
        add(Pad((m.name, n.name, k.name), (t.m, t.n, t.k)))
        add(Pad(ends[1], (t.m, t.n)))
        part = f"{self.found.accumulator}_chunk"
        if terms > 1:
            add(Promote(self.found.accumulator, k.outer, part))
            ends += [(f"{part}_{end}0", f"{part}_{end}1") for end in ("first", "last")]
        for nest in ends:
            self.spread(nest, t.threads)
        tile_a, tile_b = self.shared(self.a, m, "tile", t), self.shared(self.b, n, "panel", t)
        add(Bind(k.outer, "pipeline", (("depth", t.depth),)))
        step, inner = k.name + "0", k.name + "1"
        add(Split(k.name, t.row.k))
        add(Reorder((step, m.name, n.name, inner)))
        add(Bind(step, "unroll"))
        nest = (m.name, n.name, inner)
        pieces = [f"{x}_piece" for x in (tile_a, tile_b)]
        add(Cache(tile_a, pieces[0], (m.name, inner), "registers", "plain"))
        add(Cache(tile_b, pieces[1], (n.name, inner), "registers", "plain"))
        if terms > 1:
            add(Compensate(nest))
            for x in pieces:
                self.spread((f"{x}_at0", f"{x}_at1"), t.threads)
            self.steps += [Tensorize(tuple(v + end for v in nest), t.row.name) for end in ("_0", "_1")]
        add(Tensorize(nest, t.row.name))

    def spread(self, nest: tuple[str, str], threads: int) -> None:
        self.steps += [Bind(nest[0], "lanes", (("threads", threads),)), Bind(nest[1], "lanes")]

    def shared(self, x: _Factor, own: _Axis, word: str, t: Tiling) -> str:
        """A factor's tile in shared memory; one that is not copied is computed by all threads."""
        name = f"{x.buffer}_{word}"
        parts = {"own": own.name, "k": self.k.name}
        loops = (parts[x.order[0]], parts[x.order[1]])
        sizes = {"own": t.m if own is self.m else t.n, "k": t.k}
        row = sizes[x.order[1]] * x.operand.bytes
        swizzle = next(w for w in (128, 64, 32, 0) if not w or row % w == 0)
        how = "" if not x.operand.copied else "cp.async" if x.operand.piece in PIECES else "plain"
        self.steps.append(Cache(x.buffer, name, loops, "shared", how, swizzle))
        if not how:
            self.steps.append(Bind(f"{name}_at", "lanes", (("threads", t.threads),)))
        return name


def _axis(loops: Sequence[loop.For]) -> _Axis:
    return _Axis("".join(f.var for f in loops), math.prod(map(_size, loops)), tuple(loops))


def _size(f: loop.For) -> int:
    assert isinstance(f.extent, Const)
    return int(f.extent.value)


def _fresh(kernel: Kernel, schedule: Schedule) -> bool:
    """None of the names that the steps make up is taken."""
    made: set[str] = set()
    for s in schedule.steps:
        match s:
            case Split(name):
                made |= {name + "0", name + "1"}
            case Collapse(outer, inner) | Raster(outer, inner):
                made.add(outer + inner)
            case Cache(_, name) | Promote(_, _, name):
                made |= {name, f"{name}_at"}
    taken = {p.name for p in kernel.params}
    for top in kernel.body:
        taken |= {n.name for n in top.walk() if isinstance(n, Let | Init)}
        taken |= {n.var for n in top.walk() if isinstance(n, loop.For)}
    return not made & taken
