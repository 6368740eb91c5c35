"""Make each row of a window over few channels one contiguous run of a copy (Loop IR to Loop IR).

Tensor instructions sum contiguous runs. A window of 7 pixels of 3 channels is no such run if channels are far apart,
and 3 channels leave an instruction mostly empty. In a copy with the channels of a pixel adjacent and zeros around the
image, it is a run of 7 * 4 elements, and neighbouring windows are overlapping runs: a kernel views the copy with one
axis for the window's position and one along the run. The other factor, or the result, is rearranged alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.analysis import access
from compiler.analysis.guarded_factors import steady, unwidened, zero
from compiler.analysis.nests import bound, loop_ranges, perfect, size, wrap
from compiler.ir import isomorphism, loop
from compiler.ir.expr import Expr, Load, Var, cast, const, fresh, loads, names, op, select, static
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.node import Node
from compiler.ir.statement import Accum, Kernel, Let, Program, Stmt, Store, within
from compiler.ir.tensor import Tensor, is_static, row_major
from compiler.ir.value_ranges import value_range
from compiler.schedule import space
from compiler.schedule.contraction_nest import Contraction, recognise
from compiler.targets.target import Target

MOST_CHANNELS = 8  # channels at most: more fill an instruction by themselves
STRIDE_UNIT = 16  # bytes; strides of a tensor map are multiples of it


@dataclass(frozen=True)
class _Window:
    """A factor that loads `load` through a window.

    Its index along `axis` is `step` times the loop `place` plus the loop `along`, and along the axis `channels` the
    loop `channel`. A pixel of the copy has room for `wide` channels.
    """

    load: Load
    axis: int
    step: int
    place: loop.For
    along: loop.For
    channels: int
    channel: loop.For
    wide: int

    @property
    def run(self) -> int:
        return size(self.along) * self.wide


@dataclass(frozen=True)
class _Copy:
    """A kernel that writes, or for results reads, the temporary `held`; the contraction accesses it as `view`."""

    kernel: Kernel
    held: Tensor
    view: Tensor


def window_rows(program: Program, target: Target) -> Program:
    """Make contractions of few channels read runs of a copy, if that and the copying are estimated faster."""
    estimates: dict[Node, float] = {}
    for k in program.kernels if not program.sizes else ():
        found = recognise(k)
        if found is None or perfect(loop.For, k.body)[1][0] is not found.first:
            continue
        every = [m for w in _windows(found, k) if (m := _replacement(found, w, k, program)) is not None]
        clocks = [_clocks(kernels, target, estimates) for kernels, _ in every]
        if every and min(clocks) < _clocks((k,), target, estimates):
            kernels, temps = every[clocks.index(min(clocks))]
            place = program.kernels.index(k)
            program = program.replace(
                kernels=(*program.kernels[:place], *kernels, *program.kernels[place + 1 :]),
                temps=(*program.temps, *temps),
            )
    return program


def _clocks(kernels: Sequence[Kernel], target: Target, known: dict[Node, float]) -> float:
    """The estimated time of some kernels. `known` caches estimates of kernels that differ only in names."""
    for k in kernels:
        if isomorphism.shape_of(k) not in known:
            known[isomorphism.shape_of(k)] = next(space.space(k, (), target)).cost
    return sum(known[isomorphism.shape_of(k)] for k in kernels)


# ---- what there is


def _windows(c: Contraction, k: Kernel) -> Iterator[_Window]:
    """The ways to see a factor as windows, for each axis of an image, the contiguous axis first."""
    tensors = {p.name: p for p in k.params}
    loops = {f.var: f for f in c.loops}
    used = [x.buffer for s in k.body for x in dict.fromkeys(loads(s))]
    for value in (c.left, c.right):
        found = steady(unwidened(value), {name: t.shape for name, t in tensors.items()}, loops.keys())
        if found is None or found[1] or used.count(found[0].buffer) != 1 or found[0].buffer in k.writes:
            continue
        load = found[0]
        t = tensors[load.buffer]
        if not is_static(t):
            continue
        for d in sorted(range(len(t.shape)), key=lambda d: int(static(t.strides[d]))):
            terms, _ = linear(load.index[d])
            for along, place in ((a, b) for a in terms for b in terms if a is not b and len(terms) == 2):
                if not isinstance(along, Var) or not isinstance(place, Var) or terms[along] != 1:
                    continue
                if 1 <= terms[place] < size(loops[along.name]):  # patches that do not overlap are runs already
                    yield from _windows_along(c, load, t, d, terms[place], loops[place.name], loops[along.name])


def _windows_along(
    c: Contraction, load: Load, t: Tensor, d: int, step: int, place: loop.For, along: loop.For
) -> Iterator[_Window]:
    """The windows along an axis, with each possible axis of channels: another whole axis, reduced if the window is."""
    for other, e in enumerate(load.index):
        channel = next((f for f in c.loops if e is Var(f.var)), None)
        if channel is None or channel.extent is not t.shape[other] or size(channel) > MOST_CHANNELS:
            continue
        own = {channel.var, place.var, along.var}
        is_separable = not any(names(x) & own for n, x in enumerate(load.index) if n not in (d, other))
        is_reduced = [f in c.depth for f in (along, channel, place)]
        if is_separable and is_reduced[0] is is_reduced[1] and is_reduced[0] is not is_reduced[2]:
            step_bytes = step * t.dtype.bytes
            wide = next(
                n for n in (1 << b for b in range(8)) if n >= size(channel) and n * step_bytes % STRIDE_UNIT == 0
            )
            yield _Window(load, d, step, place, along, other, channel, wide)


# ---- what becomes of it

Replacement = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]  # kernels, and the temporaries that they add


def _replacement(c: Contraction, w: _Window, k: Kernel, program: Program) -> Replacement | None:
    """The kernels that replace `k`, using runs; None if another use of the window's loops cannot be rearranged."""
    taken = {t.name for t in (*program.inputs, *program.outputs, *program.temps)} | bound(k)
    run = loop.For(fresh(f"{w.along.var}{w.channel.var}", taken), const(w.run), w.along.kind, ())
    runs = _copy_image(w, k, fresh(f"{w.load.buffer}_runs", taken))
    ranges = loop_ranges(c.loops)
    index = [
        simplify(e - low, ranges, index=True) for e, (low, _) in zip(w.load.index, _index_bounds(w, k), strict=True)
    ]
    load = Load(runs.view.name, (*_other_axes(index, w), Var(w.place.var), Var(run.var)), w.load.dtype)
    window_factor = c.left if w.load in loads(c.left) else c.right
    other_factor = c.right if window_factor is c.left else c.left
    loops = [f for f in c.loops if f not in (w.along, w.channel)] + [run]
    if run.kind == "reduce":
        copied = _copy_weights(w, k, other_factor, run, fresh(f"{loads(other_factor)[0].buffer}_runs", taken))
        if copied is None:
            return None
        copy, other_factor = copied
        kernels: tuple[Kernel, ...] = (runs.kernel, copy.kernel)
        views, writes, after = (runs.view, copy.view), k.writes, c.after
    elif names(other_factor) & {w.along.var, w.channel.var}:
        return None
    else:
        copy, stored = _copy_sums(c, w, k, run, fresh(f"{c.accumulator}runs", taken))
        kernels, views, writes, after = (runs.kernel,), (runs.view, copy.view), (copy.view.name,), (stored,)
    factors = (
        (cast(load, window_factor.dtype), other_factor)
        if window_factor is c.left
        else (other_factor, cast(load, window_factor.dtype))
    )
    body: tuple[Stmt, ...] = (Accum(c.accumulator, "sum", op("mul", *factors)),)
    body = (c.first, *wrap([f for f in loops if f.kind == "reduce"], body), *after)
    body = wrap([f for f in loops if f.kind == "parallel"], body)
    used = {n.buffer for s in body for n in s.walk() if isinstance(n, Load | Store)}
    params = tuple(p for p in (*views, *k.params) if p.name in used)
    kernels = (*kernels, k.replace(params=params, writes=writes, body=body))
    return (kernels if run.kind == "reduce" else (*kernels, copy.kernel)), (runs.held, copy.held)


def _other_axes(values: Sequence[Any], w: _Window) -> list[Any]:
    """The elements of `values` for the axes of an image other than the window's and the channels'."""
    return [x for d, x in enumerate(values) if d not in (w.axis, w.channels)]


def _index_bounds(w: _Window, k: Kernel) -> list[tuple[int, int]]:
    """The lowest and highest index that a window reaches along each axis of the image."""
    every = within(k.body, loop.For)
    ranges = loop_ranges(every)
    found = [value_range(e, ranges) for e in w.load.index]
    return [(low, high) for low, high in found if low is not None and high is not None]


def _copy_image(w: _Window, k: Kernel, name: str) -> _Copy:
    """The copy of the image, with rows padded so that the strides of a tensor map are multiples of its unit."""
    t = next(p for p in k.params if p.name == w.load.buffer)
    bounds = _index_bounds(w, k)
    low, high = bounds[w.axis]
    unit = math.lcm(w.step, STRIDE_UNIT // math.gcd(STRIDE_UNIT, w.wide * t.dtype.bytes))
    row = -(-(high - low + 1) // unit) * unit
    shape = tuple(const(n) for n in (*(b - a + 1 for a, b in _other_axes(bounds, w)), row, w.wide))
    copy = Tensor(name, t.dtype, shape, row_major(shape))
    at = [Var(f"at{d}") for d in range(len(shape))]
    order = [*_other_axes(range(len(t.shape)), w), w.axis, w.channels]
    index = {d: simplify(v + bounds[d][0], {}, index=True) for d, v in zip(order, at, strict=True)}
    source = Load(t.name, tuple(index[d] for d in range(len(order))), t.dtype)
    steps = (*copy.strides[:-2], const(w.step * w.wide), const(1))
    view = copy.replace(shape=(*shape[:-2], w.place.extent, const(w.run)), strides=steps)
    return _Copy(_copy_kernel(k, "windows", t, copy, source), copy, view)


def _copy_kernel(k: Kernel, part: str, t: Tensor, copy: Tensor, source: Load) -> Kernel:
    """The kernel that makes a copy, with zeros beyond the ends of the buffer."""
    nest = [loop.For(f"at{d}", n, "parallel", ()) for d, n in enumerate(copy.shape)]
    guard = access.inside(source.index, t, loop_ranges(nest))
    store = Store(copy.name, tuple(Var(f.var) for f in nest), select(guard, source, zero(source)))
    return _part_kernel(k, part, (t, copy), (copy.name,), wrap(nest, (store,)))


def _part_kernel(
    k: Kernel, part: str, params: tuple[Tensor, ...], writes: tuple[str, ...], body: tuple[Stmt, ...]
) -> Kernel:
    return Kernel(f"{k.name}_{part}", params, writes, body, tuple(f"{source}/{part}" for source in k.origin))


def _copy_weights(w: _Window, k: Kernel, value: Expr, run: loop.For, name: str) -> tuple[_Copy, Expr] | None:
    """A copy of the weights in the order of a run, and the load from it; None if they cannot be so arranged."""
    load, run_vars = unwidened(value), (Var(w.along.var), Var(w.channel.var))
    if not isinstance(load, Load) or any(load.index.count(v) != 1 for v in run_vars) or load.buffer == w.load.buffer:
        return None
    at = [load.index.index(v) for v in run_vars]
    others = [d for d in range(len(load.index)) if d not in at]
    t = next(p for p in k.params if p.name == load.buffer)
    if any(names(load.index[d]) & {v.name for v in run_vars} for d in others) or [t.shape[d] for d in at] != [
        w.along.extent, w.channel.extent,
    ]:  # fmt: skip
        return None
    unit = STRIDE_UNIT // math.gcd(STRIDE_UNIT, w.wide * t.dtype.bytes)
    shape = (*(t.shape[d] for d in others), const(-(-size(w.along) // unit) * unit), const(w.wide))
    copy = Tensor(name, t.dtype, shape, row_major(shape))
    place = {d: Var(f"at{n}") for n, d in enumerate((*others, *at))}
    source = Load(t.name, tuple(place[d] for d in range(len(load.index))), t.dtype)
    view = copy.replace(shape=(*shape[:-2], const(w.run)), strides=(*copy.strides[:-2], const(1)))
    run_load = Load(name, (*(load.index[d] for d in others), Var(run.var)), t.dtype)
    return _Copy(_copy_kernel(k, "weights", t, copy, source), copy, view), cast(run_load, value.dtype)


def _copy_sums(c: Contraction, w: _Window, k: Kernel, run: loop.For, name: str) -> tuple[_Copy, Store]:
    """The sums in the order of a run: the kernel that extracts the result from them, and the store that writes them."""
    rows = [f for f in c.rows if f not in (w.along, w.channel)]
    dtype = c.first.value.dtype
    shape = (*(f.extent for f in rows), w.along.extent, const(w.wide))
    copy = Tensor(name, dtype, shape, row_major(shape))
    flat = (*shape[:-2], const(w.run))
    view = copy.replace(shape=flat, strides=row_major(flat))
    stored = Store(name, tuple(Var(f.var) for f in (*rows, run)), Var(c.accumulator, dtype))
    run_load = Load(name, tuple(Var(f.var) for f in (*rows, w.along, w.channel)), dtype)
    body = wrap(c.rows, (Let(c.accumulator, run_load), *c.after))
    used = {n.buffer for s in body for n in s.walk() if isinstance(n, Load | Store)}
    params = tuple(p for p in (copy, *k.params) if p.name in used)
    return _Copy(_part_kernel(k, "result", params, k.writes, body), copy, view), stored
