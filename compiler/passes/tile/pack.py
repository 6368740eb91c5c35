"""The schedule step `pack`: copy a factor of a contraction into a local tile before the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from compiler.analysis.access import address, stride
from compiler.analysis.guarded_factors import block, unwidened
from compiler.analysis.nests import perfect, wrap
from compiler.analysis.vectors import fitting_width, vector_problem
from compiler.ir import rewrite, tile
from compiler.ir.expr import Const, Expr, Load, Op, Select, Size, Var, cast, dim, names, op, substitute, variables
from compiler.ir.index import simplify
from compiler.ir.linear import from_linear, linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Kernel, Store
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import value_range
from compiler.passes.tile.nests import (
    Body,
    Loops,
    copy_nest,
    factors_from,
    loop_variables,
    match_slice,
    max_length,
    padded_strides,
    ranges_of,
)
from compiler.passes.tile.peel import is_peelable, peel
from compiler.schedule.steps import Pack, Peel, ScheduleError, Step


def pack(kernel: Kernel, step: Pack) -> Kernel:
    """`pack("a", "a_tile", ("i", "l"), into=("i_a_tile", "l_a_tile"))`

    before:
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += f32(a[i, l]) * b[j, l]
    after:
        a_tile = local(f32[4, 8])
        for i_a_tile in serial(4):
            for l_a_tile in serial(8):
                a_tile[i_a_tile, l_a_tile] = f32(a[i_a_tile, l_a_tile])
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a_tile[i, l] * b[j, l]
    """
    if step.pad < 0:
        raise ScheduleError(step, "rows cannot lie closer together than they are long")
    for around, total, factor, other in factors_from(kernel, step.buffer, step.loops):
        loop_of = {f.var: f for f in around}
        dependencies = names(factor).union(*(names(loop_of[v].extent) for v in step.loops))
        outer_names = {f.var for f in around} & dependencies - set(step.loops)
        depth = max((d + 1 for d, f in enumerate(around) if f.var in outer_names), default=0)
        if any(f.var in step.loops for f in around[:depth]):
            continue
        loops = tuple(loop_of[v] for v in step.loops)
        _check_extents(step, loops, around[:depth])
        tensors = tile.tensors(kernel)
        packed = unwidened(factor) if step.narrow else factor
        if step.narrow and packed is factor:
            raise ScheduleError(step, f"what is loaded of {step.buffer} is not widened")
        tile_tensor, index, fill = _fill_tile(step, packed, loops, ranges_of(around), tensors)
        product = total.replace(value=cast(Load(tile_tensor.name, index, packed.dtype), factor.dtype) * other)
        target = around[depth]
        new = rewrite.replaced((target,), total, product)
        return kernel.replace(
            body=rewrite.replaced(kernel.body, target, (tile.Alloc(tile_tensor, "local"), *fill, *new))
        )
    raise ScheduleError(
        step, f"no contraction within {', '.join(step.loops)} has a factor from {step.buffer} over these"
    )


def _fill_tile(
    step: Pack, factor: Expr, loops: Loops, ranges: dict[str, Range], tensors: Mapping[str, Tensor]
) -> tuple[Tensor, tuple[Expr, ...], Body]:
    """The tile, its index for an element of the factor, and the statements that fill it: block copies, or loops."""
    long = {f.var: max_length(step, f, ranges) for f in loops}
    shape = tuple(dim(long[f.var]) for f in loops)
    tile_tensor = Tensor(step.tile, factor.dtype, shape, padded_strides(shape, step.pad))
    called = loop_variables(step, step.into, len(loops))
    load = block(simplify(factor, ranges), {name: t.shape for name, t in tensors.items()})
    if load is not None and not _starts_inside(load, tensors[load.buffer], {f.var for f in loops}, ranges):
        load = None
    copied = _fill_by_copies(load, tile_tensor, loops, long, called) if load is not None else None
    if copied is not None:
        return copied
    index = tuple(Var(f.var) for f in loops)
    fill = copy_nest(loops, called, (Store(tile_tensor.name, index, factor),))
    renamed = {v.name: ranges[f.var] for f, v in zip(loops, called, strict=True)}
    return tile_tensor, index, _vectorize_fill(fill, step, ranges | renamed, {**tensors, tile_tensor.name: tile_tensor})


def _starts_inside(load: Load, tensor: Tensor, loop_names: set[str], ranges: dict[str, Range]) -> bool:
    """Whether a block starts inside its buffer, without zeros before it. It may run past the end of an axis."""
    for e, size in zip(load.index, tensor.shape, strict=True):
        low = value_range(e, ranges)[0]
        left = value_range(simplify(size - e, ranges), ranges)[0]
        if low is None or low < 0 or (not names(e) & loop_names and (left is None or left < 1)):
            return False
    return True


def _fill_by_copies(
    factor: Load, tile_tensor: Tensor, loops: Loops, long: dict[str, int], called: Sequence[Var]
) -> tuple[Tensor, tuple[Expr, ...], Body] | None:
    """Copies of blocks that fill the tile, in the order of the buffer's axes; None if the factor is not made of blocks.

    Of three loops, the outermost counts panels: adjacent blocks of the buffer, each copied by itself.
    """
    panels = loops[:-2] if len(loops) == 3 else ()
    inside = {f.var: long[f.var] for f in loops[len(panels) :]}
    axes = match_slice(factor.index, inside)
    if axes is None or set(axes[0]) != set(inside):
        return None
    order, source = axes
    outer = tuple(f.var for f in panels)
    every = (*outer, *order)
    steps = dict(zip(long, tile_tensor.strides, strict=True))
    tile_tensor = tile_tensor.replace(shape=tuple(dim(long[v]) for v in every), strides=tuple(steps[v] for v in every))
    starts = (*map(Var, outer), *(dim(0) for _ in order))
    whole = tile.Slice(tile_tensor.name, starts, (*(0 for _ in outer), *(inside[v] for v in order)))
    copy = tile.Copy(whole, source.replace(buffer=factor.buffer), "plain")
    return tile_tensor, tuple(map(Var, every)), copy_nest(panels, called[: len(panels)], (copy,))


def _vectorize_fill(body: Body, step: Pack, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> Body:
    """A nest of loops around one store, with a loop for each digit of a variable, and vectors innermost."""
    (f,) = body
    assert isinstance(f, tile.For)
    if step.masked:
        return _vectorize_masked(f, step, ranges, tensors)
    f = _split_by_digits(f, ranges, tensors)
    nest, _ = perfect(tile.For, (f,))
    inner = nest[-1]
    for g in nest[1:]:
        ranges = ranges | {g.var: (0, last_value(g.extent, ranges))}
    out: Body = (inner,)
    if is_peelable(inner):
        out = peel(Peel(inner.var, (f"{inner.var}_low", f"{inner.var}_high")), inner, ranges)
    out = tuple(
        _bind_vector(g, step, ranges, tensors) if isinstance(g, tile.For) and g.var == inner.var else g for g in out
    )
    return wrap(nest[:-1], out)


def _vectorize_masked(f: tile.For, step: Pack, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> Body:
    """The innermost loop in vectors, with guards as lane masks, and the other loops inside it.

    Loops that affect no guard go innermost. Digits that make addresses uneven along the vector loop get their own
    loops.
    """
    (*outer, inner), body = perfect(tile.For, (f,))
    (*around, inner), body = perfect(tile.For, (_with_even_addresses(inner, ranges, tensors),))
    outer += around
    if outer:
        known = ranges | {g.var: (0, last_value(g.extent, ranges)) for g in (*around, inner)}
        (outer_nest,) = wrap(outer, body)
        assert isinstance(outer_nest, tile.For)
        nest, body = perfect(tile.For, (_split_by_digits(outer_nest, known, tensors),))
        guard_names = {n for s in body for x in s.walk() if isinstance(x, Select) for n in names(x.cond)}
        body = wrap(sorted(nest, key=lambda g: g.var not in guard_names), body)
    option = (("again", 1),) if step.again else ()
    args = (("width", fitting_width(step.width, inner.extent)), ("unroll", 1), ("masked", 1), *option)
    return (inner.replace(bind=tile.Bind("vector", args), body=body),)


def _with_even_addresses(f: tile.For, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> tile.For:
    """The loop, split by as few digits as make its innermost loop traverse adjacent elements."""
    plain = f.replace(body=rewrite.nodes(f.body, lambda n: n.then if isinstance(n, Select) else None))
    digits = _divisors(plain, ranges, tensors)
    for first_digits in (digits[: n + 1] for n in range(len(digits))):
        *around, inner = perfect(tile.For, (_split_by(plain, first_digits, ranges),))[0]
        known = ranges | {g.var: (0, last_value(g.extent, ranges)) for g in (*around, inner)}
        loads = [n for n in inner.walk() if isinstance(n, Load)]
        if all(stride(address(n.index, tensors[n.buffer], known), Var(inner.var)) in (0, 1) for n in loads):
            return _split_by(f, first_digits, ranges)
    return f


def _bind_vector(f: tile.For, step: Pack, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> tile.For:
    """The loop in the widest vectors that are legal; serial if none are."""
    args = (("width", fitting_width(step.width, f.extent)), ("unroll", 1))
    bound = f.replace(bind=tile.Bind("vector", args))
    if vector_problem(bound, f.extent, tensors, ranges, {}):
        return f
    return f.replace(bind=tile.Bind("vector", (*args, ("again", 1)))) if step.again else bound


def _split_by_digits(f: tile.For, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> tile.For:
    """Split loops by digits where `//` and `%` of their variables make an address or a guard uneven."""
    (inner,) = f.body
    if isinstance(inner, tile.For):
        inner = _split_by_digits(inner, ranges, tensors)
        f = f.replace(body=(inner,))
    digits = _divisors(f, ranges, tensors)
    if not digits:
        return f
    fewer = [digits[:n] for n in range(1, len(digits))] if not isinstance(inner, tile.For) else []
    split = (_split_by(f, first_digits, ranges) for first_digits in fewer)
    return next((g for g in split if _has_even_addresses(g, ranges, tensors)), None) or _split_by(f, digits, ranges)


def _split_by(f: tile.For, digits: Sequence[int], ranges: dict[str, Range]) -> tile.For:
    """The loop split into one for each digit."""
    parts = [Var(f"{f.var}{n}") for n in range(len(digits) + 1)]
    extents = [divide_exactly(f.extent, digits[0]), *(dim(a // b) for a, b in pairwise(digits)), dim(digits[-1])]
    value: Expr = parts[-1]
    for part, digit in zip(parts, digits, strict=False):
        value = value + part * digit
    known = ranges | {p.name: (0, last_value(e, ranges)) for p, e in zip(parts, extents, strict=True) if e is not None}
    body = simplify(substitute(f.body, {Var(f.var): value}), known)
    for part, extent in reversed(list(zip(parts, extents, strict=True))):
        assert extent is not None
        body = (f.replace(var=part.name, extent=extent, body=body),)
    (outer,) = body
    assert isinstance(outer, tile.For)
    return outer


def _has_even_addresses(f: tile.For, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> bool:
    """Whether every address has a constant stride along the innermost loop, and guards there are bounds of it."""
    while isinstance(f.body[0], tile.For):
        ranges = ranges | {f.var: (0, last_value(f.extent, ranges))}
        f = f.body[0]
    ranges = ranges | {f.var: (0, last_value(f.extent, ranges))}
    loads = [n for n in f.walk() if isinstance(n, Load)]
    known = all(n.buffer in tensors for n in loads)
    conds = any(isinstance(n, Select) and f.var in names(n.cond) for n in f.walk())
    even = known and all(stride(address(n.index, tensors[n.buffer], ranges), Var(f.var)) is not None for n in loads)
    return even and (is_peelable(f) or not conds)


def _divisors(f: tile.For, ranges: dict[str, Range], tensors: Mapping[str, Tensor]) -> list[int]:
    """The divisors of a loop's variable, largest first, if each divides the one before and all divide the extent."""
    var = Var(f.var)
    nodes = list(f.walk())
    found = {
        int(d.value)
        for n in nodes
        if isinstance(n, Op) and n.name in ("floordiv", "mod")
        for a, d in [n.args]
        if isinstance(d, Const) and linear(a)[0].get(var) == 1
    }
    loads = [n for n in nodes if isinstance(n, Load)]
    places = [address(n.index, tensors[n.buffer], ranges) for n in loads if n.buffer in tensors]
    even = len(places) == len(loads) and all(stride(p, var) is not None for p in places)
    if even and not any(isinstance(n, Select) and f.var in names(n.cond) for n in nodes):
        return []
    digits = sorted(found, reverse=True)
    chain = all(a % b == 0 for a, b in pairwise(digits))
    return digits if digits and chain and divide_exactly(f.extent, digits[0]) is not None else []


def divide_exactly(extent: Expr, by: int) -> Expr | None:
    """`extent // by` if it divides evenly for all values of its variables, else None."""
    match extent:
        case Op("min", (a, b)):
            left, right = divide_exactly(a, by), divide_exactly(b, by)
            return None if left is None or right is None else op("min", left, right)
    terms, rest = linear(extent)
    if rest % by or any(c % by for c in terms.values()):
        return None
    return from_linear(({a: c // by for a, c in terms.items()}, rest // by))


def last_value(extent: Expr, ranges: Mapping[str, Range]) -> int | None:
    """The last value of a loop of this extent."""
    high = value_range(extent, ranges)[1]
    return None if high is None else high - 1


def _check_extents(step: Step, loops: Loops, outside: Sequence[tile.For]) -> None:
    known = {f.var for f in outside}
    for f in loops:
        if {v.name for v in variables(f.extent) if not isinstance(v, Size)} - known:
            raise ScheduleError(step, f"the extent of {f.var} depends on a loop inside the place of the tile")
        known.add(f.var)
