"""Scalar statements shared by Loop IR and Tile IR, and the program that holds kernels in both."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from compiler.ir.dtype import DType, i64
from compiler.ir.expr import COMBINE, Expr, Size, Var
from compiler.ir.node import Node
from compiler.ir.tensor import Tensor, verify_expression, verify_params


class Stmt(Node):
    """A statement."""


S = TypeVar("S", bound=Stmt)


class Let(Stmt):
    """`name = value`, bound once, visible to the statements after it in the same body."""

    name: str
    value: Expr


class Init(Stmt):
    """`name: type = value`: a mutable scalar that `Accum` updates."""

    name: str
    value: Expr


class Accum(Stmt):
    """`name = op(name, value)`, `op` a reduction (`expr.COMBINE`): the only loop-carried dependence of scalars."""

    name: str
    op: str
    value: Expr


class Store(Stmt):
    """`buffer[index] = value`; combined with the old value by the reduction `op` unless that is "set"."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr
    op: str = "set"


class If(Stmt):
    """Run `body` where `cond` holds."""

    cond: Expr
    body: tuple[Stmt, ...]


class InOrder(Stmt):
    """Run `body` for the first `extent` values of `var` in 0 .. count - 1 when they are sorted by `key`.

    `turn` counts them. The sort is stable, and NaN is larger than all else; `how` is one of `tensor.ORDERS`.
    """

    turn: str
    extent: Expr
    var: str
    count: Expr
    key: Expr
    how: str
    body: tuple[Stmt, ...]


class Kernel(Node):
    """One launch: `params` are the buffers that it uses, in order; `writes` names those that it changes.

    `whole` names the kernel that it was split from, if any. Cache hints: each element of the buffers in `once` is read
    only once, and stores to the buffers in `past` are not read soon. `checks` are the arguments of the schedule step of
    that name.
    """

    name: str
    params: tuple[Tensor, ...]
    writes: tuple[str, ...]
    body: tuple[Stmt, ...]
    origin: tuple[str, ...] = ()
    whole: str = ""
    once: tuple[str, ...] = ()
    past: tuple[str, ...] = ()
    checks: tuple[int, ...] = ()


class Program(Node):
    """Kernels run in order over `inputs`, `outputs` and temporaries `temps`; all shapes are in elements."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    temps: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    sizes: tuple[Size, ...] = ()

    @functools.cached_property
    def users(self) -> Mapping[Tensor, Sequence[Kernel]]:
        """The kernels that have each tensor among their parameters, in order."""
        found: dict[Tensor, list[Kernel]] = {}
        for k in self.kernels:
            for p in dict.fromkeys(k.params):
                found.setdefault(p, []).append(k)
        return found


@overload
def within(body: tuple[Stmt, ...]) -> Iterator[Any]: ...
@overload
def within(body: tuple[Stmt, ...], kind: type[S]) -> Iterator[S]: ...
def within(body: tuple[Stmt, ...], kind: type[Stmt] = Stmt) -> Iterator[Any]:
    """Every statement of a Loop or Tile IR body, or all of a kind, outer ones first; expressions are not searched."""
    for s in body:
        if isinstance(s, kind):
            yield s
        if "body" in type(s).fields:
            yield from within(s.body, kind)  # type: ignore[attr-defined]


def dtypes(kernel: Kernel) -> dict[str, DType]:
    """Element type of every parameter."""
    return {p.name: p.dtype for p in kernel.params}


@dataclass
class Known:
    """The verifier's state at a place in a kernel; `bound` are the names bound anywhere in the kernel."""

    kernel: Kernel
    bound: set[str]
    buffers: dict[str, tuple[DType, int]]  # element type and rank
    scope: set[Var]
    scalars: dict[str, int] = field(default_factory=dict)  # by mutable scalar, the number of loops around its Init
    loops: tuple[str, ...] = ()  # the kinds of the surrounding loops
    mbarriers: dict[str, int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"kernel {self.kernel.name}"

    def inner(self) -> Known:
        """A copy for a nested body, whose names end with it."""
        buffers, scope, scalars = dict(self.buffers), set(self.scope), dict(self.scalars)
        return replace(self, buffers=buffers, scope=scope, scalars=scalars, mbarriers=dict(self.mbarriers))

    def loop(self, var: str, extent: Expr, kind: str) -> Known:
        """A copy for the body of a loop."""
        self.check(extent)
        self.bind(var)
        inner = self.inner()
        inner.scope.add(Var(var, i64))
        inner.loops = (*self.loops, kind)
        return inner

    def check(self, *expressions: Expr) -> None:
        for e in expressions:
            if free := {n for n in e.walk() if isinstance(n, Var)} - self.scope:
                raise ValueError(f"{self.where}: {sorted(v.name for v in free)} used out of scope")
            verify_expression(e, self.buffers, self.where)

    def bind(self, name: str) -> None:
        if name in self.bound or name in self.buffers:
            raise ValueError(f"{self.where}: {name} is bound twice")
        self.bound.add(name)


VerifyOwn = Callable[[Stmt, Known], None]  # verifies a statement of one IR only


def verify(program: Program, own: VerifyOwn) -> None:
    """Check that names are bound once and before use, that buffers exist, and that kernels differ in name.

    Raises ValueError naming kernel and name.
    """
    there = {t.name: t for t in (*program.inputs, *program.outputs, *program.temps)}
    twice = [name for name, n in Counter(k.name for k in program.kernels).items() if n > 1]
    if twice:  # schedules, for one, are known by the names of kernels
        raise ValueError(f"{program.name}: several kernels are called {', '.join(twice)}")
    for kernel in program.kernels:
        buffers = {p.name: (p.dtype, len(p.shape)) for p in kernel.params}
        verify_params(f"kernel {kernel.name}", kernel.params, there)
        if unknown := set(kernel.writes) - set(buffers):
            raise ValueError(f"kernel {kernel.name}: writes {sorted(unknown)}, which are not parameters")
        if set(kernel.once) - (set(buffers) - set(kernel.writes)) or set(kernel.past) - set(kernel.writes):
            raise ValueError(
                f"kernel {kernel.name}: {', '.join(kernel.once)} cannot all be read once, "
                f"or {', '.join(kernel.past)} written past the caches"
            )
        known = _verified.setdefault(kernel, set())
        if (program.sizes, own) not in known:  # passes change few kernels
            verify_body(kernel.body, Known(kernel, {s.name for s in program.sizes}, buffers, set(program.sizes)), own)
            known.add((program.sizes, own))


_verified: WeakKeyDictionary[Kernel, set[tuple[Any, ...]]] = WeakKeyDictionary()


def verify_body(body: tuple[Stmt, ...], known: Known, own: VerifyOwn) -> None:
    for s in body:
        match s:
            case If(cond, inside):
                known.check(cond)
                verify_body(inside, known.inner(), own)
            # its types and scoping are those of two nested loops
            case InOrder(turn, extent, var, count, key, _, inside):
                among = known.loop(var, count, "parallel")
                among.check(key)
                verify_body(inside, among.loop(turn, extent, "parallel"), own)
            case Let(name, value) | Init(name, value):
                known.check(value)
                known.bind(name)
                known.scope.add(Var(name, value.dtype))
                if isinstance(s, Init):
                    known.scalars[name] = len(known.loops)
            case Accum(name, op, value):
                known.check(value)
                if name not in known.scalars or op not in COMBINE:
                    raise ValueError(f"{known.where}: {name} is not a mutable scalar, or {op!r} is not a reduction")
                if "parallel" in known.loops[known.scalars[name] :]:
                    raise ValueError(
                        f"{known.where}: a parallel loop accumulates into {name}, which is defined outside it"
                    )
            case Store():
                known.check(*s.index, s.value)
                _verify_store(s, known)
            case _:
                own(s, known)


def _verify_store(s: Store, known: Known) -> None:
    held, rank = known.buffers.get(s.buffer), len(s.index)
    if s.buffer in {p.name for p in known.kernel.params} - set(known.kernel.writes):
        raise ValueError(f"{known.where}: stores to {s.buffer}, which is not among its writes")
    if held != (s.value.dtype, rank) or (s.op != "set" and s.op not in COMBINE):
        raise ValueError(f"{known.where}: {s.buffer} is {held}, stored {s.value.dtype} at rank {rank} by {s.op}")
