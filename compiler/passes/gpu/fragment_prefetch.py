"""Tile IR in; out the same with loops over fragments written out, an iteration's loads before the last one's matmuls.

```
for k in unroll(2): a = registers(…); copy(a, x[k]); mma(acc, a)
```
becomes
```
a = registers(…); a_1 = registers(…); copy(a, x[0]); copy(a_1, x[1]); mma(acc, a); mma(acc, a_1)
```
"""

from __future__ import annotations

from collections.abc import Set

from compiler.ir import rewrite, tile
from compiler.ir.alike import renamed
from compiler.ir.expr import Const, Var, const, fresh, static, substitute
from compiler.ir.layout import Fragment
from compiler.ir.statement import Init, Kernel, Let, Program, Stmt


def prefetch_fragments(program: Program) -> Program:
    """Loops of known extent that load fragments are gone."""
    return program.replace(kernels=tuple(map(_kernel, program.kernels)))


def _kernel(kernel: Kernel) -> Kernel:
    nodes = [n for s in kernel.body for n in s.walk()]
    held = {n.tensor.name for n in nodes if isinstance(n, tile.Alloc) and isinstance(n.layout, Fragment)}
    taken = {p.name for p in kernel.params} | set(bound(kernel.body)) | {n.name for n in nodes if isinstance(n, Var)}

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        match s:
            case tile.For(extent=Const(), bind=tile.Bind("unroll"), body=body) if any(_loads(x, held) for x in body):
                return _written_out(s, held, taken)
        return None

    return kernel.replace(body=rewrite.statements(kernel.body, rule))


def _loads(s: Stmt, held: Set[str]) -> bool:
    return isinstance(s, tile.Copy) and s.target.buffer in held


def _written_out(f: tile.For, held: Set[str], taken: set[str]) -> tuple[Stmt, ...]:
    """Neighbouring iterations have fragments of their own."""
    allocs = tuple(s for s in f.body if isinstance(s, tile.Alloc))
    body = tuple(s for s in f.body if s not in allocs)
    ahead = tuple(s for s in body if _loads(s, held))
    rest = tuple(s for s in body if s not in ahead)
    loaded = {s.target.buffer for s in ahead if isinstance(s, tile.Copy)}
    before = body[: body.index(ahead[-1])]
    if any(tile.buffers((s,)) & loaded for s in before if s not in ahead):
        ahead, rest = (), body  # a fragment is used before another is loaded: in order, then
    count = static(f.extent)
    others = {a.tensor.name: fresh(a.tensor.name, taken) for a in allocs} if count > 1 else {}
    tables = [(others if n % 2 else {}) | {x: fresh(x, taken) for x in bound(body) if n} for n in range(count)]

    def part(n: int, some: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return substitute(tuple(renamed(s, tables[n]) for s in some), {Var(f.var): const(n)})

    out = [*allocs, *(renamed(a, others) for a in allocs if others)]
    for n in range(count):
        out += [*(part(0, ahead) if n == 0 else ()), *(part(n + 1, ahead) if n + 1 < count else ()), *part(n, rest)]
    return tuple(out)


def bound(body: tuple[Stmt, ...]) -> list[str]:
    """What statements give names to."""
    out = []
    for n in (n for s in body for n in s.walk()):
        match n:
            case tile.For(var=name) | Let(name) | Init(name):
                out.append(name)
            case tile.Alloc(tensor):
                out.append(tensor.name)
    return out
