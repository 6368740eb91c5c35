"""Recompute in each reading matmul what only matmuls read and matmuls make, where that pays (Loop IR to Loop IR).

The gradients of attention are such matmuls: of weights, and of elements computed from the weights and another matmul.
Neither needs memory if each reading matmul has the nests of both inside its own, but their products are then computed
several times. On a GPU it can pay if all readers of a temporary do so, because only then it need not be stored.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from compiler.analysis import kernel_names
from compiler.analysis.chained_products import chained
from compiler.ir.expr import Load, static
from compiler.ir.rewrite import nodes
from compiler.ir.statement import Accum, Kernel, Program, Store, within
from compiler.ir.tensor import Tensor
from compiler.passes.loop.costs import products_cost_less
from compiler.passes.loop.fuse_attention import joined
from compiler.targets.target import Target

MOST = 4  # too many kernels before the last one for one nest


@dataclass(frozen=True)
class _Chain:
    """A kernel `last` with the kernels `before` it inside: the result `made`, and the temporaries `own` inside it."""

    last: Kernel
    before: tuple[Kernel, ...]
    made: Kernel
    own: tuple[Tensor, ...]


def recompute(program: Program, target: Target) -> Program:
    """Move the producers of a matmul's factor into the matmul, if only matmuls read the factor and it pays."""
    if program.sizes:
        return program
    for group in _groups([c for k in program.kernels if (c := _chain(program, k)) is not None]):
        every = group
        while every and len(kept := [c for c in every if set(c.before) <= _gone(program, every)]) < len(every):
            every = kept
        if every and _pays(program, every, target):
            program = _replaced(program, every, _gone(program, every))
    return program


def _groups(chains: list[_Chain]) -> list[list[_Chain]]:
    """Group chains that have kernels in common."""
    groups: list[list[_Chain]] = []
    for c in chains:
        near = [g for g in groups if any(set(c.before) & set(x.before) for x in g)]
        groups = [g for g in groups if g not in near] + [[x for g in near for x in g] + [c]]
    return groups


def _pays(program: Program, chains: list[_Chain], target: Target) -> bool:
    gone = _gone(program, chains)
    readers = Counter(p.name for k in program.kernels for p in k.params)  # including the kernel that writes it
    handed = sum(readers[t.name] * _count(t) for k in gone for t in k.params if t.name in k.writes)
    return products_cost_less((*gone, *(c.last for c in chains)), [c.made for c in chains], handed, target)


def _gone(program: Program, chains: list[_Chain]) -> set[Kernel]:
    """The kernels made unnecessary by the chains: all their readers are ends of chains or unnecessary themselves."""
    gone = {k for c in chains for k in c.before}
    ends = {c.last for c in chains}
    needed = {t.name for t in program.outputs} | {p.name for c in chains for p in c.made.params}
    while True:
        held = {
            k
            for k in gone
            if set(k.writes) & needed
            or any(set(k.writes) & {p.name for p in r.params} for r in program.kernels if r not in gone | ends)
        }
        if not held:
            return gone
        gone -= held


def _chain(program: Program, last: Kernel) -> _Chain | None:
    """The kernel with the kernels inside that compute a factor of it from matmuls; None for other kernels."""
    if {a.op for a in within(last.body, Accum)} != {"sum"}:
        return None
    temps = {t.name: t for t in program.temps}
    shapes = dict.fromkeys(temps[p.name].shape for p in last.params if p.name in temps and p.name not in last.writes)
    found = (_made_of(program, last, [t for t in temps.values() if t.shape == shape]) for shape in shapes)
    return next((c for c in found if c is not None), None)


def _made_of(program: Program, last: Kernel, temps: list[Tensor]) -> _Chain | None:
    """The kernel with the producers of these temporaries inside; they have an element for each row and column."""
    before = _producers(program, last, temps)
    if len(before) == MOST:
        return None
    made, found = last, None
    for n, producer in enumerate(before, 1):
        both = joined(producer, made)
        if both is None:
            return None
        made = both
        inner = tuple(t for t in temps if any(t.name in k.writes for k in before[:n]))
        if chained(made, {t.name for t in inner}) is not None:
            found = _renamed(_Chain(last, tuple(before[:n]), made, inner))
    return found


def _producers(program: Program, last: Kernel, temps: list[Tensor]) -> list[Kernel]:
    """The direct and indirect producers of these temporaries for a kernel, last first; at most MOST: too many."""
    makers = {w: k for k in program.kernels for w in k.writes}
    before: list[Kernel] = []
    while len(before) < MOST:
        own = (last, *before)
        handed = {p.name for k in own for p in k.params}
        producers = [k for t in temps if t.name in handed and (k := makers.get(t.name)) is not None and k not in own]
        if not producers:
            break
        before.append(max(producers, key=program.kernels.index))
    return before


def _count(t: Tensor) -> int:
    return math.prod(map(static, t.shape))


def _renamed(c: _Chain) -> _Chain:
    """The chain with its temporaries renamed so that no other kernel uses them."""
    table = {t.name: f"{t.name}_of_{c.last.writes[0]}" for t in c.own}

    def own(n: Any) -> Any:
        match n:
            case Load(buffer) | Store(buffer) if buffer in table:
                return n.replace(buffer=table[buffer])
            case Tensor(name) if name in table:
                return n.replace(name=table[name])
        return None

    made = c.made.replace(
        params=tuple(own(p) or p for p in c.made.params),
        writes=tuple(table.get(w, w) for w in c.made.writes),
        body=nodes(c.made.body, own),
    )
    return replace(c, made=made, own=tuple(map(own, c.own)))


def _replaced(program: Program, chains: list[_Chain], gone: set[Kernel]) -> Program:
    made = {c.last: c.made for c in chains}
    kernels: list[Kernel] = []
    for k in program.kernels:
        if k in made:
            names = [x.name for x in (*kernels, *program.kernels) if x is not k]
            kernels.append(made[k].replace(name=kernel_names.free(made[k].name, names)))
        elif k not in gone:
            kernels.append(k)
    used = {p.name for k in kernels for p in k.params}
    temps = tuple(t for t in program.temps if t.name in used)
    return program.replace(kernels=tuple(kernels), temps=(*temps, *(t for c in chains for t in c.own)))
