"""Insert barriers, fences and waits between statements with conflicting accesses to memory.

A barrier separates statements of which one writes what the other accesses. It goes to the end of a loop in which an
iteration conflicts with the one before, and before a loop rather than into each of its iterations. A fence and a
barrier precede reads by the copy engine or by asynchronous matmuls of what threads have stored. Existing ones are kept
and taken into account. Waits for asynchronous matmuls are not inserted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from compiler.analysis.nests import accumulated
from compiler.ir import tile
from compiler.ir.expr import const
from compiler.ir.launches import block_size
from compiler.ir.roles import One, Ring, RingStmt, Role
from compiler.ir.statement import If, Kernel, Program, Stmt, Store, within
from compiler.passes.gpu import block_groups, stages
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.hazards import NONE, Pending, Uses, stored, touched
from compiler.passes.gpu.rings import is_part
from compiler.targets.target import Target, instruction

Body = tuple[Stmt, ...]

BARRIER = tile.Sync("barrier")
FENCE = tile.Sync("fence_async")
STORED = tile.Sync("wait_stored")


def barriers(program: Program, target: Target) -> Program:
    """Insert barriers.

    Raises ValueError for a pipeline that overlaps two matmuls if its iterations would have to wait for each other.
    """
    return program.replace(kernels=tuple(_kernel(kernel, target) for kernel in program.kernels))


def verify(program: Program, target: Target) -> None:
    """Raise ValueError for a kernel in which a barrier, a fence or a wait is missing."""
    for kernel, made in zip(program.kernels, barriers(program, target).kernels, strict=True):
        if made is not kernel:
            raise ValueError(f"kernel {kernel.name}: threads touch the same memory out of order: run `barriers`")


@dataclass(frozen=True)
class _Place:
    """The threads that execute a statement together: `threads` of them, a "block", a "warp" or a "column" of warps.

    Sets of buffers: all `tiles`; those `own` to a thread, or kept apart by a pipeline; those in `shared` memory that
    these threads may store to; those that each iteration of the loops around copies out (`copied_out`), for which the
    next one waits. Rings pass the tiles `handed` from role to role, one slot at a time.
    """

    kernel: str
    target: Target
    threads: int
    tiles: frozenset[str]
    own: frozenset[str]
    shared: frozenset[str]
    handed: frozenset[str]
    copied_out: frozenset[str] = NONE
    level: str = "block"
    preparing: bool = False


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    allocs = list(within(kernel.body, tile.Alloc))
    preparing = [s for f in within(kernel.body, tile.For) if stages.is_specialised(f) for s in stages.prepared(f)]
    preparing += [role for role in within(kernel.body, Role) if role.kind == "prepare"]
    prepared = {s.buffer for s in within(tuple(preparing), Store)}
    handed = frozenset(name for ring in within(kernel.body, Ring) for name in ring.tiles)
    own, shared = (frozenset(a.tensor.name for a in allocs if a.space in spaces) for spaces in _SPACES)
    tiles = frozenset(a.tensor.name for a in allocs)
    place = _Place(kernel.name, target, block_size(kernel.body), tiles, own, shared - prepared, handed)
    return kernel.replace(body=_launch(kernel.body, place))


_SPACES = (("registers", "local"), ("shared",))  # private to a thread, shared by a block


def _launch(body: Body, place: _Place) -> Body:
    """The body of a launch. Blocks that split a reduction wait for each other between its two halves."""
    match body:
        case (tile.For(bind=tile.Bind("blocks"), body=inner) as f,):
            return (f.replace(body=_launch(inner, place)),)
    found = block_groups.split(body)
    if found is None:
        return _sequence(body, place, Pending())[0]
    held, parts, after = found
    made, was = _sequence(parts.body, place, Pending())
    return (held, parts.replace(body=made), *_sequence(after, place, was.after("barrier"))[0])


def _sequence(body: Body, place: _Place, was: Pending) -> tuple[Body, Pending]:
    """Statements with syncs inserted, and the accesses pending after them."""
    out: list[Stmt] = []
    for n, s in enumerate(body):
        if isinstance(s, Role):
            role, was = _role(s, place, was)
            out.append(role)
            continue
        if isinstance(s, tile.Sync | tile.Stage | RingStmt):
            out.append(s)
            was = was.after(s.what) if isinstance(s, tile.Sync) else was
            continue
        before, was = _before(s, place, was, _syncs(reversed(out)))
        made, was = _statement(s, place, was)
        behind = _behind(s, place, body[n + 1 :])
        there = _syncs(body[n + 1 :])[: len(behind)]
        out += [*before, made, *(behind if there != behind else ())]
    return tuple(out), was


def _syncs(body: Iterable[Stmt]) -> tuple[tile.Sync, ...]:
    """The leading syncs of statements, ignoring what roles signal to each other."""
    return tuple(s for s in takewhile(_only_orders, body) if isinstance(s, tile.Sync))


def _only_orders(s: Stmt) -> bool:
    return isinstance(s, tile.Sync | RingStmt) or (isinstance(s, If) and all(map(_only_orders, s.body)))


def _before(s: Stmt, place: _Place, was: Pending, given: tuple[tile.Sync, ...]) -> tuple[list[tile.Sync], Pending]:
    """The syncs that a statement needs before it, given those already there, and the accesses pending then."""
    out: list[tile.Sync] = []
    if place.level == "block":
        changed = stored(s)
        if changed & place.copied_out and not {STORED, BARRIER} <= set(given):
            out += [STORED, BARRIER]
        beside = _read_beside(s, place)
        if beside & was.unfenced:
            out += [FENCE, BARRIER]
            was = was.after("fence_async")
        elif beside & was.fenced:
            out.append(BARRIER)
        was = replace(was.after("barrier") if out else was, unfenced=was.unfenced | changed & place.shared)
    if was.between(_awaited(s, place)):
        out, was = [*out, BARRIER], was.after("barrier")
    return out, was


def _read_beside(s: Stmt, place: _Place) -> set[str]:
    """The buffers that the copy engine or asynchronous matmuls read for a statement."""
    match s:
        case tile.Copy(_, source, "tma"):
            return {source.buffer}
        case tile.Mma(name, _, a, b) if instruction(place.target, name).b_space == "shared":
            return {a.buffer, b.buffer}
        case tile.For() if stages.is_specialised(s) and stages.overlaps(s):
            return {x for n in s.walk() if isinstance(n, tile.Mma) for x in _read_beside(n, place)}
    return set()


def _awaited(s: Stmt, place: _Place) -> Uses:
    """The accesses of a statement that must wait for pending ones; compound statements handle their own."""
    match s:
        case If() | tile.For(bind=tile.Bind("blocks" | "columns")):
            return Uses()
        case tile.For(extent=extent, bind=tile.Bind(level)) if level != "lanes" and extent is const(0):
            return Uses()
        case tile.For() if stages.is_specialised(s) or is_part(s):
            return Uses()
        case tile.For(bind=tile.Bind("pipeline")) if copied := stages.slots(s, place.kernel):
            return Uses(writes=frozenset(copied))
    return touched(s, place.own)


def _behind(s: Stmt, place: _Place, after: Body) -> tuple[tile.Sync, ...]:
    """The syncs after a copy outside of pipelines, and after a loop of copies out of shared memory."""
    match s:
        case tile.Copy(how="cp.async"):
            alone = not stages.waits_for(s, tuple(x for x in after if not isinstance(x, tile.Sync)))
            return (tile.Sync("commit_copies"), tile.Sync("wait_copies")) if alone else ()
        case tile.Copy(target, source, "tma") if target.buffer not in place.shared:
            return () if source.buffer in place.copied_out else (STORED,)
        case tile.For(bind=tile.Bind(level)) if level not in ("lanes", "warps", "columns", "blocks"):
            return (STORED,) if not stages.split(s)[0] and _copied_out(s, place) - place.copied_out else ()
    return ()


def _copied_out(f: tile.For, place: _Place) -> frozenset[str]:
    """Tiles that every iteration of a loop fills and copies out."""
    return frozenset(n.source.buffer for n in within(f.body, tile.Copy) if n.how == "tma") & place.shared


def _statement(s: Stmt, place: _Place, was: Pending) -> tuple[Stmt, Pending]:
    match s:
        case If(_, body):
            made, end = _sequence(body, place, was)
            return s.replace(body=made), end.join(was)  # barriers inside may not be executed
        case tile.For(bind=tile.Bind("lanes")):
            return s, (was.after("barrier") if _is_exchange(s, place) else was).add(touched(s, place.own))
        case tile.For(bind=tile.Bind("warps"), body=body):
            made, _ = _sequence(body, replace(place, level="warp"), Pending())
            return s.replace(body=made), was.add(touched(s, place.own))
        case tile.For(bind=tile.Bind("blocks" | "columns" as level), body=body):
            made, was = _sequence(body, replace(place, level="column" if level == "columns" else place.level), was)
            return s.replace(body=made), was
        case tile.For() if stages.is_specialised(s):
            return _specialised(s, place, was)
        case tile.For(bind=tile.Bind("pipeline")) if stages.split(s)[0]:
            return _pipeline(s, place, was)
        case tile.For(bind=tile.Bind("votes")):  # a lane changes the same elements in each iteration
            return s, was.add(touched(s, place.own))
        case tile.For(extent=extent):
            inside = replace(place, copied_out=place.copied_out | _copied_out(s, place))
            return _iterations(s, inside, was) if extent is not const(0) else (s, was)
        case One(body=(_, tile.Copy() as copy)):
            return s, _statement(copy, place, was)[1]
        case tile.Copy(target, how="tma"):
            # Threads wait for copies into shared memory where they are made, and for copies out of it before they store
            # there.
            uses = touched(s, place.own)
            brought = target.buffer in place.shared
            return s, was.add(Uses(uses.reads - place.copied_out, NONE if brought else uses.writes))
    return s, was.add(touched(s, place.own))


def _is_exchange(f: tile.For, place: _Place) -> bool:
    """Whether warps exchange what a loop over lanes accumulates, which includes a barrier."""
    several = place.level != "warp" and place.threads > WARP and f.extent is not const(0)
    return several and bool(accumulated((f,)))


def _exchanges(s: Stmt, place: _Place) -> bool:
    """Whether a statement contains such an exchange through memory that the next iteration reuses."""
    match s:
        case tile.For(kind=kind, bind=tile.Bind("lanes")):
            return kind != "scan" and _is_exchange(s, place)
        case tile.For(extent=extent, bind=tile.Bind(level), body=body) if level != "warps" and extent is not const(0):
            return any(_exchanges(x, place) for x in body)
        case If(_, body):
            return any(_exchanges(x, place) for x in body)
    return False


def _iterations(f: tile.For, place: _Place, was: Pending, synchronized: bool = False) -> tuple[tile.For, Pending]:
    """A loop with syncs inserted. If iterations begin with a barrier anyway, they are `synchronized`."""
    body, end = _sequence(f.body, place, was)
    uses = touched(f, place.own)
    if f.kind == "parallel":  # iterations share tiles, but nothing in global memory
        uses = Uses(uses.reads & place.tiles, uses.writes & place.tiles)
    met = end.between(uses) or (_exchanges(f, place) and BARRIER not in _syncs(reversed(body)))
    if met and not synchronized and not place.preparing:
        body, end = (*body, BARRIER), end.after("barrier")
    return f.replace(body=body), end.join(was)


def _pipeline(f: tile.For, place: _Place, was: Pending) -> tuple[tile.For, Pending]:
    """Start each iteration with a wait for its copies and a barrier after the iteration before."""
    slots = stages.slots(f, place.kernel)
    start: Body = (tile.Sync("wait_copies", dict(f.bind.args)["depth"] - 2), BARRIER)
    body = f.body if f.body[: len(start)] == start else (*start, *f.body)
    inside = replace(place, own=place.own | slots.keys())
    made, end = _iterations(f.replace(body=body), inside, was.after("barrier"), synchronized=True)
    return made, end.add(Uses(reads=frozenset(slots)))


def _specialised(f: tile.For, place: _Place, was: Pending) -> tuple[tile.For, Pending]:
    """A pipeline with producers: computing threads wait for slots by mbarriers; preparing ones have own barriers."""
    preparing = replace(place, threads=stages.preparing(f), shared=NONE, copied_out=NONE)
    body: list[Stmt] = []
    theirs = Pending()
    for s in f.body:
        if isinstance(s, tile.Stage) and s.role == "prepare":
            made, theirs = _sequence(s.body, preparing, theirs)
            s = s.replace(body=made)
        body.append(s)
    inside = replace(place, own=place.own | stages.slotted(f, place.kernel))
    done, end = _iterations(f.replace(body=tuple(body)), inside, was)
    if stages.overlaps(f) and (was.between(touched(f, inside.own)) or any(isinstance(s, tile.Sync) for s in done.body)):
        raise ValueError(f"kernel {place.kernel}: iterations of {f.var} meet in shared memory")
    return done, end


def _role(s: Role, place: _Place, was: Pending) -> tuple[Role, Pending]:
    """A role with syncs inserted. Computing threads also execute what follows the roles; a single one needs no sync."""
    match s.kind:
        case "compute":
            made, was = _sequence(s.body, replace(place, own=place.own | place.handed), was)
        case "prepare":
            preparing = replace(place, threads=s.threads, shared=NONE, copied_out=NONE, preparing=True)
            made, _ = _sequence(s.body, preparing, Pending())
        case _:
            return s, was
    return s.replace(body=made), was
