"""Ops whose results are declared with other sizes or strides than their kernels give them, traced with the right ones.

PyTorch declares the results of these ops by definitions in Python: the strides of pointwise ops by the last call in the
definition instead of the op's own arguments, those of batch norms and of `logsigmoid` on a CPU as those of their input,
those of some moves of channels-last images on a CPU as contiguous, and (2.11) the sizes of norms along a dimension
counted from the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx import Node

from compiler.frontend.layouts import ensure_layout, layout_of, op_layouts

_aten = torch.ops.aten
# Pointwise ops of two tensors, with the strides that all such kernels choose from their arguments.
_POINTWISE = (
    _aten.copysign.Tensor, _aten.floor_divide.default, _aten.logaddexp.default, _aten.logical_and.default,
    _aten.logical_or.default, _aten.logical_xor.default, _aten.heaviside.default, _aten.xlogy.Tensor,
    _aten.special_xlog1py.default,
)  # fmt: skip
_BATCH_NORMS = (
    _aten._native_batch_norm_legit_no_training.default, _aten._native_batch_norm_legit_functional.default,
    _aten._native_batch_norm_legit.no_stats,
)  # fmt: skip
# Ops that only move elements, with images whose channels come last in memory if their input has.
_MOVES = (_aten.roll.default, _aten.channel_shuffle.default, _aten.max_unpool2d.default)

_corrected: ContextVar[Any] = ContextVar("_corrected", default=None)  # the op that is being traced by its correction


def corrections(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions that trace these ops with the right sizes and strides, by the op or its decomposition in `table`.

    They return NotImplemented for calls that are declared right, if the op has no decomposition.
    """
    pointwise = {op: functools.partial(_with_strides, op, table.get(op)) for op in _POINTWISE}
    batch_norms = {op: functools.partial(_batch_norm, op) for op in _BATCH_NORMS}
    moves = {op: functools.partial(_move, op, table.get(op)) for op in _MOVES}
    log_sigmoid = functools.partial(_log_sigmoid, table.get(_aten.log_sigmoid_forward.default))
    others: dict[Any, Callable[..., Any]] = {
        _aten.log_sigmoid_forward.default: log_sigmoid,
        _aten.linalg_vector_norm.default: _norm,
    }
    return {**pointwise, **batch_norms, **moves, **others}


@contextmanager
def _inside(op: Any) -> Iterator[None]:
    token = _corrected.set(op)
    try:
        yield
    finally:
        _corrected.reset(token)


def _with_strides(op: Any, definition: Callable[..., Any] | None, a: Any, b: Any, **kwargs: Any) -> Any:
    """The op with the strides that `add` has for its arguments."""
    plain = (lambda *_, **__: NotImplemented) if definition is None else definition
    is_mixed = all(isinstance(x, torch.Tensor) for x in (a, b)) and a.stride() != b.stride()
    if not is_mixed or _corrected.get() is op:
        return plain(a, b, **kwargs)
    (right,) = op_layouts(_aten.add.Tensor, (a, b), {}) or [None]
    with _inside(op):
        result = op(a, b, **kwargs)
    return ensure_layout(result, right)


def _batch_norm(op: Any, x: torch.Tensor, *args: Any) -> Any:
    """The normalised input is contiguous or, with the channels last, as the input."""
    right = layout_of(torch.empty_like(x, memory_format=suggest_memory_format(x)))
    if x.device.type != "cpu" or layout_of(x) == right or _corrected.get() is op:
        return NotImplemented
    with _inside(op):
        normalised, *others = op(x, *args)
    return ensure_layout(normalised, right), *others


def _log_sigmoid(definition: Callable[..., Any] | None, x: torch.Tensor) -> Any:
    """On a CPU the op of a contiguous copy, since its kernel makes one."""
    op = _aten.log_sigmoid_forward.default
    if x.device.type != "cpu" or x.is_contiguous() or _corrected.get() is op:
        return NotImplemented if definition is None else definition(x)
    with _inside(op):
        return op(x.contiguous())


def _move(op: Any, definition: Callable[..., Any] | None, x: torch.Tensor, *args: Any) -> Any:
    """On a CPU an image whose channels come last has a result whose channels come last."""
    is_image = x.device.type == "cpu" and x.dim() == 4 and suggest_memory_format(x) is torch.channels_last
    keeps_format = is_image and (op is not _aten.roll.default or _moves_along_axes(x, *args))
    if not keeps_format or _corrected.get() is op:
        return NotImplemented if definition is None else definition(x, *args)
    with _inside(op):
        result = op(x, *args)
    return ensure_layout(result, layout_of(torch.empty_like(result, memory_format=torch.channels_last)))


def _moves_along_axes(x: torch.Tensor, shifts: Sequence[Any], axes: Sequence[int] = ()) -> bool:
    """Whether `roll` moves elements along each of some axes. Else it flattens or copies to contiguous memory."""
    return bool(axes) and all(isinstance(n, int) and n % x.shape[d] for n, d in zip(shifts, axes, strict=True))


def may_have_wrong_sizes(node: Node) -> bool:
    """Return whether a call's result may be declared with wrong sizes. Tracing it with its correction mends them."""
    return node.target is _aten.linalg_vector_norm.default and _counts_from_end(*node.args[2:3])


def _counts_from_end(dim: Any = None) -> bool:
    return bool(dim) and min(dim) < 0


def _norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norm, with dimensions counted from the start."""
    if not _counts_from_end(dim):
        return NotImplemented
    return _aten.linalg_vector_norm(x, ord, [d % x.dim() for d in dim] if x.dim() else dim, keepdim, dtype=dtype)
