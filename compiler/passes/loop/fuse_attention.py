"""Loop IR in, Loop IR out: matmuls around a softmax join its nest over rows, where that costs less.

Kernels of which one reads what the other has made of the same rows can run row by row. That computes nothing twice and
gains nothing by itself; where all of it then is an online reduction, what is in between need not reach memory.
"""

from __future__ import annotations

from compiler.analysis import kernel_names
from compiler.analysis.nests import bound, perfect, wrap
from compiler.analysis.size_hints import with_size_hints
from compiler.ir import alike, loop
from compiler.ir.expr import Load, Var, sizes_in, substitute
from compiler.ir.statement import Accum, Kernel, Program, Stmt, Store, within
from compiler.passes.loop.costs import known_for_all_sizes, scores_stay
from compiler.targets.target import Target

MOST = 4  # kernels in one nest: a matmul, what is between, a softmax, a matmul

Body = tuple[Stmt, ...]
Nest = tuple[list[loop.For], Body]


def fuse_attention(program: Program, target: Target) -> Program:
    """Kernels joined wherever scores that what they become has in the middle need not reach memory, and that pays."""
    largest: dict[Kernel, bool] = {}
    near = _near_softmax(program, largest)
    for last in reversed(program.kernels):
        if last in near:
            found = _joined(program, last, target)
            if found is not None:
                gone, made = found
                others = [k.name for k in program.kernels if k is not last and k not in gone]
                made = made.replace(name=kernel_names.free(made.name, others))
                kernels = _placed(program, made, [*gone, last])
                program = program.replace(kernels=kernels) if kernels is not None else program
                near = _near_softmax(program, largest)
    return program


def _near_softmax(program: Program, known: dict[Kernel, bool]) -> set[Kernel]:
    """The kernels that find the largest of some numbers, or are few enough behind one that does; `known` are those
    looked at."""
    for k in program.kernels:
        if k not in known:
            known[k] = any(a.op == "max" for a in within(k.body, Accum))
    found = {k for k in program.kernels if known[k]}
    for _ in range(MOST - 1):
        made = {w for k in found for w in k.writes}
        found |= {k for k in program.kernels if any(p.name in made for p in k.params)}
    return found


def _placed(program: Program, made: Kernel, own: list[Kernel]) -> tuple[Kernel, ...] | None:
    """The kernels with `made` for those that it was made of; None where one in between must come before and after it.

    It runs where the last of them did: what reads results of the others comes behind it.
    """
    results = {w for k in own for w in k.writes}
    read: set[str] = set()
    before: list[Kernel] = []
    behind: list[Kernel] = []
    for k in program.kernels:
        if k is own[-1]:
            break
        if k in own:
            read |= {p.name for p in k.params} - results
            continue
        if set(k.writes) & read:  # an input that is written in place once one of them has read it
            return None
        late = bool(results & {p.name for p in k.params})
        (behind if late else before).append(k)
        results |= set(k.writes) if late else set()
    if {w for k in behind for w in k.writes} & {p.name for p in made.params}:
        return None
    return (*before, made, *behind, *program.kernels[program.kernels.index(own[-1]) + 1 :])


def _joined(program: Program, last: Kernel, target: Target) -> tuple[list[Kernel], Kernel] | None:
    """The kernels before `last` to be joined with it, and what they become."""
    gone: list[Kernel] = []
    made = last
    while len(gone) < MOST - 1:
        producer = _producer(program, made, [*gone, last])
        both = joined(producer, made) if producer is not None else None
        if producer is None or both is None:
            return None
        gone.append(producer)
        made = both
        if scores_stay(with_size_hints(made), private(program, made, [*gone, last]), target):
            return (gone, made) if not sizes_in(made) or known_for_all_sizes(made) else None
    return None


def _producer(program: Program, kernel: Kernel, own: list[Kernel]) -> Kernel | None:
    """The last kernel that makes a temporary for this one alone."""
    temps = private(program, kernel, own, 1)
    return next((k for k in reversed(program.kernels) if not temps.isdisjoint(k.writes) and k not in own), None)


def private(program: Program, kernel: Kernel, own: list[Kernel], others: int = 0) -> set[str]:
    """Temporaries of `kernel`, made of `own`, that at most so many other kernels use."""
    temps = [p for p in kernel.params if p in program.temps]
    return {t.name for t in temps if sum(k not in own for k in program.users.get(t, ())) <= others}


def joined(first: Kernel, second: Kernel, most: int | None = None) -> Kernel | None:
    """One nest over the rows that both kernels go through, of which each does the one, then the other; None for none,
    or where the second overwrites what the first only reads.

    Rows are loops that go along the same axis of all that the first kernel hands to the second: what an iteration
    reads, the same iteration has made. No more than `most` of them are shared, the outermost ones.
    """
    if set(second.writes) & {p.name for p in first.params} - set(first.writes):
        return None
    first = _renamed(first, {p.name for p in second.params}, bound(second))
    rows, body = perfect(loop.For, first.body)
    others, rest = perfect(loop.For, _beside(second, first).body)
    pairs = _pairs(first, second, (rows, body), (others, rest))
    shared = [f for f in rows if f.var in pairs][:most]
    if not shared:
        return None
    pairs = {f.var: pairs[f.var] for f in shared}
    table = {Var(pairs[f.var]): Var(f.var) for f in shared}
    inside = [f for f in others if f.var not in pairs.values()]
    both = (*wrap([f for f in rows if f not in shared], body), *substitute(wrap(inside, rest), table))
    writes = (*first.writes, *second.writes)
    params = dict.fromkeys((*first.params, *second.params))
    ordered = [p for p in params if p.name not in writes] + [p for p in params if p.name in writes]
    origin = kernel_names.joined(first.origin, second.origin)
    name = kernel_names.renamed(second.name, second.origin, origin)
    return Kernel(name, tuple(ordered), writes, wrap(shared, both), origin)


def rows_between(first: Kernel, second: Kernel) -> list[loop.For]:
    """The rows of the first kernel that the second one could share."""
    rows, body = perfect(loop.For, first.body)
    pairs = _pairs(first, second, (rows, body), perfect(loop.For, _beside(second, first).body))
    return [f for f in rows if f.var in pairs]


def _pairs(first: Kernel, second: Kernel, one: Nest, other: Nest) -> dict[str, str]:
    """The rows of two kernels that are the same for all that the first hands to the second."""
    pairs: dict[str, str] | None = None
    for name in sorted({p.name for p in second.params} & set(first.writes)):
        found = _matching_rows(name, one, other)
        pairs = found if pairs is None else {v: w for v, w in pairs.items() if found.get(v) == w}
    return pairs or {}


def _matching_rows(buffer: str, first: Nest, second: Nest) -> dict[str, str]:
    """The rows of two nests that go along the same axis of a buffer, wherever either touches it."""
    out: dict[str, str] = {}
    before, after = (_indices(buffer, body) for _, body in (first, second))
    extents = [{f.var: f.extent for f in rows} for rows, _ in (first, second)]
    for places in zip(*before, *after, strict=True):
        sides = set(places[: len(before)]), set(places[len(before) :])
        if all(len(s) == 1 for s in sides):
            v, w = (s.pop() for s in sides)
            of = [e.get(x.name) if isinstance(x, Var) else None for e, x in zip(extents, (v, w), strict=True)]
            if isinstance(v, Var) and isinstance(w, Var) and of[0] is not None and of[0] is of[1]:
                out[v.name] = w.name
    return out


def _indices(buffer: str, body: Body) -> list[tuple[object, ...]]:
    return [n.index for s in body for n in s.walk() if isinstance(n, Load | Store) and n.buffer == buffer]


def _beside(kernel: Kernel, other: Kernel) -> Kernel:
    """The kernel with no name in it that the other one has."""
    return _renamed(kernel, bound(other) | {p.name for p in other.params}, set())


def _renamed(kernel: Kernel, names: set[str], others: set[str]) -> Kernel:
    """The kernel that binds none of these names, and no others anew; `i1` is left to the step that splits `i`."""
    mine = bound(kernel)
    if not mine & names:
        return kernel
    taken, table = names | others | mine | {p.name for p in kernel.params}, {}
    for old in sorted(mine & names):
        number = 1
        while (name := f"{old.removesuffix('_')}_{number}") in taken:
            number += 1
        table[old] = name
        taken.add(name)
    made: Kernel = alike.renamed(kernel, table)
    return made
