"""Tile IR in, Kernel IR for threads out: loops over blocks become the grid, loops over lanes go round robin to threads.

What stands outside loops over lanes is done by all threads alike, stores by one. Threads meet at a barrier between
statements of which one writes what the other touches.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.analysis import access
from compiler.ir import alike, tile
from compiler.ir import kernel as k
from compiler.ir.dtype import DType, boolean, i64
from compiler.ir.expr import COMBINE, Cast, Const, Expr, Load, Op, Select, Var, cast, const, op, select
from compiler.ir.index import range_below, simplify, value_range
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import (
    copies,
    fragment_loops,
    fragments,
    groups,
    lanes,
    mma,
    pipelines,
    shared,
    specialised,
    tma,
    traits,
    wgmma,
)
from compiler.passes.gpu.blocks import apart, block_size, grid, is_bound
from compiler.passes.gpu.fragments import Fragment, Grid
from compiler.passes.gpu.groups import Group
from compiler.passes.gpu.hazards import Hazards, Uses, touched
from compiler.passes.gpu.scans import over_scan
from compiler.passes.gpu.scope import THREAD, WARP, Scope, Spread
from compiler.passes.gpu.shared import SharedTile
from compiler.passes.gpu.signals import Signals
from compiler.passes.gpu.streams import left_behind, read_once
from compiler.targets.target import Target

Body = list[k.Stmt]


def tile_to_threads(program: Program, target: Target, schedules: Mapping[str, str] = {}) -> k.Program:
    """Every kernel becomes one function, or one for each of the nests that follow each other in it.

    Kernels that are the same but for names are lowered once.
    """
    functions: list[k.Function] = []
    lowered: dict[object, tuple[Kernel, k.Function]] = {}
    parts: list[Tensor] = []
    zeros: list[Tensor] = []
    for kernel in program.kernels:
        for part in (kernel,) if groups.split(kernel.body) else apart(kernel):
            schedule = schedules.get(kernel.name, "")
            streamed, past = read_once(part), left_behind(program, part, target)
            standing = alike.names(part)
            key = alike.shape_of(part), *(frozenset(standing.get(b, b) for b in own) for own in (streamed, past))
            again = alike.under_names_of(lowered[key][1], lowered[key][0], part) if key in lowered else None
            if again is not None:
                functions.append(again.replace(schedule=schedule))
                continue
            lowering = Lowering(part, target, streamed=streamed, past=past)
            functions.append(lowering.function(schedule))
            if not lowering.exchanged:
                lowered[key] = part, functions[-1]
            parts += lowering.exchanged[:1]
            zeros += lowering.exchanged[1:]
    return k.Program(
        program.name, program.inputs, program.outputs, (*program.temps, *parts, *zeros), tuple(functions),
        program.sizes, tuple(t.name for t in zeros),
    )  # fmt: skip


@dataclass
class Lowering(Signals):
    """One kernel, and what is known of its tiles while it is lowered.

    `scratch` are arrays through which the warps of a block combine what they have. Of the buffers `streamed`, no
    element is read twice; those `past` are results that nobody reads soon.
    """

    streamed: frozenset[str] = frozenset()
    past: frozenset[str] = frozenset()
    scratch: dict[str, tuple[DType, int]] = field(default_factory=dict)
    hazards: Hazards = field(default_factory=Hazards)
    groups: Grid = field(default_factory=lambda: Grid(1, 1))
    tiles: dict[str, Tensor] = field(default_factory=dict)
    spreads: dict[str, Spread] = field(default_factory=dict)
    fragments: dict[str, Fragment] = field(default_factory=dict)
    in_shared: frozenset[str] = frozenset()  # tiles that all threads that compute may store to
    awaited: tuple[frozenset[str], k.Stmt] | None = None  # tiles that others prepare, and the wait for them
    shared: dict[str, SharedTile] = field(default_factory=dict)
    specialised: bool = False
    group: Group | None = None  # of blocks that make parts of one result
    first: int = 0  # number of the first thread of those that are being told what to do
    kept: int = 0  # registers of each of these, where they gave others away
    producers: int = 0
    # Arrays that products under way add to, with their sizes, those that they read, and the one last added to;
    # accumulators to begin at zero, and where; shared tiles that ordinary stores changed since the last fence, those
    # that the copy engine may still read when the loop around begins again.
    flight: dict[str, int] = field(default_factory=dict)
    lent: set[str] = field(default_factory=set)
    adding: str = ""
    blank: dict[str, Expr] = field(default_factory=dict)
    unfenced: set[str] = field(default_factory=set)
    leaving: frozenset[str] = frozenset()

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
        while len(body) == 1 and isinstance(body[0], tile.For) and is_bound(body[0], "blocks"):
            axes.append(body[0])
            body = body[0].body
        found = groups.split(body)
        shape, start = grid(self, axes if found is None else [*axes, found[1]], scope)
        if found is not None:
            groups.begin(self, *found[:2], axes, scope)
            body = (*found[1].body, groups.Meeting(found[0].tensor.name, found[2]))
        self.specialised = specialised.has_producers(body)
        if self.specialised:
            inside = specialised.roles(self, body, scope)
        else:
            inside = [*self.sequence(body, scope), *wgmma.finish(self)]
        arrays = [k.Array(name, dtype, size, "shared", 16) for name, (dtype, size) in self.scratch.items()]
        made = (*self.arrays, *arrays, *self.start, *start, *inside)
        maps = tuple(k.TensorMap(name, *described) for described, name in self.maps.items())
        block = (self.threads + self.producers, 1, 1)
        own = tuple(t.name for t in self.exchanged)
        cluster = self.group.count if self.group is not None and self.group.cluster else 1
        return k.Function(
            s.name, (*s.params, *self.exchanged), (*s.writes, *own), made, shape, block, s.origin, schedule, maps,
            cluster, own,
        )  # fmt: skip

    @property
    def exchanged(self) -> tuple[Tensor, ...]:
        """Temporaries of this function alone: parts of a result, and the tickets of those that made them."""
        return self.group.memory if self.group is not None else ()

    def array(self, buffer: str) -> str:
        """The array or parameter that holds a buffer other threads see."""
        if self.group is not None and self.exchanged and buffer == self.group.held.tensor.name:
            return self.exchanged[0].name
        return self.shared[buffer].array if buffer in self.shared else buffer

    def offset(self, held: SharedTile, index: tuple[Expr, ...], scope: Scope) -> Expr:
        """Where an element of a tile in shared memory is; what a swizzle mixes is computed at the beginning."""
        return shared.offset(held, index, scope.ranges, lambda e: self.once("place", e, held.size))

    def meet(self, scope: Scope) -> k.Stmt:
        """All threads that do the same wait for each other."""
        if self.specialised and scope.level == "block":
            return k.Call("mlc_named_barrier", (), (const(2 if self.first else 1), const(self.threads)))
        return k.Barrier("block" if scope.level == "column" else scope.level)

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
            if scope.level != "thread" and not traits.holds_together(s):
                uses = touched(s, scope)
                if self.hazards.between(uses):
                    out.append(self.meet(scope))
                    self.hazards.clear()
                out += self.stmt(s, scope, body[n + 1 :])
                # All threads have waited for what the copy engine brings.
                brought = isinstance(s, tile.Copy) and s.how == "tma" and s.target.buffer in self.shared
                # What it takes away is waited for before threads store there again.
                reads = uses.reads - self.leaving if isinstance(s, tile.Copy) and s.how == "tma" else uses.reads
                self.hazards.add(Uses(reads, frozenset() if brought else uses.writes))
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
        if stored & self.leaving:
            out += [tma.left(), self.meet(scope)]
            self.hazards.clear()
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
            case tile.For(kind="scan", bind=tile.Bind(level="lanes")) if scope.level != "thread":
                return over_scan(self, s, scope)
            case tile.For(bind=tile.Bind(level="lanes")) if scope.level != "thread":
                fragment = fragment_loops.fragment_of(self, s) if scope.level == "block" else None
                if fragment is not None:
                    stored = fragment_loops.through_matrices(self, s, fragment, scope)
                    return fragment_loops.over_rows(self, s, fragment, scope) if stored is None else stored
                return lanes.over_lanes(self, s, scope)
            case tile.For() if specialised.is_specialised(s) and scope.level == "block":
                return specialised.computed(self, s, scope)
            case tile.For(bind=tile.Bind(level="pipeline")) if scope.level == "block":
                return pipelines.pipeline(self, s, scope)
            case tile.For(bind=tile.Bind(level="unroll")) if scope.level == "block" and mma.loads_fragments(self, s):
                return mma.unrolled(self, s, scope)
            case tile.Copy() if scope.level == "block":
                return copies.copy(self, s, scope, not pipelines.waits_for(self, s, after))
            case tile.Mma() if scope.level == "block":
                return mma.multiply(self, s, scope)
            case tile.For(bind=tile.Bind(level="warps")) if scope.level == "block":
                return self.over_warps(s, scope)
            case tile.For(bind=tile.Bind(level="blocks")) if scope.level == "block":
                return groups.over_blocks(self, s, scope)
            case groups.Meeting():
                return groups.meet(self, s, scope)
            case tile.For(bind=tile.Bind(level="columns")) if scope.level == "block":
                return self.over_columns(s, scope)
            case tile.For(bind=tile.Bind(level="blocks" | "warps" | "columns" | "pipeline" as level)):
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
                return [self.declare(name, self.value(value, scope), scope, varies=True)]
            case Accum(name, how, value):
                old = scope.values[name]
                assert isinstance(old, Var)
                return [k.Assign(old.name, op(COMBINE[how], old, self.value(value, scope)))]
            case Store():
                return self.store(s, scope)
            case If(cond, inner):
                before = self.hazards.copy()
                cond, body = self.value(cond, scope), self.sequence(inner, scope.inner())
                self.hazards.join(before)  # barriers inside may not be come to
                if isinstance(cond, Const):
                    return body if cond.value else []
                return [k.If(cond, tuple(body))]
            case tile.Alloc():
                return self.alloc(s, scope, after)
        raise ValueError(f"kernel {self.source.name}: {type(s).__name__} has no meaning for threads")

    def declare(self, name: str, value: Expr, scope: Scope, varies: bool = False) -> k.Stmt:
        """What `varies` is accumulated into, so that its first value says nothing of its range."""
        made = self.fresh(name)
        scope.values[name] = Var(made, value.dtype)
        if value.dtype is i64 and not varies:
            scope.ranges[made] = value_range(value, scope.ranges)
        return k.Declare(made, value)

    def loop(self, f: tile.For, scope: Scope) -> Body:
        """A loop that each thread runs through."""
        if f.extent is const(0):
            return []
        var = self.fresh(f.var)
        extent = self.value(f.extent, scope)
        inner = scope.inner()
        inner.values[f.var], inner.ranges[var] = Var(var), range_below(extent, scope.ranges)
        around, self.leaving = self.leaving, self.leaving | tma.leaving(self, f)
        before: Body = []
        if scope.level != "thread" and self.hazards.between(touched(f, scope)):
            before.append(self.meet(scope))  # once, rather than in each iteration
            self.hazards.clear()
        body = self.loop_body(f, f.body, inner)
        new, self.leaving = self.leaving - around, around
        mark = "unroll" if f.bind.level == "unroll" else ""
        made = k.For(var, const(0), extent, 1, tuple(body), mark)
        return [*before, made, *([tma.left()] if new else [])] if body else before

    def loop_body(self, f: tile.For, statements: tuple[Stmt, ...], scope: Scope, meets: bool = False) -> Body:
        """The statements of a loop, and a barrier where one iteration touches what the one before did.

        Where each iteration begins with one, it `meets` anyway.
        """
        before = self.hazards.copy()
        body = self.sequence(statements, scope)
        if scope.level != "thread":
            uses = touched(f, scope)
            if f.kind == "parallel":  # iterations share tiles, but nothing in global memory
                uses = Uses(*(frozenset(b for b in some if b in self.tiles) for some in (uses.reads, uses.writes)))
            if (self.hazards.between(uses) or traits.exchanges(body)) and not meets:
                body.append(self.meet(scope))
                self.hazards.clear()
            self.hazards.join(before)
            if not specialised.is_specialised(f):
                body += wgmma.finish(self)
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
        return any(p.name == self.array(buffer) for p in (*self.source.params, *self.exchanged))

    def thread(self, scope: Scope) -> Expr:
        """The number of this thread among those that do the same."""
        if scope.level in ("warp", "column"):
            return scope.values["lane" if scope.level == "warp" else "warp"]
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
            return [k.Array(tensor.name, tensor.dtype, traits.span(tensor), "local", 16)]
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

    def over_columns(self, f: tile.For, scope: Scope) -> Body:
        """One iteration to each lane of all warps, which share it."""
        if self.value(f.extent, scope) is not const(WARP):
            raise ValueError(f"kernel {self.source.name}: {f.var} must have an iteration for each of {WARP} lanes")
        inner = scope.inner(level="column")
        var, warp = self.fresh(f.var), self.fresh("warp")
        inner.values[f.var], inner.values["warp"] = Var(var), Var(warp)
        inner.ranges[var], inner.ranges[warp] = (0, WARP - 1), (0, self.threads // WARP - 1)
        start: Body = [k.Declare(var, THREAD % WARP), k.Declare(warp, THREAD // WARP)]
        return [*start, *self.sequence(f.body, inner)]

    def scratch_for(self, dtype: DType, threads: int, size: int = WARP) -> str:
        """Shared memory for one exchange between warps, which none before it uses; nothing within a warp."""
        if threads <= WARP:
            return ""
        name = self.fresh(f"scratch_{dtype.name}")
        self.scratch[name] = dtype, size
        return name

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
        in_group = groups.place(self, buffer, index, scope)
        if isinstance(in_group, Expr):
            return buffer, in_group
        index = in_group or index
        if buffer in self.shared:
            held = self.shared[buffer]
            return held.array, self.offset(held, tuple(self.value(i, scope) for i in index), scope)
        flat = access.address(index, scope.buffers[buffer], scope.tile_ranges())
        return self.array(buffer), simplify(self.value(flat, scope), scope.ranges, index=True)

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
        if part is None or row is None or column is None or not traits.share_parts(part.fragment, own):
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
                elif groups.elsewhere(self, buffer):
                    there, rank = groups.apart(self, k.Address(where, place), scope)
                    return k.Peer(there.buffer, there.index, rank, dtype)
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
