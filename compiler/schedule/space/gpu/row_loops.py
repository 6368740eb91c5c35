"""GPU kernels with loops inside rows: a warp or a block per row, or warps that share adjacent columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from compiler.analysis import access
from compiler.analysis.argmax import extreme, sought
from compiler.analysis.loop_invariants import fixed
from compiler.analysis.nests import iterations, loop_ranges
from compiler.ir import loop
from compiler.ir.expr import Const, Var
from compiler.ir.multiples import power
from compiler.ir.statement import Accum, Let, Stmt, Store
from compiler.ir.tensor import known_bytes
from compiler.schedule import names as naming
from compiler.schedule.cost import gpu as cost
from compiler.schedule.cost import gpu_threads
from compiler.schedule.space.gpu.plan import (
    MOST_THREADS,
    THREADS,
    WARP,
    Leaf,
    Plan,
    collapse_leaf,
    collapse_rows,
    lanes,
)
from compiler.schedule.space.members import Member, priced, ranked
from compiler.schedule.steps import Bind, Hoist, Partition, Split, Stage, Step, StoreAt
from compiler.targets.target import Target, costs

ELEMENTS_PER_THREAD = 16  # elements per thread if there are no rows
WARPS = (8, 1)  # warps per block, each with a row
COLUMN_WARPS = (8, 16, 32)  # warps that share columns
EXCHANGE_BYTES = 2048  # bytes of shared memory for exchange between warps, and what the system reserves
LONGEST_WINDOW = 64  # elements that one thread runs through if its neighbours read the same cache lines
WINDOW_DISTANCE = 4  # elements between the starts of adjacent windows
LONG = 256  # vectors in a loop from which a separate loop for its end pays
REGISTER_ELEMENTS = 64  # elements of a row that a thread keeps in registers, of 255 registers


def space(plan: Plan, rows: list[loop.For], paths: list[list[loop.For]], count: int) -> Iterator[Member]:
    """Schedules with a warp or a block per row, by threads; data read twice is kept or read again."""
    target, found = plan.target, _recognise_row(plan, paths)
    ways = [found, *_with_end_loops(plan, found)]
    name, before = collapse_rows(rows)
    members: list[Member] = []
    if name and count > 1:
        for warps in WARPS:
            block, warp = naming.pieces(name)
            steps = [*before, Split(name, warps, (block, warp)), Bind(block, "blocks"), Bind(warp, "warps")]
            members += (m for way in ways for m in _thread_members(plan, way, warp, WARP, (count, warps), steps))
    # If nothing of a row is kept, several blocks fit.
    small_blocks = count >= 2 * target.cores and all(len(p) == 1 for p in paths) and _is_argmax(found.leaves)
    steps = [*before, *([Bind(name, "blocks")] if name else [])]
    threads = 128
    while threads <= (THREADS if small_blocks else MOST_THREADS):
        members += (m for way in ways for m in _thread_members(plan, way, name, threads, (count, 1), steps))
        threads *= 2
    return ranked(members)


def long_rows(plan: Plan, rows: list[loop.For], count: int) -> Iterator[Member]:
    """Schedules with a block per row of single elements, if no vector width divides the length of long, aligned rows:
    the end of each row is a loop of its own. There are `count` rows."""
    found = _recognise_row(plan, [rows[-1:]])
    name, before = collapse_rows(rows[:-1])
    last = rows[-1]
    invariant = [Hoist(last.var, reads=1)] if fixed(last.body, {last.var}, reads=True) else []
    steps = [*before, *([Bind(name, "blocks")] if name else []), *invariant]
    threads = [n for n in (128, 256, 512, 1024) if n <= MOST_THREADS]
    ways = _with_end_loops(plan, found)
    return ranked(m for way in ways for n in threads for m in _thread_members(plan, way, name, n, (count, 1), steps))


def single_block(plan: Plan, paths: list[list[loop.For]], longest: int) -> Iterator[Member]:
    """One block for a kernel whose statements share scalars, with as many threads as have work."""
    found, most = (
        _recognise_row(plan, paths, kept=False),
        min(MOST_THREADS, max(WARP, power(longest // ELEMENTS_PER_THREAD))),
    )
    threads = [n for n in (32, 64, 128, 256, 512, 1024) if n <= most][::-1]
    return ranked(m for n in threads for m in _thread_members(plan, found, "", n, (1, 1), []))


def columns(plan: Plan, rows: list[loop.For], paths: list[list[loop.For]], count: int) -> Iterator[Member]:
    """Warps of a block share 32 columns, one per lane."""
    reductions = [iterations(*p) for p in paths if any(isinstance(s, Accum) for s in p[-1].body)]
    stored = [iterations(*p) for p in paths if not any(isinstance(s, Accum) for s in p[-1].body)]
    return ranked(
        Member(cost.column_clocks(plan.target, reductions, stored, count, warps), partial(_columns, rows, paths, warps))
        for warps in COLUMN_WARPS
    )


def has_few_columns(plan: Plan, count: int) -> bool:
    """Whether columns fill warps but are too few for one thread each."""
    return count % WARP == 0 and count < 2 * THREADS * plan.target.cores


def reads_windows(plan: Plan, rows: list[loop.For], inside: tuple[Stmt, ...]) -> bool:
    """Whether adjacent rows read overlapping or close elements, like the windows of a pool."""
    ranges = loop_ranges(rows)
    moves = access.strides(inside, Var(rows[-1].var), plan.tensors, ranges)
    return all(m is not None and 0 <= m <= WINDOW_DISTANCE for m in moves)


def _columns(rows: list[loop.For], paths: list[list[loop.For]], warps: int) -> list[Step]:
    last = rows[-1].extent
    last_alone = isinstance(last, Const) and int(last.value) % WARP == 0
    name, steps = collapse_rows(rows[:-1] if last_alone else rows)
    block, column = naming.pieces(rows[-1].var if last_alone else name)
    steps += [Bind(name, "blocks")] if last_alone and name else []
    steps += [Split(rows[-1].var if last_alone else name, WARP, (block, column)), Bind(block, "blocks")]
    steps += [Bind(column, "columns", (("warps", warps),))]
    for path in paths:
        leaf, merging = collapse_leaf(path)
        steps += [*merging, Bind(leaf.name, "lanes", (("threads", warps),))]
    return steps


@dataclass(frozen=True)
class _Row:
    """The loops inside a row, the vector width of a thread, and the buffers worth keeping a row of: the kernel's
    `private` temporaries, and those read `reread`.

    With `has_ends`, the rest of a loop that the vector width does not divide is a loop of its own.
    """

    leaves: list[Leaf]
    merging: list[Step]
    widest: int
    private: list[str]
    reread: list[str]
    has_ends: bool = False

    @property
    def even(self) -> bool:
        """Whether all loops have the same extent."""
        return all(leaf.extent == self.leaves[0].extent for leaf in self.leaves)


def _recognise_row(plan: Plan, paths: list[list[loop.For]], kept: bool = True) -> _Row:
    leaves: list[Leaf] = []
    merging: list[Step] = []
    for path in paths:
        leaf, steps = collapse_leaf(path)
        leaves.append(leaf)
        merging += steps
    widest = max(1, min(plan.vector_width(leaf.original, leaf.original.body) for leaf in leaves))
    while widest > 1 and any(leaf.extent % widest for leaf in leaves):
        widest //= 2
    row = _Row(leaves, merging, widest, [], [])
    if kept and row.even:
        row.private.extend(b for b in sorted(plan.private) if plan.is_indexed_by_loop(b, leaves))
        row.reread.extend(plan.reread_buffers(leaves))
    return row


def _with_end_loops(plan: Plan, found: _Row) -> Iterator[_Row]:
    """The loops with wider vectors, if rows are aligned and long; kept rows are then in shared memory."""
    widest = min(plan.aligned_vector_width(leaf.original) for leaf in found.leaves)
    long = all(leaf.extent >= LONG * widest and leaf.name == leaf.original.var for leaf in found.leaves)
    plain = all(leaf.original.kind != "scan" and not _has_inner_loops(leaf.original) for leaf in found.leaves)
    if widest > found.widest and long and plain and not found.private and not _is_argmax(found.leaves):
        yield replace(found, widest=widest, has_ends=True)


def _has_inner_loops(f: loop.For) -> bool:
    return not all(isinstance(s, Let | Accum | Store) for s in f.body)


def _thread_members(
    plan: Plan, found: _Row, row: str, threads: int, share: tuple[int, int], before: list[Step]
) -> Iterator[Member]:
    """Schedules that distribute the loops inside a row over threads; data that several loops read is kept or read
    again. `share` is the number of rows, and rows per block."""
    vector, extent = found.widest, found.leaves[0].extent
    while vector > 1 and any(_wastes_vector(leaf.extent, vector, threads) for leaf in found.leaves):
        vector //= 2
    reread = [] if threads > WARP and _is_argmax(found.leaves) else found.reread
    rows = [*found.private, *reread]
    keeps = rows and (_row_memory(plan, found, rows, threads) or _shared_rows(plan, reread, extent, threads))
    for keep in (True, False) if keeps else (True,):
        kept = frozenset(rows) if keep and keeps else frozenset[str]()
        for wide in (vector, vector // 2) if vector > 1 else (1,):
            yield priced(
                partial(
                    _price,
                    _row_work(plan, found, kept),
                    threads,
                    wide,
                    share,
                    _shared_bytes(plan, found, kept, threads),
                ),
                plan.target,
                partial(_steps, plan, found, row, threads, wide, reread if keep else None, before),
            )


@dataclass(frozen=True)
class _RowWork:
    """The work of a row: bytes read or written in memory once, and bytes that its threads move; for each loop its
    extent, accessed buffers, operations, and whether it reads data that no earlier loop read."""

    memory_bytes: float
    cache_bytes: float
    loops: tuple[tuple[int, int, int, bool], ...]
    reductions: int
    kept: bool


def _row_work(plan: Plan, found: _Row, kept: frozenset[str]) -> _RowWork:
    """The work of a row if rows of the buffers `kept` are kept."""
    seen: set[str] = set()
    loops: list[tuple[int, int, int, bool]] = []
    cache_bytes, reductions = 0.0, 0
    for leaf in found.leaves:
        body = leaf.original.body
        sizes = {
            b: n for b, n in gpu_threads.element_bytes(body, plan.tensors).items() if not (b in kept and b in seen)
        }
        sizes = {b: n for b, n in sizes.items() if not (b in kept and b in plan.private)}
        fresh = bool(sizes.keys() - seen)
        seen |= sizes.keys()
        cache_bytes += leaf.extent * sum(sizes.values())
        reductions += leaf.original.kind == "reduce"
        loops.append((leaf.extent, len(sizes), gpu_threads.operations(body), fresh))
    memory_bytes = sum(known_bytes(plan.tensors[b]) * (1 + (b in plan.private)) for b in seen)
    return _RowWork(memory_bytes, cache_bytes, tuple(loops), reductions, bool(kept))


def _shared_bytes(plan: Plan, found: _Row, kept: frozenset[str], threads: int) -> int:
    """Bytes of shared memory in which a block keeps its row; 0 if it uses registers."""
    if not kept or _row_memory(plan, found, sorted(kept), threads) == "registers":
        return 0
    return sum(found.leaves[0].extent * plan.tensors[b].dtype.bytes for b in kept)


def _price(w: _RowWork, threads: int, wide: int, share: tuple[int, int], shared: int, target: Target) -> float:
    """Clocks of a kernel; `share` is its number of rows and rows per block, `wide` the vector width, `shared` the bytes
    of shared memory of a block."""
    count, rows_per_block = share
    rounds = [(-(-extent // (threads * wide)), *rest) for extent, *rest in w.loops]
    # Loads into registers are in unrolled loops, all in flight at once.
    next_round = costs(target)["next.kept" if w.kept else "next"]
    waits = [(1 + (n - 1) * next_round, fresh) for n, accesses, _, fresh in rounds if accesses]
    instructions = sum(n * (accesses + done * wide) for n, accesses, done, _ in rounds)
    return gpu_threads.clocks(
        gpu_threads.Threads(
            -(-count // rows_per_block), threads * rows_per_block, w.memory_bytes, count * w.cache_bytes,
            sum(n for n, fresh in waits if fresh), instructions, sum(n for n, fresh in waits if not fresh),
            w.reductions, threads,
            shared=shared,
        ),
        target,
    )  # fmt: skip


def _steps(
    plan: Plan, found: _Row, row: str, threads: int, vector: int, reread: list[str] | None, before: list[Step]
) -> list[Step]:
    extent = found.leaves[0].extent
    steps = [*before, *found.merging]
    if row and found.even and reread is not None:
        space = _row_memory(plan, found, [*found.private, *reread], threads)
        steps += [StoreAt(b, row, space) for b in found.private if space]
        for b in reread if space else _shared_rows(plan, reread, extent, threads):
            steps.append(Stage(b, f"{b}_row", row, space or "shared", (f"{b}_row_at",)))
            steps += _bind_threads(f"{b}_row_at", extent, threads, vector)
    return steps + [step for leaf in found.leaves for step in _bind_threads(leaf.name, leaf.extent, threads, vector)]


def _bind_threads(loop: str, extent: int, threads: int, vector: int) -> list[Step]:
    """Bind a loop to threads with vectors; elements left over at its end get a loop of their own."""
    if extent % vector == 0:
        return [Bind(loop, "lanes", lanes(threads, vector))]
    main, end = f"{loop}_main", f"{loop}_end"
    return [
        Partition(loop, (extent // vector * vector,), (main, end)),
        Bind(main, "lanes", lanes(threads, vector)), Bind(end, "lanes", lanes(threads, 1)),
    ]  # fmt: skip


def _row_memory(plan: Plan, found: _Row, buffers: list[str], threads: int) -> str:
    """Where rows of these buffers are kept: in registers if they take at most half of a thread's, else in shared
    memory; empty if they fit in neither."""
    most, extent = 4 * min(REGISTER_ELEMENTS, plan.target.registers // threads // 2), found.leaves[0].extent
    small = all(-(-extent // threads) * plan.tensors[b].dtype.bytes <= most for b in buffers)
    if small and not found.has_ends:
        return "registers"
    return "shared" if buffers == _shared_rows(plan, buffers, extent, threads) else ""


def _shared_rows(plan: Plan, buffers: list[str], extent: int, threads: int) -> list[str]:
    """The buffers, if a block can hold a row of all of them in shared memory; else none."""
    size = sum(extent * plan.tensors[b].dtype.bytes for b in buffers)
    return buffers if threads > WARP and size <= plan.target.shared - EXCHANGE_BYTES else []


def _wastes_vector(extent: int, vector: int, threads: int) -> bool:
    """Whether half the vector width would halve the work of the busiest thread."""
    busiest, halved = (-(-extent // (n * threads)) * n for n in (vector, vector // 2))
    return 2 * halved <= busiest


def _is_argmax(leaves: list[Leaf]) -> bool:
    """Whether the first loop finds an extreme value and the second its position, read only by threads that met it."""
    if len(leaves) != 2:
        return False
    first, second = (leaf.original for leaf in leaves)
    maximum = extreme(first.var, first.body)
    return maximum is not None and sought(maximum, second.var, second.body) is not None
