"""The schedule step `chain`: block a matmul whose factor is computed from other matmuls over their columns."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.analysis import chained_products as recognised
from compiler.analysis.nests import loop_ranges
from compiler.ir import tile
from compiler.ir.expr import Expr, Load, Var, cast, const, dim, identity, loads, op, select, static, substitute
from compiler.ir.index import simplify
from compiler.ir.statement import Kernel, Program, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import extent_range
from compiler.passes.tile.nests import SERIAL, Body
from compiler.passes.tile.places import Places, check_private, pieces, without_buffers
from compiler.schedule.block_steps import Chain
from compiler.schedule.steps import ScheduleError


def chain(program: Program, kernel: Kernel, step: Chain) -> Kernel:
    """`chain("o", 4, 4, ("c", "t"), into=("q", "j", "d"), tiles=("w", "m"))`

    before:
        for q in serial(8):
            for j4 in serial(8):
                c: f32 = 0.0
                for r in serial(2, reduce):
                    c += x[q, r] * k[j4, r]
                t: f32 = 0.0
                for r1 in serial(2, reduce):
                    t += g[q, r1] * v[j4, r1]
                e[q, j4] = c * (t - n[q])
            for d in serial(3):
                o: f32 = 0.0
                for j in serial(8, reduce):
                    o += e[q, j] * z[j, d]
                y[q, d] = o
    after:
        for q0 in serial(2):
            o = registers(f32[4, 3])
            m = registers(f32[4])
            for q_first in serial(4):
                m[q_first] = n[q0 * 4 + q_first]
            for q_begin in serial(4):
                for d_begin in serial(3):
                    o[q_begin, d_begin] = 0.0
            for j0 in serial(2, scan):
                c = registers(f32[4, 4])
                for q_zero0 in serial(4):
                    for j_zero0 in serial(4):
                        c[q_zero0, j_zero0] = 0.0
                for q_score0 in serial(4):
                    for j_score0 in serial(4):
                        for r in serial(2, reduce):
                            c[q_score0, j_score0] += x[q0 * 4 + q_score0, r] * k[j0 * 4 + j_score0, r]
                t = registers(f32[4, 4])
                for q_zero1 in serial(4):
                    for j_zero1 in serial(4):
                        t[q_zero1, j_zero1] = 0.0
                for q_score1 in serial(4):
                    for j_score1 in serial(4):
                        for r1 in serial(2, reduce):
                            t[q_score1, j_score1] += g[q0 * 4 + q_score1, r1] * v[j0 * 4 + j_score1, r1]
                w = registers(f32[4, 4])
                for q_weight in serial(4):
                    for j_weight in serial(4):
                        w[q_weight, j_weight] = c[q_weight, j_weight] * (t[q_weight, j_weight] - m[q_weight])
                for q_value in serial(4):
                    for d_value in serial(3):
                        for j_value in serial(4, reduce):
                            o[q_value, d_value] += w[q_value, j_value] * z[j0 * 4 + j_value, d_value]
            for q_last in serial(4):
                for d_last in serial(3):
                    y[q0 * 4 + q_last, d_last] = o[q_last, d_last]

    Blocks of columns whose weights are all zero are skipped, if the weights' conditions tell. Per-row and per-column
    loads of the weights are hoisted. Exponentials are computed as powers of two.
    """
    found = recognised.recognise(kernel)
    if found is None or found.accumulator.name != step.accumulator:
        raise ScheduleError(step, f"{step.accumulator} is no sum of what products make, within perfectly nested rows")
    if tuple(p.name.name for p in found.products) != step.products:
        raise ScheduleError(step, f"its weights are made of {', '.join(p.name.name for p in found.products)}")
    check_private(step, program, kernel, found.inner)
    made = recognised.made(found)
    if len(step.tiles) != 1 + len(made.rows) + len(made.columns):
        count = len(made.rows), len(made.columns)
        raise ScheduleError(step, f"it names the weights, and what is loaded for a row and for a column: {count}")
    return without_buffers(
        kernel, found.inner, _ChainBuilder(found, made, step, {p.name: p for p in kernel.params}).body()
    )


class _ChainBuilder(Places):
    def __init__(
        self, found: recognised.Chained, made: recognised.Made, step: Chain, tensors: dict[str, Tensor]
    ) -> None:
        self.found, self.made, self.step, self.tensors = found, made, step, tensors
        self.query, self.queries, self.rows = found.row.var, found.row.extent, step.rows
        self.keys, self.cols, self.unit = found.columns, step.columns, step.unit
        self.feature, self.features = found.feature.var, static(found.feature.extent)
        self.width, self.columns = self.padded(self.features), dim(step.columns)
        self.dtype = found.accumulator.dtype
        (place, self.turn), count = map(Var, step.made.blocks), pieces(self.queries, self.rows)
        self.ranges = loop_ranges(found.rows)
        self.ranges |= {place.name: extent_range(count), self.turn.name: extent_range(pieces(self.keys, self.cols))}
        self.reach = list(recognised.reach(found.weight, self.query))
        self.blocks = place, count
        # Blocks of rows with the most columns start first.
        self.top = (count - 1 - place if any(s > 0 for s, _, _ in self.reach) else place) * self.rows
        self.start = (self.turn + self.first_block()) * self.cols
        self.weights, *held = step.tiles
        self.held = {v: x for v, x in zip((*made.rows, *made.columns), held, strict=True)}

    def body(self) -> Body:
        step, o, zero = self.step.made, self.found.accumulator.name, identity("sum", self.dtype)
        return self.over_blocks(
            self.found.batch,
            self.alloc(o, self.width),
            *self.load_tiles(step.row, self.rows, self.made.rows, "row"),
            self.over_rows(step.begin, dim(self.width), lambda i, d: Store(o, (i, d), zero)),
            tile.For(self.turn.name, self.block_count(), "scan", SERIAL, tuple(self.column_block())),
            self.epilogue(),
        )

    def first_block(self) -> Expr:
        """The first block of columns with nonzero weights."""
        first: Expr = dim(0)
        for sign, slope, most in self.reach:
            if sign < 0:
                first = op("max", first, (self.top * slope + most) // self.cols)
        return simplify(first, self.ranges, index=True)

    def block_count(self) -> Expr:
        """The number of blocks of columns with nonzero weights, from the first on."""
        count = pieces(self.keys, self.cols)
        for sign, slope, most in self.reach:
            if sign > 0:
                last = (self.top + (self.rows - 1)) * slope + most
                count = op("min", count, op("max", last // self.cols + 1, dim(0)))
        return simplify(op("max", count - self.first_block(), dim(0)), self.ranges, index=True)

    def load_tiles(self, loops: tuple[str, ...], count: int, made: dict[Var, Expr], what: str) -> Iterator[Stmt]:
        """Load the values of each row or column into tiles, zero beyond the ends."""
        stores: list[Stmt] = []
        *around, var = loops
        for v, e in made.items():
            at = self.at(e, var, "") if what == "row" else self.at(e, "", var)
            value = select(self.validity(what, var), at, const(0.0, v.dtype))
            yield tile.Alloc(self.tensor(self.held[v], v.dtype, count), "registers")
            stores.append(Store(self.held[v], (Var(var),), value))
        if stores:
            yield self.nest([*((x, dim(1), "parallel") for x in around), (var, dim(count), "parallel")], stores)

    def column_block(self) -> Iterator[Stmt]:
        """A block of columns: its products, their weights, and the update of the sums."""
        f, step = self.found, self.step.made
        zero = identity("sum", self.dtype)
        yield from self.load_tiles(step.column, self.cols, self.made.columns, "column")
        for p, first, loops in zip(f.products, step.zero, step.score, strict=True):
            tiles = p.name.name
            self.depth = static(p.depth.extent)
            yield self.alloc(tiles, self.cols)
            yield self.over_rows(first, self.columns, lambda i, j: Store(tiles, (i, j), zero))  # noqa: B023
            yield self.add_product(tiles, loops, p)
        yield tile.Alloc(self.tensor(self.weights, f.kind, self.rows, self.cols), "registers")
        weight = cast(self.weight(*map(Var, step.weight)), f.kind)
        yield self.over_rows(step.weight, self.columns, lambda i, j: Store(self.weights, (i, j), weight))
        yield self.add_weighted(f.accumulator.name, (self.weights, f.kind), step.value, f.value)

    def weight(self, row: Var, column: Var) -> Expr:
        """A weight, zero for a column beyond the end. Buffers are not read out of bounds."""
        tile_loads: dict[Expr, Expr] = {
            p.name: Load(p.name.name, (row, column), p.name.dtype) for p in self.found.products
        }
        tile_loads |= {v: Load(self.held[v], (row,), v.dtype) for v in self.made.rows}
        tile_loads |= {v: Load(self.held[v], (column,), v.dtype) for v in self.made.columns}
        value = self.at(self.made.weight, row.name, column.name)
        return self.where_valid(substitute(value, tile_loads), row, column, 0.0, loads(value))

    def epilogue(self) -> Stmt:
        """The epilogue: what is computed from the sums and stored."""
        f, (row, feature) = self.found, self.step.made.last
        own: dict[Expr, Expr] = {f.accumulator: Load(f.accumulator.name, (Var(row), Var(feature)), self.dtype)}
        body = self.guarded_stores(
            f.after, own, row, feature, self.validity("row", row), self.validity("feature", feature)
        )
        return self.nest([(row, dim(self.rows), "parallel"), (feature, dim(self.width), "parallel")], body)
