"""Decide how threads execute loops over lanes: nests become one loop, with a number of rounds unrolled at a time.

Each thread executes its share of a loop in rounds, `vector` adjacent iterations in each. The loop says how many rounds
are unrolled together, so that their loads are in flight at once. By default all are, or one at a time if their number
is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from compiler.ir import tile
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Load, Var, const, fresh, loads, substitute
from compiler.ir.index import simplify
from compiler.ir.launches import block_size
from compiler.ir.layout import Fragment, ThreadMap
from compiler.ir.ranges import Range
from compiler.ir.roles import Role
from compiler.ir.statement import If, Kernel, Let, Program, Stmt, Store, within
from compiler.ir.value_ranges import extent_range, range_below, value_range
from compiler.passes.gpu import stages
from compiler.passes.gpu.fragments import WARP
from compiler.schedule.gpu.matmul import KEPT_PREPARING
from compiler.schedule.steps import Bind, Schedule, ScheduleError, Step
from compiler.targets.target import Target

ROUNDS_UNROLLED = 16  # for a loop over lanes that keeps nothing in registers
ROUNDS_AHEAD = 4  # at a time, for a longer loop
WORDS_AHEAD = 64  # words of 4 bytes that a thread may have loaded before the first use, of 255 registers
ROUNDS_GATHERED = 8  # for a loop that gathers narrow elements


def thread_maps(program: Program, target: Target) -> Program:
    """Set thread maps. Raises ScheduleError for a loop over tiles in registers with an unknown number of rounds."""
    return program.replace(kernels=tuple(_kernel(kernel, target, _set_rounds) for kernel in program.kernels))


def with_rounds(schedule: Schedule, kernels: Iterable[Kernel], target: Target) -> Schedule:
    """The schedule of these launches, whose tiles have layouts, with the rounds that loops unroll together.

    Also added is how many words of loads a thread may hold before it uses any.
    """
    found: dict[str, dict[str, int]] = {}

    def note(f: tile.For, context: _Context) -> tile.For:
        if options := _best_options(f, context):
            found[f.var] = options
        return f

    for kernel in kernels:
        _kernel(kernel, target, note)

    def add_options(step: Step) -> Step:
        match step:
            case Bind(loop, "lanes", args) if loop in found:
                added = ((x, n) for x, n in found[loop].items() if x not in dict(args))
                return step.replace(args=(*args, *added))
        return step

    return Schedule(tuple(map(add_options, schedule.steps))) if found else schedule


@dataclass(frozen=True)
class _Context:
    """The threads around a loop over lanes: `threads` share it (0 inside of one), each with `room` for so many words.

    The role has `every` threads; `change` transforms loops over lanes.
    """

    change: Callable[[tile.For, _Context], tile.For]
    threads: int
    every: int
    room: int
    ranges: Mapping[str, Range]
    buffers: _Buffers
    block: bool = True  # all threads of the role execute together


@dataclass(frozen=True)
class _Buffers:
    """The element sizes of buffers in bytes; the buffers in registers, in shared and in global memory; names in use."""

    sizes: Mapping[str, int]
    fragments: frozenset[str]
    registers: frozenset[str]
    shared: frozenset[str]
    everywhere: frozenset[str]
    taken: set[str]


def _kernel(kernel: Kernel, target: Target, change: Callable[[tile.For, _Context], tile.For]) -> Kernel:
    nodes = [n for s in kernel.body for n in s.walk()]
    allocs = [n for n in nodes if isinstance(n, tile.Alloc)]
    params = {p.name: p.dtype.bytes for p in kernel.params}
    buffers = _Buffers(
        params | {a.tensor.name: a.tensor.dtype.bytes for a in allocs},
        frozenset(a.tensor.name for a in allocs if isinstance(a.layout, Fragment)),
        frozenset(a.tensor.name for a in allocs if isinstance(a.layout, ThreadMap)),
        frozenset(a.tensor.name for a in allocs if a.space in ("shared", "cluster")),
        frozenset(params) | {a.tensor.name for a in allocs if a.space == "device"},
        {*params, *(a.tensor.name for a in allocs), *(n.var for n in nodes if isinstance(n, tile.For)),
         *(n.name for n in nodes if isinstance(n, Var))},
    )  # fmt: skip
    threads = block_size(kernel.body)
    room = min(WORDS_AHEAD, target.registers // threads // 2)
    return kernel.replace(body=_body(kernel.body, _Context(change, threads, threads, room, {}, buffers)))


def _body(body: tuple[Stmt, ...], context: _Context, preparing: int = 0) -> tuple[Stmt, ...]:
    """The body with loops over lanes changed; `preparing` producer threads execute its stages "prepare"."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case tile.For(bind=tile.Bind("lanes")) if context.threads:
                is_fragment = context.block and tile.buffers((s,)) & context.buffers.fragments
                out.append(s if is_fragment or s.extent is const(0) else context.change(s, context))
            case tile.For(var, extent, _, bind, inner):
                known = extent_range(extent) if bind.level == "blocks" else range_below(extent, context.ranges)
                inside = replace(context, ranges={**context.ranges, var: known})
                if bind.level in ("warps", "columns"):
                    inside = replace(
                        inside, threads=WARP if bind.level == "warps" else context.every // WARP, block=False
                    )
                out.append(s.replace(body=_body(inner, inside, stages.preparing_threads(s))))
            case If(_, inner):
                out.append(s.replace(body=_body(inner, context)))
            case tile.Stage("prepare", inner):
                out.append(s.replace(body=_body(inner, _producer_context(context, preparing))))
            case Role(kind, body=inner):
                out.append(
                    s.replace(
                        body=_body(inner, _producer_context(context, s.threads) if kind == "prepare" else context)
                    )
                )
            case Let(name, value):
                if value.dtype is i64:
                    context = replace(context, ranges={**context.ranges, name: value_range(value, context.ranges)})
                out.append(s)
            case _:
                out.append(s)
    return tuple(out)


def _producer_context(context: _Context, threads: int) -> _Context:
    """The context of this many producer threads, which keep few registers."""
    return replace(context, threads=threads, every=threads, room=min(WORDS_AHEAD, KEPT_PREPARING // 2))


def _set_rounds(f: tile.For, context: _Context) -> tile.For:
    """A nest of loops over lanes as one loop, with `rounds` set if not all are unrolled."""
    f = _flatten(f, context.buffers.taken)
    every, kept, has_rounds = _rounds(f, context), _register_tiles(f, context), "rounds" in dict(f.bind.args)
    if kept and (has_rounds or every is None):
        step = Bind(f.var, f.bind.level, f.bind.args)
        raise ScheduleError(step, f"all rounds over tiles in registers are written out: {', '.join(sorted(kept))}")
    if has_rounds or every is not None:
        return f
    return f.replace(bind=f.bind.replace(args=(*f.bind.args, ("rounds", 1))))


def _rounds(f: tile.For, context: _Context) -> int | None:
    """The number of rounds; None if unknown."""
    given = dict(f.bind.args)
    count = simplify(f.extent // given.get("vector", 1), context.ranges, index=True)
    high = range_below(count, context.ranges)[1]
    return None if high is None else -(-(high + 1) // given.get("threads", context.threads))


def _register_tiles(f: tile.For, context: _Context) -> Set[str]:
    """The tiles in registers that a loop uses. Its rounds must be unrolled: registers need constant indices."""
    return tile.buffers((f,)) & context.buffers.registers


# ---- how many rounds to write out at a time, and what to load ahead


def _best_options(f: tile.For, context: _Context) -> dict[str, int]:
    """The best arguments for binding a loop, where they differ from the default."""
    fits = _rounds_to_unroll(f, context)
    options = {} if fits is None else {"rounds": fits}
    flat = _flatten(f, set(context.buffers.taken))
    given, every = dict(flat.bind.args), _rounds(flat, context)
    rounds, vector = given.get("rounds") or fits or every or 1, given.get("vector", 1)
    if rounds == 1 or vector == 1 or f.kind == "scan" or _only_fills_registers(flat, context):
        return options
    room = context.room - (rounds * vector if _register_tiles(flat, context) else 0)
    return {**options, "ahead": room} if room > 0 else options


def _rounds_to_unroll(f: tile.For, context: _Context) -> int | None:
    """The best number of rounds to unroll together; None for all."""
    f = _flatten(f, set(context.buffers.taken))
    every, vector = _rounds(f, context), dict(f.bind.args).get("vector", 1)
    if every is not None and _register_tiles(f, context):
        return None
    if f.kind == "scan":
        room = context.room // vector
        return None if every is None or every <= room else min(room, ROUNDS_AHEAD)
    own = {n.tensor.name for n in within(f.body, tile.Alloc)}
    touched = tile.buffers((f,)) - own
    size = max((context.buffers.sizes[b] for b in touched if b in context.buffers.sizes), default=4)
    gathered = vector == 1 and _is_gather(f, context.buffers.shared, context.buffers.everywhere)
    most = ROUNDS_GATHERED if gathered else ROUNDS_UNROLLED
    if every is not None and every <= most and every * vector * size <= 4 * context.room:
        return None
    if gathered:
        return ROUNDS_GATHERED
    return ROUNDS_AHEAD if vector > 1 else 1


def _only_fills_registers(f: tile.For, context: _Context) -> bool:
    """Whether a loop only loads a tile in registers, each element into its final place."""
    match f.body:
        case (Store(buffer, _, Load(), "set"),):
            return buffer in context.buffers.registers
    return False


def _is_gather(f: tile.For, shared: Container[str], everywhere: Container[str]) -> bool:
    """Whether a loop copies single elements from global to shared memory, so that several loads should be in flight."""
    match f.body:
        case (Store(buffer, _, value, "set"),):
            return buffer in shared and any(n.buffer in everywhere for n in loads(value))
    return False


def _flatten(f: tile.For, taken: set[str]) -> tile.For:
    """Flatten a perfect nest of loops over lanes."""
    while f.kind != "scan" and (made := _flatten_two(f, taken)) is not None:
        f = made
    return f


def _flatten_two(f: tile.For, taken: set[str]) -> tile.For | None:
    """Flatten a perfect nest of two loops over lanes, row-major over all threads; None for other loops."""
    if len(f.body) != 1 or not isinstance(f.body[0], tile.For) or f.body[0].bind.level != "lanes":
        return None
    inner = f.body[0]
    if not isinstance(inner.extent, Const) or f.kind != inner.kind:
        return None
    both = Var(fresh(f"{f.var}_{inner.var}", taken))
    table = {Var(f.var): both // inner.extent, Var(inner.var): both % inner.extent}
    args = tuple((dict(f.bind.args) | {x: v for x, v in inner.bind.args if x == "vector"}).items())
    return tile.For(both.name, f.extent * inner.extent, f.kind, tile.Bind("lanes", args), substitute(inner.body, table))
