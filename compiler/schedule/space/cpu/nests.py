"""A loop nest of a kernel for a CPU: its row loops, grouped and in memory order, and what is known of its memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from compiler.analysis import access
from compiler.analysis.loop_invariants import fixed
from compiler.analysis.nests import (
    as_stored,
    contiguous,
    even,
    iterations,
    loop_ranges,
    paths_of,
    perfect,
    rows_of,
    wrap,
)
from compiler.analysis.vectors import NARROWEST
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, product
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.schedule.steps import Collapse, Hoist, Reorder, Step
from compiler.targets.target import Target


@dataclass(frozen=True)
class Memory:
    """The buffers of a kernel: its `private` temporaries, those `results` that it writes but does not read, and the
    bytes that it `moved` to and from memory."""

    kernel: Kernel
    private: frozenset[str]
    target: Target
    tensors: dict[str, Tensor]
    moved: int
    results: frozenset[str]

    def stored_at(self, f: loop.For) -> list[str]:
        """Private temporaries that only the nest `f` uses."""
        return [b for b in sorted(self.private) if _used_within(b, f, self.kernel)]

    def stored(self, body: tuple[Stmt, ...]) -> int:
        """The number of stores to buffers that the kernel does not read; these may bypass the caches."""
        return sum(isinstance(n, Store) and n.buffer in self.results for s in body for n in s.walk())

    def row_bytes(self, buffers: list[str], rows: Expr) -> int:
        """Bytes per row that the buffers hold, for this number of rows; 0 if unknown."""
        held = sum(_bytes(self.tensors[b]) for b in buffers)
        return held // int(rows.value) if held and isinstance(rows, Const) else 0


def memory(kernel: Kernel, private: Iterable[str], target: Target) -> Memory:
    own = frozenset(private)
    loads = [n for s in kernel.body for n in s.walk() if isinstance(n, Load)]
    written = sum(_bytes(p) for p in kernel.params if p.name in kernel.writes)
    # Buffers that only data index are read at scattered places, about as often as something is written.
    indirect = {n for n in loads if any(isinstance(x, Load) for i in n.index for x in i.walk())}
    gathered = {n.buffer for n in indirect} - {n.buffer for n in {*loads} - indirect}
    moved = sum(
        min(_bytes(p), written) if p.name in gathered else _bytes(p) for p in kernel.params if p.name not in own
    )
    results = frozenset(kernel.writes) - own - {n.buffer for n in loads}
    return Memory(kernel, own, target, {p.name: p for p in kernel.params}, moved, results)


@dataclass(frozen=True)
class Group:
    """Row loops that collapse into one: its name, its extent, and the original loops."""

    name: str
    extent: Expr
    loops: tuple[loop.For, ...]


@dataclass(frozen=True)
class Nest:
    """Row `groups` around the body `inside`, with inner loops along `paths`; `collapsed` are the groups' steps."""

    memory: Memory
    inside: tuple[Stmt, ...]
    ranges: dict[str, Range]
    groups: tuple[Group, ...]
    collapsed: tuple[Step, ...]
    paths: tuple[tuple[loop.For, ...], ...]
    stored_at: tuple[str, ...]

    @property
    def last(self) -> loop.For:
        """The innermost loop over rows."""
        return self.groups[-1].loops[-1]

    @property
    def count(self) -> int:
        """The number of rows, as far as known."""
        out = 1
        for g in self.groups:
            out *= int(g.extent.value) if isinstance(g.extent, Const) else 1
        return out

    def known(self, path: Iterable[loop.For]) -> dict[str, Range]:
        """The ranges of the row variables and of the loops of `path`."""
        return self.ranges | loop_ranges(path)

    @functools.cached_property
    def lanes(self) -> int:
        """Lanes of a vector of the widest type that differs from row to row."""
        return self.memory.target.lanes(access.widest(self.inside, {f.var for f in self.groups[-1].loops}))

    @functools.cached_property
    def hoisted(self) -> tuple[Hoist, ...]:
        """Steps that hoist what is the same for all iterations of a row group, from the innermost group outwards."""
        body, steps = self.inside, list[Hoist]()
        for g in self.groups[:0:-1]:
            body = fixed(body, {f.var for f in g.loops})
            if not body or not isinstance(g.extent, Const):
                break
            steps.append(Hoist(g.name))
        return tuple(steps)

    @functools.cached_property
    def work(self) -> int:
        """How often the innermost statements of a row run."""
        return work(self.inside)

    @functools.cached_property
    def accesses(self) -> int:
        """The number of loads and stores."""
        return touched(self.inside)

    @functools.cached_property
    def stores(self) -> int:
        """The number of stores that may bypass the caches."""
        return self.memory.stored(self.inside)

    @functools.cached_property
    def rows_as_lanes(self) -> bool:
        """Whether rows themselves can be the lanes of vectors."""
        known = self.known(f for path in self.paths for f in path)
        return not access.not_vectorizable(self.inside, Var(self.last.var), self.memory.tensors, known)

    def across(self) -> float:
        """The share of accesses that are contiguous from row to row."""
        known = self.known(f for path in self.paths for f in path)
        return contiguous(access.strides(self.inside, Var(self.last.var), self.memory.tensors, known, named=True))


def nest(memory: Memory, f: loop.For) -> Nest:
    """The nest whose outermost loop is `f`."""
    rows, inside = rows_of(f)
    ranges = loop_ranges(rows)
    groups: list[Group] = []
    steps: list[Step] = []
    order = as_stored(rows, inside, memory.tensors, ranges)
    if order != rows:
        steps.append(Reorder(tuple(r.var for r in order)))
    for r in order:
        if groups and even(groups[-1].loops[-1], r, inside, memory.tensors, ranges):
            outer = groups[-1]
            steps.append(Collapse(outer.name, r.var, outer.name + r.var))
            groups[-1] = Group(outer.name + r.var, outer.extent * r.extent, (*outer.loops, r))
        else:
            groups.append(Group(r.var, r.extent, (r,)))
    inside, turned = _as_loaded(inside, memory.tensors, ranges)
    steps += turned
    paths = tuple(map(tuple, paths_of(inside)))
    stored_at = tuple(memory.stored_at(f)) if rows and paths else ()
    return Nest(memory, inside, ranges, tuple(groups), tuple(steps), paths, stored_at)


def _as_loaded(
    inside: tuple[Stmt, ...], tensors: dict[str, Tensor], ranges: dict[str, Range]
) -> tuple[tuple[Stmt, ...], list[Step]]:
    """The body with nested sums reordered so that the innermost loop is contiguous, if it fills whole vectors."""
    out: list[Stmt] = []
    steps: list[Step] = []
    for s in inside:
        chain, body = perfect(loop.For, (s,), ("reduce",))
        order = _neighbours_last(chain, body, tensors, ranges)
        if order != chain:
            steps.append(Reorder(tuple(f.var for f in order)))
        out += wrap(order, body)
    return tuple(out), steps


def _neighbours_last(
    chain: list[loop.For], body: tuple[Stmt, ...], tensors: dict[str, Tensor], ranges: dict[str, Range]
) -> list[loop.For]:
    plain = all(isinstance(f.extent, Const) for f in chain) and not any(isinstance(s, loop.For) for s in body)
    if len(chain) < 2 or not plain:
        return chain
    known = ranges | loop_ranges(chain)
    shares = [contiguous(access.strides(body, Var(f.var), tensors, known)) for f in chain]
    best = shares.index(max(shares))
    if shares[best] == shares[-1] or iterations(chain[best]) % NARROWEST:
        return chain
    return [*chain[:best], *chain[best + 1 :], chain[best]]


def work(body: tuple[Stmt, ...]) -> int:
    """How often the innermost statements run, as far as known."""
    return max(1, sum(iterations(f) * work(f.body) for f in body if isinstance(f, loop.For)))


def touched(body: tuple[Stmt, ...]) -> int:
    """The number of loads and stores of a body, at least 1."""
    return max(1, sum(isinstance(n, Load | Store) for s in body for n in s.walk()))


def _bytes(t: Tensor) -> int:
    """The size of a tensor in bytes, 0 if unknown."""
    elements = product(t.shape)
    return int(elements.value) * t.dtype.bytes if isinstance(elements, Const) else 0


def _used_within(buffer: str, f: loop.For, kernel: Kernel) -> bool:
    def count(node: Iterable[Stmt]) -> int:
        return sum(isinstance(n, Load | Store) and n.buffer == buffer for s in node for n in s.walk())

    return count([f]) == count(kernel.body) > 0
