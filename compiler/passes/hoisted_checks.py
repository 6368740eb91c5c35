"""Hoist checks of inner loops that do not depend on an outer loop out of it, so that they run once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir import kernel as k
from compiler.ir.dtype import boolean
from compiler.ir.expr import Const, Expr, Op, Var, names, op
from compiler.ir.value_ranges import value_range

Body = tuple[k.Stmt, ...]


@dataclass(frozen=True)
class Ahead:
    """Hoists requirements out of loops.

    `lasts` tells whether an expression keeps its value while its names are in scope. No checks are hoisted out of loops
    known to have fewer than `least` iterations.
    """

    lasts: Callable[[Expr], bool]
    fresh: Callable[[str], str]
    least: int

    def body(self, body: Body) -> Body:
        """Hoist the requirements of inner loops, which must be declared names, before the outermost loops:

            for i in range(0, 1000):
                for j in range(0, 300):
                    checked: i64 = require(x1[j] >= 0, x1[j])
                    y[i * 300 + j] = x[i * 512 + checked]
        becomes

            valid: bool = True
            for j in range(0, 300):
                valid = valid & (x1[j] >= 0)
            if require(valid, valid):
                for i in range(0, 1000):
                    for j in range(0, 300):
                        checked: i64 = x1[j]
                        y[i * 300 + j] = x[i * 512 + checked]
        """
        return tuple(new for s in body for new in self.statement(s))

    def statement(self, s: k.Stmt) -> Body:
        match s:
            case k.If(_, then, orelse):
                return (s.replace(body=self.body(then), orelse=self.body(orelse)),)
            case k.For(var, start, stop, step, inner):
                low, high = value_range(op("sub", stop, start), {})
                valid = Var(self.fresh("valid"), boolean)
                long = high is None or high >= self.least * step
                checks, rest = self.split_checks(inner, {var}, valid) if long else ((), inner)
                loop = s.replace(body=self.body(rest))
                if not checks:
                    return (loop,)
                runs = checks if low is not None and low > 0 else (k.If(op("lt", start, stop), checks),)
                required = op("require", valid, valid)
                return (k.Declare(valid.name, Const(True, boolean)), *runs, k.If(required, (loop,)))
        return (s,)

    def split_checks(self, body: Body, changing: set[str], valid: Var, inner: bool = False) -> tuple[Body, Body]:
        """Return the checks that loops of a body make of values that are not `changing`, and the body without them."""
        checks: list[k.Stmt] = []
        rest: list[k.Stmt] = []

        def is_invariant(*of: Expr) -> bool:
            return all(self.lasts(e) and not names(e) & changing for e in of)

        for s in body:
            match s:
                case k.Declare(name, Op("require", (cond, value))) if (
                    inner and is_invariant(cond, value) and _has_single_requirement(s)
                ):
                    holds = cond if cond.dtype.lanes == 1 else k.Across("and", cond)
                    checks += [k.Assign(valid.name, op("and", valid, holds)), k.Declare(name, value)]
                    rest.append(k.Declare(name, value))
                case k.Declare(name, value):
                    if is_invariant(value):
                        checks.append(s)
                    else:
                        changing.add(name)
                    rest.append(s)
                case k.For(var, start, stop) if is_invariant(start, stop):
                    ahead, left = self.split_checks(s.body, changing - {var}, valid, True)
                    checks += [s.replace(body=ahead, mark="")] * bool(ahead)
                    rest.append(s.replace(body=left))
                case k.If(cond, then, orelse) if inner and is_invariant(cond):
                    arms = [self.split_checks(arm, set(changing), valid, True) for arm in (then, orelse)]
                    if any(ahead for ahead, _ in arms):
                        checks.append(k.If(cond, arms[0][0], arms[1][0]))
                    rest.append(s.replace(body=arms[0][1], orelse=arms[1][1]))
                case _:
                    rest.append(s)
        return _needed_checks(checks), tuple(rest)


def _needed_checks(checks: list[k.Stmt]) -> Body:
    """Return the assignments among `checks` and the declarations that they read."""
    out: list[k.Stmt] = []
    read: set[str] = set()
    for s in reversed(checks):
        if not isinstance(s, k.Declare) or s.name in read:
            out.append(s)
            read |= names(s)
    return tuple(reversed(out))


def _has_single_requirement(s: k.Declare) -> bool:
    """Whether a declaration contains no requirement but the outermost."""
    return sum(isinstance(n, Op) and n.name == "require" for n in s.value.walk()) == 1
