"""A loop nest that sums products in; the schedule that makes tiles of it and a tensor instruction of each tile out.

The loops of such a nest play four parts: m occurs in one factor only, n in the other only, k is what is summed over, and
all others (a batch) are left around. n is the loop along which the result is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compiler.ir import loop
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Var, names, substitute
from compiler.ir.index import Range, extent_range, linear
from compiler.ir.statement import Accum, Init, Kernel, Let, Stmt, Store
from compiler.ir.tensor import Tensor
from compiler.schedule import access
from compiler.schedule.steps import Bind, Collapse, Distribute, Pack, Reorder, Schedule, Split, Step, Tensorize
from compiler.targets.target import Instruction, Target

LEAST_DEPTH = 4  # shorter sums are not worth the tiles
STREAM_DEPTH = (
    8  # rows of a matrix read once that are read side by side: each is a stream of its own for the prefetcher
)
WORTH_CORES = 1 << 22  # multiply-adds, some 50 us of one core: less is not worth waking another
PAGE = 4096  # rows that are multiples of this many bytes apart fall on the same sets of a first-level cache
NARROWEST = 512  # columns of a block, where there are so many: long rows of B are read faster
OFTEN = 16  # row tiles that read a matrix before a copy of it in better order pays


def choose(kernel: Kernel, target: Target) -> Schedule | None:
    """A schedule for `kernel`, or None if it holds no contraction that the target has an instruction for."""
    found = recognise(kernel)
    if found is None:
        return None
    plan = _Plan(found, {p.name: p for p in kernel.params}, target)
    if not plan.instruction():
        return None
    made = plan.schedule()
    return made if plan.fresh(kernel, made) else None


@dataclass(frozen=True)
class Contraction:
    """`accumulator` sums left * right; `rows` are the parallel loops around it, `depth` the loops that it sums over."""

    accumulator: str
    rows: tuple[loop.For, ...]
    depth: tuple[loop.For, ...]
    left: Expr
    right: Expr
    first: Init
    after: tuple[Stmt, ...]


def recognise(kernel: Kernel) -> Contraction | None:
    """The contraction of a kernel that is one nest: parallel loops, one sum of products inside, values and stores after it."""
    rows: list[loop.For] = []
    body = kernel.body
    while len(body) == 1 and isinstance(body[0], loop.For) and body[0].kind == "parallel":
        rows.append(body[0])
        body = body[0].body
    place = next((n for n, s in enumerate(body) if isinstance(s, Init)), None)
    if not rows or place is None or place + 1 >= len(body):
        return None
    first, nest, after = body[place], body[place + 1], body[place + 2 :]
    depth: list[loop.For] = []
    while isinstance(nest, loop.For) and nest.kind == "reduce":
        depth.append(nest)
        *lets, nest = nest.body
        if not all(isinstance(s, Let) for s in lets) or (lets and isinstance(nest, loop.For)):
            return None
    assert isinstance(first, Init)
    values = [s for s in (*body[:place], *(depth[-1].body if depth else ())) if isinstance(s, Let)]
    simple = all(isinstance(s, Let) for s in body[:place]) and all(isinstance(s, Let | Store) for s in after)
    known = all(isinstance(f.extent, Const) and f.extent.value for f in (*rows, *depth))
    match nest:
        case Accum(name, "sum", value) if depth and simple and known and name == first.name and value.dtype.is_float:
            for s in reversed(values):
                value = substitute(value, {Var(s.name, s.value.dtype): s.value})
            match value:
                case Op("mul", (left, right)):
                    return Contraction(name, tuple(rows), tuple(depth), left, right, first, after)
    return None


@dataclass
class _Axis:
    """A part that loops play, or that one loop plays after they were collapsed and split."""

    name: str
    size: int
    block: int = 0
    outer: str = ""  # the loop over blocks, where there is one

    def cut(self, block: int, multiple: int) -> None:
        """Blocks of about equal size, at most `block` long, multiples of `multiple`."""
        count = -(-self.size // max(block, multiple))
        even = -(-self.size // count)
        self.block = min(self.size, -(-even // multiple) * multiple)

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block)


@dataclass
class _Plan:
    found: Contraction
    tensors: dict[str, Tensor]
    target: Target
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cores = 1
        c = self.found
        long = [f for f in c.rows if _size(f) > 1]
        self.ranges: dict[str, Range] = {f.var: extent_range(f.extent) for f in (*c.rows, *c.depth)}
        own = [
            [f for f in long if f.var in names(a) and f.var not in names(b)]
            for a, b in ((c.left, c.right), (c.right, c.left))
        ]
        contiguous = {
            f.var for f in long for s in c.after if isinstance(s, Store) and self.stride(s.buffer, s.index, f.var) == 1
        }
        swap = not own[1] or any(f.var in contiguous for f in own[0])
        self.a, self.b = (c.right, c.left) if swap else (c.left, c.right)
        rows, columns = reversed(own) if swap else own
        self.m_loops, self.n_loops = self.together(rows), self.together(columns)
        self.k_loops = list(c.depth)
        tiled = {f.var for f in (*self.m_loops, *self.n_loops)}
        self.around = [f for f in c.rows if f.var not in tiled]
        self.m, self.n, self.k = (self.axis(fs) for fs in (self.m_loops, self.n_loops, self.k_loops))
        self.bytes = c.first.value.dtype.bytes

    def axis(self, loops: Sequence[loop.For]) -> _Axis:
        size = 1
        for f in loops:
            size *= _size(f)
        return _Axis("".join(f.var for f in loops), size, size)

    def together(self, loops: list[loop.For]) -> list[loop.For]:
        """The innermost loop, and those around it through which every address moves evenly, so that all are one."""
        out = loops[-1:]
        for f in reversed(loops[:-1]):
            body = (
                loop.For(
                    "",
                    out[0].extent,
                    "parallel",
                    (*self.found.after, Let("", self.found.left), Let("", self.found.right)),
                ),
            )
            inner = access.strides(body, Var(out[0].var), self.tensors, self.ranges)
            outer = access.strides(body, Var(f.var), self.tensors, self.ranges)
            if any(a is None or b != a * _size(out[0]) for a, b in zip(inner, outer, strict=True)):
                break
            out.insert(0, f)
        return out

    # ---- where the operands lie

    def stride(self, buffer: str, index: tuple[Expr, ...], var: str) -> int | None:
        return access.stride(access.address(index, self.tensors[buffer], self.ranges), Var(var))

    def contiguous(self, factor: Expr, loops: Sequence[loop.For]) -> bool:
        """The factor's only load moves by one element with the innermost of `loops` that moves it at all."""
        loads = [n for n in factor.walk() if isinstance(n, Load)]
        inner = next((f for f in reversed(loops) if _size(f) > 1), None)
        return inner is None or (len(loads) == 1 and self.stride(loads[0].buffer, loads[0].index, inner.var) == 1)

    def direct(self, factor: Expr, *parts: Sequence[loop.For]) -> bool:
        """A tensor instruction can read the factor where it lies: one load, whose rows and columns are axes of its buffer."""
        while isinstance(factor, Cast) and factor.arg.dtype.is_float:
            factor = factor.arg
        if not isinstance(factor, Load):
            return False
        loops = [next((f for f in fs if _size(f) > 1), fs[0]) for fs in parts if fs]
        if any(sum(_size(f) > 1 for f in fs) > 1 for fs in parts):
            return False
        for f in loops:
            used = [linear(e)[0].get(Var(f.var)) for e in factor.index if f.var in names(e)]
            if used != [1]:
                return False
        return all(sum(f.var in names(e) for f in loops) <= 1 for e in factor.index)

    # ---- sizes

    def instruction(self) -> bool:
        """Choose the instruction and what is to be packed; False where there is no contraction or no instruction."""
        if not self.n_loops or self.k.size < LEAST_DEPTH:
            return False
        self.flat = self.contiguous(self.b, self.k_loops) and not self.contiguous(self.b, self.n_loops)
        function = "mlc_dot_block" if self.flat else "mlc_fma_block"
        kind = self.found.first.value.dtype.name
        fitting = [
            r for r in self.target.instructions if r.function == function and r.acc_type == kind and r.m <= self.m.size
        ]
        if not fitting:
            return False
        self.row: Instruction = min(fitting, key=lambda r: (self.cycles(r), -r.m * r.n))
        self.blocks()
        return True

    def cycles(self, row: Instruction) -> float:
        """What one step of k takes for all rows and columns, rests included, where all data is near.

        Two multiply-adds and two loads a cycle; an accumulator is ready for the next after four (current x86).
        """

        def tile(m: int, n: int) -> float:
            vectors = n if self.flat else -(-n // self.target.lanes(self.bytes))
            return max(m * vectors / 2, (m + vectors) / 2, 4) if m and n else 0

        (down, low), (across, narrow) = divmod(self.m.size, row.m), divmod(self.n.size, row.n)
        return across * (down * tile(row.m, row.n) + tile(low, row.n)) + down * tile(row.m, narrow) + tile(low, narrow)

    def blocks(self) -> None:
        """Block sizes from the caches.

        A panel of B (KC x NR) takes half the first level; a block of B (KC x NC) and one of the result (MC x NC) a quarter
        of the second each. A matrix that is read once, and does not fit the second level, is read in long rows instead.
        """
        row, size, l1, l2 = self.row, self.bytes, self.target.l1, self.target.l2
        tiles = -(-self.m.size // row.m)
        narrow = [_narrow(f, size) for f in (self.a, self.b)]
        lanes = self.target.lanes(size)
        b_row = max((abs(self.load_stride(self.b, f) or 0) for f in self.k_loops if _size(f) > 1), default=0) * size
        often = tiles > OFTEN and (b_row % PAGE == 0 or narrow[1]) and not self.flat
        self.pack_b = often or not self.direct(self.b, self.n_loops, self.k_loops)
        self.pack_a = narrow[0] or not self.direct(self.a, self.m_loops, self.k_loops)
        self.pack_a |= self.flat and not self.contiguous(self.a, self.k_loops)
        share = 2 if self.pack_b else 4
        depth = max(64, l1 * 2 // (share * row.n * size))
        if not self.flat and tiles == 1 and self.k.size * self.n.size * size > l2:
            self.k.cut(STREAM_DEPTH, 1)
            self.n.cut(l2 // 4 // (self.m.size * size), row.n)
        else:
            self.k.cut(depth, lanes)
            tall = l2 // share // (self.k.block * size) if self.flat else l2 // share // (NARROWEST * size)
            self.m.cut(max(tall // row.m, 1) * row.m, row.m)
            wide = l2 // share // (max(self.m.block, self.k.block if self.pack_b else 1) * size)
            self.n.cut(max(wide // row.n, 1) * row.n, row.n)
        self.share_out()

    def load_stride(self, factor: Expr, f: loop.For) -> int | None:
        load = next(n for n in factor.walk() if isinstance(n, Load))
        return self.stride(load.buffer, load.index, f.var)

    def share_out(self) -> None:
        """Every core gets a block of a product that is worth it: columns are divided further where there are too few."""
        others = self.m.blocks
        for f in self.around:
            others *= _size(f)
        work = self.m.size * self.n.size * self.k.size * others // self.m.blocks
        self.cores = self.target.cores if work >= WORTH_CORES else 1
        wanted = -(-self.cores // others)
        if self.n.blocks < wanted and self.n.size >= wanted * self.row.n:
            self.n.cut(-(-self.n.size // wanted), self.row.n)

    # ---- steps

    def schedule(self) -> Schedule:
        c, axes = self.found, [x for x in (self.m, self.n) if x.name]
        order = [f.var for f in (*self.around, *self.m_loops, *self.n_loops)]
        if order != [f.var for f in c.rows]:
            self.steps.append(Reorder(tuple(order)))
        for loops in (self.m_loops, self.n_loops, self.k_loops):
            self.collapse([f.var for f in loops])
        for x in (*axes, self.k):
            self.split(x)
        outside = [f.var for f in self.around] + [x.outer for x in axes if x.outer]
        if self.m.name and self.n.outer:
            self.steps.append(Reorder((*(x.outer for x in axes if x.outer), *(x.name for x in axes))))
        self.spread(outside)
        self.steps.append(Distribute(c.accumulator, tuple(x.name for x in axes)))
        inner = [x.name for x in (*axes, self.k)]
        if self.k.outer:
            self.steps.append(Reorder((self.k.outer, *inner)))
        vectors = self.pack()
        self.steps.append(Tensorize(tuple(inner), self.row.name))
        width = self.target.lanes(self.bytes)
        after = self.target.lanes(access.widest(c.after))
        for name, lanes in [
            (f"{self.n.name}_first", width),
            (f"{self.n.name}_last", after),
            *((v, width) for v in vectors),
        ]:
            if lanes > 1:
                self.steps.append(Bind(name, "vector", (("width", lanes), ("unroll", 1))))
        return Schedule(tuple(self.steps))

    def collapse(self, loops: list[str]) -> str:
        name = loops[0] if loops else ""
        for inner in loops[1:]:
            self.steps.append(Collapse(name, inner))
            name += inner
        return name

    def split(self, x: _Axis) -> None:
        if x.block < x.size:
            self.steps.append(Split(x.name, x.block))
            x.outer, x.name = x.name + "0", x.name + "1"

    def spread(self, outside: list[str]) -> None:
        """The outermost loops, as many as it takes to give every core some, are spread over the cores."""
        sizes = {f.var: _size(f) for f in self.around} | {x.outer: x.blocks for x in (self.m, self.n)}
        taken, count = 0, 1
        while taken < len(outside) and count < self.cores:
            count *= sizes[outside[taken]]
            taken += 1
        if taken and count > 1:
            self.steps.append(Bind(self.collapse(outside[:taken]), "blocks"))

    def pack(self) -> list[str]:
        """Packs what must be packed; the loops that fill the tiles with consecutive elements."""
        vectors = []
        for wanted, factor, part, mine in (
            (self.pack_a, self.a, self.m, self.m_loops),
            (self.pack_b, self.b, self.n, self.n_loops),
        ):
            if wanted:
                buffer = next(n.buffer for n in factor.walk() if isinstance(n, Load))
                rows_first = factor is self.a or self.flat
                loops = [x.name for x in ((part, self.k) if rows_first else (self.k, part)) if x.name]
                tile = f"{buffer}_tile" if factor is self.a else f"{buffer}_panel"
                self.steps.append(Pack(buffer, tile, tuple(loops)))
                if self.contiguous(factor, self.k_loops if rows_first else mine):
                    vectors.append(f"{loops[-1]}_{tile}")
        return vectors

    def fresh(self, kernel: Kernel, schedule: Schedule) -> bool:
        """None of the names that the steps make up is taken."""
        made: set[str] = set()
        for s in schedule.steps:
            match s:
                case Split(name):
                    made |= {name + "0", name + "1"}
                case Collapse(outer, inner):
                    made.add(outer + inner)
                case Pack(_, tile, loops):
                    made |= {tile, *(f"{x}_{tile}" for x in loops)}
                case Distribute(_, loops):
                    made |= {f"{x}_{end}" for x in loops for end in ("first", "last")}
        taken = {p.name for p in kernel.params}
        for s in kernel.body:
            taken |= {n.name for n in s.walk() if isinstance(n, Let | Init)} | {
                n.var for n in s.walk() if isinstance(n, loop.For)
            }
        return not made & taken


def _size(f: loop.For) -> int:
    assert isinstance(f.extent, Const)
    return int(f.extent.value)


def _narrow(factor: Expr, size: int) -> bool:
    """Reading the factor converts it from a smaller type."""
    return any(isinstance(n, Load) and n.dtype.bytes < size for n in factor.walk())
