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
LEAST = 1  # torch assumes in tracing that a dynamic size is positive


# An assumption as text, and as a test of sizes.
Guard = tuple[str, Callable[[Mapping[Size, int]], bool]]


@dataclass
class Symbols:
    """The sizes of one graph. `ranges` has ranges, by symbol, that the user has narrowed beyond torch's own."""

    ranges: Mapping[Any, Any] = field(default_factory=dict)
    sizes: dict[Any, Size] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
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
        return simplify(self._expression(node.expr), {}, index=True)

    def number(self, n: Any) -> Expr:
        """A floating-point number as an expression in f64, as Python computes it; raises Unsupported."""
        self.environment = n.node.shape_env
        return self._floating(n.node.expr)

    def _floating(self, e: Any) -> Expr:
        match e:
            case sympy.Number():
                return const(float(e), f64)
            case ToFloat(args=(whole,)):
                return cast(self._expression(whole), f64)
            case IntTrueDiv(args=(a, b)) | FloatTrueDiv(args=(a, b)):
                return self._floating(a) / self._floating(b)
            case sympy.Add():
                return _folded(lambda a, b: a + b, [self._floating(x) for x in _sorted(e.args)])
            case sympy.Mul():
                return _folded(lambda a, b: a * b, [self._floating(x) for x in _sorted(e.args)])
            case sympy.Pow(args=(x, sympy.Number() as n)) | FloatPow(args=(x, sympy.Number() as n)) if (
                float(n) in _POWERS
            ):
                return _POWERS[float(n)](self._floating(x))
            case _ if type(e).__name__ == "OpaqueUnaryFn_sqrt":
                return op("sqrt", self._floating(e.args[0]))
            case _ if e.is_integer:
                return cast(self._expression(e), f64)
        raise Unsupported("symbolic number", (str(e),), "sums, products, quotients and roots only")

    def _expression(self, e: Any) -> Expr:
        match e:
            case sympy.Integer():
                return const(int(e))
            case sympy.Symbol():
                return self._size(e)
            case sympy.Add():
                return _folded(lambda a, b: a + b, [self._expression(x) for x in e.args])
            case sympy.Mul():
                return _folded(lambda a, b: a * b, [self._expression(x) for x in e.args])
            case CeilToInt(args=(IntTrueDiv(args=(whole, by)),)):
                return op("floordiv", self._expression(whole) + (self._expression(by) - 1), self._expression(by))
            case TruncToInt(args=(IntTrueDiv(args=(whole, by)),)) if by.is_positive and whole.is_nonnegative:
                return op("floordiv", self._expression(whole), self._expression(by))
            case TruncToInt(args=(sympy.Mul(args=(sympy.Float() as c, ToFloat(args=(whole,)))),)) if _is_exact(
                c, whole
            ):
                above, below = float(c).as_integer_ratio()
                return op("floordiv", self._expression(whole) * above, below)
            case sympy.Pow(args=(base, sympy.Integer() as times)) if int(times) > 0:
                return _folded(lambda a, b: a * b, [self._expression(base)] * int(times))
        if type(e) in _BINARY:
            return _folded(partial(op, _BINARY[type(e)]), [self._expression(x) for x in e.args])
        raise Unsupported("symbolic size", (str(e),), "sums, products and whole quotients of sizes only")

    def _size(self, symbol: Any) -> Size:
        if symbol not in self.sizes:
            known = self.environment.backed_var_to_val if hasattr(self.environment, "backed_var_to_val") else {}
            known = known or self.environment.var_to_val
            if symbol not in known:
                raise Unsupported("symbolic size", (str(symbol),), "depends on the data")
            bounds = self.environment.var_to_range[symbol]
            own = self.ranges.get(symbol, bounds)
            # A lower bound of 0 means that none was given.
            begin, own_begin = (_number(x.lower) or 0 for x in (bounds, own))
            low = own_begin if own_begin >= LEAST else begin
            ends = [n for x in (bounds, own) if (n := _number(x.upper)) is not None]
            name, n = "s0", 0
            while name in self.taken:
                n += 1
                name = f"s{n}"
            self.taken.add(name)
            # A bound beyond any memory index is none.
            high = min(ends, default=None) if min(ends, default=1 << 62) < 1 << 62 else None
            self.sizes[symbol] = Size(name, i64, max(low, LEAST), high, int(known[symbol]))
        return self.sizes[symbol]

    def guards(self) -> tuple[Guard, ...]:
        """Torch's assumptions about the sizes that their ranges do not imply."""
        if self.environment is None:
            return ()
        out = []
        for guard in self.environment.guards:
            free = guard.expr.free_symbols
            if free and free <= self.sizes.keys() and self.environment._maybe_evaluate_static(guard.expr) is None:
                shown = guard.expr.subs({s: sympy.Symbol(size.name) for s, size in self.sizes.items()})
                out.append((str(shown), self._test(guard.expr)))
        return tuple(out)

    def _test(self, condition: Any) -> Callable[[Mapping[Size, int]], bool]:
        by_symbol = {s: size for s, size in self.sizes.items() if s in condition.free_symbols}

        def holds(sizes: Mapping[Size, int]) -> bool:
            return bool(condition.subs({s: sizes[size] for s, size in by_symbol.items()}) == sympy.true)

        return holds


def _sorted(args: Sequence[Any]) -> list[Any]:
    """Terms in an order that is the same in every process, since rounding of their sum depends on it; numbers last."""
    return sorted(args, key=lambda x: (x.is_number, sympy.default_sort_key(x)))


def _is_exact(factor: Any, whole: Any) -> bool:
    """Whether the floating-point product is exact: both parts of the factor have few bits."""
    above, below = float(factor).as_integer_ratio()
    return bool(whole.is_nonnegative) and 0 < above < 1 << 10 and below < 1 << 10


def _number(x: Any) -> int | None:
    """A bound as an int; None if it is infinite."""
    return int(x) if isinstance(x, sympy.Integer) else None


def _folded(how: Callable[[Expr, Expr], Expr], parts: list[Expr]) -> Expr:
    out = parts[0]
    for x in parts[1:]:
        out = how(out, x)
    return out
