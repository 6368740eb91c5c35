"""Schedule steps for sums of products on Tile IR: a kernel and a step in, the changed kernel out, or ScheduleError.

Together they turn a scalar sum inside parallel loops into a tensor instruction on tiles: `distribute` makes the sum a
nest of its own, `pack` brings a factor into a tile, `tensorize` replaces the innermost loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Var, dim, names, substitute
from compiler.ir.index import Range, extent_range, from_linear, linear, value_range
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Stmt, Store
from compiler.ir.tensor import Tensor, row_major
from compiler.schedule.steps import Distribute, Pack, ScheduleError, Step, Tensorize

SERIAL = tile.Bind("serial")
PAGE, LINE = 4096, 64
Body = tuple[Stmt, ...]
Loops = tuple[tile.For, ...]


def distribute(kernel: Kernel, step: Distribute) -> Kernel:
    """`distribute("c", ("i", "j"))`

    before:
        for i in serial(4):
            for j in serial(6):
                c: f32 = 0.0
                for l in serial(8, reduce):
                    c += a[i, l] * b[l, j]
                y[i, j] = max(c, 0.0)
    after:
        c = local(f32[4, 6])
        for i_first in serial(4):
            for j_first in serial(6):
                c[i_first, j_first] = 0.0
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a[i, l] * b[l, j]
        for i_last in serial(4):
            for j_last in serial(6):
                y[i_last, j_last] = max(c[i_last, j_last], 0.0)
    """
    around, nest = _nest(kernel, step, step.loops)
    if any(f.kind != "parallel" for f in nest):
        raise ScheduleError(step, f"the iterations of {', '.join(step.loops)} must be independent")
    parts = _parts(step, nest[-1].body)
    ranges = _ranges((*around, *nest))
    shape = tuple(dim(_longest(step, f, ranges)) for f in nest)
    scalar = Var(step.accumulator, parts.first.value.dtype)
    held = Tensor(step.accumulator, scalar.dtype, shape, row_major(shape))
    own = tuple(Var(f.var) for f in nest)
    total = Store(held.name, own, parts.sum.value, parts.sum.op)
    after = substitute(parts.after, {scalar: Load(held.name, own, scalar.dtype)})
    out = (
        tile.Alloc(held, "local"),
        *_again(nest, "_first", (Store(held.name, own, parts.first.value),)),
        *_wrap(nest, _wrap(parts.loops, (total,))),
        *_again(nest, "_last", (*parts.before, *after)),
    )
    return kernel.replace(body=_replace(kernel.body, nest[0], out))


@dataclass(frozen=True)
class _Parts:
    """The body of a loop nest around one accumulator."""

    before: Body
    first: Init
    loops: Loops
    sum: Accum
    after: Body


def _parts(step: Distribute, body: Body) -> _Parts:
    place = next((n for n, s in enumerate(body) if isinstance(s, Init) and s.name == step.accumulator), None)
    if place is None or place + 1 == len(body):
        raise ScheduleError(step, f"{step.accumulator} does not begin inside {step.loops[-1]}")
    before, first, nest, after = body[:place], body[place], body[place + 1], body[place + 2 :]
    assert isinstance(first, Init)
    loops: list[tile.For] = []
    inside: Body = (nest,)
    while len(inside) == 1 and isinstance(inside[0], tile.For):
        loops.append(inside[0])
        inside = inside[0].body
    lets = {Var(s.name, s.value.dtype): s.value for s in (*before, *inside) if isinstance(s, Let)}
    sums = [s for s in inside if not isinstance(s, Let)]
    if not all(isinstance(s, Let) for s in before):
        raise ScheduleError(step, f"{step.accumulator} begins after something other than a value")
    if len(sums) != 1 or not isinstance(sums[0], Accum) or sums[0].name != step.accumulator:
        raise ScheduleError(step, f"the loops after {step.accumulator} do not only add to it")
    if any(isinstance(n, Accum) and n.name == step.accumulator for s in after for n in s.walk()):
        raise ScheduleError(step, f"{step.accumulator} is added to again")
    value, start = _inlined(sums[0].value, lets), _inlined(first.value, lets)
    return _Parts(before, first.replace(value=start), tuple(loops), sums[0].replace(value=value), after)


def _inlined(e: Expr, lets: dict[Var, Expr]) -> Expr:
    """`e` without the names bound by `lets`, which may refer to earlier ones."""
    while lets and any(n in lets for n in e.walk()):
        e = substitute(e, lets)
    return e


def pack(kernel: Kernel, step: Pack) -> Kernel:
    """`pack("a", "a_tile", ("i", "l"))`

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
    for around, total in _sums(kernel.body):
        named = {f.var: f for f in around}
        if not set(step.loops) <= set(named):
            continue
        for factor, other in _factors(total.value):
            left = {f.var for f in around} & names(factor) - set(step.loops)
            if step.buffer not in {n.buffer for n in factor.walk() if isinstance(n, Load)}:
                continue
            depth = max((d + 1 for d, f in enumerate(around) if f.var in left), default=0)
            if any(f.var in step.loops for f in around[:depth]):
                continue
            loops = tuple(named[v] for v in step.loops)
            _check_extents(step, loops, around[:depth])
            held, own, fill = _filled(step, factor, loops, _ranges(around))
            product = total.replace(value=Load(held.name, own, factor.dtype) * other)
            target = around[depth]
            new = _replace_sum(target, total, product)
            return kernel.replace(body=_replace(kernel.body, target, (tile.Alloc(held, "local"), *fill, new)))
    raise ScheduleError(
        step, f"no sum of products within {', '.join(step.loops)} has a factor from {step.buffer} over these"
    )


def _filled(step: Pack, factor: Expr, loops: Loops, ranges: dict[str, Range]) -> tuple[Tensor, tuple[Expr, ...], Body]:
    """The tile, its index of one element of the factor, and what fills it: a copy of a block of a buffer, or loops."""
    long = {f.var: _longest(step, f, ranges) for f in loops}
    shape = tuple(dim(long[f.var]) for f in loops)
    held = _padded(Tensor(step.tile, factor.dtype, shape, row_major(shape)))
    if isinstance(factor, Load):
        axes = _axes(factor.index, long)
        if axes is not None and set(axes[0]) == set(long):
            order, source = axes
            steps = dict(zip(long, held.strides, strict=True))
            held = held.replace(shape=tuple(dim(long[v]) for v in order), strides=tuple(steps[v] for v in order))
            whole = tile.Slice(held.name, (dim(0),) * len(order), tuple(long[v] for v in order))
            return held, tuple(map(Var, order)), (tile.Copy(whole, source.replace(buffer=factor.buffer), "plain"),)
    own = tuple(Var(f.var) for f in loops)
    fill = _again(loops, "_" + step.tile, (Store(held.name, own, factor),))
    return held, own, _bound(fill, step.width) if step.width > 1 else fill


def _bound(body: Body, width: int) -> Body:
    """The innermost loop of a nest becomes vectors."""
    (f,) = body
    assert isinstance(f, tile.For)
    if isinstance(f.body[0], tile.For):
        return (f.replace(body=_bound(f.body, width)),)
    return (f.replace(bind=tile.Bind("vector", (("width", width), ("unroll", 1)))),)


def _padded(t: Tensor) -> Tensor:
    """Rows of a multiple of 4 KiB would compete for the same few lines of a cache: they are a line longer."""
    row = t.shape[-1]
    if len(t.shape) < 2 or not isinstance(row, Const) or row.value * t.dtype.bytes % PAGE:
        return t
    return t.replace(strides=row_major((*t.shape[:-1], row + LINE // t.dtype.bytes)))


def _check_extents(step: Step, loops: Loops, outside: Sequence[tile.For]) -> None:
    known = {f.var for f in outside}
    for f in loops:
        if names(f.extent) - known:
            raise ScheduleError(step, f"the extent of {f.var} depends on a loop inside the place of the tile")


def tensorize(kernel: Kernel, step: Tensorize) -> Kernel:
    """`tensorize(("i", "j", "l"), "panel.4x6.f32")`

    before:
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a[i, l] * b[l, j]
    after:
        mma("panel.4x6.f32", c[0: +4, 0: +6], a[0: +4, 0: +8], b[0: +8, 0: +6], "mk", "kn")
    """
    around, nest = _nest(kernel, step, step.loops)
    letter = dict(zip(step.loops, "mnk" if len(nest) == 3 else "nk", strict=True))
    match nest[-1].body:
        case (Store(acc, index, value, "sum"),) if _factors(value):
            pass
        case _:
            raise ScheduleError(step, f"{step.loops[-1]} holds something other than one sum of products")
    ranges = _ranges((*around, *nest))
    long = {f.var: _longest(step, f, ranges) for f in nest}
    loads = [x for x in (_unconverted(f) for f, _ in _factors(value)) if isinstance(x, Load)]
    sides = [(x, {letter[v] for e in x.index for v in names(e) if v in letter}) for x in loads]
    a = next((x for x, axes in sides if "n" not in axes), None)
    b = next((x for x, axes in sides if "m" not in axes and x is not a), None)
    if a is None or b is None:
        raise ScheduleError(
            step, "its factors are not a load that moves along m and k and one that moves along k and n"
        )
    found = [_slice(step, buffer, i, long) for buffer, i in ((acc, index), (a.buffer, a.index), (b.buffer, b.index))]
    c_axes, a_axes, b_axes = ("".join(letter[v] for v in axes) for axes, _ in found)
    c, left, right = (x for _, x in found)
    wanted = (("mn",), ("mk", "km"), ("kn", "nk")) if len(nest) == 3 else (("n",), ("k",), ("kn", "nk"))
    if any(axes not in allowed for axes, allowed in zip((c_axes, a_axes, b_axes), wanted, strict=True)):
        raise ScheduleError(step, f"the tiles lie as {c_axes} += {a_axes} * {b_axes}")
    extents = {letter[f.var]: f.extent for f in nest}
    whole = all(isinstance(e, Const) for e in extents.values())
    sizes = () if whole else tuple(extents.get(x, dim(1)) for x in "mnk")
    return kernel.replace(
        body=_replace(kernel.body, nest[0], (tile.Mma(step.instruction, c, left, right, (a_axes, b_axes), sizes),))
    )


def _unconverted(e: Expr) -> Expr:
    """An operand without the conversion to the accumulator's type, which the instruction implies."""
    while isinstance(e, Cast) and e.arg.dtype.is_float and e.arg.dtype.bytes < e.dtype.bytes:
        e = e.arg
    return e


def _letters(index: Sequence[Expr], letter: dict[str, str]) -> set[str]:
    return {letter[v] for e in index for v in names(e) if v in letter}


def _slice(step: Step, buffer: str, index: Sequence[Expr], long: dict[str, int]) -> tuple[list[str], tile.Slice]:
    """The loops that the axes of a buffer move with, in order, and what they touch of it."""
    found = _axes(index, long)
    if found is None:
        raise ScheduleError(step, f"{buffer} is not read in rows and columns, pack it first")
    return found[0], found[1].replace(buffer=buffer)


def _axes(index: Sequence[Expr], long: dict[str, int]) -> tuple[list[str], tile.Slice] | None:
    """Each loop of `long` that moves the index moves one axis, by one; None where that is not so."""
    starts: list[Expr] = []
    lengths: list[int] = []
    axes: list[str] = []
    for e in index:
        terms, rest = linear(e)
        moving = [v for v in terms if isinstance(v, Var) and v.name in long]
        if names(e) & set(long) != {v.name for v in moving} or len(moving) > 1 or any(terms[v] != 1 for v in moving):
            return None
        starts.append(from_linear(({v: c for v, c in terms.items() if v not in moving}, rest)))
        lengths.append(long[moving[0].name] if moving else 0)
        axes += [v.name for v in moving]
    return (axes, tile.Slice("", tuple(starts), tuple(lengths))) if len(set(axes)) == len(axes) else None


# ---- loop nests


def _nest(kernel: Kernel, step: Step, loops: Sequence[str]) -> tuple[Loops, Loops]:
    """The loops around, and the perfectly nested loops of these names, outermost first."""
    for around, f in _loops(kernel.body):
        if f.var == loops[0]:
            nest = [f]
            for var in loops[1:]:
                match nest[-1].body:
                    case (tile.For() as inner,) if inner.var == var:
                        nest.append(inner)
                    case _:
                        raise ScheduleError(step, f"{var} is not the only statement of {nest[-1].var}")
            return around, tuple(nest)
    raise ScheduleError(
        step, f"kernel {kernel.name} has no loop {loops[0]}; it has {', '.join(f.var for _, f in _loops(kernel.body))}"
    )


def _loops(body: Body, around: Loops = ()) -> Iterator[tuple[Loops, tile.For]]:
    """Every loop with the loops around it, outside first."""
    for s in body:
        match s:
            case tile.For(body=inner):
                yield around, s
                yield from _loops(inner, (*around, s))
            case If(body=inner):
                yield from _loops(inner, around)


def _sums(body: Body) -> Iterator[tuple[Loops, Store]]:
    """Every sum of products into a tile, with the loops around it."""
    for around, f in _loops(body):
        for s in f.body:
            if isinstance(s, Store) and s.op == "sum" and _factors(s.value):
                yield (*around, f), s


def _factors(value: Expr) -> list[tuple[Expr, Expr]]:
    """Each factor of a product with the other one; nothing for what is no product."""
    match value:
        case Op("mul", (a, b)):
            return [(a, b), (b, a)]
    return []


def _ranges(loops: Loops) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for f in loops:
        high = value_range(f.extent, ranges)[1]
        ranges[f.var] = (
            extent_range(f.extent) if isinstance(f.extent, Const) else (0, None if high is None else high - 1)
        )
    return ranges


def _longest(step: Step, f: tile.For, ranges: dict[str, Range]) -> int:
    high = ranges[f.var][1]
    if high is None:
        raise ScheduleError(step, f"how long {f.var} is must be known when compiling")
    return high + 1


def _wrap(nest: Loops, body: Body) -> Body:
    for f in reversed(nest):
        body = (f.replace(body=body),)
    return body


def _again(nest: Loops, suffix: str, body: Body) -> Body:
    """A second nest over the same ranges, parallel, its loops renamed by `suffix`; nothing for an empty body."""
    if not body:
        return ()
    renamed = {Var(f.var): Var(f.var + suffix) for f in nest}
    body = substitute(body, renamed)
    for f in reversed(nest):
        body = (tile.For(f.var + suffix, substitute(f.extent, renamed), "parallel", SERIAL, body),)
    return body


def _replace(body: Body, target: tile.For, new: Body) -> Body:
    out: list[Stmt] = []
    for s in body:
        match s:
            case tile.For() if s is target:
                out += new
            case tile.For(body=inner) | If(body=inner):
                out.append(s.replace(body=_replace(inner, target, new)))
            case _:
                out.append(s)
    return tuple(out)


def _replace_sum(s: Stmt, old: Store, new: Store) -> Stmt:
    if s is old:
        return new
    if isinstance(s, tile.For | If):
        return s.replace(body=tuple(_replace_sum(x, old, new) for x in s.body))
    return s
