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
from compiler.ir.launches import block_size, is_bound
from compiler.ir.roles import One, Ring, RingStmt, Role
from compiler.ir.statement import If, Kernel, Program, Stmt, Store, within
from compiler.passes.gpu import block_groups, stages
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.hazards import NONE, Pending, Uses, accesses_of, stored_buffers
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
class _Context:
    """The threads that execute a statement together: `threads` of them, a "block", a "warp" or a "column" of warps.

    Sets of buffers: all `tiles`; those `own` to a thread, or kept apart by a pipeline; those in `shared` memory that
    these threads may store to; those that each iteration of the loops around copies out (`copied_out`), for which the
    next one waits, before it has them `refilled` by the copy engine or before it stores to others. Rings pass the tiles
    `handed` from role to role, one slot at a time.
    """

    kernel: str
    target: Target
    threads: int
    tiles: frozenset[str]
    own: frozenset[str]
    shared: frozenset[str]
    handed: frozenset[str]
    copied_out: frozenset[str] = NONE
    refilled: frozenset[str] = NONE
    level: str = "block"
    preparing: bool = False


def _kernel(kernel: Kernel, target: Target) -> Kernel:
    allocs = list(within(kernel.body, tile.Alloc))
    preparing = [
        s for f in within(kernel.body, tile.For) if stages.is_specialised(f) for s in stages.prepare_statements(f)
    ]
    preparing += [role for role in within(kernel.body, Role) if role.kind == "prepare"]
    prepared = {s.buffer for s in within(tuple(preparing), Store)}
    handed = frozenset(name for ring in within(kernel.body, Ring) for name in ring.tiles)
    own, shared = (frozenset(a.tensor.name for a in allocs if a.space in spaces) for spaces in _SPACES)
    tiles = frozenset(a.tensor.name for a in allocs)
    context = _Context(kernel.name, target, block_size(kernel.body), tiles, own, shared - prepared, handed)
    return kernel.replace(body=_launch_body(kernel.body, context))


_SPACES = (("registers", "local"), ("shared",))  # private to a thread, shared by a block


def _launch_body(body: Body, context: _Context) -> Body:
    """The body of a launch. Blocks that split a reduction wait for each other between its two halves."""
    match body:
        case (tile.For(bind=tile.Bind("blocks" | "cluster"), body=inner) as f,):
            return (f.replace(body=_launch_body(inner, context)),)
    found = block_groups.split(body)
    if found is None:
        return _insert_syncs(body, context, Pending())[0]
    held, parts, after = found
    made, pending = _insert_syncs(parts.body, context, Pending())
    return (held, parts.replace(body=made), *_insert_syncs(after, context, pending.after("barrier"))[0])


def _insert_syncs(body: Body, context: _Context, pending: Pending) -> tuple[Body, Pending]:
    """Statements with syncs inserted, and the accesses pending after them."""
    out: list[Stmt] = []
    for n, s in enumerate(body):
        if isinstance(s, Role):
            role, pending = _sync_role(s, context, pending)
            out.append(role)
            continue
        if isinstance(s, tile.Sync | tile.Stage | RingStmt):
            out.append(s)
            pending = pending.after(s.what) if isinstance(s, tile.Sync) else pending
            continue
        before, pending = _syncs_before(s, context, pending, _leading_syncs(reversed(out)))
        made, pending = _sync_statement(s, context, pending)
        needed = _syncs_after(s, context, body[n + 1 :])
        existing = _leading_syncs(body[n + 1 :])[: len(needed)]
        out += [*before, made, *(needed if existing != needed else ())]
    return tuple(out), pending


def _leading_syncs(body: Iterable[Stmt]) -> tuple[tile.Sync, ...]:
    """The leading syncs of statements, ignoring what roles signal to each other."""
    return tuple(s for s in takewhile(_is_sync, body) if isinstance(s, tile.Sync))


def _is_sync(s: Stmt) -> bool:
    return isinstance(s, tile.Sync | RingStmt) or (isinstance(s, If) and all(map(_is_sync, s.body)))


def _syncs_before(
    s: Stmt, context: _Context, pending: Pending, existing: tuple[tile.Sync, ...]
) -> tuple[list[tile.Sync], Pending]:
    """The syncs that a statement needs before it, given those already there, and the accesses pending then."""
    out: list[tile.Sync] = []
    if is_bound(s, "cluster"):
        return out, pending  # its body is executed once
    if context.level == "block":
        changed = stored_buffers(s)
        if changed & (context.copied_out - context.refilled) and not {STORED, BARRIER} <= set(existing):
            out += [STORED, BARRIER]
        if _refilled_tiles(s) & context.refilled and STORED not in existing:
            out.append(STORED)  # the thread that has this copy made is the one that waits
        async_reads = _async_reads(s, context)
        if async_reads & pending.unfenced:
            out += [FENCE, BARRIER]
            pending = pending.after("fence_async")
        elif async_reads & pending.fenced:
            out.append(BARRIER)
        pending = replace(
            pending.after("barrier") if BARRIER in out else pending,
            unfenced=pending.unfenced | changed & context.shared,
        )
    if pending.between(_conflicting_uses(s, context)):
        out, pending = [*out, BARRIER], pending.after("barrier")
    return out, pending


def _async_reads(s: Stmt, context: _Context) -> set[str]:
    """The buffers that the copy engine or asynchronous matmuls read for a statement."""
    match s:
        case tile.Copy(_, source, "tma"):
            return {source.buffer}
        case tile.Mma(name, _, a, b) if instruction(context.target, name).b_space == "shared":
            return {a.buffer, b.buffer}
        case tile.For() if stages.is_specialised(s) and stages.has_overlap(s):
            return {x for n in s.walk() if isinstance(n, tile.Mma) for x in _async_reads(n, context)}
    return set()


def _conflicting_uses(s: Stmt, context: _Context) -> Uses:
    """The accesses of a statement that must wait for pending ones; compound statements handle their own."""
    match s:
        case If() | tile.For(bind=tile.Bind("blocks" | "cluster" | "columns")):
            return Uses()
        case tile.For(extent=extent, bind=tile.Bind(level)) if level != "lanes" and extent is const(0):
            return Uses()
        case tile.For() if stages.is_specialised(s) or is_part(s):
            return Uses()
        case tile.For(bind=tile.Bind("pipeline")) if copied := stages.slot_counts(s, context.kernel):
            return Uses(writes=frozenset(copied))
    return accesses_of(s, context.own)


def _syncs_after(s: Stmt, context: _Context, after: Body) -> tuple[tile.Sync, ...]:
    """The syncs after a copy outside of pipelines, and after a loop of copies out of shared memory."""
    match s:
        case tile.Copy(how="cp.async"):
            alone = not stages.can_join_pipeline(s, tuple(x for x in after if not isinstance(x, tile.Sync)))
            return (tile.Sync("commit_copies"), tile.Sync("wait_copies")) if alone else ()
        case tile.Copy(target, source, "tma") if target.buffer not in context.shared:
            return () if source.buffer in context.copied_out else (STORED,)
        case tile.For(bind=tile.Bind(level)) if level not in ("lanes", "warps", "columns", "blocks", "cluster"):
            return (STORED,) if not stages.split(s)[0] and _tiles_copied_out(s, context) - context.copied_out else ()
    return ()


def _tiles_copied_out(f: tile.For, context: _Context) -> frozenset[str]:
    """Tiles that every iteration of a loop fills and copies out."""
    return frozenset(n.source.buffer for n in within(f.body, tile.Copy) if n.how == "tma") & context.shared


def _refilled_tiles(s: Stmt) -> frozenset[str]:
    """Tiles that the copy engine fills at the request of one of the computing threads."""
    copies = s.body if isinstance(s, One) else (s,)
    return frozenset(x.target.buffer for x in copies if isinstance(x, tile.Copy) and x.how == "tma")


def _sync_statement(s: Stmt, context: _Context, pending: Pending) -> tuple[Stmt, Pending]:
    match s:
        case If(_, body):
            made, end = _insert_syncs(body, context, pending)
            return s.replace(body=made), end.join(pending)  # barriers inside may not be executed
        case tile.For(bind=tile.Bind("lanes")):
            return s, (pending.after("barrier") if _is_exchange(s, context) else pending).add(
                accesses_of(s, context.own)
            )
        case tile.For(bind=tile.Bind("warps"), body=body):
            made, _ = _insert_syncs(body, replace(context, level="warp"), Pending())
            return s.replace(body=made), pending.add(accesses_of(s, context.own))
        case tile.For(bind=tile.Bind("blocks" | "cluster" | "columns" as level), body=body):
            made, pending = _insert_syncs(
                body, replace(context, level="column" if level == "columns" else context.level), pending
            )
            return s.replace(body=made), pending
        case tile.For() if stages.is_specialised(s):
            return _sync_specialised(s, context, pending)
        case tile.For(bind=tile.Bind("pipeline")) if stages.split(s)[0]:
            return _sync_pipeline(s, context, pending)
        case tile.For(bind=tile.Bind("votes")):  # a lane changes the same elements in each iteration
            return s, pending.add(accesses_of(s, context.own))
        case tile.For(extent=extent):
            copied_out = context.copied_out | _tiles_copied_out(s, context)
            refilled = frozenset[str]().union(*map(_refilled_tiles, s.body)) & copied_out
            inside = replace(context, copied_out=copied_out, refilled=context.refilled | refilled)
            return _sync_loop(s, inside, pending) if extent is not const(0) else (s, pending)
        case One(body=(_, tile.Copy() as copy)):
            return s, _sync_statement(copy, context, pending)[1]
        case tile.Copy(target, how="tma"):
            # Threads wait for copies into shared memory where they are made, and for copies out of it before they store
            # there.
            uses = accesses_of(s, context.own)
            is_load = target.buffer in context.shared
            return s, pending.add(Uses(uses.reads - context.copied_out, NONE if is_load else uses.writes))
    return s, pending.add(accesses_of(s, context.own))


def _is_exchange(f: tile.For, context: _Context) -> bool:
    """Whether warps exchange what a loop over lanes accumulates, which includes a barrier."""
    several = context.level != "warp" and context.threads > WARP and f.extent is not const(0)
    return several and bool(accumulated((f,)))


def _contains_exchange(s: Stmt, context: _Context) -> bool:
    """Whether a statement contains such an exchange through memory that the next iteration reuses."""
    match s:
        case tile.For(kind=kind, bind=tile.Bind("lanes")):
            return kind != "scan" and _is_exchange(s, context)
        case tile.For(extent=extent, bind=tile.Bind(level), body=body) if level != "warps" and extent is not const(0):
            return any(_contains_exchange(x, context) for x in body)
        case If(_, body):
            return any(_contains_exchange(x, context) for x in body)
    return False


def _sync_loop(
    f: tile.For, context: _Context, pending: Pending, synchronized: bool = False
) -> tuple[tile.For, Pending]:
    """A loop with syncs inserted. If iterations begin with a barrier anyway, they are `synchronized`."""
    body, end = _insert_syncs(f.body, context, pending)
    uses = accesses_of(f, context.own)
    if f.kind == "parallel":  # iterations share tiles, but nothing in global memory
        uses = Uses(uses.reads & context.tiles, uses.writes & context.tiles)
    conflicts = end.between(uses) or (_contains_exchange(f, context) and BARRIER not in _leading_syncs(reversed(body)))
    if conflicts and not synchronized and not context.preparing:
        body, end = (*body, BARRIER), end.after("barrier")
    return f.replace(body=body), end.join(pending)


def _sync_pipeline(f: tile.For, context: _Context, pending: Pending) -> tuple[tile.For, Pending]:
    """Start each iteration with a wait for its copies and a barrier after the iteration before."""
    slots = stages.slot_counts(f, context.kernel)
    start: Body = (tile.Sync("wait_copies", dict(f.bind.args)["depth"] - 2), BARRIER)
    body = f.body if f.body[: len(start)] == start else (*start, *f.body)
    inside = replace(context, own=context.own | slots.keys())
    made, end = _sync_loop(f.replace(body=body), inside, pending.after("barrier"), synchronized=True)
    return made, end.add(Uses(reads=frozenset(slots)))


def _sync_specialised(f: tile.For, context: _Context, pending: Pending) -> tuple[tile.For, Pending]:
    """A pipeline with producers: computing threads wait for slots by mbarriers; preparing ones have own barriers."""
    preparing = replace(context, threads=stages.preparing_threads(f), shared=NONE, copied_out=NONE)
    body: list[Stmt] = []
    prepare_pending = Pending()
    for s in f.body:
        if isinstance(s, tile.Stage) and s.role == "prepare":
            made, prepare_pending = _insert_syncs(s.body, preparing, prepare_pending)
            s = s.replace(body=made)
        body.append(s)
    inside = replace(context, own=context.own | stages.slotted_tiles(f, context.kernel))
    done, end = _sync_loop(f.replace(body=tuple(body)), inside, pending)
    if stages.has_overlap(f) and (
        pending.between(accesses_of(f, inside.own)) or any(isinstance(s, tile.Sync) for s in done.body)
    ):
        raise ValueError(f"kernel {context.kernel}: iterations of {f.var} meet in shared memory")
    return done, end


def _sync_role(s: Role, context: _Context, pending: Pending) -> tuple[Role, Pending]:
    """A role with syncs inserted. Computing threads also execute what follows the roles; a single one needs no sync."""
    match s.kind:
        case "compute":
            made, pending = _insert_syncs(s.body, replace(context, own=context.own | context.handed), pending)
        case "prepare":
            preparing = replace(context, threads=s.threads, shared=NONE, copied_out=NONE, preparing=True)
            made, _ = _insert_syncs(s.body, preparing, Pending())
        case _:
            return s, pending
    return s.replace(body=made), pending
