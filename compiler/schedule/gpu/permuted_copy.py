"""Steps for the copy of a buffer with permuted axes or padded rows, as its own nest.

If the order of axes changes, tiles go through shared memory: reads are contiguous in the buffer, writes are contiguous
in the copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from compiler.ir.expr import Expr, Load, const, static
from compiler.ir.linear import from_linear, linear
from compiler.ir.tensor import Tensor, is_static, row_major
from compiler.schedule import names as naming
from compiler.schedule.name_suffixes import numbered
from compiler.schedule.steps import Bind, Permute, Reorder, Split, Stage, Step

THREADS = 256
WIDEST = 16  # bytes per instruction
LEAST, MOST = 16, 64  # elements of a tile's side
LONGEST = 256  # elements of a side that has no divisor in between
ELEMENTS_PER_THREAD = 8  # elements per thread if no tile is needed; all are in flight at once
LINE = 128  # bytes; padded rows start at multiples of a cache line, so that a tile row of that length is one line


def preparation(
    copies: Sequence[Permute | None], tensors: Mapping[str, Tensor]
) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """The steps that copy buffers first, and the bytes that each copy moves."""
    copied = [(x, tensors[x.buffer]) for x in copies if x is not None]
    return tuple(s for x, t in copied for s in (x, *steps(x, t))), tuple(copy_bytes(x, t) for x, t in copied)


def padded(t: Tensor) -> Permute:
    """The step that copies a buffer with unaligned rows so that its rows start at multiples of a cache line."""
    tile, order = f"{t.name}_padded", tuple(range(len(t.shape)))
    into = tuple(f"{tile}_at{n}" for n in order)
    return Permute(t.name, tile, order, into, multiple=LINE // t.dtype.bytes)


def held(step: Permute, t: Tensor) -> Tensor:
    """The temporary that holds the copy."""
    shape = tuple(length(step, t, d) for d in step.order)
    return Tensor(step.tile, t.dtype, shape, row_major((*shape[:-1], _row_pitch(step, shape[-1]))))


def _row_pitch(step: Permute, row: Expr) -> Expr:
    """Distance between the starts of rows of this length, in elements."""
    n = step.multiple
    return (row + (n - 1)) // n * n if n else row


def load(x: Load, step: Permute) -> Load:
    """The load from the copy that corresponds to the load `x` from the buffer."""
    return x.replace(buffer=step.tile, index=tuple(index(x.index[d], step, d) for d in step.order))


def steps(step: Permute, t: Tensor) -> list[Step]:
    """Steps for the loops of the copy, after `step`; empty if buffer or copy have too few neighbours."""
    if not is_static(t):
        return []
    if step.multiple:
        made: list[Step] = []
        name = naming.collapse(step.into, made)
        around, within = naming.pieces(name)
        made += [Split(name, ELEMENTS_PER_THREAD * THREADS, (around, within)), Bind(around, "blocks")]
        return [*made, Bind(within, "lanes", (("threads", THREADS),))]
    sizes = [static(length(step, t, d)) for d in range(len(t.shape))]
    every = step.every or (1,) * len(sizes)
    loop = dict(zip(step.order, step.into, strict=True))
    last = step.order[-1]
    side = _tile_side(sizes[last], WIDEST // t.dtype.bytes)
    read = _read_tile(t, sizes, every, last)
    if not side or not read:
        return []
    made = []
    inner: list[str] = []
    outer = [loop[d] for d in step.order if d != last and d not in read]
    for d, part in (*read.items(), (last, side)):
        name = loop[d]
        if part < sizes[d]:
            around, within = naming.pieces(name)
            made.append(Split(name, part, (around, within)))
            outer.append(around)
            name = within
        inner.append(name)
    if not outer:
        return []
    tile = f"{step.tile}_in"
    along = {**read, last: side}
    kept = [d for d in range(len(sizes)) if d in {*read, last}]
    made.append(Reorder((*outer, *inner)))
    whole, staged = static(t.shape[kept[-1]]), along[kept[-1]] * every[kept[-1]]
    staged = whole if staged >= whole else staged - every[kept[-1]] + 1
    # An odd row length puts rows into different banks, also if a bank holds two elements.
    copied = numbered(f"{tile}_at", len(kept))
    made.append(Stage(t.name, tile, outer[-1], "shared", copied, 1 + staged % 2))
    made += [Bind(name, "blocks") for name in naming.grid(outer, made)]
    for loops, row in ((copied, staged), (tuple(inner), side)):
        name = naming.collapse(loops, made)
        vector = math.gcd(row, WIDEST // t.dtype.bytes)
        lanes = (("threads", THREADS), *((("vector", vector),) if vector > 1 else ()))
        made.append(Bind(name, "lanes", lanes))
    return made


def length(step: Permute, t: Tensor, d: int) -> Expr:
    """How many elements of axis `d` of the buffer are copied."""
    every = step.every[d] if step.every else 1
    return t.shape[d] if every == 1 else const(-(-static(t.shape[d]) // every))


def index(e: Expr, step: Permute, d: int) -> Expr:
    """The index in the copy for index `e` along axis `d` of the buffer."""
    every = step.every[d] if step.every else 1
    terms, rest = linear(e)
    return e if every == 1 else from_linear(({t: c // every for t, c in terms.items()}, rest // every))


def copy_bytes(step: Permute, t: Tensor) -> int:
    """Bytes read and written. Skipping elements along the contiguous axis saves no reads, because lines are whole."""
    every = step.every or (1,) * len(t.shape)
    near = max(range(len(every)), key=lambda d: t.strides[d] is const(1))
    copied = math.prod(static(length(step, t, d)) for d in range(len(every))) * t.dtype.bytes
    rows = static(length(step, t, step.order[-1]))
    return copied * every[near] + copied // rows * static(_row_pitch(step, const(rows)))


def _read_tile(t: Tensor, sizes: list[int], every: tuple[int, ...], last: int) -> dict[int, int]:
    """Tile lengths along contiguous axes of the buffer, larger strides first; empty if tiles are of no use."""
    contiguous = [d for d, n in enumerate(t.strides) if n is const(1) and sizes[d] > 1]
    if len(contiguous) != 1 or contiguous[0] == last or contiguous[0] < last:
        return {}
    (d,) = contiguous
    part = sizes[d] if sizes[d] <= MOST else _tile_side(sizes[d], WIDEST // t.dtype.bytes)
    tile = {d: part} if part else {}
    while tile and part == sizes[d] and every[d] == 1 and math.prod(tile.values()) * 2 <= MOST:
        d, run = d - 1, math.prod(tile.values())
        if d == last or d < 0 or t.strides[d] is not const(run) or every[d] > 1:
            break
        part = max(n for n in range(1, MOST // run + 1) if sizes[d] % n == 0)
        if part == 1:
            break
        tile = {d: part, **tile}
    return tile


def _tile_side(size: int, vector: int) -> int:
    """A divisor of `size` that is a good side of a tile, preferably of wide vectors; 0 if there is none."""
    fitting = [n for n in range(LEAST, MOST + 1) if size % n == 0]
    return max(fitting, key=lambda n: (math.gcd(n, vector), n), default=size if LEAST <= size <= LONGEST else 0)
