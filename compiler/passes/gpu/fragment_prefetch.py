"""Unroll loops over fragments, with an iteration's loads issued before the previous iteration's matmuls.

```
for k in unroll(2, ahead=1): a = registers(…); copy(a, x[k]); mma(acc, a)
```
becomes
```
a = registers(…); a_1 = registers(…); copy(a, x[0]); copy(a_1, x[1]); mma(acc, a); mma(acc, a_1)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from compiler.ir import rewrite, tile
from compiler.ir.expr import Const, Var, const, fresh, static, substitute
from compiler.ir.isomorphism import renamed
from compiler.ir.layout import Fragment
from compiler.ir.statement import Init, Kernel, Let, Program, Stmt, within
from compiler.schedule.steps import Bind, Schedule, ScheduleError, Step


def prefetch_fragments(program: Program) -> Program:
    """Unroll loops of known extent that load fragments; with `ahead`, loads precede the previous products."""
    return program.replace(kernels=tuple(map(_kernel, program.kernels)))


def with_prefetch(schedule: Schedule, kernels: Iterable[Kernel]) -> Schedule:
    """The schedule of these launches, whose tiles have layouts, with fragments loaded ahead where possible."""
    found: set[str] = set()
    for kernel in kernels:
        fragments = _fragments(kernel)
        loops = (n for n in within(kernel.body, tile.For) if _loads_fragments(n, fragments))
        found |= {f.var for f in loops if not _is_used_before_loads(f.body, fragments)}

    def load_ahead(step: Step) -> Step:
        match step:
            case Bind(loop, "unroll", ()) if loop in found:
                return step.replace(args=(("ahead", 1),))
        return step

    return Schedule(tuple(map(load_ahead, schedule.steps))) if found else schedule


def _loads_fragments(f: tile.For, fragments: Set[str]) -> bool:
    """Whether a loop has a known extent, is unrolled and loads fragments."""
    return isinstance(f.extent, Const) and f.bind.level == "unroll" and any(_loads(x, fragments) for x in f.body)


def _fragments(kernel: Kernel) -> Set[str]:
    return {n.tensor.name for n in within(kernel.body, tile.Alloc) if isinstance(n.layout, Fragment)}


def _kernel(kernel: Kernel) -> Kernel:
    fragments = _fragments(kernel)
    variables = {n.name for s in kernel.body for n in s.walk() if isinstance(n, Var)}
    taken = {p.name for p in kernel.params} | set(bound_names(kernel.body)) | variables

    def rule(s: Stmt) -> tuple[Stmt, ...] | None:
        return _unroll(s, fragments, taken) if isinstance(s, tile.For) and _loads_fragments(s, fragments) else None

    return kernel.replace(body=rewrite.statements(kernel.body, rule))


def _loads(s: Stmt, fragments: Set[str]) -> bool:
    return isinstance(s, tile.Copy) and s.target.buffer in fragments


def _is_used_before_loads(body: tuple[Stmt, ...], fragments: Set[str]) -> bool:
    """Whether a fragment is used before another is loaded, so that not all can be loaded an iteration ahead."""
    ahead = [n for n, s in enumerate(body) if _loads(s, fragments)]
    loaded = {s.target.buffer for s in body if isinstance(s, tile.Copy) and s.target.buffer in fragments}
    before = (s for n, s in enumerate(body[: ahead[-1]]) if n not in ahead and not isinstance(s, tile.Alloc))
    return any(tile.buffers((s,)) & loaded for s in before)


def _unroll(f: tile.For, fragments: Set[str], taken: set[str]) -> tuple[Stmt, ...]:
    """The unrolled loop. Adjacent iterations use different fragments."""
    allocs = tuple(s for s in f.body if isinstance(s, tile.Alloc))
    body = tuple(s for s in f.body if s not in allocs)
    early = bool(dict(f.bind.args).get("ahead"))
    if early and _is_used_before_loads(body, fragments):
        step = Bind(f.var, f.bind.level, f.bind.args)
        raise ScheduleError(step, "a fragment is used before another is loaded, so they are not loaded ahead together")
    ahead = tuple(s for s in body if early and _loads(s, fragments))
    rest = tuple(s for s in body if s not in ahead)
    count = static(f.extent)
    others = {a.tensor.name: fresh(a.tensor.name, taken) for a in allocs} if count > 1 else {}
    tables = [(others if n % 2 else {}) | {x: fresh(x, taken) for x in bound_names(body) if n} for n in range(count)]

    def iteration(n: int, statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return substitute(tuple(renamed(s, tables[n]) for s in statements), {Var(f.var): const(n)})

    out = [*allocs, *(renamed(a, others) for a in allocs if others)]
    for n in range(count):
        out += [
            *(iteration(0, ahead) if n == 0 else ()),
            *(iteration(n + 1, ahead) if n + 1 < count else ()),
            *iteration(n, rest),
        ]
    return tuple(out)


def bound_names(body: tuple[Stmt, ...]) -> list[str]:
    """The names that statements bind."""
    out = []
    for n in (n for s in body for n in s.walk()):
        match n:
            case tile.For(var=name) | Let(name) | Init(name):
                out.append(name)
            case tile.Alloc(tensor):
                out.append(tensor.name)
    return out
