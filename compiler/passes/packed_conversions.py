"""Widen quantized integers to bf16 by device functions that convert two elements at a time (Kernel IR to Kernel IR).

An element of a 4-bit weight takes eleven instructions if converted alone, two if a pair shares a register. An 8-bit
element takes two instead of a conversion by the slowest of the GPU's units.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from itertools import pairwise

from compiler.ir import kernel as k
from compiler.ir.dtype import bf16, i8, u8
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Var, names, substitute
from compiler.ir.index import simplify
from compiler.ir.multiples import divides
from compiler.ir.rewrite import statements
from compiler.ir.statement import Stmt

WORD_BYTES = 4  # bytes in a word
PAIR = 2  # elements in a register


def pack_conversions(program: k.Program) -> k.Program:
    """Replace loops that widen adjacent bytes, or halves of bytes less 8 times a common scale, by one call:

        for n in range(0, 8, 1, unroll):
            y_near[n] = bf16((f32(p_near[n] * lift & u8(240)) - 128.0) * f32(s[i]))

    becomes

        call("mlc_scaled_halves", [8], y_near @ (0), p_near @ (0), lift, s[i], writes=[y_near])

    Likewise bf16(q_near[n]) of signed bytes becomes "mlc_widened". If the pairs of the result are not adjacent, their
    distance is an argument, as in [8, 4].
    """
    return program.replace(functions=tuple(map(_function, program.functions)))


def _function(f: k.Function) -> k.Function:
    every = (n for s in f.body for n in s.walk())
    own = {n.name for n in every if isinstance(n, k.Array) and n.space == "local" and n.align % WORD_BYTES == 0}
    return f.replace(body=statements(f.body, partial(_widening_call, own)))


def _widening_call(own: Set[str], s: Stmt) -> k.Call | None:
    """The call that replaces a loop over adjacent elements of arrays in `own` (the thread's local ones), or None."""
    match s:
        case k.For(var, Const(0), Const(count), 1, (k.Store(to, at, Cast(value, half), "set"),), "unroll") if (
            half is bf16 and int(count) % WORD_BYTES == 0 and to in own
        ):
            made = _match_widening(var, value, own)
        case _:
            return None
    if made is None:
        return None
    function, (source, index), scale = made
    count = int(count)
    start, source_start = _start_of_run(at, var, 0, PAIR), _start_of_run(index, var, 0, count)
    pair_starts = [_start_of_run(at, var, n, PAIR) for n in range(0, count, PAIR)]
    if start is None or source_start is None or not divides(source_start, WORD_BYTES, {}) or None in pair_starts:
        return None
    distances = {simplify(b - a, {}, index=True) for a, b in pairwise(x for x in pair_starts if x is not None)}
    match tuple(distances):
        case (Const(step),):
            args: tuple[k.Address | Expr, ...] = (k.Address(to, start), k.Address(source, source_start), *scale)
            return k.Call(function, (count, *([int(step)] if step != PAIR else [])), args, (to,))
    return None


Widening = tuple[str, tuple[str, Expr], tuple[Expr, ...]]  # device function, array and index that it reads, scale


def _match_widening(var: str, value: Expr, own: Set[str]) -> Widening | None:
    match value:
        case Load(source, (index,), byte) if byte is i8 and source in own:
            return "mlc_widened", (source, index), ()
        case Op("mul", (Op("sub", (Cast(Op("and", (byte, Const(240)))), Const(128.0))), Cast(scale))):
            pass
        case _:
            return None
    match byte:
        case Op("mul", (Load(source, (index,)), lift)) if source in own:
            pass
        case _:
            return None
    fixed = var not in names(lift) | names(scale) and scale.dtype is bf16 and lift.dtype is u8
    return ("mlc_scaled_halves", (source, index), (lift, scale)) if fixed else None


def _start_of_run(index: Expr, var: str, first: int, count: int) -> Expr | None:
    """The start of `count` consecutive elements of an array, which is even; None if they are not consecutive."""
    here = Var(var)
    start = simplify(substitute(index, {here: Const(first, here.dtype)}), {}, index=True)
    offsets = (
        simplify(substitute(index, {here: Const(first + n, here.dtype)}) - start, {}, index=True) for n in range(count)
    )
    is_consecutive = all(x is Const(n, here.dtype) for n, x in enumerate(offsets))
    return start if is_consecutive and divides(start, PAIR, {}) else None
