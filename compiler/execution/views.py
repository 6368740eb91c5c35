"""Results that share memory: views of a launcher's outputs, and results in the memory of arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import _reinterpret_tensor  # type: ignore[attr-defined]

from compiler.frontend.results import View
from compiler.ir.expr import Expr, Size
from compiler.ir.sizes import numbers
from compiler.runtime.launcher import Buffer, Launcher
from compiler.runtime.memory import element_span

Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, offset from the start of the whole value


def with_views(
    launch: Launcher,
    buffers: Sequence[Buffer],
    views: Sequence[View | Expr],
    sizes: Mapping[Size, int],
    inputs: Collection[int] = (),
) -> Launcher:
    """A launcher of the results, as views of the `buffers` that `launch` returns; `launch` itself if no view is needed.

    Buffers whose positions are in `inputs` are arguments, which are results unchanged.
    """
    memory = {v.source: (numbers(v.memory, sizes), numbers((v.begin,), sizes)[0]) for v in views if isinstance(v, View)}
    restrided = {
        n: (strides, begin) for n, (strides, begin) in memory.items()
        if n not in inputs and (begin or not _has_strides(buffers[n], strides))
    }  # fmt: skip
    used = set(restrided)
    steps: list[tuple[int, Layout | None]] = []  # (-1, None) for a number
    for v in views:
        if not isinstance(v, View):
            steps.append((-1, None))
            continue
        offset = numbers((v.offset,), sizes)[0] - memory[v.source][1]
        view_layout = (numbers(v.shape, sizes), numbers(v.strides, sizes), offset)
        is_whole = v.source in inputs or view_layout == (buffers[v.source].shape, buffers[v.source].stride, 0)
        is_unchanged = v.source not in used and is_whole
        steps.append((v.source, None if is_unchanged else view_layout))
        used |= {v.source} if is_unchanged else set()
    if steps == [(n, None) for n in range(len(buffers))]:
        return launch
    constant = {n: numbers((v,), sizes)[0] for n, v in enumerate(views) if not isinstance(v, View)}

    def run(*arguments: Any) -> tuple[Any, ...]:
        outputs: Sequence[torch.Tensor] = launch(*arguments)
        if restrided:
            outputs = [with_strides(x, *restrided[n]) if n in restrided else x for n, x in enumerate(outputs)]
        out = [outputs[n] if layout is None else _reinterpret_tensor(outputs[n], *layout) for n, layout in steps]
        for n, number in constant.items():
            out[n] = number
        return tuple(out)

    return run


def with_strides(x: torch.Tensor, strides: tuple[int, ...], begin: int = 0) -> torch.Tensor:
    """The same elements at these strides from offset `begin` on; along an axis of stride 0 only the first is copied."""
    memory = torch.empty(begin + element_span(x.shape, strides), dtype=x.dtype, device=x.device)
    out = memory.as_strided(x.shape, strides, begin)
    first = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    out[first].copy_(x[first])
    return out


def _has_strides(buffer: Buffer, strides: tuple[int, ...]) -> bool:
    """Whether the buffer has these strides, which are irrelevant along axes of one element and for empty buffers."""
    return 0 in buffer.shape or all(
        n == 1 or actual == wanted for n, actual, wanted in zip(buffer.shape, buffer.stride, strides, strict=True)
    )
