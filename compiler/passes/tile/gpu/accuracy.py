"""Schedule steps that improve accuracy by partial sums and split factors."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from compiler.analysis.nests import wrap
from compiler.ir import tile
from compiler.ir.dtype import f32
from compiler.ir.expr import Expr, Load, Op, Var, identity, op, substitute
from compiler.ir.rewrite import bodies, replaced, statements
from compiler.ir.statement import Kernel, Stmt, Store, within
from compiler.passes.tile.nests import Body, Loops, find_nest, loop_variables, loops_along
from compiler.schedule.steps import Promote, ScheduleError, SplitTf32


def promote(kernel: Kernel, step: Promote) -> Kernel:
    """`promote("c", "l0", "part", 1)`

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

    Tensor cores round sums towards zero, so that long sums drift; partial sums do not.
    """
    _, (f,) = find_nest(kernel, step, (step.loop,))
    alloc = next((n for s in kernel.body for n in s.walk() if _allocates(n, step.accumulator)), None)
    if alloc is None:
        raise ScheduleError(step, f"{step.accumulator} is no tile of kernel {kernel.name}")
    uses = [n for n in f.walk() if isinstance(n, Load | Store) and n.buffer == step.accumulator]
    if not uses or not all(isinstance(n, Store) and n.op == "sum" for n in uses):
        raise ScheduleError(step, f"{step.loop} does something other than add to {step.accumulator}")
    part = alloc.tensor.replace(name=step.tile)

    def renamed(s: Stmt) -> Stmt | None:
        return s.replace(buffer=part.name) if isinstance(s, Store) and s.buffer == step.accumulator else None

    count = len(part.shape)

    first, last = (loop_variables(step, called, count) for called in (step.first, step.last))
    held = Load(part.name, last, part.dtype)
    adds = next(n for n, s in enumerate(f.body) if step.accumulator in tile.buffers((s,)))
    body = (
        *f.body[:adds],
        alloc.replace(tensor=part),
        *loops_along(first, part.shape, Store(part.name, first, identity("sum", part.dtype))),
        *statements(f.body[adds:], renamed),
        *loops_along(last, part.shape, Store(step.accumulator, held.index, held, "sum")),
    )
    return kernel.replace(body=replaced(kernel.body, f, (f.replace(body=body),)))


def _allocates(n: object, name: str) -> bool:
    return isinstance(n, tile.Alloc) and n.tensor.name == name


def split_tf32(kernel: Kernel, step: SplitTf32) -> Kernel:
    """`split_tf32(("i", "j", "l"), ("a", "b"), into=("i", "j", "l", "a", "b"))`

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

    The omitted term is 2**-22 of a product, less than the rounding of f32 (Ootomo and Yokota 2022, arXiv:2203.03341):
    the smaller part has either sign, and tensor cores read the first 11 of its 13 bits. If a factor is infinite, or
    rounds to infinity, the sum is NaN.
    """
    _, nest = find_nest(kernel, step, step.loops)
    tiles = {n.tensor.name: n for n in within(kernel.body, tile.Alloc)}
    match nest[-1].body:
        case (Store(_, _, Op("mul", (Load(a, _, kind) as left, Load(b) as right)), "sum") as total,) if kind is f32:
            pass
        case _:
            raise ScheduleError(step, f"{step.loops[-1]} holds something other than one contraction of f32")
    if a not in tiles or b not in tiles or a == b:
        raise ScheduleError(step, f"{a} and {b} are no two tiles of kernel {kernel.name}")
    if {*step.tiles} != {a, b}:
        raise ScheduleError(step, f"the factors are {a} and {b}, not {' and '.join(step.tiles)}")
    halves = dict(zip(step.tiles, step.halves, strict=True))
    out: list[Stmt] = []
    own = tuple(f.var for f in nest)
    for loops, (x, y) in ((step.small, (1, 0)), (step.cross, (0, 1)), (own, (0, 0))):
        new = total.replace(value=left.replace(buffer=halves[a][x]) * right.replace(buffer=halves[b][y]))
        out += _rebuild_nest(nest, loop_variables(step, loops, len(nest)), new)
    body = replaced(kernel.body, nest[0], tuple(out))
    for name in (a, b):
        added = _split_tile(step, tiles[name], halves[name])
        body = bodies(body, functools.partial(_insert_after_fill, name=name, new=added))
    return kernel.replace(body=body)


def _insert_after_fill(body: Body, name: str, new: Body) -> Body | None:
    """The statements in which a tile is allocated, with `new` inserted after the last that writes it."""
    if not any(_allocates(s, name) for s in body):
        return None
    last = max(n for n, s in enumerate(body) if any(_writes(x, name) for x in s.walk()))
    return (*body[: last + 1], *new, *body[last + 1 :])


def _writes(n: object, name: str) -> bool:
    match n:
        case Store(buffer) | tile.Copy(tile.Slice(buffer)):
            return buffer == name
    return False


def _split_tile(step: SplitTf32, alloc: tile.Alloc, called: Sequence[str]) -> Body:
    """Split each element of a tile into its tf32 part and the rest. `called` names the two tiles and the loops."""
    t = alloc.tensor
    index = loop_variables(step, called[2:], len(t.shape))
    whole = Load(t.name, index, t.dtype)
    big = whole.replace(buffer=called[0])
    stores = (Store(big.buffer, index, op("tf32", whole)), Store(called[1], index, whole - big))
    allocs = (alloc.replace(tensor=t.replace(name=name)) for name in called[:2])
    return (*allocs, *loops_along(index, t.shape, *stores))


def _rebuild_nest(nest: Loops, loops: Sequence[Var], s: Stmt) -> Body:
    """The nest around another statement, with its loops renamed."""
    renamed: dict[Expr, Expr] = {Var(f.var): v for f, v in zip(nest, loops, strict=True)}
    body: Body = substitute((s,), renamed)
    around = zip(nest, loops, strict=True)
    return wrap(tuple(f.replace(var=v.name, extent=substitute(f.extent, renamed)) for f, v in around), body)
