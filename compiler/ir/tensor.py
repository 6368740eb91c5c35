"""Tensor IR: a program is a list of equations, each of which defines one tensor over its index space.

```
def softmax(x: f32[64, 100]):
    with kernel("softmax"):
        m[i: 64]: f32 = max(x[i, j] for j in range(100))
        e[i: 64, j: 100]: f32 = exp(x[i, j] - m[i])
        s[i: 64]: f32 = sum(e[i, j] for j in range(100))
        y[i: 64, j: 100]: f32 = e[i, j] / s[i]
    return y
```
There are five kinds of equations: map (also for views, gathers, padding, concatenation and iota, because the index of a
load is an expression), reduction, scan, scatter, and order (argsort). A contraction is a sum of products, a convolution
one of shifted loads. A value that PyTorch would hold in 16 bits and that is computed in f32 has type `bf16 in f32`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping

from compiler.ir.dtype import DType, i64
from compiler.ir.expr import COMBINE, Const, Expr, Load, Op, Select, Size, Var, dim, static, type_error, variables
from compiler.ir.index import simplify
from compiler.ir.node import Node
from compiler.ir.ranges import Range
from compiler.ir.value_ranges import extent_range


class Axis(Node):
    """An index that runs from 0 to extent - 1."""

    name: str
    extent: Expr

    @property
    def var(self) -> Var:
        return Var(self.name, i64)


class Tensor(Node):
    """A tensor in memory; strides are in elements. `constant` tensors are weights, known when compiling."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    constant: bool = False


class Equation(Node):
    """Defines `name`, with one element for each point of `axes`."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @property
    def narrow(self) -> DType | None:
        """The 16-bit type in which PyTorch would hold a result computed in f32, or None; a field of each kind."""
        raise NotImplementedError


class Map(Equation):
    """`name[axes] = value`."""

    value: Expr
    narrow: DType | None = None

    @property
    def dtype(self) -> DType:
        return self.value.dtype


class Reduce(Equation):
    """`name[axes] = op(value for over)`; an empty range gives the identity of `op`."""

    op: str
    over: tuple[Axis, ...]
    value: Expr
    narrow: DType | None = None

    @property
    def dtype(self) -> DType:
        return self.value.dtype


class Scan(Equation):
    """`name[.., along = j, ..] = op(value at 0 .. j of along)`; `along` names one of `axes`."""

    op: str
    along: str
    value: Expr
    narrow: DType | None = None

    @property
    def dtype(self) -> DType:
        return self.value.dtype


class Scatter(Equation):
    """`name[axes] = base`, then for each point of `over`, in order, `name[index] = value`.

    An `op` other than "set" combines the value with the old one. Updates with a false `guard` are skipped.
    """

    base: Expr
    op: str
    over: tuple[Axis, ...]
    index: tuple[Expr, ...]
    value: Expr
    guard: Expr
    narrow: DType | None = None

    @property
    def dtype(self) -> DType:
        return self.value.dtype


ORDERS = ("ascending", "descending")


class Order(Equation):
    """Argsort: `name[axes]` is the index along `over` of the element that is sorted to position `along`, by `value`.

    The sort is stable, and NaN is larger than all else; `how` is one of ORDERS. `over` is one axis, which replaces
    `along` in `value`.
    """

    along: str
    how: str
    over: tuple[Axis, ...]
    value: Expr
    narrow: DType | None = None

    @property
    def dtype(self) -> DType:
        return i64


class Group(Node):
    """Equations that share a kernel. `origin` names the ATen calls that they come from."""

    name: str
    equations: tuple[Equation, ...]
    origin: tuple[str, ...] = ()


class Program(Node):
    """`outputs` are tensors with the strides that the caller expects (dense, in some order).

    `into`, if not empty, has for each output the input that it may overwrite once all else is computed, or "".
    """

    name: str
    inputs: tuple[Tensor, ...]
    groups: tuple[Group, ...]
    outputs: tuple[Tensor, ...]
    sizes: tuple[Size, ...] = ()
    into: tuple[str, ...] = ()


def equations(program: Program) -> list[Equation]:
    return [e for g in program.groups for e in g.equations]


def shape(equation: Equation) -> tuple[Expr, ...]:
    return tuple(a.extent for a in equation.axes)


def expressions(equation: Equation) -> tuple[Expr, ...]:
    """All expressions of an equation, without its extents."""
    return tuple(n for n in equation.children() if isinstance(n, Expr))


def with_expressions(equation: Equation, change: Callable[[Expr], Expr]) -> Equation:
    """The equation with `change` applied to each of its expressions."""
    return equation.map(lambda n: change(n) if isinstance(n, Expr) else n)


@functools.lru_cache(maxsize=1 << 14)
def reads(equation: Equation) -> tuple[str, ...]:
    """Names of the tensors that an equation loads from, each once, in order."""
    return tuple(dict.fromkeys(n.buffer for e in expressions(equation) for n in e.walk() if isinstance(n, Load)))


def bound(equation: Equation) -> tuple[Axis, ...]:
    """The axes that may occur in the value of an equation."""
    match equation:
        case Reduce():
            return equation.axes + equation.over
        case Order(axes=axes, along=along, over=over):
            return (*(a for a in axes if a.name != along), *over)
        case Scatter():
            return equation.over
    return equation.axes


def axis_ranges(axes: Iterable[Axis]) -> dict[str, Range]:
    """The range of each axis's variable."""
    return {a.name: extent_range(a.extent) for a in axes}


def is_static(t: Tensor) -> bool:
    """Whether shape and strides are known when compiling."""
    return all(isinstance(n, Const) for n in (*t.shape, *t.strides))


def reach(t: Tensor) -> int | None:
    """Elements from the first of a tensor to just after its last; None if that depends on symbolic sizes."""
    if not is_static(t):
        return None
    if any(static(n) == 0 for n in t.shape):
        return 0
    return 1 + sum((static(n) - 1) * static(s) for n, s in zip(t.shape, t.strides, strict=True))


def span(t: Tensor) -> int:
    """Elements from the first of a buffer to just after its last, at least one; raises SymbolicError if unknown."""
    far = [(static(n, f"the size of {t.name}") - 1) * static(by) for n, by in zip(t.shape, t.strides, strict=True)]
    return max(1 + sum(far), 1)


def verify_params(where: str, params: Iterable[Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Check that each parameter occurs once and does not exceed the buffer of its name; raises ValueError naming it."""
    names: set[str] = set()
    for p in params:
        if p.name in names:
            raise ValueError(f"{where}: {p.name} is a parameter twice")
        names.add(p.name)
        buffer = buffers.get(p.name)
        if buffer is None or buffer is p:
            continue
        seen, there = reach(p), reach(buffer)
        if p.dtype is not buffer.dtype or (seen is not None and there is not None and seen > there):
            raise ValueError(
                f"{where}: {p.name} is seen as {seen} elements of {p.dtype}, and has {there} of {buffer.dtype}"
            )


def verify(program: Program) -> None:
    """Check bindings before use, ranks, types, and that free variables are axes or sizes; raises ValueError."""
    known = {t.name: (t.dtype, len(t.shape)) for t in program.inputs}
    if taken := {s.name for s in program.sizes} & {*known, *(e.name for e in equations(program))}:
        raise ValueError(f"{program.name}: {sorted(taken)} are sizes, and names of tensors")
    for equation in equations(program):
        if equation.name in known:
            raise ValueError(f"{program.name}: {equation.name} is defined twice")
        _verify_equation(program, equation, known)
        known[equation.name] = (equation.dtype, len(equation.axes))
    if {*program.into} - {"", *(t.name for t in program.inputs if not t.constant)}:
        raise ValueError(f"{program.name}: {program.into} are not all inputs that may be written")
    for t in program.outputs:
        if known.get(t.name) != (t.dtype, len(t.shape)):
            raise ValueError(
                f"{program.name}: output {t.name} is {known.get(t.name)}, declared {t.dtype} of rank {len(t.shape)}"
            )


def _verify_equation(program: Program, equation: Equation, known: dict[str, tuple[DType, int]]) -> None:
    where = f"{program.name}: equation {equation.name}"
    axes = [a.name for a in equation.axes + (equation.over if isinstance(equation, Reduce | Scatter | Order) else ())]
    if len(set(axes)) != len(axes):
        raise ValueError(f"{where}: an axis name occurs twice in {axes}")
    if taken := {s.name for s in program.sizes} & set(axes):
        raise ValueError(f"{where}: {sorted(taken)} are sizes, and names of its axes")
    inner, outer = {a.name for a in bound(equation)}, {a.name for a in equation.axes}
    for e in expressions(equation):
        allowed = outer if isinstance(equation, Scatter) and e is equation.base else inner
        if isinstance(equation, Scatter) and e is equation.base and e is equation.value:
            allowed = inner | outer
        free = {v.name for v in variables(e) if v.name not in allowed and v not in program.sizes}
        if free:
            raise ValueError(f"{where}: {sorted(free)} are not its axes")
        verify_expression(e, known, where)
    if isinstance(equation, Reduce | Scan) and equation.op not in COMBINE:
        raise ValueError(f"{where}: {equation.op!r} is not a reduction")
    if isinstance(equation, Scan | Order) and equation.along not in axes:
        how = "scans" if isinstance(equation, Scan) else "is ordered"
        raise ValueError(f"{where}: {how} along {equation.along}, which is not its axis")
    if isinstance(equation, Order) and (equation.how not in ORDERS or len(equation.over) != 1):
        raise ValueError(f"{where}: {len(equation.over)} axes put in the order {equation.how!r}")


def verify_expression(e: Expr, known: dict[str, tuple[DType, int]], where: str) -> None:
    """Check operations' argument types, and loads' types and ranks against their tensors; raises ValueError."""
    for n in e.walk():
        problem = ""
        match n:
            case Op(name, args):
                problem = type_error(name, args)
            case Load(buffer, index, dtype):
                if buffer not in known:
                    problem = f"{buffer} is loaded before it is defined"
                elif known[buffer] != (dtype, len(index)):
                    held, rank = known[buffer]
                    problem = f"{buffer} is {held} of rank {rank}, loaded as {dtype} of rank {len(index)}"
                elif any(i.dtype is not i64 for i in index):
                    problem = f"an index of {buffer} is not i64"
            case Select(cond, then, other):
                if cond.dtype.kind != "bool" or then.dtype is not other.dtype:
                    problem = f"select of types {cond.dtype}, {then.dtype}, {other.dtype}"
        if problem:
            raise ValueError(f"{where}: {problem}")


def scaled(a: Expr, b: Expr) -> Expr:
    """The product of two sizes, in simplest form."""
    out = a * b
    return out if isinstance(out, Const) else simplify(out, {}, index=True)


def known_bytes(t: Tensor) -> int:
    """Bytes of a tensor, as far as its sizes are known."""
    return t.dtype.bytes * math.prod(int(n.value) for n in t.shape if isinstance(n, Const))


def numel(shape: tuple[Expr, ...]) -> Expr:
    """The number of elements of a tensor of this shape."""
    return functools.reduce(scaled, shape, dim(1))


def row_major(sizes: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Strides of a contiguous tensor."""
    out: list[Expr] = []
    step = dim(1)
    for s in reversed(sizes):
        out.append(step)
        step = scaled(step, s)
    return tuple(reversed(out))


ALIGNMENT = 16  # bytes: of a thread's widest access, and of a bulk copy
_LONG = 16  # multiples of the alignment: padding shorter rows would waste more than a sixteenth


def aligned_rows(t: Tensor) -> tuple[Expr, ...]:
    """Strides with which each row of a contiguous tensor starts at a multiple of `ALIGNMENT` bytes, if that takes
    little more memory; its own strides otherwise, and if sizes are unknown.

    >>> from compiler.ir.dtype import bf16
    >>> shape = (dim(8), dim(4), dim(129))
    >>> [static(s) for s in aligned_rows(Tensor("x", bf16, shape, row_major(shape)))]
    [544, 136, 1]
    """
    known = all(isinstance(n, Const) for n in t.shape) and len(t.shape) > 1 and t.strides == row_major(t.shape)
    if not known or static(t.shape[-1]) * t.dtype.bytes < _LONG * ALIGNMENT or ALIGNMENT % t.dtype.bytes:
        return t.strides
    unit = ALIGNMENT // t.dtype.bytes
    row = -(-static(t.shape[-1]) // unit) * unit
    return row_major((*t.shape[:-1], dim(row)))


def memory_order(t: Tensor) -> tuple[int, ...]:
    """The axes of a tensor by decreasing stride; in their own order if strides are unknown.

    Axes of one element come first, and then broadcast axes.

    >>> from compiler.ir.dtype import f32
    >>> memory_order(Tensor("x", f32, (dim(2), dim(8), dim(5)), (dim(40), dim(1), dim(8))))
    (0, 2, 1)
    >>> memory_order(Tensor("x", f32, (dim(8), dim(5), dim(2)), (dim(1), dim(0), dim(8))))
    (1, 2, 0)
    """
    axes = range(len(t.shape))
    if not is_static(t):
        return tuple(axes)
    return tuple(sorted(axes, key=lambda d: (static(t.shape[d]) > 1, static(t.strides[d]) > 0, -static(t.strides[d]))))


def adjacent(t: Tensor, d: int) -> bool:
    """Whether axes d and d + 1, of known sizes, are contiguous together."""
    sizes = (*t.shape[d : d + 2], *t.strides[d : d + 2])
    return all(isinstance(n, Const) for n in sizes) and t.strides[d] is t.shape[d + 1] * t.strides[d + 1]


def flattened(t: Tensor, d: int, axes: int) -> Tensor | None:
    """The tensor with `axes` axes from `d` on joined into one; None if they are not contiguous together."""
    for _ in range(axes - 1):
        if not adjacent(t, d):
            return None
        t = joined(t, d)
    return t


def joined(t: Tensor, d: int) -> Tensor:
    """The tensor with axes d and d + 1 joined."""
    shape = (*t.shape[:d], t.shape[d] * t.shape[d + 1], *t.shape[d + 2 :])
    return t.replace(shape=shape, strides=(*t.strides[:d], *t.strides[d + 1 :]))
