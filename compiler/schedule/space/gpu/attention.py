"""Schedules of attention on a GPU: one pass over blocks of keys with an online softmax, on tensor cores.

Each warp has 16 queries of a block. Keys and values of the next block are copied to shared memory during the
computation: by the copy engine, issued by a producer warp, or by asynchronous copies of all threads. Scores, weights
and sums stay in registers: 16-bit weights as a left operand have the layout in which the scores are accumulated.
Weights of 32 bits have another layout and pass through shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from compiler.analysis import online_softmax
from compiler.analysis.nests import loop_ranges, size
from compiler.ir import loop
from compiler.ir.dtype import f32
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor, known_bytes
from compiler.schedule import names as naming
from compiler.schedule.block_steps import Online
from compiler.schedule.cost import gpu as cost
from compiler.schedule.gpu import matmul, matmul_axes
from compiler.schedule.gpu.matmul import RESERVED
from compiler.schedule.space.gpu import blocks
from compiler.schedule.space.gpu.blocks import MOST_FEATURES, NARROW, Steps, Way, as_loop
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Step
from compiler.targets.target import Instruction, Target

KEYS = 64  # a block of keys: its scores take 32 registers per thread
THREEFOLD_KEYS = 32  # a block of keys if a product of f32 takes three products of tf32
# Warpgroups per block, each with 64 queries, and keys per block. Two groups read keys and values once for both; with
# one, two or more blocks fit on a multiprocessor and multiply while another is at its softmax. These were the fastest
# for 512 to 4096 queries on an H200. Blocks that fill fewer than half of the multiprocessors lost to single warps with
# 32 queries per block.
GROUPS = ((2, 128), (1, 64))
GROUPS_NARROW = ((1, 128),)
ROWS = 6  # registers of a thread: maximum, total and factor of each of its two rows


def space(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Member] | None:
    """Schedules for `kernel`; None if it is not attention or the target has no instructions for it.

    `private` names the temporaries that no other kernel uses.
    """
    found = online_softmax.attention(kernel, private)
    if found is None:
        return None
    return _Plan(*found, {p.name: p for p in kernel.params}, target).space()


@dataclass
class _Plan:
    found: online_softmax.Online
    scores: online_softmax.Scores
    tensors: dict[str, Tensor]
    target: Target

    def __post_init__(self) -> None:
        f, s = self.found, self.scores
        key = loop.For(online_softmax.KEY.name, f.keys, "parallel", ())
        rows, keys, depth, features = (matmul_axes.axis([as_loop(x)]) for x in (f.query, key, s.depth, f.feature))
        every = (*f.rows, f.feature, s.depth, key)
        ranges = loop_ranges(every)
        self.queries, self.keys, self.depth, self.features = rows.size, keys.size, depth.size, features.size
        self.q = matmul_axes.factor(s.left, rows, depth, self.tensors, ranges)
        self.k = matmul_axes.factor(s.right, keys, depth, self.tensors, ranges)
        self.v = matmul_axes.factor(f.value, features, keys, self.tensors, ranges)

    # ---- the choice

    def ways(self) -> Iterator[Way]:
        """Candidate ways, the preferred of equal cost first; none unless all operands and the weights have one type.

        Warpgroups with the largest blocks are preferred, unless a single warp has rows for all queries.
        """
        kinds = {x.value.dtype for x in (self.q, self.k, self.v)} | {self.found.weight}
        if len(kinds) != 1 or {self.scores.name.dtype, self.found.accumulator.dtype} != {f32}:
            return
        kind = kinds.pop().name
        rows = blocks.instructions(self.target, kind)
        by_tma = all(x.even for x in (self.q, self.k, self.v)) and "tma" in self.target.features
        by_group = list(self.warpgroup_ways(rows)) if kind != "f32" and by_tma else []
        by_warp: list[Way] = []
        if max(self.depth, self.features) <= MOST_FEATURES:
            most = THREEFOLD_KEYS if kind == "f32" else KEYS
            by_warp = list(blocks.warp_ways(rows, most, self.keys, by_tma, self.queries))
        few = any(w.rows == w.score.m for w in by_warp)
        yield from (*by_warp, *by_group) if few else (*by_group, *by_warp)

    def warpgroup_ways(self, rows: list[Instruction]) -> Iterator[Way]:
        """Ways with warpgroups, if they have an instruction for the features."""
        value = [r for r in rows if r.function == "mlc_wgmma_rs" and r.n == self.features]
        if value and self.depth % 16 == 0:
            for groups, most in GROUPS_NARROW if max(self.depth, self.features) <= NARROW else GROUPS:
                keys = min(most, matmul.up(self.keys, KEYS))
                score = next(r for r in rows if r.function == "mlc_wgmma" and r.n == keys)
                yield blocks.warpgroup_way(score, value[0], groups, keys, True)

    def space(self) -> Iterator[Member] | None:
        batch = math.prod(size(as_loop(f)) for f in self.found.batch)
        fits = [w for w in self.ways() if self.memory(w) + RESERVED <= self.target.shared]
        if not fits:
            return None
        width = self.depth + self.features
        return ranked(
            Member(
                cost.attention_clocks(
                    self.target, self.queries, batch, w.rows, self.fills_cores(w, batch), self.keys, width
                ),
                partial(self.schedule, w),
            )
            for w in fits
        )

    def schedule(self, way: Way) -> tuple[Step, ...]:
        """The steps for one way."""
        return tuple(self.collect_steps(way).steps)

    def fills_cores(self, way: Way, batch: int) -> bool:
        """Whether blocks fill all multiprocessors, or half with single warpgroups, which alone run at full rate."""
        count = batch * -(-self.queries // way.rows)
        return count * (2 if way.uses_warpgroups and way.rows == way.score.m else 1) >= self.target.cores

    def fits_l2(self) -> bool:
        """Whether keys and values of all heads stay in the L2, so that blocks of all heads may run at once."""
        read = {x.buffer: self.tensors[x.buffer] for x in (self.k, self.v)}
        return sum(map(known_bytes, read.values())) <= self.target.l2 // 2

    def memory(self, way: Way) -> int:
        """Bytes of a block's tiles in shared memory."""
        depth, features = matmul.up(self.depth, way.unit), matmul.up(self.features, way.unit)
        weights = way.rows * way.keys if way.threefold else 0
        masks = sum(self.tensors[x].dtype.bytes for x in self.masks(way)) * way.stages * way.rows * way.keys
        operands = way.rows * depth + weights + way.stages * way.keys * (depth + features)
        return self.found.weight.bytes * operands + masks

    def registers_per_thread(self, way: Way) -> int:
        """Registers (32 bits) of a thread of a warpgroup for sums, scores, weights and values per row."""
        width = matmul.up(self.features, way.unit) + way.keys + way.keys * self.found.weight.bytes // 4
        return way.rows * width // way.threads + ROWS

    def masks(self, way: Way) -> tuple[str, ...]:
        """Buffers that scores load by query and key, if tensor maps can copy them and warpgroups compute."""
        found = online_softmax.masks(self.found.score, self.found.query.var) if way.uses_warpgroups else []
        whole = [x.buffer for x in found if way.keys * x.dtype.bytes % matmul_axes.ROW == 0]
        return tuple(x for x in whole if matmul_axes.even(self.tensors[x]))

    # ---- steps

    def collect_steps(self, way: Way) -> Steps:
        plan, f = Steps(way), self.found
        query, depth = f.query.var, self.scores.depth.var
        memory = ("shared", min(f.weight.bytes * way.keys, matmul_axes.ROW)) if way.threefold else ("registers", 0)
        overlaps = int(way.overlaps)
        masks = self.masks(way)
        mask_tiles = tuple(f"{x}_mask" for x in masks)
        step = Online(
            f.accumulator.name, way.rows, way.keys, unit=way.unit, space=memory[0], swizzle=memory[1], masks=masks,
            late=overlaps, held=mask_tiles, mask_swizzle=matmul_axes.ROW if masks else 0, **naming.online(f),
        )  # fmt: skip
        plan.steps.append(step)
        made = step.made
        plan.bind_grid(made.blocks[0], f.batch, bool(online_softmax.reach(f.score, query)) and self.fits_l2())
        for loops in (made.first, made.begin, made.zero, made.scale, made.last):
            plan.bind_lanes(*loops)
        if online_softmax.scaled(f.score)[1] is not self.scores.name or self.keys % way.keys:
            plan.bind_lanes(*made.edge)
        if overlaps:
            plan.bind_lanes(*made.weight)
        plan.bind_lanes(*made.row)
        widths = matmul.up(self.depth, way.unit), matmul.up(self.features, way.unit)
        nest = *made.score, depth
        q = plan.cache_shared(self.q, "query", {"own": (nest[0], way.rows), "k": (depth, widths[0])}, False)
        k = plan.cache_shared(self.k, "key", {"own": (nest[1], way.keys), "k": (depth, widths[0])})
        plan.tensorize(self.scores.name.name, nest, (q, k), way.score)
        nest = made.value
        v = plan.cache_shared(self.v, "value", {"own": (nest[1], widths[1]), "k": (nest[2], way.keys)})
        weights = step.made_tiles[1] if way.threefold else ""
        plan.tensorize(f.accumulator.name, nest, (weights, v), way.value, widths[1])
        plan.pipeline(made.blocks[1], self.registers_per_thread(way), self.target, bool(overlaps))
        return plan
