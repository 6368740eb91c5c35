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

from compiler.analysis.nests import wrap
from compiler.ir import loop
from compiler.ir.expr import Const, Expr, Load, Var, const, names, product, substitute
from compiler.ir.linear import linear
from compiler.ir.statement import Kernel, Program, Store, within
from compiler.ir.tensor import Tensor, is_static, row_major
from compiler.passes.loop.align_rows import laid_out, seen_whole, users_by_name

RANK = 3  # axes of an image with channels, or of a batch of signals with channels
STAYS = -1  # the vote for leaving a temporary as it is


def order_axes(program: Program) -> Program:
    """Lay out temporaries in the order of axes that their readers prefer."""
    users = users_by_name(program)
    free = {t.name: t for t in program.temps if _may_move(users[t.name], t)}
    temps = {t.name for t in program.temps}
    asked = {name: _asked(users[name], name, temps) for name in free}
    wanted = {name: _with_innermost(free[name], axis) for name, axis in asked.items() if axis not in (None, STAYS)}
    tensors = {t.name: t for t in (*program.inputs, *program.outputs, *program.temps)} | wanted
    left = {name for name, axis in asked.items() if axis is None}
    for k in program.kernels:
        for name, axis in _alike(k, tensors, left):
            wanted[name] = tensors[name] = _with_innermost(free[name], axis)
        left -= wanted.keys()
    for k in reversed(program.kernels):
        for name, axis in _beside(k, wanted, left):
            wanted[name] = _with_innermost(free[name], axis)
        left -= wanted.keys()
    chosen = {name: t for name, t in wanted.items() if t != free[name]}
    return _with_copies(laid_out(program, chosen), chosen) if chosen else program


def _with_copies(program: Program, chosen: Mapping[str, Tensor]) -> Program:
    """Copy the inputs whose layout differs from that of the depthwise convolution's result."""
    kernels: list[Kernel] = []
    copies: dict[str, Tensor] = {}
    for k in program.kernels:
        for t in [p for p in k.params if p in program.inputs and len(p.shape) >= RANK and is_static(p)]:
            axis = _slid_over(k, t, chosen)
            if axis is None or t.strides[axis] is const(1):
                continue
            if t.name not in copies:
                copies[t.name] = _with_innermost(t, axis).replace(name=f"{t.name}_ordered")
                kernels.append(_copying(k, t, copies[t.name]))
            if copies[t.name].strides[axis] is const(1):
                k = _reading(k, t, copies[t.name])
        kernels.append(k)
    return program.replace(temps=(*program.temps, *copies.values()), kernels=tuple(kernels))


def _slid_over(kernel: Kernel, t: Tensor, chosen: Mapping[str, Tensor]) -> int | None:
    """The axis of an input that is innermost in the layout of the results, if windows slide over others; else None."""
    axes = set(_votes(kernel, t.name))
    near = _innermost(kernel, chosen)
    found = {n.index[d] for n in _loads(kernel, t.name) for d in axes if d != STAYS}
    return axes.pop() if len(axes) == 1 and near and near == found else None


def _copying(k: Kernel, t: Tensor, held: Tensor) -> Kernel:
    nest = [loop.For(f"at{d}", n, "parallel", ()) for d, n in enumerate(t.shape)]
    place = tuple(Var(f.var) for f in nest)
    body = wrap(nest, (Store(held.name, place, Load(t.name, place, t.dtype)),))
    return Kernel(f"{k.name}_ordered", (t, held), (held.name,), body, tuple(f"{source}/ordered" for source in k.origin))


def _reading(k: Kernel, t: Tensor, held: Tensor) -> Kernel:
    """The kernel with the copy instead of the input."""

    table = {n: n.replace(buffer=held.name) for n in _loads(k, t.name)}
    return k.replace(params=tuple(held if p == t else p for p in k.params), body=substitute(k.body, table))


def _may_move(users: Sequence[Kernel], t: Tensor) -> bool:
    plain = len(t.shape) >= RANK and is_static(t) and t.strides == row_major(t.shape)
    return plain and t.dtype.is_float and seen_whole(users, t)


def _with_innermost(t: Tensor, axis: int) -> Tensor:
    order = [d for d in range(len(t.shape)) if d != axis] + [axis]
    steps = dict(zip(order, row_major(tuple(t.shape[d] for d in order)), strict=True))
    return t.replace(strides=tuple(steps[d] for d in range(len(order))))


def _asked(users: Sequence[Kernel], name: str, temps: set[str]) -> int | None:
    """The axis along which readers read together; STAYS if they disagree, None if none has a preference."""
    votes = {vote for k in users for vote in _votes(k, name, temps)}
    return None if not votes else votes.pop() if len(votes) == 1 else STAYS


@dataclass(frozen=True)
class _Read:
    """A load: axes indexed by a plain loop variable; whether other indices slide windows over an axis, or divide it."""

    plain: dict[int, str]
    slides: bool
    apart: bool


def _votes(kernel: Kernel, name: str, temps: Collection[str] = ()) -> Iterator[int]:
    loops = {f.var: f for f in within(kernel.body, loop.For)}
    reduced = {v for v, f in loops.items() if f.kind != "parallel"}
    for load in _loads(kernel, name):
        read = _read(load, loops, reduced)
        over = [d for d, v in read.plain.items() if v in reduced]
        if read.apart:
            yield STAYS
        elif read.slides:
            yield from over if len(over) == 1 else _filtered(kernel, load, read)
        elif len(over) == 1 and len(read.plain) == len(load.index) and _alone(kernel, name, reduced, temps):
            yield over[0]


def _read(load: Load, loops: Mapping[str, loop.For], reduced: set[str]) -> _Read:
    plain = {d: i.name for d, i in enumerate(load.index) if isinstance(i, Var) and i.name in loops}
    kinds = [_kind(i, loops, reduced) for d, i in enumerate(load.index) if d not in plain]
    return _Read(plain, "slides" in kinds, "apart" in kinds)


def _kind(index: Expr, loops: Mapping[str, loop.For], reduced: set[str]) -> str:
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


def _filtered(kernel: Kernel, load: Load, read: _Read) -> Iterator[int]:
    """The axes that the weights of a window have as well."""
    small = _smaller(kernel, load.buffer)
    others = [n for n in _loads(kernel) if n.buffer in small]
    yield from (d for d, v in read.plain.items() if any(v in names(i) for n in others for i in n.index))


def _alone(kernel: Kernel, name: str, reduced: set[str], temps: Collection[str]) -> bool:
    """Whether no other temporary of similar size is reduced along with it, as in a matmul of two."""
    together = {n.buffer for n in _loads(kernel) if any(names(i) & reduced for i in n.index)}
    return together & set(temps) <= {name} | _smaller(kernel, name)


def _smaller(kernel: Kernel, name: str) -> set[str]:
    """The buffers with at most a quarter of the elements."""
    sizes = {p.name: _count(product(p.shape)) for p in kernel.params}
    return {b for b, n in sizes.items() if 4 * n <= sizes[name]}


def _count(size: Expr) -> int:
    return int(size.value) if isinstance(size, Const) else 0


def _alike(kernel: Kernel, tensors: Mapping[str, Tensor], free: set[str]) -> Iterator[tuple[str, int]]:
    """Temporaries in `free` that a kernel writes along a loop that is contiguous in a buffer it reads.

    Only buffers whose contiguous axis is not their last count.
    """
    loops = {f.var for f in within(kernel.body, loop.For) if f.kind == "parallel"}
    near: set[Expr] = set()
    for n in _loads(kernel):
        t = tensors.get(n.buffer)
        if t is not None and len(t.shape) >= RANK and t.strides[-1] is not const(1):
            near |= {i for i, step in zip(n.index, t.strides, strict=True) if step is const(1)}
    for s in within(kernel.body, Store):
        if s.buffer in free:
            yield from ((s.buffer, d) for d, i in enumerate(s.index) if i in near and names(i) <= loops)


def _innermost(kernel: Kernel, made: Mapping[str, Tensor]) -> set[Expr]:
    """The indices with which a kernel writes the innermost axis in memory of the tensors in `made`."""
    return {i for s in within(kernel.body, Store) if s.buffer in made
            for i, step in zip(s.index, made[s.buffer].strides, strict=True) if step is const(1)}  # fmt: skip


def _beside(kernel: Kernel, wanted: Mapping[str, Tensor], free: set[str]) -> Iterator[tuple[str, int]]:
    """Temporaries in `free` that a kernel reads elementwise along the contiguous loop of a result with a layout."""
    near = _innermost(kernel, wanted)
    for n in _loads(kernel):
        if n.buffer in free and n.buffer not in kernel.writes:
            yield from ((n.buffer, d) for d, i in enumerate(n.index) if i in near and isinstance(i, Var))


def _loads(kernel: Kernel, name: str = "") -> Iterator[Load]:
    """All loads of a kernel, or those of one buffer."""
    for s in kernel.body:
        yield from (n for n in s.walk() if isinstance(n, Load) and name in ("", n.buffer))
