"""Expressions in Triton: masked loads through pointers, and operations on whole tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from compiler.analysis import access
from compiler.errors import Unsupported
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Size, Var
from compiler.ir.node import Node
from compiler.ir.value_ranges import value_range
from compiler.render.triton import operations
from compiler.render.triton.values import (
    ATOM,
    LOOSE,
    NONE,
    PRODUCT,
    Axes,
    Value,
    convert,
    literal,
    negation,
    widen_index,
)
from compiler.render.triton.writer import LONGEST_UNNAMED, Writer, conjunction

_MAY_OVERFLOW = ("add", "sub", "mul", "neg", "abs", "shl")  # may overflow narrow indices
_FLOOR_OPERATIONS = ("floordiv", "mod")


def count_uses(w: Writer, expressions: Iterable[Expr]) -> None:
    """Count the uses of each subexpression, so that repeated ones get a name."""
    uses: Counter[Node] = Counter()
    seen: set[Node] = set()
    pending: list[Node] = list(expressions)
    uses.update(pending)
    while pending:
        n = pending.pop()
        if n not in seen:
            seen.add(n)
            children = n.children()
            uses.update(children)
            pending += children
    w.uses = uses


def value(w: Writer, e: Expr) -> Value:
    """The value of an expression at this place, under the current guards."""
    match e:
        case Const(x, dtype):
            return literal(x, dtype)
        case Size(name):
            return w.env[name]
        case Var(name):
            return w.index(name) if name in w.lanes else w.env[name]
    key = (e, w.guards, tuple(sorted(w.dims.items())))
    cached = w.lookup(key)
    if cached is not None:
        return cached
    v = _evaluate(w, e)
    if (
        not isinstance(e, Load)
        and not v.literal
        and (w.uses[e] > 1 or len(v.code) > LONGEST_UNNAMED)
        and len(v.code) > 8
    ):
        v = w.assign(v, "t")
    return w.remember(key, v)


def _evaluate(w: Writer, e: Expr) -> Value:
    match e:
        case Cast(arg, dtype):
            return operations.cast(value(w, arg), dtype)
        case Load(buffer, index):
            return load(w, buffer, index)
        case Select(cond, then, other):
            return _select(w, cond, then, other)
        case Op("require", (cond, x)):
            return _require(w, value(w, cond), value(w, x))
        case Op():
            return _operation(w, e)
    raise Unsupported(type(e).__name__, (), "Triton has no such expression")


def _operation(w: Writer, e: Op) -> Value:
    args = [value(w, a) for a in e.args]
    axes = NONE.union(*(a.axes for a in args))
    narrow = e.dtype is i64 and all(a.narrow for a in args if a.dtype is i64)
    if narrow and e.name in _MAY_OVERFLOW and not _fits_int32(w, e):
        args, narrow = [widen_index(a) for a in args], False
    if e.name in _FLOOR_OPERATIONS and e.dtype.is_integer and all(_is_nonnegative(w, a) for a in e.args):
        sign = "//" if e.name == "floordiv" else "%"
        return Value(f"{args[0].at(PRODUCT)} {sign} {args[1].operand}", e.dtype, axes, narrow, level=PRODUCT)
    code = operations.apply(e, args)
    w.helpers |= {name for name in operations.HELPERS if f"{name}(" in code}
    return Value(code, e.dtype, axes, narrow, level=_level(e, code))


def _level(e: Op, code: str) -> int:
    """The precedence level of an operation's text."""
    level = operations.LEVELS.get(e.name, LOOSE)
    return level if level != ATOM or code.endswith(")") else LOOSE


def _is_nonnegative(w: Writer, e: Expr) -> bool:
    low, _ = value_range(e, w.ranges)
    return low is not None and low >= 0


def _fits_int32(w: Writer, e: Expr) -> bool:
    low, high = value_range(e, w.ranges)
    return low is not None and high is not None and low >= -(2**31) and high < 2**31


def _select(w: Writer, cond: Expr, then: Expr, other: Expr) -> Value:
    c = value(w, cond)
    c = c if c.is_atom else w.assign(c, "chosen")
    with w.guarded(c):
        a = value(w, then)
    with w.guarded(negation(c)):
        b = value(w, other)
    if a.narrow != b.narrow:
        a, b = widen_index(a), widen_index(b)
    return Value(f"tl.where({c.typed}, {a.argument}, {b.argument})", a.dtype, c.axes | a.axes | b.axes, a.narrow)


def _require(w: Writer, cond: Value, x: Value) -> Value:
    """Report a failed requirement; its value is then 0."""
    cond = cond if cond.is_atom else w.assign(cond, "valid")
    failure_mask = mask(w, cond.axes, (negation(cond),))
    assert failure_mask is not None
    w.failing = True
    zeros = f" + tl.full({w.shape(failure_mask.axes)}, 0, tl.int32)" if failure_mask.axes else ""
    w.line(f"tl.store(mlc_failed{zeros}, 1, mask={failure_mask.code})")
    zero = literal(0, x.dtype)
    return Value(f"tl.where({cond.typed}, {x.typed}, {zero.argument})", x.dtype, cond.axes | x.axes, x.narrow)


# ---- memory


def mask(w: Writer, axes: Axes, conditions: tuple[Value, ...] = ()) -> Value | None:
    """The mask of elements along these axes: inside the loops' extents, under the guards and
    `conditions`. None for all."""
    in_extents = [_in_extent(w, var) for var in sorted(axes, key=w.dims.__getitem__) if w.lanes[var].end is not None]
    return conjunction(list(dict.fromkeys((*in_extents, *w.guards, *conditions))))


def _in_extent(w: Writer, var: str) -> Value:
    end = w.lanes[var].end
    assert end is not None
    index = w.index(var)
    key = ("inside", index, end)
    cached = w.lookup(key)
    if cached is None:
        end_value = value(w, end)
        v = Value(f"{index.code} < {end_value.operand}", boolean, index.axes | end_value.axes, level=LOOSE)
        cached = w.remember(key, w.assign(v, f"{var}_in"))
    return cached


def element_offset(w: Writer, buffer: str, index: tuple[Expr, ...]) -> Expr:
    """The offset of an element in its buffer."""
    return access.address(index, w.tensors[buffer], w.ranges)


def load(w: Writer, buffer: str, index: tuple[Expr, ...]) -> Value:
    offset = element_offset(w, buffer, index)
    stored = w.lookup(("stored", buffer, offset))
    if stored is not None:
        return stored
    if buffer in w.local:
        raise ValueError(f"{buffer} is read elsewhere than it was written, and is not in memory")
    if buffer in w.written:
        w.barrier()
    w.read |= {buffer} & w.barrier_buffers
    pointer, load_mask = _pointer(w, buffer, offset, NONE)
    other = "" if load_mask is None else f", mask={load_mask.code}, other={literal(0, w.tensors[buffer].dtype).code}"
    dtype = w.tensors[buffer].dtype
    return w.assign(Value(f"tl.load({pointer.code}{other})", dtype, pointer.axes), f"{buffer}_")


def _pointer(w: Writer, buffer: str, element: Expr, along: Axes) -> tuple[Value, Value | None]:
    """Pointers to elements, at least along these axes, and their mask."""
    offset = value(w, element)
    access_mask = mask(w, offset.axes | along)
    axes = offset.axes | along | (access_mask.axes if access_mask is not None else NONE)
    if axes != offset.axes:
        offset = w.broadcast(offset, axes)
    name = w.spellings[buffer]
    code = name if offset.literal and offset.code == "0" else f"{name} + {offset.operand}"
    return Value(code, i64, axes), access_mask


_ATOMIC = {"sum": "add", "max": "max", "min": "min", "and": "and", "or": "or"}


def store(w: Writer, buffer: str, index: tuple[Expr, ...], e: Expr, combine: str) -> None:
    t = w.tensors[buffer]
    offset = element_offset(w, buffer, index)
    v = value(w, e)
    if buffer in w.local or combine == "set":
        v = v if v.is_atom and not v.literal and not v.narrow else w.assign(convert(v, t.dtype), f"{buffer}_")
    if buffer in w.local:
        w.remember(("stored", buffer, offset), v)
        return
    if buffer in w.read:
        w.barrier()
    pointer, store_mask = _pointer(w, buffer, offset, NONE)
    if not v.axes <= pointer.axes:
        raise ValueError(f"several values go to one element of {buffer}")
    mask_argument = "" if store_mask is None else f", mask={store_mask.code}"
    if combine == "set":
        w.line(f"tl.store({pointer.code}, {v.typed}{mask_argument})")
        if not w.guards:
            w.remember(("stored", buffer, offset), v)
    else:
        if combine not in _ATOMIC or t.dtype.bits < 32 or (t.dtype.is_float and combine != "sum"):
            raise Unsupported(f"store by {combine}", (str(t.dtype),), "Triton has no such atomic operation")
        v = w.broadcast(convert(v, t.dtype) if v.narrow or v.literal else v, pointer.axes)
        w.line(f'tl.atomic_{_ATOMIC[combine]}({pointer.code}, {v.code}{mask_argument}, sem="relaxed")')
    w.written |= {buffer} & w.barrier_buffers
