"""Write an output in the memory of an input that it may overwrite.

A scatter whose base is that input then needs no copy of it: only its updates are stored. This is done if no kernel
reads the input after the one that starts the output, or that one can follow all that do; otherwise the output keeps its
own memory. The kernel itself may read the input if it reads each element just where it replaces it, as an optimizer's
step does, unless a check of data may stop the program then or later: then its arguments stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.analysis.nests import has_checks, perfect
from compiler.analysis.replacement import replacing_store
from compiler.ir import loop
from compiler.ir.expr import Const, Load, Var, dim, static
from compiler.ir.isomorphism import free_name
from compiler.ir.rewrite import accesses
from compiler.ir.statement import Kernel, Program, Store
from compiler.ir.tensor import ALIGNMENT, Tensor, is_static, memory_order, row_major


def in_place(program: Program, into: Mapping[str, str], checks_report_later: bool = False) -> Program:
    """Return the program with each output named in `into` written in the memory of its input, if possible."""
    inputs = {t.name: t for t in program.inputs}
    for name, place in into.items():
        program = _place_output(program, name, inputs[place], checks_report_later) or program
    return program


def _place_output(program: Program, name: str, place: Tensor, checks_report_later: bool) -> Program | None:
    """The program with the tensor `name` in the memory of `place`; None if that is not possible."""
    program = _write_late(program, name, place, checks_report_later)
    writers = [k for k in program.kernels if name in k.writes]
    source = copied_buffer(writers[0]) if len(writers) == 2 else None
    if source in {t.name for t in program.temps}:
        placed = _place_output(program, str(source), place, checks_report_later)
        return _place_output(placed, name, place, checks_report_later) if placed is not None else None
    first, match_axes = writers[0], _same_axes
    if source == place.name:
        program = program.replace(kernels=tuple(k for k in program.kernels if k is not writers[0]))
        first, match_axes = writers[1], lambda old, place: axes_of_copy(writers[0])
    old = next(p for p in first.params if p.name == name)
    later = program.kernels[program.kernels.index(first) :]
    if any(place in k.params for k in later[1:]) or old.dtype is not place.dtype:
        return None
    may_replace = len(writers) == 1 and (checks_report_later or not any(map(has_checks, later)))
    if place in first.params and not (may_replace and _replaces_elements(first, name, place.name)):
        return None
    if not _has_disjoint_elements(place) or not _has_aligned_row_ends(place):
        return None
    axes = match_axes(old, place)
    return store_in(program, name, place, axes) if axes is not None else None


def _write_late(program: Program, name: str, place: Tensor, checks_report_later: bool) -> Program:
    """The program with the only kernel that writes `name` after all that read `place` or may stop the program, if that
    is possible."""
    writers = [k for k in program.kernels if name in k.writes]
    first = program.kernels.index(writers[0])
    later = program.kernels[first + 1 :]
    waits_for = [place in k.params or (has_checks(k) and not checks_report_later) for k in later]
    count = max((n + 1 for n, waits in enumerate(waits_for) if waits), default=0)
    passed, rest = later[:count], later[count:]
    made, read = {*writers[0].writes}, {p.name for p in writers[0].params}
    if len(writers) > 1 or any(made & {p.name for p in k.params} or read & {*k.writes} for k in passed):
        return program
    return program.replace(kernels=(*program.kernels[:first], *passed, writers[0], *rest))


def _replaces_elements(kernel: Kernel, name: str, place: str) -> bool:
    """Whether a kernel loads an element of `place` only in the iteration that stores that of `name`, and before."""
    loops, body = perfect(loop.For, kernel.body)
    store = replacing_store(body, name, place)
    return store is not None and {Var(f.var) for f in loops} <= set(store.index)


def store_in(program: Program, name: str, place: Tensor, axes: tuple[int, ...]) -> Program:
    """The program without the tensor `name`, stored in `place` instead.

    `axes` has for each axis of `place` the corresponding one of `name`, or -1 for an axis of one element.
    """

    def rule(n: Load | Store) -> object:
        if n.buffer != name:
            return None
        return n.replace(buffer=place.name, index=tuple(n.index[d] if d >= 0 else dim(0) for d in axes))

    def changed(k: Kernel) -> Kernel:
        k = free_name(k, place.name)
        return k.replace(
            params=tuple(place if p.name == name else p for p in k.params if p.name != place.name),
            writes=tuple(place.name if w == name else w for w in k.writes),
            body=accesses(k.body, rule),
        )

    return program.replace(
        outputs=tuple(t for t in program.outputs if t.name != name),
        temps=tuple(t for t in program.temps if t.name != name),
        kernels=tuple(changed(k) if any(p.name == name for p in k.params) else k for k in program.kernels),
    )


def _match_copy(k: Kernel) -> tuple[list[loop.For], Store, Load] | None:
    """The loops, the store and the load of a kernel that only copies; None for others."""
    loops, body = perfect(loop.For, k.body, loop.KINDS)
    match body:
        case (Store(value=Load() as load, op="set") as store,):
            return loops, store, load
    return None


def copied_buffer(k: Kernel) -> str:
    """The buffer that a kernel copies entirely, doing nothing else; "" for other kernels."""
    found = _match_copy(k)
    if found is None:
        return ""
    loops, store, load = found
    extents = {Var(f.var): f.extent for f in loops}
    source = next(p for p in k.params if p.name == load.buffer)
    used = [i for i in load.index if not isinstance(i, Const)]
    lengths = [extents.get(i, dim(1)) if isinstance(i, Var) else dim(1) for i in load.index]
    whole = all(n is end for n, end in zip(source.shape, lengths, strict=True))
    is_bijective = {*used} == {*store.index} == {*extents} and len(used) == len(store.index) == len(extents)
    return load.buffer if whole and is_bijective else ""


def axes_of_copy(k: Kernel, of_copy: bool = False) -> tuple[int, ...]:
    """For each axis of the source of a copy the corresponding axis of the copy, or -1; with `of_copy`, for each axis of
    the copy that of the source."""
    found = _match_copy(k)
    assert found is not None
    _, store, load = found
    these, others = (store.index, load.index) if of_copy else (load.index, store.index)
    return tuple(others.index(i) if i in others else -1 for i in these)


def _same_axes(old: Tensor, place: Tensor) -> tuple[int, ...] | None:
    """The axes of `old` for those of `place` if the shapes are equal apart from axes of one element, else None."""
    axes = [d for d, n in enumerate(place.shape) if n is not dim(1)]
    if [place.shape[d] for d in axes] != [n for n in old.shape if n is not dim(1)] or dim(1) in old.shape:
        return None
    return tuple(axes.index(d) if d in axes else -1 for d in range(len(place.shape)))


def _has_disjoint_elements(t: Tensor) -> bool:
    """Whether no two elements share memory. With symbolic sizes, this is known only of contiguous tensors."""
    if not is_static(t):
        return t.strides == row_major(t.shape)
    reach = 0
    for d in reversed(memory_order(t)):
        count, step = (int(n.value) for n in (t.shape[d], t.strides[d]) if isinstance(n, Const))
        if count > 1 and step <= reach:
            return False
        reach += max(count - 1, 0) * step
    return True


def _has_aligned_row_ends(t: Tensor) -> bool:
    """Whether no row ends inside 16 bytes that also hold other data: a bulk store of a GPU writes all 16."""
    if t.strides == row_major(t.shape) or not is_static(t):
        return True
    row_lengths = [n for n, step in zip(t.shape, t.strides, strict=True) if step is dim(1) and n is not dim(1)]
    return all(static(n) * t.dtype.bytes % ALIGNMENT == 0 for n in row_lengths)
