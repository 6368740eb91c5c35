"""Tile IR in, Kernel IR for threads out: loops over blocks become the grid, loops over lanes go round robin to threads.

What stands outside loops over lanes is done by all threads alike, stores by one. Threads meet at a barrier between
statements of which one writes what the other touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import DType, boolean, i64
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
    identity,
    op,
    select,
    static,
)
from compiler.ir.index import Range, extent_range, simplify, value_range
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Program, Stmt, Store
from compiler.passes.gpu.hazards import Hazards, touched
from compiler.passes.gpu.scope import THREAD, WARP, Lanes, Scope, Spread
from compiler.passes.gpu.vectors import Neighbours, divides, neighbours
from compiler.schedule import access
from compiler.targets.target import Target

Body = list[k.Stmt]

AXES = ("x", "y", "z")
MOST_IN_YZ = 65535  # blocks along the second and third axis of a grid, on every capability
ROUNDS_UNROLLED = 16  # of a loop over lanes that keeps nothing in registers


def tile_to_threads(program: Program, target: Target, schedules: Mapping[str, str] = {}) -> k.Program:
    """Every kernel becomes one function, or one for each of the nests that follow each other in it."""
    functions: list[k.Function] = []
    for kernel in program.kernels:
        parts = _apart(kernel)
        for part in parts:
            functions.append(Lowering(part, target).function(schedules.get(kernel.name, "")))
    return k.Program(program.name, program.inputs, program.outputs, program.temps, tuple(functions), program.sizes)


def _apart(kernel: Kernel) -> list[Kernel]:
    """A kernel for each nest, where several nests over blocks follow each other."""
    if len(kernel.body) < 2 or not all(_is(s, "blocks") for s in kernel.body):
        return [kernel]
    out = []
    for n, s in enumerate(kernel.body):
        used = tile.buffers((s,))
        params = tuple(p for p in kernel.params if p.name in used)
        writes = tuple(w for w in kernel.writes if any(isinstance(x, Store) and x.buffer == w for x in s.walk()))
        out.append(kernel.replace(name=f"{kernel.name}_{n}", params=params, writes=writes, body=(s,)))
    return out


def _is(s: Stmt, level: str) -> bool:
    return isinstance(s, tile.For) and s.bind.level == level


@dataclass
class Lowering:
    """One kernel; `threads` of a block, and arrays through which the warps of a block combine what they have."""

    source: Kernel
    target: Target
    threads: int = WARP
    taken: set[str] = field(default_factory=set)
    scratch: dict[DType, str] = field(default_factory=dict)
    hazards: Hazards = field(default_factory=Hazards)

    def function(self, schedule: str) -> k.Function:
        s = self.source
        self.taken = {p.name for p in s.params}
        self.threads = block_size(s)
        scope = Scope({}, {}, {p.name: p for p in s.params})
        body, axes = s.body, []
        while len(body) == 1 and _is(body[0], "blocks"):
            loop = body[0]
            assert isinstance(loop, tile.For)
            axes.append(loop)
            body = loop.body
        grid, start = self.grid(axes, scope)
        inside = self.sequence(body, scope)
        arrays = [k.Array(name, dtype, WARP, "shared", 16) for dtype, name in self.scratch.items()]
        made = (*arrays, *start, *inside)
        return k.Function(s.name, s.params, s.writes, made, grid, (self.threads, 1, 1), s.origin, schedule)

    def grid(self, axes: list[tile.For], scope: Scope) -> tuple[tuple[Expr, ...], Body]:
        """The extents of the grid, innermost first, and where a block is in it."""
        extents = [self.value(f.extent, scope) for f in axes]
        wide = [e for e in extents[:-1] if not isinstance(e, Const) or int(e.value) > MOST_IN_YZ]
        start: Body = []
        places: list[Expr] = [k.Builtin(f"block.{a}") for a in AXES[: len(axes)]]
        shape = tuple(reversed(extents))
        if wide or len(axes) > len(AXES):
            flat = Var(self.fresh("block"))
            start.append(k.Declare(flat.name, places[0] if places else k.Builtin("block.x")))
            total: Expr = const(1)
            places, shape = [], ()
            for e in reversed(extents):
                places.append(flat // total % e if e is not extents[0] else flat // total)
                total = total * e
            shape = (total,)
        for f, e, place in zip(reversed(axes), reversed(extents), places, strict=True):
            var = self.fresh(f.var)
            scope.values[f.var], scope.ranges[var] = Var(var), extent_range(e)
            start.append(k.Declare(var, place))
        return shape or (const(1),), start

    def fresh(self, name: str) -> str:
        stem, n = name, 0
        while name in self.taken:
            n += 1
            name = f"{stem}_{n}"
        self.taken.add(name)
        return name

    # ---- statements

    def sequence(self, body: tuple[Stmt, ...], scope: Scope) -> Body:
        out: Body = []
        for n, s in enumerate(body):
            if scope.level != "thread" and not _holds_together(s):
                uses = touched(s, scope)
                if self.hazards.between(uses):
                    out.append(k.Barrier(scope.level))
                    self.hazards.clear()
                out += self.stmt(s, scope, body[n + 1 :])
                self.hazards.add(uses)
            else:
                out += self.stmt(s, scope, body[n + 1 :])
        return out

    def stmt(self, s: Stmt, scope: Scope, after: tuple[Stmt, ...] = ()) -> Body:
        match s:
            case tile.For(bind=tile.Bind(level="lanes")) if scope.level != "thread":
                return self.over_lanes(s, scope)
            case tile.For(bind=tile.Bind(level="warps")) if scope.level == "block":
                return self.over_warps(s, scope)
            case tile.For(bind=tile.Bind(level="blocks" | "warps" | "pipeline" as level)):
                raise ValueError(f"kernel {self.source.name}: the loop {s.var} over {level} is inside {scope.level}s")
            case tile.For():
                return self.loop(s, scope)
            case Let(name, value):
                value = self.value(value, scope)
                if isinstance(value, Const | Var):
                    scope.values[name] = value
                    return []
                return [self.declare(name, value, scope)]
            case Init(name, value):
                return [self.declare(name, self.value(value, scope), scope)]
            case Accum(name, how, value):
                old = scope.values[name]
                assert isinstance(old, Var)
                return [k.Assign(old.name, op(COMBINE[how], old, self.value(value, scope)))]
            case Store():
                return self.store(s, scope)
            case If(cond, inner):
                cond, body = self.value(cond, scope), self.sequence(inner, scope.inner())
                if isinstance(cond, Const):
                    return body if cond.value else []
                return [k.If(cond, tuple(body))]
            case tile.Alloc():
                return self.alloc(s, scope, after)
        raise ValueError(f"kernel {self.source.name}: {type(s).__name__} has no meaning for threads")

    def declare(self, name: str, value: Expr, scope: Scope) -> k.Stmt:
        made = self.fresh(name)
        scope.values[name] = Var(made, value.dtype)
        if value.dtype is i64:
            scope.ranges[made] = value_range(value, scope.ranges)
        return k.Declare(made, value)

    def loop(self, f: tile.For, scope: Scope) -> Body:
        """A loop that each thread runs through."""
        if f.extent is const(0):
            return []
        var = self.fresh(f.var)
        extent = self.value(f.extent, scope)
        inner = scope.inner()
        inner.values[f.var], inner.ranges[var] = Var(var), range_of(extent, scope.ranges)
        before = self.hazards.copy()
        body = self.sequence(f.body, inner)
        if scope.level != "thread":
            uses = touched(f, scope)
            if self.hazards.between(uses):
                body.append(k.Barrier(scope.level))
                self.hazards.clear()
            self.hazards.join(before)
        mark = "unroll" if f.bind.level == "unroll" else ""
        return [k.For(var, const(0), extent, 1, tuple(body), mark)] if body else []

    def store(self, s: Store, scope: Scope) -> Body:
        value = self.value(s.value, scope)
        buffer, place = self.at(s.buffer, s.index, scope)
        if (scope.gathered or {}).get(s.buffer, ("", None))[1] is place:
            array, lane = (scope.gathered or {})[s.buffer][0], scope.values["neighbour"]
            return [k.Store(array, lane, value)]
        made = k.Store(buffer, place, value, s.op)
        if scope.level == "thread" or s.buffer in (scope.registers or {}):
            return [made]
        first = op("eq", self.thread(scope), const(0))
        return [k.If(first, (made,))]

    def thread(self, scope: Scope) -> Expr:
        """The number of this thread among those that do the same."""
        return scope.values["lane"] if scope.level == "warp" else THREAD

    def alloc(self, s: tile.Alloc, scope: Scope, after: tuple[Stmt, ...]) -> Body:
        tensor = s.tensor
        self.taken.add(tensor.name)
        scope.buffers[tensor.name] = tensor
        size = _span(tensor.shape, tensor.strides, tensor.name)
        if scope.level == "thread":
            return [k.Array(tensor.name, tensor.dtype, size, "local", 16)]
        if s.space == "shared" and scope.level == "block":
            return [k.Array(tensor.name, tensor.dtype, size, "shared", 16)]
        if s.space != "registers":
            raise ValueError(
                f"kernel {self.source.name}: tile {tensor.name} of a {scope.level} is in {s.space} memory, which its "
                "threads do not share"
            )
        user = next((n for x in after for n in x.walk() if _is_user(n, tensor.name)), None)
        if user is None:
            return []
        spread = self.spread(user, scope)
        rounds = -(-static(spread.extent) // (spread.threads * spread.vector))
        scope.registers = {**(scope.registers or {}), tensor.name: tensor.name}
        self.spreads[tensor.name] = spread
        return [k.Array(tensor.name, tensor.dtype, rounds * spread.vector, "local", 16)]

    spreads: dict[str, Spread] = field(default_factory=dict)

    # ---- levels

    def over_warps(self, f: tile.For, scope: Scope) -> Body:
        """One iteration to each warp."""
        extent = self.value(f.extent, scope)
        most = value_range(extent, scope.ranges)[1]
        if most is None or most > self.threads // WARP:
            raise ValueError(f"kernel {self.source.name}: {f.var} has more iterations than a block has warps")
        inner = scope.inner(level="warp")
        var, lane = self.fresh(f.var), self.fresh("lane")
        inner.values[f.var], inner.values["lane"] = Var(var), Var(lane)
        inner.ranges[var], inner.ranges[lane] = (0, most - 1), (0, WARP - 1)
        start: Body = [k.Declare(var, THREAD // WARP), k.Declare(lane, THREAD % WARP)]
        around, self.hazards = self.hazards, Hazards()
        body = self.sequence(f.body, inner)
        self.hazards = around
        if extent is const(self.threads // WARP):
            return [*start, *body]
        return [*start, k.If(op("lt", Var(var), extent), tuple(body))]

    def spread(self, f: tile.For, scope: Scope) -> Spread:
        given = dict(f.bind.args)
        threads = given.get("threads", WARP if scope.level == "warp" else self.threads)
        if threads != (WARP if scope.level == "warp" else self.threads):
            raise ValueError(
                f"kernel {self.source.name}: {f.var} is spread over {threads} threads, of which a "
                f"{scope.level} has others"
            )
        vector = given.get("vector", 1)
        return Spread(f.extent, threads, vector if divides(self.value(f.extent, scope), vector) else 1)

    def over_lanes(self, f: tile.For, scope: Scope) -> Body:
        """Each thread takes its share of the iterations; what they accumulate, all threads combine."""
        if f.kind == "scan":
            raise ValueError(f"kernel {self.source.name}: the scan {f.var} cannot be spread over threads")
        if f.extent is const(0):
            return []
        spread = self.spread(f, scope)
        outer = _accumulated(f, scope)
        inner = scope.inner(level="thread")
        before: Body = []
        for name, how in outer.items():
            total = scope.values[name]
            part = self.fresh(f"{name}_part")
            before.append(k.Declare(part, identity(how, total.dtype)))
            inner.values[name] = Var(part, total.dtype)
        body = self.rounds(f, spread, inner, scope)
        after: Body = []
        for name, how in outer.items():
            total, part_var = scope.values[name], inner.values[name]
            assert isinstance(total, Var)
            if spread.threads > WARP:
                self.hazards.clear()
            together = k.Together(how, part_var, spread.threads, self.scratch_for(total.dtype, spread.threads))
            after.append(k.Assign(total.name, op(COMBINE[how], total, together)))
        return [*before, *body, *after]

    def scratch_for(self, dtype: DType, threads: int) -> str:
        if threads <= WARP:
            return ""
        if dtype not in self.scratch:
            self.scratch[dtype] = self.fresh(f"scratch_{dtype.name}")
        return self.scratch[dtype]

    def rounds(self, f: tile.For, spread: Spread, inner: Scope, scope: Scope) -> Body:
        """The loop by which a thread goes through its share, `vector` neighbours at a time."""
        count = simplify(self.value(f.extent, scope) // spread.vector, scope.ranges, index=True)
        kept = tile.buffers((f,)) & set(scope.registers or {})
        high = range_of(count, scope.ranges)[1]
        me = self.thread(scope)
        number = self.fresh(f.var if spread.vector == 1 else f"{f.var}_vector")
        inner.ranges[number] = (0, high)
        rounds = -(-(high + 1) // spread.threads) if high is not None else None
        if rounds is not None and (kept or rounds <= ROUNDS_UNROLLED):
            turn = Var(self.fresh("turn"))
            inner.ranges[turn.name] = (0, rounds - 1)
            slot: Expr = turn * spread.vector if rounds > 1 else const(0)
            body = self.share(f, spread, inner, Var(number), slot)
            exact = isinstance(count, Const) and int(count.value) == rounds * spread.threads
            place = turn * spread.threads + me if rounds > 1 else me
            declared = k.Declare(number, place)
            guarded = body if exact else [k.If(op("lt", Var(number), count), tuple(body))]
            if rounds == 1:
                return [declared, *guarded]
            return [k.For(turn.name, const(0), const(rounds), 1, (declared, *guarded), "unroll")]
        if kept:
            raise ValueError(f"kernel {self.source.name}: tiles in registers need known sizes: {sorted(kept)}")
        body = self.share(f, spread, inner, Var(number), const(0))
        return [k.For(number, me, count, spread.threads, tuple(body))]

    def share(self, f: tile.For, spread: Spread, inner: Scope, number: Var, slot: Expr) -> Body:
        """What a thread does in one round."""
        if spread.vector == 1:
            inner.values[f.var] = number
            inner.lanes = Lanes(f.var, spread, slot)
            return self.sequence(f.body, inner)
        lane = Var(self.fresh("n"))
        inner.ranges[lane.name] = (0, spread.vector - 1)
        inner.values[f.var] = number * spread.vector + lane
        inner.values["neighbour"] = lane
        inner.lanes = Lanes(f.var, spread, slot + lane)
        # Sizes known to be multiples of the vector make addresses so.
        found = neighbours(f.body, inner, lane, spread.vector, lambda b, i: self.at(b, i, inner)[1])
        before, after = self.transfers(found, spread.vector, inner)
        body = self.sequence(f.body, inner)
        return [*before, k.For(lane.name, const(0), const(spread.vector), 1, tuple(body), "unroll"), *after]

    def transfers(self, found: Neighbours, vector: int, inner: Scope) -> tuple[Body, Body]:
        """Loads and stores of whole vectors around the loop over neighbours."""
        before: Body = []
        after: Body = []
        inner.ready, inner.gathered = {}, {}
        for (buffer, flat), start in found.loads.items():
            array, dtype = self.fresh(f"{buffer}_near"), inner.buffers[buffer].dtype
            to, source = k.Address(array, const(0)), k.Address(buffer, start)
            before.append(k.Array(array, dtype, vector, "local", 16))
            before.append(k.Call("mlc_load", (vector,), (to, source), (array,)))
            inner.ready[buffer, flat] = (array, inner.values["neighbour"])
        for (buffer, flat), start in found.stores.items():
            array, dtype = self.fresh(f"{buffer}_near"), inner.buffers[buffer].dtype
            before.append(k.Array(array, dtype, vector, "local", 16))
            to, source = k.Address(buffer, start), k.Address(array, const(0))
            after.append(k.Call("mlc_store", (vector,), (to, source), (buffer,)))
            inner.gathered[buffer] = (array, flat)
        return before, after

    # ---- expressions

    def at(self, buffer: str, index: tuple[Expr, ...], scope: Scope) -> tuple[str, Expr]:
        """Where an element is: in a thread's own array, or at a flat index."""
        if buffer in (scope.registers or {}):
            lanes = scope.lanes
            if lanes is None or index != (Var(lanes.var),) or lanes.spread != self.spreads[buffer]:
                raise ValueError(
                    f"kernel {self.source.name}: tile {buffer} is in registers, spread over {self.spreads[buffer]}; "
                    "it can be used in loops that are spread alike, at their own place, only"
                )
            return buffer, lanes.slot
        flat = access.address(index, scope.buffers[buffer], scope.tile_ranges())
        return buffer, simplify(self.value(flat, scope), scope.ranges, index=True)

    def value(self, e: Expr, scope: Scope) -> Expr:
        match e:
            case Const():
                return e
            case Var(name):
                return scope.values.get(name, e)
            case Load(buffer, index, dtype):
                where, place = self.at(buffer, index, scope)
                if (buffer, place) in (scope.ready or {}):
                    where, place = (scope.ready or {})[buffer, place]
                return Load(where, (place,), dtype)
            case Cast(arg, dtype):
                return cast(self.value(arg, scope), dtype)
            case Select(cond, then, other):
                return self.choice(self.value(cond, scope), then, other, scope)
            case Op(name, args):
                made = op(name, *(self.value(a, scope) for a in args))
                return simplify(made, scope.ranges) if made.dtype is i64 or made.dtype is boolean else made
        raise TypeError(f"{type(e).__name__} is not a Tile IR expression")

    def choice(self, cond: Expr, then: Expr, other: Expr, scope: Scope) -> Expr:
        if isinstance(cond, Const):
            return self.value(then if cond.value else other, scope)
        return select(cond, self.value(then, scope), self.value(other, scope))


def block_size(kernel: Kernel) -> int:
    """Threads of a block: what the loops over lanes and over warps ask for."""
    most = WARP
    for s in kernel.body:
        for n in s.walk():
            match n:
                case tile.For(bind=tile.Bind("lanes", args)):
                    most = max(most, dict(args).get("threads", WARP))
                case tile.For(extent=extent, bind=tile.Bind("warps")):
                    high = value_range(extent, {})[1]
                    most = max(most, WARP * (high or 1))
    return most


def range_of(extent: Expr, ranges: Mapping[str, Range]) -> Range:
    """The range of a loop variable below `extent`."""
    high = value_range(extent, ranges)[1]
    return 0, None if high is None else high - 1


def _holds_together(s: Stmt) -> bool:
    """A statement whose parts are looked at one by one when barriers are placed."""
    return isinstance(s, If) or (isinstance(s, tile.For) and s.bind.level not in ("lanes", "warps"))


def _is_user(n: object, buffer: str) -> bool:
    return isinstance(n, tile.For) and n.bind.level == "lanes" and buffer in tile.buffers((n,))


def _accumulated(f: tile.For, scope: Scope) -> dict[str, str]:
    """Scalars from outside that `f` accumulates into, with their reductions."""
    inside = {n.name for n in f.walk() if isinstance(n, Init)}
    return {n.name: n.op for n in f.walk() if isinstance(n, Accum) and n.name in scope.values and n.name not in inside}


def _span(shape: tuple[Expr, ...], strides: tuple[Expr, ...], name: str) -> int:
    far = [(static(n, f"the size of {name}") - 1) * static(by) for n, by in zip(shape, strides, strict=True)]
    return max(sum(far) + 1, 1)
