"""64-bit integers of Kernel IR as CUDA text, in 32 bits where that suffices.

An operation is done in 32 bits if its operands are and its value certainly fits; otherwise its first operand is
widened. NVCC assumes that signed operations do not overflow (`x + 1 > x` is always true), and no option changes that.
Data, which wraps around in PyTorch, is therefore computed by functions of unsigned numbers.
"""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir.dtype import i64
from compiler.ir.expr import Cast, Const, Expr, Op, Select, Var
from compiler.render import c
from compiler.render.c import LOR, TERNARY, UNARY, Code, Writer
from compiler.render.integer_ranges import fits, is_data, is_known, range_in

COUNTERS = {
    f"{kind}.{axis}": f"{word}.{axis}"
    for kind, word in (("thread", "threadIdx"), ("block", "blockIdx"), ("threads", "blockDim"), ("blocks", "gridDim"))
    for axis in "xyz"
}
INDICES = {"thread.lane": "mlc_lane_index", "thread.warp": "mlc_warp_index"}
WRAPPING = ("add", "sub", "mul")
_ARITHMETIC = (*WRAPPING, "and", "or", "xor")
_CHOICES = ("min", "max")


def integer(w: Writer, e: Expr, exact: bool) -> Code:
    """The text of an i64 expression, at `exact`ly this type or as C's implicit conversions allow."""
    if exact and isinstance(e, Const):
        return c.literal(e.value, i64)
    made, narrow = spell(w, e)
    return Code(f"(long){made.at(UNARY)}", UNARY) if exact and narrow else made


def compared(w: Writer, name: str, a: Expr, b: Expr) -> Code:
    """A comparison of i64 expressions."""
    symbol, rank, left, right = c.INFIX[name]
    return Code(f"{spell(w, a)[0].at(left)} {symbol} {spell(w, b)[0].at(right)}", rank)


def spell(w: Writer, e: Expr) -> tuple[Code, bool]:
    """The text of an i64 expression, and whether its type in C is int."""
    made, narrow = _spell(w, e)
    if not narrow and not isinstance(e, Var | Const) and fits(range_in(e, w.ranges)):
        return Code(f"(int){made.at(UNARY)}", UNARY), True
    return made, narrow


def _spell(w: Writer, e: Expr) -> tuple[Code, bool]:
    match e:
        case Const(value):
            narrow = fits((int(value), int(value))) and int(value) != -(2**31)
            return (Code(str(value), UNARY if int(value) < 0 else c.ATOM) if narrow else c.literal(value, i64)), narrow
        case Var(name):
            return Code(w.names[name]), name in w.narrow
        case k.Builtin(name) if name in INDICES:
            return w.call(INDICES[name]), True
        case k.Builtin(name):
            return Code(f"({'int' if fits(range_in(e, w.ranges)) else 'long'}){COUNTERS[name]}", UNARY), fits(
                range_in(e, w.ranges)
            )
        case Op(name, (a, b)) if name in _ARITHMETIC:
            return _infix(w, e, c.INFIX[name], a, b)
        case Op("shr", (a, Const(int() as by))) if 0 <= by < 32 and fits(range_in(a, w.ranges)):
            return Code(f"{spell(w, a)[0].at(UNARY)} >> {by}", c.SHIFT), True
        case Op("floordiv" | "mod" as name, (a, by)) if (range_in(by, w.ranges)[0] or 0) > 0:
            return _divided(w, name, a, by)
        case Op(name, (a, b)) if name in _CHOICES:
            (one, first), (two, second) = spell(w, a), spell(w, b)
            if first and second:
                return w.call(f"mlc_{name}", one.text, two.text), True
            return w.call(f"mlc_{name}", integer(w, a, True).text, integer(w, b, True).text), False
        case Op("require", (cond, a)):
            made, narrow = spell(w, a)
            return w.call("mlc_require", c.FAILED, w.of(cond), made.text), narrow
        case Op("neg", (a,)) if fits(range_in(e, w.ranges)):
            made, narrow = spell(w, a)
            if narrow:
                return w.call("mlc_negated", made.text), True
            text = made.at(UNARY)
            return Code(f"-({text})" if text.startswith("-") else f"-{text}", UNARY), False
        case Op("neg", (a,)) if _wraps(w, e):
            return w.call("mlc_negated", integer(w, a, True).text), False
        case Select(cond, a, b) | Op("where", (cond, a, b)):
            (one, first), (two, second) = _where(w, cond, a), spell(w, b)
            return Code(f"{w.of(cond, LOR)} ? {one.at(LOR)} : {two.at(TERNARY)}", TERNARY), first and second
        case Cast(arg) if arg.dtype.is_integer and arg.dtype.bits <= 32:
            return Code(f"(int){w.of(arg, UNARY)}", UNARY), True
    return c.ordinary(w, e), False


def _where(w: Writer, cond: Expr, e: Expr) -> tuple[Code, bool]:
    """The text of an i64 expression where a condition holds. Adding to a negative number, such as an index that counts
    from the end, cannot overflow."""
    match cond, e:
        case Op("lt", (x, Const(0))), Op("add", (y, Const(int() as n))) if x is y and n >= 0:
            return Code(f"{integer(w, y, True).at(c.ADD)} + {n}", c.ADD), False
    return spell(w, e)


def _infix(w: Writer, e: Expr, row: tuple[str, int, int, int], a: Expr, b: Expr) -> tuple[Code, bool]:
    symbol, rank, left, right = row
    (one, first), (two, second) = spell(w, a), spell(w, b)
    narrow = first and second and fits(range_in(e, w.ranges))
    if not narrow and isinstance(e, Op) and e.name in WRAPPING and _wraps(w, e):
        return w.call(f"mlc_{e.name}", integer(w, a, True).text, integer(w, b, True).text), False
    start = one.at(left)
    if first and second and not narrow:
        start = f"(long){one.at(UNARY)}"
    other = two.at(right)
    return Code(f"{start} {symbol} {f'({other})' if other.startswith('-') else other}", rank), narrow


def _wraps(w: Writer, e: Expr) -> bool:
    """Whether the value may overflow 64 bits."""
    return is_data(e, w.data) and not is_known(range_in(e, w.ranges))


def _divided(w: Writer, name: str, a: Expr, by: Expr) -> tuple[Code, bool]:
    """Division by a positive number. A dividend known to be nonnegative takes half the instructions, unsigned."""
    low, _ = range_in(a, w.ranges)
    (one, first), (two, second) = spell(w, a), spell(w, by)
    if low is not None and low >= 0:
        function = "mlc_quotient" if name == "floordiv" else "mlc_rest"
    else:
        function = "mlc_floordiv" if name == "floordiv" else "mlc_remainder"
    if first and second:
        return w.call(function, one.text, two.text), True
    return w.call(function, integer(w, a, True).text, integer(w, by, True).text), False
