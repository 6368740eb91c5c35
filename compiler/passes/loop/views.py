"""Give each kernel a view of a buffer whose axes match the kernel's indices, in the same memory (Loop IR to Loop IR).

Flattened or split rows are one axis to one kernel and two to another. `x[i // 197, i % 197, r]` is `x[i, r]` if the
first two axes are viewed as one, in the order in which they lie in memory. In `x[i * 197 + k, r]`, viewing each batch
`i` as an axis gives its rows an end. Tiles of such views are boxes, which one copy transfers. If axes that readers view
as one are not adjacent, as with heads, the temporary is laid out with them adjacent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, permutations

from compiler.analysis.nests import loop_ranges
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Op, const, names, op, static
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.rewrite import accesses
from compiler.ir.statement import Accum, Kernel, Program, Store, within
from compiler.ir.tensor import Tensor, adjacent, joined, memory_order, row_major
from compiler.ir.value_ranges import Ranges

ROW_BYTES = 128  # bytes of a row of a tile: an axis made of whole tiles needs no end of its own
MOST_AXES = 5  # of a tensor map, and of temporaries whose axes are permuted

Index = tuple[Expr, ...]
Change = Callable[[Index], Index]


def views(program: Program) -> Program:
    """Lay out temporaries with the axes adjacent that readers view as one; give each kernel its view of a buffer."""
    for t in program.temps:
        order = _best_order(program, t)
        if order is not None:
            program = _reorder(program, t, order)
    return program.replace(kernels=tuple(map(_view_buffers, program.kernels)))


def _view_buffers(kernel: Kernel) -> Kernel:
    ranges, batches = loop_ranges(within(kernel.body, loop.For)), _batch_variables(kernel)
    for p in kernel.params:
        kernel, t = _order_by_strides(kernel, p, ranges)
        while (viewed := _merge_axes(kernel, t, ranges) or _split_axis(kernel, t, ranges, batches)) is not None:
            kernel, t = viewed
    return kernel


def _indices(kernel: Kernel, buffer: str) -> list[Index]:
    found = (n for s in kernel.body for n in s.walk())
    return list(dict.fromkeys(n.index for n in found if isinstance(n, Load | Store) and n.buffer == buffer))


def _batch_variables(kernel: Kernel) -> set[str]:
    """The variables of parallel loops that occur in several factors of a sum."""
    every = [n for s in kernel.body for n in s.walk()]
    shared: set[str] = set()
    for s in (n for n in every if isinstance(n, Accum)):
        load_variables = [names(n) for n in dict.fromkeys(s.walk()) if isinstance(n, Load)]
        shared |= {v for one, other in combinations(load_variables, 2) for v in one & other}
    return shared & {n.var for n in every if isinstance(n, loop.For) and n.kind == "parallel"}


def _with_view(kernel: Kernel, t: Tensor, view: Tensor, change: Change) -> tuple[Kernel, Tensor]:
    """The kernel with `view` as its view of a buffer; `change` maps the indices, inner ones first in `x[x[i]]`."""

    body = accesses(kernel.body, lambda n: n.replace(index=change(n.index)) if n.buffer == t.name else None)
    return kernel.replace(params=tuple(view if p.name == t.name else p for p in kernel.params), body=body), view


def _count_divisions(indices: Iterable[Expr]) -> int:
    """The number of quotients and remainders in indices."""
    return sum(isinstance(n, Op) and n.name in ("floordiv", "mod") for e in indices for n in e.walk())


# ---- axes as they lie in memory


def _order_by_strides(kernel: Kernel, t: Tensor, ranges: Ranges) -> tuple[Kernel, Tensor]:
    """The kernel with the axes of a buffer in the order of their strides, if fewer quotients and remainders are left.

    A buffer that is laid out otherwise than its axes are listed, such as heads beside their features, is merged so.
    """
    order = memory_order(t)
    indices = _indices(kernel, t.name)
    if order == tuple(range(len(order))) or not _count_divisions(e for i in indices for e in i):
        return kernel, t
    ordered = t.replace(**{k: tuple(getattr(t, k)[d] for d in order) for k in ("shape", "strides")})
    permuted = [tuple(i[d] for d in order) for i in indices]
    if _remaining_divisions(ordered, permuted, ranges) >= _remaining_divisions(t, indices, ranges):
        return kernel, t
    return _with_view(kernel, t, ordered, lambda i: tuple(i[d] for d in order))


# ---- two axes as one


def _merge_axes(kernel: Kernel, t: Tensor, ranges: Ranges) -> tuple[Kernel, Tensor] | None:
    """The kernel with two adjacent axes of a buffer, indexed by quotient and remainder, merged; None without such."""
    indices = _indices(kernel, t.name)
    for d in range(len(t.shape) - 1) if _count_divisions(i for index in indices for i in index) else ():
        if _merged_indices(t, d, indices, ranges) is not None:
            return _with_view(kernel, t, joined(t, d), partial(_merge, t, d, ranges))
    return None


def _merge(t: Tensor, d: int, ranges: Ranges, i: Index) -> Index:
    return (*i[:d], simplify(i[d] * t.shape[d + 1] + i[d + 1], ranges, index=True), *i[d + 2 :])


def _merged_indices(t: Tensor, d: int, indices: Sequence[Index], ranges: Ranges) -> list[Index] | None:
    """The indices with axes d and d + 1 merged; None if that leaves no fewer quotients and remainders."""
    if not adjacent(t, d):
        return None
    merged = [_merge(t, d, ranges, i) for i in indices]
    if _count_divisions(i[d] for i in merged) >= _count_divisions(e for i in indices for e in i[d : d + 2]):
        return None
    return merged


# ---- one axis as two


def _split_axis(kernel: Kernel, t: Tensor, ranges: Ranges, batches: set[str]) -> tuple[Kernel, Tensor] | None:
    """The kernel with an axis of a buffer split in two, the outer one indexed by batches only; None without such."""
    if len(t.shape) >= MOST_AXES or not batches:
        return None
    indices = _indices(kernel, t.name)
    for d, size in enumerate(t.shape[:-1]):
        for length in _split_lengths(size, t, [i[d] for i in indices]):
            change = partial(_split, d, length, ranges)
            pairs = [change(i)[d : d + 2] for i in indices]
            if any(_count_divisions(p) or not names(p[0]) or not names(p[0]) <= batches for p in pairs):
                continue
            shape = (*t.shape[:d], const(static(size) // length), const(length), *t.shape[d + 1 :])
            strides = (*t.strides[:d], t.strides[d] * length, *t.strides[d:])
            return _with_view(kernel, t, t.replace(shape=shape, strides=strides), change)
    return None


def _split(d: int, length: int, ranges: Ranges, i: Index) -> Index:
    pair = (simplify(op(how, i[d], const(length)), ranges) for how in ("floordiv", "mod"))
    return (*i[:d], *pair, *i[d + 1 :])


def _split_lengths(size: Expr, t: Tensor, indices: Iterable[Expr]) -> Iterator[int]:
    """The lengths into which an axis may be split: coefficients in its indices, unless they are whole tiles anyway."""
    if isinstance(size, Const) and all(isinstance(n, Const) for n in t.strides):
        for c in sorted({c for e in indices for c in linear(e)[0].values()}):
            if 1 < c < int(size.value) and int(size.value) % c == 0 and c % (ROW_BYTES // t.dtype.bytes):
                yield c


# ---- axes in another order


def _best_order(program: Program, t: Tensor) -> tuple[int, ...] | None:
    """The order of a temporary's axes that leaves the fewest quotients and remainders; None for the present one."""
    if not 2 < len(t.shape) <= MOST_AXES or not all(isinstance(n, Const) for n in t.shape):
        return None
    users = [(k, p) for k in program.kernels for p in k.params if p.name == t.name]
    if any(p != t for _, p in users):
        return None
    found = [(_indices(k, t.name), loop_ranges(within(k.body, loop.For))) for k, _ in users]
    if t.strides != row_major(t.shape) or not _count_divisions(e for indices, _ in found for i in indices for e in i):
        return None

    def remaining(order: tuple[int, ...]) -> int:
        return sum(
            _remaining_divisions(_permute(t, order), [tuple(i[d] for d in order) for i in x], ranges)
            for x, ranges in found
        )

    last = len(t.shape) - 1
    best = min(((*order, last) for order in permutations(range(last))), key=remaining)
    return None if best == tuple(range(last + 1)) else best


def _remaining_divisions(t: Tensor, indices: list[Index], ranges: Ranges) -> int:
    """The number of quotients and remainders that remain after a kernel's own view of a buffer."""
    d = 0
    while d < len(t.shape) - 1:
        merged = _merged_indices(t, d, indices, ranges)
        if merged is None:
            d += 1
            continue
        t, indices, d = joined(t, d), merged, 0
    return _count_divisions(e for i in indices for e in i)


def _permute(t: Tensor, order: Sequence[int]) -> Tensor:
    shape = tuple(t.shape[d] for d in order)
    return t.replace(shape=shape, strides=row_major(shape))


def _reorder(program: Program, t: Tensor, order: tuple[int, ...]) -> Program:
    permuted = _permute(t, order)
    kernels = [
        _with_view(k, t, permuted, lambda i: tuple(i[d] for d in order))[0] if t in k.params else k
        for k in program.kernels
    ]
    temps = tuple(permuted if x is t else x for x in program.temps)
    return program.replace(temps=temps, kernels=tuple(kernels))
