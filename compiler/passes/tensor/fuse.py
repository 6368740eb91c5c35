"""Group equations so that each group becomes one kernel (Tensor IR to Tensor IR).

An equation joins the group that it reads from if one loop nest can hold both without recomputing anything that costs
more than the memory traffic saved:
- maps of one domain share its loops;
- reductions over rows share their loops over the rows, with the maps that read them (softmax, norms);
- a contraction takes the maps of its own domain as epilogue; as prologue only maps that make many bytes from few (the
  integers of a quantized weight), and only for few rows;
- scans take the maps that feed them, and cheap maps of their own domain that read them;
- scatters stay alone, and so does a reduction to too few rows to spread over cores, unless its rows are short;
- scalars computed from inputs alone share a kernel, even if unrelated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compiler.analysis import kernel_names
from compiler.ir.dtype import EIGHTHS, STORAGE_ONLY, f32, i8, u8
from compiler.ir.expr import Cast, Expr, Load, Var, loads, names
from compiler.ir.tensor import (
    Axis,
    Equation,
    Group,
    Map,
    Program,
    Reduce,
    Scan,
    Tensor,
    bound,
    equations,
    expressions,
    reads,
    shape,
)
from compiler.passes.tensor.compose import injective, is_view, readers_of
from compiler.passes.tensor.contractions import count, is_concatenation, is_contraction, is_long
from compiler.passes.tensor.costs import WORTH_KEEPING, cost
from compiler.passes.tensor.neighbours import Neighbours
from compiler.passes.tensor.shared_loops import Nest, nest

# Reductions to fewer rows leave nothing to run in parallel, so the maps after them are a separate kernel, unless the
# rows are so short that one block of a GPU finishes sooner than another kernel would start.
FEW_ROWS, SHORT_ROW = 4, 1 << 13
# On a GPU, rows of at least LONG_ROW elements are not fused into one kernel that sweeps over each several times, if
# there are at most half as many rows as multiprocessors: a single block reads some 50 GB/s of an H200's 4,800. Rows
# adjacent in memory are read COLUMNS at a time, as whole cache lines; then LONG_COLUMNS are the elements of all of them
# (batch norms of 512 x 32 x 7 x 7, backward: 23 us in one kernel of 16 blocks).
LONG_ROW, LONG_COLUMNS = 1 << 16, 3 << 14
COLUMNS = 32
# The text of a kernel grows with the square of its reductions, and the time to form it with the square of its
# equations: 25 consecutive softmaxes in one kernel took half a megabyte and minutes.
MOST_SWEEPS = 8
MOST_EQUATIONS = 100
# A contraction computes a factor in its prologue if the sources have at most this share of the factor's bytes, and at
# most this many rows of the result read it (about as many as one block computes, so that it is computed once).
MOST_SOURCE_SHARE = 0.75
MOST_ROWS = 64


def fuse(program: Program, cores: int = 1) -> Program:
    """Merge every equation with the groups that it reads from, latest first, where that is legal and pays.

    `cores` is the number of multiprocessors of a GPU, over which the rows of a kernel are spread; 1 for a CPU.
    """
    every = equations(program)
    whole = kernel_names.whole(source for g in program.groups for source in g.origin)
    sources = {e.name: _sources(e, g, whole) for g in program.groups for e in g.equations}
    place = {e.name: k for k, e in enumerate(every)}
    bytes_of = {t.name: count(t.shape) * t.dtype.bytes for t in program.inputs}
    bytes_of |= {e.name: count(a.extent for a in e.axes) * e.dtype.bytes for e in every}
    inputs = {t.name: t for t in program.inputs}
    results = {t.name for t in program.outputs}
    laid_out = {t.name: t for t in (*program.inputs, *program.outputs)}
    neighbours = Neighbours(laid_out, {e.name: e for e in every}, known_only=True)
    groups = _Groups({}, {}, readers_of(every), results, cores, inputs, bytes_of, neighbours)
    for k, e in enumerate(every):
        groups.members[k] = [e]
        groups.owner[e.name] = k
        while _merge_once(groups, k):
            pass
    made = [
        sorted(g, key=lambda e: place[e.name])
        for g in _topological_order(_merge_scalar_groups(groups.members.values()))
    ]
    fused = [_make_group(g, sources) for g in made]
    names = kernel_names.numbered(g.name for g in fused)
    return program.replace(groups=tuple(g.replace(name=name) for g, name in zip(fused, names, strict=True)))


@dataclass(frozen=True)
class _Groups:
    """The groups so far, by the number of their newest equation, which is also their order."""

    members: dict[int, list[Equation]]
    owner: dict[str, int]  # the group of each equation so far
    readers: dict[str, set[str]]  # by tensor, including later equations
    results: set[str]
    cores: int
    inputs: dict[str, Tensor]
    bytes_of: dict[str, float]  # inputs and equations
    neighbours: Neighbours  # as far as inputs and results tell


def _merge_once(groups: _Groups, newest: int) -> bool:
    """Merge the newest group with the latest group that it reads from, if legal. Returns whether it did."""
    found = {groups.owner[n] for e in groups.members[newest] for n in reads(e) if n in groups.owner}
    for k in sorted(found - {newest}, reverse=True):
        both = groups.members[k] + groups.members[newest]
        if not _would_make_cycle(groups, k, newest) and _is_legal(both, groups):
            groups.owner.update({e.name: newest for e in groups.members.pop(k)})
            groups.members[newest] = both
            return True
    return False


def _would_make_cycle(groups: _Groups, k: int, newest: int) -> bool:
    """Whether another group lies on a path from group k to the newest one, so that merging them would make a cycle."""
    reached: set[int] = set()
    front = [k]
    while front:
        group = front.pop()
        successors = {groups.owner.get(r) for e in groups.members[group] for r in groups.readers.get(e.name, ())}
        if group != k and newest in successors:
            return True
        later = [g for g in successors - reached if g is not None and g not in (k, newest)]
        reached.update(later)
        front += later
    return False


def _is_legal(members: list[Equation], groups: _Groups) -> bool:
    sweeps = [e for e in members if isinstance(e, Reduce | Scan)]
    if len(sweeps) > MOST_SWEEPS or len(members) > MOST_EQUATIONS:
        return False
    inside = {e.name for e in members}
    stored = {e.name for e in members if e.name in groups.results or groups.readers.get(e.name, set()) - inside}
    found = nest(members, stored)
    if found is None:
        return False
    contractions = [e for e in members if is_contraction(e)]
    if contractions:
        return len(contractions) == 1 and _fits_contraction(members, contractions[0], found, groups, stored)
    if any(isinstance(e, Scan) for e in sweeps):
        return (
            len(sweeps) == 1
            and _has_legal_epilogue(sweeps[0], members, found)
            and _avoids_recomputation(members, found, stored)
        )
    rows = {a.name for a in found.rows}
    has_epilogue = any(e.name in stored and {found.names[e.name, a.name] for a in e.axes} > rows for e in members)
    if (
        sweeps
        and has_epilogue
        and _has_few_rows(found.rows)
        and not (groups.cores > 1 and _has_short_rows(members, sweeps, found.rows))
    ):
        return False
    row_count = count(a.extent for a in found.rows)
    if len(sweeps) + has_epilogue > 1 and 2 * row_count <= COLUMNS * groups.cores:
        adjacent = _count_adjacent_rows(sweeps, members, groups)
        length = adjacent * _longest_in_row(members, sweeps, found.rows)
        if 2 * row_count <= adjacent * groups.cores and length >= (LONG_ROW if adjacent == 1 else LONG_COLUMNS):
            return False
    return _avoids_recomputation(members, found, stored)


def _has_legal_epilogue(scan: Equation, members: list[Equation], found: Nest) -> bool:
    """Whether the maps after a scan have its domain and are cheap: the loop of a scan is sequential."""
    own = {found.names[scan.name, a.name] for a in scan.axes}
    return all(
        {found.names[e.name, a.name] for a in e.axes} == own and cost(expressions(e)[0]) < WORTH_KEEPING
        for e in _dependents(members, scan)
    )


def _has_few_rows(rows: tuple[Axis, ...]) -> bool:
    return count(a.extent for a in rows) < FEW_ROWS


def _has_short_rows(members: Sequence[Equation], sweeps: Sequence[Equation], rows: tuple[Axis, ...]) -> bool:
    """Whether rows are short, both those reduced and those computed from them."""
    return _longest_in_row(members, sweeps, rows) <= SHORT_ROW


def _longest_in_row(members: Sequence[Equation], sweeps: Sequence[Equation], rows: tuple[Axis, ...]) -> float:
    """The number of elements of a row that are reduced or computed, whichever are more."""
    longest = max(count(a.extent for a in e.axes) for e in members) / max(1, count(a.extent for a in rows))
    return max(longest, _longest_row(sweeps))


def _longest_row(sweeps: Sequence[Equation]) -> float:
    """The number of elements of a row in the longest of these reductions."""
    return max(count(a.extent for a in e.over) if isinstance(e, Reduce) else 1 for e in sweeps)


def _count_adjacent_rows(sweeps: Sequence[Equation], members: Sequence[Equation], groups: _Groups) -> float:
    """The number of rows that a block reads together because they are adjacent in memory; 1 for contiguous rows.

    Inputs and results of the program decide, as temporaries computed from them or read beside them are laid out like
    them. Without any, temporaries are taken as row-major.
    """
    longest = [e for e in sweeps if _longest_row([e]) == _longest_row(sweeps)]
    row_major = Neighbours(groups.inputs, {e.name: e for e in members})
    contiguous = set().union(*map(groups.neighbours.axes, longest)) or set().union(*map(row_major.axes, longest))
    if any(a.name in contiguous for e in longest for a in getattr(e, "over", ())):
        return 1
    return min(COLUMNS, count(a.extent for a in longest[0].axes if a.name in contiguous))


def _is_load_of(x: Expr, e: Equation) -> bool:
    return isinstance(x, Load) and x.buffer == e.name


def _fits_contraction(
    members: list[Equation], contraction: Equation, found: Nest, groups: _Groups, stored: set[str]
) -> bool:
    """Whether the other members can be the prologue and epilogue of a contraction.

    All must be maps. Only views of one tensor and widened factors may feed the contraction. Maps after it have no loops
    but the rows: others would conflict with its tiles. No other map may be recomputed too often.
    """
    by_name = {e.name: e for e in members}
    rows, after = {a.name for a in found.rows}, _dependents(members, contraction)
    if any(is_long(a) and found.names[e.name, a.name] not in rows for e in after for a in e.axes):
        return False
    prologue = [by_name[n] for n in reads(contraction) if n in by_name and not _is_plain_view(by_name[n])]
    if not all(e is contraction or isinstance(e, Map) for e in members):
        return False
    if not all(_widens(e, contraction, by_name, groups) for e in prologue):
        return False
    before = _sources_within(contraction, by_name)
    return _avoids_recomputation(members, found, stored, [e for e in members if e.name not in before])


def _is_plain_view(e: Equation) -> bool:
    """Whether `e` is a view that is not a concatenation."""
    return isinstance(e, Map) and is_view(e) and not is_concatenation(e.value)


def _dependents(members: list[Equation], first: Equation) -> list[Equation]:
    """The members that depend on `first`."""
    after: set[str] = set()
    front = {first.name}
    while front:
        front = {e.name for e in members if front & set(reads(e))} - after
        after |= front
    return [e for e in members if e.name in after]


def _sources_within(e: Equation, by_name: dict[str, Equation]) -> set[str]:
    """The names of the equations of `by_name` that `e` is computed from."""
    found: set[str] = set()
    front = [e]
    while front:
        front = [by_name[n] for x in front for n in reads(x) if n in by_name and n not in found]
        found |= {x.name for x in front}
    return found


def _widens(e: Equation, contraction: Equation, by_name: dict[str, Equation], groups: _Groups) -> bool:
    """Whether a map read only by the contraction has more bytes than all of its sources, and few rows read it."""
    ancestors = {e.name} | _sources_within(e, by_name)
    outside = {n for name in ancestors for n in reads(by_name[name]) if n not in by_name}
    if any((groups.readers.get(n, set()) - ancestors) not in (set(), {contraction.name}) for n in ancestors):
        return False
    (value,) = expressions(contraction)
    seen = {v for n in loads(value) if n.buffer == e.name for i in n.index for v in names(i)}
    rows = count(a.extent for a in contraction.axes if a.name not in seen)
    short = any(isinstance(n, Cast) and n.dtype in STORAGE_ONLY and _is_load_of(n.arg, e) for n in value.walk())
    source_bytes = sum(groups.bytes_of[n] for n in outside)
    return rows <= MOST_ROWS and source_bytes <= MOST_SOURCE_SHARE * groups.bytes_of[e.name] / (
        2 if short and e.dtype is f32 else 1
    )


def _avoids_recomputation(
    members: list[Equation], found: Nest, stored: set[str], maps: Iterable[Equation] | None = None
) -> bool:
    """Whether no expensive map is read at an index that repeats its elements (as by a broadcast inside the rows).

    `maps` are those asked about, by default all members.
    """
    prices = _recomputation_costs(members)
    readings: dict[str, list[Reading]] = {}
    for r in members:
        for n in (n for x in expressions(r) for n in loads(x)):
            readings.setdefault(n.buffer, []).append((n, r))
    return not any(
        isinstance(e, Map)
        and _is_recomputed_too_often(e, prices[e.name], readings.get(e.name, []), members, found, stored)
        for e in (members if maps is None else maps)
    )


Reading = tuple[Load, Equation]  # a load and the equation that it is in


def _is_recomputed_too_often(
    e: Map, price: int, read: list[Reading], members: list[Equation], found: Nest, stored: set[str]
) -> bool:
    """Whether a map is recomputed more often than pays. `price` is an element's cost with the maps that it reads."""
    short = _narrows_to_bytes(e, price)
    if price < WORTH_KEEPING and not short:
        return False
    if len(read) + (e.name in stored) > 1 and any(_has_computed_index(n) for n, _ in read):
        return True
    if e.name in stored or (not short and cost(e.value) < WORTH_KEEPING):
        return False
    if not short and len(read) == 1 and injective(read[0][0].index, shape(e), bound(read[0][1])):
        return False
    own = _long_loops(e, found)
    if own <= {a.name for a in found.rows}:
        sweeps = any(isinstance(r, Reduce | Scan) for r in members)
        return not sweeps and _is_repeated_by_outer_loop(cost(e.value), own, found.rows)
    return any(_long_loops(r, found) - own for r in members if e.name in reads(r))


def _long_loops(e: Equation, found: Nest) -> set[str]:
    """The loops that an equation has in a nest, except those of one iteration."""
    axes = (*e.axes, *(e.over if isinstance(e, Reduce) else ()))
    return {found.names[e.name, a.name] for a in axes if is_long(a)}


def _recomputation_costs(members: Iterable[Equation]) -> dict[str, int]:
    """The cost of an element of each map, including the maps that it reads, which are recomputed with it."""
    own: dict[str, int] = {}
    recomputed: dict[str, set[str]] = {}
    for e in members:
        if isinstance(e, Map):
            own[e.name] = cost(e.value)
            recomputed[e.name] = {e.name}.union(*(recomputed.get(n, ()) for n in reads(e)))
    return {name: sum(own[n] for n in names) for name, names in recomputed.items()}


def _narrows_to_bytes(e: Map, price: int) -> bool:
    """Whether a map computes bytes from wider numbers by more than a move, so that loading beats recomputing them."""
    return e.dtype in (i8, u8, *EIGHTHS) and price > 1 and all(n.dtype.bytes > 1 for n in loads(e.value))


def _has_computed_index(load: Load) -> bool:
    """Whether the index is computed: another iteration needs the same elements."""
    return not all(isinstance(i, Var) for i in load.index)


def _is_repeated_by_outer_loop(price: int, own: set[str], rows: tuple[Axis, ...]) -> bool:
    """Whether a loop outside the last of `own` repeats a map over `own`, with too few iterations inside for it."""
    last = max((k for k, a in enumerate(rows) if a.name in own), default=-1)
    repeats = any(is_long(a) and a.name not in own for a in rows[:last])
    return repeats and price >= WORTH_KEEPING * count(a.extent for a in rows[last + 1 :])


def _merge_scalar_groups(groups: Iterable[list[Equation]]) -> list[list[Equation]]:
    """Merge the groups that only compute scalars from inputs, such as step counters."""
    every = list(groups)
    computed = {e.name for g in every for e in g}
    scalar_groups = [g for g in every if all(isinstance(e, Map) and not e.axes for e in g)]
    scalar_groups = [
        g for g in scalar_groups if not {n for e in g for n in reads(e)} & (computed - {e.name for e in g})
    ]
    scalars = [e for g in scalar_groups for e in g]
    shared = [scalars[n : n + MOST_EQUATIONS] for n in range(0, len(scalars), MOST_EQUATIONS)]
    return [*shared, *(g for g in every if g not in scalar_groups)]


def _topological_order(groups: list[list[Equation]]) -> list[list[Equation]]:
    """Order groups topologically: each after all that it reads."""
    owner = {e.name: k for k, g in enumerate(groups) for e in g}
    done: list[int] = []
    state: dict[int, bool] = {}

    def visit(k: int) -> None:
        if k in state:
            return
        state[k] = True
        for e in groups[k]:
            for name in reads(e):
                if name in owner and owner[name] != k:
                    visit(owner[name])
        done.append(k)

    for k in range(len(groups)):
        visit(k)
    return [groups[k] for k in done]


def _sources(e: Equation, group: Group, whole: dict[str, str]) -> list[tuple[str, str]]:
    """The ops that an equation comes from, each with the part of the op that it computes: the suffix of its name."""
    own = re.sub(r"_\d+$", "", e.name.removeprefix(f"{group.name}_")) if e.name.startswith(f"{group.name}_") else ""
    part = "" if len(group.origin) > 1 or own.isdigit() else own
    return [(whole.get(source, source), "" if "/" in source else part) for source in group.origin]


def _make_group(members: list[Equation], sources: dict[str, list[tuple[str, str]]]) -> Group:
    """Make one kernel, named after its origin, or without one after its last result."""
    origin = kernel_names.origin(source for e in members for source in sources[e.name])
    return Group(kernel_names.name(origin, members) if origin else members[-1].name, tuple(members), origin)
