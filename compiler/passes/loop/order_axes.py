"""Lay out temporaries with the axis innermost along which they are read together (Loop IR to Loop IR).

A convolution reads all channels of a pixel, a depthwise one the same pixels of adjacent channels, a norm over channels
all of them: rows of channels are whole cache lines, and are what tensor cores multiply. A temporary computed
elementwise from such a one gets the same layout, and so does one read elementwise next to it. A temporary stays as it
is if a reader divides the axis, as a norm over groups does, or if readers differ. An input of a depthwise convolution
with another layout than the result is copied first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compiler.analysis import kernel_names
from compiler.analysis.nests import perfect, wrap
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Op, Var, const, names, product, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel, Program, Store, within
from compiler.ir.tensor import Tensor, is_static, row_major
from compiler.passes.loop.align_rows import replace_temporaries, users_by_name

RANK = 3  # axes of an image with channels, or of a batch of signals with channels
KEEP_LAYOUT = -1  # the vote for leaving a temporary as it is


def order_axes(program: Program) -> Program:
    """Lay out temporaries in the order of axes that their readers prefer."""
    users = users_by_name(program)
    free = {t.name: t for t in program.temps if _can_change_layout(users[t.name], t)}
    temps = {t.name for t in program.temps}
    preferred = {name: _preferred_axis(users[name], name, temps) for name in free}
    wanted = {
        name: _with_innermost(free[name], axis) for name, axis in preferred.items() if axis not in (None, KEEP_LAYOUT)
    }
    tensors = {t.name: t for t in (*program.inputs, *program.outputs, *program.temps)} | wanted
    undecided = {name for name, axis in preferred.items() if axis is None}
    for k in program.kernels:
        for name, axis in _axes_from_sources(k, tensors, undecided):
            wanted[name] = tensors[name] = _with_innermost(free[name], axis)
        undecided -= wanted.keys()
    for k in reversed(program.kernels):
        for name, axis in _axes_from_results(k, wanted, undecided):
            wanted[name] = _with_innermost(free[name], axis)
        undecided -= wanted.keys()
    chosen = {name: t for name, t in wanted.items() if t != free[name]}
    return _with_copies(replace_temporaries(program, chosen), chosen) if chosen else program


def _with_copies(program: Program, chosen: Mapping[str, Tensor]) -> Program:
    """Copy the inputs whose layout differs from that of the depthwise convolution's result."""
    kernels: list[Kernel] = []
    copies: dict[str, Tensor] = {}
    for k in program.kernels:
        for t in [p for p in k.params if p in program.inputs and len(p.shape) >= RANK and is_static(p)]:
            axis = _innermost_for_windows(k, t, chosen)
            if axis is None or t.strides[axis] is const(1):
                continue
            if t.name not in copies:
                copies[t.name] = _with_innermost(t, axis).replace(name=f"{t.name}_ordered")
                name = kernel_names.free(f"{k.name}_ordered", [x.name for x in (*kernels, *program.kernels)])
                kernels.append(_copy_kernel(name, k, t, copies[t.name]))
            if copies[t.name].strides[axis] is const(1):
                k = _read_copy(k, t, copies[t.name])
        kernels.append(k)
    return program.replace(temps=(*program.temps, *copies.values()), kernels=tuple(kernels))


def _innermost_for_windows(kernel: Kernel, t: Tensor, chosen: Mapping[str, Tensor]) -> int | None:
    """The axis of an input that is innermost in the layout of the results, if windows slide over others; else None."""
    axes = set(_votes(kernel, t.name))
    innermost = _innermost_indices(kernel, chosen)
    found = {n.index[d] for n in _loads(kernel, t.name) for d in axes if d != KEEP_LAYOUT}
    return axes.pop() if len(axes) == 1 and innermost and innermost == found else None


def _copy_kernel(name: str, k: Kernel, t: Tensor, copy: Tensor) -> Kernel:
    nest = [loop.For(f"at{d}", n, "parallel", ()) for d, n in enumerate(t.shape)]
    place = tuple(Var(f.var) for f in nest)
    body = wrap(nest, (Store(copy.name, place, Load(t.name, place, t.dtype)),))
    return Kernel(name, (t, copy), (copy.name,), body, tuple(f"{source}/ordered" for source in k.origin))


def _read_copy(k: Kernel, t: Tensor, copy: Tensor) -> Kernel:
    """The kernel with the copy instead of the input."""

    table = {n: n.replace(buffer=copy.name) for n in _loads(k, t.name)}
    return k.replace(params=tuple(copy if p == t else p for p in k.params), body=substitute(k.body, table))


def _can_change_layout(users: Sequence[Kernel], t: Tensor) -> bool:
    plain = len(t.shape) >= RANK and is_static(t) and t.strides == row_major(t.shape) and t.dtype.is_float
    if not plain or any(p != t for k in users for p in k.params if p.name == t.name):
        return False
    accesses = (
        n for k in users for s in k.body for n in s.walk() if isinstance(n, Load | Store) and n.buffer == t.name
    )
    pairs = {(*pair, extent) for n in accesses for pair, extent in zip(pairwise(n.index), t.shape[1:], strict=True)}
    return not any(_is_flat_row(*pair) for pair in pairs)


def _is_flat_row(first: Expr, second: Expr, extent: Expr) -> bool:
    """Whether two indices are quotient and remainder: then a reader sees both axes as one, and they have to stay so."""
    match first, second:
        case Op("floordiv", (dividend, n)), Op("mod", (other, m)):
            return dividend is other and n is m is extent
    return False


def _with_innermost(t: Tensor, axis: int) -> Tensor:
    order = [d for d in range(len(t.shape)) if d != axis] + [axis]
    steps = dict(zip(order, row_major(tuple(t.shape[d] for d in order)), strict=True))
    return t.replace(strides=tuple(steps[d] for d in range(len(order))))


def _preferred_axis(users: Sequence[Kernel], name: str, temps: set[str]) -> int | None:
    """The axis along which readers read together; KEEP_LAYOUT if they disagree, None if none has a preference."""
    votes = {vote for k in users for vote in _votes(k, name, temps)}
    return None if not votes else votes.pop() if len(votes) == 1 else KEEP_LAYOUT


@dataclass(frozen=True)
class _LoadPattern:
    """A load: axes indexed by a plain loop variable; whether other indices slide windows over an axis, or divide it."""

    plain: dict[int, str]
    slides: bool
    apart: bool


def _votes(kernel: Kernel, name: str, temps: Collection[str] = ()) -> Iterator[int]:
    loops = {f.var: f for f in within(kernel.body, loop.For)}
    reduced = {v for v, f in loops.items() if f.kind != "parallel"}
    for load in _loads(kernel, name):
        read = _load_pattern(load, loops, reduced)
        over = [d for d, v in read.plain.items() if v in reduced]
        if read.apart:
            yield KEEP_LAYOUT
        elif read.slides:
            yield from over if len(over) == 1 else _axes_of_filter(kernel, load, read)
        elif (
            len(over) == 1
            and len(read.plain) == len(load.index)
            and _prefers_rows(kernel, name, over[0], reduced, temps)
        ):
            yield over[0]


def _load_pattern(load: Load, loops: Mapping[str, loop.For], reduced: set[str]) -> _LoadPattern:
    plain = {d: i.name for d, i in enumerate(load.index) if isinstance(i, Var) and i.name in loops}
    kinds = [_classify_index(i, loops, reduced) for d, i in enumerate(load.index) if d not in plain]
    return _LoadPattern(plain, "slides" in kinds, "apart" in kinds)


def _classify_index(index: Expr, loops: Mapping[str, loop.For], reduced: set[str]) -> str:
    """How an index that combines loops traverses its axis.

    It is "slides" for overlapping windows, "apart" for other combinations, "" if no reduced loop occurs.
    """
    if not names(index) & reduced:
        return ""
    terms, _ = linear(index)
    steps = {a.name: c for a, c in terms.items() if isinstance(a, Var)}
    inner = [v for v in steps if v in reduced and isinstance(loops[v].extent, Const)]
    outer = [v for v in steps if v in loops and v not in reduced]
    if len(inner) != 1 or len(outer) != 1 or len(steps) != len(terms):
        return "apart"
    extent = loops[inner[0]].extent
    assert isinstance(extent, Const)
    return "slides" if abs(steps[outer[0]]) < abs(steps[inner[0]]) * int(extent.value) else "apart"


def _axes_of_filter(kernel: Kernel, load: Load, read: _LoadPattern) -> Iterator[int]:
    """The axes that the weights of a window have as well."""
    small = _much_smaller_buffers(kernel, load.buffer)
    others = [n for n in _loads(kernel) if n.buffer in small]
    yield from (d for d, v in read.plain.items() if any(v in names(i) for n in others for i in n.index))


def _prefers_rows(kernel: Kernel, name: str, axis: int, reduced: set[str], temps: Collection[str]) -> bool:
    """Whether a kernel that reduces a temporary over an axis is faster if that is the innermost one.

    A mere sum is as fast whichever axis is innermost. It is one if the kernel neither multiplies with a row nor goes
    along it again, as a norm does. In a matmul of two temporaries of similar size, the other may prefer another order.
    """
    together = {n.buffer for n in _loads(kernel) if any(names(i) & reduced for i in n.index)}
    along = {v for n in _loads(kernel, name) for v in names(n.index[axis])}
    is_mere_sum = together == {name} and len(along) == 1 and along <= reduced
    return not is_mere_sum and together & set(temps) <= {name} | _much_smaller_buffers(kernel, name)


def _much_smaller_buffers(kernel: Kernel, name: str) -> set[str]:
    """The buffers with at most a quarter of the elements."""
    sizes = {p.name: _static_size(product(p.shape)) for p in kernel.params}
    return {b for b, n in sizes.items() if 4 * n <= sizes[name]}


def _static_size(size: Expr) -> int:
    return int(size.value) if isinstance(size, Const) else 0


def _axes_from_sources(kernel: Kernel, tensors: Mapping[str, Tensor], undecided: set[str]) -> Iterator[tuple[str, int]]:
    """Temporaries in `undecided` that a kernel writes along a loop that is contiguous in a buffer it reads.

    Only buffers whose contiguous axis is not their last count.
    """
    loops = {f.var for f in within(kernel.body, loop.For) if f.kind == "parallel"}
    contiguous: set[Expr] = set()
    for n in _loads(kernel):
        t = tensors.get(n.buffer)
        if t is not None and len(t.shape) >= RANK and t.strides[-1] is not const(1):
            contiguous |= {i for i, step in zip(n.index, t.strides, strict=True) if step is const(1)}
    rows, inside = _row_loops(kernel)
    for s in within(kernel.body, Store):
        if s.buffer in undecided:
            own = loops - rows if _uses(s, inside) else loops
            yield from ((s.buffer, d) for d, i in enumerate(s.index) if i in contiguous and names(i) <= own)


def _row_loops(kernel: Kernel) -> tuple[set[str], set[str]]:
    """The variables of loops over rows, and of parallel loops along a row, whose iterations are lanes of a vector.

    A temporary that is accessed along a row has to have that axis innermost.
    """
    nest, body = perfect(loop.For, kernel.body)
    return {f.var for f in nest}, {f.var for f in within(body, loop.For) if f.kind == "parallel"}


def _uses(access: Load | Store, variables: set[str]) -> bool:
    return any(names(i) & variables for i in access.index)


def _innermost_indices(kernel: Kernel, made: Mapping[str, Tensor]) -> set[Expr]:
    """The indices with which a kernel writes the innermost axis in memory of the tensors in `made`."""
    return {i for s in within(kernel.body, Store) if s.buffer in made
            for i, step in zip(s.index, made[s.buffer].strides, strict=True) if step is const(1)}  # fmt: skip


def _axes_from_results(kernel: Kernel, wanted: Mapping[str, Tensor], undecided: set[str]) -> Iterator[tuple[str, int]]:
    """Temporaries in `undecided` that a kernel reads elementwise along the contiguous loop of a result in `wanted`."""
    contiguous, (rows, inside) = _innermost_indices(kernel, wanted), _row_loops(kernel)
    for n in _loads(kernel):
        if n.buffer in undecided and n.buffer not in kernel.writes:
            own = {i for i in contiguous if isinstance(i, Var) and not (i.name in rows and _uses(n, inside))}
            yield from ((n.buffer, d) for d, i in enumerate(n.index) if i in own)


def _loads(kernel: Kernel, name: str = "") -> Iterator[Load]:
    """All loads of a kernel, or those of one buffer."""
    for s in kernel.body:
        yield from (n for n in s.walk() if isinstance(n, Load) and name in ("", n.buffer))
