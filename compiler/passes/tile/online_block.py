"""A block of queries and keys of a softmax in one pass: its tiles, the places in them, and the loops over these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compiler.analysis import online_softmax as recognised
from compiler.analysis.online_softmax import KEY, reach
from compiler.ir import tile
from compiler.ir.dtype import STORAGE_ONLY, DType, boolean, compute, f32
from compiler.ir.expr import (
    Cast,
    Const,
    Expr,
    Load,
    Var,
    both,
    cast,
    const,
    dim,
    loads,
    names,
    op,
    select,
    static,
    substitute,
)
from compiler.ir.index import extent_range, simplify
from compiler.ir.ranges import Range
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor, row_major
from compiler.passes.tile.nests import SERIAL
from compiler.schedule.steps import Online

T = TypeVar("T")
Loop = tuple[str, Expr, str]  # name, extent, kind
ROW = 128  # bytes of a row of a mask's block, as many as all banks of shared memory hold together


def pieces(size: Expr, by: int) -> Expr:
    """How many pieces of so many there are, the last of which may be shorter."""
    return (size + (by - 1)) // by


def divides(by: int, size: Expr) -> bool:
    return isinstance(size, Const) and int(size.value) % by == 0


@dataclass
class Block:
    """Where the rows, columns and features of a block lie, and loops over them."""

    found: recognised.Online
    step: Online
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        f = self.found
        self.query, self.feature = f.query.var, f.feature.var
        self.rows, self.queries = self.step.rows, f.query.extent
        self.cols, self.keys = self.step.keys, f.keys
        self.features = static(f.feature.extent)
        self.width = self.padded(self.features)
        self.depth = static(f.scores.depth.extent) if f.scores else 0
        self.dtype: DType = f.accumulator.dtype
        # Local weights are rounded, but not narrower: each of an instruction's rows would widen them again.
        self.weight = self.dtype if self.step.space == "local" else f.weight
        self.factor, self.base = recognised.scaled(f.score) if self.dtype is f32 else (1.0, f.score)
        self.ranges: dict[str, Range] = {r.var: extent_range(r.extent) for r in f.rows}
        self.masks = [x for x in recognised.masks(f.score, self.query) if x.buffer in self.step.masks]
        self.held = dict(zip(self.step.masks, self.step.held, strict=True))
        self.local = self.step.space == "local"
        (place, self.turn), count = map(Var, self.step.made.blocks), pieces(self.queries, self.rows)
        self.scale, self.weights, self.scores, self.turned_sums = self.step.made_tiles
        self.ranges[place.name] = extent_range(count)
        self.blocks: tuple[Var, Expr] = place, count
        self.block: Expr = count - 1 - place if reach(f.score, self.query) else place
        self.ranges[self.turn.name] = extent_range(pieces(self.keys, self.cols))
        left = self.keys - self.turn * self.cols
        whole = not self.local or divides(self.cols, self.keys)
        self.columns = dim(self.cols) if whole else op("min", self.cols, left)

    def padded(self, size: int) -> int:
        return -(-size // self.step.unit) * self.step.unit

    # ---- places

    def at(self, e: Expr, row: str = "", column: str = "", feature: str = "", depth: str = "") -> Expr:
        """`e` at places in the tiles, of which loops with these names go through the rows, columns and so on."""
        table: dict[Expr, Expr] = {Var(self.feature): Var(feature), KEY: self.turn * self.cols}
        table[Var(self.query)] = self.block * self.rows
        if column:
            table[KEY] += Var(column)
        if row:
            table[Var(self.query)] += Var(row)
        if depth and self.found.scores:
            table[Var(self.found.scores.depth.var)] = Var(depth)
        return substitute(e, table)

    def inside(self, what: str, var: str) -> Expr:
        """Whether a row, column, feature or step of depth counts, or is one that a tile has too many."""
        if self.local and what == "column":
            return const(True, boolean)
        table = {
            "row": (self.block * self.rows + Var(var), self.queries, self.rows),
            "column": (self.turn * self.cols + Var(var), self.keys, self.cols),
            "feature": (Var(var), dim(self.features), self.width),
            "depth": (Var(var), dim(self.depth), self.padded(self.depth)),
        }
        place, size, by = table[what]
        return const(True, boolean) if divides(by, size) else op("lt", place, size)

    def guarded(self, factor: Expr, *inside: Expr) -> Expr:
        """A factor that is zero where it is outside."""
        if isinstance(factor, Cast) and factor.arg.dtype in STORAGE_ONLY:
            return cast(self.guarded(factor.arg, *inside), factor.dtype)
        return select(both(*inside), factor, cast(const(0, compute(factor.dtype)), factor.dtype))

    def bounds(self, factor: Expr, what: str, var: str) -> list[Expr]:
        """What keeps a factor of a score that will not count within its buffers: those of a plain load are its own.

        An index that is itself loaded must not be read beyond the rows or columns that count.
        """
        load = factor.arg if isinstance(factor, Cast) else factor
        if not isinstance(load, Load) or any(loads(i) for i in load.index):
            return [self.inside(what, var)]
        extents = zip(load.index, self.tensors[load.buffer].shape, strict=True)
        return [simplify(op("lt", i, n), self.ranges) for i, n in extents if var in names(i)]

    def nest(self, loops: Sequence[Loop], body: Iterable[Stmt]) -> tile.For:
        made = tuple(body)
        for name, extent, kind in reversed(loops):
            made = (tile.For(name, extent, kind, SERIAL, made),)
        (out,) = made
        assert isinstance(out, tile.For)
        return out

    def rows_and(
        self, loops: tuple[str, str], extent: Expr, body: Callable[[Expr, Expr], Stmt], *depth: Loop
    ) -> tile.For:
        """A statement for all rows and columns, in the order in which tiles of both lie, and each step of `depth`."""
        row, column = loops
        around = self.lying((row, dim(self.rows), "parallel"), (column, extent, "parallel"))
        return self.nest([*around, *depth], [body(Var(row), Var(column))])

    def lying(self, row: T, column: T) -> tuple[T, T]:
        """Rows are queries, columns are keys or features: the latter come first where tiles are local."""
        return (column, row) if self.local else (row, column)

    def tensor(self, name: str, dtype: DType, *shape: int) -> Tensor:
        dims = tuple(map(dim, shape))
        return Tensor(name, dtype, dims, row_major(dims))

    def alloc(self, name: str, *columns: int) -> Stmt:
        """A tile of rows, or of one number for each."""
        shape = self.lying(self.rows, *columns) if columns else (self.rows,)
        return tile.Alloc(self.tensor(name, self.dtype, *shape), "local" if self.local else "registers")
