"""Results that share memory: a launcher of whole values and a view for each result in, a launcher of results out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import _reinterpret_tensor  # type: ignore[attr-defined]

from compiler.frontend.results import View
from compiler.ir.expr import Expr, Size
from compiler.ir.sizes import numbers
from compiler.runtime import gpu
from compiler.runtime.launcher import Buffer, Launcher

Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, offset from where the whole value begins


def viewed(
    launch: Launcher,
    made: Sequence[Buffer],
    views: Sequence[View | Expr],
    sizes: Mapping[Size, int],
    inputs: Collection[int] = (),
) -> Launcher:
    """A launcher of the results, from one of the buffers `made`; itself, where its outputs are the results.

    Those `made` whose numbers are in `inputs` are arguments, which are results as they are.
    """
    memory = {v.source: (numbers(v.memory, sizes), numbers((v.begin,), sizes)[0]) for v in views if isinstance(v, View)}
    moved = {
        n: (strides, begin) for n, (strides, begin) in memory.items()
        if n not in inputs and (begin or not _lies(made[n], strides))
    }  # fmt: skip
    taken = set(moved)
    steps: list[tuple[int, Layout | None]] = []  # of a number -1 and no layout
    for v in views:
        if not isinstance(v, View):
            steps.append((-1, None))
            continue
        ahead = numbers((v.offset,), sizes)[0] - memory[v.source][1]
        own = (numbers(v.shape, sizes), numbers(v.strides, sizes), ahead)
        is_whole = v.source in inputs or own == (made[v.source].shape, made[v.source].stride, 0)
        is_itself = v.source not in taken and is_whole
        steps.append((v.source, None if is_itself else own))
        taken |= {v.source} if is_itself else set()
    if steps == [(n, None) for n in range(len(made))]:
        return launch
    constant = {n: numbers((v,), sizes)[0] for n, v in enumerate(views) if not isinstance(v, View)}

    def run(*arguments: Any) -> tuple[Any, ...]:
        outputs: Sequence[torch.Tensor] = launch(*arguments)
        if moved:
            outputs = [brought(x, *moved[n]) if n in moved else x for n, x in enumerate(outputs)]
        out = [outputs[n] if how is None else _reinterpret_tensor(outputs[n], *how) for n, how in steps]
        for n, number in constant.items():
            out[n] = number
        return tuple(out)

    return run


def overwriting(launch: Launcher, places: Mapping[int, int], aligned: bool) -> Launcher:
    """A launcher that also gives, as the results of these numbers, the arguments that it leaves them in.

    An argument that kernels cannot write to where it lies is lent to them as a copy: one that is negated when it is
    read, and one that is not `aligned` where it must be.
    """

    def run(*arguments: Any) -> tuple[Any, ...]:
        lent = list(arguments)
        for k in places.values():
            plain = lent[k].resolve_neg() if isinstance(lent[k], torch.Tensor) else lent[k]
            lent[k] = gpu.aligned(plain) if aligned and isinstance(plain, torch.Tensor) else plain
        results = list(launch(*lent))
        for n in sorted(places):
            k = places[n]
            if lent[k] is not arguments[k]:
                arguments[k].copy_(lent[k])
            results.insert(n, arguments[k])
        return tuple(results)

    return run


def brought(x: torch.Tensor, strides: tuple[int, ...], begin: int = 0) -> torch.Tensor:
    """The same elements at these strides, from `begin` on; along an axis whose stride is 0 they are one."""
    last = sum((n - 1) * step for n, step in zip(x.shape, strides, strict=True)) if x.numel() else -1
    memory = torch.empty(begin + last + 1, dtype=x.dtype, device=x.device)
    out = memory.as_strided(x.shape, strides, begin)
    first = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    out[first].copy_(x[first])
    return out


def _lies(buffer: Buffer, strides: tuple[int, ...]) -> bool:
    """Whether the buffer has its elements at these strides, which matter only along axes that are stepped along."""
    return 0 in buffer.shape or all(
        n == 1 or mine == its for n, mine, its in zip(buffer.shape, buffer.stride, strides, strict=True)
    )
