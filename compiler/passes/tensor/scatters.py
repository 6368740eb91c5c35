"""Compute in a scatter the maps that only it reads, and add it up in what is added to it; for CPUs, turn counts up to a
place into scatters.

A map of which only a scatter reads each element, once, needs no memory and no kernel: the rotated keys of a token are
computed where they are written to a cache. On a GPU this is for scatters that set elements; atomic updates stay alone.

A result that adds something to a scatter of sums is that scatter with this as its base: gradients of embeddings are
added up in the gradient of the matmul that shares their weights. This saves a pass over zeros.

Counting for each of n places i how many of m numbers are at most i is a running total of how many equal i: m + n steps
instead of m times n.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Cast, Const, Load, Op, Var, dim, identity, loads, op
from compiler.ir.tensor import Equation, Map, Program, Reduce, Scan, Scatter, equations, expressions, reads, shape
from compiler.passes.tensor.compose import injective, inline, readers_of, remove_dead
from compiler.passes.tensor.contractions import count
from compiler.passes.tensor.costs import WORTH_KEEPING, cost

LEAST_COUNTED = 16  # with fewer numbers, comparing each with each place is as fast


def scatters(program: Program, in_order: bool) -> Program:
    """Inline maps into the scatters that alone read them, and turn counts into scatters and running totals.

    `in_order`: one core makes the updates of a scatter one after the other, as on a CPU. Without it, counts stay as
    they are, no map is inlined into scatters that combine values, and sums with a scatter become its base.
    """
    every = {e.name: e for e in equations(program)}
    if in_order:
        program = _replace_equations(program, {n: _running_total(e, every) for n, e in every.items()})
    else:
        results = {t.name for t in program.outputs}
        readers = readers_of(every.values())
        added = {n: _added_to_base(e, every, readers, results) for n, e in every.items()}
        program = _replace_equations(program, {n: (e,) for n, e in added.items()})
    while inlined := _inline_into_scatters(program, in_order):
        program = _replace_equations(program, {e.name: (inlined.get(e.name, e),) for e in equations(program)})
    return program


def _replace_equations(program: Program, replacements: Mapping[str, tuple[Equation, ...]]) -> Program:
    """Replace each equation by those made from it, and remove dead ones."""
    groups = (g.replace(equations=tuple(x for e in g.equations for x in replacements[e.name])) for g in program.groups)
    return remove_dead(program.replace(groups=tuple(groups)))


def _running_total(e: Equation, every: Mapping[str, Equation]) -> tuple[Equation, ...]:
    """Return `e`; or for a count of numbers up to each place, a scatter that counts each place and a scan over it."""
    if not isinstance(e, Reduce) or e.dtype is not i64 or e.op != "sum":
        return (e,)
    compared = {n: p for n in reads(e) if isinstance(p := every.get(n), Map) and p.dtype is boolean}
    match inline(e, compared):
        case Reduce(axes=(place,), over=(over,), value=Cast(Op("le" | "lt" as comparison, (Load() as x, Var() as i)))):
            few = isinstance(over.extent, Const) and over.extent.value < LEAST_COUNTED
            count_name = f"{e.name}_each"
            if few or x.dtype is not i64 or i is not place.var or i in set(x.walk()) or count_name in every:
                return (e,)
            later = int(comparison == "lt")  # 1 if a number counts only at places after its own
            at, guard = op("max", x, dim(-later)) + later, op("lt", x, place.extent - later)
            return (
                Scatter(count_name, e.axes, identity("sum", i64), "sum", e.over, (at,), dim(1), guard),
                Scan(e.name, e.axes, "sum", place.name, Load(count_name, (place.var,), i64)),
            )
    return (e,)


def _added_to_base(
    e: Equation, every: Mapping[str, Equation], readers: Mapping[str, Set[str]], results: Set[str]
) -> Equation:
    """Return `e`, or for a result x + s with a scatter of sums s that begins with zeros, one that begins with x."""
    if not isinstance(e, Map) or e.name not in results or e.narrow is not None:
        return e
    terms = e.value.args if isinstance(e.value, Op) and e.value.name == "add" else ()
    for x, base in zip(terms, reversed(terms), strict=True):
        s = every.get(x.buffer) if isinstance(x, Load) and x.index == tuple(a.var for a in e.axes) else None
        if (
            isinstance(s, Scatter)
            and (s.op, s.base, s.narrow) == ("sum", identity("sum", s.dtype), None)
            and s.name not in results
            and readers[s.name] == {e.name}
            and all(n.buffer != s.name for n in loads(base))
            and not {a.name for a in e.axes} & {a.name for a in s.over}
        ):
            return s.replace(name=e.name, axes=e.axes, base=base)
    return e


def _inline_into_scatters(program: Program, in_order: bool) -> dict[str, Equation]:
    """The scatters that can take further maps, with these inlined, by name."""
    by_name = {e.name: e for e in equations(program)}
    results = {t.name for t in program.outputs}
    readers = readers_of(by_name.values())
    out: dict[str, Equation] = {}
    for e in by_name.values():
        if isinstance(e, Scatter) and (in_order or e.op == "set"):
            private = [by_name[n] for n in reads(e) if n in by_name and n not in results and readers[n] == {e.name}]
            maps = [p for p in private if isinstance(p, Map) and _reads_each_element_once(p, e)]
            whole = {p.name: _expanded(p, by_name, readers, results) for p in maps}
            fitting = {name: p for name, p in whole.items() if _is_cheap_to_inline(p, by_name)}
            out |= {e.name: inline(e, fitting)} if fitting else {}
    return out


def _reads_each_element_once(p: Map, e: Scatter) -> bool:
    """Whether a scatter reads the map at one index, and no element twice except in loops absent from that index."""
    found = {n.index for x in expressions(e) for n in loads(x) if n.buffer == p.name}
    (index,) = found if len(found) == 1 else ((),)
    own = tuple(a for a in e.over if any(a.var in set(i.walk()) for i in index))
    return len(found) == 1 and injective(index, shape(p), own)


def _expanded(p: Map, by_name: Mapping[str, Equation], readers: Mapping[str, Set[str]], results: Set[str]) -> Map:
    """The map with the maps that only it reads inlined, while it stays cheap."""
    inside = {p.name}
    while True:
        own = [by_name[n] for n in reads(p) if n in by_name and n not in results and readers[n] <= inside]
        found = {e.name: e for e in own if isinstance(e, Map)}
        made = inline(p, found) if found else p
        if made is p or not isinstance(made, Map) or cost(made.value) >= WORTH_KEEPING:
            return p
        p, inside = made, inside | found.keys()


def _is_cheap_to_inline(p: Map, by_name: Mapping[str, Equation]) -> bool:
    """Whether a map is cheap and reads at most one computed tensor of its own size or larger."""
    size = count(shape(p))
    large_sources = [n for n in reads(p) if n in by_name and count(shape(by_name[n])) >= size]
    return cost(p.value) < WORTH_KEEPING and len(large_sources) <= 1
