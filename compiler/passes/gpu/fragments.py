"""Tiles in registers of which every thread holds a part: where a thread's registers lie in a tile.

Tensor instructions say how their operands lie over the threads of a warp (or four); a tile of several instructions
repeats that, and warps of a block divide it among them as a grid. Tiles that loops use together with those lie alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Expr, Load, Var, const, loads, static
from compiler.ir.index import Ranges, simplify
from compiler.ir.statement import Kernel, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.passes.gpu.labels import Labels, neighbouring, relabelled
from compiler.targets.layout import Digits, Layout
from compiler.targets.target import Instruction, Target, instruction

WARP = 32


@dataclass(frozen=True)
class Digit:
    """A digit of a mixed-radix number, and how far one step of it goes in the tile."""

    extent: int
    row: int
    column: int


@dataclass(frozen=True)
class Fragment:
    """A tile of `shape`: places of a thread's registers are sums of steps over the digits of both numbers.

    The threads are those of the whole block, fastest digit first; digits without a step mean that threads hold the
    same. An instruction takes `unit` registers, and the next one along an axis of `strides` begins so many after them.
    """

    shape: tuple[int, int]
    threads: tuple[Digit, ...]
    registers: tuple[Digit, ...]
    unit: int = 1
    strides: tuple[tuple[str, int], ...] = ()

    @property
    def count(self) -> int:
        """Registers, in elements, that each thread holds."""
        return math.prod(d.extent for d in self.registers)

    def stride(self, axis: str) -> int:
        return dict(self.strides).get(axis, 0)


def rows_of(fragment: Fragment) -> Fragment:
    """One value for each row of a tile, which all threads with a part of that row hold."""
    return Fragment(
        (fragment.shape[0], 1),
        tuple(Digit(d.extent, d.row, 0) for d in fragment.threads),
        tuple(d for d in fragment.registers if d.row),
    )


def columns_of(fragment: Fragment) -> Fragment:
    """One value for each column."""
    return Fragment(
        (1, fragment.shape[1]),
        tuple(Digit(d.extent, 0, d.column) for d in fragment.threads),
        tuple(d for d in fragment.registers if d.column),
    )


def place(fragment: Fragment, lane: Expr, warp: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    """Row and column at which a thread's part begins."""
    row: Expr = const(0)
    column: Expr = const(0)
    before = 1
    for d in fragment.threads:
        number, weight = (lane, before) if before < WARP else (warp, before // WARP)
        digit = simplify(number // weight % d.extent, ranges, index=True)
        row, column = row + digit * d.row, column + digit * d.column
        before *= d.extent
    return simplify(row, ranges, index=True), simplify(column, ranges, index=True)


def register(fragment: Fragment, row: Expr, column: Expr, ranges: Ranges) -> Expr:
    """The register at a distance from the beginning of a thread's part, which must be one that its registers reach."""
    out: Expr = const(0)
    weight = 1
    for d in fragment.registers:
        at, step = (row, d.row) if d.row else (column, d.column)
        out = out + at // step % d.extent * weight
        weight *= d.extent
    return simplify(out, ranges, index=True)


# ---- from instructions


@dataclass(frozen=True)
class Grid:
    """How groups of threads, as many as an instruction needs, divide an accumulator: down m first, then along n."""

    m: int
    n: int


@dataclass(frozen=True)
class Division:
    """How an accumulator is divided: the grid of groups, and the labels of rows and columns."""

    grid: Grid
    m: Labels
    n: Labels


def operand(layout: Layout, axes: tuple[str, str], lengths: dict[str, int], division: Division, order: str) -> Fragment:
    """The fragment of a tile with these axes; `layout` is that of one instruction, with rows and columns `order`.

    Instructions follow each other along the columns of an accumulator and of a left operand, then down the rows; along
    n of a right operand, then along k.
    """
    labels = {"m": division.m, "n": division.n, "k": Labels()}

    def along(axis: str, extent: int, step: int) -> list[Digit]:
        steps = relabelled(extent, step, labels[axis])
        return [Digit(e, by, 0) if axes[0] == axis else Digit(e, 0, by) for e, by in steps]

    def digits(given: Digits) -> list[Digit]:
        made: list[Digit] = []
        for extent, stride in given:
            row, column = divmod(stride, layout.shape[1])
            made += along(order[0], extent, row) if row else along(order[1], extent, column)
        return made

    unit = dict(zip(order, layout.shape, strict=True))
    parts = {"m": division.grid.m, "n": division.grid.n, "k": 1}
    threads = digits(layout.threads)
    for x in "mn":
        if parts[x] > 1:
            step = lengths.get(x, 0) // parts[x]
            held = Digit(parts[x], step, 0) if axes[0] == x else Digit(parts[x], 0, step)
            threads.append(held if x in axes else Digit(parts[x], 0, 0))
    registers = digits(layout.registers)
    size = weight = math.prod(d.extent for d in registers)
    strides = []
    for x in "nk" if order == "kn" else reversed(order):
        count = lengths[x] // parts[x] // unit[x]
        strides.append((x, weight))
        if count > 1:
            registers += along(x, count, unit[x])
            weight *= count
    shape = (lengths[axes[0]], lengths[axes[1]])
    return Fragment(shape, tuple(threads), tuple(registers), size, tuple(strides))


def choose_grid(kernel: Kernel, target: Target, threads: int) -> Grid:
    """The grid of groups that reads least of shared memory; raises ValueError where none divides all accumulators."""
    products = [(s, instruction(target, s.instruction)) for s in _products(kernel)]
    if not products:
        return Grid(1, 1)
    groups = threads // max(row.threads for _, row in products)
    whole_rows = any(f.kind == "reduce" for nest in nests(kernel) for f in nest.inner)
    best: tuple[int, Grid] | None = None
    for m in (g for g in range(1, groups + 1) if groups % g == 0):
        grid = Grid(m, groups // m)
        if whole_rows and grid.n > 1:
            continue
        lengths = [tile.lengths(s) for s, _ in products]
        if any(long["m"] % (m * row.m) or long["n"] % (grid.n * row.n)
               for long, (_, row) in zip(lengths, products, strict=True)):  # fmt: skip
            continue
        cost = sum(long["m"] * grid.n + long["n"] * grid.m for long in lengths)
        if best is None or cost < best[0]:
            best = cost, grid
    if best is None:
        rows = ", ".join(sorted({row.name for _, row in products}))
        raise ValueError(f"kernel {kernel.name}: {threads} threads cannot divide its accumulators among {rows}")
    return best[1]


def divide(kernel: Kernel, target: Target, grid: Grid) -> Division:
    """The grid with labels: new ones where an operand of 32 bits comes from memory in which m or n is innermost."""
    products = list(_products(kernel))
    if len({s.acc.buffer for s in products}) != 1:
        return Division(grid, Labels(), Labels())
    loaded = {n.target.buffer: n for s in kernel.body for n in s.walk() if isinstance(n, tile.Copy)}
    sources = _sources(kernel, loaded)
    labels = {}
    for s in products:
        row = instruction(target, s.instruction)
        long = tile.lengths(s)
        for x, held, operand_slice in (("m", s.layout[0], s.a), ("n", s.layout[1], s.b)):
            space = row.a_space if x == "m" else row.b_space
            parts, unit = (grid.m, row.m) if x == "m" else (grid.n, row.n)
            if space == "registers" and held[-1] == x and row.a_type == "f32" and operand_slice.buffer in sources:
                labels[x] = neighbouring(long[x] // parts, unit, unit * WARP // row.threads)
    return Division(grid, labels.get("m", Labels()), labels.get("n", Labels()))


def _sources(kernel: Kernel, loaded: dict[str, tile.Copy]) -> set[str]:
    """Tiles that copies fill, and those that loops compute from them."""
    out = set(loaded)
    more = True
    while more:
        before = len(out)
        for s in kernel.body:
            for n in s.walk():
                if isinstance(n, Store) and any(x.buffer in out for x in loads(n.value)):
                    out.add(n.buffer)
        more = len(out) > before
    return out


def infer(kernel: Kernel, target: Target, division: Division) -> dict[str, Fragment]:
    """The fragments of all tiles in registers that tensor instructions use, and of those used beside them."""
    products = list(_products(kernel))
    tiles = {n.tensor.name: n for s in kernel.body for n in s.walk() if isinstance(n, tile.Alloc)}
    found: dict[str, Fragment] = {}
    for s in products:
        row = instruction(target, s.instruction)
        for operand_slice, axes, layout, order in _operands(s, row):
            alloc = tiles.get(operand_slice.buffer)
            if layout is None or alloc is None or alloc.space != "registers":
                continue
            extents = dict(zip(axes, (static(n) for n in alloc.tensor.shape), strict=True))
            made = operand(layout, (axes[0], axes[1]), extents, division, order)
            if found.setdefault(alloc.tensor.name, made) != made:
                raise ValueError(
                    f"kernel {kernel.name}: {alloc.tensor.name} is an operand of two kinds of tensor instruction"
                )
    tensors = {name: a.tensor for name, a in tiles.items() if a.space == "registers"}
    while _spread(kernel, tensors, found):
        pass
    return found


def _products(kernel: Kernel) -> Iterator[tile.Mma]:
    return (n for s in kernel.body for n in s.walk() if isinstance(n, tile.Mma))


def _operands(s: tile.Mma, row: Instruction) -> list[tuple[tile.Slice, str, Layout | None, str]]:
    acc, a, b = tile.letters(s)
    return [(s.acc, acc, row.acc_layout, "mn"), (s.a, a, row.a_layout, "mk"), (s.b, b, row.b_layout, "kn")]


# ---- loops over fragments


@dataclass(frozen=True)
class Nest:
    """A loop over the rows of tiles, spread over threads, and the loops over their columns inside."""

    outer: tile.For
    inner: tuple[tile.For, ...]


def nests(kernel: Kernel) -> list[Nest]:
    """All loops over lanes that no other loop over lanes is around."""
    out: list[Nest] = []

    def go(s: Stmt) -> None:
        if isinstance(s, tile.For) and s.bind.level == "lanes":
            below = [n for b in s.body for n in b.walk()]
            out.append(Nest(s, tuple(n for n in below if isinstance(n, tile.For) and n.bind.level == "lanes")))
            return
        for c in s.children():
            if isinstance(c, Stmt):
                go(c)

    for s in kernel.body:
        go(s)
    return out


def used(nest: Nest, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Expr, ...]]:
    """Tiles that a nest touches, each with one of its indices."""
    return {n.buffer: n.index for n in nest.outer.walk() if isinstance(n, Load | Store) and n.buffer in tensors}


def of_nest(nest: Nest, tensors: Mapping[str, Tensor], found: Mapping[str, Fragment]) -> Fragment | None:
    """How a nest goes over the registers: as its accumulator lies, or another of its tiles."""
    touched = used(nest, tensors)
    known = [found[name] for name in touched if name in found]
    whole = [x for x in known if 1 not in x.shape] or known
    return max(whole, key=lambda x: (math.prod(x.shape), x.count), default=None)


def _spread(kernel: Kernel, tensors: dict[str, Tensor], found: dict[str, Fragment]) -> bool:
    """Fragments of tiles that share a nest with known ones; whether any was new."""
    before = len(found)
    for nest in nests(kernel):
        fragment = of_nest(nest, tensors, found)
        if fragment is None:
            continue
        rows = Var(nest.outer.var)
        for name, index in used(nest, tensors).items():
            if name in found:
                continue
            if len(index) == 2:
                if fragment.shape == tuple(static(n) for n in tensors[name].shape):
                    found[name] = fragment
            elif index == (rows,):
                found[name] = rows_of(fragment)
            elif len(index) == 1:
                found[name] = columns_of(fragment)
    return len(found) > before
