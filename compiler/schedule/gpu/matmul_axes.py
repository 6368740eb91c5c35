"""The loop nest of a contraction in; which of its loops are m, n, k and the batch of a matmul out.

m occurs in one factor only, n in the other only, k is what is summed over, and all others are a batch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.analysis import access
from compiler.analysis.guarded_factors import unwidened
from compiler.analysis.nests import loop_ranges, size
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Select, Var, loads, names, static, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Store
from compiler.ir.tensor import Tensor, known_bytes
from compiler.schedule.contraction_nest import Contraction, sides
from compiler.schedule.gpu import permuted_copy
from compiler.schedule.gpu.matmul import Operand
from compiler.schedule.steps import Permute, Step

PIECES = (16, 8, 4)  # bytes that an asynchronous copy moves at a time
ROW = 128  # bytes of a row of a tile in shared memory: as many as all banks hold together


Order = tuple[str, str]


@dataclass
class Axis:
    """The loop that plays a part, after those that play it were made one; `outer` is its loop over tiles.

    Tiles of a `boxed` axis are boxes of its loops, which take up to `step` elements at a time of what they go through.
    Those of a `near` one are neighbours in the result. One that sums has a `box` of its own, and is as long as all of
    these.
    """

    name: str
    size: int
    loops: tuple[loop.For, ...]
    outer: str = ""
    boxed: bool = False
    step: int = 1
    near: bool = False
    box: tuple[int, ...] = ()


@dataclass(frozen=True)
class Factor:
    """A factor before it is widened from 16 bits, and the buffer that it loads first.

    `order` has "k" and "own", the part along which it is contiguous last; `even` says that rows of its buffer begin at
    multiples of 16 bytes, as copies by tensor maps need; `side` is how many neighbours along the last part a thread may
    compute side by side, 1 where a guard may differ between them.
    """

    value: Expr
    buffer: str
    operand: Operand
    order: Order
    even: bool
    side: int = 1


@dataclass(frozen=True)
class Result:
    """The buffer that a matmul is stored to and the bytes of its elements; whether m and n end where its axes do.

    `how` says what copies a tile of it out of shared memory: a tensor map if that can describe it, else all threads;
    empty where each thread stores what it has. Rows begin at multiples of `piece` bytes. `twin` says that there is the
    same matmul without a tile of the result, too.
    """

    buffer: str
    bytes: int
    m_ends: bool
    n_ends: bool
    how: str = "tma"
    piece: int = ROW
    twin: bool = False


@dataclass(frozen=True)
class Joined:
    """A buffer that results are joined with: a block of it for a tile, or a vector along m or n alone."""

    buffer: str
    bytes: int
    along: tuple[bool, bool]  # m, n

    @property
    def is_block(self) -> bool:
        return all(self.along)


@dataclass(frozen=True)
class MatmulAxes:
    """The axes and operands of a matmul: acc[m, n] += a[m, k] * b[k, n] for every iteration of the loops of the batch.

    `across` says that the result is contiguous along n rather than along m; `result` is where tiles can be copied to.
    """

    found: Contraction
    m: Axis
    n: Axis
    k: Axis
    batch: tuple[loop.For, ...]
    a: Factor
    b: Factor
    across: bool
    result: Result | None
    copies: tuple[Step, ...] = ()  # steps that copy buffers beforehand, so that factors are blocks of the copies
    copied: tuple[int, ...] = ()  # bytes that each of these reads and writes
    read: int = 0  # bytes of both factors' buffers, where elements of these are read again and again
    joined: tuple[Joined, ...] = ()  # what results are joined with that can be loaded before the sum


def ways(c: Contraction, tensors: Mapping[str, Tensor]) -> Iterator[MatmulAxes]:
    """All ways to look at a contraction as a matmul: of several loops that play a part, all or the innermost may be
    one; and each factor may be the left one."""
    long = [f for f in c.rows if size(f) > 1]
    ranges = loop_ranges(c.loops)
    even = {
        f.var
        for f in long
        for s in c.after
        if isinstance(s, Store) and _stride(s.buffer, s.index, f.var, tensors, ranges) == 1
    }
    k = axis(c.depth)
    for (left, rows), (right, columns) in sides(c):
        if not columns:
            continue
        for m_loops in _choices(rows):
            for n_loops in _choices(columns):
                m, n = axis(m_loops), axis(n_loops)
                tiled = {f.var for f in (*m_loops, *n_loops)}
                batch = tuple(f for f in c.rows if f.var not in tiled)
                across = not any(f.var in even for f in rows)
                result = _result(c, m, n, tensors, ranges)
                joined = tuple(joined_with(c, m, n, tensors, ranges))
                for (a, first), (b, second) in itertools.product(
                    _factors(left, right, m, k, tensors, ranges), _factors(right, left, n, k, tensors, ranges)
                ):
                    read = _read((left, right), tensors) if a.operand.widened or b.operand.widened else 0
                    copies, copied = permuted_copy.prepared((first, second), tensors)
                    for stored in _stores(result):
                        yield MatmulAxes(c, m, n, k, batch, a, b, across, stored, copies, copied, read, joined)


def _factors(
    value: Expr, other: Expr, own: Axis, k: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Iterator[tuple[Factor, Permute | None]]:
    """A factor as it is and, where rows of its buffer begin anywhere, as it is after these were copied further apart.

    A buffer that the other factor loads as well stays as it is: all loads of the kernel would be from the copy.
    """
    plain = factor(value, own, k, tensors, ranges)
    yield plain, None
    t = tensors[plain.buffer]
    if not plain.operand.copied or plain.even or t.name in {x.buffer for x in loads(other)}:
        return
    step = permuted_copy.padded(t)
    if static(t.shape[-1]) % step.multiple and permuted_copy.steps(step, t):
        moved = substitute(value, {x: permuted_copy.load(x, step) for x in loads(value)})
        yield factor(moved, own, k, {**tensors, step.tile: permuted_copy.held(step, t)}, ranges), step


def _read(factors: Sequence[Expr], tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all buffers that factors load."""
    return sum(known_bytes(tensors[name]) for name in {x.buffer for f in factors for x in loads(f)})


def _choices(loops: Sequence[loop.For]) -> list[Sequence[loop.For]]:
    return [loops[-1:], loops] if len(loops) > 1 else [loops]


def axis(loops: Sequence[loop.For]) -> Axis:
    return Axis("".join(f.var for f in loops), math.prod(map(size, loops)), tuple(loops))


def _stride(
    buffer: str, index: tuple[Expr, ...], var: str, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> int | None:
    return access.stride(access.address(index, tensors[buffer], ranges), Var(var))


def factor(wide: Expr, own: Axis, k: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> Factor:
    """A factor as it goes to its tile: as a copy where it is a block of its buffer, else computed by threads."""
    value = unwidened(wide)

    def run(part: Axis) -> int:
        """Neighbours in memory that the innermost loop of a part goes through."""
        last = part.loops[-1] if part.loops else None
        even = last and any(_stride(x.buffer, x.index, last.var, tensors, ranges) == 1 for x in loads(value))
        return size(last) if last and even else 0

    order = ("k", "own") if run(own) > run(k) else ("own", "k")
    if isinstance(value, Load) and _is_block(value, own, k, tensors, ranges):
        return _copied(value, order, tensors, ranges)
    return _computed(value, order, (own if order[1] == "own" else k).loops[-1], tensors, ranges)


def _copied(value: Load, order: Order, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> Factor:
    width, t = value.dtype.bytes, tensors[value.buffer]
    terms, rest = linear(access.address(value.index, t, ranges))
    rows = [int(n.value) * width for n in t.strides[:-1] if isinstance(n, Const)]
    steps = [*rows, *(c * width for c in terms.values() if c != 1), rest * width]
    piece = next((p for p in PIECES if all(n % p == 0 for n in steps)), 0)
    begins = rest * width % PIECES[0] == 0  # as tensor maps ask for
    return Factor(value, value.buffer, Operand(width, True, piece or width), order, even(t) and begins)


def _computed(
    value: Expr, order: Order, last: loop.For, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Factor:
    """A factor of which a thread computes as many neighbours along the `last` loop as one load brings."""
    width, found = value.dtype.bytes, loads(value)
    guarded = any(isinstance(n, Select) and last.var in names(n.cond) for n in value.walk())
    most = 16 // max(width, *(x.dtype.bytes for x in found))
    counts = (n for n in (most, 8, 4, 2, 1) if n <= most and _together(found, last, n, tensors, ranges))
    side = 1 if guarded else next(counts)
    widened = side > 1 and any(x.dtype.bytes < width for x in found)
    return Factor(value, found[0].buffer, Operand(width, False, width, widened), order, False, side)


def _together(
    found: Sequence[Load], last: loop.For, count: int, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> bool:
    """So many iterations of a loop, from a multiple of them on, load neighbours, or one and the same."""
    if count == 1 or size(last) % count:
        return count == 1
    around, lane = Var(f"{last.var}_around"), Var(f"{last.var}_lane")
    inside = {**ranges, around.name: (0, size(last) // count - 1), lane.name: (0, count - 1)}
    place: dict[Expr, Expr] = {Var(last.var): around * count + lane}
    moved = [(x.buffer, simplify(substitute(x.index, place), inside)) for x in found]
    steps = [_stride(buffer, index, lane.name, tensors, inside) for buffer, index in moved]
    return all(n in (0, 1) for n in steps) and 1 in steps


def _is_block(load: Load, own: Axis, k: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> bool:
    """A copy can bring a tile: each part moves an axis of its own, and ends where its axis does, or is made of whole
    tiles. Else what pads it would be guarded by more than the buffer's own bounds."""
    ends, whole = _axes(load.buffer, load.index, (own, k), tensors, ranges), ROW // load.dtype.bytes
    return bool(ends) and all(e or part.size % whole == 0 for e, part in zip(ends, (own, k), strict=True))


def _axes(
    buffer: str,
    index: tuple[Expr, ...],
    parts: Sequence[Axis],
    tensors: Mapping[str, Tensor],
    ranges: Mapping[str, Range],
) -> list[bool]:
    """For each part whether it ends where its axis does; nothing unless each moves an axis of its own by one, and the
    last axis, through neighbours, is one of these."""
    found: list[int] = []
    ends: list[bool] = []
    for part in parts:
        moved = [d for d, e in enumerate(index) if part.name in names(e)]
        if len(part.loops) != 1 or len(moved) != 1 or moved[0] in found:
            return []
        terms, rest = linear(index[moved[0]])
        others = [t for t in terms if t is not Var(part.name)]
        if terms.get(Var(part.name)) != 1 or any(part.name in names(t) for t in others):
            return []
        end = tensors[buffer].shape[moved[0]]
        ends.append(not others and isinstance(end, Const) and int(end.value) == part.size + rest)
        found += moved
    last = [part for part, d in zip(parts, found, strict=True) if d == len(index) - 1]
    return ends if last and _stride(buffer, index, last[0].name, tensors, ranges) == 1 else []


def even(t: Tensor) -> bool:
    """A tensor map can describe it: at most five axes, whose steps are multiples of 16 bytes, but for the last."""
    steps = [int(n.value) * t.dtype.bytes for n in t.strides[:-1] if isinstance(n, Const)]
    return len(steps) == len(t.shape) - 1 <= 4 and all(n > 0 and n % 16 == 0 for n in steps)


def _result(
    c: Contraction, m: Axis, n: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Result | None:
    """The one buffer stored to, if a tile of the result is a block of it that a tensor map can describe."""
    stores = [s for s in c.after if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].op != "set":
        return None
    (s,) = stores
    ends = _axes(s.buffer, s.index, (m, n), tensors, ranges)
    if not ends:
        return None
    t = tensors[s.buffer]
    made = Result(s.buffer, t.dtype.bytes, ends[0], ends[1])
    if even(t):
        return made
    rows = math.gcd(*(int(n.value) for n in t.strides[:-1] if isinstance(n, Const))) * t.dtype.bytes
    return replace(made, how="plain", piece=math.gcd(rows, ROW), twin=True)


def joined_with(
    c: Contraction, m: Axis, n: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Iterator[Joined]:
    """Buffers that are loaded after the sum only, each at one place, a block or a vector of it for a tile of the
    result."""
    found = list(dict.fromkeys(x for s in c.after for x in loads(s)))
    others = {x.buffer for f in (c.left, c.right, c.first) for x in loads(f)} | {
        s.buffer for s in c.after if isinstance(s, Store)
    }
    for x in found:
        alone = [y.buffer for y in found].count(x.buffer) == 1 and x.buffer not in others and loads(x) == (x,)
        along = tuple(any(f.var in names(x) for f in part.loops) for part in (m, n))
        parts = [part for part, moves in zip((m, n), along, strict=True) if moves]
        if alone and x.buffer in tensors and parts and _axes(x.buffer, x.index, parts, tensors, ranges):
            yield Joined(x.buffer, x.dtype.bytes, (along[0], along[1]))


def _stores(result: Result | None) -> Iterator[Result | None]:
    """A result whose rows begin anywhere may as well be stored by the threads that have it."""
    yield result
    if result is not None and result.twin:
        yield replace(result, how="")
