"""Convert PyTorch's symbolic sizes: each symbol becomes one `Size` with the range and the example that torch knows.

Torch assumes its guards on symbols; a guard that the ranges do not imply is kept for `check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
    ToFloat,
    TruncToInt,
)

from compiler.errors import Unsupported
from compiler.ir.dtype import f64, i64
from compiler.ir.expr import Expr, Size, cast, const, op
from compiler.ir.index import simplify

_BINARY: dict[Any, str] = {
    FloorDiv: "floordiv", CleanDiv: "floordiv", Mod: "mod", PythonMod: "mod", Max: "max", Min: "min",
}  # fmt: skip
# Keyed by exponent.
_POWERS: dict[float, Callable[[Expr], Expr]] = {
    -1.0: lambda x: const(1.0, f64) / x,
    -0.5: lambda x: const(1.0, f64) / op("sqrt", x),
    0.5: lambda x: op("sqrt", x),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
}
LEAST_SIZE = 1  # torch assumes in tracing that a dynamic size is positive


# An assumption as text, and as a test of sizes.
Guard = tuple[str, Callable[[Mapping[Size, int]], bool]]


@dataclass
class Symbols:
    """The sizes of one graph. `ranges` has ranges, by symbol, that the user has narrowed beyond torch's own."""

    ranges: Mapping[Any, Any] = field(default_factory=dict)
    sizes: dict[Any, Size] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)
    environment: Any = None

    def size(self, n: int) -> Expr:
        """A size or stride as a simplified expression; raises Unsupported, for instance if it depends on data."""
        if isinstance(n, int):
            return const(n)
        node = n.node
        self.environment = node.shape_env
        if (
            node.has_hint()
            and node.hint == 1
            and self.environment._maybe_evaluate_static(sympy.Eq(node.expr, 1)) == sympy.true
        ):
            return const(1)  # torch has guarded on 1, and broadcasts the axis
        return simplify(self._int_expression(node.expr), {}, index=True)

    def number(self, n: Any) -> Expr:
        """A floating-point number as an expression in f64, as Python computes it; raises Unsupported."""
        self.environment = n.node.shape_env
        return self._float_expression(n.node.expr)

    def _float_expression(self, e: Any) -> Expr:
        match e:
            case sympy.Number():
                return const(float(e), f64)
            case ToFloat(args=(integer,)):
                return cast(self._int_expression(integer), f64)
            case IntTrueDiv(args=(a, b)) | FloatTrueDiv(args=(a, b)):
                return self._float_expression(a) / self._float_expression(b)
            case sympy.Add():
                return _fold(lambda a, b: a + b, [self._float_expression(x) for x in _sort_terms(e.args)])
            case sympy.Mul():
                return _fold(lambda a, b: a * b, [self._float_expression(x) for x in _sort_terms(e.args)])
            case sympy.Pow(args=(x, sympy.Number() as n)) | FloatPow(args=(x, sympy.Number() as n)) if (
                float(n) in _POWERS
            ):
                return _POWERS[float(n)](self._float_expression(x))
            case _ if type(e).__name__ == "OpaqueUnaryFn_sqrt":
                return op("sqrt", self._float_expression(e.args[0]))
            case _ if e.is_integer:
                return cast(self._int_expression(e), f64)
        raise Unsupported("symbolic number", (str(e),), "sums, products, quotients and roots only")

    def _int_expression(self, e: Any) -> Expr:
        match e:
            case sympy.Integer():
                return const(int(e))
            case sympy.Symbol():
                return self._size_of_symbol(e)
            case sympy.Add():
                return _fold(lambda a, b: a + b, [self._int_expression(x) for x in e.args])
            case sympy.Mul():
                return _fold(lambda a, b: a * b, [self._int_expression(x) for x in e.args])
            case CeilToInt(args=(IntTrueDiv(args=(dividend, divisor)),)):
                return op(
                    "floordiv",
                    self._int_expression(dividend) + (self._int_expression(divisor) - 1),
                    self._int_expression(divisor),
                )
            case TruncToInt(args=(IntTrueDiv(args=(dividend, divisor)),)) if (
                divisor.is_positive and dividend.is_nonnegative
            ):
                return op("floordiv", self._int_expression(dividend), self._int_expression(divisor))
            case TruncToInt(args=(sympy.Mul(args=(sympy.Float() as c, ToFloat(args=(dividend,)))),)) if _is_exact(
                c, dividend
            ):
                numerator, denominator = float(c).as_integer_ratio()
                return op("floordiv", self._int_expression(dividend) * numerator, denominator)
            case sympy.Pow(args=(base, sympy.Integer() as exponent)) if int(exponent) > 0:
                return _fold(lambda a, b: a * b, [self._int_expression(base)] * int(exponent))
        if type(e) in _BINARY:
            return _fold(partial(op, _BINARY[type(e)]), [self._int_expression(x) for x in e.args])
        raise Unsupported("symbolic size", (str(e),), "sums, products and whole quotients of sizes only")

    def _size_of_symbol(self, symbol: Any) -> Size:
        if symbol not in self.sizes:
            hints = self.environment.backed_var_to_val if hasattr(self.environment, "backed_var_to_val") else {}
            hints = hints or self.environment.var_to_val
            if symbol not in hints:
                raise Unsupported("symbolic size", (str(symbol),), "depends on the data")
            bounds = self.environment.var_to_range[symbol]
            declared = self.ranges.get(symbol, bounds)
            # A lower bound of 0 means that none was given.
            lower, declared_lower = (_finite_bound(x.lower) or 0 for x in (bounds, declared))
            low = declared_lower if declared_lower >= LEAST_SIZE else lower
            uppers = [n for x in (bounds, declared) if (n := _finite_bound(x.upper)) is not None]
            name, n = "s0", 0
            while name in self.used_names:
                n += 1
                name = f"s{n}"
            self.used_names.add(name)
            # A bound beyond any memory index is none.
            high = min(uppers, default=None) if min(uppers, default=1 << 62) < 1 << 62 else None
            self.sizes[symbol] = Size(name, i64, max(low, LEAST_SIZE), high, int(hints[symbol]))
        return self.sizes[symbol]

    def guards(self) -> tuple[Guard, ...]:
        """Torch's assumptions about the sizes that their ranges do not imply."""
        if self.environment is None:
            return ()
        out = []
        for guard in self.environment.guards:
            symbols = guard.expr.free_symbols
            if symbols and symbols <= self.sizes.keys() and self.environment._maybe_evaluate_static(guard.expr) is None:
                text = guard.expr.subs({s: sympy.Symbol(size.name) for s, size in self.sizes.items()})
                out.append((str(text), self._guard_test(guard.expr)))
        return tuple(out)

    def _guard_test(self, condition: Any) -> Callable[[Mapping[Size, int]], bool]:
        by_symbol = {s: size for s, size in self.sizes.items() if s in condition.free_symbols}

        def holds(sizes: Mapping[Size, int]) -> bool:
            return bool(condition.subs({s: sizes[size] for s, size in by_symbol.items()}) == sympy.true)

        return holds


def _sort_terms(args: Sequence[Any]) -> list[Any]:
    """Terms in an order that is the same in every process, since rounding of their sum depends on it; numbers last."""
    return sorted(args, key=lambda x: (x.is_number, sympy.default_sort_key(x)))


def _is_exact(factor: Any, integer: Any) -> bool:
    """Whether the floating-point product is exact: both parts of the factor have few bits."""
    numerator, denominator = float(factor).as_integer_ratio()
    return bool(integer.is_nonnegative) and 0 < numerator < 1 << 10 and denominator < 1 << 10


def _finite_bound(x: Any) -> int | None:
    """A bound as an int; None if it is infinite."""
    return int(x) if isinstance(x, sympy.Integer) else None


def _fold(combine: Callable[[Expr, Expr], Expr], terms: list[Expr]) -> Expr:
    out = terms[0]
    for x in terms[1:]:
        out = combine(out, x)
    return out
