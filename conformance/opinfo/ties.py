"""Results that torch leaves unspecified: which of several equal elements is chosen, and uninitialised memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.fuzz.runs import Run
from conformance.opinfo.entries import Sample

# Documented as "no guarantee which index is returned" or "order of equal elements is not preserved".
UNSPECIFIED_TIES = frozenset({"topk", "sort", "argsort", "msort", "kthvalue", "median", "nanmedian", "mode"})

UNWRITTEN = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})


def replace_unwritten(result: Run, eager: Sequence[Run]) -> Run:
    """Return the run with results replaced by eager's if these have the same dtype and shape."""
    expected = [b for run in eager for b in run.outputs]
    outputs = [
        b if (a.dtype, a.shape) == (b.dtype, b.shape) else a for a, b in zip(result.outputs, expected, strict=True)
    ]
    return Run(tuple(outputs), result.inputs, result.gradients)


def replace_tied_indices(result: Run, samples: Sequence[Sample], eager: Sequence[Run]) -> Run:
    """Return the run with indices replaced by eager's if they refer to equal elements, without duplicates."""
    outputs, k = list(result.outputs), 0
    for sample, run in zip(samples, eager, strict=True):
        for b in run.outputs:
            a = outputs[k]
            if b.dtype is torch.int64 and a.shape == b.shape and not torch.equal(a, b):
                outputs[k] = b if any(_refer_to_equal_elements(x, a, b) for x in sample.tensors) else a
            k += 1
    return Run(tuple(outputs), result.inputs, result.gradients)


def _refer_to_equal_elements(x: Tensor, a: Tensor, b: Tensor) -> bool:
    """Return whether, along some axis of x, the indices a and b refer to equal elements, and a has no duplicates."""
    return any(_are_equal_along(x, d, *pair) for d in range(x.dim()) for pair in _with_reduced_axis(x, d, a, b))


def _with_reduced_axis(x: Tensor, d: int, a: Tensor, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the indices with the axis that a reduction has removed; none if their rank does not fit."""
    if a.dim() == x.dim():
        return [(a, b)]
    return [(a.unsqueeze(d), b.unsqueeze(d))] if a.dim() == x.dim() - 1 else []


def _are_equal_along(x: Tensor, d: int, a: Tensor, b: Tensor) -> bool:
    others = [n for k, n in enumerate(x.shape) if k != d]
    if others != [n for k, n in enumerate(a.shape) if k != d] or not all(
        bool(((i >= 0) & (i < x.shape[d])).all()) for i in (a, b)
    ):
        return False
    p, q = x.gather(d, a), x.gather(d, b)
    if not bool(((p == q) | ((p != p) & (q != q))).all()):
        return False
    ordered = a.sort(d).values
    return not bool((ordered.narrow(d, 1, ordered.shape[d] - 1) == ordered.narrow(d, 0, ordered.shape[d] - 1)).any())
