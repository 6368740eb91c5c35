"""Special functions of one or two numbers, computed in f64; f64 operands are refused.

A formula is given `let`, which makes an expression an equation, so that a value used often is computed once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from compiler.ir import dtype as dt
from compiler.ir.expr import Const, Expr, both, cast, op
from compiler.passes.torch_to_tensor import bessel, orthogonal
from compiler.passes.torch_to_tensor.builder import Builder, Index, Operand, Rule, Value, element
from compiler.passes.torch_to_tensor.formula import inverse, is_whole, lit, polynomial, where

E = Expr
Let = Callable[[E], E]


def _erfcx(let: Let, x: E) -> E:
    """exp(x²) erfc(x): by definition up to 10, and by its asymptotic series beyond."""
    clamped, inverse_x = op("min", x, 10.0), let(inverse(op("max", x, 10.0)))
    terms = [(-1) ** k * math.prod(range(1, 2 * k, 2)) / 2**k for k in range(8)]
    asymptotic = polynomial(let(inverse_x * inverse_x), terms) * inverse_x / math.sqrt(math.pi)
    return where(op("gt", x, 10.0), asymptotic, op("exp", clamped * clamped) * op("erfc", clamped))


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _hurwitz(let: Let, s: E, q: E) -> E:
    """The zeta function for positive q: 6 terms, then the Euler-Maclaurin series."""
    terms = [op("exp", -s * op("log", q + float(k))) for k in range(6)]
    w = let(q + 6.0)
    last = let(op("exp", -s * op("log", w)))
    total = let(functools.reduce(lambda a, b: a + b, terms) + last * w / (s - 1.0) + last * 0.5)
    factor, inverse_square = s * last / w, let(inverse(w * w))
    for k, bernoulli in enumerate(_BERNOULLI):
        factor = let(factor)
        total = total + factor * (bernoulli / math.factorial(2 * k + 2))
        factor = factor * (s + (2 * k + 1.0)) * (s + (2 * k + 2.0)) * inverse_square
    return let(total)


def _zeta(let: Let, s: E, q: E) -> E:
    """For negative q, the terms below zero are terms of positive numbers with signs."""
    is_integer = is_whole(q)
    is_below_0 = op("and", op("lt", q, 0.0), op("not", is_integer))
    fractional = let(where(is_below_0, q - op("floor", q), where(op("gt", q, 0.0), q, lit(1, q))))
    order = let(where(op("le", s, 1.0), lit(2, s), s))
    signs = where(is_whole(order * 0.5), lit(1, s), lit(-1, s))
    reflected = _hurwitz(let, order, let(where(is_below_0, 1.0 - fractional, lit(1, q))))
    sum_below_0 = reflected - _hurwitz(let, order, let(where(is_below_0, 1.0 - q, lit(1, q))))
    value = _hurwitz(let, order, fractional) + where(is_below_0, signs * sum_below_0, lit(0, q))
    value = where(both(op("le", q, 0.0), is_integer), lit(math.inf, q), value)
    value = where(both(is_below_0, op("not", is_whole(s))), lit(math.nan, q), value)
    value = where(op("isnan", q), q, value)
    return where(op("lt", s, 1.0), lit(math.nan, s), where(op("eq", s, 1.0), lit(math.inf, s), value))


def in_f64(formula: Callable[..., E]) -> Rule:
    """The rule of a formula on f64 numbers; integers are converted to f32 first, as in torch."""

    def rule(b: Builder, *operands: Operand) -> Value:
        shape, result_dtype = b.out.shape, b.out.dtype
        if result_dtype is dt.f64:
            raise b.refuse("of f64")
        index: list[Index] = []

        def operand_at(x: Operand) -> E:
            if not isinstance(x, Value):
                return cast(element(x, (), dt.f32), dt.f64)

            def at(i: Index) -> E:
                index.append(i)
                return cast(element(x, i, dt.f32), dt.f64)

            return b.map(shape, at, "given").at(index[-1])

        def let(value: E) -> E:
            return value if isinstance(value, Const) else b.map(shape, lambda _: value, "step").at(index[0])

        numbers = [operand_at(x) for x in operands]
        result = formula(let, *numbers)
        return b.map(shape, lambda _: cast(result, dt.compute(result_dtype)))

    return rule


_UNARY: dict[str, Callable[[Let, E], E]] = {**bessel.FORMULAS, "special_erfcx": _erfcx}
RULES: dict[str, Rule] = {
    **{f"aten.{name}.default": in_f64(formula) for name, formula in _UNARY.items()},
    **{
        f"aten.{name}.{overload}": in_f64(formula)
        for name, formula in orthogonal.FORMULAS.items()
        for overload in ("default", "x_scalar", "n_scalar")
    },
    **{f"aten.special_zeta.{overload}": in_f64(_zeta) for overload in ("default", "other_scalar", "self_scalar")},
}
