"""Schedules of chained matmuls on a GPU: one pass over blocks of columns, on tensor cores.

The accumulators of a block's products have the register layout of 16-bit left operands, so that weights computed from
them never leave their thread or its registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from compiler.analysis import chained_products
from compiler.analysis.chained_products import Chained
from compiler.analysis.nests import loop_ranges, size
from compiler.analysis.online_softmax import KEY
from compiler.ir import loop
from compiler.ir.dtype import f32
from compiler.ir.expr import Var, substitute
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor
from compiler.schedule.block_steps import Chain
from compiler.schedule.cost import gpu as cost
from compiler.schedule.gpu import matmul, matmul_axes
from compiler.schedule.gpu.matmul import RESERVED
from compiler.schedule.space.gpu import blocks
from compiler.schedule.space.gpu.blocks import MOST_FEATURES, NARROW, Steps, Way, as_loop
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Step
from compiler.targets.target import Target

COLUMNS = 64  # columns per block: each product takes 32 registers per thread of a warpgroup with 64 rows
# Warpgroups per block with 64 rows each, best first; two read columns once for both. On an H200 one took 0.91 of the
# time of two with heads of 64 features (67 and 74 us for 8 x 12 x 512), two 0.75 of that of one with 128 (635 and 850
# us for 4 x 16 x 2048).
GROUPS_NARROW, GROUPS = (1, 2), (2, 1)


def space(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Member] | None:
    """Schedules for `kernel`; None if it is no such chain or the target has no instructions for it."""
    found = chained_products.chained(kernel, private)
    return _Plan(found, {p.name: p for p in kernel.params}, target).space() if found is not None else None


@dataclass
class _Plan:
    found: Chained
    tensors: dict[str, Tensor]
    target: Target

    def __post_init__(self) -> None:
        f = self.found
        column = loop.For(KEY.name, f.columns, "parallel", ())
        every = (*f.rows, f.feature, column, *(p.depth for p in f.products))
        ranges = loop_ranges(every)
        rows, columns, features = (matmul_axes.axis([as_loop(x)]) for x in (f.row, column, f.feature))
        depths = [matmul_axes.axis([as_loop(p.depth)]) for p in f.products]
        self.rows, self.columns, self.features = rows.size, columns.size, features.size
        self.depths = [d.size for d in depths]
        self.factors = [
            (
                matmul_axes.factor(p.left, rows, d, self.tensors, ranges),
                matmul_axes.factor(p.right, columns, d, self.tensors, ranges),
            )
            for p, d in zip(f.products, depths, strict=True)
        ]
        self.value = matmul_axes.factor(f.value, features, columns, self.tensors, ranges)

    # ---- the choice

    def ways(self) -> Iterator[Way]:
        """Candidate ways, largest blocks first; none unless all operands and the weights have one 16-bit type."""
        operands = [self.value, *(x for pair in self.factors for x in pair)]
        kinds = {x.value.dtype for x in operands} | {self.found.kind}
        sums = {self.found.accumulator.dtype, *(p.name.dtype for p in self.found.products)}
        if len(kinds) != 1 or sums != {f32} or f32 in kinds:
            return
        kind = kinds.pop().name
        rows = blocks.instructions(self.target, kind)
        by_tma = all(x.even for x in operands) and "tma" in self.target.features
        value = [r for r in rows if r.function == "mlc_wgmma_rs" and r.n == self.features]
        score = [r for r in rows if r.function == "mlc_wgmma" and r.n == COLUMNS]
        if value and score and by_tma and all(d % score[0].k == 0 for d in self.depths):
            for n in GROUPS_NARROW if max(self.features, *self.depths) <= NARROW else GROUPS:
                yield blocks.warpgroup_way(score[0], value[0], n, COLUMNS, by_tma)
        if max(self.features, *self.depths) <= MOST_FEATURES:
            yield from blocks.warp_ways(rows, COLUMNS, self.columns, by_tma)

    def space(self) -> Iterator[Member] | None:
        batch = math.prod(size(as_loop(f)) for f in self.found.batch)
        fits = [w for w in self.ways() if self.memory(w) + RESERVED <= self.target.shared]
        width = self.features + sum(self.depths)

        def price(way: Way) -> float:
            fills = batch * -(-self.rows // way.rows) >= self.target.cores
            return cost.attention_clocks(self.target, self.rows, batch, way.rows, fills, self.columns, width)

        return ranked(Member(price(w), partial(self.schedule, w)) for w in fits) if fits else None

    def memory(self, way: Way) -> int:
        """Bytes of a block's tiles in shared memory."""
        depth, features = sum(matmul.up(d, way.unit) for d in self.depths), matmul.up(self.features, way.unit)
        return self.found.kind.bytes * (way.rows * depth + way.stages * way.keys * (depth + features))

    def registers_per_thread(self, way: Way, made: chained_products.Made) -> int:
        """Registers (32 bits) of a thread of a warpgroup for sums, products, weights and values per row and column."""
        weights = way.keys * self.found.kind.bytes // 4
        width = matmul.up(self.features, way.unit) + len(self.depths) * way.keys + weights
        return way.rows * width // way.threads + 2 * len(made.rows) + way.keys // 4 * len(made.columns)

    def value_tile_word(self) -> str:
        """The factor that equals the values, so that one tile serves both: gradients multiply by it again."""
        feature = Var(self.found.feature.var)
        for n, (p, depth) in enumerate(zip(self.found.products, self.depths, strict=True)):
            same = substitute(p.right, {Var(p.depth.var): feature}) is self.found.value
            if same and depth == self.features and self.value.operand.copied:
                return f"right{n}"
        return "value"

    # ---- steps

    def schedule(self, way: Way) -> tuple[Step, ...]:
        """The steps for one way."""
        plan, f, made = Steps(way), self.found, chained_products.made(self.found)
        o = f.accumulator.name
        tiles = f"{o}_weights", *(v.name for v in (*made.rows, *made.columns))
        products = tuple(p.name.name for p in f.products)
        into = f.row.var, f.column, f.feature.var
        step = Chain(o, way.rows, way.keys, into=into, products=products, tiles=tiles, unit=way.unit)
        plan.steps.append(step)
        loops = step.made
        plan.bind_grid(loops.blocks[0], f.batch, bool(list(chained_products.reach(f.weight, f.row.var))))
        for held, nest in ((made.rows, loops.row), (made.columns, loops.column)):
            if held:
                plan.bind_lanes(*nest)
        for tile in (loops.begin, *loops.zero, loops.weight, loops.last):
            plan.bind_lanes(*tile)
        for n, (p, pair) in enumerate(zip(f.products, self.factors, strict=True)):
            row, column = loops.score[n]
            depth = p.depth.var, matmul.up(self.depths[n], way.unit)
            left = plan.cache_shared(pair[0], f"left{n}", {"own": (row, way.rows), "k": depth})
            right = plan.cache_shared(pair[1], f"right{n}", {"own": (column, way.keys), "k": depth})
            plan.tensorize(products[n], (row, column, p.depth.var), (left, right), way.score)
        value_nest = loops.value
        width = matmul.up(self.features, way.unit)
        value = plan.cache_shared(
            self.value, self.value_tile_word(), {"own": (value_nest[1], width), "k": (value_nest[2], way.keys)}
        )
        plan.tensorize(o, value_nest, ("", value), way.value, width)
        plan.pipeline(loops.blocks[1], self.registers_per_thread(way, made), self.target)
        return tuple(plan.steps)
