"""Lower `InOrder`, iteration in the order of keys, to a call of the device function that stores the order."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir import kernel as k
from compiler.ir.expr import Expr, Load, Var, const
from compiler.ir.index import simplify
from compiler.ir.statement import InOrder, Store
from compiler.passes.cpu.scope import Scope


def in_order(
    s: InOrder,
    scope: Scope,
    value: Callable[[Expr, Scope], Expr],
    place: Callable[[str, tuple[Expr, ...], Scope], Expr],
) -> k.Stmt:
    """Return the call. `value` and `place` lower an expression and an index of a buffer to Kernel IR."""

    def walk(buffer: str, index: tuple[Expr, ...], var: str) -> tuple[k.Address, Expr]:
        """The address in a buffer where `var` is 0, and its increment per step of `var`."""
        ends = []
        for n in (0, 1):
            inner = scope.inner()
            inner.values[var] = const(n)
            ends.append(place(buffer, index, inner))
        return k.Address(buffer, ends[0]), simplify(ends[1] - ends[0], scope.ranges, index=True)

    match s.key, s.body:
        case Load(keys, at), (Store(places, to, Var(name), "set"),) if name == s.var:
            sizes = value(s.count, scope), value(s.extent, scope)
            args = (*sizes, *walk(keys, at, s.var), *walk(places, to, s.turn))
            return k.Call("mlc_order", (f"MLC_{s.how.upper()}",), args, (places,))
    raise ValueError("of elements in order, a CPU can store which comes when, and nothing else")
