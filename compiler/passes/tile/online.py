"""The schedule step `online`: compute a sum weighted by a softmax over keys in one pass over blocks of keys."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from compiler.analysis import online_softmax as recognised
from compiler.analysis.online_softmax import KEY, guarded, reach
from compiler.ir import tile
from compiler.ir.dtype import f32
from compiler.ir.expr import Const, Expr, Load, Var, cast, const, dim, identity, loads, op, substitute
from compiler.ir.index import simplify
from compiler.ir.multiples import is_constant_multiple
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Program, Stmt, Store
from compiler.passes.tile.nests import SERIAL, Body
from compiler.passes.tile.online_block import Block
from compiler.passes.tile.places import check_private, pieces, without_buffers
from compiler.schedule.block_steps import Online
from compiler.schedule.steps import ScheduleError

_FAR = 2.0**30  # f32 rounds products up to this by at most 64


def online(program: Program, kernel: Kernel, step: Online) -> Kernel:
    """`online("o", 4, 4, into=("q", "j", "d"), tiles=("o", "c"))`

    before:
        for q in serial(8):
            for j4 in serial(8):
                c: f32 = 0.0
                for r in serial(2, reduce):
                    c += x[q, r] * k[j4, r]
                s[q, j4] = where(j4 <= q, c, -inf)
            m: f32 = -inf
            for j1 in serial(8, reduce):
                m = update(max, s[q, j1])
            l: f32 = 0.0
            for j2 in serial(8, reduce):
                e[q, j2] = exp(s[q, j2] - m)
                l += exp(s[q, j2] - m)
            for d in serial(3):
                o: f32 = 0.0
                for j in serial(8, reduce):
                    o += e[q, j] / l * v[j, d]
                y[q, d] = o
    after:
        for q0 in serial(2):
            o = registers(f32[4, 3])
            m = registers(f32[4])
            l = registers(f32[4])
            o_scale = registers(f32[4])
            for q_first in serial(4):
                m[q_first] = -inf
                l[q_first] = 0.0
            for q_begin in serial(4):
                for d_begin in serial(3):
                    o[q_begin, d_begin] = 0.0
            for j0 in serial(2 - q0, scan):
                c = registers(f32[4, 4])
                for q_zero in serial(4):
                    for j_zero in serial(4):
                        c[q_zero, j_zero] = 0.0
                for q_score in serial(4):
                    for j_score in serial(4):
                        for r in serial(2, reduce):
                            c[q_score, j_score] += x[q_score - q0 * 4 + 4, r] * k[j0 * 4 + j_score, r]
                o_weights = registers(f32[4, 4])
                if j0 * 4 + 3 > 4 - q0 * 4:
                    for q_edge in serial(4):
                        for j_edge in serial(4):
                            c[q_edge, j_edge] = where(j0 * 4 + j_edge <= q_edge - q0 * 4 + 4, c[q_edge, j_edge], -inf)
                for q_row in serial(4):
                    m_new: f32 = m[q_row]
                    for j_max in serial(4, reduce):
                        m_new = update(max, c[q_row, j_max])
                    m_safe = where(m_new == -inf, 0.0, m_new)
                    m_root = rsqrt(abs(m_safe))
                    m_factor = min(m_root * m_root * 1073741824.0, 1.4426950216293335)
                    l_new: f32 = 0.0
                    for j_exp in serial(4, reduce):
                        o_weight = exp2_ftz(fma(c[q_row, j_exp], m_factor, -(m_safe * m_factor)))
                        o_weights[q_row, j_exp] = o_weight
                        l_new += o_weight
                    m_scale = exp2_ftz((m[q_row] - m_safe) * 1.4426950216293335)
                    l[q_row] = l[q_row] * m_scale + l_new
                    m[q_row] = m_new
                    o_scale[q_row] = m_scale
                for q_scale in serial(4):
                    for d_scale in serial(3):
                        o[q_scale, d_scale] = o[q_scale, d_scale] * o_scale[q_scale]
                for q_value in serial(4):
                    for d_value in serial(3):
                        for j_value in serial(4, reduce):
                            o[q_value, d_value] += o_weights[q_value, j_value] * v[j0 * 4 + j_value, d_value]
            for q_last in serial(4):
                l_inverse = 1.0 / l[q_last]
                for d_last in serial(3):
                    y[q_last - q0 * 4 + 4, d_last] = o[q_last, d_last] * l_inverse

    Blocks of keys that do not count are skipped, if the score tells how far a query reaches; the last queries, which
    have most work, then start first. Only blocks that cross that bound test single keys. The maximum of a row without
    keys is -inf: it is not subtracted, so that the sums of the row are zero. Only differences of scores from their
    maximum are scaled, so that those of equal scores stay zero.
    """
    found = recognised.recognise(kernel)
    if found is None or found.accumulator.name != step.accumulator:
        raise ScheduleError(step, f"{step.accumulator} is no sum weighted by a softmax, within perfectly nested rows")
    check_private(step, program, kernel, found.inner)
    if not isinstance(found.feature.extent, Const):
        raise ScheduleError(step, "how many features there are must be known when compiling")
    unknown = set(step.masks) - {x.buffer for x in recognised.masks(found.score, found.query.var)}
    if unknown:
        raise ScheduleError(step, f"{', '.join(sorted(unknown))}: no score loads that by query and key")
    if len(step.masks) != len(step.held):
        raise ScheduleError(step, f"it copies {len(step.masks)} masks, and names {len(step.held)} tiles for them")
    if step.narrow and (step.space != "local" or found.weight is found.accumulator.dtype):
        raise ScheduleError(step, "only weights that are rounded, and local, can be kept in their own type")
    if step.mask_swizzle and (step.space == "local" or not step.masks):
        raise ScheduleError(step, "only masks in shared memory are swizzled")
    return without_buffers(kernel, found.inner, _OnlineBuilder(found, step, {p.name: p for p in kernel.params}).body())


class _OnlineBuilder(Block):
    def body(self) -> Body:
        f = self.found
        o, m, total = f.accumulator.name, f.maximum.name, f.total.name
        zero, low = identity("sum", self.dtype), identity("max", self.dtype)
        first, rows = Var(self.step.made.first[0]), dim(self.rows)
        return self.over_blocks(
            f.batch,
            self.alloc(o, self.width),
            self.alloc(m),
            self.alloc(total),
            self.alloc(self.scale),
            self.nest([(first.name, rows, "parallel")], [Store(m, (first,), low), Store(total, (first,), zero)]),
            self.over_rows(
                self.step.made.begin, dim(self.width), lambda i, d: Store(o, self.in_memory_order(i, d), zero)
            ),
            tile.For(self.turn.name, self.block_count(), "scan", SERIAL, tuple(self.key_block())),
            *self.epilogue(),
        )

    def block_count(self) -> Expr:
        """The number of blocks of keys that count for a block of queries."""
        count = pieces(self.keys, self.cols)
        for slope, most in reach(self.found.score, self.query):
            last = (self.block * self.rows + (self.rows - 1)) * slope + most
            count = op("min", count, op("max", last // self.cols + 1, dim(0)))
        return simplify(count, self.ranges, index=True)

    def key_block(self) -> list[Stmt]:
        """A block of keys: its scores, their weights under the new maximum, and the update of the rescaled sums."""
        f, step = self.found, self.step.made
        o, scores, weights = f.accumulator.name, self.scores, self.weights
        out = [*self.copy_masks(), self.alloc(scores, self.cols)]
        if f.scores:
            zero = identity("sum", self.dtype)
            out.append(
                self.over_rows(step.zero, self.columns, lambda i, j: Store(scores, self.in_memory_order(i, j), zero))
            )
            out.append(self.add_product(scores, step.score, f.scores))
        held = self.tensor(weights, self.weight, *self.in_memory_order(self.rows, self.cols))
        out.append(tile.Alloc(held, self.step.space, self.step.swizzle))
        out += [*self.finish_scores(scores), self.softmax(scores, weights)]

        def rescaled(i: Expr, d: Expr) -> Stmt:
            place = self.in_memory_order(i, d)
            return Store(o, place, Load(o, place, self.dtype) * Load(self.scale, (i,), self.dtype))

        def rounded(i: Expr, j: Expr) -> Stmt:
            return Store(
                weights,
                self.in_memory_order(i, j),
                cast(Load(scores, self.in_memory_order(i, j), self.dtype), self.weight),
            )

        out.append(self.over_rows(step.scale, dim(self.width), rescaled))
        if self.step.late:
            out.append(self.over_rows(step.weight, self.columns, rounded))
        out.append(self.add_weighted(o, (weights, self.weight), step.value, f.value))
        return out

    def copy_masks(self) -> Iterator[Stmt]:
        """Copies of blocks of masks, into shared memory, or into local tiles laid out like the scores."""
        for x in self.masks:
            held = self.tensor(self.held[x.buffer], x.dtype, self.rows, self.cols)
            if self.local:
                held = held.replace(strides=(dim(1), dim(self.rows)))
            starts = tuple(self.at(i) for i in x.index)
            lengths: dict[Expr, int] = {Var(self.query): self.rows, KEY: self.cols}
            source = tile.Slice(x.buffer, starts, tuple(lengths.get(i, 0) for i in x.index))
            yield tile.Alloc(held, "local" if self.local else "shared", self.step.mask_swizzle)
            whole = tile.Slice(held.name, (dim(0), dim(0)), (self.rows, self.cols))
            yield tile.Copy(whole, source, "plain" if self.local else "tma")

    def softmax(self, scores: str, weights: str) -> Stmt:
        f, dtype = self.found, self.dtype
        o, m, total = f.accumulator.name, f.maximum.name, f.total.name
        row, *both = map(Var, self.step.made.row)
        columns = dict(zip(("max", "exp"), both, strict=True))
        new, safe, scale = Var(f"{m}_new", dtype), Var(f"{m}_safe", dtype), Var(f"{m}_scale", dtype)
        row_sum, weight = Var(f"{total}_new", dtype), Var(f"{o}_weight", dtype)
        root, factor = Var(f"{m}_root", dtype), Var(f"{m}_factor", dtype)
        exponent_lets = (
            (Let(root.name, op("rsqrt", op("abs", safe))), Let(factor.name, self.exponent_scale(root)))
            if self.uses_fma
            else ()
        )
        stored_to, value = (scores, weight) if self.step.late else (weights, cast(cast(weight, f.weight), self.weight))

        def score(end: str) -> Load:
            return Load(scores, self.in_memory_order(row, columns[end]), dtype)

        def over(end: str, kind: str, *body: Stmt) -> Stmt:
            return self.nest([(columns[end].name, self.columns, kind)], body)

        old, sums = Load(m, (row,), dtype), Load(total, (row,), dtype)
        return self.nest(
            [(row.name, dim(self.rows), "parallel")],
            [
                Init(new.name, old),
                over("max", "reduce", Accum(new.name, "max", score("max"))),
                Let(safe.name, guarded(new)),
                *exponent_lets,
                Init(row_sum.name, identity("sum", dtype)),
                over(
                    "exp",
                    "reduce",
                    Let(weight.name, self.weight_of(score("exp"), safe, factor)),
                    Store(stored_to, self.in_memory_order(row, columns["exp"]), value),
                    Accum(row_sum.name, "sum", weight),
                ),
                Let(scale.name, self.exponential(self.exponent(old - safe))),
                Store(total, (row,), sums * scale + row_sum),
                Store(m, (row,), new),
                Store(self.scale, (row,), scale),
            ],
        )

    def exponent(self, e: Expr) -> Expr:
        """The exponent of a score that still lacks its factor."""
        return e * const(self.factor * math.log2(math.e), self.dtype) if self.dtype is f32 else e

    def exponential(self, e: Expr) -> Expr:
        """The exponential of an exponent. Weights that are denormal are flushed to zero."""
        return op("exp2_ftz", e) if self.dtype is f32 else op("exp", e)

    @property
    def uses_fma(self) -> bool:
        """Whether an exponent takes a single operation, a fused multiply-add."""
        return self.dtype is f32 and not self.local

    def exponent_scale(self, root: Expr) -> Expr:
        """The scale of exponents, given the root of 1 / |maximum|.

        It is reduced where its product with the maximum would exceed `_FAR`, because the rounding error of that product
        would become an overflowing power of 2. Scores so large are so far apart that only those equal to the maximum
        have a weight.
        """
        return op("min", root * root * _FAR, const(self.factor * math.log2(math.e), self.dtype))

    def weight_of(self, score: Expr, most: Expr, factor: Expr) -> Expr:
        """The weight of a score, with one operation before the power if `fused`.

        The product with the maximum is rounded once for the row: all its weights, and hence their sum, have that error
        in common.
        """
        if not self.uses_fma:
            return self.exponential(self.exponent(score - most))
        return self.exponential(op("fma", score, factor, op("neg", most * factor)))

    def score(self, row: Var, column: Var, scores: str) -> Expr:
        """The argument of the softmax, -inf for a column beyond the end. Buffers are not read out of bounds."""
        f = self.found
        value = self.at(self.base, row.name, column.name)
        if f.scores:
            value = substitute(value, {f.scores.name: Load(scores, self.in_memory_order(row, column), self.dtype)})
        for x in self.masks:
            mask_load = self.at(x, row.name, column.name)
            value = substitute(value, {mask_load: Load(self.held[x.buffer], (row, column), x.dtype)})
        reads = [x for x in loads(value) if x.buffer not in (scores, *self.held.values())]
        return self.where_valid(value, row, column, -math.inf, reads)

    def finish_scores(self, scores: str) -> Body:
        """Statements that turn the results of matmuls into scores, where these differ or may differ."""
        f = self.found
        row, column = map(Var, self.step.made.edge)
        value = self.score(row, column, scores)
        if f.scores and isinstance(value, Load):
            return ()
        nest = self.over_rows(
            self.step.made.edge, self.columns, lambda i, j: Store(scores, self.in_memory_order(i, j), value)
        )
        if f.scores is None or not recognised.told_by_places(self.base, self.query, f.scores.name):
            return (nest,)
        last = self.turn * self.cols + (self.cols - 1)
        ends = [op("gt", last, self.block * (self.rows * a) + b) for a, b in reach(f.score, self.query)]
        if not self.local and not is_constant_multiple(self.keys, self.cols):
            ends.append(op("ge", last, self.keys))
        cond = functools.reduce(lambda x, y: op("or", x, y), (simplify(e, self.ranges, index=True) for e in ends))
        return (nest,) if isinstance(cond, Const) else (If(cond, (nest,)),)

    def epilogue(self) -> Iterator[Stmt]:
        """The epilogue, row by row. Local sums are transposed for it."""
        f = self.found
        row, feature = map(Var, self.step.made.last)
        inverse = Var(f"{f.total.name}_inverse", self.dtype)
        total, most = (Load(x.name, (row,), x.dtype) for x in (f.total, f.maximum))
        own: dict[Expr, Expr] = {f.total: total, f.maximum: most * const(self.factor, self.dtype)}
        if self.factor == 1.0:
            own[f.maximum] = most
        place, rows = f.accumulator.name, dim(self.rows)
        if self.local:
            place, shape = self.turned_sums, (self.width, self.rows)
            transposed = self.tensor(place, self.dtype, *shape).replace(strides=(dim(1), dim(self.width)))
            yield tile.Alloc(transposed, "local")
            whole = tile.Slice(place, (dim(0), dim(0)), shape)
            yield tile.Copy(whole, whole.replace(buffer=f.accumulator.name), "plain")
            if not is_constant_multiple(self.queries, self.rows):
                rows = op("min", rows, self.queries - self.block * self.rows)
        sum_load = Load(place, self.in_memory_order(row, feature), self.dtype)
        uses_inverse = f.last is op("div", f.accumulator, f.total) and self.dtype is f32
        result = sum_load * inverse if uses_inverse else substitute(f.last, own | {f.accumulator: sum_load})
        table = own | {f.accumulator: result}

        row_guard = [] if self.local else [self.validity("row", row.name)]
        row_stores = self.guarded_stores(f.row_after, table, row.name, feature.name, *row_guard)
        body = self.guarded_stores(
            f.after, table, row.name, feature.name, *row_guard, self.validity("feature", feature.name)
        )
        before = (Let(inverse.name, const(1.0, self.dtype) / total),) if uses_inverse else ()
        columns = self.nest([(feature.name, dim(self.width), "parallel")], body)
        yield self.nest([(row.name, rows, "parallel")], [*row_stores, *before, columns])
