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
from compiler.runtime.packs import Pack, moved

Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides, offset from the start of the whole value


def with_views(
    launch: Launcher,
    buffers: Sequence[Buffer],
    views: Sequence[View | Expr],
    sizes: Mapping[Size, int],
    inputs: Collection[int] = (),
    packed: Collection[int] = (),
) -> Launcher:
    """A launcher of the results, as views of the `buffers` that `launch` returns; `launch` itself if no view is needed.

    Buffers whose positions are in `inputs` are arguments, which are results unchanged. So are the results `packed`, of
    which `launch` returns packs or None; where several share a buffer, the others are None.
    """
    restrided, steps = _steps(buffers, views, sizes, inputs)
    constant: dict[int, int | None] = {
        n: numbers((v,), sizes)[0] for n, v in enumerate(views) if not isinstance(v, View)
    }
    sources = [n for n, _ in steps]
    constant |= {k: None for k in packed if sources.index(sources[k]) < k}
    steps = [(n, None if k in packed else layout) for k, (n, layout) in enumerate(steps)]
    if steps == [(n, None) for n in range(len(buffers))]:
        return launch

    def run(*arguments: Any) -> tuple[Any, ...]:
        outputs: Sequence[torch.Tensor] = launch(*arguments)
        if restrided:
            outputs = [with_strides(x, *restrided[n]) if n in restrided else x for n, x in enumerate(outputs)]
        out = [outputs[n] if layout is None else _reinterpret_tensor(outputs[n], *layout) for n, layout in steps]
        for n, number in constant.items():
            out[n] = number
        return tuple(out)

    return run


def packed_outputs(
    packed_results: Sequence[Pack],
    buffers: Sequence[Buffer],
    views: Sequence[View | Expr],
    sizes: Mapping[Size, int],
    inputs: Collection[int] = (),
) -> tuple[tuple[Pack, ...], frozenset[int]]:
    """Packs of results as packs of outputs, which are the buffers not in `inputs`; and the results in these packs.

    An output is in a pack if all results that are views of it are, where its memory would put them. Other results are
    left out.
    """
    fresh = [n for n in range(len(buffers)) if n not in inputs]
    restrided, steps = _steps(buffers, views, sizes, inputs)
    offsets = [layout[2] if layout else 0 for _, layout in steps]
    results_of = {n: [k for k, (source, _) in enumerate(steps) if source == n] for n in fresh if n not in restrided}
    packs: list[Pack] = []
    within: set[int] = set()
    for pack in packed_results:
        start_of = dict(pack.pieces)
        begins_of = {
            n: {start_of[k] - offsets[k] if k in start_of else -1 for k in results} for n, results in results_of.items()
        }
        pieces = [
            (n, begin) for n, begins in begins_of.items() if len(begins) == 1
            for begin in begins if begin >= 0 and _is_free(pack, begin, buffers[n], results_of[n])
        ]  # fmt: skip
        within |= {k for n, _ in pieces for k in results_of[n]}
        packs += moved([Pack(pack.numel, tuple(pieces))], {n: k for k, n in enumerate(fresh)})
    return tuple(packs), frozenset(within)


def _is_free(pack: Pack, begin: int, buffer: Buffer, results: Collection[int]) -> bool:
    """Whether the pack has room for a buffer at `begin`, in which no results but its own start."""
    end = begin + element_span(buffer.shape, buffer.stride)
    return end <= pack.numel and all(k in results for k, start in pack.pieces if begin <= start < end)


def _steps(
    buffers: Sequence[Buffer], views: Sequence[View | Expr], sizes: Mapping[Size, int], inputs: Collection[int]
) -> tuple[dict[int, tuple[tuple[int, ...], int]], list[tuple[int, Layout | None]]]:
    """The buffers to copy to other strides, with these; and for each result its buffer, with a layout if it is a view.

    A number has the buffer -1.
    """
    memory = {v.source: (numbers(v.memory, sizes), numbers((v.begin,), sizes)[0]) for v in views if isinstance(v, View)}
    restrided = {
        n: (strides, begin) for n, (strides, begin) in memory.items()
        if n not in inputs and (begin or not _has_strides(buffers[n], strides))
    }  # fmt: skip
    used = set(restrided)
    steps: list[tuple[int, Layout | None]] = []
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
    return restrided, steps


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
