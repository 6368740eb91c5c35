"""A loop nest and a target with threads in, a schedule out: a pure function, with the reason for each choice beside it.

A kernel without loops inside its rows is spread flat over blocks and threads. Rows with loops inside go to a block, a
warp or a thread each, by how long they are and along which way memory is contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.analysis import access
from compiler.analysis.argmax import extreme, sought
from compiler.analysis.nests import Row, contiguous, paths_of, rows_of, used_as_value
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, dim, product
from compiler.ir.index import extent_range, value_range
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.schedule import names as naming
from compiler.schedule.gpu import attention, contraction, ffma, reductions, sequences, transposes
from compiler.schedule.steps import Bind, Collapse, Fold, Schedule, Split, Stage, Step
from compiler.targets.target import Target

THREADS = 256  # a multiple of every scheduler's share, and small enough for eight blocks on a multiprocessor
WIDEST = 16  # bytes that one instruction loads or stores
MOST_NEIGHBOURS = 8  # elements of a thread side by side: more make code longer and nothing faster
FILLED = 4  # times that wide accesses fill the machine with threads before each thread makes two
SHORT_ROW = 8  # a row that a thread goes through alone
# Rows for each multiprocessor, and elements of a row for each thread: many rows need few threads each, few rows many.
PER_THREAD = ((8, 32), (2, 16), (0, 8))
SCANNED = 16  # elements of a scan for each thread: four rounds of wide loads
EXCHANGED = 2048  # bytes of shared memory through which warps exchange what they have, and what the machine keeps
LONGEST_WINDOW = 64  # elements that one thread goes through where neighbours read the same lines of memory
CLOSE = 4  # elements between where neighbouring windows begin
LEAST_SCAN = 64  # a shorter scan takes one thread
LEAST_COLUMN = 64  # elements of a column that warps share
LEAST_PART = 32  # elements of a column that a thread scans
SCAN_BLOCKS = 4  # for each multiprocessor, where rows are so few that they are scanned in parts
WARP_SCAN = 512  # the longest scan that one warp takes: four rounds of wide loads
MOST_THREADS = 1024
KEPT = 64  # elements of a row that a thread keeps in registers, of 255 that it has
OWN = 64  # elements of a temporary that a thread keeps to itself


def choose(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """A schedule for `kernel`; `private` names the temporaries that no other kernel uses."""
    private = frozenset(private)
    products = (
        contraction.choose(kernel, target) or attention.choose(kernel, private, target) or ffma.choose(kernel, target)
    )
    return products if products is not None else plain(kernel, private, target)


def plain(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """A schedule that takes sums of products as it takes other sums."""
    sequence = sequences.choose(kernel, frozenset(private), target)
    if sequence is not None:
        return sequence
    plan = _Plan(kernel, frozenset(private), target, {p.name: p for p in kernel.params})
    if not all(isinstance(s, loop.For) for s in kernel.body):
        return Schedule(tuple(plan.alone()))
    return Schedule(tuple(step for s in kernel.body if isinstance(s, loop.For) for step in plan.nest(s)))


@dataclass(frozen=True)
class _Leaf:
    """An innermost loop after its neighbours were merged into it: its name by then, its extent, and as it was."""

    name: str
    extent: int
    original: loop.For


@dataclass(frozen=True)
class _Plan:
    kernel: Kernel
    private: frozenset[str]
    target: Target
    tensors: dict[str, Tensor]

    def nest(self, f: loop.For) -> list[Step]:
        rows, inside = rows_of(f)
        if any(not isinstance(r.extent, Const) for r in rows):
            raise ValueError(f"kernel {self.kernel.name}: its sizes are not known, which the heuristic needs")
        paths = paths_of(inside)
        if not paths:
            return transposes.choose(rows, inside, self.tensors) or self.flat(rows, inside)
        count = math.prod(int(r.extent.value) for r in rows if isinstance(r.extent, Const))
        longest = max(_extent(path) for path in paths)
        scans = any(g.kind == "scan" for path in paths for g in path)
        reduction = None if scans else reductions.only(rows, inside)
        if reduction is not None and rows and longest > SHORT_ROW and self.across(rows, inside, paths):
            return reductions.columns(reduction, self.neighbours(rows[-1], inside), self.target.cores)
        if reduction is not None:
            leaf = paths[0][-1]
            split = reductions.split_rows(reduction, self.neighbours(leaf, leaf.body), self.target.cores)
            if split is not None:
                return split
        if scans and rows and self.running_total(inside):
            if self.across(rows, inside, paths):
                return self.scanned_across(rows, inside, paths[0][0], count)
            return self.scanned(rows, inside, paths[0][0], count)
        few = rows and not scans and longest >= LEAST_COLUMN and self.few_columns(rows, count)
        if few and self.across(rows, inside, paths):
            return self.columns(rows, paths, count)
        if rows and (scans or longest <= SHORT_ROW or (count >= WARP_LANES and self.across(rows, inside, paths))):
            return self.flat(rows, inside)
        if rows and longest <= LONGEST_WINDOW and count >= THREADS * self.target.cores and self.windows(rows, inside):
            return self.flat(rows, inside)
        name, steps = self.merged_rows(rows)
        if scans:
            return steps + ([Bind(name, "blocks")] if name else [])
        each = next(n for least, n in PER_THREAD if count >= least * self.target.cores)
        if longest <= WARP_LANES * each and name and count > 1:
            warps = THREADS // WARP_LANES if count >= 4 * self.target.cores else 1
            block, warp = naming.pieces(name)
            steps += [Split(name, warps, (block, warp)), Bind(block, "blocks"), Bind(warp, "warps")]
            return steps + self.inside(warp, paths, WARP_LANES)
        threads = min(MOST_THREADS, max(128, _power(-(-longest // each))))
        if count >= 2 * self.target.cores and all(len(p) == 1 for p in paths) and _seeks(_leaves(paths)):
            threads = min(threads, THREADS)  # nothing of a row is kept, so that several blocks find room
        steps += [Bind(name, "blocks")] if name else []
        return steps + self.inside(name, paths, threads)

    def few_columns(self, rows: list[loop.For], count: int) -> bool:
        """Warps have 32 neighbouring columns, which are too few for a thread each."""
        last = rows[-1].extent
        return isinstance(last, Const) and int(last.value) % WARP_LANES == 0 and count < 2 * THREADS * self.target.cores

    def columns(self, rows: list[loop.For], paths: list[list[loop.For]], count: int) -> list[Step]:
        """Warps of a block share columns, of which each lane has one."""
        name, steps = self.merged_rows(rows[:-1])
        last = rows[-1].var
        warps = next((w for w in (8, 16) if count * w >= 4 * THREADS * self.target.cores), 32)
        steps += [Bind(name, "blocks")] if name else []
        block, column = naming.pieces(last)
        steps += [Split(last, WARP_LANES, (block, column)), Bind(block, "blocks")]
        steps += [Bind(column, "columns", (("warps", warps),))]
        for path in paths:
            leaf, merging = self.merged(path)
            steps += [*merging, Bind(leaf.name, "lanes", (("threads", warps),))]
        return steps

    def windows(self, rows: list[loop.For], inside: tuple[Stmt, ...]) -> bool:
        """What neighbouring rows read overlaps or is close together, as the windows of a pool are."""
        ranges: dict[str, Range] = {r.var: extent_range(r.extent) for r in rows}
        moves = access.strides(inside, Var(rows[-1].var), self.tensors, ranges)
        return all(m is not None and 0 <= m <= CLOSE for m in moves)

    def running_total(self, inside: tuple[Stmt, ...]) -> bool:
        """Rows hold one scan each, of an extent worth several threads, which keeps a total."""
        match inside:
            case (Init(_, value), loop.For(extent=Const(int() as extent), kind="scan", body=body)):
                at = next((n for n, s in enumerate(body) if isinstance(s, Accum)), len(body))
                plain = all(isinstance(s, Let) for s in body[:at]) and all(
                    isinstance(s, Let | Store) for s in body[at + 1 :]
                )
                return plain and at < len(body) and extent >= LEAST_SCAN and value.dtype.bits >= 32
        return False

    def scanned(self, rows: list[loop.For], inside: tuple[Stmt, ...], f: loop.For, count: int) -> list[Step]:
        """Threads have neighbours of a row, and exchange their totals; few long rows go to several blocks each."""
        assert isinstance(f.extent, Const)
        name, steps = self.merged_rows(rows)
        extent, vector = int(f.extent.value), self.neighbours(f, f.body)
        if extent <= WARP_SCAN and count > 1:
            warps = THREADS // WARP_LANES if count >= 4 * self.target.cores else 1
            block, warp = naming.pieces(name)
            steps += [Split(name, warps, (block, warp)), Bind(block, "blocks"), Bind(warp, "warps")]
            return [*steps, Bind(f.var, "lanes", _lanes(WARP_LANES, vector))]
        unit = THREADS * SCANNED
        length = -(-extent * count // (SCAN_BLOCKS * self.target.cores * unit)) * unit
        if count < self.target.cores and extent > length:
            assert isinstance(inside[0], Init)
            lanes = _lanes(THREADS, vector)
            scan = naming.split_scan(inside[0].name, f.var, length, (name,) if name else ())
            part, total, after, before = scan.into
            steps += [scan, Bind(part, "blocks"), Bind(after, "blocks")]
            steps += [Bind(x, "blocks") for x in (*scan.rows, name) if name]
            return [*steps, Bind(total, "lanes", lanes), Bind(before, "lanes", _lanes(THREADS, 1)),
                    Bind(f.var, "lanes", lanes)]  # fmt: skip
        threads = min(MOST_THREADS, max(128, _power(-(-extent // SCANNED))))
        steps += [Bind(name, "blocks")] if name else []
        return [*steps, Bind(f.var, "lanes", _lanes(threads, vector))]

    def scanned_across(self, rows: list[loop.For], inside: tuple[Stmt, ...], f: loop.For, count: int) -> list[Step]:
        """A thread scans a column by itself, of which several have parts where columns are few."""
        assert isinstance(f.extent, Const) and isinstance(inside[0], Init)
        name, steps = self.merged_rows(rows)
        extent = int(f.extent.value)
        length = max(LEAST_PART, -(-extent * count // (SCAN_BLOCKS * self.target.cores * THREADS)))
        length = next((n for n in range(length, 2 * length) if extent % n == 0), length)
        most = min(_power(count), _power(count * extent // (length * self.target.cores) + 1) // 2)
        threads = max(WARP_LANES, min(THREADS, most))
        names = [name]
        if extent > length:
            scan = naming.split_scan(inside[0].name, f.var, length, (name,))
            part, _, after, _ = scan.into
            steps += [scan, Bind(part, "blocks"), Bind(after, "blocks")]
            names = [*scan.rows, name]
        for x in names:
            block, lane = naming.pieces(x)
            steps += [Split(x, threads, (block, lane)), Bind(block, "blocks"), Bind(lane, "lanes", _lanes(threads, 1))]
        return steps

    def alone(self) -> list[Step]:
        """A kernel whose statements share scalars: one block does it all."""
        paths = paths_of(self.kernel.body)
        if self.running_total(self.kernel.body):
            return self.scanned([], self.kernel.body, paths[0][0], 1)
        if not paths or any(g.kind == "scan" for path in paths for g in path):
            return []
        reduction = reductions.only([], self.kernel.body)
        if reduction is not None:
            leaf = paths[0][-1]
            split = reductions.split_rows(reduction, self.neighbours(leaf, leaf.body), self.target.cores)
            if split is not None:
                return split
        longest = max(_extent(path) for path in paths)
        return self.inside("", paths, min(MOST_THREADS, max(WARP_LANES, _power(longest // SCANNED))))

    # ---- rows

    def merged_rows(self, rows: list[loop.For]) -> tuple[str, list[Step]]:
        """All loops over rows as one."""
        steps: list[Step] = []
        name = rows[0].var if rows else ""
        for r in rows[1:]:
            steps.append(Collapse(name, r.var, name + r.var))
            name += r.var
        return name, steps

    def flat(self, rows: list[loop.For], inside: tuple[Stmt, ...]) -> list[Step]:
        """Each row is one iteration of a thread, neighbours to neighbours."""
        ranges: dict[str, Range] = {r.var: extent_range(r.extent) for r in rows}
        groups: list[Row] = []
        steps: list[Step] = []
        for r in rows:
            assert isinstance(r.extent, Const)
            extent = int(r.extent.value)
            # The axes before the last may stay axes of the grid if the last is long enough to keep threads busy.
            if groups and (self.even(groups[-1].last, r, inside, ranges) or _rest(rows, r) < THREADS):
                steps.append(Collapse(groups[-1].name, r.var, groups[-1].name + r.var))
                groups[-1] = Row(groups[-1].name + r.var, groups[-1].extent * extent, r)
            else:
                groups.append(Row(r.var, extent, r))
        if len(groups) > 1 and groups[-1].extent < THREADS:
            groups, steps = [], []
            name, steps = self.merged_rows(rows)
            groups = [Row(name, math.prod(int(r.extent.value) for r in rows if isinstance(r.extent, Const)), rows[-1])]
        while len(groups) > 3:
            steps.append(Collapse(groups[0].name, groups[1].name, groups[0].name + groups[1].name))
            groups[:2] = [Row(groups[0].name + groups[1].name, groups[0].extent * groups[1].extent, groups[1].last)]
        *outer, last = groups
        steps += [Bind(g.name, "blocks") for g in outer]
        vector = self.neighbours(last.last, inside) if not paths_of(inside) else 1
        others = math.prod(g.extent for g in outer)
        total = last.extent * others // vector
        # No more than the last axis takes, and few where there is little to do, so that all multiprocessors have some.
        most = min(_power(-(-last.extent // vector)), _power(total // self.target.cores + 1) // 2)
        # Two rounds each where the machine is filled several times all the same: blocks that come after each other load
        # while others compute.
        rounds = 2 if total >= FILLED * self.target.cores * self.target.threads and not paths_of(inside) else 1
        threads = max(WARP_LANES, min(THREADS // rounds, most))
        steps += self.own(last.name, inside)
        block, lane = naming.pieces(last.name)
        steps += [Split(last.name, threads * vector * rounds, (block, lane))]
        steps += [Bind(block, "blocks"), Bind(lane, "lanes", _lanes(threads, vector))]
        return steps

    def own(self, row: str, inside: tuple[Stmt, ...]) -> list[Step]:
        """Small temporaries of a row become a thread's own."""
        count = math.prod(int(n.extent.value) for f in self.kernel.body if isinstance(f, loop.For)
                          for n in rows_of(f)[0] if isinstance(n.extent, Const))  # fmt: skip
        steps: list[Step] = []
        for b in sorted(self.private):
            size = product(self.tensors[b].shape)
            if isinstance(size, Const) and int(size.value) <= OWN * count and len(self.kernel.body) == 1:
                steps.append(Fold(b, row))
        return steps

    def even(self, outer: loop.For, inner: loop.For, inside: tuple[Stmt, ...], ranges: dict[str, Range]) -> bool:
        """Every address moves through both loops as through one."""
        assert isinstance(inner.extent, Const)
        i, j, n = Var(outer.var), Var(inner.var), int(inner.extent.value)
        inner_stride = access.strides(inside, j, self.tensors, ranges)
        outer_stride = access.strides(inside, i, self.tensors, ranges)
        if any(a is None or b is None or b != a * n for a, b in zip(inner_stride, outer_stride, strict=True)):
            return False
        return not used_as_value(inside, {i, j})

    def neighbours(self, last: loop.For, body: tuple[Stmt, ...]) -> int:
        """How many elements a thread takes side by side: as many as the widest instruction moves of most buffers."""
        assert isinstance(last.extent, Const)
        moved = [b for b, _, _ in access.accesses(body) if b in self.tensors and b not in self.private]
        sizes = [self.tensors[b].dtype.bytes for b in moved]
        widest = min(MOST_NEIGHBOURS, WIDEST // max(1, sorted(sizes)[len(sizes) // 2] if sizes else 4))
        while widest > 1 and int(last.extent.value) % widest:
            widest //= 2
        return max(1, widest)

    def across(self, rows: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]]) -> bool:
        """Memory is contiguous along the rows rather than along the loops inside."""
        ranges: dict[str, Range] = {r.var: extent_range(r.extent) for r in rows}
        ranges |= {f.var: extent_range(f.extent) for path in paths for f in path}
        leaves = [path[-1] for path in paths]
        side = contiguous(access.strides(inside, Var(rows[-1].var), self.tensors, ranges))
        along = sum(contiguous(access.strides(f.body, Var(f.var), self.tensors, ranges)) for f in leaves) / len(leaves)
        return side > along

    # ---- loops inside rows

    def inside(self, row: str, paths: list[list[loop.For]], threads: int) -> list[Step]:
        """Loops inside a row go over threads; what several of them read stays in registers."""
        steps: list[Step] = []
        leaves: list[_Leaf] = []
        for path in paths:
            leaf, merging = self.merged(path)
            leaves.append(leaf)
            steps += merging
        vector = max(1, min(self.neighbours(leaf.original, leaf.original.body) for leaf in leaves))
        while vector > 1 and any(leaf.extent % vector or _idle(leaf.extent, vector, threads) for leaf in leaves):
            vector //= 2
        lanes = _lanes(threads, vector)
        extent = leaves[0].extent
        if row and all(leaf.extent == extent for leaf in leaves):
            own = [b for b in sorted(self.private) if self.at_own_place(b, leaves)]
            again = [] if threads > WARP_LANES and _seeks(leaves) else self.read_again(leaves)
            space = self.space([*own, *again], extent, threads)
            steps += [Fold(b, row, space) for b in own if space]
            for b in again if space else self.shared_rows(again, extent, threads):
                steps += [
                    Stage(b, f"{b}_row", row, space or "shared", (f"{b}_row_at",)),
                    Bind(f"{b}_row_at", "lanes", lanes),
                ]
        return steps + [Bind(leaf.name, "lanes", lanes) for leaf in leaves]

    def space(self, buffers: list[str], extent: int, threads: int) -> str:
        """Where rows of these buffers stay: in registers if half of a thread's hold each, else in shared memory."""
        most = 4 * min(KEPT, self.target.registers // threads // 2)
        if all(-(-extent // threads) * self.tensors[b].dtype.bytes <= most for b in buffers):
            return "registers"
        return "shared" if buffers == self.shared_rows(buffers, extent, threads) else ""

    def shared_rows(self, buffers: list[str], extent: int, threads: int) -> list[str]:
        """Those buffers of which a block can hold a row in shared memory, together."""
        size = sum(extent * self.tensors[b].dtype.bytes for b in buffers)
        return buffers if threads > WARP_LANES and size <= self.target.shared - EXCHANGED else []

    def merged(self, path: list[loop.For]) -> tuple[_Leaf, list[Step]]:
        """The innermost loop made one with those perfectly around it of its kind."""
        steps: list[Step] = []
        leaf = path[-1]
        assert isinstance(leaf.extent, Const)
        name, extent = leaf.var, int(leaf.extent.value)
        for outer, inner in zip(path[-2::-1], path[:0:-1], strict=True):
            if outer.kind != inner.kind or outer.body != (inner,) or not isinstance(outer.extent, Const):
                break
            steps.append(Collapse(outer.var, name, outer.var + name))
            name, extent = outer.var + name, int(outer.extent.value) * extent
        return _Leaf(name, extent, leaf), steps

    def read_again(self, leaves: list[_Leaf]) -> list[str]:
        """Buffers of which several loops read the whole row, each iteration its own element."""
        often = {b: sum(any(n.buffer == b for n in _loads(leaf)) for leaf in leaves) for b in self.tensors}
        wanted = [b for b, n in often.items() if n > 1 and b not in self.kernel.writes]
        return [b for b in wanted if self.at_own_place(b, leaves) and self.whole_row(b, leaves)]

    def at_own_place(self, buffer: str, leaves: list[_Leaf]) -> bool:
        """The only axis of a buffer that moves inside a row is the loop's own variable, everywhere in the kernel."""
        inside = [(n, leaf) for leaf in leaves for s in leaf.original.body for n in s.walk() if _touches(n, buffer)]
        everywhere = [n for s in self.kernel.body for n in s.walk() if _touches(n, buffer) and not access.picked(n)]
        if len(inside) != len(everywhere):
            return False
        for n, leaf in inside:
            index = n.index
            own = [i for i in index if Var(leaf.original.var) in set(i.walk())]
            if leaf.name != leaf.original.var or own != [Var(leaf.original.var)]:
                return False
            if any(Var(other.var) in set(i.walk()) for i in index for other in _between(self.kernel, leaf.original)):
                return False
        return True

    def whole_row(self, buffer: str, leaves: list[_Leaf]) -> bool:
        """It is one row of the buffer, as long as the loops and always there, so that all of it may be read."""
        along = {Var(x.original.var) for x in leaves}
        loads = [n for leaf in leaves for n in _loads(leaf) if n.buffer == buffer]
        rows = {tuple(None if i in along else i for i in n.index) for n in loads}
        places = [(e, i) for row in rows for e, i in zip(self.tensors[buffer].shape, row, strict=True)]
        if len(rows) != 1 or [e for e, i in places if i is None] != [dim(leaves[0].extent)]:
            return False
        loops = {Var(f.var): f.extent for s in self.kernel.body for f in s.walk() if isinstance(f, loop.For)}
        return all(_inside(i, e, loops) for e, i in places if i is not None)


WARP_LANES = 32


def _inside(index: Expr, extent: Expr, loops: Mapping[Var, Expr]) -> bool:
    """An index is certainly of an axis, whatever guards its load: it is that of a loop as long, or in range."""
    if isinstance(index, Var) and loops.get(index) is extent:
        return True
    if not {n for n in index.walk() if isinstance(n, Var)} <= loops.keys():
        return False  # a name bound within the row: where the row begins is not known before it
    low, high = value_range(index, {v.name: extent_range(n) for v, n in loops.items()})
    if low is None or low < 0 or high is None:
        return False
    return high < (extent.value if isinstance(extent, Const) else 1)


def _between(kernel: Kernel, leaf: loop.For) -> list[loop.For]:
    """The loops inside the rows of a kernel that are around one of its innermost loops."""
    for s in kernel.body:
        if isinstance(s, loop.For) and leaf in set(s.walk()):
            _, inside = rows_of(s)
            return [g for path in paths_of(inside) if path[-1] is leaf for g in path[:-1]]
    return []


def _leaves(paths: list[list[loop.For]]) -> list[_Leaf]:
    return [_Leaf(path[-1].var, _extent(path), path[-1]) for path in paths]


def _seeks(leaves: list[_Leaf]) -> bool:
    """Rows are read for an extreme, and again for its place, only by the threads that met it."""
    if len(leaves) != 2:
        return False
    first, second = (leaf.original for leaf in leaves)
    found = extreme(first.var, first.body)
    return found is not None and sought(found, second.var, second.body) is not None


def _touches(n: object, buffer: str) -> bool:
    return isinstance(n, Load | Store) and n.buffer == buffer


def _loads(leaf: _Leaf) -> list[Load]:
    return [n for s in leaf.original.body for n in s.walk() if isinstance(n, Load)]


def _extent(path: list[loop.For]) -> int:
    """How often the innermost loop of a path runs."""
    out = 1
    for f in path:
        if not isinstance(f.extent, Const):
            return 1
        out *= int(f.extent.value)
    return out


def _rest(rows: list[loop.For], r: loop.For) -> int:
    """Iterations of a loop over rows with all those inside it."""
    return math.prod(int(x.extent.value) for x in rows[rows.index(r) :] if isinstance(x.extent, Const))


def _lanes(threads: int, vector: int) -> tuple[tuple[str, int], ...]:
    return (("threads", threads), *((("vector", vector),) if vector > 1 else ()))


def _idle(extent: int, vector: int, threads: int) -> bool:
    """Half as many neighbours for each thread would halve what the busiest has to do."""
    busiest, halved = (-(-extent // (n * threads)) * n for n in (vector, vector // 2))
    return 2 * halved <= busiest


def _power(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()
