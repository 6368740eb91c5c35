"""Recompute maps in their readers instead of storing them, where that moves fewer bytes (Tensor IR to Tensor IR).

An example is a gradient stored by a matmul, less a mean, times another tensor: each map is passed on to sums and their
successors in other kernels. These can read the map's sources instead, if those are in memory anyway. It pays if fewer
bytes move: the map need not be written, and its sources may be smaller or are read anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Const, Load, Var, loads
from compiler.ir.tensor import Equation, Group, Map, Program, Reduce, Tensor, bound, equations, reads, shape
from compiler.passes.tensor.compose import inline, remove_dead
from compiler.passes.tensor.contractions import count, is_contraction
from compiler.passes.tensor.costs import WORTH_KEEPING, cost
from compiler.passes.tensor.shared_loops import nest

LEAST_BYTES = 1 << 20  # bytes; smaller tensors stay in a cache, where other tensors would have to be read instead
MOST_MOVED_SHARE = 0.8  # bytes moved afterwards, at most, as a share of those before


@dataclass(frozen=True)
class _Context:
    """The inputs, the equations with their groups, the readers of each tensor, and the outputs."""

    inputs: dict[str, Tensor]
    made: dict[str, Equation]
    group: dict[str, Group]
    readers: dict[str, list[Equation]]
    results: frozenset[str]

    def stored(self, name: str) -> bool:
        """Whether a tensor is in memory: an input, an output, or read in another group."""
        own = self.group.get(name)
        return own is None or name in self.results or any(self.group[r.name] is not own for r in self.readers[name])

    def bytes(self, name: str) -> float:
        """The size of an input or of an equation's result."""
        if name in self.inputs:
            return count(self.inputs[name].shape) * self.inputs[name].dtype.bytes
        return count(shape(self.made[name])) * self.made[name].dtype.bytes


def rematerialize(program: Program) -> Program:
    """Recompute maps in their readers for as long as one is left for which fewer bytes move."""
    if program.sizes:
        return program
    while (made := _rematerialize_one(program)) is not None:
        program = made
    return program


def _rematerialize_one(program: Program) -> Program | None:
    known = _make_context(program)
    for p in reversed(equations(program)):
        if isinstance(p, Map) and (made := _recompute_in_readers(program, p, known)) is not None:
            return made
    return None


def _make_context(program: Program) -> _Context:
    every = equations(program)
    by_name = {e.name: e for e in every}
    readers: dict[str, list[Equation]] = {name: [] for name in (*(t.name for t in program.inputs), *by_name)}
    for e in every:
        for name in reads(e):
            readers[name].append(e)
    group = {e.name: g for g in program.groups for e in g.equations}
    inputs = {t.name: t for t in program.inputs}
    return _Context(inputs, by_name, group, readers, frozenset(t.name for t in program.outputs))


def _recompute_in_readers(program: Program, p: Map, known: _Context) -> Program | None:
    """The program with `p` recomputed by its readers; None if that is illegal or does not pay."""
    own = known.group[p.name]
    outside = [r for r in known.readers[p.name] if known.group[r.name] is not own]
    if not outside or p.name in known.results:
        return None
    if not all(_reads_elementwise(r, p, known) for r in outside):
        return None
    whole = _in_stored_tensors(p, known)
    reader_groups = {known.group[r.name] for r in outside}
    if whole is None or not _pays(p, whole, reader_groups, known):
        return None
    changed = {r.name: inline(r, {p.name: whole}) for r in outside}
    groups = (
        g.replace(equations=tuple(changed.get(e.name, e) for e in g.equations)) if g in reader_groups else g
        for g in program.groups
    )
    made = remove_dead(program.replace(groups=tuple(groups)))
    return made if all(_is_one_nest(g, made) for g in {*made.groups} - {*program.groups}) else None


def _reads_elementwise(r: Equation, p: Map, known: _Context) -> bool:
    """Whether the reader loads each element of `p` once, in a kernel without matmuls."""
    if not isinstance(r, Map | Reduce) or any(map(is_contraction, known.group[r.name].equations)):
        return False
    found = [n.index for n in loads(r.value) if n.buffer == p.name]
    plain = all(len({*index}) == len(index) and all(isinstance(i, Var) for i in index) for index in found)
    return plain and count(a.extent for a in bound(r)) == count(shape(p))


def _in_stored_tensors(p: Map, known: _Context) -> Map | None:
    """The map in terms of stored tensors only; None if it needs others or is expensive."""
    while inner := [n for n in reads(p) if not known.stored(n)]:
        producers = {n: e for n in inner if isinstance(e := known.made[n], Map)}
        if len(producers) < len(inner) or cost(p.value) >= WORTH_KEEPING:
            return None
        made = inline(p, producers)
        assert isinstance(made, Map)
        p = made
    plain = all(isinstance(i, Var | Const) for n in p.value.walk() if isinstance(n, Load) for i in n.index)
    return p if plain and cost(p.value) < WORTH_KEEPING else None


def _pays(p: Map, whole: Map, groups: set[Group], known: _Context) -> bool:
    stored = known.bytes(p.name) * (1 + len(groups))
    read = 0.0
    for g in groups:
        already_read = {n for e in g.equations for n in reads(e)}
        read += sum(known.bytes(n) for n in reads(whole) if n not in already_read)
    return read == 0 or (known.bytes(p.name) >= LEAST_BYTES and read <= MOST_MOVED_SHARE * stored)


def _is_one_nest(g: Group, program: Program) -> bool:
    inside = {e.name for e in g.equations}
    outside = {n for x in program.groups if x is not g for e in x.equations for n in reads(e)}
    outside |= {t.name for t in program.outputs}
    return nest(g.equations, inside & outside) is not None
