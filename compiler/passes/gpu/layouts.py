"""Give every tile in registers and shared memory a layout.

Tensor instructions define how their operands are distributed over the threads of a warp (or four). A tile of several
instructions repeats that, and groups of warps divide it among them as a grid. Tiles that loops use together with those
get the same distribution. Any other tile in registers is distributed by the first loop over threads that uses it. A
tile that a pipeline copies ahead has a slot for each stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Var, loads, static
from compiler.ir.launches import block_size, is_bound
from compiler.ir.layout import Digit, Fragment, ThreadMap
from compiler.ir.roles import Role
from compiler.ir.statement import If, Kernel, Program, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import stages
from compiler.passes.gpu.fragments import WARP, columns_of, fragment_of_nest, nests, rows_of, tiles_used
from compiler.passes.gpu.row_order import RowOrder, neighbour_order, reordered
from compiler.targets.layout import Digits, Layout
from compiler.targets.target import Instruction, Target, instruction


def layouts(program: Program, target: Target) -> Program:
    """Choose layouts. Raises ValueError if the threads of a block cannot divide an accumulator."""
    return program.replace(kernels=tuple(_set_layouts(kernel, target) for kernel in program.kernels))


def _set_layouts(kernel: Kernel, target: Target) -> Kernel:
    return kernel.replace(body=_Choice(kernel, target).body(kernel.body, block_size(kernel.body)))


class _Choice:
    """The choices for one launch: the grid that divides accumulators, fragments, and the slots of pipelines."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.grid = _common_grid(kernel)
        self.fragments = infer_fragments(kernel, target, divide(kernel, target, self.grid))
        pipes = (n for n in within(kernel.body) if is_bound(n, "pipeline"))
        self.slots = {name: n for f in pipes for name, n in stages.slot_counts(f, kernel.name).items()}

    def body(self, body: tuple[Stmt, ...], threads: int) -> tuple[Stmt, ...]:
        """The body with layouts set. `threads` share the next loop over lanes, 0 inside of one."""
        out: list[Stmt] = []
        for n, s in enumerate(body):
            match s:
                case tile.Alloc(tensor, "registers") if tensor.name in self.fragments:
                    out.append(s.replace(layout=self.fragments[tensor.name]))
                case tile.Alloc(tensor, "registers") if threads:
                    out.append(s.replace(layout=_thread_map_of_first_use(tensor.name, body[n + 1 :], threads)))
                case tile.Alloc(tensor, "shared") if tensor.name in self.slots:
                    out.append(s.replace(slots=self.slots[tensor.name]))
                case tile.For(bind=tile.Bind(level), body=inner):
                    here = {"warps": WARP, "columns": threads // WARP, "lanes": 0}.get(level, threads)
                    out.append(s.replace(body=self.body(inner, here)))
                case If(body=inner) | tile.Stage(body=inner) | Role(body=inner):
                    out.append(s.replace(body=self.body(inner, threads)))
                case _:
                    out.append(s)
        return tuple(out)


def _thread_map_of_first_use(name: str, after: tuple[Stmt, ...], threads: int) -> ThreadMap | None:
    """The distribution of a tile by the first loop over threads that uses it; None if there is none."""
    for n in within(after):
        if is_bound(n, "lanes") and name in tile.buffers((n,)):
            given = dict(n.bind.args)
            return ThreadMap(n.extent, given.get("threads", threads), given.get("vector", 1))
    return None


# ---- tiles of tensor instructions


@dataclass(frozen=True)
class Grid:
    """How groups of threads, each as large as an instruction needs, divide an accumulator: along m first, then n."""

    m: int
    n: int


@dataclass(frozen=True)
class Division:
    """How an accumulator is divided: the grid of groups, and the order of rows and columns."""

    grid: Grid
    m: RowOrder
    n: RowOrder


def operand_fragment(
    layout: Layout, axes: tuple[str, str], lengths: dict[str, int], division: Division, order: str
) -> Fragment:
    """The fragment of a tile with these axes; `layout` is that of one instruction, with rows and columns `order`.

    Instructions follow each other along the columns of an accumulator or left operand, then down the rows; in a right
    operand along n, then along k.
    """
    orders = {"m": division.m, "n": division.n, "k": RowOrder()}

    def along(axis: str, extent: int, step: int) -> list[Digit]:
        steps = reordered(extent, step, orders[axis])
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


def _common_grid(kernel: Kernel) -> Grid:
    """The grid common to all matmuls of a launch. Raises ValueError if one has none or another."""
    grids = {s.grid for s in _matmuls(kernel)} or {(1, 1)}
    if len(grids) > 1 or () in grids:
        raise ValueError(f"kernel {kernel.name}: no one grid says how threads share its accumulators: {grids}")
    return Grid(*grids.pop())


def divide(kernel: Kernel, target: Target, grid: Grid) -> Division:
    """The grid, with the orders that give registers neighbours along the axes that matmuls ask for."""
    orders = {}
    for s in _matmuls(kernel):
        row, long = instruction(target, s.instruction), tile.lengths(s)
        for x, parts, unit in (("m", grid.m, row.m), ("n", grid.n, row.n)):
            if x in s.neighbours:
                orders[x] = neighbour_order(long[x] // parts, unit, unit * WARP // row.threads)
    return Division(grid, orders.get("m", RowOrder()), orders.get("n", RowOrder()))


def axes_in_memory(kernel: Kernel, target: Target) -> str:
    """The axes, m or n, along which a 32-bit operand that goes to registers is contiguous in memory.

    ldmatrix cannot distribute such operands; registers that hold neighbours along these axes are filled by fewer loads.
    Empty for a launch with several accumulators, because their layouts are the same.
    """
    found = list(_matmuls(kernel))
    if len({s.acc.buffer for s in found}) != 1:
        return ""
    sources = _sources(kernel, {n.target.buffer for n in within(kernel.body, tile.Copy)})
    axes = set()
    for s in found:
        row, long = instruction(target, s.instruction), tile.lengths(s)
        operands = (("m", row.a_space, s.layout[0], s.a, s.grid[:1]), ("n", row.b_space, s.layout[1], s.b, s.grid[1:]))
        for x, space, held, side, parts in operands:
            each = long[x] // math.prod(parts)
            fits = space == "registers" and row.a_type == "f32" and not each & (each - 1)
            if fits and held[-1] == x and side.buffer in sources:
                axes.add(x)
    return "".join(sorted(axes))


def _sources(kernel: Kernel, loaded: set[str]) -> set[str]:
    """The tiles that copies fill, and those that loops compute from them."""
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


def infer_fragments(kernel: Kernel, target: Target, division: Division) -> dict[str, Fragment]:
    """The fragments of all tiles in registers that tensor instructions use, and of those used together with them."""
    matmuls = list(_matmuls(kernel))
    tiles = {n.tensor.name: n for n in within(kernel.body, tile.Alloc)}
    found: dict[str, Fragment] = {}
    for s in matmuls:
        row = instruction(target, s.instruction)
        for operand_slice, axes, layout, order in _operands(s, row):
            alloc = tiles.get(operand_slice.buffer)
            if layout is None or alloc is None or alloc.space != "registers":
                continue
            extents = dict(zip(axes, (static(n) for n in alloc.tensor.shape), strict=True))
            made = operand_fragment(layout, (axes[0], axes[1]), extents, division, order)
            if found.setdefault(alloc.tensor.name, made) != made:
                raise ValueError(
                    f"kernel {kernel.name}: {alloc.tensor.name} is an operand of two kinds of tensor instruction"
                )
    tensors = {name: a.tensor for name, a in tiles.items() if a.space == "registers"}
    while _propagate(kernel, tensors, found):
        pass
    return found


def _matmuls(kernel: Kernel) -> Iterator[tile.Mma]:
    return within(kernel.body, tile.Mma)


def _operands(s: tile.Mma, row: Instruction) -> list[tuple[tile.Slice, str, Layout | None, str]]:
    acc, a, b = tile.letters(s)
    return [(s.acc, acc, row.acc_layout, "mn"), (s.a, a, row.a_layout, "mk"), (s.b, b, row.b_layout, "kn")]


def _propagate(kernel: Kernel, tensors: dict[str, Tensor], found: dict[str, Fragment]) -> bool:
    """Extend `found` to tiles that share a nest with known fragments. Returns whether any was new."""
    before = len(found)
    for nest in nests(kernel):
        fragment = fragment_of_nest(nest, tensors, found)
        if fragment is None:
            continue
        rows = Var(nest.outer.var)
        for name, index in tiles_used(nest, tensors).items():
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
