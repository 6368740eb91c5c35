"""How a rule writes Tensor IR: torch tensors are `Value`s, and a `Builder` collects the equations of one ATen call.

A rule is a function `rule(b, *args, **kwargs)` whose parameters after `b` are those of the ATen overload, by the same
names and with the same defaults. Tensors arrive as `Value`s (inside lists too), lists as tuples, element types as
`DType`, anything else unchanged. It returns one `Value`, or a tuple with one for each result of the call, None for a
result that is not computed. Arguments without a parameter are refused before the rule is called; what a rule cannot do
it refuses by `raise b.refuse("why")`. Its family module puts it into a table `RULES: dict[str, Rule]` by overload name:

    def softmax(b: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
        d = dim % x.rank
        m = b.reduce("max", drop_dims(x.shape, (d,)), (x.shape[d],), lambda at, r: x.at(merge(at, r, (d,))), "max")
        ...
        return b.map(x.shape, lambda at: e.at(at) / s.at(drop_dims(at, (d,))))

    RULES: dict[str, Rule] = {"aten._softmax.default": softmax}

A result may be one of the arguments (an alias costs nothing). A value computed from 16-bit floats is f32 and stays f32:
`at` converts, and the lowering rounds the program's outputs. Only explicit conversions and operands of contractions and
of discontinuous functions are rounded earlier (`rounded`, `Value.rounded_at`, `ensure_stored_dtype`). It is an error if
a result has another shape than declared, or an element type that is neither the declared one nor its computing type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from compiler.errors import Unsupported
from compiler.ir import dtype as dt
from compiler.ir.aten import Type
from compiler.ir.dtype import DType, boolean
from compiler.ir.expr import Const, Expr, Load, cast, const, dim, fresh
from compiler.ir.tensor import Axis, Equation, Map, Order, Reduce, Scan, Scatter, scaled
from compiler.ir.text import show, show_type

Shape = tuple[Expr, ...]
Index = tuple[Expr, ...]
Update = tuple[Index, Expr] | tuple[Index, Expr, Expr]  # where, what, and whether it is stored
Rule = Callable[..., "Value | tuple[Value | None, ...]"]

_AXIS_NAMES = "ijklmnabcdefgh"
_REDUCTION_NAMES = "rstuvwxyzpqo"
_TRUE = const(True, dt.boolean)


@dataclass(frozen=True)
class Value:
    """A torch tensor in the Tensor program: `dtype` is torch's, `stored` that of the input or equation holding it."""

    name: str
    dtype: DType
    shape: Shape
    stored: DType
    strides: Shape = ()  # torch's, if known; used only by rules that reinterpret memory

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def compute(self) -> DType:
        """The computing type of the elements: the type of `at`."""
        return dt.compute(self.dtype)

    def at(self, index: Sequence[Expr | int]) -> Expr:
        """One element, in its computing type."""
        return cast(Load(self.name, tuple(map(dim, index)), self.stored), self.compute)

    def rounded_at(self, index: Sequence[Expr | int]) -> Expr:
        """One element as torch would have stored it: the operand of a contraction."""
        return rounded(self.at(index), self.dtype)

    def __str__(self) -> str:
        return show_type(self.dtype, self.shape)


Operand = Value | bool | int | float | Expr


_LOGICAL = {"sum": "or", "prod": "and", "max": "or", "min": "and"}


def reduction_name(op: str, dtype: DType) -> str:
    """The name of the reduction for elements of this type; for bool, the logical one."""
    return _LOGICAL.get(op, op) if dtype is boolean else op


class Builder:
    """Collects the equations of one call at a time; names are unique in the whole program."""

    def __init__(
        self,
        used_names: Iterable[str],
        sizes: Iterable[str] = (),
        order_equations: bool = False,
        split_sums: bool = False,
    ) -> None:
        self.order_equations = order_equations  # a sort may be one equation
        self.split_sums = split_sums  # parts of a result may be separate sums
        self._used_names = {*used_names, *sizes}
        self._numbers: dict[str, int] = {}
        # An axis named `s` would give loops named `s0` and `s1`, which may be names of sizes.
        reserved = self._used_names | {name[0] for name in sizes}
        self._axis_names = [c for c in _AXIS_NAMES if c not in reserved]
        self._reduction_names = [c for c in _REDUCTION_NAMES if c not in reserved]
        self._used_names |= {*_AXIS_NAMES, *_REDUCTION_NAMES}
        self.equations: list[Equation] = []
        self.types: tuple[Type | None, ...] = ()
        self._call: tuple[str, tuple[object, ...], dict[str, object]] = ("", (), {})
        self._prefix = ""

    def begin(
        self, prefix: str, types: tuple[Type | None, ...], op: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Start a call; `prefix` begins the names of its intermediate values."""
        self.equations, self.types, self._prefix, self._call = [], types, prefix, (op, args, kwargs)

    @property
    def out(self) -> Type:
        """The declared type of the call's first used result."""
        for t in self.types:
            if t is not None:
                return t
        raise ValueError(f"{self._call[0]}: no result is used")

    def refuse(self, why: str) -> Unsupported:
        """The error for a call that a rule cannot lower; to be raised."""
        op, args, kwargs = self._call
        return Unsupported(op, tuple(map(_argument_text, args)), why, {k: _argument_text(v) for k, v in kwargs.items()})

    def fresh(self, hint: str) -> str:
        return fresh(hint, self._used_names, self._numbers)

    def map(self, shape: Shape, element: Callable[[Index], Expr], hint: str = "value") -> Value:
        """`element(at)` for every index `at` of `shape`."""
        axes = self._make_axes(self._axis_names, shape)
        return self._define(Map(self._name(hint), axes, element(_axis_vars(axes))))

    def reduce(
        self, op: str, shape: Shape, over: Shape, element: Callable[[Index, Index], Expr], hint: str = "reduced"
    ) -> Value:
        """For every `at` of `shape`, `op` (a key of `expr.COMBINE`) of `element(at, r)` for every `r` of `over`."""
        axes, ranges = self._make_axes(self._axis_names, shape), self._make_axes(self._reduction_names, over)
        value = element(_axis_vars(axes), _axis_vars(ranges))
        return self._define(Reduce(self._name(hint), axes, reduction_name(op, value.dtype), ranges, value))

    def scan(self, op: str, shape: Shape, along: int, element: Callable[[Index], Expr], hint: str = "scanned") -> Value:
        """Running `op` of `element(at)` along dimension `along`, the current element included."""
        axes = self._make_axes(self._axis_names, shape)
        value = element(_axis_vars(axes))
        return self._define(Scan(self._name(hint), axes, reduction_name(op, value.dtype), axes[along].name, value))

    def order(
        self,
        direction: str,
        shape: Shape,
        along: int,
        count: Expr,
        element: Callable[[Index], Expr],
        hint: str = "order",
    ) -> Value:
        """Along dimension `along` of `shape`, the indices of `count` elements in order; `direction` is in ORDERS."""
        axes, over = self._make_axes(self._axis_names, shape), self._make_axes(self._reduction_names, (count,))
        value = element(_axis_vars((*axes[:along], *over, *axes[along + 1 :])))
        return self._define(Order(self._name(hint), axes, axes[along].name, direction, over, value))

    def scatter(
        self,
        op: str,
        shape: Shape,
        base: Callable[[Index], Expr],
        over: Shape,
        update: Callable[[Index], Update],
        hint: str = "scattered",
    ) -> Value:
        """`base(at)` everywhere; then, for each `r` of `over` in order, the value of `update(r)` is stored or combined.

        An update is `(index, value)` or `(index, value, guard)`; `op` is "set" or a key of `expr.COMBINE`. An index
        must be in bounds wherever its guard holds.
        """
        axes, ranges = self._make_axes(self._axis_names, shape), self._make_axes(self._reduction_names, over)
        index, value, *guard = update(_axis_vars(ranges))
        equation = Scatter(
            self._name(hint), axes, base(_axis_vars(axes)), op, ranges, index, value, guard[0] if guard else _TRUE
        )
        return self._define(equation)

    def _make_axes(self, pool: list[str], shape: Shape) -> tuple[Axis, ...]:
        names = pool if len(pool) >= len(shape) else [f"{pool[0]}{n}" for n in range(len(shape))]
        return tuple(Axis(name, scaled(extent, dim(1))) for name, extent in zip(names, shape, strict=False))

    def _name(self, hint: str) -> str:
        return self.fresh(f"{self._prefix}_{hint}")

    def _define(self, equation: Equation) -> Value:
        self.equations.append(equation)
        return Value(equation.name, equation.dtype, tuple(a.extent for a in equation.axes), equation.dtype)


def _axis_vars(axes: tuple[Axis, ...]) -> Index:
    return tuple(a.var for a in axes)


def _argument_text(argument: object) -> object:
    if isinstance(argument, Expr):
        return show(argument)
    if isinstance(argument, tuple):
        return f"[{', '.join(str(_argument_text(a)) for a in argument)}]"
    return argument


def rounded(value: Expr, dtype: DType) -> Expr:
    """`value` as a tensor of `dtype` would hold it, in the computing type."""
    return cast(cast(value, dtype), dt.compute(dtype)) if dtype in dt.STORAGE_ONLY else cast(value, dtype)


def ensure_stored_dtype(b: Builder, value: Value) -> Value:
    """The value stored in its own element type; a new equation if it is stored in a wider one."""
    if value.dtype not in dt.STORAGE_ONLY or value.stored is value.dtype:
        return value
    stored = b.map(value.shape, lambda at: cast(Load(value.name, at, value.stored), value.dtype), "stored")
    return replace(value, name=stored.name, stored=stored.stored)


def converted_at(x: Value, index: Sequence[Expr | int], dtype: DType) -> Expr:
    """One element as a tensor of `dtype` would hold it; for integers, it is rounded to its own type first."""
    return rounded(x.at(index) if dtype.is_float else x.rounded_at(index), dtype)


def broadcast(x: Value, index: Index) -> Index:
    """The index into `x` for an index of a shape that `x` broadcasts to."""
    tail = index[len(index) - x.rank :]
    return tuple(dim(0) if is_one(extent) else i for extent, i in zip(x.shape, tail, strict=True))


def is_one(extent: Expr) -> bool:
    return isinstance(extent, Const) and extent.value == 1


def element(x: Operand, index: Index, dtype: DType) -> Expr:
    """A scalar, or an element of a value that broadcasts to the shape of `index`, as `dtype`, a computing type.

    An integer that is too large for `dtype` wraps, as in torch if a scalar is combined with a tensor.
    """
    if isinstance(x, Value):
        return cast(x.at(broadcast(x, index)), dtype)
    if isinstance(x, Expr):  # a size
        return cast(x, dtype)
    is_integer = not isinstance(x, float) and (-(2**63) <= x < 2**63 or not dtype.is_float)
    return cast(const((int(x) + 2**63) % 2**64 - 2**63) if is_integer else const(float(x), dt.f64), dtype)


def dims(b: Builder, d: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimensions as torch gives them (None, one, several, negative), sorted; all of them for None or an empty list."""
    if d is None or (not isinstance(d, int) and not d):
        return tuple(range(rank))
    given = (d,) if isinstance(d, int) else tuple(d)
    bad = [x for x in given if not -max(rank, 1) <= x < max(rank, 1)]
    if bad:
        raise b.refuse(f"dimension {bad[0]} of a tensor of rank {rank}")
    return tuple(sorted({x % rank for x in given})) if rank else ()


def drop_dims(shape: Shape, dropped: Sequence[int]) -> Shape:
    """The shape with some dimensions removed."""
    return tuple(s for d, s in enumerate(shape) if d not in dropped)


def with_unit_dims(shape: Shape, axes: Sequence[int]) -> Shape:
    """The shape with dimensions `axes` set to 1."""
    return tuple(dim(1) if d in axes else s for d, s in enumerate(shape))


def merge(at: Index, over: Index, axes: Sequence[int]) -> Index:
    """The full index whose dimensions `axes` are `over` and whose others are `at`, in order."""
    outer, inner = iter(at), iter(over)
    return tuple(next(inner) if d in axes else next(outer) for d in range(len(at) + len(over)))


def set_dim(at: Index, d: int, i: Expr | int) -> Index:
    """The index with dimension `d` replaced."""
    return (*at[:d], dim(i), *at[d + 1 :])
