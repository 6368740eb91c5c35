"""Ops whose results are declared with other sizes or strides than their kernels give them, traced with the right ones.

PyTorch declares the results of these ops by definitions in Python: the strides of pointwise ops by the last call in the
definition instead of the op's own arguments, those of batch norms and of `logsigmoid` on a CPU as those of their input,
and (2.11) the sizes of norms along a dimension counted from the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
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

_corrected: ContextVar[Any] = ContextVar("_corrected", default=None)  # the op that is being traced by its correction


def corrections(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions that trace these ops with the right sizes and strides, by the op or its decomposition in `table`.

    They return NotImplemented for calls that are declared right, if the op has no decomposition.
    """
    pointwise = {op: functools.partial(_with_strides, op, table.get(op)) for op in _POINTWISE}
    batch_norms = {op: functools.partial(_batch_norm, op) for op in _BATCH_NORMS}
    log_sigmoid = {
        op: functools.partial(_of_contiguous, op, table.get(op)) for op in (_aten.log_sigmoid_forward.default,)
    }
    return {**pointwise, **batch_norms, **log_sigmoid, _aten.linalg_vector_norm.default: _norm}


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


def _of_contiguous(op: Any, definition: Callable[..., Any] | None, x: torch.Tensor) -> Any:
    """The op of a copy without gaps, as its kernel for CPUs makes one and returns tensors without gaps."""
    if x.device.type != "cpu" or x.is_contiguous() or _corrected.get() is op:
        return NotImplemented if definition is None else definition(x)
    with _inside(op):
        return op(x.contiguous())


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
