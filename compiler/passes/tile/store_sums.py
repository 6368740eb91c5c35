"""The schedule step `store_sums`: a tensor instruction rounds its sums and stores them itself."""

from __future__ import annotations

from compiler.analysis.nests import perfect, store_after_lets
from compiler.ir import loop, tile
from compiler.ir.dtype import bf16
from compiler.ir.expr import Const, Load, Var, cast, dim
from compiler.ir.rewrite import bodies
from compiler.ir.statement import Kernel, Stmt, Store
from compiler.passes.tile.nests import match_slice
from compiler.schedule.steps import ScheduleError, StoreSums

Body = tuple[Stmt, ...]


def store_sums(kernel: Kernel, step: StoreSums) -> Kernel:
    """`store_sums("c")`

    before:
        c = local(f32[8, 64])
        for i_first in serial(8):
            for j_first in serial(64):
                c[i_first, j_first] = 0.0
        mma("panel.6x64.bf16", c[0: +8, 0: +64], a[0: +8, 0: +32], b[0: +32, 0: +64], "mk", "kn")
        for i_last in serial(8):
            for j_last in serial(64):
                y[i_last, j_last] = bf16(c[i_last, j_last])
    after:
        mma("panel.6x64.bf16", y[0: +8, 0: +64], a[0: +8, 0: +32], b[0: +32, 0: +64], "mk", "kn", store=True)
    """
    found: list[tile.Mma] = []

    def joined(body: Body) -> Body | None:
        own = [s for s in body if _uses(s, step.accumulator)]
        match own:
            case [tile.Alloc(), tile.For() as first, tile.Mma() as product, tile.For() as last]:
                found.append(_storing(step, product, first, last))
                return tuple(found[-1] if s is product else s for s in body if s is product or s not in own)
        return None

    made = bodies(kernel.body, joined)
    if not found:
        raise ScheduleError(
            step, f"{step.accumulator} is no tile that loops fill, one instruction adds to, and loops store"
        )
    return kernel.replace(body=made)


def _uses(s: Stmt, name: str) -> bool:
    """Whether a statement makes a tile or, itself or inside it, accesses it."""
    return (isinstance(s, tile.Alloc) and s.tensor.name == name) or name in tile.buffers((s,))


def _storing(step: StoreSums, product: tile.Mma, first: tile.For, last: tile.For) -> tile.Mma:
    """The instruction, with the sums stored as the loops `last` do."""
    name, shape = step.accumulator, product.acc.lengths
    zero = _only_store(step, first, shape)
    if zero.buffer != name or not (isinstance(zero.value, Const) and zero.value.value == 0):
        raise ScheduleError(step, f"{name} does not start from zero")
    whole = all(start == dim(0) for start in product.acc.starts)
    if not whole or product.sizes or name in (product.a.buffer, product.b.buffer):
        raise ScheduleError(step, f"{product.instruction} does not make all of {name}, which has a fixed size, alone")
    store = _only_store(step, last, shape)
    loops, _ = perfect(tile.For, (last,), loop.KINDS)
    total = Load(name, tuple(Var(f.var) for f in loops), zero.value.dtype)
    if store.value != cast(total, bf16):
        raise ScheduleError(step, f"what is stored is not {name} rounded to bf16, each sum on its own")
    to = match_slice(store.index, {f.var: n for f, n in zip(loops, shape, strict=True)})
    if to is None or to[0] != [f.var for f in loops]:
        raise ScheduleError(step, f"{store.buffer} does not have rows and columns of {name} in the same order")
    return product.replace(acc=to[1].replace(buffer=store.buffer), store=True)


def _only_store(step: StoreSums, f: tile.For, shape: tuple[int, ...]) -> Store:
    """The store of a nest over all of a tile that does nothing else, with values inlined."""
    loops, body = perfect(tile.For, (f,), loop.KINDS)
    extents = tuple(int(x.extent.value) if isinstance(x.extent, Const) else 0 for x in loops)
    store = store_after_lets(body)
    if extents != shape or store is None or store.op != "set":
        raise ScheduleError(step, f"the loop {f.var} does more than store an element of {step.accumulator} at a time")
    return store
