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
from compiler.passes.loop.costs import recomputation_pays
from compiler.passes.loop.fuse_attention import join_kernels
from compiler.targets.target import Target

TOO_MANY_KERNELS = 4  # too many kernels before the last one for one nest


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
    for group in _group_chains([c for k in program.kernels if (c := _find_chain(program, k)) is not None]):
        every = group
        while every and len(kept := [c for c in every if set(c.before) <= _dead_kernels(program, every)]) < len(every):
            every = kept
        if every and _pays(program, every, target):
            program = _replace_kernels(program, every, _dead_kernels(program, every))
    return program


def _group_chains(chains: list[_Chain]) -> list[list[_Chain]]:
    """Group chains that have kernels in common."""
    groups: list[list[_Chain]] = []
    for c in chains:
        overlapping = [g for g in groups if any(set(c.before) & set(x.before) for x in g)]
        groups = [g for g in groups if g not in overlapping] + [[x for g in overlapping for x in g] + [c]]
    return groups


def _pays(program: Program, chains: list[_Chain], target: Target) -> bool:
    unnecessary = _dead_kernels(program, chains)
    readers = Counter(p.name for k in program.kernels for p in k.params)  # including the kernel that writes it
    elements = sum(readers[t.name] * _count_elements(t) for k in unnecessary for t in k.params if t.name in k.writes)
    return recomputation_pays((*unnecessary, *(c.last for c in chains)), [c.made for c in chains], elements, target)


def _dead_kernels(program: Program, chains: list[_Chain]) -> set[Kernel]:
    """The kernels made unnecessary by the chains: all their readers are ends of chains or unnecessary themselves."""
    unnecessary = {k for c in chains for k in c.before}
    ends = {c.last for c in chains}
    needed = {t.name for t in program.outputs} | {p.name for c in chains for p in c.made.params}
    while True:
        still_read = {
            k
            for k in unnecessary
            if set(k.writes) & needed
            or any(set(k.writes) & {p.name for p in r.params} for r in program.kernels if r not in unnecessary | ends)
        }
        if not still_read:
            return unnecessary
        unnecessary -= still_read


def _find_chain(program: Program, last: Kernel) -> _Chain | None:
    """The kernel with the kernels inside that compute a factor of it from matmuls; None for other kernels."""
    if {a.op for a in within(last.body, Accum)} != {"sum"}:
        return None
    temps = {t.name: t for t in program.temps}
    shapes = dict.fromkeys(temps[p.name].shape for p in last.params if p.name in temps and p.name not in last.writes)
    found = (_fuse_producers(program, last, [t for t in temps.values() if t.shape == shape]) for shape in shapes)
    return next((c for c in found if c is not None), None)


def _fuse_producers(program: Program, last: Kernel, temps: list[Tensor]) -> _Chain | None:
    """The kernel with the producers of these temporaries inside; they have an element for each row and column."""
    before = _producers(program, last, temps)
    if len(before) == TOO_MANY_KERNELS or any(_is_overwritten(program, k, last) for k in before):
        return None
    fused, found = last, None
    for n, producer in enumerate(before, 1):
        both = join_kernels(producer, fused)
        if both is None:
            return None
        fused = both
        inner = tuple(t for t in temps if any(t.name in k.writes for k in before[:n]))
        if chained(fused, {t.name for t in inner}) is not None:
            found = _rename_temporaries(_Chain(last, tuple(before[:n]), fused, inner))
    return found


def _producers(program: Program, last: Kernel, temps: list[Tensor]) -> list[Kernel]:
    """The direct and indirect producers of these temporaries for a kernel, last first; at most TOO_MANY_KERNELS."""
    producer_of = {w: k for k in program.kernels for w in k.writes}
    before: list[Kernel] = []
    while len(before) < TOO_MANY_KERNELS:
        own = (last, *before)
        read = {p.name for k in own for p in k.params}
        producers = [k for t in temps if t.name in read and (k := producer_of.get(t.name)) is not None and k not in own]
        if not producers:
            break
        before.append(max(producers, key=program.kernels.index))
    return before


def _is_overwritten(program: Program, k: Kernel, last: Kernel) -> bool:
    """Whether a kernel before `last` overwrites what `k` reads, so that `k` cannot run later."""
    used = {p.name for p in k.params}
    between = program.kernels[program.kernels.index(k) + 1 : program.kernels.index(last)]
    return any(used & {*x.writes} for x in between)


def _count_elements(t: Tensor) -> int:
    return math.prod(map(static, t.shape))


def _rename_temporaries(c: _Chain) -> _Chain:
    """The chain with its temporaries renamed so that no other kernel uses them."""
    table = {t.name: f"{t.name}_of_{c.last.writes[0]}" for t in c.own}

    def rename(n: Any) -> Any:
        match n:
            case Load(buffer) | Store(buffer) if buffer in table:
                return n.replace(buffer=table[buffer])
            case Tensor(name) if name in table:
                return n.replace(name=table[name])
        return None

    made = c.made.replace(
        params=tuple(rename(p) or p for p in c.made.params),
        writes=tuple(table.get(w, w) for w in c.made.writes),
        body=nodes(c.made.body, rename),
    )
    return replace(c, made=made, own=tuple(map(rename, c.own)))


def _replace_kernels(program: Program, chains: list[_Chain], unnecessary: set[Kernel]) -> Program:
    replacements = {c.last: c.made for c in chains}
    kernels: list[Kernel] = []
    for k in program.kernels:
        if k in replacements:
            names = [x.name for x in (*kernels, *program.kernels) if x is not k]
            kernels.append(replacements[k].replace(name=kernel_names.free(replacements[k].name, names)))
        elif k not in unnecessary:
            kernels.append(k)
    used = {p.name for k in kernels for p in k.params}
    temps = tuple(t for t in program.temps if t.name in used)
    return program.replace(kernels=tuple(kernels), temps=(*temps, *(t for c in chains for t in c.own)))
