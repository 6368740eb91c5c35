"""Loop IR: each kernel is one loop nest over scalar loads, arithmetic, accumulations and stores.

```
with kernel("softmax", x: ..., y: ...):
    for i in parallel(64):
        m: f32 = -inf
        for j in reduce(100):
            m = max(m, x[i, j])
        ...
```
`parallel` iterations are independent; `reduce` iterations only accumulate, in any order; `scan` iterations run in
order.
"""

from __future__ import annotations

from compiler.ir import statement
from compiler.ir.expr import Expr
from compiler.ir.statement import Known, Program, Stmt

KINDS = ("parallel", "reduce", "scan")


class For(Stmt):
    """Run `body` for `var` = 0 .. extent - 1."""

    var: str
    extent: Expr
    kind: str
    body: tuple[Stmt, ...]


def verify(program: Program) -> None:
    """Check that names are bound once and before use, buffers exist, and loop kinds are true; raises ValueError."""
    statement.verify(program, _verify)


def _verify(s: Stmt, known: Known) -> None:
    match s:
        case For(var, extent, kind, body):
            if kind not in KINDS:
                raise ValueError(f"{known.where}: loop {var} has the unknown kind {kind!r}")
            statement.verify_body(body, known.loop(var, extent, kind), _verify)
        case _:
            raise ValueError(f"{known.where}: {type(s).__name__} is not a Loop IR statement")
