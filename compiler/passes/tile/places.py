"""Blocks of rows and columns in a pass over columns: indices into their tiles, and loops over them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from compiler.analysis.guarded_factors import zero
from compiler.analysis.online_softmax import KEY, Scores
from compiler.ir import loop, tile
from compiler.ir.dtype import STORAGE_ONLY, DType, boolean
from compiler.ir.expr import Cast, Const, Expr, Load, Var, both, cast, const, dim, loads, names, op, select, substitute
from compiler.ir.index import simplify
from compiler.ir.multiples import is_constant_multiple
from compiler.ir.ranges import Range
from compiler.ir.statement import If, Kernel, Program, Stmt, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.passes.tile.nests import SERIAL, Body
from compiler.schedule.steps import ScheduleError, Step

T = TypeVar("T")
Loop = tuple[str, Expr, str]  # name, extent, kind


def pieces(size: Expr, by: int) -> Expr:
    """The number of pieces of length `by`; the last may be shorter."""
    return (size + (by - 1)) // by


def check_private(step: Step, program: Program, kernel: Kernel, inner: Iterable[str]) -> None:
    """Raise ScheduleError unless all of these are temporaries of this kernel alone."""
    others = {p.name for k in program.kernels if k is not kernel for p in k.params}
    temps = {t.name for t in program.temps}
    for name in inner:
        if name not in temps or name in others:
            raise ScheduleError(step, f"{name} is used outside of kernel {kernel.name}")


def without_buffers(kernel: Kernel, inner: Collection[str], body: tuple[Stmt, ...]) -> Kernel:
    """The kernel with another body, which no longer uses these buffers."""
    return kernel.replace(
        params=tuple(p for p in kernel.params if p.name not in inner),
        writes=tuple(w for w in kernel.writes if w not in inner),
        body=body,
    )


class Places:
    """The places of the rows, columns and features of a block of `rows` x `cols`, and loops over them.

    Rows begin at `top` and columns at `start`; valid ones are below `queries` and `keys`. `blocks` is the loop over
    blocks of rows with the number of them. Sums are padded to `width` features, and the depth of products to multiples
    of `unit`.
    """

    tensors: dict[str, Tensor]
    ranges: dict[str, Range]
    query: str
    feature: str
    queries: Expr
    keys: Expr
    rows: int
    cols: int
    features: int
    width: int
    unit: int
    top: Expr
    start: Expr
    columns: Expr
    blocks: tuple[Var, Expr]
    dtype: DType
    depth: int = 0
    local: bool = False

    def padded(self, size: int) -> int:
        return -(-size // self.unit) * self.unit

    # ---- places

    def at(self, e: Expr, row: str = "", column: str = "", feature: str = "") -> Expr:
        """`e` at places in the tiles, given the names of the loops over rows, columns and features."""
        table: dict[Expr, Expr] = {Var(self.feature): Var(feature), KEY: self.start, Var(self.query): self.top}
        if column:
            table[KEY] += Var(column)
        if row:
            table[Var(self.query)] += Var(row)
        return substitute(e, table)

    def validity(self, what: str, var: str) -> Expr:
        """Whether a row, column, feature or step of depth is valid, rather than padding of a tile."""
        if self.local and what == "column":
            return const(True, boolean)
        table = {
            "row": (self.top + Var(var), self.queries, self.rows),
            "column": (self.start + Var(var), self.keys, self.cols),
            "feature": (Var(var), dim(self.features), self.width),
            "depth": (Var(var), dim(self.depth), self.padded(self.depth)),
        }
        place, size, by = table[what]
        return const(True, boolean) if is_constant_multiple(size, by) else op("lt", place, size)

    def zero_unless(self, factor: Expr, *inside: Expr) -> Expr:
        """A factor that is zero unless all conditions hold."""
        if isinstance(factor, Cast) and factor.arg.dtype in STORAGE_ONLY:
            return cast(self.zero_unless(factor.arg, *inside), factor.dtype)
        return select(both(*inside), factor, zero(factor))

    def bounds(self, factor: Expr, what: str, var: str) -> list[Expr]:
        """Conditions that keep a factor within its buffers, where the score is discarded anyway.

        For a plain load these are the bounds of its own axes. A load whose index is itself loaded must not be read for
        invalid rows or columns.
        """
        load = factor.arg if isinstance(factor, Cast) else factor
        if not isinstance(load, Load) or any(loads(i) for i in load.index):
            return [self.validity(what, var)]
        extents = zip(load.index, self.tensors[load.buffer].shape, strict=True)
        return [simplify(op("lt", i, n), self.ranges) for i, n in extents if var in names(i)]

    def where_valid(self, value: Expr, row: Var, column: Var, none: float, reads: Iterable[Load]) -> Expr:
        """A value for a row and a column, `none` for an invalid column. `reads` are not read out of bounds."""
        inside, other = self.validity("column", column.name), const(none, self.dtype)
        if any(names(x) & {row.name, column.name} for x in reads):
            return select(both(self.validity("row", row.name), inside), value, other)
        return value if isinstance(inside, Const) else op("where", inside, value, other)

    def nest(self, loops: Sequence[Loop], body: Iterable[Stmt]) -> tile.For:
        made = tuple(body)
        for name, extent, kind in reversed(loops):
            made = (tile.For(name, extent, kind, SERIAL, made),)
        (out,) = made
        assert isinstance(out, tile.For)
        return out

    def over_blocks(self, batch: Iterable[tile.For | loop.For], *inside: Stmt) -> Body:
        """Statements for a block of rows, in loops over all blocks and the batch."""
        place, count = self.blocks
        around = [*((r.var, r.extent, r.kind) for r in batch), (place.name, count, "parallel")]
        return simplify((self.nest(around, inside),), self.ranges)

    def guarded_stores(
        self, stores: Iterable[Stmt], table: Mapping[Expr, Expr], row: str, feature: str, *inside: Expr
    ) -> Body:
        """Stores with `table` substituted for the sums, for a row and feature that are inside."""
        made = tuple(
            s.replace(
                index=tuple(self.at(i, row, "", feature) for i in s.index),
                value=self.at(substitute(s.value, table), row, "", feature),
            )
            for s in stores
            if isinstance(s, Store)
        )
        cond = both(*inside)
        return made if isinstance(cond, Const) or not made else (If(cond, made),)

    def over_rows(
        self, loops: tuple[str, str], extent: Expr, body: Callable[[Expr, Expr], Stmt], *depth: Loop
    ) -> tile.For:
        """A statement in loops over rows and columns, in the order of the tiles' memory, and over `depth`."""
        row, column = loops
        around = self.in_memory_order((row, dim(self.rows), "parallel"), (column, extent, "parallel"))
        return self.nest([*around, *depth], [body(Var(row), Var(column))])

    def in_memory_order(self, row: T, column: T) -> tuple[T, T]:
        """Row and column in the order of the tile's axes: rows (queries) first, but last in local tiles."""
        return (column, row) if self.local else (row, column)

    def tensor(self, name: str, dtype: DType, *shape: int) -> Tensor:
        dims = tuple(map(dim, shape))
        return Tensor(name, dtype, dims, row_major(dims))

    def alloc(self, name: str, *columns: int) -> Stmt:
        """A tile of rows, or of one number per row."""
        shape = self.in_memory_order(self.rows, *columns) if columns else (self.rows,)
        return tile.Alloc(self.tensor(name, self.dtype, *shape), "local" if self.local else "registers")

    def add_product(self, scores: str, loops: tuple[str, str], found: Scores) -> Stmt:
        """The loops that add a product to its tile."""
        (row, column), depth = loops, found.depth.var
        self.ranges |= {row: (0, self.rows - 1), column: (0, self.cols - 1), depth: (0, self.padded(self.depth) - 1)}
        ends = self.validity("depth", depth)
        left, right = (self.at(x, row, column) for x in (found.left, found.right))
        left = self.zero_unless(left, *self.bounds(left, "row", row), ends)
        right = right if self.local else self.zero_unless(right, *self.bounds(right, "column", column), ends)
        step = (depth, dim(self.padded(self.depth)), "reduce")

        def added(i: Expr, j: Expr) -> Stmt:
            return Store(scores, self.in_memory_order(i, j), left * right, "sum")

        return self.over_rows(loops, self.columns, added, step)

    def add_weighted(self, sums: str, weights: tuple[str, DType], loops: tuple[str, str, str], value: Expr) -> Stmt:
        """The loops that add the values, times the weights of a tile, to the tile of the sums."""
        row, feature, column = loops
        depth = (column, self.columns, "reduce")

        def added(i: Expr, d: Expr) -> Stmt:
            weight = cast(Load(weights[0], self.in_memory_order(i, Var(column)), weights[1]), self.dtype)
            factor = self.at(value, row, column, feature)
            factor = self.zero_unless(factor, self.validity("column", column), self.validity("feature", feature))
            return Store(sums, self.in_memory_order(i, d), weight * factor, "sum")

        return self.over_rows((row, feature), dim(self.width), added, depth)
