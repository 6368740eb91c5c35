"""Contractions as matmuls: which loops are m, n, k and the batch.

m occurs only in one factor, n only in the other, k is summed over, and all others are the batch.
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

PIECES = (16, 8, 4)  # bytes that an asynchronous copy can move
ROW = 128  # bytes of a tile row in shared memory: the width of all banks together


Order = tuple[str, str]


@dataclass
class Axis:
    """The loops of one part (m, n or k), collapsed into one loop `name`; `outer` is the loop over its tiles.

    Tiles of a `boxed` axis are boxes of its loops, which advance the buffer's axes by up to `step` elements. Positions
    of a `near` axis are contiguous in the result. A boxed reduction axis has its own `box`; its `size` includes the
    padding to whole boxes.
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
    """An operand before widening from 16 bits, and the buffer that it loads first.

    `order` names its two parts, "own" and "k", the contiguous one last. `even` says that rows of the buffer start at
    multiples of 16 bytes, as tensor maps require. `side` is how many neighbours along the last part a thread may
    compute together; 1 if a guard may differ between them.
    """

    value: Expr
    buffer: str
    operand: Operand
    order: Order
    even: bool
    side: int = 1


@dataclass(frozen=True)
class Result:
    """The buffer that the matmul is stored to, bytes per element, and whether m and n end where the buffer's axes do.

    `how` says what copies a tile out of shared memory: "tma" if a tensor map can describe it, "plain" for all threads,
    or empty if each thread stores its own elements. Rows start at multiples of `piece` bytes. `twin` says that the
    variant without a tile in shared memory is a candidate, too.
    """

    buffer: str
    bytes: int
    m_ends: bool
    n_ends: bool
    how: str = "tma"
    piece: int = ROW
    twin: bool = False


@dataclass(frozen=True)
class EpilogueOperand:
    """A buffer that the epilogue combines with the result: a block of it per tile, or a vector along m or n only.

    A tile of the result may start as the block of an operand that is `initial`: same place, elements and sizes.
    """

    buffer: str
    bytes: int
    along: tuple[bool, bool]  # m, n
    initial: bool = False

    @property
    def is_block(self) -> bool:
        return all(self.along)


@dataclass(frozen=True)
class MatmulAxes:
    """A contraction as a matmul: acc[m, n] += a[m, k] * b[k, n] for every iteration of the batch loops.

    The result is contiguous along n if `across`, else along m. `result` says where tiles can be copied to, if they can.
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
    copies: tuple[Step, ...] = ()  # steps that copy buffers first, so that factors are blocks of the copies
    copied: tuple[int, ...] = ()  # bytes that each copy reads and writes
    read: int = 0  # bytes of both factors' buffers, if their elements are read repeatedly
    joined: tuple[EpilogueOperand, ...] = ()  # operands of the epilogue that can be loaded before the sum

    @property
    def initial(self) -> EpilogueOperand | None:
        """The operand as whose block a tile of the result can start, if one can and the tensor copy stores the tile."""
        r = self.result
        if r is None or r.how != "tma" or not (r.m_ends and r.n_ends):
            return None
        return next((x for x in self.joined if x.initial), None)


def candidate_matmuls(c: Contraction, tensors: Mapping[str, Tensor]) -> Iterator[MatmulAxes]:
    """All matmuls for a contraction: either factor may be the left one, and a part with several loops may use all of
    them or only the innermost."""
    long = [f for f in c.rows if size(f) > 1]
    ranges = loop_ranges(c.loops)
    contiguous = {
        f.var
        for f in long
        for s in c.after
        if isinstance(s, Store) and _stride(s.buffer, s.index, f.var, tensors, ranges) == 1
    }
    k = axis(c.depth)
    for (left, rows), (right, columns) in sides(c):
        if not columns:
            continue
        for m_loops in _loop_choices(rows):
            for n_loops in _loop_choices(columns):
                m, n = axis(m_loops), axis(n_loops)
                tiled = {f.var for f in (*m_loops, *n_loops)}
                batch = tuple(f for f in c.rows if f.var not in tiled)
                across = not any(f.var in contiguous for f in rows)
                result = _result_block(c, m, n, tensors, ranges)
                joined = tuple(epilogue_operands(c, m, n, tensors, ranges))
                for (a, first), (b, second) in itertools.product(
                    _factors(left, right, m, k, tensors, ranges), _factors(right, left, n, k, tensors, ranges)
                ):
                    read = _buffer_bytes((left, right), tensors) if a.operand.widened or b.operand.widened else 0
                    copies, copied = permuted_copy.preparation((first, second), tensors)
                    for stored in _store_variants(result):
                        yield MatmulAxes(c, m, n, k, batch, a, b, across, stored, copies, copied, read, joined)


def _factors(
    value: Expr, other: Expr, own: Axis, k: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Iterator[tuple[Factor, Permute | None]]:
    """The factor as it is and, if rows of its buffer are unaligned, the factor after a copy that pads these rows.

    A buffer that the other factor loads too is not copied: all loads of the kernel would use the copy.
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


def _buffer_bytes(factors: Sequence[Expr], tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all buffers that the factors load, each buffer once."""
    return sum(known_bytes(tensors[name]) for name in {x.buffer for f in factors for x in loads(f)})


def _loop_choices(loops: Sequence[loop.For]) -> list[Sequence[loop.For]]:
    return [loops[-1:], loops] if len(loops) > 1 else [loops]


def axis(loops: Sequence[loop.For]) -> Axis:
    return Axis("".join(f.var for f in loops), math.prod(map(size, loops)), tuple(loops))


def _stride(
    buffer: str, index: tuple[Expr, ...], var: str, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> int | None:
    return access.stride(access.address(index, tensors[buffer], ranges), Var(var))


def factor(wide: Expr, own: Axis, k: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> Factor:
    """The factor as an operand: copied if it is a block of its buffer, otherwise computed by threads."""
    value = unwidened(wide)

    def contiguous_extent(part: Axis) -> int:
        """Extent of the innermost loop of a part if some load is contiguous along it; otherwise 0."""
        last = part.loops[-1] if part.loops else None
        is_contiguous = last and any(_stride(x.buffer, x.index, last.var, tensors, ranges) == 1 for x in loads(value))
        return size(last) if last and is_contiguous else 0

    order = ("k", "own") if contiguous_extent(own) > contiguous_extent(k) else ("own", "k")
    if isinstance(value, Load) and _is_block(value, own, k, tensors, ranges):
        return _copied_factor(value, order, tensors, ranges)
    return _computed_factor(value, order, (own if order[1] == "own" else k).loops[-1], tensors, ranges)


def _copied_factor(value: Load, order: Order, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> Factor:
    width, t = value.dtype.bytes, tensors[value.buffer]
    terms, rest = linear(access.address(value.index, t, ranges))
    rows = [int(n.value) * width for n in t.strides[:-1] if isinstance(n, Const)]
    steps = [*rows, *(c * width for c in terms.values() if c != 1), rest * width]
    aligned = math.gcd(ROW, *steps)
    piece = next((p for p in PIECES if aligned % p == 0), 0)
    begins = rest * width % PIECES[0] == 0  # tensor maps need this alignment
    operand = Operand(width, True, piece or width, aligned=aligned)
    return Factor(value, value.buffer, operand, order, even(t) and begins)


def _computed_factor(
    value: Expr, order: Order, last: loop.For, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Factor:
    """A computed factor; a thread computes as many neighbours along the `last` loop as one load brings."""
    width, found = value.dtype.bytes, loads(value)
    guarded = any(isinstance(n, Select) and last.var in names(n.cond) for n in value.walk())
    max_neighbours = 16 // max(width, *(x.dtype.bytes for x in found))
    counts = (
        n
        for n in (max_neighbours, 8, 4, 2, 1)
        if n <= max_neighbours and _is_vector_load(found, last, n, tensors, ranges)
    )
    side = 1 if guarded else next(counts)
    widened = side > 1 and any(x.dtype.bytes < width for x in found)
    return Factor(value, found[0].buffer, Operand(width, False, width, widened), order, False, side)


def _is_vector_load(
    found: Sequence[Load], last: loop.For, count: int, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> bool:
    """Whether `count` iterations, from a multiple of `count` on, load neighbours or the same element."""
    if count == 1 or size(last) % count:
        return count == 1
    around, lane = Var(f"{last.var}_around"), Var(f"{last.var}_lane")
    inside = {**ranges, around.name: (0, size(last) // count - 1), lane.name: (0, count - 1)}
    place: dict[Expr, Expr] = {Var(last.var): around * count + lane}
    moved = [(x.buffer, simplify(substitute(x.index, place), inside)) for x in found]
    steps = [_stride(buffer, index, lane.name, tensors, inside) for buffer, index in moved]
    return all(n in (0, 1) for n in steps) and 1 in steps


def _is_block(load: Load, own: Axis, k: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]) -> bool:
    """Whether one copy brings a tile: each part moves an axis of its own, and either ends where that axis does or
    consists of whole tiles. Otherwise padding would need more guards than the buffer's bounds."""
    ends, whole = _ends_with_axes(load.buffer, load.index, (own, k), tensors, ranges), ROW // load.dtype.bytes
    return bool(ends) and all(e or part.size % whole == 0 for e, part in zip(ends, (own, k), strict=True))


def _ends_with_axes(
    buffer: str,
    index: tuple[Expr, ...],
    parts: Sequence[Axis],
    tensors: Mapping[str, Tensor],
    ranges: Mapping[str, Range],
) -> list[bool]:
    """For each part, whether it ends where its axis does. Empty unless each part moves an axis of its own by one
    element, and one of them moves the last, contiguous axis."""
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
    """Whether a tensor map can describe it: at most five axes, all strides but the last multiples of 16 bytes."""
    steps = [int(n.value) * t.dtype.bytes for n in t.strides[:-1] if isinstance(n, Const)]
    return len(steps) == len(t.shape) - 1 <= 4 and all(n > 0 and n % 16 == 0 for n in steps)


def _result_block(
    c: Contraction, m: Axis, n: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Result | None:
    """The only buffer that is stored to, if a tile of the result is a block of it; else None."""
    stores = [s for s in c.after if isinstance(s, Store)]
    if len(stores) != 1 or stores[0].op != "set":
        return None
    (s,) = stores
    ends = _ends_with_axes(s.buffer, s.index, (m, n), tensors, ranges)
    if not ends:
        return None
    t = tensors[s.buffer]
    result = Result(s.buffer, t.dtype.bytes, ends[0], ends[1])
    if even(t):
        return result
    rows = math.gcd(*(int(n.value) for n in t.strides[:-1] if isinstance(n, Const))) * t.dtype.bytes
    return replace(result, how="plain", piece=math.gcd(rows, ROW), twin=True)


def epilogue_operands(
    c: Contraction, m: Axis, n: Axis, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> Iterator[EpilogueOperand]:
    """Buffers that only the epilogue loads, each with one index, such that a tile needs a block or a vector of it."""
    found = list(dict.fromkeys(x for s in c.after for x in loads(s)))
    stores = [s for s in c.after if isinstance(s, Store)]
    others = {x.buffer for f in (c.left, c.right, c.first) for x in loads(f)} | {s.buffer for s in stores}
    for x in found:
        is_only_load = [y.buffer for y in found].count(x.buffer) == 1 and x.buffer not in others and loads(x) == (x,)
        moved_parts = tuple(any(f.var in names(x) for f in part.loops) for part in (m, n))
        parts = [part for part, moves in zip((m, n), moved_parts, strict=True) if moves]
        if (
            is_only_load
            and x.buffer in tensors
            and parts
            and _ends_with_axes(x.buffer, x.index, parts, tensors, ranges)
        ):
            initial = len(stores) == 1 and _is_same_place(x, stores[0], tensors)
            yield EpilogueOperand(x.buffer, x.dtype.bytes, (moved_parts[0], moved_parts[1]), initial)


def _is_same_place(x: Load, s: Store, tensors: Mapping[str, Tensor]) -> bool:
    """Whether elements lie in a buffer like the result where the result is stored, and a tensor map can describe it."""
    source, target = tensors[x.buffer], tensors[s.buffer]
    return (x.index, source.dtype, source.shape) == (s.index, target.dtype, target.shape) and even(source)


def _store_variants(result: Result | None) -> Iterator[Result | None]:
    """The result; if its rows are unaligned, also the variant in which threads store their own elements."""
    yield result
    if result is not None and result.twin:
        yield replace(result, how="")
