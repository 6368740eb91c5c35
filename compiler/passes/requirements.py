"""Give each requirement a statement of its own, executed as rarely as possible (Kernel IR to Kernel IR).

A required value, and subexpressions that its condition and value share, get a name before the statement that needs
them. The name serves all later statements, and is hoisted out of loops in which it does not change. A requirement under
a `Select` stays where it is, because it may be evaluated only if that side is taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from compiler.ir import kernel as k
from compiler.ir import rewrite
from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Load, Op, Select, Var, canonical, fresh, names, substitute
from compiler.ir.node import Node
from compiler.ir.value_ranges import value_range
from compiler.passes.hoisted_checks import Ahead
from compiler.passes.vectorized_checks import ByPieces

Body = tuple[k.Stmt, ...]
Known = dict[Expr, Var]  # expressions that are in a variable here


def requirements(program: k.Program, width: int = 0, by_lane: bool = True) -> k.Program:
    """Name each requirement once, outside loops in which it is invariant; check by vectors of `width` bytes if any,
    where gathers load each lane by itself if `by_lane`:

        for j in range(0, 32, 16):
            y[i * 32 + j] = x[require(min(max(index[i], 0), 9) == index[i], min(max(index[i], 0), 9)) * 32 + j, f32x16]
    becomes

        asked: i64 = index[i]
        asked_1: i64 = min(max(asked, 0), 9)
        checked: i64 = require(asked_1 == asked, asked_1)
        for j in range(0, 32, 16):
            y[i * 32 + j] = x[checked * 32 + j, f32x16]
    """
    return program.replace(functions=tuple(_function(f, width, by_lane) for f in program.functions))


def without_requirements(program: k.Program) -> k.Program:
    """The program without its checks, for data known to be valid."""

    def body(of: k.Function) -> Body:
        return rewrite.nodes(of.body, lambda n: n.args[1] if _is_requirement(n) else None)

    return program.replace(functions=tuple(f.replace(body=body(f)) for f in program.functions))


def _function(f: k.Function, width: int, by_lane: bool) -> k.Function:
    nodes = [n for s in f.body for n in s.walk()]
    if not any(_is_requirement(n) for n in nodes):
        return f
    taken = {p.name for p in f.params} | {n.name for n in nodes if isinstance(n, k.Declare | k.Array | Var)}
    taken |= {n.var for n in nodes if isinstance(n, k.For)}
    fixed = {p.name for p in f.params} - {*f.writes, *f.exchanged}
    assigned = {n.name for n in nodes if isinstance(n, k.Assign)}
    checks = _Checks(taken, fixed, assigned, bool(f.block))
    body = checks.body(f.body, {})
    ahead, *pieces = f.checks or (0, 0, 0, 0)
    if ahead:
        body = Ahead(checks.lasts, checks.fresh, ahead).body(body)
    if width:
        body = ByPieces(checks.lasts, checks.fresh, width, by_lane, *pieces).body(body)
    return f.replace(body=body)


def _is_requirement(n: object) -> bool:
    return isinstance(n, Op) and n.name == "require"


@dataclass
class _Checks:
    """Names requirements within one function. `fixed` are the buffers that are never written.

    With `threads` (a GPU function) nothing is hoisted out of loops that may have no iteration: what such a loop reads
    need not exist.
    """

    taken: set[str]
    fixed: set[str]
    assigned: set[str]
    threads: bool
    made: set[str] = field(default_factory=set)

    def body(self, body: Body, known: Known) -> Body:
        known = dict(known)
        out: list[k.Stmt] = []
        for s in body:
            match s:
                case k.For():
                    made, head = self.name_requirements(s.replace(body=()), known)
                    out += [*made, *self.hoist_from_loop(head.replace(body=self.body(s.body, known)), known)]
                case k.If(cond, then, orelse):
                    made, head = self.name_requirements(k.If(cond, ()), known)
                    out += made
                    out.append(head.replace(body=self.body(then, known), orelse=self.body(orelse, known)))
                case _:
                    made, new = self.name_requirements(s, known)
                    out += [*made, new]
        return tuple(out)

    def name_requirements(self, s: k.Stmt, known: Known) -> tuple[list[k.Stmt], Any]:
        """Return the declarations of what `s` requires, and `s` with their names."""
        uses: Counter[Node] = Counter()
        for n in _outermost_requirements(s):
            _count_occurrences(n, uses)
        out: list[k.Stmt] = []
        available: Known = dict(known)
        done: dict[Node, Any] = {}

        def go(n: Any) -> Any:
            if n in available:
                return available[n]
            if n not in done:
                done[n] = made(n)
            return done[n]

        def made(n: Any) -> Any:
            if isinstance(n, Const | Var):
                return n
            if isinstance(n, Select):
                # An arm that is not taken requires nothing, but what was required before it has a name.
                cond = go(n.cond)
                named = {e: name for e, name in available.items() if _is_requirement(e)}
                then, other = (substitute(e, named) if named else e for e in (n.then, n.other))
                return canonical(n.replace(cond=cond, then=then, other=other))
            new = canonical(n.map(go))
            if new in available:
                return available[new]
            if not _is_requirement(new) and (uses[n] < 2 or not _worth_a_name(new)):
                return new
            name = Var(self.fresh("checked" if _is_requirement(new) else "asked"), new.dtype)
            out.append(k.Declare(name.name, new))
            available[n] = available[new] = name
            if self.lasts(new):
                known[new] = name
            return name

        return out, s.map(go) if uses else s

    def lasts(self, e: Expr) -> bool:
        """Whether the value stays the same for as long as its names are in scope."""
        nodes = list(e.walk())
        read = {n.buffer for n in nodes if isinstance(n, Load | k.Gather)}
        shared = any(isinstance(n, k.Peer | k.Together) for n in nodes)
        return not shared and read <= self.fixed and not names(e) & self.assigned

    def hoist_from_loop(self, f: k.For, known: Known) -> list[k.Stmt]:
        """The loop, preceded by those of its named requirements that are loop-invariant."""
        if self.threads and not _has_iterations(f):
            return [f]
        bound = {f.var} | {n.name for s in f.body for n in s.walk() if isinstance(n, k.Declare | k.Array)}
        bound |= {n.var for s in f.body for n in s.walk() if isinstance(n, k.For)}
        hoisted: list[k.Stmt] = []
        table: dict[Any, Any] = {}
        remaining: list[k.Stmt] = []
        for s in f.body:
            if not isinstance(s, k.Declare) or s.name not in self.made:
                remaining.append(s)
                continue
            value = substitute(s.value, table) if table else s.value
            if names(value) & bound or not self.lasts(value):
                remaining.append(s)
            elif value in known:
                table[Var(s.name, value.dtype)] = known[value]
            else:
                bound.discard(s.name)
                known[value] = Var(s.name, value.dtype)
                hoisted.append(k.Declare(s.name, value))
        body = tuple(remaining)
        return [*hoisted, f.replace(body=substitute(body, table) if table else body)]

    def fresh(self, stem: str) -> str:
        name = fresh(stem, self.taken)
        self.made.add(name)
        return name


def _worth_a_name(e: Any) -> bool:
    constant = isinstance(e, k.Broadcast) and isinstance(e.arg, Const)
    return isinstance(e, Expr) and not isinstance(e, Const | Var) and e.dtype.kind != "bool" and not constant


def _outermost_requirements(n: Node) -> list[Op]:
    """The outermost requirements in a statement's own expressions, except under a `Select`."""
    if isinstance(n, Op) and n.name == "require":
        return [n]
    below = (n.cond,) if isinstance(n, Select) else n.below
    return [x for child in below if isinstance(child, Node) for x in _outermost_requirements(child)]


def _count_occurrences(n: Node, uses: Counter[Node]) -> None:
    """Count the occurrences of each node; the parts of a repeated node count once."""
    uses[n] += 1
    if uses[n] == 1:
        for child in (n.cond,) if isinstance(n, Select) else n.children():
            _count_occurrences(child, uses)


def _has_iterations(f: k.For) -> bool:
    low, _ = value_range(f.stop - f.start, {}) if f.stop.dtype is i64 else (None, None)
    return low is not None and low > 0
