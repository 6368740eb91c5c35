"""Tensor IR in TOSA, on whole tensors; operations that TOSA lacks are refused by name.

An expression is a tensor with a dimension for each axis of its equation, of extent 1 if the expression does not use the
axis. A load whose indices are axes is a slice, a transpose and a reshape; any other is a gather. A load guarded by a
condition is performed everywhere, at an index clamped into the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from compiler.errors import Unsupported
from compiler.ir.dtype import STORAGE_ONLY, DType, boolean, f32, i8, i32, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Size, Var, const, names, op, static
from compiler.ir.linear import factors_of, linear
from compiler.ir.tensor import Axis, Equation, Map, Program, Reduce, equations
from compiler.ir.text import show_size
from compiler.render.mlir.text import Block, Value, function, literal, tensor_type

Shape = tuple[int, ...]
LONGEST = 1 << 14  # the longest axis whose indices are written as a constant

# Operations that have the same meaning for all arguments, by kind of type.
_FLOATS = {
    "floor": "floor", "ceil": "ceil", "exp": "exp", "log": "log", "tanh": "tanh", "erf": "erf", "sin": "sin",
    "cos": "cos", "rsqrt": "rsqrt", "pow": "pow", "abs": "abs", "add": "add", "sub": "sub", "min": "minimum",
    "max": "maximum",
}  # fmt: skip
_INTEGERS = {
    "add": "add", "sub": "sub", "min": "minimum", "max": "maximum", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "not": "bitwise_not",
}  # fmt: skip
_BOOLS = {
    "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not", "min": "logical_and",
    "max": "logical_or", "ne": "logical_xor",
}  # fmt: skip
_TABLES = {"float": _FLOATS, "int": _INTEGERS, "uint": {}, "bool": _BOOLS}
_COMPARE = {"gt": ("greater", False), "ge": ("greater_equal", False), "lt": ("greater", True),
            "le": ("greater_equal", True)}  # fmt: skip
_REDUCE = {"sum": "reduce_sum", "prod": "reduce_product", "max": "reduce_max", "min": "reduce_min"}
_REDUCE_BOOL = {"and": "reduce_all", "or": "reduce_any", "min": "reduce_all", "max": "reduce_any"}


@dataclass(frozen=True)
class Array:
    """A tensor value with its shape and element type."""

    value: Value
    shape: Shape
    dtype: DType


@dataclass(frozen=True)
class Grid:
    """The context of an equation's expressions; in a `guarded` one only some points are valid."""

    equation: Equation
    axes: tuple[Axis, ...]
    block: Block
    tensors: dict[str, Array]
    guarded: bool = False
    memo: dict[tuple[Expr, bool], Array] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return max(1, len(self.axes))

    def elementwise(self, name: str, dtype: DType, *arguments: Array, extra_operands: Sequence[Value] = ()) -> Array:
        """An elementwise operation."""
        shape = tuple(map(max, zip(*(a.shape for a in arguments), strict=True)))
        operands = [*(a.value for a in arguments), *extra_operands]
        return Array(self.block.op(f"tosa.{name}", operands, tensor_type(dtype, shape)), shape, dtype)

    def constant(self, value: bool | int | float, dtype: DType) -> Array:
        shape = (1,) * self.rank
        return Array(_constant(literal(value, dtype).split(" ")[0], dtype, shape, self.block), shape, dtype)

    def reshape(self, x: Array, shape: Shape) -> Array:
        if x.shape == shape:
            return x
        reshaped = self.block.op("tosa.reshape", (x.value, _shape(shape, self.block)), tensor_type(x.dtype, shape))
        return Array(reshaped, shape, x.dtype)

    def broadcast(self, x: Array, shape: Shape) -> Array:
        """Broadcast along each axis to this shape."""
        if x.shape == shape:
            return x
        repeats = tuple(n // m if m else 1 for n, m in zip(shape, x.shape, strict=True))
        tiled = self.block.op("tosa.tile", (x.value, _shape(repeats, self.block)), tensor_type(x.dtype, shape))
        return Array(tiled, shape, x.dtype)


def _constant(text: str, dtype: DType, shape: Shape, b: Block) -> Value:
    kind = tensor_type(dtype, shape)
    return b.op("tosa.const", (), kind, f"values = dense<{text}> : {kind}")


def _shape(sizes: Shape, b: Block) -> Value:
    rank = len(sizes)
    values = f"dense<[{', '.join(map(str, sizes))}]>" if rank else "dense<>"
    return b.op("tosa.const_shape", (), f"!tosa.shape<{rank}>", f"values = {values} : tensor<{rank}xindex>")


def render(program: Program) -> str:
    """The program as a function of tensors. Raises Unsupported with the operation that TOSA lacks."""
    if program.sizes:
        raise _refusal([show_size(s) for s in program.sizes], "sizes must be known when the text is made")
    b = Block()
    tensors = {}
    for t in program.inputs:
        shape = tuple(static(n) for n in t.shape)
        tensors[t.name] = Array(Value(f"%{t.name}", tensor_type(_check_dtype(t.name, t.dtype), shape)), shape, t.dtype)
    arguments = [x.value for x in tensors.values()]
    for e in equations(program):
        _check_dtype(e.name, e.dtype)
        tensors[e.name] = _define(e, b, tensors)
    results = [tensors[t.name].value for t in program.outputs]
    b.do("func.return", results)
    return function(program.name, arguments, results, b)


def _refusal(what: Sequence[str], why: str) -> Unsupported:
    return Unsupported("tosa", what, why)


def _check_dtype(name: str, dtype: DType) -> DType:
    if dtype.name in ("f64", "u8"):
        raise _refusal([f"{name}: {dtype}"], f"TOSA has no {dtype}")
    return dtype


def _define(e: Equation, b: Block, tensors: dict[str, Array]) -> Array:
    if not isinstance(e, Map | Reduce):
        raise _refusal([e.name], f"TOSA has no {type(e).__name__.lower()}")
    over = e.over if isinstance(e, Reduce) else ()
    grid = Grid(e, (*e.axes, *over), b, tensors)
    if any(static(a.extent) == 0 for a in grid.axes):
        raise _refusal([f"{e.name}: no elements"], "TOSA has no empty tensors")
    free = tuple(static(a.extent) for a in e.axes)
    if not isinstance(e, Reduce):
        result = grid.broadcast(lower(e.value, grid), free or (1,))
    else:
        pair = _factors(e) if e.op == "sum" and e.dtype is f32 else None
        result = _contract(e, *pair, grid) if pair else _reduce(e, grid)
    return grid.reshape(result, free)


def _reduce(e: Reduce, grid: Grid) -> Array:
    table = _REDUCE_BOOL if e.dtype is boolean else _REDUCE
    if e.op not in table:
        raise _refusal([f"{e.name}: {e.op} of {e.dtype}"], "TOSA has no such reduction")
    value = lower(e.value, grid)
    extents = [static(a.extent) for a in grid.axes] or [1]
    for d in reversed(range(len(e.axes), len(grid.axes))):
        full_shape = tuple(extents[d] if n == d else m for n, m in enumerate(value.shape))
        value = grid.broadcast(value, full_shape)
        shape = tuple(1 if n == d else m for n, m in enumerate(full_shape))
        kind = tensor_type(e.dtype, shape)
        value = Array(grid.block.op(f"tosa.{table[e.op]}", (value.value,), kind, f"axis = {d} : i32"), shape, e.dtype)
    return grid.broadcast(value, (*(static(a.extent) for a in e.axes), *[1] * len(e.over)) or (1,))


def _factors(e: Reduce) -> tuple[Expr, Expr] | None:
    """The factors of a matmul: each has all summed axes and a free axis that the other lacks; None for other values."""
    free, summed = {a.name for a in e.axes}, {a.name for a in e.over}
    groups: list[Expr] = []
    for f in factors_of(e.value):
        index = next(
            (n for n, g in enumerate(groups) if _axes_are_subset(f, g, free) or _axes_are_subset(g, f, free)), None
        )
        if index is None:
            groups.append(f)
        else:
            groups[index] = op("mul", groups[index], f)
    if len(groups) != 2 or any(not summed <= names(g) for g in groups):
        return None
    return groups[0], groups[1]


def _axes_are_subset(a: Expr, b: Expr, free: set[str]) -> bool:
    return names(a) & free <= names(b) & free


def _contract(e: Reduce, left: Expr, right: Expr, grid: Grid) -> Array:
    """A matmul: (batch, rows, summed) by (batch, summed, columns)."""
    axes_of = [names(left), names(right)]
    batch = [a for a in e.axes if a.name in axes_of[0] and a.name in axes_of[1]]
    rows = [a for a in e.axes if a.name in axes_of[0] and a not in batch]
    columns = [a for a in e.axes if a not in batch and a not in rows]

    def size(axes: Iterable[Axis]) -> int:
        return math.prod(static(a.extent) for a in axes)

    def matrix(factor: Expr, *groups: Sequence[Axis]) -> Value:
        order = [a for group in groups for a in group]
        factor_grid = replace(grid, axes=tuple(order), memo={})
        full = factor_grid.broadcast(lower(factor, factor_grid), tuple(static(a.extent) for a in order) or (1,))
        return grid.reshape(full, tuple(map(size, groups))).value

    zero = _constant("0.0", f32, (1,), grid.block)
    shape = (size(batch), size(rows), size(columns))
    operands = (matrix(left, batch, rows, e.over), matrix(right, batch, e.over, columns), zero, zero)
    product = Array(grid.block.op("tosa.matmul", operands, tensor_type(f32, shape)), shape, f32)
    axis_order = [*batch, *rows, *columns]
    unflattened = grid.reshape(product, tuple(static(a.extent) for a in axis_order) or (1,))
    return _transposed(unflattened, tuple(axis_order.index(a) for a in e.axes), grid)


def _transposed(x: Array, order: tuple[int, ...], grid: Grid) -> Array:
    if order == tuple(sorted(order)):
        return x
    shape = tuple(x.shape[d] for d in order)
    perms = f"perms = array<i32: {', '.join(map(str, order))}>"
    return Array(grid.block.op("tosa.transpose", (x.value,), tensor_type(x.dtype, shape), perms), shape, x.dtype)


# ---- expressions


def lower(e: Expr, grid: Grid) -> Array:
    """The tensor of an expression, computed once."""
    key = (e, grid.guarded)
    if key not in grid.memo:
        grid.memo[key] = _lower(e, grid)
    return grid.memo[key]


def _lower(e: Expr, grid: Grid) -> Array:
    match e:
        case Const(value, dtype):
            return grid.constant(value, _check_dtype(grid.equation.name, dtype))
        case Var(name) if not isinstance(e, Size):
            return _indices(name, grid)
        case Load():
            return _load(e, grid)
        case Cast(arg, dtype):
            return _convert(lower(arg, grid), _check_dtype(grid.equation.name, dtype), grid)
        case Select(cond, then, other):
            branch_grid = replace(grid, guarded=True)
            branches = [lower(x, branch_grid) for x in (then, other)]
            return grid.elementwise("select", then.dtype, lower(cond, grid), *branches)
        case Op(name, args) if name != "require":
            return apply(name, [lower(a, grid) for a in args], grid, args)
    raise _refusal([_describe(e)], "TOSA has no operation for it")


def _describe(e: Expr) -> str:
    return f"{e.name} of {e.args[-1].dtype}" if isinstance(e, Op) else type(e).__name__


def _indices(name: str, grid: Grid) -> Array:
    """The index of each point along one axis."""
    dimension = next(n for n, a in enumerate(grid.axes) if a.name == name)
    count = static(grid.axes[dimension].extent)
    if count > LONGEST:
        raise _refusal([f"{name}: {count}"], f"indices along an axis of more than {LONGEST} are not written down")
    shape = tuple(count if n == dimension else 1 for n in range(grid.rank))
    row = Array(_constant(f"[{', '.join(map(str, range(count)))}]", i64, (count,), grid.block), (count,), i64)
    return grid.reshape(row, shape)


def _load(e: Load, grid: Grid) -> Array:
    source = grid.tensors[e.buffer]
    extents = {a.name: static(a.extent) for a in grid.axes}
    found = [_axis_and_start(i, n, extents) for i, n in zip(e.index, source.shape, strict=True)]
    along = [axis for f in found if f is not None for axis in f[:1] if axis]
    if None in found or len(set(along)) != len(along):
        return _gather(e, source, grid)
    starts = [f[1] for f in found if f is not None]
    sizes = tuple(extents[f[0]] if f[0] else 1 for f in found if f is not None)
    if sizes != source.shape:
        bounds = (_shape(tuple(starts), grid.block), _shape(sizes, grid.block))
        source = Array(
            grid.block.op("tosa.slice", (source.value, *bounds), tensor_type(e.dtype, sizes)), sizes, e.dtype
        )
    dims = {a.name: n for n, a in enumerate(grid.axes)}
    order = sorted(range(len(sizes)), key=lambda d: dims[found[d][0]] if found[d] and found[d][0] else -1)  # type: ignore[index]
    source = _transposed(source, tuple(order), grid)
    shape = [1] * grid.rank
    for axis in along:
        shape[dims[axis]] = extents[axis]
    return grid.reshape(source, tuple(shape))


def _axis_and_start(index: Expr, size: int, extents: dict[str, int]) -> tuple[str, int] | None:
    """The axis that an index follows ("" for none) and its start; None for any other index."""
    terms, start = linear(index)
    if not terms:
        return ("", start) if 0 <= start < size else None
    (atom, step), *others = terms.items()
    if others or step != 1 or not isinstance(atom, Var) or atom.name not in extents:
        return None
    return (atom.name, start) if start >= 0 and start + extents[atom.name] <= size else None


def _gather(e: Load, source: Array, grid: Grid) -> Array:
    """A gather by flat index; in a guarded context, indices are clamped into the tensor."""
    flat: Array | None = None
    for i, n in zip(e.index, source.shape, strict=True):
        position = lower(i, grid)
        if grid.guarded:
            position = grid.elementwise("maximum", i64, position, grid.constant(0, i64))
            position = grid.elementwise("minimum", i64, position, grid.constant(n - 1, i64))
        scaled = flat and _multiply(flat, grid.constant(n, i64), grid)
        flat = position if scaled is None else grid.elementwise("add", i64, scaled, position)
    assert flat is not None
    count, total = math.prod(flat.shape), math.prod(source.shape)
    if not total:
        raise _refusal([f"{e.buffer}: no elements"], "TOSA has no empty tensors")
    indices = grid.reshape(_convert(flat, i32, grid), (1, count)).value
    shape = (1, count, 1)
    values = grid.reshape(source, (1, total, 1)).value
    gathered = Array(grid.block.op("tosa.gather", (values, indices), tensor_type(e.dtype, shape)), shape, e.dtype)
    return grid.reshape(gathered, flat.shape)


def apply(name: str, args: list[Array], grid: Grid, arguments: tuple[Expr, ...] = ()) -> Array:
    """`expr.OPS[name]` of tensors. Raises Unsupported if TOSA has no operation for it."""
    dtype = args[-1].dtype
    if name == "where":
        return grid.elementwise("select", dtype, *args)
    direct = _TABLES[dtype.kind].get(name)
    if direct is not None:
        return grid.elementwise(direct, boolean if name == "ne" else dtype, *args)
    if name in _COMPARE and dtype.kind in ("float", "int"):
        comparison, swapped = _COMPARE[name]
        return grid.elementwise(comparison, boolean, *(reversed(args) if swapped else args))
    result = _COMPOUND[name](grid, *args) if name in _COMPOUND else None
    if result is None and name in ("floordiv", "mod", "truncdiv", "rem") and dtype.kind == "int":
        divisor = arguments[1] if arguments else None
        if isinstance(divisor, Const) and divisor.value > 0:
            result = _divide(name, args[0], args[1], grid)
    if result is None:
        raise _refusal([f"{name} of {dtype}"], "TOSA has no operation for it")
    return result


def _multiply(x: Array, y: Array, grid: Grid) -> Array:
    shift = _constant("0", i8, (1,), grid.block)
    return grid.elementwise("mul", x.dtype, x, y, extra_operands=(shift,))


def _mul(grid: Grid, x: Array, y: Array) -> Array:
    return _multiply(x, y, grid)


def _negate(grid: Grid, x: Array) -> Array:
    if x.dtype.is_float:
        return _multiply(x, grid.constant(-1.0, x.dtype), grid)
    return grid.elementwise("sub", x.dtype, grid.constant(0, x.dtype), x)


def _quotient(grid: Grid, x: Array, y: Array) -> Array:
    return _multiply(x, grid.elementwise("reciprocal", x.dtype, y), grid)


def _equal(grid: Grid, x: Array, y: Array) -> Array:
    if x.dtype is boolean:
        return grid.elementwise("logical_not", boolean, grid.elementwise("logical_xor", boolean, x, y))
    return grid.elementwise("equal", boolean, x, y)


def _unequal(grid: Grid, x: Array, y: Array) -> Array:
    return grid.elementwise("logical_not", boolean, grid.elementwise("equal", boolean, x, y))


def _is_nan(grid: Grid, x: Array) -> Array:
    return _unequal(grid, x, x)


def _absolute(grid: Grid, x: Array) -> Array | None:
    return grid.elementwise("maximum", x.dtype, x, _negate(grid, x)) if x.dtype.kind == "int" else None


def _sign(grid: Grid, x: Array) -> Array:
    zero, one = grid.constant(0, x.dtype), grid.constant(1, x.dtype)
    positive_part = grid.elementwise("select", x.dtype, grid.elementwise("greater", boolean, x, zero), one, zero)
    is_negative = grid.elementwise("greater", boolean, zero, x)
    return grid.elementwise("select", x.dtype, is_negative, grid.constant(-1, x.dtype), positive_part)


def _truncate(grid: Grid, x: Array) -> Array:
    is_negative = grid.elementwise("greater", boolean, grid.constant(0.0, x.dtype), x)
    return grid.elementwise(
        "select", x.dtype, is_negative, grid.elementwise("ceil", x.dtype, x), grid.elementwise("floor", x.dtype, x)
    )


def _root(grid: Grid, x: Array) -> Array:
    """Square root: zeros keep their sign, and negative numbers give NaN."""
    zero, dtype = grid.constant(0.0, x.dtype), x.dtype
    root = grid.elementwise("pow", dtype, x, grid.constant(0.5, dtype))
    root = grid.elementwise(
        "select", dtype, grid.elementwise("greater", boolean, zero, x), grid.constant(math.nan, dtype), root
    )
    return grid.elementwise("select", dtype, grid.elementwise("equal", boolean, x, zero), x, root)


def _exp2(grid: Grid, x: Array) -> Array:
    return grid.elementwise("pow", x.dtype, grid.constant(2.0, x.dtype), x)


def _logarithm(base: float) -> Callable[[Grid, Array], Array]:
    def logarithm(grid: Grid, x: Array) -> Array:
        scale = const(1 / math.log(base), x.dtype).value
        return _multiply(grid.elementwise("log", x.dtype, x), grid.constant(scale, x.dtype), grid)

    return logarithm


_COMPOUND: dict[str, Callable[..., Array | None]] = {
    "mul": _mul, "neg": _negate, "div": _quotient, "eq": _equal, "ne": _unequal, "isnan": _is_nan, "abs": _absolute,
    "sign": _sign, "trunc": _truncate, "sqrt": _root, "exp2": _exp2, "log2": _logarithm(2.0),
    "log10": _logarithm(10.0),
}  # fmt: skip


def _divide(name: str, x: Array, y: Array, grid: Grid) -> Array:
    """Integer division by a positive literal."""
    dtype = x.dtype
    quotient = grid.elementwise("intdiv", dtype, x, y)
    if name == "truncdiv":
        return quotient
    remainder = grid.elementwise("sub", dtype, x, _multiply(quotient, y, grid))
    if name == "rem":
        return remainder
    zero = grid.constant(0, dtype)
    is_negative = grid.elementwise("greater", boolean, zero, remainder)
    if name == "mod":
        return grid.elementwise("select", dtype, is_negative, grid.elementwise("add", dtype, remainder, y), remainder)
    return grid.elementwise(
        "select", dtype, is_negative, grid.elementwise("sub", dtype, quotient, grid.constant(1, dtype)), quotient
    )


def _convert(x: Array, target: DType, grid: Grid) -> Array:
    """Convert with truncation. TOSA itself rounds to the nearest integer, and saturates."""
    if x.dtype is target:
        return x
    if target is boolean:
        return _unequal(grid, x, grid.constant(0, x.dtype))
    if x.dtype.is_float and not target.is_float:
        if x.dtype in STORAGE_ONLY:
            return _convert(_convert(x, f32, grid), target, grid)
        wide = i64 if target is i64 else i32
        limit = 2.0 ** (wide.bits - 1)
        truncated, low, high = _truncate(grid, x), grid.constant(-limit, x.dtype), grid.constant(limit, x.dtype)
        in_range = [
            grid.elementwise("greater_equal", boolean, truncated, low),
            grid.elementwise("greater", boolean, high, truncated),
        ]
        safe = grid.elementwise("select", x.dtype, grid.elementwise("logical_and", boolean, *in_range), truncated, low)
        return _convert(grid.elementwise("cast", wide, safe), target, grid)
    if target.bits == 16 and target.is_float and x.dtype is not f32:
        return _convert(_convert(x, f32, grid), target, grid)
    return grid.elementwise("cast", target, x)
