"""Compose views and simplify: no equation is a view of another, none is dead, no axis has extent 1.

A view is a map that computes nothing and only says where its elements come from. Its readers take over its index. A
view that is the only reader of a reduction becomes a reduction over its own axes. A reshape that is an output is left
to the caller. On GPUs, a contraction that would read each element of a concatenation often reads the stored one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeGuard

from compiler.ir import dtype as dt
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, dim, is_short, loads, requiring, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.node import Node
from compiler.ir.rewrite import nodes
from compiler.ir.tensor import (
    Axis,
    Equation,
    Map,
    Order,
    Program,
    Reduce,
    Scan,
    Scatter,
    Tensor,
    axis_ranges,
    bound,
    equations,
    expressions,
    numel,
    reads,
    row_major,
    shape,
    with_expressions,
)
from compiler.ir.value_ranges import value_range
from compiler.passes.tensor.closed_forms import closed_form, element, sum_of_one_hot
from compiler.passes.tensor.contractions import is_concatenation, multiplies_concatenation
from compiler.passes.tensor.windows import narrow_windows

_MOST_NESTED = 3  # loads of a view, each in the index of another


def compose(program: Program, joins: bool = False) -> Program:
    """Fold views into their readers and remove dead equations.

    With `joins`, concatenated tensors are stored if a contraction would read each of their elements often.
    """
    program = narrow_windows(remove_dead(_forward_views(_squeeze(program), joins)))
    program = _reindex_reductions(program)
    program = _alias_outputs(program)
    return remove_dead(program)


def _squeeze(program: Program) -> Program:
    """Remove axes of extent 1, from outputs too: the memory is the same."""
    kept: dict[str, list[int]] = {}
    squeezed: dict[str, Equation] = {}
    for e in equations(program):
        kept[e.name] = [n for n, a in enumerate(e.axes) if not _is_unit_axis(a)]
        squeezed[e.name] = _without_unit_axes(e, kept)
    outputs = [_select_axes(t, kept[t.name]) if t.name in kept else t for t in program.outputs]
    return _replace_equations(program, squeezed).replace(outputs=tuple(outputs))


def _without_unit_axes(e: Equation, kept: dict[str, list[int]]) -> Equation:
    """The equation without axes of extent 1; `kept` has the remaining axes of each tensor."""
    zero: dict[Node, Expr] = {a.var: dim(0) for a in (*e.axes, *bound(e)) if _is_unit_axis(a)}
    read = (n for x in expressions(e) for n in loads(x))
    if not zero and all(len(kept.get(n.buffer, n.index)) == len(n.index) for n in read):
        return e

    def without(node: Node) -> Node | None:
        if isinstance(node, Load) and node.buffer in kept:
            staying = kept[node.buffer]
            dropped = [i for n, i in enumerate(node.index) if n not in staying]
            return requiring(node.replace(index=tuple(node.index[n] for n in staying)), dropped)
        return zero.get(node)

    new = with_expressions(e, lambda x: nodes(x, without)).replace(
        axes=tuple(a for a in e.axes if not _is_unit_axis(a))
    )
    if isinstance(new, Scan) and not any(a.name == new.along for a in new.axes):
        new = Map(new.name, new.axes, new.value, new.narrow)
    if isinstance(new, Scatter):
        dropped = [i for n, i in enumerate(new.index) if n not in kept[e.name]]
        new = new.replace(index=tuple(new.index[n] for n in kept[e.name]), value=requiring(new.value, dropped))
    if isinstance(new, Reduce | Scatter | Order):
        new = new.replace(over=tuple(a for a in new.over if not _is_unit_axis(a)))
    return new


def _is_unit_axis(a: Axis) -> bool:
    return isinstance(a.extent, Const) and a.extent.value == 1


def _select_axes(t: Tensor, kept: list[int]) -> Tensor:
    return t.replace(shape=tuple(t.shape[n] for n in kept), strides=tuple(t.strides[n] for n in kept))


def is_view(e: Equation) -> bool:
    """Whether a map only moves values, widens 16-bit floats or computes from indices: free to repeat in readers."""
    return isinstance(e, Map) and _only_moves_values(e.value)


def has_constant_stride(value: Expr, var: Var) -> bool:
    """Whether `value` loads elements at a constant stride in memory as `var` grows."""
    if not isinstance(value, Load):
        return False
    return all(var not in set(atom.walk()) or atom is var for i in value.index for atom in linear(i)[0])


def _only_moves_values(value: Expr) -> bool:
    match value:
        case Const() | Load() | Var():
            return True
        case Cast(arg, dtype):
            return (
                dtype not in dt.STORAGE_ONLY
                and (arg.dtype in dt.STORAGE_ONLY or not _loads_data(arg))
                and _only_moves_values(arg)
            )
        case Select(cond, then, other) | Op("where", (cond, then, other)):
            return not _loads_data(cond) and _only_moves_values(then) and _only_moves_values(other)
        case Op(_, args):
            return not any(map(_loads_data, args)) and not value.dtype.is_float
    return False


def _loads_data(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in e.walk())


def _replace_equations(program: Program, replaced: dict[str, Equation]) -> Program:
    groups = []
    for g in program.groups:
        kept = tuple(replaced[e.name] for e in g.equations if e.name in replaced)
        groups.append(g if kept == g.equations else g.replace(equations=kept))
    return program.replace(groups=tuple(g for g in groups if g.equations))


def _forward_views(program: Program, joins: bool) -> Program:
    """Make readers of a view read what it views. The views themselves stay until they are dead."""
    views: dict[str, Map] = {}
    lengths: dict[Node, int] = {}
    out: dict[str, Equation] = {}
    for e in equations(program):
        new = inline(e, views)
        if joins and multiplies_concatenation(new):
            new = inline(e, {name: v for name, v in views.items() if not is_concatenation(v.value)})
        new = sum_of_one_hot(closed_form(new), out)
        if isinstance(new, Order) and not has_constant_stride(new.value, new.over[0].var):
            new = e
        out[e.name] = new
        if (
            isinstance(new, Map)
            and is_view(new)
            and _load_nesting(new.value) <= _MOST_NESTED
            and is_short(expressions(new), lengths)
        ):
            views[e.name] = new
    return _replace_equations(program, out)


def _load_nesting(e: Expr) -> int:
    """The depth of loads within indices of loads. The text of an index grows exponentially with it."""
    return max((1 + max(map(_load_nesting, n.index), default=0) for n in e.walk() if isinstance(n, Load)), default=0)


def inline(e: Equation, producers: dict[str, Map]) -> Equation:
    """Replace every load of a producer in `e` by the producer's value at that index, and simplify."""
    ranges = axis_ranges((*e.axes, *bound(e)))

    def expand(x: Expr) -> Expr:
        table: dict[Expr, Expr] = {}
        for load in [n for n in x.walk() if isinstance(n, Load) and n.buffer in producers]:
            table[load] = element(producers[load.buffer], tuple(map(expand, load.index)))
        return substitute(x, table) if table else x

    return with_expressions(e, lambda x: simplify(expand(x), ranges))


def _uses(program: Program) -> Counter[str]:
    count = Counter(name for e in equations(program) for name in reads(e))
    count.update(t.name for t in program.outputs)
    return count


def _reindex_reductions(program: Program) -> Program:
    """Move reductions, and the maps between, to the axes of their only reader if it reads each element at most once."""
    uses = _uses(program)
    by_name: dict[str, Equation] = {}

    def reindex(e: Map) -> None:
        for load in _loads_at_one_index(e.value):
            source = by_name.get(load.buffer)
            if uses[load.buffer] != 1 or load.index == _axis_vars(e) or not _follows_reduction(source, by_name, uses):
                continue
            if not injective(load.index, shape(source), e.axes):
                continue
            if e.value is load and isinstance(source, Reduce):
                by_name[e.name] = _reindexed(source, e.name, e.axes, load.index)
                del by_name[source.name]
            elif numel(shape(source)) is numel(shape(e)) and _is_in_bounds(load.index, shape(source), e.axes):
                by_name[source.name] = moved = _reindexed(source, source.name, e.axes, load.index)
                by_name[e.name] = e = e.replace(value=substitute(e.value, {load: load.replace(index=_axis_vars(e))}))
                if isinstance(moved, Map):
                    reindex(moved)

    for e in equations(program):
        by_name[e.name] = e
        if isinstance(e, Map):
            reindex(e)
    return _replace_equations(program, by_name)


def _follows_reduction(
    source: Equation | None, by_name: dict[str, Equation], uses: Counter[str]
) -> TypeGuard[Map | Reduce]:
    """Whether `source` is a reduction, or a map elementwise on one that only it reads, possibly via such maps."""
    if not isinstance(source, Map):
        return isinstance(source, Reduce)
    sources = [x for x in _loads_at_one_index(source.value) if x.index == _axis_vars(source) and uses[x.buffer] == 1]
    return any(
        numel(shape(by_name[x.buffer])) is numel(shape(source)) and _follows_reduction(by_name[x.buffer], by_name, uses)
        for x in sources
        if x.buffer in by_name
    )


def _axis_vars(e: Equation) -> tuple[Expr, ...]:
    return tuple(a.var for a in e.axes)


def _loads_at_one_index(value: Expr) -> list[Load]:
    """The loads of buffers that `value` reads at one index only."""
    found: dict[str, dict[Load, None]] = {}
    for n in value.walk():
        if isinstance(n, Load):
            found.setdefault(n.buffer, {})[n] = None
    return [next(iter(ls)) for ls in found.values() if len(ls) == 1]


def _reindexed(source: Map | Reduce, name: str, axes: tuple[Axis, ...], index: tuple[Expr, ...]) -> Map | Reduce:
    """The values of `source` at `index`, as an equation over `axes`."""
    taken = {a.name for a in axes} | {a.name for a in source.axes}
    over: list[Axis] = []
    for a in source.over if isinstance(source, Reduce) else ():
        fresh = a.name
        while fresh in taken:
            fresh += "_"
        taken.add(fresh)
        over.append(Axis(fresh, a.extent))
    table: dict[Expr, Expr] = {a.var: i for a, i in zip(source.axes, index, strict=True)}
    table |= {a.var: b.var for a, b in zip(bound(source)[len(source.axes) :], over, strict=True)}
    value = simplify(substitute(source.value, table), axis_ranges((*axes, *over)))
    return Map(name, axes, value) if isinstance(source, Map) else Reduce(name, axes, source.op, tuple(over), value)


def flat_index(index: tuple[Expr, ...], extents: tuple[Expr, ...], axes: tuple[Axis, ...]) -> Expr:
    """The position of `index` in a contiguous tensor of these extents, simplified over `axes`."""
    out: Expr = dim(0)
    for i, s in zip(index, row_major(extents), strict=True):
        out = out + i * s
    return simplify(out, axis_ranges(axes), index=True)


def injective(index: tuple[Expr, ...], extents: tuple[Expr, ...], axes: tuple[Axis, ...]) -> bool:
    """Whether no two points of `axes` read the same element: the position is a mixed-radix number of the axes."""
    if not all(isinstance(n, Const) for n in (*extents, *(a.extent for a in axes))):
        return all(isinstance(i, Var) for i in index) and len(set(index)) == len(index) == len(axes)
    terms, _ = linear(flat_index(index, extents, axes))
    size = {a.var: int(a.extent.value) for a in axes if isinstance(a.extent, Const) and a.extent.value != 1}
    if set(terms) != set(size):
        return False
    reach = 0
    for coefficient, var in sorted((abs(c), v.name) for v, c in terms.items() if isinstance(v, Var)):
        if coefficient <= reach:
            return False
        reach += coefficient * (next(n for v, n in size.items() if v.name == var) - 1)
    return True


def _is_in_bounds(index: tuple[Expr, ...], extents: tuple[Expr, ...], axes: tuple[Axis, ...]) -> bool:
    """Whether every point of `axes` reads an existing element, even where a guard of the reader selects another."""
    extent_of: dict[Expr, Expr] = {a.var: a.extent for a in axes}
    ranges = axis_ranges(axes)

    def in_bounds(i: Expr, n: Expr) -> bool:
        low, high = value_range(i, ranges)
        if extent_of.get(i) is n:
            return True
        return isinstance(n, Const) and low is not None and high is not None and low >= 0 and high < int(n.value)

    return all(map(in_bounds, index, extents))


def _alias_outputs(program: Program) -> Program:
    """Replace an output that is a contiguous reshape of an equation by that equation; the caller restores the shape."""
    by_name = {e.name: e for e in equations(program)}
    taken = {t.name for t in program.outputs}
    outputs = []
    for t in program.outputs:
        new = t
        match by_name.get(t.name):
            case Map(axes=axes, value=Load(buffer, index)) if (
                buffer in by_name and buffer not in taken and t.strides == row_major(t.shape)
            ):
                source = by_name[buffer]
                same = flat_index(index, shape(source), axes) is flat_index(
                    tuple(a.var for a in axes), shape(by_name[t.name]), axes
                )
                if same and numel(shape(source)) is numel(t.shape):
                    new = t.replace(name=buffer, shape=shape(source), strides=row_major(shape(source)))
                    taken.add(buffer)
        outputs.append(new)
    return program.replace(outputs=tuple(outputs))


def readers_of(made: Iterable[Equation]) -> dict[str, set[str]]:
    """The names of the equations that read each tensor."""
    readers: dict[str, set[str]] = {}
    for e in made:
        for name in reads(e):
            readers.setdefault(name, set()).add(e.name)
    return readers


def remove_dead(program: Program) -> Program:
    """Keep only the equations that an output needs."""
    live = {t.name for t in program.outputs}
    for e in reversed(equations(program)):
        if e.name in live:
            live |= set(reads(e))
    return _replace_equations(program, {e.name: e for e in equations(program) if e.name in live})
