"""GPU kernels with loops inside rows: a warp or a block per row, or warps that share adjacent columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from compiler.analysis import access
from compiler.analysis.argmax import extreme, sought
from compiler.analysis.nests import loop_ranges
from compiler.ir import loop
from compiler.ir.expr import Const, Var
from compiler.ir.multiples import power
from compiler.ir.statement import Accum, Let, Stmt, Store
from compiler.ir.tensor import known_bytes
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.cost import gpu_threads
from compiler.schedule.space.gpu.plan import MOST_THREADS, THREADS, WARP, Leaf, Plan, lanes, merged, merged_rows
from compiler.schedule.space.members import Member, priced, ranked
from compiler.schedule.steps import Bind, Partition, Split, Stage, Step, StoreAt
from compiler.targets.target import Target, costs

ALONE = 16  # elements per thread if there are no rows
WARPS = (8, 1)  # warps per block, each with a row
COLUMN_WARPS = (8, 16, 32)  # warps that share columns
EXCHANGED = 2048  # bytes of shared memory for exchange between warps, and what the system reserves
LONGEST_WINDOW = 64  # elements that one thread runs through if its neighbours read the same cache lines
CLOSE = 4  # elements between the starts of adjacent windows
LONG = 256  # vectors in a loop from which a separate loop for its end pays
KEPT = 64  # elements of a row that a thread keeps in registers, of 255 registers


def space(plan: Plan, rows: list[loop.For], paths: list[list[loop.For]], count: int) -> Iterator[Member]:
    """Schedules with a warp or a block per row, by threads; data read twice is kept or read again."""
    target, found = plan.target, _found(plan, paths)
    ways = [found, *_with_ends(plan, found)]
    name, before = merged_rows(rows)
    members: list[Member] = []
    if name and count > 1:
        for warps in WARPS:
            block, warp = naming.pieces(name)
            steps = [*before, Split(name, warps, (block, warp)), Bind(block, "blocks"), Bind(warp, "warps")]
            members += (m for way in ways for m in _inside(plan, way, warp, WARP, (count, warps), steps))
    # If nothing of a row is kept, several blocks fit.
    apart = count >= 2 * target.cores and all(len(p) == 1 for p in paths) and _seeks(found.leaves)
    steps = [*before, *([Bind(name, "blocks")] if name else [])]
    threads = 128
    while threads <= (THREADS if apart else MOST_THREADS):
        members += (m for way in ways for m in _inside(plan, way, name, threads, (count, 1), steps))
        threads *= 2
    return ranked(members)


def alone(plan: Plan, paths: list[list[loop.For]], longest: int) -> Iterator[Member]:
    """One block for a kernel whose statements share scalars, with as many threads as have work."""
    found, most = _found(plan, paths, kept=False), min(MOST_THREADS, max(WARP, power(longest // ALONE)))
    threads = [n for n in (32, 64, 128, 256, 512, 1024) if n <= most][::-1]
    return ranked(m for n in threads for m in _inside(plan, found, "", n, (1, 1), []))


def columns(plan: Plan, rows: list[loop.For], paths: list[list[loop.For]], count: int) -> Iterator[Member]:
    """Warps of a block share 32 columns, one per lane: as many warps as fill the machine."""
    wanted = 4 * THREADS * plan.target.cores
    return ranked(
        Member(cost.waits(plan.target, wanted, 1, count * warps), partial(_columns, rows, paths, warps))
        for warps in COLUMN_WARPS
    )


def few_columns(plan: Plan, count: int) -> bool:
    """Whether columns fill warps but are too few for one thread each."""
    return count % WARP == 0 and count < 2 * THREADS * plan.target.cores


def windows(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...]) -> bool:
    """Whether adjacent rows read overlapping or close elements, like the windows of a pool."""
    ranges = loop_ranges(rows)
    moves = access.strides(inside, Var(rows[-1].var), plan.tensors, ranges)
    return all(m is not None and 0 <= m <= CLOSE for m in moves)


def _columns(rows: list[loop.For], paths: list[list[loop.For]], warps: int) -> list[Step]:
    last = rows[-1].extent
    apart = isinstance(last, Const) and int(last.value) % WARP == 0
    name, steps = merged_rows(rows[:-1] if apart else rows)
    block, column = naming.pieces(rows[-1].var if apart else name)
    steps += [Bind(name, "blocks")] if apart and name else []
    steps += [Split(rows[-1].var if apart else name, WARP, (block, column)), Bind(block, "blocks")]
    steps += [Bind(column, "columns", (("warps", warps),))]
    for path in paths:
        leaf, merging = merged(path)
        steps += [*merging, Bind(leaf.name, "lanes", (("threads", warps),))]
    return steps


@dataclass(frozen=True)
class _Found:
    """The loops inside a row, the vector width of a thread, and the buffers worth keeping a row of: the kernel's
    `own` temporaries, and those read `again`.

    With `ends`, the rest of a loop that the vector width does not divide is a loop of its own.
    """

    leaves: list[Leaf]
    merging: list[Step]
    widest: int
    own: list[str]
    again: list[str]
    ends: bool = False

    @property
    def even(self) -> bool:
        """Whether all loops have the same extent."""
        return all(leaf.extent == self.leaves[0].extent for leaf in self.leaves)


def _found(plan: Plan, paths: list[list[loop.For]], kept: bool = True) -> _Found:
    leaves: list[Leaf] = []
    merging: list[Step] = []
    for path in paths:
        leaf, steps = merged(path)
        leaves.append(leaf)
        merging += steps
    widest = max(1, min(plan.neighbours(leaf.original, leaf.original.body) for leaf in leaves))
    while widest > 1 and any(leaf.extent % widest for leaf in leaves):
        widest //= 2
    made = _Found(leaves, merging, widest, [], [])
    if kept and made.even:
        made.own.extend(b for b in sorted(plan.private) if plan.at_own_place(b, leaves))
        made.again.extend(plan.read_again(leaves))
    return made


def _with_ends(plan: Plan, found: _Found) -> Iterator[_Found]:
    """The loops with wider vectors, if rows are aligned and long; kept rows are then in shared memory."""
    widest = min(plan.neighbours_from_aligned(leaf.original) for leaf in found.leaves)
    long = all(leaf.extent >= LONG * widest and leaf.name == leaf.original.var for leaf in found.leaves)
    plain = all(leaf.original.kind != "scan" and not _holds_loops(leaf.original) for leaf in found.leaves)
    if widest > found.widest and long and plain and not found.own and not _seeks(found.leaves):
        yield replace(found, widest=widest, ends=True)


def _holds_loops(f: loop.For) -> bool:
    return not all(isinstance(s, Let | Accum | Store) for s in f.body)


def _inside(
    plan: Plan, found: _Found, row: str, threads: int, share: tuple[int, int], before: list[Step]
) -> Iterator[Member]:
    """Schedules that distribute the loops inside a row over threads; data that several loops read is kept or read
    again. `share` is the number of rows, and rows per block."""
    vector, extent = found.widest, found.leaves[0].extent
    while vector > 1 and any(_idle(leaf.extent, vector, threads) for leaf in found.leaves):
        vector //= 2
    again = [] if threads > WARP and _seeks(found.leaves) else found.again
    rows = [*found.own, *again]
    keeps = rows and (_space(plan, found, rows, threads) or _shared_rows(plan, again, extent, threads))
    for keep in (True, False) if keeps else (True,):
        kept = frozenset(rows) if keep and keeps else frozenset[str]()
        for wide in (vector, vector // 2) if vector > 1 else (1,):
            yield priced(
                partial(
                    _price, _work(plan, found, kept), threads, wide, share, _held_by_block(plan, found, kept, threads)
                ),
                plan.target,
                partial(_steps, plan, found, row, threads, wide, again if keep else None, before),
            )


@dataclass(frozen=True)
class _Work:
    """The work of a row: bytes read or written in memory once, and bytes that its threads move; for each loop its
    extent, accessed buffers, operations, and whether it reads data that no earlier loop read."""

    held: float
    moved: float
    loops: tuple[tuple[int, int, int, bool], ...]
    trees: int
    kept: bool


def _work(plan: Plan, found: _Found, kept: frozenset[str]) -> _Work:
    """The work of a row if rows of the buffers `kept` are kept."""
    met: set[str] = set()
    loops: list[tuple[int, int, int, bool]] = []
    moved, trees = 0.0, 0
    for leaf in found.leaves:
        body = leaf.original.body
        sizes = {b: n for b, n in gpu_threads.accessed(body, plan.tensors).items() if not (b in kept and b in met)}
        sizes = {b: n for b, n in sizes.items() if not (b in kept and b in plan.private)}
        fresh = bool(sizes.keys() - met)
        met |= sizes.keys()
        moved += leaf.extent * sum(sizes.values())
        trees += leaf.original.kind == "reduce"
        loops.append((leaf.extent, len(sizes), gpu_threads.operations(body), fresh))
    held = sum(known_bytes(plan.tensors[b]) * (1 + (b in plan.private)) for b in met)
    return _Work(held, moved, tuple(loops), trees, bool(kept))


def _held_by_block(plan: Plan, found: _Found, kept: frozenset[str], threads: int) -> int:
    """Bytes of shared memory in which a block keeps its row; 0 if it uses registers."""
    if not kept or _space(plan, found, sorted(kept), threads) == "registers":
        return 0
    return sum(found.leaves[0].extent * plan.tensors[b].dtype.bytes for b in kept)


def _price(w: _Work, threads: int, wide: int, share: tuple[int, int], shared: int, target: Target) -> float:
    """Clocks of a kernel; `share` is its number of rows and rows per block, `wide` the vector width, `shared` the bytes
    of shared memory of a block."""
    count, together = share
    turns = [(-(-extent // (threads * wide)), *rest) for extent, *rest in w.loops]
    # Loads into registers are in unrolled loops, all in flight at once.
    later = costs(target)["next.kept" if w.kept else "next"]
    waits = [(1 + (n - 1) * later, fresh) for n, accesses, _, fresh in turns if accesses]
    issued = sum(n * (accesses + done * wide) for n, accesses, done, _ in turns)
    return gpu_threads.clocks(
        gpu_threads.Threads(
            -(-count // together), threads * together, w.held, count * w.moved,
            sum(n for n, fresh in waits if fresh), issued, sum(n for n, fresh in waits if not fresh), w.trees, threads,
            shared=shared,
        ),
        target,
    )  # fmt: skip


def _steps(
    plan: Plan, found: _Found, row: str, threads: int, vector: int, again: list[str] | None, before: list[Step]
) -> list[Step]:
    extent = found.leaves[0].extent
    steps = [*before, *found.merging]
    if row and found.even and again is not None:
        space = _space(plan, found, [*found.own, *again], threads)
        steps += [StoreAt(b, row, space) for b in found.own if space]
        for b in again if space else _shared_rows(plan, again, extent, threads):
            steps.append(Stage(b, f"{b}_row", row, space or "shared", (f"{b}_row_at",)))
            steps += _spread(f"{b}_row_at", extent, threads, vector)
    return steps + [step for leaf in found.leaves for step in _spread(leaf.name, leaf.extent, threads, vector)]


def _spread(loop: str, extent: int, threads: int, vector: int) -> list[Step]:
    """Bind a loop to threads with vectors; elements left over at its end get a loop of their own."""
    if extent % vector == 0:
        return [Bind(loop, "lanes", lanes(threads, vector))]
    main, end = f"{loop}_main", f"{loop}_end"
    return [
        Partition(loop, (extent // vector * vector,), (main, end)),
        Bind(main, "lanes", lanes(threads, vector)), Bind(end, "lanes", lanes(threads, 1)),
    ]  # fmt: skip


def _space(plan: Plan, found: _Found, buffers: list[str], threads: int) -> str:
    """Where rows of these buffers are kept: in registers if they take at most half of a thread's, else in shared
    memory; empty if they fit in neither."""
    most, extent = 4 * min(KEPT, plan.target.registers // threads // 2), found.leaves[0].extent
    small = all(-(-extent // threads) * plan.tensors[b].dtype.bytes <= most for b in buffers)
    if small and not found.ends:
        return "registers"
    return "shared" if buffers == _shared_rows(plan, buffers, extent, threads) else ""


def _shared_rows(plan: Plan, buffers: list[str], extent: int, threads: int) -> list[str]:
    """The buffers, if a block can hold a row of all of them in shared memory; else none."""
    size = sum(extent * plan.tensors[b].dtype.bytes for b in buffers)
    return buffers if threads > WARP and size <= plan.target.shared - EXCHANGED else []


def _idle(extent: int, vector: int, threads: int) -> bool:
    """Whether half the vector width would halve the work of the busiest thread."""
    busiest, halved = (-(-extent // (n * threads)) * n for n in (vector, vector // 2))
    return 2 * halved <= busiest


def _seeks(leaves: list[Leaf]) -> bool:
    """Whether the first loop finds an extreme value and the second its position, read only by threads that met it."""
    if len(leaves) != 2:
        return False
    first, second = (leaf.original for leaf in leaves)
    found = extreme(first.var, first.body)
    return found is not None and sought(found, second.var, second.body) is not None
