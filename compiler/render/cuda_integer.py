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
from compiler.render.integer_ranges import fits_int32, is_bounded, is_data, range_in

COUNTERS = {
    f"{kind}.{axis}": f"{word}.{axis}"
    for kind, word in (("thread", "threadIdx"), ("block", "blockIdx"), ("threads", "blockDim"), ("blocks", "gridDim"))
    for axis in "xyz"
}
INDEX_FUNCTIONS = {"thread.lane": "mlc_lane_index", "thread.warp": "mlc_warp_index"}
WRAPPING = ("add", "sub", "mul")
_ARITHMETIC = (*WRAPPING, "and", "or", "xor")
_MIN_MAX = ("min", "max")


def integer(w: Writer, e: Expr, exact: bool) -> Code:
    """The text of an i64 expression, at `exact`ly this type or as C's implicit conversions allow."""
    return _widened(e, *render_integer(w, e)) if exact else render_integer(w, e)[0]


def _widened(e: Expr, code: Code, narrow: bool) -> Code:
    """The text of an i64 expression, as `render_integer` returned it, at exactly this type."""
    if isinstance(e, Const):
        return c.literal(e.value, i64)
    return Code(f"(long){code.at(UNARY)}", UNARY) if narrow else code


def _call(w: Writer, function: str, a: Expr, b: Expr) -> tuple[Code, bool]:
    """A call in 32 bits if both operands have them. Each is rendered once, whatever its type turns out to be: twice at
    every level is exponential in the depth."""
    (a_code, a_narrow), (b_code, b_narrow) = render_integer(w, a), render_integer(w, b)
    if a_narrow and b_narrow:
        return w.call(function, a_code.text, b_code.text), True
    return w.call(function, _widened(a, a_code, a_narrow).text, _widened(b, b_code, b_narrow).text), False


def comparison(w: Writer, name: str, a: Expr, b: Expr) -> Code:
    """A comparison of i64 expressions."""
    symbol, rank, left, right = c.INFIX[name]
    return Code(f"{render_integer(w, a)[0].at(left)} {symbol} {render_integer(w, b)[0].at(right)}", rank)


def render_integer(w: Writer, e: Expr) -> tuple[Code, bool]:
    """The text of an i64 expression, and whether its type in C is int."""
    code, narrow = _render_integer(w, e)
    if not narrow and not isinstance(e, Var | Const) and fits_int32(range_in(e, w.ranges)):
        return Code(f"(int){code.at(UNARY)}", UNARY), True
    return code, narrow


def _render_integer(w: Writer, e: Expr) -> tuple[Code, bool]:
    match e:
        case Const(value):
            narrow = fits_int32((int(value), int(value))) and int(value) != -(2**31)
            return (Code(str(value), UNARY if int(value) < 0 else c.ATOM) if narrow else c.literal(value, i64)), narrow
        case Var(name):
            return Code(w.names[name]), name in w.narrow
        case k.Builtin(name) if name in INDEX_FUNCTIONS:
            return w.call(INDEX_FUNCTIONS[name]), True
        case k.Builtin(name):
            return Code(
                f"({'int' if fits_int32(range_in(e, w.ranges)) else 'long'}){COUNTERS[name]}", UNARY
            ), fits_int32(range_in(e, w.ranges))
        case Op(name, (a, b)) if name in _ARITHMETIC:
            return _infix(w, e, c.INFIX[name], a, b)
        case Op("shr", (a, Const(int() as count))) if 0 <= count < 32 and fits_int32(range_in(a, w.ranges)):
            return Code(f"{render_integer(w, a)[0].at(UNARY)} >> {count}", c.SHIFT), True
        case Op("floordiv" | "mod" as name, (a, divisor)) if _is_positive(w, divisor) or not is_data(e, w.wrapping):
            return _division(w, name, a, divisor)
        case Op(name, (a, b)) if name in _MIN_MAX:
            return _call(w, f"mlc_{name}", a, b)
        case Op("require", (cond, a)):
            code, narrow = render_integer(w, a)
            return w.call("mlc_require", c.FAILED, w.text(cond), code.text), narrow
        case Op("neg", (a,)) if fits_int32(range_in(e, w.ranges)):
            code, narrow = render_integer(w, a)
            if narrow:
                return w.call("mlc_negated", code.text), True
            text = code.at(UNARY)
            return Code(f"-({text})" if text.startswith("-") else f"-{text}", UNARY), False
        case Op("neg", (a,)) if _may_wrap(w, e):
            return w.call("mlc_negated", integer(w, a, True).text), False
        case Select(cond, a, b) | Op("where", (cond, a, b)):
            (a_code, a_narrow), (b_code, b_narrow) = _guarded_value(w, cond, a), render_integer(w, b)
            return Code(
                f"{w.text(cond, LOR)} ? {a_code.at(LOR)} : {b_code.at(TERNARY)}", TERNARY
            ), a_narrow and b_narrow
        case Cast(arg) if arg.dtype.is_integer and arg.dtype.bits <= 32:
            return Code(f"(int){w.text(arg, UNARY)}", UNARY), True
    return c.render_expression(w, e), False


def _guarded_value(w: Writer, cond: Expr, e: Expr) -> tuple[Code, bool]:
    """The text of an i64 expression where a condition holds. Adding to a negative number, such as an index that counts
    from the end, cannot overflow."""
    match cond, e:
        case Op("lt", (x, Const(0))), Op("add", (y, Const(int() as n))) if x is y and n >= 0:
            return Code(f"{integer(w, y, True).at(c.ADD)} + {n}", c.ADD), False
    return render_integer(w, e)


def _infix(w: Writer, e: Expr, row: tuple[str, int, int, int], a: Expr, b: Expr) -> tuple[Code, bool]:
    symbol, rank, left, right = row
    (a_code, a_narrow), (b_code, b_narrow) = render_integer(w, a), render_integer(w, b)
    narrow = a_narrow and b_narrow and fits_int32(range_in(e, w.ranges))
    if not narrow and isinstance(e, Op) and e.name in WRAPPING and _may_wrap(w, e):
        wide = _widened(a, a_code, a_narrow), _widened(b, b_code, b_narrow)
        return w.call(f"mlc_{e.name}", *(code.text for code in wide)), False
    left_text = a_code.at(left)
    if a_narrow and b_narrow and not narrow:
        left_text = f"(long){a_code.at(UNARY)}"
    right_text = b_code.at(right)
    return Code(f"{left_text} {symbol} {f'({right_text})' if right_text.startswith('-') else right_text}", rank), narrow


def _may_wrap(w: Writer, e: Expr) -> bool:
    """Whether the value may overflow 64 bits."""
    return is_data(e, w.wrapping) and not is_bounded(range_in(e, w.ranges))


def _is_positive(w: Writer, e: Expr) -> bool:
    return (range_in(e, w.ranges)[0] or 0) > 0


def _division(w: Writer, name: str, a: Expr, divisor: Expr) -> tuple[Code, bool]:
    """Division that cannot overflow. That of a nonnegative number by a positive one takes half the instructions,
    unsigned."""
    low, _ = range_in(a, w.ranges)
    if low is not None and low >= 0 and _is_positive(w, divisor):
        function = "mlc_quotient" if name == "floordiv" else "mlc_rest"
    else:
        function = "mlc_index_floordiv" if name == "floordiv" else "mlc_index_mod"
    return _call(w, function, a, divisor)
