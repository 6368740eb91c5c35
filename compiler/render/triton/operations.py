"""Scalar operations of the IRs in Triton, as tables; operations that it lacks are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compiler.errors import Unsupported
from compiler.ir.dtype import DType, boolean, f32, f64, i32, u8
from compiler.ir.expr import OPS, Op
from compiler.ir.functions import FUNCTIONS
from compiler.render.triton.values import ATOM, LOOSE, PRODUCT, SUM, Value, conversion_text, convert, negation

_NAN = "propagate_nan=tl.PropagateNan.ALL"
# Helper functions of kernels, by name; Triton's own `//` and `%` round toward zero.
HELPERS = {
    "mlc_max": f"def mlc_max(a, b):\n    return tl.maximum(a, b, {_NAN})",
    "mlc_min": f"def mlc_min(a, b):\n    return tl.minimum(a, b, {_NAN})",
    "mlc_mul": "def mlc_mul(a, b):\n    return a * b",
    "mlc_and": "def mlc_and(a, b):\n    return a & b",
    "mlc_or": "def mlc_or(a, b):\n    return a | b",
    "mlc_floordiv": (
        "def mlc_floordiv(a, b):\n    q = a // b\n    r = a - q * b\n"
        "    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)"
    ),
    "mlc_mod": "def mlc_mod(a, b):\n    r = a % b\n    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)",
    "mlc_fmod": (
        "def mlc_fmod(a, b):\n    r = libdevice.fmod(a, b)\n"
        "    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)"
    ),
}
COMBINERS = {"sum": "", "prod": "mlc_mul", "max": "mlc_max", "min": "mlc_min", "and": "mlc_and", "or": "mlc_or"}
_LIBRARY = {"trunc": "trunc", "round": "rint", **{name: name for name, f in FUNCTIONS.items() if name != "exp2_ftz"}}

# The precedence level of an operation's text.
LEVELS = {"add": SUM, "sub": SUM, "mul": PRODUCT} | dict.fromkeys(
    (*_LIBRARY, "where", "min", "max", "abs", "sqrt", "fma"), ATOM
)
# The row of `expr.OPS` for each function of CUDA's math library.
FUNCTION_OF = {function: name for name, function in _LIBRARY.items()} | {"fmod": "rem"}


def apply(e: Op, args: Sequence[Value]) -> str:
    """The text of an operation; narrow indices must have been widened where it matters. Raises Unsupported."""
    name, kind = e.name, args[0].dtype
    if row := OPS[name].infix:
        infix_text = _infix(name, row, args, kind)
        if infix_text:
            return infix_text
    if name in _LIBRARY and kind.is_float:
        return f"libdevice.{_LIBRARY[name]}({', '.join(a.typed for a in args)})"
    emit = _CALLS.get(name)
    if emit is None:
        raise Unsupported(name, [str(a.dtype) for a in e.args], "Triton has no such operation")
    return emit(args, kind)


def _infix(name: str, row: str, args: Sequence[Value], kind: DType) -> str:
    level = LEVELS.get(name, LOOSE)
    left, right = {SUM: (SUM, PRODUCT), PRODUCT: (PRODUCT, ATOM)}.get(level, (ATOM, ATOM))
    a, b = _infix_operands(args, left, right)
    if kind is boolean:
        if name in ("and", "or", "xor", "eq", "ne"):
            return f"{a} {row} {b}"
        return f"{args[0].typed_operand}.to(tl.int8) {row} {args[1].typed_operand}.to(tl.int8)"
    if name in ("div", "floordiv", "mod", "shl", "shr"):
        return ""
    return f"{a} {row} {b}"


def _infix_operands(args: Sequence[Value], left: int = ATOM, right: int = ATOM) -> tuple[str, str]:
    """Operands, of which at most one is a Python number."""
    a, b = args
    return (a.typed if a.literal and b.literal else a.at(left)), b.at(right)


def _div(args: Sequence[Value], kind: DType) -> str:
    a, b = args
    return f"{_infix_operands(args)[0]} / {b.operand}" if kind is f64 else f"tl.div_rn({a.argument}, {b.argument})"


def _floor_operation(name: str) -> Callable[[Sequence[Value], DType], str]:
    def call(args: Sequence[Value], kind: DType) -> str:
        if kind.is_float:
            argument_list = f"({', '.join(a.typed for a in args)})"
            quotient = f"tl.div_rn({', '.join(a.typed for a in args)})" if kind is f32 else _div(args, kind)
            return f"mlc_fmod{argument_list}" if name == "mod" else f"tl.floor({quotient})"
        return f"mlc_{name}({', '.join(a.typed for a in args)})"

    return call


def _truncating_operation(sign: str, function: str) -> Callable[[Sequence[Value], DType], str]:
    def call(args: Sequence[Value], kind: DType) -> str:
        if kind.is_float:
            return f"libdevice.{function}({', '.join(a.typed for a in args)})"
        return f"{_infix_operands(args)[0]} {sign} {args[1].operand}"

    return call


def _min_or_max(name: str) -> Callable[[Sequence[Value], DType], str]:
    def call(args: Sequence[Value], kind: DType) -> str:
        if kind is boolean:
            return f"{_infix_operands(args)[0]} {'&' if name == 'min' else '|'} {args[1].operand}"
        if kind.is_float:
            return f"mlc_{name}({', '.join(a.typed for a in args)})"
        return f"tl.{name}imum({', '.join(a.typed for a in args)})"

    return call


def _shift(sign: str) -> Callable[[Sequence[Value], DType], str]:
    """Shifts by a negative count, or by at least the width, leave nothing but the sign."""

    def call(args: Sequence[Value], kind: DType) -> str:
        a, b = args[0].typed_operand, args[1].typed_operand
        fits = f"({b} >= 0) & ({b} < {kind.bits})"
        clamped = f"tl.where({fits}, {b}, {kind.bits - 1})"
        if sign == ">>" and kind.kind == "int":
            return f"{a} >> {clamped}.to({b}.dtype)"
        return f"tl.where({fits}, {a} {sign} {clamped}.to({b}.dtype), 0).to({args[0].type})"

    return call


def _neg(args: Sequence[Value], kind: DType) -> str:
    return f"{args[0].typed_operand} * -1.0" if kind.is_float else f"-{args[0].operand}"  # -x would turn 0.0 into 0.0


def _not(args: Sequence[Value], kind: DType) -> str:
    """In Triton's interpreter `~` of a u8 gives a negative number."""
    if kind is boolean:
        return negation(args[0]).code
    return f"{args[0].typed_operand} ^ 255" if kind is u8 else f"~{args[0].typed_operand}"


def _sign(args: Sequence[Value], kind: DType) -> str:
    x = args[0].operand
    return f"({x} > 0).to({args[0].type}) - ({x} < 0).to({args[0].type})"


def _signbit(args: Sequence[Value], kind: DType) -> str:
    return f"{args[0].operand}.to(tl.{'int64' if kind is f64 else 'int32'}, bitcast=True) < 0"


_CALLS: dict[str, Callable[[Sequence[Value], DType], str]] = {
    "div": _div, "floordiv": _floor_operation("floordiv"), "mod": _floor_operation("mod"),
    "truncdiv": _truncating_operation("//", "trunc"), "rem": _truncating_operation("%", "fmod"),
    "min": _min_or_max("min"), "max": _min_or_max("max"), "shl": _shift("<<"), "shr": _shift(">>"),
    "neg": _neg, "sign": _sign, "signbit": _signbit,
    "abs": lambda args, kind: f"tl.abs({args[0].typed})",
    "not": _not,
    "where": lambda args, kind: f"tl.where({', '.join(a.argument for a in args)})",
    "isnan": lambda args, kind: f"{args[0].operand} != {args[0].operand}",
    "floor": lambda args, kind: f"tl.floor({args[0].typed})",
    "ceil": lambda args, kind: f"tl.ceil({args[0].typed})",
    "sqrt": lambda args, kind: f"tl.sqrt{'_rn' if kind is f32 else ''}({args[0].typed})",
    "fma": lambda args, kind: f"tl.fma({', '.join(a.typed for a in args)})",
}  # fmt: skip


def cast(v: Value, dtype: DType) -> Value:
    """Convert `v`: to 16-bit floats through f32, and from floats to narrow integers through 32 bits."""
    if dtype is boolean:
        return Value(f"{v.typed_operand} != 0", boolean, v.axes, level=LOOSE)
    if dtype.bits == 16 and dtype.is_float and v.dtype is not f32 and v.dtype is not dtype:
        v = convert(v, f32)
    if v.dtype.is_float and dtype.is_integer and dtype.bits < 32:
        v = convert(v, i32)
    return Value(conversion_text(v, dtype), dtype, v.axes)
