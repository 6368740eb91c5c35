"""Reference interpreter of Tile IR, on NumPy arrays.

Bindings have no effect. Parallel and reduce loops become axes of the arrays, and each statement runs for all points at
once, up to `MAX_POINTS` points; the rest, and loops with dependent iterations, run in Python. A tile allocated inside a
loop exists once per point. It is an error to read an element that was never written, or to access a buffer out of
bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from compiler.interpret import roles, scalar
from compiler.interpret.grid import InterpretError, Span, raise_out_of_bounds
from compiler.interpret.loop import laid_out, poison
from compiler.interpret.scalar import Array
from compiler.interpret.tensor import bind_sizes, extent
from compiler.interpret.tile_state import Here, Machine, evaluate_at, points_of
from compiler.ir.dtype import DType, boolean, compute, f32, i64
from compiler.ir.expr import COMBINE, Const, Expr, Load, Var, both, cast, const, dim, identity, op, select
from compiler.ir.roles import Advance, One, RingStmt, Role
from compiler.ir.statement import Accum, If, Init, InOrder, Kernel, Let, Program, Stmt, Store, dtypes
from compiler.ir.tensor import Tensor
from compiler.ir.text import show
from compiler.ir.tile import Alloc, Bind, Copy, For, Mma, Slice, Stage, Sync, element, extents, lengths, letters

# points of a loop nest that are evaluated at once, at most
MAX_POINTS = 1 << 22


def run(program: Program, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of `program` on `arrays`, in the order of its inputs; raises InterpretError for a wrong access."""
    sizes = bind_sizes(program, [np.shape(a) for a in arrays])
    memory: dict[str, Array] = {}
    written: dict[str, Array] = {}
    for t in (*program.outputs, *program.temps):
        shape = [extent(e, sizes) for e in t.shape]
        memory[t.name] = laid_out(scalar.from_memory(poison(t, shape), t.dtype), t, sizes)
        written[t.name] = laid_out(np.zeros(shape, np.bool_), t, sizes)
    for t, a in zip(program.inputs, arrays, strict=True):
        memory[t.name] = laid_out(np.asarray(a, scalar.storage(t.dtype)), t, sizes)
        written.pop(t.name, None)
    for kernel in program.kernels:
        _kernel(program, kernel, sizes, memory, written)
    for t in program.outputs:
        if not written.get(t.name, np.ones(1, np.bool_)).all():
            first = [int(i) for i in np.argwhere(~written[t.name])[0]]
            raise InterpretError(f"{program.name}: element {first} of output {t.name} was never written")
    return tuple(np.array(memory[t.name], order="C") for t in program.outputs)


def _kernel(
    program: Program, kernel: Kernel, sizes: dict[str, int], memory: dict[str, Array], written: dict[str, Array]
) -> None:
    views = {p.name: _view(memory[p.name], p, sizes) for p in kernel.params}
    written_views = {p.name: _view(written[p.name], p, sizes) for p in kernel.params if p.name in written}
    machine = Machine(f"{program.name}: kernel {kernel.name}", sizes, dtypes(kernel), views, written_views)
    roles.run_outside_roles(_body(kernel.body, machine, Here()), machine.where)


def _view(a: Array, view: Tensor, sizes: dict[str, int]) -> Array:
    """A buffer as a kernel sees it: by strides, so that views may overlap."""
    shape = [extent(e, sizes) for e in view.shape]
    return as_strided(a, shape, [extent(e, sizes) * a.itemsize for e in view.strides])


def _body(body: tuple[Stmt, ...], machine: Machine, here: Here) -> roles.Steps:
    role_blocks = [s for s in body if isinstance(s, Role)]
    for s in body:
        if isinstance(s, Role):
            if s is role_blocks[0]:
                steps_of = {r.kind: _body(r.body, machine.role(r.threads), here) for r in role_blocks}
                roles.run_roles(steps_of, machine.mbarriers, machine.where)
        else:
            yield from _statement(s, machine, here)


def _statement(s: Stmt, machine: Machine, here: Here) -> roles.Steps:
    match s:
        case For():
            yield from _loop(s, machine, here)
        case If(cond, body):
            inside = here.where(evaluate_at(cond, machine, here))
            if inside.taken is not None and inside.taken.any():
                yield from _body(body, machine, inside)
        case InOrder():
            yield from _ordered_loop(s, machine, here)
        case Let(name, value) | Init(name, value):
            # A copy, because a load may be a view of a buffer that later statements change.
            machine.values[name] = np.array(evaluate_at(value, machine, here))
            machine.depth[name] = len(here.spans)
        case Accum(name, how, value):
            _accumulate(name, how, evaluate_at(value, machine, here), value.dtype, machine, here)
        case Store(buffer, index, value, how):
            _store(buffer, index, evaluate_at(value, machine, here), value.dtype, how, machine, here)
        case Stage(body=body) | One(body):
            yield from _body(body, machine, here)
        case RingStmt():
            yield from roles.statement(s, machine, here)
        case Sync():
            pass  # statements happen in order here
        case Alloc():
            _allocate(s, machine, here)
        case Copy(target, source, _, full):
            yield from _body(_copy_loops(target, source, machine), machine, here)
            if full is not None:
                count = math.prod(extents(target)) * machine.types[target.buffer].bytes
                roles.arrive(full, 0, -count, machine, here)
        case Mma():
            _multiply(s, machine, here)
        case _:
            raise TypeError(f"{type(s).__name__} is not a Tile IR statement")


# ---- loops


def _loop(s: For, machine: Machine, here: Here) -> roles.Steps:
    counts = evaluate_at(s.extent, machine, here)
    count = int(counts.max(initial=0))
    if s.kind == "scan" or (s.kind == "reduce" and not _only_accumulates(s)) or _must_run_in_order(s):
        for k in range(count):
            machine.values[s.var] = np.asarray(k, np.int64)
            yield from _body(s.body, machine, here if counts.ndim == 0 else here.where(k < counts))
        machine.values.pop(s.var, None)
        return
    points = math.prod(here.shape) * max(1, _most_points(s.body, machine.sizes))
    step = max(1, MAX_POINTS // max(1, points))
    for start in range(0, count, step):
        inner = here.open(Span(s.var, start, min(count, start + step)))
        if counts.ndim:
            inner = inner.where(evaluate_at(op("lt", Var(s.var, i64), s.extent), machine, inner))
        yield from _body(s.body, machine, inner)


def _must_run_in_order(loop: For) -> bool:
    """Whether roles wait for each other in the loop, so that it must run iteration by iteration."""
    kinds = {type(n) for n in loop.walk()}
    return Advance in kinds and Role not in kinds


def _ordered_loop(s: InOrder, machine: Machine, here: Here) -> roles.Steps:
    """All turns at once."""
    count, turns = (int(evaluate_at(e, machine, Here())) for e in (s.count, s.extent))
    inner = here.open(Span(s.var, 0, count))
    keys = np.broadcast_to(evaluate_at(s.key, machine, inner), inner.shape)
    machine.values[s.var] = scalar.order(s.how, keys, -1)[..., :turns]
    yield from _body(s.body, machine, here.open(Span(s.turn, 0, turns)))
    machine.values.pop(s.var)


def _only_accumulates(loop: For) -> bool:
    """Whether iterations may run together: what outlives one is only accumulated into, and not read inside."""
    nodes = list(loop.walk())
    stores = [n for n in nodes if isinstance(n, Store)]
    copies = [n for n in nodes if isinstance(n, Copy)]
    products = [n for n in nodes if isinstance(n, Mma)]
    replaced = {n.buffer for n in stores if n.op == "set"} | {n.target.buffer for n in copies}
    replaced |= {n.acc.buffer for n in products}
    changed = replaced | {n.buffer for n in stores}
    read = {n.buffer for n in nodes if isinstance(n, Load)} | {n.source.buffer for n in copies}
    read |= {x.buffer for n in products for x in (n.a, n.b)}
    outer = (replaced | (changed & read)) - {n.tensor.name for n in nodes if isinstance(n, Alloc)}
    sums = {n.name for n in nodes if isinstance(n, Accum)} - {n.name for n in nodes if isinstance(n, Init)}
    return not outer and not sums & {n.name for n in nodes if isinstance(n, Var)}


def _most_points(body: tuple[Stmt, ...], sizes: dict[str, int]) -> int:
    """How many points the largest statement of a body has, each time that it runs."""
    most = 1
    for s in body:
        match s:
            case For(_, count, _, _, inner):
                most = max(most, _estimated_extent(count, sizes) * _most_points(inner, sizes))
            case InOrder(_, _, _, count, _, _, inner):
                most = max(most, _estimated_extent(count, sizes) * _most_points(inner, sizes))
            case If(body=inner) | Stage(body=inner) | Role(body=inner):
                most = max(most, _most_points(inner, sizes))
            case Alloc(t):
                most = max(most, math.prod(_estimated_extent(e, sizes) for e in t.shape))
            case Copy(target):
                most = max(most, math.prod(n or 1 for n in target.lengths))
            case Mma(_, acc, a, b):
                most = max(most, *(math.prod(n or 1 for n in x.lengths) for x in (acc, a, b)))
    return most


def _estimated_extent(e: Expr, sizes: dict[str, int]) -> int:
    """An extent; one that varies counts as 1, and inner loops split if that was too little."""
    if isinstance(e, Const):
        return int(e.value)
    fixed = all(n.name in sizes if isinstance(n, Var) else not isinstance(n, Load) for n in e.walk())
    return extent(e, sizes) if fixed else 1


# ---- scalars


def _accumulate(name: str, how: str, value: Array, dtype: DType, machine: Machine, here: Here) -> None:
    inner = tuple(range(machine.depth[name], len(here.spans)))
    old = machine.values[name]
    new = scalar.apply(COMBINE[how], (old, _reduce_over(how, value, dtype, here, inner)))
    taken = _any_taken(here, inner)
    machine.values[name] = new if taken is None else np.where(taken, new, old)


def _reduce_over(how: str, value: Array, dtype: DType, here: Here, axes: tuple[int, ...]) -> Array:
    """`value` combined over `axes`, without points that do not take part."""
    if not axes:
        return value
    if here.taken is not None:
        value = np.where(here.taken, value, scalar.constant(identity(how, dtype).value, dtype))
    sizes = value.shape if value.ndim else (1,) * len(here.spans)
    full = [here.shape[k] if k in axes else n for k, n in enumerate(sizes)]
    return scalar.reduce(how, np.broadcast_to(value, full), axes, dtype)


def _any_taken(here: Here, axes: tuple[int, ...], keep: bool = False) -> Array | None:
    """Which points take part once `axes` are combined."""
    if here.taken is None or here.taken.ndim == 0:
        return here.taken
    return np.asarray(here.taken.any(axis=axes, keepdims=keep))


# ---- buffers


def _allocate(s: Alloc, machine: Machine, here: Here) -> None:
    """A tile for each point of the open axes; their indices come before the tile's own dimensions."""
    name = s.tensor.name
    shape = [n.size for n in here.spans] + [int(evaluate_at(e, machine, Here())) for e in s.tensor.shape]
    machine.types[name] = s.tensor.dtype
    machine.memory[name] = scalar.from_memory(poison(s.tensor, shape), s.tensor.dtype)
    machine.written[name] = np.zeros(shape, np.bool_)
    machine.private[name] = points_of(here)
    machine.rings.discard(name)


def _store(
    buffer: str, index: tuple[Expr, ...], value: Array, dtype: DType, how: str, machine: Machine, here: Here
) -> None:
    places = [evaluate_at(i, machine, here) for i in (*machine.private.get(buffer, ()), *index)]
    unindexed = tuple(
        k for k, n in enumerate(here.shape) if n > 1 and all(p.ndim == 0 or p.shape[k] == 1 for p in places)
    )
    if how != "set" and unindexed:  # updates along these axes meet in one element
        value = np.expand_dims(_reduce_over(how, value, dtype, here, unindexed), unindexed)
        spans = tuple(replace(s, stop=s.start + 1) if k in unindexed else s for k, s in enumerate(here.spans))
        here = Here(spans, _any_taken(here, unindexed, True))
    target, written = machine.memory[buffer], machine.written.get(buffer)
    _check_store(buffer, places, index, target.shape, machine, here)
    taken = np.broadcast_to(True if here.taken is None else here.taken, here.shape)
    value = np.broadcast_to(value, here.shape)[taken]
    at = tuple(np.broadcast_to(p, here.shape)[taken] for p in places)
    if not value.size:
        return
    if how != "set" and written is not None and not written[at].all():
        raise InterpretError(f"{machine.where}: {buffer} is accumulated into before its first write")
    scalar.combine_at(how, target, at, value)
    if written is not None:
        written[at] = True


def _check_store(
    buffer: str, places: list[Array], index: tuple[Expr, ...], shape: tuple[int, ...], machine: Machine, here: Here
) -> None:
    what = f"{buffer}[{', '.join(map(show, index))}] stores to"
    first = len(places) - len(index)
    for d, (p, n) in enumerate(zip(places, shape, strict=True)):
        if p.size and (p.min() < 0 or p.max() >= n):
            outside = (p < 0) | (p >= n)
            raise_out_of_bounds(
                outside if here.taken is None else outside & here.taken, p, n, what, d - first, machine.where
            )


# ---- copies and tensor instructions


def _copy_loops(target: Slice, source: Slice, machine: Machine) -> tuple[Stmt, ...]:
    """A copy as the equivalent loops. Elements of a tile that were not written leave what they are copied to unwritten:
    moving them is no use of their values."""
    box = extents(target)
    names = [f"copy {k}" for k in range(len(box))]
    target_index = element(target, [Var(name, i64) for name in names])
    source_index = element(source, _position(box, names, extents(source)))
    exists, fits = _inside(source, source_index, machine), _inside(target, target_index, machine)
    zero = cast(const(0, compute(machine.types[source.buffer])), machine.types[source.buffer])
    value = select(exists, Load(source.buffer, source_index, machine.types[source.buffer]), zero)
    if source.buffer not in machine.private or target.buffer not in machine.private:
        return (_loops(names, box, If(fits, (Store(target.buffer, target_index, value),))),)
    known = select(exists, Load(_mask(source.buffer, machine), source_index, boolean), const(True, boolean))
    moved = If(both(fits, known), (Store(target.buffer, target_index, value),))
    marked = If(fits, (Store(_mask(target.buffer, machine), target_index, known),))
    return _loops(names, box, moved), _loops(names, box, marked)


def _mask(name: str, machine: Machine) -> str:
    """The name of the buffer that tells which elements of a tile were written."""
    mask = f"{name}, written"
    machine.memory[mask], machine.private[mask] = machine.written[name], machine.private[name]
    return mask


def _loops(names: Sequence[str], box: Sequence[int], inner: Stmt) -> Stmt:
    for name, n in reversed(list(zip(names, box, strict=True))):
        inner = For(name, dim(n), "parallel", Bind("serial"), (inner,))
    return inner


def _position(box: Sequence[int], names: Sequence[str], other: Sequence[int]) -> list[Expr]:
    """The position in a box of extents `other` of the element at position `names` in a box of extents `box`."""
    if list(box) == list(other):
        return [Var(name, i64) for name in names]
    number: Expr = dim(0)
    for name, n in zip(names, box, strict=True):
        number = number * n + Var(name, i64)
    out: list[Expr] = []
    for n in reversed(other[1:]):
        out.insert(0, number % n)
        number = number // n
    return [number, *out]


def _inside(s: Slice, index: tuple[Expr, ...], machine: Machine) -> Expr:
    """The condition that an element of a slice is within its buffer."""
    shape = machine.memory[s.buffer].shape[len(machine.private.get(s.buffer, ())) :]
    return both(*(op("ge", i, 0) for i in index), *(op("lt", i, n) for i, n in zip(index, shape, strict=True)))


def _multiply(s: Mma, machine: Machine, here: Here) -> None:
    """Both operands are read whole and multiplied in the accumulator's type, or in f32 if the sums are only stored; the
    product is added or stored as by a store."""
    target = machine.types[s.acc.buffer]
    dtype = f32 if s.store else target
    long = lengths(s)
    spans = {x: Span(f"mma {x}", 0, long[x]) for x in "mnk"}
    sizes = dict(zip("mnk", s.sizes, strict=True)) if s.sizes else {}

    def open_axes(axes: str) -> Here:
        at = here
        for x in axes:
            at = at.open(spans[x])
        for x in (x for x in axes if x in sizes):
            at = at.where(evaluate_at(op("lt", Var(spans[x].name, i64), sizes[x]), machine, at))
        return at

    def operand(x: Slice, own: str, axes: str) -> Array:
        at = open_axes(axes)
        load = Load(x.buffer, element(x, [Var(f"mma {letter}", i64) for letter in own]), machine.types[x.buffer])
        value = np.broadcast_to(evaluate_at(cast(load, dtype), machine, at), at.shape)
        return value if at.taken is None else np.where(at.taken, value, np.zeros((), value.dtype))

    c_axes, a_axes, b_axes = letters(s)
    with np.errstate(all="ignore"):
        product = np.matmul(operand(s.a, a_axes, "mk"), operand(s.b, b_axes, "kn"))
    index = element(s.acc, [Var(f"mma {letter}", i64) for letter in c_axes])
    made = scalar.rounded(np.asarray(product), target) if s.store else np.asarray(product)
    _store(s.acc.buffer, index, made, target, "set" if s.store else "sum", machine, open_axes("mn"))
