"""Loop IR: each kernel is one loop nest over scalar loads, arithmetic, accumulations and stores.

```
with kernel("softmax", x: ..., y: ...):
    for i in parallel(64):
        m: f32 = -inf
        for j in reduce(100):
            m = max(m, x[i, j])
        ...
```
`parallel` iterations are independent, `reduce` iterations only accumulate, in any order; `scan` ones run in order.
"""

from __future__ import annotations

from compiler.ir.dtype import DType, i64
from compiler.ir.expr import COMBINE, Expr, Size, Var
from compiler.ir.statement import Accum, If, Init, InOrder, Kernel, Let, Program, Stmt, Store
from compiler.ir.tensor import verify_expression

KINDS = ("parallel", "reduce", "scan")


class For(Stmt):
    """Run `body` for `var` = 0 .. extent - 1."""

    var: str
    extent: Expr
    kind: str
    body: tuple[Stmt, ...]


def verify(program: Program) -> None:
    """Only what exists is touched, names are bound once, before use, and loop kinds are true; raises ValueError."""
    for kernel in program.kernels:
        _Checker(kernel, program.sizes).check()


class _Checker:
    """Walks one kernel with the names in scope; `scalars` maps a mutable scalar to the loops around its Init."""

    def __init__(self, kernel: Kernel, sizes: tuple[Size, ...]) -> None:
        self.kernel, self.sizes = kernel, sizes
        self.known: dict[str, tuple[DType, int]] = {p.name: (p.dtype, len(p.shape)) for p in kernel.params}
        self.bound: set[str] = {s.name for s in sizes}

    def check(self) -> None:
        unknown = set(self.kernel.writes) - set(self.known)
        if unknown:
            raise ValueError(f"kernel {self.kernel.name}: writes {sorted(unknown)}, which are not parameters")
        self.body(self.kernel.body, set(self.sizes), {}, ())

    def expr(self, e: Expr, scope: set[Var]) -> None:
        free = {n for n in e.walk() if isinstance(n, Var)} - scope
        if free:
            raise ValueError(f"kernel {self.kernel.name}: {sorted(v.name for v in free)} used out of scope")
        verify_expression(e, self.known, f"kernel {self.kernel.name}")

    def bind(self, name: str) -> None:
        if name in self.bound or name in self.known:
            raise ValueError(f"kernel {self.kernel.name}: {name} is bound twice")
        self.bound.add(name)

    def body(self, body: tuple[Stmt, ...], scope: set[Var], scalars: dict[str, int], loops: tuple[str, ...]) -> None:
        scope, scalars = set(scope), dict(scalars)
        for s in body:
            self.stmt(s, scope, scalars, loops)

    def stmt(self, s: Stmt, scope: set[Var], scalars: dict[str, int], loops: tuple[str, ...]) -> None:
        where = f"kernel {self.kernel.name}"
        match s:
            case For(var, extent, kind, body):
                self.expr(extent, scope)
                self.bind(var)
                if kind not in KINDS:
                    raise ValueError(f"{where}: loop {var} has the unknown kind {kind!r}")
                self.body(body, scope | {Var(var, i64)}, scalars, (*loops, kind))
            case InOrder(turn, extent, var, count, key, _, body):  # has the names and types of loops
                inside = (Let(f"key of {var}", key), For(turn, extent, "parallel", body))
                self.stmt(For(var, count, "parallel", inside), scope, scalars, loops)
            case If(cond, body):
                self.expr(cond, scope)
                self.body(body, scope, scalars, loops)
            case Let(name, value) | Init(name, value):
                self.expr(value, scope)
                self.bind(name)
                scope.add(Var(name, value.dtype))
                if isinstance(s, Init):
                    scalars[name] = len(loops)
            case Accum(name, op, value):
                self.expr(value, scope)
                if name not in scalars or op not in COMBINE:
                    raise ValueError(f"{where}: {name} is not a mutable scalar, or {op!r} is not a reduction")
                if "parallel" in loops[scalars[name] :]:
                    raise ValueError(f"{where}: a parallel loop accumulates into {name}, which is defined outside it")
            case Store(buffer, index, value, op):
                for e in (*index, value):
                    self.expr(e, scope)
                if buffer not in self.kernel.writes:
                    raise ValueError(f"{where}: stores to {buffer}, which is not among its writes")
                if self.known[buffer] != (value.dtype, len(index)) or (op != "set" and op not in COMBINE):
                    raise ValueError(
                        f"{where}: {buffer} is {self.known[buffer]}, stored {value.dtype} at rank {len(index)} by {op}"
                    )
            case _:
                raise ValueError(f"{where}: {type(s).__name__} is not a Loop IR statement")
