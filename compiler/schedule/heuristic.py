"""A loop nest and a target in, a schedule out: a pure function, with the reason for each choice beside it."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.analysis import access
from compiler.analysis.nests import contiguous, paths_of, rows_of, used_as_value
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, product
from compiler.ir.index import extent_range
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.schedule import attention, contraction
from compiler.schedule import names as naming
from compiler.schedule.steps import Bind, Collapse, Fold, Schedule, Split, Step
from compiler.targets.target import Target

CHUNK = 16384  # elements of a flat loop that one core takes at a time: 64 KiB of f32, well above the cost of a handover
# Vectors of columns that go down the rows together: a sum of 512 x 4096 f32 takes 85 us by 8, 124 by 4 and 259 by 1,
# a softmax 705, 924 and 1620 us (Zen 5, AVX-512).
MOST_COLUMNS = 8
SHORT = 256  # iterations of a loop whose beginning and end cost as much as the vectors between them
# When a kernel moves more than this share of the last level of cache, little of what it stores would still be there
# when it is read: stores past the caches then make relu and add 1.2 to 1.5 times as fast, and before that slower.
PAST = 0.7
UNROLL_REDUCE = 4  # independent accumulators hide the latency of an add or max (4 cycles, two a cycle on current x86)


def choose(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """A schedule for `kernel`; `private` names the temporaries that no other kernel uses."""
    products = contraction.choose(kernel, target) or attention.choose(kernel, private, target)
    if products is not None:
        return products
    return plain(kernel, private, target)


def plain(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule:
    """A schedule that takes sums of products as it takes other sums."""
    plan = _Plan(kernel, set(private), target)
    for s in kernel.body:
        if isinstance(s, loop.For):
            plan.nest(s)
    return Schedule(tuple(plan.steps))


class _Plan:
    def __init__(self, kernel: Kernel, private: set[str], target: Target) -> None:
        self.kernel, self.private, self.target = kernel, private, target
        self.tensors: dict[str, Tensor] = {p.name: p for p in kernel.params}
        loads = [n for s in kernel.body for n in s.walk() if isinstance(n, Load)]
        loaded = {n.buffer for n in loads}
        written = sum(_bytes(p) for p in kernel.params if p.name in kernel.writes)
        # What data points into is read here and there, about as often as something is written.
        gathered = {n.buffer for n in loads if any(isinstance(x, Load) for i in n.index for x in i.walk())}
        self.moved = sum(
            min(_bytes(p), written) if p.name in gathered else _bytes(p)
            for p in kernel.params
            if p.name not in self.private
        )
        past = self.moved > PAST * target.l3
        self.past = {name for name in kernel.writes if name not in self.private | loaded} if past else set[str]()
        self.steps: list[Step] = []

    def nest(self, f: loop.For) -> None:
        """Rows are collapsed where addresses allow and spread over cores, what is inside over vector lanes."""
        rows, inside = rows_of(f)
        ranges: dict[str, Range] = {r.var: extent_range(r.extent) for r in rows}
        groups = self.collapse(rows, inside, ranges)
        paths = paths_of(inside)
        folded = [b for b in sorted(self.private) if rows and paths and _used_within(b, f, self.kernel)]
        last = groups[-1] if groups else None
        if last and (not paths or self.better_outside(last, inside, paths, ranges)):
            self.spread(groups[:-1])
            self.lanes_of_rows(last, alone=len(groups) == 1, body=inside, ranges=ranges, folded=folded)
            return
        self.steps += [Fold(b, groups[-1][0]) for b in folded]
        self.spread(groups)
        for n, path in enumerate(paths):
            known = ranges | {f.var: extent_range(f.extent) for f in path}
            self.lanes(self.merged(path, known), path[-1], known, first=n == 0)

    def collapse(
        self, rows: list[loop.For], inside: tuple[Stmt, ...], ranges: dict[str, Range]
    ) -> list[tuple[str, Expr, list[loop.For]]]:
        """Neighbouring parallel loops through which every address moves evenly become one."""
        groups: list[tuple[str, Expr, list[loop.For]]] = []
        for r in rows:
            if groups and self.even(groups[-1][2][-1], r, inside, ranges):
                name, extent, members = groups[-1]
                self.steps.append(Collapse(name, r.var, name + r.var))
                groups[-1] = (name + r.var, extent * r.extent, [*members, r])
            else:
                groups.append((r.var, r.extent, [r]))
        return groups

    def even(self, outer: loop.For, inner: loop.For, inside: tuple[Stmt, ...], ranges: dict[str, Range]) -> bool:
        if not isinstance(inner.extent, Const):
            return False
        i, j, n = Var(outer.var), Var(inner.var), int(inner.extent.value)
        inner_stride = access.strides(inside, j, self.tensors, ranges)
        outer_stride = access.strides(inside, i, self.tensors, ranges)
        if any(a is None or b is None or b != a * n for a, b in zip(inner_stride, outer_stride, strict=True)):
            return False
        return not used_as_value(inside, {i, j})

    def spread(self, groups: list[tuple[str, Expr, list[loop.For]]]) -> None:
        for name, _, _ in groups[:1]:
            self.steps.append(Bind(name, "blocks"))

    def merged(self, path: list[loop.For], ranges: dict[str, Range]) -> str:
        """The innermost loop of a path, made one with those around it through which every address moves evenly.

        Short ones are, which would end before vectors pay; sums stay sums of sums where they are long, for accuracy.
        """
        leaf = path[-1]
        name, extent = leaf.var, leaf.extent
        for outer, inner in zip(path[-2::-1], path[:0:-1], strict=True):
            alike = outer.kind == inner.kind != "scan" and outer.body == (inner,)
            both = outer.extent * extent
            short = isinstance(both, Const) and isinstance(extent, Const) and extent.value < SHORT > both.value // SHORT
            if not alike or not short or not self.even(outer, inner, leaf.body, ranges):
                break
            self.steps.append(Collapse(outer.var, name, outer.var + name))
            name, extent = outer.var + name, both
        return name

    def lanes(self, name: str, leaf: loop.For, ranges: dict[str, Range], first: bool) -> None:
        """Iterations of a loop, called `name` by now, in the lanes of vectors."""
        if leaf.kind == "scan" or access.not_vectorizable(leaf.body, Var(leaf.var), self.tensors, ranges):
            return
        width = self.target.lanes(access.widest(leaf.body, {leaf.var}))
        if width > 1:
            sums = leaf.kind == "reduce"
            args = [("width", width), ("unroll", UNROLL_REDUCE if sums else 1), *self.bypass(leaf.body)]
            args += [("ahead", 1)] if sums and first and self.moved > self.target.l2 else []
            self.steps.append(Bind(name, "vector", tuple(args)))

    def lanes_of_rows(self, row: tuple[str, Expr, list[loop.For]], alone: bool, body: tuple[Stmt, ...],
                      ranges: dict[str, Range], folded: list[str]) -> None:  # fmt: skip
        """The rows themselves are the lanes, cut into chunks for the cores or for temporaries that stay in cache."""
        name, extent, members = row
        width = self.target.lanes(access.widest(body, {m.var for m in members}))
        can = width > 1 and not access.not_vectorizable(body, Var(members[-1].var), self.tensors, ranges)
        columns = _columns(body, extent, width) if can else 1
        while columns > 1 and self.bytes_of(folded, extent) * columns * width > self.target.l2:
            columns //= 2
        step = columns * width
        chunk = step if folded else -(-CHUNK // _work(body) // step) * step
        if folded or (alone and isinstance(extent, Const) and int(extent.value) >= 2 * chunk):
            outer, inner = naming.pieces(name)
            self.steps.append(Split(name, chunk, (outer, inner)))
            self.steps += [Fold(b, outer) for b in folded]
            self.steps += [Bind(outer, "blocks")] if alone else []
            name = inner
        elif alone and not can:
            self.steps.append(Bind(name, "blocks"))
        if can:
            self.steps.append(Bind(name, "vector", (("width", width), ("unroll", columns), *self.bypass(body))))

    def bypass(self, body: tuple[Stmt, ...]) -> tuple[tuple[str, int], ...]:
        """Whether what is stored goes past the caches, as an argument of the vector loop."""
        stored = {n.buffer for s in body for n in s.walk() if isinstance(n, Store)}
        return (("past", 1),) if stored & self.past else ()

    def bytes_of(self, buffers: list[str], rows: Expr) -> int:
        """Bytes that the buffers hold for one of so many rows, as far as that is known."""
        return sum(_bytes(self.tensors[b]) for b in buffers) // int(rows.value) if isinstance(rows, Const) else 0

    def better_outside(self, row: tuple[str, Expr, list[loop.For]], inside: tuple[Stmt, ...],
                       paths: list[list[loop.For]], ranges: dict[str, Range]) -> bool:  # fmt: skip
        """Memory is contiguous along the rows rather than along the loops inside (as in a softmax over channels)."""
        known = ranges | {f.var: extent_range(f.extent) for path in paths for f in path}
        var, leaves = Var(row[2][-1].var), [path[-1] for path in paths]
        if access.not_vectorizable(inside, var, self.tensors, known):
            return False
        across = contiguous(access.strides(inside, var, self.tensors, known))
        along = sum(contiguous(access.strides(f.body, Var(f.var), self.tensors, known)) for f in leaves) / len(leaves)
        return across > along


def _columns(body: tuple[Stmt, ...], extent: Expr, width: int) -> int:
    """How many vectors of columns run down the rows together: they share cache lines, but must fit the registers."""
    most = MOST_COLUMNS if any(isinstance(s, loop.For) for s in body) else 1
    while most > 1 and isinstance(extent, Const) and int(extent.value) < most * width:
        most //= 2
    return most


def _bytes(t: Tensor) -> int:
    """The size of a tensor, 0 where that is not known."""
    elements = product(t.shape)
    return int(elements.value) * t.dtype.bytes if isinstance(elements, Const) else 0


def _work(body: tuple[Stmt, ...]) -> int:
    """How often the innermost statements run, as far as that is known."""
    loops = [s for s in body if isinstance(s, loop.For)]
    often = [int(f.extent.value) if isinstance(f.extent, Const) else 1 for f in loops]
    return max(1, sum(n * _work(f.body) for n, f in zip(often, loops, strict=True)))


def _used_within(buffer: str, f: loop.For, kernel: Kernel) -> bool:
    def count(node: Iterable[Stmt]) -> int:
        return sum(isinstance(n, Load | Store) and n.buffer == buffer for s in node for n in s.walk())

    return count([f]) == count(kernel.body) > 0
