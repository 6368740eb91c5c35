"""Give each kernel a view of a buffer whose axes match the kernel's indices, in the same memory (Loop IR to Loop IR).

Flattened or split rows are one axis to one kernel and two to another. `x[i // 197, i % 197, r]` is `x[i, r]` if the
first two axes are viewed as one. In `x[i * 197 + k, r]`, viewing each batch `i` as an axis gives its rows an end. Tiles
of such views are boxes, which one copy transfers. If axes that readers view as one are not adjacent, as with heads, the
temporary is laid out with them adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations

from compiler.analysis.nests import loop_ranges
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Op, const, names, op, static
from compiler.ir.index import Ranges, simplify
from compiler.ir.linear import linear
from compiler.ir.rewrite import accesses
from compiler.ir.statement import Accum, Kernel, Program, Store, within
from compiler.ir.tensor import Tensor, adjacent, joined, row_major

ROW = 128  # bytes of a row of a tile: an axis made of whole tiles needs no end of its own
MOST_AXES = 5  # of a tensor map, and of temporaries whose axes are permuted

Index = tuple[Expr, ...]


def views(program: Program) -> Program:
    """Lay out temporaries with the axes adjacent that readers view as one; give each kernel its view of a buffer."""
    for t in program.temps:
        order = _order(program, t)
        if order is not None:
            program = _reordered(program, t, order)
    return program.replace(kernels=tuple(map(_kernel, program.kernels)))


def _kernel(kernel: Kernel) -> Kernel:
    ranges, batches = loop_ranges(within(kernel.body, loop.For)), _batches(kernel)
    for p in kernel.params:
        t = p
        while (seen := _merged(kernel, t, ranges) or _split(kernel, t, ranges, batches)) is not None:
            kernel, t = seen
    return kernel


def _indices(kernel: Kernel, buffer: str) -> list[Index]:
    found = (n for s in kernel.body for n in s.walk())
    return list(dict.fromkeys(n.index for n in found if isinstance(n, Load | Store) and n.buffer == buffer))


def _batches(kernel: Kernel) -> set[str]:
    """The variables of parallel loops that occur in several factors of a sum."""
    every = [n for s in kernel.body for n in s.walk()]
    out: set[str] = set()
    for s in (n for n in every if isinstance(n, Accum)):
        moved = [names(n) for n in dict.fromkeys(s.walk()) if isinstance(n, Load)]
        out |= {v for one, other in combinations(moved, 2) for v in one & other}
    return out & {n.var for n in every if isinstance(n, loop.For) and n.kind == "parallel"}


def _seen(kernel: Kernel, t: Tensor, seen: Tensor, change: dict[Index, Index]) -> tuple[Kernel, Tensor]:
    """The kernel with `seen` as its view of a buffer; `change` maps the indices."""

    body = accesses(kernel.body, lambda n: n.replace(index=change[n.index]) if n.buffer == t.name else None)
    return kernel.replace(params=tuple(seen if p.name == t.name else p for p in kernel.params), body=body), seen


def _parts(indices: Iterable[Expr]) -> int:
    """The number of quotients and remainders in indices."""
    return sum(isinstance(n, Op) and n.name in ("floordiv", "mod") for e in indices for n in e.walk())


# ---- two axes as one


def _merged(kernel: Kernel, t: Tensor, ranges: Ranges) -> tuple[Kernel, Tensor] | None:
    """The kernel with two adjacent axes of a buffer, indexed by quotient and remainder, merged; None without such."""
    indices = _indices(kernel, t.name)
    for d in range(len(t.shape) - 1) if _parts(i for index in indices for i in index) else ():
        made = _as_one(t, d, indices, ranges)
        if made is not None:
            return _seen(kernel, t, joined(t, d), dict(zip(indices, made, strict=True)))
    return None


def _as_one(t: Tensor, d: int, indices: Sequence[Index], ranges: Ranges) -> list[Index] | None:
    """The indices with axes d and d + 1 merged; None if that leaves no fewer quotients and remainders."""
    if not adjacent(t, d):
        return None
    flat = [simplify(i[d] * t.shape[d + 1] + i[d + 1], ranges, index=True) for i in indices]
    if _parts(flat) >= _parts(e for i in indices for e in i[d : d + 2]):
        return None
    return [(*i[:d], e, *i[d + 2 :]) for i, e in zip(indices, flat, strict=True)]


# ---- one axis as two


def _split(kernel: Kernel, t: Tensor, ranges: Ranges, batches: set[str]) -> tuple[Kernel, Tensor] | None:
    """The kernel with an axis of a buffer split in two, the outer one indexed by batches only; None without such."""
    if len(t.shape) >= MOST_AXES or not batches:
        return None
    indices = _indices(kernel, t.name)
    for d, size in enumerate(t.shape[:-1]):
        for length in _lengths(size, t, [i[d] for i in indices]):
            each = const(length)
            pairs = [tuple(simplify(op(how, i[d], each), ranges) for how in ("floordiv", "mod")) for i in indices]
            if any(_parts(p) or not names(p[0]) or not names(p[0]) <= batches for p in pairs):
                continue
            shape = (*t.shape[:d], const(static(size) // length), each, *t.shape[d + 1 :])
            strides = (*t.strides[:d], t.strides[d] * each, *t.strides[d:])
            made = {i: (*i[:d], *p, *i[d + 1 :]) for i, p in zip(indices, pairs, strict=True)}
            return _seen(kernel, t, t.replace(shape=shape, strides=strides), made)
    return None


def _lengths(size: Expr, t: Tensor, indices: Iterable[Expr]) -> Iterator[int]:
    """The lengths into which an axis may be split: coefficients in its indices, unless they are whole tiles anyway."""
    if isinstance(size, Const) and all(isinstance(n, Const) for n in t.strides):
        for c in sorted({c for e in indices for c in linear(e)[0].values()}):
            if 1 < c < int(size.value) and int(size.value) % c == 0 and c % (ROW // t.dtype.bytes):
                yield c


# ---- axes in another order


def _order(program: Program, t: Tensor) -> tuple[int, ...] | None:
    """The order of a temporary's axes that leaves the fewest quotients and remainders; None for the present one."""
    if not 2 < len(t.shape) <= MOST_AXES or not all(isinstance(n, Const) for n in t.shape):
        return None
    users = [(k, p) for k in program.kernels for p in k.params if p.name == t.name]
    if any(p != t for _, p in users):
        return None
    found = [(_indices(k, t.name), loop_ranges(within(k.body, loop.For))) for k, _ in users]
    if t.strides != row_major(t.shape) or not _parts(e for indices, _ in found for i in indices for e in i):
        return None

    def left(order: tuple[int, ...]) -> int:
        return sum(_left(_permuted(t, order), [tuple(i[d] for d in order) for i in x], ranges) for x, ranges in found)

    last = len(t.shape) - 1
    best = min(((*order, last) for order in permutations(range(last))), key=left)
    return None if best == tuple(range(last + 1)) else best


def _left(t: Tensor, indices: list[Index], ranges: Ranges) -> int:
    """The number of quotients and remainders that remain after a kernel's own view of a buffer."""
    d = 0
    while d < len(t.shape) - 1:
        made = _as_one(t, d, indices, ranges)
        if made is None:
            d += 1
            continue
        shape = (*t.shape[:d], t.shape[d] * t.shape[d + 1], *t.shape[d + 2 :])
        t, indices, d = t.replace(shape=shape, strides=row_major(shape)), made, 0
    return _parts(e for i in indices for e in i)


def _permuted(t: Tensor, order: Sequence[int]) -> Tensor:
    shape = tuple(t.shape[d] for d in order)
    return t.replace(shape=shape, strides=row_major(shape))


def _reordered(program: Program, t: Tensor, order: tuple[int, ...]) -> Program:
    held = _permuted(t, order)
    kernels = [
        _seen(k, t, held, {i: tuple(i[d] for d in order) for i in _indices(k, t.name)})[0] if t in k.params else k
        for k in program.kernels
    ]
    temps = tuple(held if x is t else x for x in program.temps)
    return program.replace(temps=temps, kernels=tuple(kernels))
