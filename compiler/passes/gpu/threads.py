"""Tile IR in, Kernel IR for threads out: loops over blocks become the grid, loops over lanes go round robin to threads.

What stands outside loops over lanes is done by all threads alike, stores by one. Threads meet at a barrier between
statements of which one writes what the other touches.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import DType, boolean, i64
from compiler.ir.expr import COMBINE, Cast, Const, Expr, Load, Op, Select, Var, cast, const, names, op, select, static
from compiler.ir.index import Range, extent_range, simplify, value_range
from compiler.ir.node import Node
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import copies, fragment_loops, fragments, lanes, mma, pipelines, shared, specialised, wgmma
from compiler.passes.gpu.fragments import Fragment, Grid
from compiler.passes.gpu.hazards import Hazards, Uses, touched
from compiler.passes.gpu.scope import THREAD, WARP, Scope, Spread, range_of
from compiler.passes.gpu.shared import SharedTile
from compiler.passes.gpu.streams import left_behind, read_once
from compiler.passes.gpu.vectors import multiple
from compiler.schedule import access
from compiler.targets.target import Target

Body = list[k.Stmt]


@dataclass(frozen=True)
class Ring:
    """The slots of a pipeline with producers: their barriers, and where all sides are in it: slot and phase."""

    depth: int
    full: str
    empty: str
    ready: str
    slot: Var
    phase: Var
    asked: tuple[Var, Var]
    prepared: tuple[Var, Var]


AXES = ("x", "y", "z")
MOST_IN_YZ = 65535  # blocks along the second and third axis of a grid, on every capability


def tile_to_threads(program: Program, target: Target, schedules: Mapping[str, str] = {}) -> k.Program:
    """Every kernel becomes one function, or one for each of the nests that follow each other in it."""
    functions: list[k.Function] = []
    for kernel in program.kernels:
        parts = _apart(kernel)
        for part in parts:
            lowering = Lowering(part, target, read_once(part), left_behind(program, part, target))
            functions.append(lowering.function(schedules.get(kernel.name, "")))
    return k.Program(program.name, program.inputs, program.outputs, program.temps, tuple(functions), program.sizes)


def _apart(kernel: Kernel) -> list[Kernel]:
    """A kernel for each nest over blocks where several statements follow each other, and for what is between them."""
    groups: list[list[Stmt]] = []
    for s in kernel.body:
        if _is(s, "blocks") or not groups or _is(groups[-1][0], "blocks"):
            groups.append([])
        groups[-1].append(s)
    if len(groups) < 2 or any(_scalars(a) & _used(b) for n, a in enumerate(groups) for b in groups[n + 1 :]):
        return [kernel]
    out = []
    for n, group in enumerate(groups):
        body = tuple(group)
        used = tile.buffers(body)
        params = tuple(p for p in kernel.params if p.name in used)
        writes = tuple(w for w in kernel.writes if any(isinstance(x, Store) and x.buffer == w for x in _nodes(body)))
        out.append(kernel.replace(name=f"{kernel.name}_{n}", params=params, writes=writes, body=body))
    return out


def _nodes(body: Iterable[Stmt]) -> Iterator[Node]:
    return (n for s in body for n in s.walk())


def _scalars(body: Iterable[Stmt]) -> set[str]:
    return {s.name for s in body if isinstance(s, Let | Init)}


def _used(body: Iterable[Stmt]) -> set[str]:
    return {n.name for n in _nodes(body) if isinstance(n, Var | Accum)}


def _is(s: Stmt, level: str) -> bool:
    return isinstance(s, tile.For) and s.bind.level == level


@dataclass
class Lowering:
    """One kernel: what is known of its tiles, and what its function begins with.

    `threads` of a block do what loops over lanes say, `scratch` are arrays through which its warps combine what they
    have. `start` computes what does not change: `known` has the ranges of its variables. Of the buffers `streamed`, no
    element is read twice; those `past` are results that nobody reads soon.
    """

    source: Kernel
    target: Target
    streamed: frozenset[str] = frozenset()
    past: frozenset[str] = frozenset()
    threads: int = WARP
    taken: set[str] = field(default_factory=set)
    scratch: dict[DType, str] = field(default_factory=dict)
    hazards: Hazards = field(default_factory=Hazards)
    groups: Grid = field(default_factory=lambda: Grid(1, 1))
    tiles: dict[str, Tensor] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    fragments: dict[str, Fragment] = field(default_factory=dict)
    in_shared: frozenset[str] = frozenset()  # tiles that all threads that compute may store to
    awaited: tuple[frozenset[str], k.Stmt] | None = None  # tiles that others prepare, and the wait for them
    shared: dict[str, SharedTile] = field(default_factory=dict)
    arrays: Body = field(default_factory=list)
    start: Body = field(default_factory=list)
    known: dict[str, Range] = field(default_factory=dict)
    multiples: dict[str, int] = field(default_factory=dict)
    # With producers: their number of threads, rings by loop variable, barriers with their slots and arrivals, maps.
    specialised: bool = False
    first: int = 0  # number of the first thread of those that are being told what to do
    producers: int = 0
    rings: dict[str, Ring] = field(default_factory=dict)
    signals: list[tuple[str, int, int]] = field(default_factory=list)
    parities: dict[str, Var] = field(default_factory=dict)
    maps: dict[tuple[str, tuple[int, ...], int], str] = field(default_factory=dict)
    # Fragments that products under way add to, those that they read, and the one that the last statement added to;
    # accumulators to begin at zero, and where; shared tiles that ordinary stores changed since the last fence.
    flight: set[str] = field(default_factory=set)
    lent: set[str] = field(default_factory=set)
    adding: str = ""
    blank: dict[str, Expr] = field(default_factory=dict)
    unfenced: set[str] = field(default_factory=set)
    origins: dict[Fragment, tuple[Expr, Expr]] = field(default_factory=dict)

    def function(self, schedule: str) -> k.Function:
        s = self.source
        self.taken = {p.name for p in s.params}
        self.threads = block_size(s)
        allocs = [n for x in s.body for n in x.walk() if isinstance(n, tile.Alloc)]
        self.tiles = {n.tensor.name: n.tensor for n in allocs}
        self.in_shared = frozenset(n.tensor.name for n in allocs if n.space == "shared")
        self.groups = fragments.choose_grid(s, self.target, self.threads)
        self.fragments = fragments.infer(s, self.target, fragments.divide(s, self.target, self.groups))
        scope = Scope({}, ChainMap({}, self.known), {p.name: p for p in s.params}, multiples=self.multiples)
        body, axes = s.body, []
        while len(body) == 1 and _is(body[0], "blocks"):
            loop = body[0]
            assert isinstance(loop, tile.For)
            axes.append(loop)
            body = loop.body
        grid, start = self.grid(axes, scope)
        self.specialised = specialised.has_producers(body)
        if self.specialised:
            inside = specialised.roles(self, body, scope)
        else:
            inside = [*self.sequence(body, scope), *wgmma.finish(self, scope)]
        arrays = [k.Array(name, dtype, WARP, "shared", 16) for dtype, name in self.scratch.items()]
        made = (*self.arrays, *arrays, *self.start, *start, *inside)
        maps = tuple(k.TensorMap(name, *described) for described, name in self.maps.items())
        block = (self.threads + self.producers, 1, 1)
        return k.Function(s.name, s.params, s.writes, made, grid, block, s.origin, schedule, maps)

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

    def lane(self) -> Expr:
        """The number of this thread in its warp."""
        return self.once("lane", k.Builtin("thread.lane"), WARP)

    def warp(self) -> Expr:
        """The number of this thread's warp in the block, the same variable for all of a warp's threads."""
        return self.once("warp", k.Builtin("thread.warp"), self.threads // WARP)

    def once(self, stem: str, value: Expr, count: int) -> Expr:
        """A variable from the function's beginning with that value, which is not negative and below `count`.

        Values that are no shorter by a name, and those of variables that are not known there, stay as they are.
        """
        if isinstance(value, Const | Var) or not names(value) <= set(self.known):
            return value
        for s in self.start:
            if isinstance(s, k.Declare) and s.value is value:
                return Var(s.name)
        name = self.fresh(stem)
        self.start.append(k.Declare(name, value))
        low, high = value_range(value, self.known)
        self.known[name] = (low or 0, count - 1 if high is None else min(high, count - 1))
        self.multiples[name] = multiple(value, self.multiples)
        return Var(name)

    def origin(self, fragment: Fragment) -> tuple[Expr, Expr]:
        """Row and column at which this thread's part of a fragment begins."""
        if fragment not in self.origins:
            row, column = fragments.place(fragment, self.lane(), self.warp(), self.known)
            rows, columns = fragment.shape
            self.origins[fragment] = self.once("row", row, rows), self.once("column", column, columns)
        return self.origins[fragment]

    def array(self, buffer: str) -> str:
        """The array or parameter that holds a buffer other threads see."""
        return self.shared[buffer].array if buffer in self.shared else buffer

    def offset(self, held: SharedTile, index: tuple[Expr, ...], scope: Scope) -> Expr:
        """Where an element of a tile in shared memory is; what a swizzle mixes is computed at the beginning."""
        return shared.offset(held, index, scope.ranges, lambda e: self.once("place", e, held.size))

    def meet(self, scope: Scope) -> k.Stmt:
        """All threads that do the same wait for each other."""
        if self.specialised and scope.level == "block":
            return k.Call("mlc_named_barrier", (), (const(2 if self.first else 1), const(self.threads)))
        return k.Barrier(scope.level)

    def barriers(self, stem: str, slots: int, arrivals: int) -> str:
        """An array of mbarriers, each of which expects so many arrivals."""
        name = self.fresh(stem)
        self.arrays.append(k.Array(name, i64, slots, "shared", 8))
        self.signals.append((name, slots, arrivals))
        return name

    def ring(self, f: tile.For, depth: int, preparing: int) -> None:
        """The barriers of a pipeline: one arrival, with the bytes, fills a slot; all warps that compute empty it.

        Where warps prepare what comes, these arrive in between.
        """
        full, empty = self.barriers("full", depth, 1), self.barriers("empty", depth, self.threads // WARP)
        ready = self.barriers("ready", depth, preparing) if preparing else ""
        stems = ("slot", "phase", "slot_asked", "phase_asked", "slot_prepared", "phase_prepared")
        a, b, c, d, e, g = (Var(self.fresh(n)) for n in stems)
        self.rings[f.var] = Ring(depth, full, empty, ready, a, b, (c, d), (e, g))

    def parity(self, barrier: str) -> Var:
        """The parity of the phase of a barrier that is waited for next."""
        if barrier not in self.parities:
            self.parities[barrier] = Var(self.fresh("parity"))
        return self.parities[barrier]

    def map(self, buffer: str, box: tuple[int, ...], swizzle: int) -> str:
        """The tensor map of boxes of a parameter."""
        key = (buffer, box, swizzle)
        if key not in self.maps:
            self.maps[key] = self.fresh(f"{buffer}_map")
        return self.maps[key]

    # ---- statements

    def sequence(self, body: tuple[Stmt, ...], scope: Scope) -> Body:
        out: Body = []
        for n, s in enumerate(body):
            if scope.level == "block":
                zero = wgmma.blank(self, s, body[n + 1 :])
                if zero:
                    self.blank[zero] = Const(True, boolean)
                    continue
                out += wgmma.settle(self, s, scope)
                out += self.fenced(s, scope)
            if scope.level != "thread" and not _holds_together(s):
                uses = touched(s, scope)
                if self.hazards.between(uses):
                    out.append(self.meet(scope))
                    self.hazards.clear()
                out += self.stmt(s, scope, body[n + 1 :])
                # All threads have waited for what the copy engine brings.
                brought = isinstance(s, tile.Copy) and s.how == "tma" and s.target.buffer in self.shared
                self.hazards.add(Uses(uses.reads, frozenset()) if brought else uses)
            else:
                out += self.stmt(s, scope, body[n + 1 :])
        return out

    def fenced(self, s: Stmt, scope: Scope) -> Body:
        """Before the copy engine or wgmma reads what threads have stored: a fence of each, and a barrier."""
        reads: set[str] = set()
        if wgmma.is_asynchronous(self, s):
            assert isinstance(s, tile.Mma)
            reads = {s.a.buffer, s.b.buffer}
        elif isinstance(s, tile.Copy) and s.how == "tma":
            reads = {s.source.buffer}
        stored = {x.buffer for x in s.walk() if isinstance(x, Store)}
        stored |= {x.target.buffer for x in s.walk() if isinstance(x, tile.Copy) and x.how != "tma"}
        out: Body = []
        if self.awaited is not None and tile.buffers((s,)) & self.awaited[0]:
            out, self.awaited = [self.awaited[1]], None
        if reads & self.unfenced:
            out += [k.Call("mlc_fence_async", (), ()), self.meet(scope)]
            self.hazards.clear()
            self.unfenced.clear()
        self.unfenced |= stored & self.in_shared
        return out

    def stmt(self, s: Stmt, scope: Scope, after: tuple[Stmt, ...] = ()) -> Body:
        match s:
            case tile.For(bind=tile.Bind(level="lanes")) if scope.part is not None and not scope.part.columns:
                return fragment_loops.over_columns(self, s, scope)
            case tile.For(bind=tile.Bind(level="lanes")) if scope.level != "thread":
                fragment = fragment_loops.fragment_of(self, s) if scope.level == "block" else None
                if fragment is not None:
                    return fragment_loops.over_rows(self, s, fragment, scope)
                return lanes.over_lanes(self, s, scope)
            case tile.For() if specialised.is_specialised(s) and scope.level == "block":
                return specialised.computed(self, s, scope)
            case tile.For(bind=tile.Bind(level="pipeline")) if scope.level == "block":
                return pipelines.pipeline(self, s, scope)
            case tile.For(bind=tile.Bind(level="unroll")) if scope.level == "block" and mma.loads_fragments(self, s):
                return mma.unrolled(self, s, scope)
            case tile.Copy() if scope.level == "block":
                return copies.copy(self, s, scope)
            case tile.Mma() if scope.level == "block":
                return mma.multiply(self, s, scope)
            case tile.For(bind=tile.Bind(level="warps")) if scope.level == "block":
                return self.over_warps(s, scope)
            case tile.For(bind=tile.Bind(level="blocks" | "warps" | "pipeline" as level)):
                raise ValueError(f"kernel {self.source.name}: the loop {s.var} over {level} is inside {scope.level}s")
            case tile.For(bind=tile.Bind(level="vector"), extent=Const(int() as vector)) if scope.level == "thread":
                return lanes.by_vector(self, s, scope, vector)
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
        body = self.loop_body(f, f.body, inner)
        mark = "unroll" if f.bind.level == "unroll" else ""
        return [k.For(var, const(0), extent, 1, tuple(body), mark)] if body else []

    def loop_body(self, f: tile.For, statements: tuple[Stmt, ...], scope: Scope, meets: bool = False) -> Body:
        """The statements of a loop, and a barrier where one iteration touches what the one before did.

        Where each iteration begins with one, it `meets` anyway.
        """
        before = self.hazards.copy()
        body = self.sequence(statements, scope)
        if scope.level != "thread":
            uses = touched(f, scope)
            if self.hazards.between(uses) and not meets:
                body.append(self.meet(scope))
                self.hazards.clear()
            self.hazards.join(before)
            if not specialised.is_specialised(f):
                body += wgmma.finish(self, scope)
        return body

    def store(self, s: Store, scope: Scope) -> Body:
        value = self.value(s.value, scope)
        buffer, place = self.at(s.buffer, s.index, scope)
        if (scope.gathered or {}).get(s.buffer, ("", None))[1] is place:
            array, lane = (scope.gathered or {})[s.buffer][0], scope.values["neighbour"]
            return [k.Store(array, lane, value)]
        made = k.Store(buffer, place, value, s.op)
        if scope.part is not None and not scope.part.columns and s.buffer not in (scope.registers or {}):
            return [k.If(fragment_loops.only_one(self, scope.part.fragment), (made,))]
        if scope.level == "thread" or s.buffer in (scope.registers or {}):
            return [made]
        first = op("eq", self.thread(scope), const(0))
        return [k.If(first, (made,))]

    def is_parameter(self, buffer: str) -> bool:
        """A buffer in global memory."""
        return any(p.name == buffer for p in self.source.params)

    def thread(self, scope: Scope) -> Expr:
        """The number of this thread among those that do the same."""
        if scope.level == "warp":
            return scope.values["lane"]
        return THREAD - self.first if self.first else THREAD

    def alloc(self, s: tile.Alloc, scope: Scope, after: tuple[Stmt, ...]) -> Body:
        tensor = s.tensor
        self.taken.add(tensor.name)
        scope.buffers[tensor.name] = tensor
        if tensor.name in self.fragments and scope.level == "block":
            array = tensor.name if tensor.name not in (scope.registers or {}) else self.fresh(tensor.name)
            scope.registers = {**(scope.registers or {}), tensor.name: array}
            return [k.Array(array, tensor.dtype, self.fragments[tensor.name].count, "local", 16)]
        if scope.level == "thread":
            scope.local |= {tensor.name}
            return [k.Array(tensor.name, tensor.dtype, _span(tensor), "local", 16)]
        if s.space == "shared" and scope.level == "block":
            self.allocate(s)
            return []
        if s.space != "registers":
            raise ValueError(
                f"kernel {self.source.name}: tile {tensor.name} of a {scope.level} is in {s.space} memory, which its "
                "threads do not share"
            )
        return lanes.register_share(self, s, scope, after)

    def allocate(self, s: tile.Alloc, slots: int = 1) -> None:
        """Shared memory for a tile, as often as a pipeline holds it."""
        size = shared.size_of(s.tensor, s.swizzle)
        self.taken.add(s.tensor.name)
        self.shared[s.tensor.name] = SharedTile(s.tensor, s.tensor.name, s.swizzle, size, const(0))
        align = shared.alignment(s.swizzle)
        self.arrays.append(k.Array(s.tensor.name, s.tensor.dtype, slots * size, "shared", align))

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

    def scratch_for(self, dtype: DType, threads: int) -> str:
        if threads <= WARP:
            return ""
        if self.specialised:
            raise ValueError(f"kernel {self.source.name}: warps combine what they have beside producers")
        if dtype not in self.scratch:
            self.scratch[dtype] = self.fresh(f"scratch_{dtype.name}")
        return self.scratch[dtype]

    # ---- expressions

    def at(self, buffer: str, index: tuple[Expr, ...], scope: Scope) -> tuple[str, Expr]:
        """Where an element is: in a thread's own array, or at a flat index."""
        if buffer in self.fragments and buffer in (scope.registers or {}):
            return (scope.registers or {})[buffer], self.register(buffer, index, scope)
        if buffer in (scope.registers or {}):
            around = scope.lanes
            if around is None or index != (Var(around.var),) or around.spread != self.spreads[buffer]:
                raise ValueError(
                    f"kernel {self.source.name}: tile {buffer} is in registers, spread over {self.spreads[buffer]}; "
                    "it can be used in loops that are spread alike, at their own place, only"
                )
            return buffer, around.slot
        if buffer in self.shared:
            held = self.shared[buffer]
            return held.array, self.offset(held, tuple(self.value(i, scope) for i in index), scope)
        flat = access.address(index, scope.buffers[buffer], scope.tile_ranges())
        return buffer, simplify(self.value(flat, scope), scope.ranges, index=True)

    def register(self, buffer: str, index: tuple[Expr, ...], scope: Scope) -> Expr:
        """The register of a fragment at the place of the loops over rows and columns."""
        part, own = scope.part, self.fragments[buffer]
        offsets: list[Expr | None] = []
        for n in range(2):
            i = index[n] if n < len(index) else None
            if len(index) == 1:  # a value for each row, or for each column
                i = index[0] if own.shape[n] != 1 else None
            if i is None:
                offsets.append(const(0))
            else:
                offsets.append(
                    part.row
                    if part and i is Var(part.rows)
                    else part.column
                    if part and i is Var(part.columns)
                    else None
                )
        row, column = offsets
        if part is None or row is None or column is None or not _alike(part.fragment, own):
            raise ValueError(
                f"kernel {self.source.name}: {buffer} is spread over threads as {own.shape} for a tensor instruction; "
                "it can be used at the rows and columns of loops over lanes that go over it, only"
            )
        return fragments.register(own, row, column, scope.ranges)

    def value(self, e: Expr, scope: Scope) -> Expr:
        match e:
            case Const():
                return e
            case Var(name):
                return scope.values.get(name, e)
            case Load(buffer, index, dtype):
                where, place = self.at(buffer, index, scope)
                if (where, place) in (scope.ready or {}):
                    where, place = (scope.ready or {})[where, place]
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


def _holds_together(s: Stmt) -> bool:
    """A statement whose parts are looked at one by one when barriers are placed."""
    return isinstance(s, If) or (isinstance(s, tile.For) and s.bind.level not in ("lanes", "warps"))


def _alike(a: Fragment, b: Fragment) -> bool:
    """Threads have parts of the same rows, and of the same columns, unless a tile has but one."""
    rows = b.shape[0] == 1 or [(d.extent, d.row) for d in a.threads] == [(d.extent, d.row) for d in b.threads]
    columns = b.shape[1] == 1 or [(d.extent, d.column) for d in a.threads] == [(d.extent, d.column) for d in b.threads]
    return rows and columns


def _span(t: Tensor) -> int:
    far = [(static(n, f"the size of {t.name}") - 1) * static(by) for n, by in zip(t.shape, t.strides, strict=True)]
    return max(sum(far) + 1, 1)
