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
from compiler.ir.index import extent_range, range_below, simplify, value_range
from compiler.ir.launches import block_size
from compiler.ir.layout import Fragment, ThreadMap
from compiler.ir.ranges import Range
from compiler.ir.roles import Role
from compiler.ir.statement import If, Kernel, Let, Program, Stmt, Store, within
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
    return program.replace(kernels=tuple(_kernel(kernel, target, _mapped) for kernel in program.kernels))


def with_rounds(schedule: Schedule, kernels: Iterable[Kernel], target: Target) -> Schedule:
    """The schedule of these launches, whose tiles have layouts, with the rounds that loops unroll together.

    Also added is how many words of loads a thread may hold before it uses any.
    """
    found: dict[str, dict[str, int]] = {}

    def note(f: tile.For, place: _Place) -> tile.For:
        if options := _options(f, place):
            found[f.var] = options
        return f

    for kernel in kernels:
        _kernel(kernel, target, note)

    def told(step: Step) -> Step:
        match step:
            case Bind(loop, "lanes", args) if loop in found:
                added = ((x, n) for x, n in found[loop].items() if x not in dict(args))
                return step.replace(args=(*args, *added))
        return step

    return Schedule(tuple(map(told, schedule.steps))) if found else schedule


@dataclass(frozen=True)
class _Place:
    """The threads around a loop over lanes: `threads` share it (0 inside of one), each with `room` for so many words.

    The role has `every` threads; `change` transforms loops over lanes.
    """

    change: Callable[[tile.For, _Place], tile.For]
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


def _kernel(kernel: Kernel, target: Target, change: Callable[[tile.For, _Place], tile.For]) -> Kernel:
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
    return kernel.replace(body=_body(kernel.body, _Place(change, threads, threads, room, {}, buffers)))


def _body(body: tuple[Stmt, ...], place: _Place, preparing: int = 0) -> tuple[Stmt, ...]:
    """The body with loops over lanes changed; `preparing` producer threads execute its stages "prepare"."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case tile.For(bind=tile.Bind("lanes")) if place.threads:
                is_fragment = place.block and tile.buffers((s,)) & place.buffers.fragments
                out.append(s if is_fragment or s.extent is const(0) else place.change(s, place))
            case tile.For(var, extent, _, bind, inner):
                known = extent_range(extent) if bind.level == "blocks" else range_below(extent, place.ranges)
                inside = replace(place, ranges={**place.ranges, var: known})
                if bind.level in ("warps", "columns"):
                    inside = replace(
                        inside, threads=WARP if bind.level == "warps" else place.every // WARP, block=False
                    )
                out.append(s.replace(body=_body(inner, inside, stages.preparing(s))))
            case If(_, inner):
                out.append(s.replace(body=_body(inner, place)))
            case tile.Stage("prepare", inner):
                out.append(s.replace(body=_body(inner, _prepared(place, preparing))))
            case Role(kind, body=inner):
                out.append(s.replace(body=_body(inner, _prepared(place, s.threads) if kind == "prepare" else place)))
            case Let(name, value):
                if value.dtype is i64:
                    place = replace(place, ranges={**place.ranges, name: value_range(value, place.ranges)})
                out.append(s)
            case _:
                out.append(s)
    return tuple(out)


def _prepared(place: _Place, threads: int) -> _Place:
    """The place of this many producer threads, which keep few registers."""
    return replace(place, threads=threads, every=threads, room=min(WORDS_AHEAD, KEPT_PREPARING // 2))


def _mapped(f: tile.For, place: _Place) -> tile.For:
    """A nest of loops over lanes as one loop, with `rounds` set if not all are unrolled."""
    f = _flat(f, place.buffers.taken)
    every, kept, said = _rounds(f, place), _kept(f, place), "rounds" in dict(f.bind.args)
    if kept and (said or every is None):
        step = Bind(f.var, f.bind.level, f.bind.args)
        raise ScheduleError(step, f"all rounds over tiles in registers are written out: {', '.join(sorted(kept))}")
    if said or every is not None:
        return f
    return f.replace(bind=f.bind.replace(args=(*f.bind.args, ("rounds", 1))))


def _rounds(f: tile.For, place: _Place) -> int | None:
    """The number of rounds; None if unknown."""
    given = dict(f.bind.args)
    count = simplify(f.extent // given.get("vector", 1), place.ranges, index=True)
    high = range_below(count, place.ranges)[1]
    return None if high is None else -(-(high + 1) // given.get("threads", place.threads))


def _kept(f: tile.For, place: _Place) -> Set[str]:
    """The tiles in registers that a loop uses. Its rounds must be unrolled: registers need constant indices."""
    return tile.buffers((f,)) & place.buffers.registers


# ---- how many rounds to write out at a time, and what to load ahead


def _options(f: tile.For, place: _Place) -> dict[str, int]:
    """The best arguments for binding a loop, where they differ from the default."""
    fits = _fitting(f, place)
    options = {} if fits is None else {"rounds": fits}
    flat = _flat(f, set(place.buffers.taken))
    given, every = dict(flat.bind.args), _rounds(flat, place)
    rounds, vector = given.get("rounds") or fits or every or 1, given.get("vector", 1)
    if rounds == 1 or vector == 1 or f.kind == "scan" or _only_keeps(flat, place):
        return options
    room = place.room - (rounds * vector if _kept(flat, place) else 0)
    return {**options, "ahead": room} if room > 0 else options


def _fitting(f: tile.For, place: _Place) -> int | None:
    """The best number of rounds to unroll together; None for all."""
    f = _flat(f, set(place.buffers.taken))
    every, vector = _rounds(f, place), dict(f.bind.args).get("vector", 1)
    if every is not None and _kept(f, place):
        return None
    if f.kind == "scan":
        room = place.room // vector
        return None if every is None or every <= room else min(room, ROUNDS_AHEAD)
    own = {n.tensor.name for n in within(f.body, tile.Alloc)}
    touched = tile.buffers((f,)) - own
    size = max((place.buffers.sizes[b] for b in touched if b in place.buffers.sizes), default=4)
    gathered = vector == 1 and _gathers(f, place.buffers.shared, place.buffers.everywhere)
    most = ROUNDS_GATHERED if gathered else ROUNDS_UNROLLED
    if every is not None and every <= most and every * vector * size <= 4 * place.room:
        return None
    if gathered:
        return ROUNDS_GATHERED
    return ROUNDS_AHEAD if vector > 1 else 1


def _only_keeps(f: tile.For, place: _Place) -> bool:
    """Whether a loop only loads a tile in registers, each element into its final place."""
    match f.body:
        case (Store(buffer, _, Load(), "set"),):
            return buffer in place.buffers.registers
    return False


def _gathers(f: tile.For, shared: Container[str], everywhere: Container[str]) -> bool:
    """Whether a loop copies single elements from global to shared memory, so that several loads should be in flight."""
    match f.body:
        case (Store(buffer, _, value, "set"),):
            return buffer in shared and any(n.buffer in everywhere for n in loads(value))
    return False


def _flat(f: tile.For, taken: set[str]) -> tile.For:
    """Flatten a perfect nest of loops over lanes."""
    while f.kind != "scan" and (made := _flattened(f, taken)) is not None:
        f = made
    return f


def _flattened(f: tile.For, taken: set[str]) -> tile.For | None:
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
