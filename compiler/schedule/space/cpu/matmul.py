"""Matmuls on a CPU: blocks of a contraction's loops, and a tensor instruction for each.

Each loop plays one of four parts: m occurs only in one factor, n only in the other, k is summed over, and all others
are the batch. n is the loop along which the result is contiguous, or else the result is transposed before it is stored:
then a factor that is computed element by element supplies rows, of which single elements are broadcast, and need not be
transposed itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from compiler.analysis import access
from compiler.analysis.guarded_factors import read_narrow, unwidened, zero
from compiler.analysis.nests import loop_ranges, size
from compiler.analysis.vectors import fitting_width
from compiler.ir import loop
from compiler.ir.dtype import bf16, i8
from compiler.ir.expr import Cast, Const, Expr, Load, Select, Var, dim, names, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel, Let, Store
from compiler.ir.tensor import Tensor, flattened
from compiler.schedule import names as naming
from compiler.schedule.contraction_nest import Contraction, by_groups, recognise
from compiler.schedule.cost import cpu as cost
from compiler.schedule.name_suffixes import suffixed
from compiler.schedule.space.cpu import blocking
from compiler.schedule.space.cpu.blocking import Blocking, Matmul, Operand
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import (
    Bind,
    Distribute,
    Flatten,
    Pack,
    Reorder,
    Schedule,
    Split,
    SplitShifted,
    Stage,
    Step,
    StoreSums,
    Tensorize,
)
from compiler.targets.target import Target

SELDOM = 64  # up to one row in so many may be computed twice
DEEP = 128  # products per sum from which the speed of the loops before and after it does not matter
SHORT = 2  # vectors per row: shorter rows consist mostly of partial vectors
# Bytes of the elements that masked vectors can load, by what it takes.
MASKED = {2: ("avx512bw", "avx512vl"), 4: ("avx2",), 8: ("avx2",)}
WIDE = 4  # vectors per row: fewer do not reuse the other factor enough
LEAST_DEPTH = 4  # shorter sums are not worth tiles


def space(kernel: Kernel, target: Target) -> Iterator[Member] | None:
    """Schedules for the contraction of a kernel; None if it has none or the target has no instruction for it."""
    found = recognise(kernel, integers=True)
    if found is None:
        return None
    found, splits = by_groups(found)
    plan = _Plan(found, {p.name: p for p in kernel.params}, target, splits)
    made = [(plan, b) for b in plan.choices()]
    if made and plan.may_turn():
        across = replace(plan, across=True)
        made += [(across, b) for b in across.choices()]
    return ranked(m for p, b in made for m in p.members(b)) if made else None


@dataclass
class _Axis:
    """The loops that play one part, and the single loop after they were collapsed and split."""

    name: str
    size: int
    extent: Expr
    outer: str = ""  # the loop over blocks, if there is one


@dataclass
class _Plan:
    found: Contraction
    tensors: dict[str, Tensor]
    target: Target
    steps: list[Step] = field(default_factory=list)
    across: bool = False  # columns of the product are rows of the result

    def __post_init__(self) -> None:
        c = self.found
        self.bytes = c.first.value.dtype.bytes
        long = [f for f in c.rows if size(f) > 1]
        self.ranges = loop_ranges(c.loops)
        own = [
            [f for f in long if f.var in names(a) and f.var not in names(b)]
            for a, b in ((c.left, c.right), (c.right, c.left))
        ]
        contiguous = {
            f.var for f in long for s in c.after if isinstance(s, Store) and self.stride(s.buffer, s.index, f.var) == 1
        }
        swap = (not own[1] or any(f.var in contiguous for f in own[0])) != self.across
        self.a, self.b = (c.right, c.left) if swap else (c.left, c.right)
        rows, columns = reversed(own) if swap else own
        self.m_loops, self.n_loops = self.together(rows, self.a), self.together(columns, self.b)
        self.run_loops = self.n_loops  # over columns that are contiguous in the result
        if self.packed(self.b, self.n_loops[-1:]) and not self.across:
            self.n_loops = self.wide(columns)
        self.k_loops = self.in_order(list(c.depth))
        tiled = {f.var for f in (*self.m_loops, *self.n_loops)}
        self.around = [f for f in c.rows if f.var not in tiled]
        self.count = math.prod(map(size, self.around))
        self.m, self.n, self.k = (self.axis(fs) for fs in (self.m_loops, self.n_loops, self.k_loops))

    def axis(self, loops: Sequence[loop.For]) -> _Axis:
        count = math.prod(map(size, loops))
        return _Axis("".join(f.var for f in loops), count, dim(count))

    def together(self, loops: list[loop.For], factor: Expr) -> list[loop.For]:
        """The innermost loop and those around it that can collapse: every address has one stride through them.

        The strides of a factor that is packed anyway do not count.
        """
        read = () if self.packed(factor, loops[-1:]) else (Let("", self.found.left), Let("", self.found.right))
        out = loops[-1:]
        for f in reversed(loops[:-1]):
            body = (*self.found.after, *read)
            inner, outer = (access.strides(body, Var(x.var), self.tensors, self.ranges) for x in (out[0], f))
            if any(a is None or b != a * size(out[0]) for a, b in zip(inner, outer, strict=True)):
                break
            out.insert(0, f)
        return out

    def wide(self, loops: list[loop.For]) -> list[loop.For]:
        """The columns with loops around them, such as the pixels of several images, until they fill a few vectors: the
        other factor is read, and perhaps packed, once for each block of them."""
        count, size_of = len(self.n_loops), self.axis
        while count < len(loops) and size_of(loops[-count:]).size < WIDE * self.target.lanes(self.bytes):
            count += 1
        return loops[len(loops) - count :]

    def in_order(self, loops: list[loop.For]) -> list[loop.For]:
        """The reduction loops in an order in which A and, if possible, B are contiguous; packing may transpose B."""

        def along(order: list[loop.For]) -> tuple[bool, bool]:
            return self.contiguous(self.a, order), self.contiguous(self.b, order)

        def lying(load: Load) -> list[loop.For]:
            return sorted(loops, key=lambda f: -abs(self.stride(load.buffer, load.index, f.var) or 0))

        loads = [n for factor in (self.a, self.b) for n in factor.walk() if isinstance(n, Load)]
        return max([loops, *map(lying, loads)], key=along)

    def packed(self, factor: Expr, loops: Sequence[loop.For]) -> bool:
        """Whether no instruction can read the factor in place, even along these loops alone."""
        return not self.direct(factor, loops, self.found.depth)

    # ---- where the operands lie

    def stride(self, buffer: str, index: tuple[Expr, ...], var: str) -> int | None:
        return access.stride(access.address(index, self.tensors[buffer], self.ranges), Var(var))

    def contiguous(self, factor: Expr, loops: Sequence[loop.For]) -> bool:
        """Whether the factor's only load is contiguous along the innermost of `loops`, for at least a vector."""
        loads = [n for n in factor.walk() if isinstance(n, Load)]
        run, total = 1, 1
        for f in reversed([f for f in loops if size(f) > 1]):
            if run == total and len(loads) == 1 and self.stride(loads[0].buffer, loads[0].index, f.var) == run:
                run *= size(f)
            total *= size(f)
        return run >= min(total, self.target.lanes(self.bytes))

    def direct(self, factor: Expr, *parts: Sequence[loop.For]) -> bool:
        """Whether an instruction can read the factor in place: one load; rows and columns are its buffer's axes."""
        factor = read_narrow(factor)
        if not isinstance(factor, Load):
            return False
        loops = [next((f for f in fs if size(f) > 1), fs[0]) for fs in parts if fs]
        if any(sum(size(f) > 1 for f in fs) > 1 and not self.flat(factor, fs) for fs in parts):
            return False
        for f in loops:
            used = [linear(e)[0].get(Var(f.var)) for e in factor.index if f.var in names(e)]
            if used != [1]:
                return False
        return all(sum(f.var in names(e) for f in loops) <= 1 for e in factor.index)

    def flat(self, load: Load, loops: Sequence[loop.For]) -> tuple[Flatten, ...]:
        """The step that joins the load's axes along `loops`, if they are contiguous together; else empty."""
        run, seen = tuple(Var(f.var) for f in loops), self.tensors[load.buffer]
        at = next((d for d in range(len(load.index)) if load.index[d : d + len(run)] == run), None)
        if at is None or len(run) < 2 or tuple(f.extent for f in loops) != seen.shape[at : at + len(run)]:
            return ()
        return (Flatten(load.buffer, at, len(run)),) if flattened(seen, at, len(run)) else ()

    def operand(self, factor: Expr, name: str, loops: Sequence[loop.For]) -> Operand:
        """How a factor lies in memory; `loops` are those of its own part."""
        loads = [n for n in factor.walk() if isinstance(n, Load)]
        along = "k" if self.contiguous(factor, self.k_loops) else name if self.contiguous(factor, loops) else ""
        steps = [self.stride(x.buffer, x.index, f.var) or 0 for x in loads for f in self.k_loops if size(f) > 1]
        narrow = any(x.dtype.bytes < self.bytes for x in loads)
        step = max(map(abs, steps), default=0) * loads[0].dtype.bytes
        direct = self.direct(factor, loops, self.k_loops)
        unit, k_unit = (1 if direct else self.axis(fs[1:]).size for fs in (loops, self.k_loops))
        rows = [self.stride(x.buffer, x.index, loops[-1].var) for x in loads] if loops else []
        dense = along == "k" and rows == [self.k.size]
        last = size(self.k_loops[-1]) if k_unit > 1 else 1
        inner = self.columns_down() if self.across and factor is self.b else self.k_loops[-1:]
        within = self.axis(inner).size if k_unit > 1 and self.direct(factor, loops, inner) else 0
        run, k_run = (self.run(factor, fs) for fs in (loops, self.k_loops))
        return Operand(direct, along, step, narrow, unit, k_unit, dense, last, within, run, k_run)

    def may_turn(self) -> bool:
        """Whether `across` is worth trying: the columns' factor is computed element by element, the rows' factor is in
        memory, and the result has enough rows and columns to be transposed by whole vectors."""
        a, b = self.operand(self.a, "m", self.m_loops), self.operand(self.b, "n", self.n_loops)
        many = min(self.m.size, self.n.size) >= self.target.lanes(self.bytes)
        return many and not (b.direct or b.within) and (a.direct or a.within > 0)

    # ---- steps

    def choices(self) -> list[Blocking]:
        """Blockings, cheapest first; empty if a matmul does not pay or there is no instruction."""
        if not self.n_loops or self.k.size < LEAST_DEPTH:
            return []
        a, b = self.operand(self.a, "m", self.m_loops), self.operand(self.b, "n", self.n_loops)
        kind = self.found.first.value.dtype.name
        if not self.found.first.value.dtype.is_float:
            if not (a.direct and b.direct and a.narrow and b.narrow and a.along == "k" and b.along):
                return []  # integers are multiplied in place
            a, b = replace(a, narrow=False), replace(b, narrow=False)
        taken, wide = (kind, self.bytes) if self.found.first.value.dtype.is_float else (i8.name, i8.bytes)
        product = Matmul(self.m.size, self.n.size, self.k.size, self.count, a, b, kind, self.bytes, taken, wide)
        made = blocking.space(product, self.target)
        narrow = {unwidened(x).dtype for x in (self.a, self.b)}
        if len(narrow) == 1 and taken not in {x.name for x in narrow}:
            (short,) = narrow  # instructions may take them without widening
            a, b = (
                replace(x, narrow=False, converted=read_narrow(factor).dtype is not short)
                for x, factor in ((a, self.a), (b, self.b))
            )
            product = replace(product, a=a, b=b, factor=short.name, size=short.bytes)
            made = sorted((*made, *blocking.space(product, self.target)), key=lambda x: x.cycles)
        if self.across:
            turning = product.m * product.n * cost.packing(self.target, along=False, direct=True)
            made = [replace(x, cycles=x.cycles + turning) for x in made]
        return made

    def members(self, chosen: Blocking) -> Iterator[Member]:
        """The member for one blocking; if that stores sums, also the one that adds them to a tile, as for any size."""
        yield Member(chosen.cycles * self.count, partial(self.schedule, chosen))
        if self.stores(chosen):
            rounding = self.m.size * self.n.size * cost.packing(self.target, along=True, direct=True)
            added = replace(chosen, row=chosen.row.replace(stores=0), cycles=chosen.cycles + rounding)
            yield Member(added.cycles * self.count, partial(self.schedule, added))

    def schedule(self, chosen: Blocking) -> tuple[Step, ...]:
        """The steps for one blocking."""
        plan = copy.copy(self)
        plan.steps = list(self.steps)
        plan.m, plan.n, plan.k = (replace(x) for x in (self.m, self.n, self.k))
        return plan.applied(chosen).steps

    def applied(self, chosen: Blocking) -> Schedule:
        c, axes = self.found, [x for x in (self.m, self.n) if x.name]
        order = [f.var for f in (*self.around, *self.m_loops, *self.n_loops)]
        if order != [f.var for f in c.rows]:
            self.steps.append(Reorder(tuple(order)))
        if self.k_loops != list(c.depth):
            self.steps.append(Reorder(tuple(f.var for f in self.k_loops)))
        for loops in (self.m_loops, self.n_loops, self.k_loops):
            naming.collapse([f.var for f in loops], self.steps)
        self.steps += self.flattened()
        for x, block in ((self.m, chosen.m), (self.n, chosen.n), (self.k, chosen.k)):
            self.split(x, block)
        outer = [x for x in ((self.n, self.m) if chosen.strips else axes) if x.outer]
        outside = [f.var for f in self.around] + [x.outer for x in outer]
        if self.m.name and (self.n.outer or len(outer) > 1):
            self.steps.append(Reorder((*(x.outer for x in outer), *(x.name for x in axes))))
        self.spread(outside, chosen)
        own = tuple(x.name for x in axes)
        nests = Distribute(c.accumulator, own, own)
        self.steps.append(nests)
        inner = [x.name for x in (*axes, self.k)]
        if chosen.strips:
            strips = self.cut(self.m, chosen.row.m, chosen.m), self.cut(self.n, chosen.row.n, chosen.n)
            inner = [x for x in (self.k.outer, *strips, self.m.name, self.n.name, self.k.name) if x]
            self.steps.append(Reorder(tuple(inner)))
            self.pack(chosen, panels=strips[1])
            inner = inner[-3:]
        else:
            if self.k.outer:
                self.steps.append(Reorder((self.k.outer, *inner)))
            self.pack(chosen)
        self.steps.append(Tensorize(tuple(inner), chosen.row.name))
        if self.stores(chosen):
            self.steps.append(StoreSums(c.accumulator))
        else:
            self.vectorize(nests)
        return Schedule(tuple(self.steps))

    def stores(self, chosen: Blocking) -> bool:
        """Whether the instruction can store the sums itself: it makes whole sums, of which each is only rounded to bf16
        and stored, rows and columns in the order of the result."""
        c, deep = self.found, chosen.row.stores >= self.k.size
        if not deep or self.k.outer or chosen.strips or self.across or len(self.m_loops) != 1 or len(self.n_loops) != 1:
            return False
        start, fixed = c.first.value, all(isinstance(x.extent, Const) for x in (self.m, self.n))
        if not (fixed and isinstance(start, Const) and start.value == 0):
            return False
        row, column = (Var(fs[0].var) for fs in (self.m_loops, self.n_loops))
        match c.after:
            case (Let(name, value), Store(buffer, index, Var(stored), "set")):
                is_rounded = value == Cast(Var(c.accumulator, c.first.value.dtype), bf16) and stored == name
                moved = [e for e in index if names(e) & {row.name, column.name}]
                return is_rounded and moved == [row, column] and self.stride(buffer, index, column.name) == 1
        return False

    def flattened(self) -> list[Flatten]:
        """The steps for factors that are read in place, for the last axes of a buffer first."""
        down = self.columns_down() if self.across else self.k_loops
        parts = ((self.a, self.m_loops), (self.a, self.k_loops), (self.b, self.n_loops), (self.b, down))
        found = ((read_narrow(factor), loops) for factor, loops in parts)
        made = {step for load, loops in found if isinstance(load, Load) for step in self.flat(load, loops)}
        return sorted(made, key=lambda step: -step.axis)

    def columns_down(self) -> list[loop.For]:
        """The innermost loops of k that traverse one axis of the buffer whose columns a copy transposes."""
        column, count = read_narrow(self.b), len(self.k_loops)
        inner = (self.k_loops[n:] for n in range(count - 1))
        return next((fs for fs in inner if isinstance(column, Load) and self.flat(column, fs)), self.k_loops[-1:])

    def vectorize(self, nests: Distribute) -> None:
        """Vectorise the loops along rows of the result that initialise the sums and store them."""
        c, width = self.found, self.target.lanes(self.bytes)
        after = self.target.lanes(access.widest(c.after))
        column, dtype = Var((self.m_loops if self.across else self.n_loops)[-1].var), c.first.value.dtype
        # By then, the sum is an element of a tile, which cannot be loaded under a mask.
        stored = substitute(c.after, {Var(c.accumulator, dtype): Load(c.accumulator, (column,), dtype)})
        if access.not_vectorizable(stored, column, self.tensors, self.ranges):
            after = 1
        rolled = (("rolled", 1),) if self.k.size >= DEEP else ()
        last = (self.turned(nests), after, self.m.extent) if self.across else self.neighbours(nests.last[-1], after)
        for name, most, extent in ((nests.first[-1], width, self.n.extent), last):
            lanes = fitting_width(most, extent)
            if lanes > 1:
                self.steps.append(Bind(name, "vector", (("width", lanes), ("unroll", 1), *rolled)))

    def turned(self, nests: Distribute) -> str:
        """Transpose some columns of the result at a time in a tile; returns the loop along the rows that are stored."""
        rows, columns = nests.last
        outer, inner = naming.pieces(columns)
        tile = f"{nests.accumulator}turned"
        self.steps.append(Reorder((columns, rows)))
        self.steps.append(Split(columns, self.target.lanes(self.bytes), (outer, inner)))
        self.steps.append(Stage(nests.accumulator, tile, outer, "local", how="plain", turned=1))
        return rows

    def neighbours(self, name: str, lanes: int) -> tuple[str, int, Expr]:
        """The loop over columns that are contiguous in the result, its possible lanes, and its extent."""
        extent, run = self.n.extent, self.axis(self.run_loops).size
        if self.run_loops == self.n_loops:
            return name, lanes, extent
        if not isinstance(extent, Const) or int(extent.value) % run or run == 1:
            return name, 1, extent
        outer, inner = naming.pieces(name)
        self.steps.append(Split(name, run, (outer, inner)))
        return inner, lanes, dim(run)

    def split(self, x: _Axis, block: int) -> None:
        if block < x.size:
            into = naming.pieces(x.name)
            shifted = self.shifted(x, block)
            self.steps.append((SplitShifted if shifted else Split)(x.name, block, into))
            x.outer, x.name = into
            x.extent = dim(block) if shifted or x.size % block == 0 else Var(x.name)

    def shifted(self, x: _Axis, block: int) -> bool:
        """Whether to shift the last block so that all blocks are whole, which is less code: a few rows are then
        computed twice. Only for plain stores, because updates would be applied twice."""
        loops = self.m_loops if x is self.m else self.n_loops if x is self.n else []
        after = [n for s in self.found.after for n in s.walk()]
        stored = {n.buffer for n in after if isinstance(n, Store)}
        plain = all(n.op == "set" for n in after if isinstance(n, Store))
        apart = not any(n.buffer in stored for n in after if isinstance(n, Load))
        return len(loops) == 1 and plain and apart and 0 < -x.size % block * SELDOM <= x.size

    def cut(self, x: _Axis, by: int, block: int) -> str:
        """The loop over pieces of `by` of a block, or "" if it is a single piece."""
        if block <= by:
            return ""
        outer, inner = naming.pieces(x.name)
        self.steps.append(Split(x.name, by, (outer, inner)))
        x.name = inner
        return outer

    def spread(self, outside: list[str], chosen: Blocking) -> None:
        """Distribute as many outermost loops over the cores as an even load needs."""
        blocks = {self.m.outer: -(-self.m.size // chosen.m), self.n.outer: -(-self.n.size // chosen.n)}
        sizes = {f.var: size(f) for f in self.around} | blocks
        taken, count = 0, 1
        while taken < len(outside) and cost.imbalance(count, chosen.cores) > cost.EVEN:
            count *= sizes[outside[taken]]
            taken += 1
        if count > 1:
            self.steps.append(Bind(naming.collapse(outside[:taken], self.steps), "blocks"))

    def pack(self, chosen: Blocking, panels: str = "") -> None:
        """Pack operands into tiles; `panels` names the loop over panels of B, if any."""
        parts = ((chosen.pack_a, self.a, self.m, "tile"), (chosen.pack_b, self.b, self.n, "panel"))
        for wanted, factor, part, word in parts:
            if wanted:
                buffer = next(n.buffer for n in factor.walk() if isinstance(n, Load))
                order = (part, self.k) if part is self.m or chosen.flat else (self.k, part)
                loops = tuple(x for x in (panels if part is self.n else "", *(x.name for x in order)) if x)
                tile = f"{buffer}_{word}"
                into = suffixed(loops, tile)
                narrow = chosen.row.a_type != self.found.first.value.dtype.name
                along, block = (self.n_loops, chosen.n) if order[-1] is self.n else (self.k_loops, chosen.k)
                row = self.masked(factor, along) if part is self.n or self.across else 0
                masked = row > 0 and block % row == 0
                # Whole vectors of a narrow type would leave more of a row to be packed one by one.
                width = self.target.lanes(unwidened(factor).dtype.bytes if narrow and masked else self.bytes)
                self.steps.append(Pack(buffer, tile, loops, into, width, narrow, masked=masked))

    def masked(self, factor: Expr, loops: Sequence[loop.For]) -> int:
        """The length of rows of several loops that are contiguous in memory, with zeros at their guards, and so short
        that masked vectors pack them faster than a loop along each; 0 for others."""
        match unwidened(factor):
            case Select(cond, Load() as load, other) if other is zero(load) and self.loads_masked(load.dtype.bytes):
                row: list[loop.For] = []
                for f in reversed([f for f in loops if size(f) > 1]):
                    if self.stride(load.buffer, load.index, f.var) != self.axis(row).size:
                        break
                    row.insert(0, f)
                lanes = self.target.lanes(self.bytes) * (1 if load.dtype.bytes < self.bytes else SHORT)
                short = len(row) > 1 and size(row[-1]) < lanes
                return self.axis(row).size if short and names(cond) & {f.var for f in row} else 0
        return 0

    def loads_masked(self, size: int) -> bool:
        """Whether the target has masked loads of elements of so many bytes."""
        return size in MASKED and set(MASKED[size]) <= set(self.target.features)

    def run(self, factor: Expr, loops: Sequence[loop.For]) -> int:
        """The length of the runs in which a factor with padding is packed along `loops`; 0 for one without padding."""
        guarded = any(isinstance(n, Select) for n in factor.walk())
        return self.masked(factor, loops) or (size(loops[-1]) if loops and guarded else 0)
