"""Loops that are written out, whose fragments are loaded an iteration before they are multiplied."""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, const, static
from compiler.ir.statement import Stmt
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.facts import Facts
from compiler.passes.gpu.scope import Scope
from compiler.passes.gpu.sequences import emit, sequence

Body = list[k.Stmt]


def loads_fragments(facts: Facts, f: tile.For) -> bool:
    """A loop of known extent that loads fragments and multiplies them."""
    loads = any(isinstance(n, tile.Copy) and n.target.buffer in facts.fragments for n in f.body)
    return loads and isinstance(f.extent, Const)


def unrolled(state: Emission, f: tile.For, scope: Scope) -> Body:
    """The loop written out, with the fragments of the next iteration loaded before this one's are multiplied."""
    ahead = tuple(s for s in f.body if isinstance(s, tile.Copy) and s.target.buffer in state.facts.fragments)
    rest = tuple(s for s in f.body if s not in ahead)
    loaded = {s.target.buffer for s in ahead}
    before = f.body[: f.body.index(ahead[-1])]
    if any(tile.buffers((s,)) & loaded for s in before if s not in ahead):
        ahead, rest = (), f.body  # a fragment is used before another is loaded: in order, then
    count = static(f.extent)
    sets: list[Scope] = []
    out: Body = []
    for n in range(min(2, count)):
        inner = scope.inner()
        inner.registers = dict((sets[0] if n else scope).registers or {})
        for s in f.body:
            if isinstance(s, tile.Alloc):
                out += emit(state, s, inner, ())
        sets.append(inner)

    def part(n: int, body: tuple[Stmt, ...]) -> Body:
        inner = sets[n % len(sets)].inner()
        inner.values[f.var] = const(n)
        return sequence(state, tuple(s for s in body if not isinstance(s, tile.Alloc)), inner)

    out += part(0, ahead)
    for n in range(count):
        if n + 1 < count:
            out += part(n + 1, ahead)
        out += part(n, rest)
    return out
