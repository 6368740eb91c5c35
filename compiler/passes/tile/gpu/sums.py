"""Schedule steps on Tile IR that sum in parts for accuracy."""

from __future__ import annotations

from compiler.ir import tile
from compiler.ir.dtype import f32
from compiler.ir.expr import Expr, Load, Op, Var, identity, op, substitute
from compiler.ir.statement import If, Kernel, Stmt, Store
from compiler.passes.tile.nests import SERIAL, Body, Loops, find_nest, replace, wrap
from compiler.schedule.steps import Compensate, Promote, ScheduleError


def promote(kernel: Kernel, step: Promote) -> Kernel:
    """`promote("c", "l0", "part")`

    before:
        c = registers(f32[4])
        for i_first in serial(4):
            c[i_first] = 0.0
        for l0 in serial(2, reduce):
            for i in serial(4):
                for l1 in serial(8, reduce):
                    c[i] += a[i, l0 * 8 + l1] * b[l0 * 8 + l1]
        for i_last in serial(4):
            y[i_last] = c[i_last]
    after:
        c = registers(f32[4])
        for i_first in serial(4):
            c[i_first] = 0.0
        for l0 in serial(2, reduce):
            part = registers(f32[4])
            for part_first in serial(4):
                part[part_first] = 0.0
            for i in serial(4):
                for l1 in serial(8, reduce):
                    part[i] += a[i, l0 * 8 + l1] * b[l0 * 8 + l1]
            for part_last in serial(4):
                c[part_last] += part[part_last]
        for i_last in serial(4):
            y[i_last] = c[i_last]

    Sums in tensor cores are rounded towards zero, so that long ones drift; in parts they do not.
    """
    _, (f,) = find_nest(kernel, step, (step.loop,))
    alloc = next((n for s in kernel.body for n in s.walk() if _makes(n, step.accumulator)), None)
    if alloc is None:
        raise ScheduleError(step, f"{step.accumulator} is no tile of kernel {kernel.name}")
    uses = [n for n in f.walk() if isinstance(n, Load | Store) and n.buffer == step.accumulator]
    if not uses or not all(isinstance(n, Store) and n.op == "sum" for n in uses):
        raise ScheduleError(step, f"{step.loop} does something other than add to {step.accumulator}")
    part = alloc.tensor.replace(name=step.tile)
    count = len(part.shape)

    def nest(end: str) -> tuple[tuple[str, ...], Loops]:
        loops = tuple(f"{step.tile}_{end}{n if count > 1 else ''}" for n in range(count))
        return loops, tuple(tile.For(v, n, "parallel", SERIAL, ()) for v, n in zip(loops, part.shape, strict=True))

    first, first_nest = nest("first")
    last, last_nest = nest("last")
    held = Load(part.name, tuple(map(Var, last)), part.dtype)
    adds = next(n for n, s in enumerate(f.body) if step.accumulator in tile.buffers((s,)))
    body = (
        *f.body[:adds],
        alloc.replace(tensor=part),
        *wrap(first_nest, (Store(part.name, tuple(map(Var, first)), identity("sum", part.dtype)),)),
        *(_renamed(s, step.accumulator, part.name) for s in f.body[adds:]),
        *wrap(last_nest, (Store(step.accumulator, held.index, held, "sum"),)),
    )
    return kernel.replace(body=replace(kernel.body, f, (f.replace(body=body),)))


def _makes(n: object, name: str) -> bool:
    return isinstance(n, tile.Alloc) and n.tensor.name == name


def _renamed(s: Stmt, old: str, new: str) -> Stmt:
    """The statement with its stores to one buffer going to another."""
    match s:
        case Store() if s.buffer == old:
            return s.replace(buffer=new)
        case tile.For(body=inner) | If(body=inner):
            return s.replace(body=tuple(_renamed(x, old, new) for x in inner))
    return s


def compensate(kernel: Kernel, step: Compensate) -> Kernel:
    """`compensate(("i", "j", "l"))`

    before:
        a = registers(f32[4, 8])
        copy(a[0: +4, 0: +8], x[0: +4, 0: +8], "plain")
        b = registers(f32[6, 8])
        copy(b[0: +6, 0: +8], w[0: +6, 0: +8], "plain")
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a[i, l] * b[j, l]
    after:
        a = registers(f32[4, 8])
        copy(a[0: +4, 0: +8], x[0: +4, 0: +8], "plain")
        a_big = registers(f32[4, 8])
        a_small = registers(f32[4, 8])
        for a_at0 in serial(4):
            for a_at1 in serial(8):
                a_big[a_at0, a_at1] = tf32(a[a_at0, a_at1])
                a_small[a_at0, a_at1] = a[a_at0, a_at1] - a_big[a_at0, a_at1]
        b = registers(f32[6, 8])
        copy(b[0: +6, 0: +8], w[0: +6, 0: +8], "plain")
        b_big = registers(f32[6, 8])
        b_small = registers(f32[6, 8])
        for b_at0 in serial(6):
            for b_at1 in serial(8):
                b_big[b_at0, b_at1] = tf32(b[b_at0, b_at1])
                b_small[b_at0, b_at1] = b[b_at0, b_at1] - b_big[b_at0, b_at1]
        for i_0 in serial(4):
            for j_0 in serial(6):
                for l_0 in serial(8, reduce):
                    c[i_0, j_0] += a_small[i_0, l_0] * b_big[j_0, l_0]
        for i_1 in serial(4):
            for j_1 in serial(6):
                for l_1 in serial(8, reduce):
                    c[i_1, j_1] += a_big[i_1, l_1] * b_small[j_1, l_1]
        for i in serial(4):
            for j in serial(6):
                for l in serial(8, reduce):
                    c[i, j] += a_big[i, l] * b_big[j, l]

    What is left out is 2**-22 of a product, less than f32 rounds off (Ootomo and Yokota 2022, arXiv:2203.03341): the
    smaller part has either sign, and of its 13 bits tensor cores read the first 11.
    Where a factor is infinite, or rounds to infinity, the sum is NaN.
    """
    _, nest = find_nest(kernel, step, step.loops)
    tiles = {n.tensor.name: n for s in kernel.body for n in s.walk() if isinstance(n, tile.Alloc)}
    match nest[-1].body:
        case (Store(_, _, Op("mul", (Load(a, _, kind) as left, Load(b) as right)), "sum") as total,) if kind is f32:
            pass
        case _:
            raise ScheduleError(step, f"{step.loops[-1]} holds something other than one sum of products of f32")
    if a not in tiles or b not in tiles or a == b:
        raise ScheduleError(step, f"{a} and {b} are no two tiles of kernel {kernel.name}")
    out: list[Stmt] = []
    for suffix, (x, y) in (("_0", ("small", "big")), ("_1", ("big", "small")), ("", ("big", "big"))):
        new = total.replace(value=left.replace(buffer=f"{a}_{x}") * right.replace(buffer=f"{b}_{y}"))
        out += _copied(nest, suffix, new)
    body = replace(kernel.body, nest[0], tuple(out))
    for name in (a, b):
        body = _after_fill(body, name, _halves(tiles[name]))
    return kernel.replace(body=body)


def _after_fill(body: Body, name: str, new: Body) -> Body:
    """The body with statements behind the last that writes a tile, where the tile begins."""
    if not any(_makes(s, name) for s in body):
        inner = (s.replace(body=_after_fill(s.body, name, new)) if isinstance(s, tile.For | If) else s for s in body)
        return tuple(inner)
    last = max(n for n, s in enumerate(body) if any(_writes(x, name) for x in s.walk()))
    return (*body[: last + 1], *new, *body[last + 1 :])


def _writes(n: object, name: str) -> bool:
    match n:
        case Store(buffer) | tile.Copy(tile.Slice(buffer)):
            return buffer == name
    return False


def _halves(alloc: tile.Alloc) -> Body:
    """What is left of each element of a tile in tf32, and the rest."""
    t = alloc.tensor
    loops = tuple(f"{t.name}_at{n if len(t.shape) > 1 else ''}" for n in range(len(t.shape)))
    index = tuple(map(Var, loops))
    whole = Load(t.name, index, t.dtype)
    big = whole.replace(buffer=f"{t.name}_big")
    stores = (
        Store(big.buffer, index, op("tf32", whole)),
        Store(f"{t.name}_small", index, whole - big),
    )
    nest = tuple(tile.For(v, n, "parallel", SERIAL, ()) for v, n in zip(loops, t.shape, strict=True))
    allocs = (alloc.replace(tensor=t.replace(name=t.name + end)) for end in ("_big", "_small"))
    return (*allocs, *wrap(nest, stores))


def _copied(nest: Loops, suffix: str, s: Stmt) -> Body:
    """The nest around another statement, its loops renamed by `suffix`."""
    renamed: dict[Expr, Expr] = {Var(f.var): Var(f.var + suffix) for f in nest}
    body: Body = substitute((s,), renamed)
    return wrap(tuple(f.replace(var=f.var + suffix, extent=substitute(f.extent, renamed)) for f in nest), body)
