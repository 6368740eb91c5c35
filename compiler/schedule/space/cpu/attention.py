"""Schedules of attention on a CPU: one pass over blocks of keys with an online softmax, by tensor instructions.

Vectors run along the queries of a block; the rows of its tiles are keys or features. The softmax then goes down
columns, so that neither its maximum nor its sum crosses the lanes of a vector, and keys and values are broadcast
element by element from where they are. Only queries and results are transposed, once each, independently of the number
of blocks of keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from compiler.analysis import access, online_softmax
from compiler.analysis.guarded_factors import unwidened
from compiler.analysis.nests import loop_ranges
from compiler.analysis.vectors import NARROWEST, fitting_width
from compiler.ir.dtype import bf16
from compiler.ir.expr import Expr, Load, Var, loads, names, static, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel
from compiler.ir.tensor import Tensor
from compiler.schedule import names as naming
from compiler.schedule.block_steps import Online
from compiler.schedule.cost import cpu as cost
from compiler.schedule.name_suffixes import suffixed
from compiler.schedule.space.cpu import blocking
from compiler.schedule.space.members import Member, ranked
from compiler.schedule.steps import Bind, Collapse, Pack, Schedule, Step, Tensorize
from compiler.targets.target import Instruction, Target, costs

MOST_VECTORS = 4  # vectors of queries that run side by side: as many as fit in registers beside a softmax
MORE_VECTORS = (6, 8)  # per block, for instructions that take as many: values are turned once for a block
# keys per block: the fewest that amortise the work per block, and the most that stay in the near caches
KEYS = (32, 256)


def space(kernel: Kernel, private: Iterable[str], target: Target) -> Iterator[Member] | None:
    """Blocks of queries and keys for a kernel; None if it is not attention, or there is no suitable instruction.

    `private` names the temporaries that no other kernel uses.
    """
    found = online_softmax.attention(kernel, private)
    if found is None:
        return None
    return _Plan(*found, {p.name: p for p in kernel.params}, target).space()


@dataclass(frozen=True)
class _Way:
    """The queries and keys of a block, and the instructions for scores and for values."""

    rows: int
    keys: int
    score: Instruction
    value: Instruction

    @property
    def short(self) -> bool:
        """Whether factors, weights among them, are multiplied in their own type of 16 bits."""
        return self.score.a_type != self.score.acc_type


@dataclass
class _Plan:
    found: online_softmax.Online
    scores: online_softmax.Scores
    tensors: dict[str, Tensor]
    target: Target
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        f = self.found
        self.dtype = f.accumulator.dtype
        self.lanes = self.target.lanes(self.dtype.bytes)
        extents = (f.query.extent, f.keys, self.scores.depth.extent, f.feature.extent)
        self.queries, self.keys, self.depth, self.features = map(static, extents)
        self.batch = math.prod(static(r.extent) for r in f.batch)

    def space(self) -> Iterator[Member] | None:
        """All ways, cheapest first; None if queries do not fill a vector or no instruction has the types."""
        ways = list(self.ways())
        if not ways or self.queries < self.lanes or self.scores.name.dtype is not self.dtype:
            return None
        return ranked(Member(self.cycles(way), partial(self.schedule, way)) for way in ways)

    def schedule(self, way: _Way) -> tuple[Step, ...]:
        """The steps for one way."""
        return replace(self, steps=[]).applied(way, self.masks()).steps

    def masks(self) -> tuple[str, ...]:
        """Buffers that scores load by query and key."""
        return tuple(x.buffer for x in online_softmax.masks(self.found.score, self.found.query.var))

    # ---- the choice

    def ways(self) -> Iterator[_Way]:
        every = [r for r in self.target.instructions if r.acc_type == self.dtype.name]
        kinds = [[r for r in every if r.function == blocking.PANEL]]
        factors = (self.scores.left, self.scores.right, self.found.value)
        if self.found.weight is bf16 and all(unwidened(x).dtype is bf16 for x in factors):
            kinds.append([r for r in every if r.function == blocking.TILED and r.a_type == bf16.name])
        counts = range(1, -(-self.keys // KEYS[0]) + 1)
        blocks = {n for count in counts if (n := -(-self.keys // count)) <= KEYS[1]}
        query, masks = self.found.query.var, self.masks()
        # Tiles are padded for a partial last block of queries, but other loads indexed by the query are not.
        read = any(x.buffer not in masks and query in names(x) for x in loads(self.found.score))
        for vectors in (*range(1, MOST_VECTORS + 1), *MORE_VECTORS):
            rows = self.lanes * vectors
            if read and self.queries % rows:
                continue
            for kind in kinds if vectors <= MOST_VECTORS else kinds[1:]:
                value = self.best(kind, self.features, rows)
                for keys in sorted(blocks):
                    score = self.best(kind, keys, rows)
                    if score is not None and value is not None:
                        yield _Way(rows, keys, score, value)

    def best(self, instructions: Iterable[Instruction], m: int, n: int) -> Instruction | None:
        fit = [r for r in instructions if r.function == blocking.TILED or (r.m <= m and r.n <= n)]
        return min(fit, key=lambda r: (self.step(r, m, n), -r.m * r.n), default=None)

    def step(self, row: Instruction, m: int, n: int) -> float:
        return cost.step(m, n, self.dtype.bytes, self.target, row)

    def cycles(self, way: _Way) -> float:
        """Cycles for all queries of a head; blocks of keys beyond the causal limit are not counted."""
        vectors, blocks = way.rows // self.lanes, -(-self.queries // way.rows)
        every = -(-self.keys // way.keys)
        turns = 0
        for block in range(blocks):
            ends = [a * (block * way.rows + way.rows - 1) + b for a, b in self.reach()]
            turns += min([every, *(max(0, end // way.keys + 1) for end in ends)])
        multiplies = self.depth * self.step(way.score, way.keys, way.rows) + way.keys * self.step(
            way.value, self.features, way.rows
        )
        c = costs(self.target)
        if way.short:  # two steps at a time; right factors are laid out by the instruction, values are turned before
            right = way.rows * (self.depth + way.keys)
            multiplies = multiplies / 2 + right * c["copy"] + way.keys * self.features * c["transpose"]
        rest = vectors * (way.keys * (c["weight"] + c["sum"]) + 2 * self.features * c["sum"])
        return turns * (multiplies + rest) + blocks * vectors * c["turn"] * (self.depth + self.features)

    def reach(self) -> list[tuple[int, int]]:
        return online_softmax.reach(self.found.score, self.found.query.var)

    # ---- steps

    def applied(self, way: _Way, masks: tuple[str, ...]) -> Schedule:
        add, f = self.steps.append, self.found
        held = tuple(f"{x}_mask" for x in masks)
        step = Online(
            f.accumulator.name, way.rows, way.keys, space="local", masks=masks, held=held, narrow=way.short,
            **naming.online(f),
        )  # fmt: skip
        add(step)
        made = step.made
        if self.batch * self.queries * self.keys * (self.depth + self.features) >= blocking.WORTH_CORES:
            name = made.blocks[0]
            for r in reversed(f.batch):
                add(Collapse(r.var, name, r.var + name))
                name = r.var + name
            add(Bind(name, "blocks"))
        (rows, columns), depth = made.score, self.scores.depth.var
        self.pack(self.scores.left, "query", (depth, rows), way.short)
        if not self.direct(self.scores.right, online_softmax.KEY.name, depth, along=depth if way.short else ""):
            self.pack(self.scores.right, "key", (columns, depth), way.short)
        add(Tensorize((columns, rows, depth), way.score.name))
        rows, columns, keys = made.value
        if way.short:
            self.pack(f.value, "value", (columns, keys), True)
        elif not self.direct(f.value, f.feature.var, online_softmax.KEY.name):
            self.pack(f.value, "value", (keys, columns))
        add(Tensorize((columns, rows, keys), way.value.name))
        for nest in (made.first, made.begin, made.zero, made.scale):
            self.lanes_of(nest[0], self.lanes)
        if online_softmax.scaled(f.score)[1] is not self.scores.name:
            self.lanes_of(made.edge[0], self.lanes)
        vectors = way.rows // self.lanes
        self.lanes_of(made.row[0], self.lanes, vectors // -(-vectors // MOST_VECTORS))
        ranges = loop_ranges((*f.rows, f.feature))
        # By then, sums are elements of a tile, which cannot be loaded under a mask.
        sums = (f.accumulator, f.total, f.maximum)
        elements: dict[Expr, Expr] = {x: Load(x.name, (Var(f.feature.var),), x.dtype) for x in sums}
        if access.not_vectorizable(substitute(f.after, elements), Var(f.feature.var), self.tensors, ranges):
            return Schedule(tuple(self.steps))
        width = fitting_width(self.target.lanes(access.widest(f.after)), f.feature.extent)
        self.lanes_of(made.last[1], width)
        return Schedule(tuple(self.steps))

    def lanes_of(self, name: str, width: int, unroll: int = 1) -> None:
        if width >= NARROWEST:
            rolled = (("rolled", 1),) if unroll == 1 else ()
            self.steps.append(Bind(name, "vector", (("width", width), ("unroll", unroll), *rolled)))

    def direct(self, factor: Expr, *loops: str, along: str = "") -> bool:
        """Whether an instruction can read the factor in place: each loop moves an axis of its own by one, and it loads
        the sum's type or, where it is contiguous `along` that loop, a type that the instruction takes. Others would
        have to widen a narrower factor again for each row of their tiles."""
        factor = unwidened(factor) if along else factor
        if not isinstance(factor, Load):
            return False
        if along:
            at = access.address(factor.index, self.tensors[factor.buffer], loop_ranges(self.found.rows))
            if access.stride(at, Var(along)) != 1:
                return False
        moved = [[d for d, e in enumerate(factor.index) if v in names(e)] for v in loops]
        ones = all(linear(factor.index[d])[0].get(Var(v)) == 1 for v, ds in zip(loops, moved, strict=True) for d in ds)
        return all(len(ds) == 1 for ds in moved) and moved[0] != moved[1] and ones

    def pack(self, factor: Expr, word: str, order: tuple[str, str], narrow: bool = False) -> None:
        buffer = next(x.buffer for x in factor.walk() if isinstance(x, Load))
        tile = f"{buffer}_{word}"
        self.steps.append(Pack(buffer, tile, order, suffixed(order, tile), self.lanes, narrow))
