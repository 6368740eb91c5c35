"""The schedule step `peel`: give the iterations in which all guards of loads hold a loop of their own."""

from __future__ import annotations

from compiler.analysis.guarded_factors import at_least_zero
from compiler.ir import tile
from compiler.ir.dtype import boolean
from compiler.ir.expr import Const, Expr, Op, Select, Var, dim, names, op, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import Linear, from_linear, linear, plus, times
from compiler.ir.ranges import Range
from compiler.ir.statement import Stmt, Store
from compiler.ir.value_ranges import conjuncts
from compiler.schedule.steps import Peel, ScheduleError

TRUE = Const(True, boolean)


def peel(step: Peel, f: tile.For, ranges: dict[str, Range]) -> tuple[Stmt, ...]:
    """`peel("i", into=("i_low", "i_high"))`

    before:
        for i in serial(20):
            y[i] = x[i - 1] if i >= 1 else 0.0
    after:
        for i_low in serial(1):
            y[i_low] = x[i_low - 1] if i_low >= 1 else 0.0
        for i in serial(19):
            y[i + 1] = x[i]
    """
    if f.kind != "parallel" or not all(isinstance(s, Store) for s in f.body):
        raise ScheduleError(step, f"{f.var} does more than store")
    guards = _guards(f)
    if not guards:
        raise ScheduleError(step, f"no guard in {f.var} depends on it")
    var = Var(f.var)
    low: Expr = dim(0)
    high: Expr = f.extent
    for g in guards:
        terms, rest = _guard_as_bound(step, g, var)
        bound = from_linear(({a: c for a, c in terms.items() if a is not var}, rest))
        if terms[var] > 0:
            low = op("max", low, -(bound // terms[var]))
        else:
            high = op("min", high, bound // -terms[var] + 1)
    low = simplify(op("min", low, f.extent), ranges)
    high = simplify(op("max", low, high), ranges)
    within = {f.var: (0, None)} | ranges
    inside = simplify(substitute(substitute(f.body, dict.fromkeys(guards, TRUE)), {var: var + low}), within)
    parts = [
        _remainder_loop(step.into[0], low, f, var, dim(0)),
        f.replace(extent=simplify(high - low, ranges), body=inside),
        _remainder_loop(step.into[1], simplify(f.extent - high, ranges), f, var, high),
    ]
    return tuple(p for p in parts if not (isinstance(p.extent, Const) and p.extent.value <= 0))


def _remainder_loop(name: str, extent: Expr, f: tile.For, var: Var, start: Expr) -> tile.For:
    return f.replace(
        var=name, extent=extent, bind=tile.Bind("serial"), body=substitute(f.body, {var: Var(name) + start})
    )


def is_peelable(f: tile.For) -> bool:
    """Whether a guard in the loop depends on it, and `peel` can handle all of them."""
    try:
        return all(_guard_as_bound(Peel(f.var, ("", "")), g, Var(f.var)) for g in _guards(f)) and bool(_guards(f))
    except ScheduleError:
        return False


def _guards(f: tile.For) -> list[Expr]:
    """The conditions that depend on the loop, with conjunctions split, each once."""
    conds = [c for s in f.body for n in s.walk() if isinstance(n, Select) for c in conjuncts(n.cond)]
    return [c for c in dict.fromkeys(conds) if f.var in names(c)]


def _guard_as_bound(step: Peel, guard: Expr, var: Var) -> Linear:
    """A linear form that is at least 0 where the guard holds: a multiple of `var` plus terms without it."""
    form = at_least_zero(guard)
    if form is not None:
        form = _clear_quotient(form, var)
        terms, _ = form
        if terms.get(var, 0) and not any(var.name in names(a) for a in terms if a is not var):
            return form
    raise ScheduleError(step, f"a guard in {var.name} is no bound of it")


def _clear_quotient(form: Linear, var: Var) -> Linear:
    """An equivalent form, at least 0 where the given one is, without its one quotient that depends on `var`.

    `x // d + c >= 0` where `x + c * d >= 0`, and `c - x // d >= 0` where `c * d + d - 1 - x >= 0`.
    """
    terms, rest = form
    match [a for a in terms if var.name in names(a)]:
        case [Op("floordiv", (x, Const(int() as d))) as quotient] if d > 0 and abs(terms[quotient]) == 1:
            sign = terms[quotient]
            others = times(({a: c for a, c in terms.items() if a is not quotient}, rest), d)
            return _clear_quotient(plus(plus(others, ({}, d - 1 if sign < 0 else 0), 1), linear(x), sign), var)
    return form
