"""Fuse matmuls around a softmax into its nest over rows, where that costs less (Loop IR to Loop IR).

Two kernels of which one reads what the other computes for the same rows can run row by row. That recomputes nothing,
and gains nothing by itself; but if the whole is an online reduction, the intermediate values need not reach memory.
"""

from __future__ import annotations

from compiler.analysis import kernel_names
from compiler.analysis.nests import bound, perfect, wrap
from compiler.analysis.size_hints import with_size_hints
from compiler.ir import isomorphism, loop
from compiler.ir.expr import Load, Var, sizes_in, substitute
from compiler.ir.statement import Accum, Kernel, Program, Stmt, Store, within
from compiler.passes.loop.costs import holds_for_all_sizes, scores_stay_on_chip
from compiler.passes.loop.query_rows import with_queries, with_row_values
from compiler.targets.target import Target

MOST_KERNELS = 5  # kernels in one nest: a matmul, a maximum, exponentials, their sum, a matmul

Body = tuple[Stmt, ...]
Nest = tuple[list[loop.For], Body]


def fuse_attention(program: Program, target: Target) -> Program:
    """Join kernels wherever the scores between them then need not reach memory, and that pays."""
    has_maximum: dict[Kernel, bool] = {}
    candidates = _near_softmax(program, has_maximum)
    for last in reversed(program.kernels):
        if last in candidates:
            found = _fuse_producers(program, last, target)
            if found is not None:
                producers, fused = found
                others = [k.name for k in program.kernels if k is not last and k not in producers]
                fused = fused.replace(name=kernel_names.free(fused.name, others))
                kernels = _insert_fused(program, fused, [*producers, last])
                if kernels is not None:
                    inner = {w for k in (*producers, last) for w in k.writes} - set(fused.writes)
                    temps = tuple(t for t in program.temps if t.name not in inner)
                    program = program.replace(kernels=kernels, temps=temps)
                candidates = _near_softmax(program, has_maximum)
    return program


def _near_softmax(program: Program, known: dict[Kernel, bool]) -> set[Kernel]:
    """The kernels that compute a maximum, or follow such a kernel within MOST_KERNELS - 1 steps.

    `known` caches which kernels compute one.
    """
    for k in program.kernels:
        if k not in known:
            known[k] = any(a.op == "max" for a in within(k.body, Accum))
    found = {k for k in program.kernels if known[k]}
    for _ in range(MOST_KERNELS - 1):
        written = {w for k in found for w in k.writes}
        found |= {k for k in program.kernels if any(p.name in written for p in k.params)}
    return found


def _insert_fused(program: Program, fused: Kernel, parts: list[Kernel]) -> tuple[Kernel, ...] | None:
    """The kernels with `fused` in place of the last of its parts; None if one in between must be before and after it.

    Kernels in between that read results of the parts move after `fused`.
    """
    results = {w for k in parts for w in k.writes}
    read: set[str] = set()
    before: list[Kernel] = []
    after: list[Kernel] = []
    for k in program.kernels:
        if k is parts[-1]:
            break
        if k in parts:
            read |= {p.name for p in k.params} - results
            continue
        if set(k.writes) & read:  # it overwrites in place an input that one of the parts has read
            return None
        reads_results = bool(results & {p.name for p in k.params})
        (after if reads_results else before).append(k)
        results |= set(k.writes) if reads_results else set()
    if {w for k in after for w in k.writes} & {p.name for p in fused.params}:
        return None
    return (*before, fused, *after, *program.kernels[program.kernels.index(parts[-1]) + 1 :])


def _fuse_producers(program: Program, last: Kernel, target: Target) -> tuple[list[Kernel], Kernel] | None:
    """The kernels to be joined with `last`, and the joined kernel; None if joining does not pay."""
    producers: list[Kernel] = []
    fused = last
    while len(producers) < MOST_KERNELS - 1:
        producer = _producer(program, fused, [*producers, last])
        both = join_kernels(producer, fused) if producer is not None else None
        if producer is None or both is None:
            return None
        producers.append(producer)
        fused = both
        own = private_temporaries(program, fused, [*producers, last])
        within_row = with_row_values(fused, own)
        for form in (within_row, with_queries(within_row)) if target.kind == "cuda" else (within_row,):
            if scores_stay_on_chip(with_size_hints(form), own, target):
                return (producers, form) if not sizes_in(form) or holds_for_all_sizes(form, target) else None
    return None


def _producer(program: Program, kernel: Kernel, parts: list[Kernel]) -> Kernel | None:
    """The last kernel that computes a temporary used only by `kernel`."""
    temps = private_temporaries(program, kernel, parts, 1)
    return next((k for k in reversed(program.kernels) if not temps.isdisjoint(k.writes) and k not in parts), None)


def private_temporaries(program: Program, kernel: Kernel, parts: list[Kernel], most_others: int = 0) -> set[str]:
    """The temporaries of `kernel`, joined from `parts`, that at most `most_others` other kernels use."""
    temps = [p for p in kernel.params if p in program.temps]
    return {t.name for t in temps if sum(k not in parts for k in program.users.get(t, ())) <= most_others}


def join_kernels(first: Kernel, second: Kernel, most: int | None = None) -> Kernel | None:
    """Join two kernels into one nest over their common rows: each iteration runs the first's body, then the second's.

    Rows are loops along the same axis of every buffer that the first passes to the second, so that an iteration reads
    only what the same iteration wrote. At most `most` of them are shared, outermost first. None if there are none, or
    if the second overwrites what the first only reads.
    """
    if set(second.writes) & {p.name for p in first.params} - set(first.writes):
        return None
    first = _rename(first, {p.name for p in second.params}, bound(second))
    rows, body = perfect(loop.For, first.body)
    others, rest = perfect(loop.For, _with_distinct_names(second, first).body)
    pairs = _row_pairs(first, second, (rows, body), (others, rest))
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


def shareable_rows(first: Kernel, second: Kernel) -> list[loop.For]:
    """The rows of the first kernel that the second could share."""
    rows, body = perfect(loop.For, first.body)
    pairs = _row_pairs(first, second, (rows, body), perfect(loop.For, _with_distinct_names(second, first).body))
    return [f for f in rows if f.var in pairs]


def _row_pairs(first: Kernel, second: Kernel, first_nest: Nest, second_nest: Nest) -> dict[str, str]:
    """The pairs of corresponding rows of two kernels, the same for every buffer that the first passes to the second."""
    pairs: dict[str, str] | None = None
    for name in sorted({p.name for p in second.params} & set(first.writes)):
        found = _matching_rows(name, first_nest, second_nest)
        pairs = found if pairs is None else {v: w for v, w in pairs.items() if found.get(v) == w}
    return pairs or {}


def _matching_rows(buffer: str, first: Nest, second: Nest) -> dict[str, str]:
    """The rows of two nests that index the same axis of a buffer in all accesses."""
    out: dict[str, str] = {}
    first_indices, second_indices = (_indices(buffer, body) for _, body in (first, second))
    extents = [{f.var: f.extent for f in rows} for rows, _ in (first, second)]
    for places in zip(*first_indices, *second_indices, strict=True):
        sides = set(places[: len(first_indices)]), set(places[len(first_indices) :])
        if all(len(s) == 1 for s in sides):
            v, w = (s.pop() for s in sides)
            loop_extents = [e.get(x.name) if isinstance(x, Var) else None for e, x in zip(extents, (v, w), strict=True)]
            if (
                isinstance(v, Var)
                and isinstance(w, Var)
                and loop_extents[0] is not None
                and loop_extents[0] is loop_extents[1]
            ):
                out[v.name] = w.name
    return out


def _indices(buffer: str, body: Body) -> list[tuple[object, ...]]:
    return [n.index for s in body for n in s.walk() if isinstance(n, Load | Store) and n.buffer == buffer]


def _with_distinct_names(kernel: Kernel, other: Kernel) -> Kernel:
    """The kernel, renamed so that it shares no name with the other."""
    return _rename(kernel, bound(other) | {p.name for p in other.params}, set())


def _rename(kernel: Kernel, names: set[str], others: set[str]) -> Kernel:
    """The kernel with new names for those in `names` that it binds; they avoid `others` too.

    Names like `i1` are left to the step that splits `i`.
    """
    own_names = bound(kernel)
    if not own_names & names:
        return kernel
    taken, table = names | others | own_names | {p.name for p in kernel.params}, {}
    for old in sorted(own_names & names):
        number = 1
        while (name := f"{old.removesuffix('_')}_{number}") in taken:
            number += 1
        table[old] = name
        taken.add(name)
    made: Kernel = isomorphism.renamed(kernel, table)
    return made
