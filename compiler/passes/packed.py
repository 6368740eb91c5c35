"""Kernel IR in, Kernel IR out: afterwards halves of bytes become scaled bf16 by a device function, two at a time.

What the integers of a weight of 4 bits mean takes eleven instructions each where they are computed one by one, three
where two share a register.
"""

from __future__ import annotations

from functools import partial

from compiler.ir import kernel as k
from compiler.ir.dtype import bf16, u8
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Var, names, substitute
from compiler.ir.index import simplify
from compiler.ir.multiples import divides
from compiler.ir.rewrite import statements
from compiler.ir.statement import Stmt

TOGETHER = 4  # elements in a word


def packed(program: k.Program) -> k.Program:
    """Elements side by side that are a half of a byte, less 8, times a scale of them all, in one call:

        for n in range(0, 8, 1, unroll):
            y_near[n] = bf16((f32(p_near[n] * lift & u8(240)) - 128.0) * f32(s[i]))
    becomes

        call("mlc_scaled_halves", [8], y_near @ (0), p_near @ (0), lift, s[i], writes=[y_near])
    """
    return program.replace(functions=tuple(map(_function, program.functions)))


def _function(f: k.Function) -> k.Function:
    every = (n for s in f.body for n in s.walk())
    own = {n.name for n in every if isinstance(n, k.Array) and n.space == "local" and n.align % TOGETHER == 0}
    return f.replace(body=statements(f.body, partial(_call, own)))


def _call(own: set[str], s: Stmt) -> k.Call | None:
    """The call in the place of a loop over neighbours in a thread's `own` arrays."""
    match s:
        case k.For(var, Const(0), Const(count), 1, (k.Store(to, Var(at), Cast(value, half), "set"),), "unroll") if (
            at == var and half is bf16 and int(count) % TOGETHER == 0 and to in own
        ):
            return _scaled(var, int(count), to, value, own)
    return None


def _scaled(var: str, count: int, to: str, value: Expr, own: set[str]) -> k.Call | None:
    match value:
        case Op("mul", (Op("sub", (Cast(Op("and", (byte, Const(240)))), Const(128.0))), Cast(scale))):
            pass
        case _:
            return None
    match byte:
        case Op("mul", (Load(source, (index,)), lift)) if source in own:
            pass
        case _:
            return None
    zero = Const(0, index.dtype)
    first = simplify(substitute(index, {Var(var): zero}), {}, index=True)
    along = simplify(index - first, {}, index=True) is Var(var)
    fixed = var not in names(lift) | names(scale) and scale.dtype is bf16 and lift.dtype is u8
    if not (along and fixed and divides(first, TOGETHER, {})):
        return None
    args = (k.Address(to, zero), k.Address(source, first), lift, scale)
    return k.Call("mlc_scaled_halves", (count,), args, (to,))
