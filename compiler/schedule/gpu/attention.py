"""A loop nest that sums values weighted by a softmax and a target in; one pass over blocks of keys by tensor cores out.

Each warp has 16 queries of a block. Keys and values come to shared memory while those before are multiplied; scores,
weights and sums stay in registers: what a thread holds of the scores is what it needs of the weights as a left operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from compiler.ir import loop
from compiler.ir.dtype import STORAGE_ONLY
from compiler.ir.expr import Const
from compiler.ir.index import Range, extent_range
from compiler.ir.statement import Init, Kernel, Let
from compiler.ir.tensor import Tensor
from compiler.schedule import online
from compiler.schedule.gpu import parts
from compiler.schedule.gpu.tiles import RESERVED, WARP
from compiler.schedule.steps import Bind, Cache, Online, Reorder, Schedule, Split, Step, Tensorize
from compiler.targets.target import Instruction, Target

LEAST_QUERIES = 9  # fewer are products of a matrix and few rows, which wait for memory whatever multiplies them
KEYS = 64  # a block of keys: its scores are 32 registers a thread
WARPS = (8, 4, 2)  # of a block, most first: the more, the fewer times keys and values are read
DEPTH = 2  # blocks of keys in shared memory
MOST_FEATURES = 128  # the sums of wider values do not fit in registers beside the rest


def choose(kernel: Kernel, private: Iterable[str], target: Target) -> Schedule | None:
    """A schedule for `kernel`, or None if it holds no such sum, or none that the target has instructions for.

    `private` names the temporaries that no other kernel uses.
    """
    found = online.recognise(kernel)
    if found is None or found.scores is None or not set(found.inner) <= set(private):
        return None
    known = (*found.rows, found.feature, found.scores.depth)
    if not all(isinstance(f.extent, Const) for f in known) or not isinstance(found.keys, Const):
        return None
    made = _Plan(found, found.scores, {p.name: p for p in kernel.params}, target).schedule()
    return made if made is not None and _fresh(kernel, made) else None


@dataclass
class _Plan:
    found: online.Online
    scores: online.Scores
    tensors: dict[str, Tensor]
    target: Target
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        f, s = self.found, self.scores
        key = loop.For(online.KEY.name, f.keys, "parallel", ())
        rows, keys, depth, features = (parts.axis([_loop(x)]) for x in (f.query, key, s.depth, f.feature))
        every = (*f.rows, f.feature, s.depth, key)
        ranges: dict[str, Range] = {x.var: extent_range(x.extent) for x in every}
        self.queries, self.keys, self.depth, self.features = rows.size, keys.size, depth.size, features.size
        self.q = parts.factor(s.left, rows, depth, self.tensors, ranges)
        self.k = parts.factor(s.right, keys, depth, self.tensors, ranges)
        self.v = parts.factor(f.value, features, keys, self.tensors, ranges)

    def row(self) -> Instruction | None:
        """The instruction for both products: all operands are of one type that weights are rounded to."""
        kinds = {x.value.dtype for x in (self.q, self.k, self.v)} | {self.found.weight}
        acc = self.found.accumulator.dtype
        if len(kinds) != 1 or self.scores.name.dtype is not acc:
            return None
        kind = kinds.pop()
        rows = [
            r for r in self.target.instructions
            if r.function == "mlc_mma_sync" and (r.a_type, r.b_type, r.acc_type) == (kind.name, kind.name, acc.name)
        ]  # fmt: skip
        if kind not in STORAGE_ONLY:
            return None
        return max(rows, key=lambda r: r.m * r.k, default=None)

    def schedule(self) -> Schedule | None:
        row = self.row()
        if row is None or self.queries < LEAST_QUERIES or max(self.depth, self.features) > MOST_FEATURES:
            return None
        keys = min(KEYS, _up(self.keys, row.k))
        warps = self.warps(row)
        size = self.found.weight.bytes
        shared = size * (warps * row.m * _up(self.depth, row.k))
        shared += size * DEPTH * keys * (_up(self.depth, row.k) + _up(self.features, row.k))
        if shared + RESERVED > self.target.shared:
            return None
        return self.applied(row, warps, keys)

    def warps(self, row: Instruction) -> int:
        """As many warps as leave a block for every multiprocessor."""
        batch = math.prod(parts.size(_loop(f)) for f in self.found.batch)
        fits = [w for w in WARPS if batch * -(-self.queries // (w * row.m)) >= self.target.cores]
        return fits[0] if fits else WARPS[-1]

    def applied(self, row: Instruction, warps: int, keys: int) -> Schedule:
        add, f = self.steps.append, self.found
        query, key, feature, depth = f.query.var, f.key, f.feature.var, self.scores.depth.var
        threads = warps * WARP
        add(Online(f.accumulator.name, warps * row.m, keys, row.k))
        self.steps += [Bind(x.var, "blocks") for x in f.batch]
        add(Bind(f"{query}0", "blocks"))
        self.spread(f"{query}_first", threads)
        for end, column in (("begin", feature), ("zero", key), ("scale", feature), ("last", feature)):
            self.spread(f"{query}_{end}", threads, f"{column}_{end}")
        self.spread(f"{query}_row", threads, f"{key}_row", f"{key}_max", f"{key}_exp")
        names = f"{query}_score", f"{key}_score", depth
        widths = warps * row.m, keys, _up(self.depth, row.k)
        q = self.shared(self.q, "query", {"own": names[0], "k": depth}, widths[2], threads)
        k = self.shared(self.k, "key", {"own": names[1], "k": depth}, widths[2], threads)
        self.product(names, (q, k), row)
        names = f"{query}_value", f"{feature}_value", f"{key}_value"
        v = self.shared(self.v, "value", {"own": names[1], "k": names[2]}, _up(self.features, row.k), threads)
        self.product(names, ("", v), row)
        add(Bind(f"{key}0", "pipeline", (("depth", DEPTH),)))
        return Schedule(tuple(self.steps))

    def spread(self, rows: str, threads: int, *columns: str) -> None:
        self.steps.append(Bind(rows, "lanes", (("threads", threads),)))
        self.steps += [Bind(x, "lanes") for x in columns]

    def shared(self, x: parts.Factor, word: str, own: dict[str, str], width: int, threads: int) -> str:
        """A factor's tile in shared memory, in rows of `width` where it is copied."""
        name = f"{x.buffer}_{word}"
        loops = (own[x.order[0]], own[x.order[1]])
        row = width * x.operand.bytes
        swizzle = next(w for w in (128, 64, 32, 0) if not w or row % w == 0)
        how = "" if not x.operand.copied else "cp.async" if x.operand.piece in parts.PIECES else "plain"
        self.steps.append(Cache(x.buffer, name, loops, "shared", how, swizzle))
        if not how:
            self.spread(f"{name}_at", threads)
        return name

    def product(self, nest: tuple[str, str, str], operands: tuple[str, str], row: Instruction) -> None:
        """The product of what is in shared memory, a piece of the depth at a time; a left operand may be there."""
        m, n, k = nest
        self.steps += [Split(k, row.k), Reorder((f"{k}0", m, n, f"{k}1")), Bind(f"{k}0", "unroll")]
        for name, own in zip(operands, (m, n), strict=True):
            if name:
                self.steps.append(Cache(name, f"{name}_piece", (own, f"{k}1"), "registers", "plain"))
        self.steps.append(Tensorize((m, n, f"{k}1"), row.name))


def _loop(f: online.For) -> loop.For:
    return loop.For(f.var, f.extent, f.kind, ())


def _up(a: int, b: int) -> int:
    return -(-a // b) * b


def _fresh(kernel: Kernel, schedule: Schedule) -> bool:
    """None of the names that the steps make up is taken."""
    made: set[str] = set()
    for s in schedule.steps:
        match s:
            case Cache(_, name):
                made |= {name}
            case Bind(name):
                made |= {name}
    taken = {p.name for p in kernel.params}
    rows = {f.var for f in kernel.body if isinstance(f, loop.For)}
    for top in kernel.body:
        taken |= {n.name for n in top.walk() if isinstance(n, Let | Init)}
    return not made & taken and bool(rows)
