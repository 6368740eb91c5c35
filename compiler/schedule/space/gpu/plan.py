"""What planners of GPU kernels without matmuls know about a kernel's buffers and loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compiler.analysis import access
from compiler.analysis.nests import iterations, loop_ranges, paths_of, rows_of, sides, size
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, dim, product
from compiler.ir.multiples import divides
from compiler.ir.statement import Kernel, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import extent_range, value_range
from compiler.schedule import names as naming
from compiler.schedule.steps import Collapse, Step, StoreAt
from compiler.targets.target import Target

WARP = 32
THREADS = 256  # a multiple of the four schedulers' warps, and small enough for eight blocks per multiprocessor
MOST_THREADS = 1024
WIDEST = 16  # bytes per load or store instruction
MAX_VECTOR = 8  # adjacent elements per thread: more make code longer and nothing faster
PRIVATE_ELEMENTS = 64  # elements of a temporary that a thread keeps to itself


@dataclass(frozen=True)
class Leaf:
    """An innermost loop: its name and extent after merging with loops perfectly around it, and the original loop."""

    name: str
    extent: int
    original: loop.For


@dataclass(frozen=True)
class Plan:
    """A kernel, the temporaries that no other kernel uses, its target, and its buffers by name."""

    kernel: Kernel
    private: frozenset[str]
    target: Target
    tensors: dict[str, Tensor]

    def private_steps(self, row: str) -> list[Step]:
        """Steps that make small temporaries of a row private to a thread."""
        count = iterations(*(n for f in self.kernel.body if isinstance(f, loop.For) for n in rows_of(f)[0]))
        steps: list[Step] = []
        for b in sorted(self.private):
            size = product(self.tensors[b].shape)
            if isinstance(size, Const) and int(size.value) <= PRIVATE_ELEMENTS * count and len(self.kernel.body) == 1:
                steps.append(StoreAt(b, row))
        return steps

    def vector_width(self, last: loop.For, body: tuple[Stmt, ...], run: int = 0) -> int:
        """Adjacent elements per thread (vector width): as many as the widest access has for most buffers, and a divisor
        of the last loop's extent, or of `run` if several loops are contiguous together."""
        widest = self._widest_vector(b for b, _, _ in access.accesses(body))
        while widest > 1 and (run or size(last)) % widest:
            widest //= 2
        return max(1, widest)

    def _widest_vector(self, accessed: Iterable[str]) -> int:
        sizes = [self.tensors[b].dtype.bytes for b in accessed if b in self.tensors and b not in self.private]
        return min(MAX_VECTOR, WIDEST // max(1, sorted(sizes)[len(sizes) // 2] if sizes else 4))

    def aligned_vector_width(self, leaf: loop.For) -> int:
        """Like `vector_width` for a loop of any length whose first element is aligned to the vector in every buffer."""
        var, body = Var(leaf.var), leaf.body
        loops = within(self.kernel.body, loop.For)
        ranges = loop_ranges(loops)
        accesses = [(b, i) for b, i, _ in access.accesses(body) if b in self.tensors]
        places = [(b, access.address(i, self.tensors[b], ranges)) for b, i in accesses]
        moving = [(b, place) for b, place in places if access.stride(place, var) != 0]
        if not moving:
            return MAX_VECTOR
        widest = self._widest_vector(b for b, _ in moving) if all(access.stride(x, var) == 1 for _, x in moving) else 1
        while widest > 1 and not all(divides(place - var, widest) for _, place in moving):
            widest //= 2
        return max(1, widest)

    def is_contiguous_across(self, rows: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]]) -> bool:
        """Whether memory is contiguous along the rows rather than along the loops inside."""
        ranges = loop_ranges(rows)
        ranges |= loop_ranges(f for path in paths for f in path)
        across, along = sides(inside, Var(rows[-1].var), self.tensors, ranges)
        return across > along

    def reread_buffers(self, leaves: list[Leaf]) -> list[str]:
        """Buffers of which several loops read the whole row, each iteration its own element."""
        readers = {b: sum(any(n.buffer == b for n in _loads(leaf)) for leaf in leaves) for b in self.tensors}
        reread = [b for b, n in readers.items() if n > 1 and b not in self.kernel.writes]
        return [b for b in reread if self.is_indexed_by_loop(b, leaves) and self.reads_whole_row(b, leaves)]

    def is_indexed_by_loop(self, buffer: str, leaves: list[Leaf]) -> bool:
        """Whether the only index of a buffer that moves inside a row is always the loop's own variable."""
        inside = [(n, leaf) for leaf in leaves for s in leaf.original.body for n in s.walk() if _touches(n, buffer)]
        accesses = [n for s in self.kernel.body for n in s.walk() if _touches(n, buffer) and not access.picked(n)]
        if len(inside) != len(accesses):
            return False
        for n, leaf in inside:
            index = n.index
            moved = [i for i in index if Var(leaf.original.var) in set(i.walk())]
            if leaf.name != leaf.original.var or moved != [Var(leaf.original.var)]:
                return False
            if any(
                Var(other.var) in set(i.walk()) for i in index for other in _loops_between(self.kernel, leaf.original)
            ):
                return False
        return True

    def reads_whole_row(self, buffer: str, leaves: list[Leaf]) -> bool:
        """Whether the loops read exactly one row of the buffer, always in bounds, so that all of it may be read."""
        along = {Var(x.original.var) for x in leaves}
        loads = [n for leaf in leaves for n in _loads(leaf) if n.buffer == buffer]
        rows = {tuple(None if i in along else i for i in n.index) for n in loads}
        places = [(e, i) for row in rows for e, i in zip(self.tensors[buffer].shape, row, strict=True)]
        if len(rows) != 1 or [e for e, i in places if i is None] != [dim(leaves[0].extent)]:
            return False
        loops = {Var(f.var): f.extent for f in within(self.kernel.body, loop.For)}
        return all(_is_in_bounds(i, e, loops) for e, i in places if i is not None)


def _is_in_bounds(index: Expr, extent: Expr, loops: Mapping[Var, Expr]) -> bool:
    """Whether an index is certainly in bounds, whatever guards its load: a loop of the same extent, or in range."""
    if isinstance(index, Var) and loops.get(index) is extent:
        return True
    if not {n for n in index.walk() if isinstance(n, Var)} <= loops.keys():
        return False  # a name bound within the row: the start of the row is unknown before it
    low, high = value_range(index, {v.name: extent_range(n) for v, n in loops.items()})
    if low is None or low < 0 or high is None:
        return False
    return high < (extent.value if isinstance(extent, Const) else 1)


def _loops_between(kernel: Kernel, leaf: loop.For) -> list[loop.For]:
    """The loops between the rows of a kernel and one of its innermost loops."""
    for s in kernel.body:
        if isinstance(s, loop.For) and leaf in set(s.walk()):
            _, inside = rows_of(s)
            return [g for path in paths_of(inside) if path[-1] is leaf for g in path[:-1]]
    return []


def _touches(n: object, buffer: str) -> bool:
    return isinstance(n, Load | Store) and n.buffer == buffer


def _loads(leaf: Leaf) -> list[Load]:
    return [n for s in leaf.original.body for n in s.walk() if isinstance(n, Load)]


def collapse_rows(rows: list[loop.For]) -> tuple[str, list[Step]]:
    """All loops over rows collapsed into one: its name and the steps."""
    steps: list[Step] = []
    return naming.collapse([r.var for r in rows], steps), steps


def collapse_leaf(path: list[loop.For]) -> tuple[Leaf, list[Step]]:
    """The innermost loop of `path` collapsed with loops of its kind perfectly around it, and the steps."""
    steps: list[Step] = []
    leaf = path[-1]
    name, extent = leaf.var, size(leaf)
    for outer, inner in zip(path[-2::-1], path[:0:-1], strict=True):
        if outer.kind != inner.kind or outer.body != (inner,) or not isinstance(outer.extent, Const):
            break
        steps.append(Collapse(outer.var, name, outer.var + name))
        name, extent = outer.var + name, size(outer) * extent
    return Leaf(name, extent, leaf), steps


def lanes(threads: int, vector: int) -> tuple[tuple[str, int], ...]:
    return (("threads", threads), *((("vector", vector),) if vector > 1 else ()))
