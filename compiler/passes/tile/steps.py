"""Schedule steps on Tile IR, one function each: it returns the changed kernel or raises ScheduleError."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from compiler.analysis.nests import accumulated, overwrites_only
from compiler.ir import tile
from compiler.ir.expr import Const, Var, const, names, op, substitute
from compiler.ir.index import simplify
from compiler.ir.rewrite import replaced
from compiler.ir.statement import If, Init, Kernel, Let, Program, Stmt, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import extent_range
from compiler.passes.tile import tensorize
from compiler.passes.tile.chain import chain
from compiler.passes.tile.checks import checks
from compiler.passes.tile.flatten import flatten
from compiler.passes.tile.gpu.accuracy import promote, split_tf32
from compiler.passes.tile.gpu.cache import cache
from compiler.passes.tile.gpu.cache_hints import cache_hints
from compiler.passes.tile.gpu.load_ahead import load_ahead
from compiler.passes.tile.gpu.multicast import multicast
from compiler.passes.tile.gpu.pad import pad
from compiler.passes.tile.gpu.permute import permute
from compiler.passes.tile.gpu.persist import persist
from compiler.passes.tile.gpu.raster import raster
from compiler.passes.tile.gpu.split_reduction import split_reduction
from compiler.passes.tile.gpu.split_scan import split_scan
from compiler.passes.tile.gpu.writeback import writeback
from compiler.passes.tile.hoist import hoist
from compiler.passes.tile.margin import margin
from compiler.passes.tile.nests import loop_variables, pieces, ranges_around
from compiler.passes.tile.online import online
from compiler.passes.tile.owners import check_votes, owners
from compiler.passes.tile.pack import pack
from compiler.passes.tile.partial_sums import partial_sums
from compiler.passes.tile.partition import partition
from compiler.passes.tile.peel import peel
from compiler.passes.tile.places import without_buffers
from compiler.passes.tile.stage import stage, store_in_tile
from compiler.passes.tile.store_sums import store_sums
from compiler.schedule import block_steps, steps
from compiler.schedule.steps import NameTaken, Schedule, ScheduleError, Step

# Cached steps, enough for a whole model: the planner applies steps as it completes schedules, and they are applied
# again afterwards.
REMEMBERED = 4096


def apply(program: Program, kernel: Kernel, schedule: Schedule) -> Program:
    """Return `program` with the steps applied to its kernel, first to last."""
    for step in schedule.steps:
        program, kernel = apply_step(program, kernel, step)
    return program


@functools.lru_cache(maxsize=REMEMBERED)
def apply_step(program: Program, kernel: Kernel, step: Step) -> tuple[Program, Kernel]:
    """Apply one step. The program changes too if a temporary moves into the kernel or a new one is made.

    Raises ScheduleError for a step that does not apply, and NameTaken for one that reuses a name.
    """
    new = _change_kernel(program, kernel, step)
    duplicates = [name for name, count in Counter(bound_names(new)).items() if count > 1] if step.makes else []
    if duplicates:
        raise NameTaken(step, kernel.name, duplicates)
    removed = {p.name for p in kernel.params} - {p.name for p in new.params}
    kept = tuple(t for t in program.temps if t.name not in removed)
    added = tuple(p for p in new.params if p.name not in {q.name for q in kernel.params})
    kernels = tuple(new if k is kernel else k for k in program.kernels)
    return program.replace(kernels=kernels, temps=(*kept, *added)), new


def bound_names(kernel: Kernel) -> Iterator[str]:
    """Every name that a kernel binds."""
    yield from (p.name for p in kernel.params)
    inside = list(kernel.body)
    while inside:
        s = inside.pop()
        match s:
            case tile.For(var=name, body=body):
                yield name
                inside += body
            case If(body=body):
                inside += body
            case Let(name) | Init(name) | tile.Alloc(Tensor(name)):
                yield name


def _change_kernel(program: Program, kernel: Kernel, step: Step) -> Kernel:
    """The kernel after one step."""
    kind = type(step)
    if kind in _OF_LOOP:
        return replace_loop(kernel, step, lambda f: _OF_LOOP[kind](step, f, kernel))
    if kind in _OF_PROGRAM:
        return _OF_PROGRAM[kind](program, kernel, step)
    return _OF_KERNEL[kind](kernel, step)


def replace_loop(kernel: Kernel, step: Any, change: Callable[[tile.For], tuple[Stmt, ...]]) -> Kernel:
    """`kernel` with the loop of a step replaced; for a step with several loops, the outermost."""
    wanted = step.loops if isinstance(step, steps.Reorder) else (getattr(step, "outer", "") or step.loop,)
    loops = list(within(kernel.body, tile.For))
    found = next((f for f in loops if f.var in wanted), None)
    if found is None:
        have = ", ".join(f.var for f in loops)
        raise ScheduleError(step, f"kernel {kernel.name} has no loop {wanted[0]}; it has {have}")
    return kernel.replace(body=replaced(kernel.body, found, change(found)))


def split(step: steps.Split, f: tile.For) -> tuple[Stmt, ...]:
    """`split("i", 16, into=("i0", "i1"))`

    before:
        for i in serial(100):
            y[i] = x[i]
    after:
        for i0 in serial(7):
            for i1 in serial(min(16, 100 - i0 * 16)):
                y[i0 * 16 + i1] = x[i0 * 16 + i1]
    """
    if step.factor < 1:
        raise ScheduleError(step, "the factor must be at least 1")
    outer, inner = loop_variables(step, step.into, 2)
    count, left = pieces(f.extent, step.factor, outer)
    ranges = {outer.name: extent_range(count), inner.name: (0, step.factor - 1)}
    body = simplify(substitute(f.body, {Var(f.var): outer * step.factor + inner}), ranges)
    return (tile.For(outer.name, count, f.kind, f.bind, (tile.For(inner.name, left, f.kind, f.bind, body),)),)


def split_shifted(step: steps.SplitShifted, f: tile.For) -> tuple[Stmt, ...]:
    """`split_shifted("i", 16, into=("i0", "i1"))`

    before:
        for i in serial(100):
            y[i] = x[i]
    after:
        for i0 in serial(7):
            for i1 in serial(16):
                y[min(i0 * 16, 84) + i1] = x[min(i0 * 16, 84) + i1]
    """
    if not isinstance(f.extent, Const) or not 1 <= step.factor <= int(f.extent.value):
        raise ScheduleError(step, f"{f.var} must have a known extent, which is no less than the factor")
    if f.kind != "parallel" or accumulated(f.body) or not overwrites_only(f.body):
        raise ScheduleError(step, f"iterations of {f.var} must not see what they left behind when they ran before")
    extent = int(f.extent.value)
    outer, inner = loop_variables(step, step.into, 2)
    start = op("min", outer * step.factor, extent - step.factor) if extent % step.factor else outer * step.factor
    ranges = {outer.name: (0, -(-extent // step.factor) - 1), inner.name: (0, step.factor - 1)}
    body = simplify(substitute(f.body, {Var(f.var): start + inner}), ranges)
    within = tile.For(inner.name, const(step.factor), f.kind, f.bind, body)
    return (tile.For(outer.name, const(ranges[outer.name][1] + 1), f.kind, f.bind, (within,)),)


def wrap(step: steps.Wrap, f: tile.For) -> tuple[Stmt, ...]:
    """`wrap("i", into="one")`

    before:
        for i in serial(100):
            y[i] = x[i]
    after:
        for one in serial(1):
            for i in serial(100):
                y[i] = x[i]
    """
    (loop,) = loop_variables(step, (step.into,), 1)
    return (tile.For(loop.name, const(1), "parallel", f.bind, (f,)),)


def bind(step: steps.Bind, f: tile.For) -> tuple[Stmt, ...]:
    """`bind("i", vector, width=8)`

    before:
        for i in serial(100):
            y[i] = x[i]
    after:
        for i in vector(100, width=8):
            y[i] = x[i]
    """
    binding = tile.Bind(step.level, step.args)
    problem = tile.binding_error(f.var, f.kind, binding)
    if problem:
        raise ScheduleError(step, problem)
    if step.level == "votes":
        check_votes(step, f)
    return (f.replace(bind=binding),)


def reorder(step: steps.Reorder, f: tile.For) -> tuple[Stmt, ...]:
    """`reorder(("j", "i"))`

    before:
        for i in serial(8):
            for j in serial(10):
                y[i, j] = x[i, j]
    after:
        for j in serial(10):
            for i in serial(8):
                y[i, j] = x[i, j]
    """
    nest: list[tile.For] = []
    here: Stmt = f
    while isinstance(here, tile.For) and here.var in step.loops:
        nest.append(here)
        here = here.body[0] if len(here.body) == 1 else If(Const(True, Var("", here.extent.dtype).dtype), ())
    if {n.var for n in nest} != set(step.loops):
        raise ScheduleError(step, f"only {', '.join(n.var for n in nest)} are perfectly nested here")
    by_name = {n.var: n for n in nest}
    kinds = {n.kind for n in nest}
    scans = [n.var for n in nest if n.kind == "scan"]
    if scans and (kinds - {"scan", "parallel"} or scans != [v for v in step.loops if v in scans]):
        raise ScheduleError(step, "a scan runs in order")
    for k, var in enumerate(step.loops):
        later = set(step.loops[k:])
        if names(by_name[var].extent) & later:
            raise ScheduleError(step, f"the extent of {var} depends on a loop that would be inside it")
    body = nest[-1].body
    for var in reversed(step.loops):
        body = (by_name[var].replace(body=body),)
    return body


def collapse(step: steps.Collapse, f: tile.For) -> tuple[Stmt, ...]:
    """`collapse("i", "j", into="ij")`

    before:
        for i in serial(8):
            for j in serial(10):
                y[i, j] = x[i, j]
    after:
        for ij in serial(80):
            y[ij // 10, ij % 10] = x[ij // 10, ij % 10]
    """
    match f.body:
        case (tile.For(var=inner, extent=n, kind=kind, body=body),) if inner == step.inner and kind == f.kind:
            if f.var in names(n):
                raise ScheduleError(step, "the inner extent depends on the outer loop")
            both = Var(step.into)
            ranges = {both.name: extent_range(f.extent * n)}
            table = {Var(step.outer): both // n, Var(step.inner): both % n}
            return (tile.For(both.name, f.extent * n, kind, f.bind, simplify(substitute(body, table), ranges)),)
    raise ScheduleError(step, f"{step.inner} is not the only statement of {step.outer}, or of another kind")


def store_at(program: Program, kernel: Kernel, step: steps.StoreAt) -> Kernel:
    """`store_at("t", "i")`

    before:
        for i in serial(8):
            for j in serial(10):
                t[i, j] = x[i, j]
    after:
        for i in serial(8):
            t = local(f32[10])
            for j in serial(10):
                t[j] = x[i, j]

    If an axis is indexed by `i` and loops inside it together, such as `i * 4 + j` with `j` below 4, the tile keeps 4
    places.
    """
    buffer = next((t for t in program.temps if t.name == step.buffer), None)
    users = [k.name for k in program.kernels if any(p.name == step.buffer for p in k.params)]
    if buffer is None or users != [kernel.name]:
        raise ScheduleError(step, f"{step.buffer} is not a temporary of this kernel alone")
    made = replace_loop(kernel, step, lambda f: store_in_tile(step, kernel, f, buffer))
    return without_buffers(kernel, (buffer.name,), made.body)


# Steps by what they change: a whole kernel, a loop of it, or a kernel within its program.
_OF_KERNEL: dict[type[Step], Callable[[Kernel, Any], Kernel]] = {
    steps.Permute: permute, steps.Flatten: flatten, steps.Distribute: tensorize.distribute, steps.Pack: pack,
    steps.Owners: owners, steps.Tensorize: tensorize.tensorize, steps.Pad: pad, steps.Cache: cache,
    steps.Promote: promote, steps.SplitTf32: split_tf32, steps.Writeback: writeback, steps.LoadAhead: load_ahead,
    steps.CacheHints: cache_hints, steps.Checks: checks, steps.Raster: raster, steps.Persist: persist,
    steps.SplitScan: split_scan, steps.SplitReduction: split_reduction, steps.StoreSums: store_sums,
    steps.Multicast: multicast,
}  # fmt: skip
_OF_LOOP: dict[type[Step], Callable[[Any, tile.For, Kernel], tuple[Stmt, ...]]] = {
    steps.Split: lambda step, f, _: split(step, f),
    steps.SplitShifted: lambda step, f, _: split_shifted(step, f),
    steps.Wrap: lambda step, f, _: wrap(step, f),
    steps.Reorder: lambda step, f, _: reorder(step, f),
    steps.Collapse: lambda step, f, _: collapse(step, f),
    steps.Bind: lambda step, f, _: bind(step, f),
    steps.Hoist: lambda step, f, _: hoist(step, f),
    steps.Stage: lambda step, f, kernel: stage(kernel, step, f),
    steps.Margin: lambda step, f, kernel: margin(kernel, step, f),
    steps.PartialSums: partial_sums,
    steps.Partition: lambda step, f, kernel: partition(step, f, ranges_around(kernel, f)),
    steps.Peel: lambda step, f, kernel: peel(step, f, ranges_around(kernel, f)),
}
_OF_PROGRAM: dict[type[Step], Callable[[Program, Kernel, Any], Kernel]] = {
    steps.StoreAt: store_at,
    block_steps.Online: online,
    block_steps.Chain: chain,
}
