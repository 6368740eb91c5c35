"""Lower Tile IR to Kernel IR for a CPU: buffers are flat, loops are C loops, loops bound to `vector` are vector code.

The outermost `blocks` loop becomes the parallel one. A vector loop becomes a loop over whole vectors, several at a time
in a reduction. Its remainder is, as its binding says, one more vector that ends with the loop and recomputes some
elements, or a scalar loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from compiler.analysis import access
from compiler.analysis.nests import accumulated
from compiler.analysis.remainders import remainder, unit
from compiler.analysis.vectors import IDEMPOTENT, MARKS, vector_problem, whole
from compiler.ir import dtype as dt
from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import (
    COMBINE,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Select,
    Var,
    cast,
    const,
    fresh,
    op,
    select,
    static,
)
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, If, Init, InOrder, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import span
from compiler.ir.value_ranges import range_below, value_range
from compiler.passes.cpu.in_order import in_order
from compiler.passes.cpu.lane_places import load_at, place, quotient
from compiler.passes.cpu.lane_sums import combine, declarations
from compiler.passes.cpu.remainders import mask_recomputed
from compiler.passes.cpu.scope import Lanes, Scope, iterations, overlapping_vectors
from compiler.targets.cpu import GROUPED
from compiler.targets.target import Target, instruction

Body = list[k.Stmt]


def tile_to_kernel(program: Program, target: Target, schedules: Mapping[str, str] = {}) -> k.Program:
    """Lower every kernel to a function. `schedules` has texts to quote in its head, by kernel name."""
    functions = (_Lowering(f, target).function(schedules.get(f.name, "")) for f in program.kernels)
    return k.Program(program.name, program.inputs, program.outputs, program.temps, tuple(functions), program.sizes)


@dataclass
class _Lowering:
    source: Kernel
    target: Target
    taken: set[str] = field(default_factory=set)

    def function(self, schedule: str) -> k.Function:
        s = self.source
        scope = Scope({}, {}, {p.name: p for p in s.params})
        self.taken = {p.name for p in s.params}
        body = self.body(s.body, scope)
        return k.Function(s.name, s.params, s.writes, tuple(body), origin=s.origin, schedule=schedule, checks=s.checks)

    def body(self, body: tuple[Stmt, ...], scope: Scope) -> Body:
        out: Body = []
        for s in body:
            out += self.stmt(s, scope)
        return out

    def stmt(self, s: Stmt, scope: Scope) -> Body:
        match s:
            case tile.For(bind=tile.Bind(level="vector")) if scope.lanes is None:
                return self.vector_loop(s, scope)
            case tile.For():
                return self.loop(s, scope)
            case Let(name, value):
                value = self.value(value, scope)
                if isinstance(value, Const | Var):
                    scope.values[name] = value
                    return []
                return [self.declare(name, value, scope)]
            case Init(name, value):
                return [self.declare(name, self.broadcast(self.value(value, scope), scope), scope, varies=True)]
            case Accum(name, how, value):
                old = scope.values[name]
                assert isinstance(old, Var)
                value = self.value(value, scope)
                if name in scope.sums and how not in IDEMPOTENT:
                    value = mask_recomputed(self.broadcast(value, scope), scope.again, how)
                return [k.Assign(old.name, op(COMBINE[how], *self.broadcast_all(old, value)))]
            case Store(buffer, index, value, how):
                place, stored = self.place(buffer, index, scope), self.broadcast(self.value(value, scope), scope)
                return [k.Store(buffer, place, stored, how)]
            case If(cond, inner):
                cond, body = self.value(cond, scope), self.body(inner, scope.inner())
                if isinstance(cond, Const):
                    return body if cond.value else []
                return [k.If(cond, tuple(body))]
            case InOrder():
                return [in_order(s, scope, self.value, self.place)]
            case tile.Alloc(tensor, _, _):
                scope.buffers[tensor.name] = tensor
                self.taken.add(tensor.name)
                return [k.Array(tensor.name, tensor.dtype, span(tensor), "local")]
            case tile.Copy():
                return self.copy(s, scope)
            case tile.Mma():
                return self.mma(s, scope)
        raise TypeError(f"{type(s).__name__} has no meaning on a CPU")

    def declare(self, name: str, value: Expr, scope: Scope, varies: bool = False) -> k.Stmt:
        """Declare a variable. With `varies` it is accumulated into: its first value does not bound its range."""
        made = fresh(name + scope.suffix, self.taken)
        scope.values[name] = Var(made, value.dtype)
        if value.dtype is i64 and not varies:
            scope.ranges[made] = value_range(value, scope.ranges)
        return k.Declare(made, value)

    def loop(self, f: tile.For, scope: Scope, *copies: Scope) -> Body:
        """The loop; its body has the statements of `scope` and of its `copies`."""
        if f.extent is const(0):
            return []
        extent = self.value(f.extent, scope)
        if f.bind.level == "unroll" and dict(f.bind.args).get("jam"):
            return self.unroll_and_jam(f.body, [i for x in (scope, *copies) for i in iterations(f, static(extent), x)])
        var = fresh(f.var + ("" if copies else scope.suffix), self.taken)
        spread = f.bind.level == "blocks" and not scope.parallel and scope.lanes is None
        inners = [x.inner(parallel=x.parallel or spread) for x in (scope, *copies)]
        for inner in inners:
            inner.values[f.var] = Var(var)
            inner.ranges[var] = range_below(extent, scope.ranges)
        mark = "parallel" if spread else "unroll" if f.bind.level == "unroll" else ""
        body = tuple(self.unroll_and_jam(f.body, inners))
        return [k.For(var, const(0), extent, 1, body, mark)] if body else []

    # ---- vectors

    def vector_loop(self, f: tile.For, scope: Scope) -> Body:
        args = dict(f.bind.args)
        extent = self.value(f.extent, scope)
        ranges = dict(scope.ranges) | {f.var: range_below(extent, scope.ranges)}
        outer = accumulated(f.body)
        problem = vector_problem(f, extent, scope.buffers, ranges, {n: scope.values[n].dtype for n in outer})
        if problem:
            raise ValueError(f"kernel {self.source.name}: {problem}")
        width, copies = args["width"], args.get("unroll", 1)
        if args.get("again") and isinstance(extent, Const) and width * copies > extent.value:
            return self.unroll_and_jam(f.body, list(overlapping_vectors(f, int(extent.value), width, scope)))
        done, end = (whole(extent, width * copies) if copies > 1 else const(0)), whole(extent, width)
        sums = [{name: self.lane_accumulator(name, width, scope) for name in outer} for _ in range(copies)]
        out = declarations(outer, sums, width, scope)
        out += self.whole_vectors(f, scope, const(0), done, width, sums)
        out += self.whole_vectors(f, scope, done, end, width, sums[:1])
        combined = combine(outer, sums, scope)
        if args.get("again") and isinstance(extent, Const):
            recomputed = static(end) - static(extent) + width
            return [*out, *self.overlapping_vector(f, scope, extent, width, recomputed, sums[-1]), *combined]
        if args.get("again"):
            return [*out, *self.overlapping_or_scalar(f, scope, end, extent, width)]
        return [*out, *combined, *self.scalar_remainder(f, scope, end, extent)]

    def lane_accumulator(self, name: str, width: int, scope: Scope) -> Var:
        """A vector accumulator for the scalar `name`."""
        return Var(fresh(f"{name}_lanes", self.taken), dt.vector(scope.values[name].dtype, width))

    def whole_vectors(
        self, f: tile.For, scope: Scope, start: Expr, stop: Expr, width: int, sums: list[dict[str, Var]]
    ) -> Body:
        """The vector loop from `start` to `stop`, with one vector per element of `sums` in each iteration."""
        if start is stop:
            return []
        var = fresh(f.var + scope.suffix, self.taken)
        step = width * len(sums)
        high = value_range(stop, scope.ranges)[1]
        scopes: list[Scope] = []
        for c, copy in enumerate(sums):
            suffix = scope.suffix + (f"_{c}" if len(sums) > 1 else "")
            inner = scope.inner(lanes=Lanes.of(f, Var(var) + c * width, width, width), suffix=suffix)
            inner.ranges[var] = (0, None if high is None else high - step)
            inner.ranges[f.var] = (0, None if high is None else high - 1)
            inner.values |= copy
            scopes.append(inner)
        args = dict(f.bind.args)
        mark = next((m for m in MARKS if args.get(m)), "")
        return [k.For(var, start, stop, step, tuple(self.unroll_and_jam(f.body, scopes)), mark, args.get("ahead", 0))]

    def overlapping_or_scalar(self, f: tile.For, scope: Scope, end: Expr, extent: Expr, width: int) -> Body:
        """The remainder of a loop that may have none, and may be shorter than a vector."""
        last = tuple(self.overlapping_vector(f, scope, extent, width, 0, {}))
        if (value_range(extent, scope.ranges)[0] or 0) < width:
            rest = tuple(self.scalar_remainder(f, scope, end, extent))
            last = (k.If(op("ge", extent, width), last, rest),)
        return [k.If(op("lt", end, extent), last)]

    def overlapping_vector(
        self, f: tile.For, scope: Scope, extent: Expr, width: int, again: int, sums: dict[str, Var]
    ) -> Body:
        """The remainder as one vector that ends with the loop and recomputes `again` elements."""
        base = simplify(extent - width, scope.ranges, index=True)
        multiple = int(base.value) if isinstance(base, Const) else 1
        inner = scope.inner(lanes=Lanes.of(f, base, width, multiple), again=again)
        inner.ranges[f.var] = range_below(extent, scope.ranges)
        inner.values |= sums
        inner.sums = frozenset(sums)
        return self.body(f.body, inner)

    def unroll_and_jam(self, body: tuple[Stmt, ...], scopes: list[Scope]) -> Body:
        """The body once per scope, with its loops shared by all scopes (unroll and jam)."""
        if len(scopes) == 1:
            return self.body(body, scopes[0])
        out: Body = []
        for is_loop, run in groupby(body, lambda s: isinstance(s, tile.For)):
            statements = tuple(run)
            if is_loop:
                for s in statements:
                    assert isinstance(s, tile.For)
                    out += self.loop(s, *scopes)
            else:
                for scope in scopes:
                    out += self.body(statements, scope)
        return out

    def scalar_remainder(self, f: tile.For, scope: Scope, start: Expr, stop: Expr) -> Body:
        if start is stop:
            return []
        var = fresh(f.var + scope.suffix, self.taken)
        inner = scope.inner()
        inner.values[f.var] = Var(var)
        inner.ranges[var] = range_below(stop, scope.ranges)
        return [k.For(var, start, stop, 1, tuple(self.body(f.body, inner)))]

    # ---- expressions

    def place(self, buffer: str, index: tuple[Expr, ...], scope: Scope) -> Expr:
        """The flat index of lane 0."""
        flat = access.address(index, scope.buffers[buffer], self.tile_ranges(scope))
        return simplify(self.scalar(flat, scope), scope.ranges, index=True)

    def tile_ranges(self, scope: Scope) -> dict[str, Range]:
        """Ranges by the names that Tile IR uses."""
        known = {
            n: scope.ranges[v.name] for n, v in scope.values.items() if isinstance(v, Var) and v.name in scope.ranges
        }
        return scope.ranges | known

    def scalar(self, e: Expr, scope: Scope) -> Expr:
        """`e` in lane 0."""
        if scope.lanes is None:
            return self.value(e, scope)
        inner = scope.inner(lanes=None)
        inner.values[scope.lanes.var] = scope.lanes.base
        return self.value(e, inner)

    def value(self, e: Expr, scope: Scope) -> Expr:
        """`e` as a vector if it differs between lanes, else as a scalar."""
        match e:
            case Const():
                return e
            case Var(name):
                if scope.lanes is not None and name == scope.lanes.var:
                    return k.Ramp(scope.lanes.base, 1, scope.lanes.width)
                return scope.values.get(name, e)
            case Load(buffer, index, dtype):
                return self.load(buffer, index, dtype, scope)
            case Cast(arg, dtype):
                inner = self.value(arg, scope)
                return cast(inner, dt.vector(dtype, inner.dtype.lanes))
            case Select():
                return self.select(e, scope)
            case Op("floordiv" | "mod") if (found := self.quotient(e, scope)) is not None:
                return found
            case Op(name, args):
                made = op(name, *self.broadcast_all(*(self.value(a, scope) for a in args)))
                return simplify(made, scope.ranges) if made.dtype is i64 or made.dtype is boolean else made
        raise TypeError(f"{type(e).__name__} is not a Tile IR expression")

    def select(self, e: Select, scope: Scope) -> Expr:
        cond, then, other = self.value(e.cond, scope), e.then, e.other
        if isinstance(cond, Const):
            return self.value(then if cond.value else other, scope)
        if cond.dtype.lanes == 1:
            return select(cond, *self.broadcast_all(self.value(then, scope), self.value(other, scope)))
        masked = scope.lanes is not None and scope.lanes.masked
        known = self.tile_ranges(scope)
        parts = access.parts_of_guard(e, scope.buffers, known, lambda c: self.varies(c, scope)) if not masked else None
        if parts is not None:
            return self.select(Select(parts[0], Select(parts[1], then, other), other), scope)
        first, second = (self.broadcast(self.value(x, scope), scope) for x in (then, other))
        if masked and isinstance(first, Load):
            return select(cond, first, second)
        return op("where", cond, first, second)

    def broadcast_all(self, *args: Expr) -> tuple[Expr, ...]:
        """Broadcast scalars among vectors to all lanes."""
        lanes = max(a.dtype.lanes for a in args)
        return tuple(k.Broadcast(a, lanes) if a.dtype.lanes == 1 < lanes else a for a in args)

    def broadcast(self, e: Expr, scope: Scope) -> Expr:
        return k.Broadcast(e, scope.lanes.width) if scope.lanes is not None and e.dtype.lanes == 1 else e

    def load(self, buffer: str, index: tuple[Expr, ...], dtype: dt.DType, scope: Scope) -> Expr:
        lanes, flat = scope.lanes, access.address(index, scope.buffers[buffer], self.tile_ranges(scope))
        if lanes is None:
            return Load(buffer, (simplify(self.value(flat, scope), scope.ranges, index=True),), dtype)
        step = access.stride(flat, Var(lanes.var))
        if step == 0 and not self.varies(flat, scope):
            return Load(buffer, (simplify(self.scalar(flat, scope), scope.ranges, index=True),), dtype)
        if step == 1 and not any(self.varies(a, scope) for a in linear(flat)[0] if a is not Var(lanes.var)):
            return Load(buffer, (self.place(buffer, index, scope),), dt.vector(dtype, lanes.width))
        found = place(flat, lanes, lambda e: self.varies(e, scope)) if step is None else None
        if found is None:
            return k.Gather(buffer, self.broadcast(self.value(flat, scope), scope), dt.vector(dtype, lanes.width))
        return load_at(buffer, simplify(self.scalar(found[0], scope), scope.ranges, index=True), found[1], dtype)

    def quotient(self, e: Op, scope: Scope) -> Expr | None:
        """A quotient or remainder whose lanes share one scalar; None for others."""
        found = quotient(e, scope.lanes, lambda x: self.varies(x, scope)) if scope.lanes is not None else None
        if found is None:
            return None
        first, more = simplify(self.scalar(found[0], scope), scope.ranges, index=True), found[1]
        if more is None or first is const(0):
            return first if more is None else more
        return self.broadcast(first, scope) + more

    def varies(self, e: Expr, scope: Scope) -> bool:
        assert scope.lanes is not None
        names = {n.name for n in e.walk() if isinstance(n, Var)}
        return scope.lanes.var in names or any(scope.values[n].dtype.lanes > 1 for n in names if n in scope.values)

    # ---- tiles

    def copy(self, s: tile.Copy, scope: Scope) -> Body:
        """Loops over the slice; elements outside the source read as zero, elements outside the target are dropped."""
        lengths = tile.extents(s.target)
        if tile.extents(s.source) != lengths:
            raise ValueError(f"a CPU copies no {tile.extents(s.source)} of {s.source.buffer} to {lengths}")
        plain = not any((x.steps, x.order) != ((), ()) for x in (s.target, s.source))
        if len(lengths) == 2 and plain and self.fits(s.target, scope) and self.fits(s.source, scope, ends=False):
            return [self.copy_block(s, lengths, scope)]
        axes = [Var(fresh(f"c{d}", self.taken)) for d in range(len(lengths))]
        inner = scope.inner(lanes=None)
        for a, n in zip(axes, lengths, strict=True):
            inner.values[a.name], inner.ranges[a.name] = a, (0, n - 1)
        at = {x: tile.element(x, axes) for x in (s.target, s.source)}
        inside = {x: access.inside(at[x], scope.buffers[x.buffer], self.tile_ranges(inner)) for x in at}
        dtype = scope.buffers[s.source.buffer].dtype
        zero = cast(const(0, dt.compute(dtype)), dtype)
        moved = select(inside[s.source], Load(s.source.buffer, at[s.source], dtype), zero)
        store: Stmt = Store(s.target.buffer, at[s.target], moved)
        body: tuple[Stmt, ...] = (store,) if isinstance(inside[s.target], Const) else (If(inside[s.target], (store,)),)
        out = self.body(body, inner)
        for a, n in reversed(list(zip(axes, lengths, strict=True))):
            out = [k.For(a.name, const(0), const(n), 1, tuple(out))]
        return out

    def fits(self, s: tile.Slice, scope: Scope, ends: bool = True) -> bool:
        """Whether the slice is known to begin inside its buffer and, with `ends`, to end there."""
        known = self.tile_ranges(scope)
        for start, n, size in zip(s.starts, s.lengths, scope.buffers[s.buffer].shape, strict=True):
            low = value_range(start, known)[0]
            left = value_range(simplify(size - start, known), known)[0]
            if low is None or low < 0 or ((ends or not n) and (left is None or left < max(n, 1))):
                return False
        return True

    def copy_block(self, s: tile.Copy, lengths: list[int], scope: Scope) -> k.Stmt:
        """A call of the device function for the copy: sizes, existing parts of them, and both sides with strides."""
        (source, steps), (target, to_steps) = (self.slice_start(x, "mn", scope) for x in (s.source, s.target))
        shape, known = scope.buffers[s.source.buffer].shape, self.tile_ranges(scope)
        left = [
            simplify(n - e, known)
            for e, n, moves in zip(s.source.starts, shape, s.source.lengths, strict=True)
            if moves
        ]
        left = [const(n) if (value_range(e, known)[0] or 0) >= n else e for e, n in zip(left, lengths, strict=True)]
        whole = left == [const(n) for n in lengths]
        there = [self.value(e, scope) for e in left]
        axes = list(zip(map(const, lengths), there, steps.values(), to_steps.values(), strict=True))
        if axes[0][2] is const(1):  # the source is contiguous along the first axis
            axes.reverse()
        extents, exist, (row, by), (to_row, to_by) = zip(*axes, strict=True)
        args: tuple[Expr | k.Address, ...] = (*extents, *exist, source, row, by, target, to_row, to_by)
        how = "MLC_ANY"
        if by is const(1) and to_by is const(1):
            how = "MLC_WHOLE_ROWS" if whole else "MLC_ROWS"
        elif by is const(1) and to_row is const(1):
            how = "MLC_TURNED"
        return k.Call("mlc_copy_block", (how,), args, (s.target.buffer,))

    def mma(self, s: tile.Mma, scope: Scope) -> Body:
        """A call of the instruction's device function, which takes any sizes and the remainders of its tiles."""
        row = instruction(self.target, s.instruction)
        long = tile.lengths(s)
        sizes = [self.value(e, scope) for e in s.sizes] or [const(long[x]) for x in "mnk"]
        corners = [self.slice_start(x, axes, scope) for x, axes in zip((s.acc, s.a, s.b), tile.letters(s), strict=True)]
        steps = {
            f"{name}.{x}": n
            for name, (_, found) in zip(("acc", "a", "b"), corners, strict=True)
            for x, n in found.items()
        }
        uneven = [x for x in row.contiguous if x in steps and steps[x] is not const(1) and long[x[-1]] > 1]
        types = [scope.buffers[x.buffer].dtype.name for x in (s.acc, s.a, s.b)]
        loads = {"f32": ("bf16", "f16", "f8e4m3", "f8e5m2", "i8")}.get(row.acc_type, ())
        narrow = () if row.function in GROUPED else loads
        if (
            uneven
            or s.layout not in row.layouts
            or (types[0] != row.acc_type and not s.store)
            or not {*types[1:]} <= {row.a_type, *narrow}
        ):
            raise ValueError(f"{row.name} takes no operands of {types} as {s.layout}, not contiguous along {uneven}")
        left: tuple[int, ...] = tuple(remainder(e, by) for e, by in zip(sizes, (row.m, row.n), strict=False))
        (c, _), (a, _), (b, _) = corners
        if "b.k" in row.contiguous:  # sums along vectors
            left = (left[0], row.n if s.again else left[1], unit(sizes[2], 64))
        distance = [steps.get(x, const(0)) for x in ("a.m", "a.k", "b.k", "b.n", "acc.m")]
        args: tuple[Expr | k.Address, ...] = (*sizes, a, *distance[:2], b, *distance[2:4], c, distance[4])
        function, depth = (f"{row.function}_store", (long["k"],)) if s.store else (row.function, ())
        return [k.Call(function, (row.m, row.n, *left, *depth), args, (s.acc.buffer,))]

    def slice_start(self, s: tile.Slice, letters: str, scope: Scope) -> tuple[k.Address, dict[str, Expr]]:
        """The address where a slice begins, and its strides by letter."""
        kept = [d for d, n in enumerate(s.lengths) if n]
        strides = scope.buffers[s.buffer].strides
        return k.Address(s.buffer, self.place(s.buffer, s.starts, scope)), {
            x: strides[d] for x, d in zip(letters, kept, strict=True)
        }
