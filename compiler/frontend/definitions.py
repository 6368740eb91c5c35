"""Decompositions of ops that torch has as kernels only, or whose decomposition in torch loses digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from compiler.frontend.types import widened
from compiler.ir.dtype import f32, rounded


def copying_form(view: Any, *args: Any, **kwargs: Any) -> Any:
    views = view(*args, **kwargs)
    copies = [x.clone(memory_format=torch.contiguous_format) for x in pytree.tree_leaves(views)]
    return copies[0] if isinstance(views, torch.Tensor) else copies


def _searchsorted(
    edges: torch.Tensor, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The number of edges before each value, by comparing all pairs.

    A NaN value is after all edges; a NaN edge is before no other value, consistent with sorting.
    """
    edges = edges if sorter is None else edges.gather(-1, sorter)
    x = x if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=edges.dtype, device=edges.device)
    values = x.unsqueeze(-1)
    aligned = edges.unsqueeze(-2) if edges.dim() > 1 else edges
    is_before: torch.Tensor = aligned <= values if right or side == "right" else aligned < values
    is_before = is_before | values.isnan() if values.is_floating_point() else is_before
    return is_before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Counts of the elements in bins of equal width. 16-bit types are computed in f32; eager rounds in between."""
    if not x.is_floating_point() or not x.numel() or isinstance(x.numel(), torch.SymInt):
        return NotImplemented
    dtype, x = x.dtype, x if x.dtype is torch.float64 else x.float()
    low, high = (x.new_full((), min), x.new_full((), max)) if min != max else _separate_ends(x.amin(), x.amax(), 1)
    in_range = (x >= low) & (x <= high)
    bin_index = torch.where(in_range, (x - low) * bins / (high - low), -1.0).trunc().clamp(max=bins - 1)
    return (bin_index.flatten().unsqueeze(-1) == torch.arange(bins, device=x.device)).sum(0).to(dtype)


def _separate_ends(low: torch.Tensor, high: torch.Tensor, distance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two ends, moved apart by `distance` each if they are equal."""
    return torch.where(low == high, low - distance, low), torch.where(low == high, high + distance, high)


def _bin_counts(
    x: torch.Tensor, edges: torch.Tensor, weight: torch.Tensor | None, density: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per bin, the sum of the weights of its elements, or the density. The last edge is inclusive."""
    values = x.flatten().unsqueeze(-1)
    in_bin = (values >= edges[:-1]) & ((values < edges[1:]) | ((values == edges[-1]) & (edges[1:] == edges[-1])))
    weights = torch.ones_like(values) if weight is None else weight.flatten().unsqueeze(-1)
    counts = torch.where(in_bin, weights, 0).sum(0)
    return counts / counts.sum() / edges.diff() if density else counts, edges


def _histogram_of_edges(
    x: torch.Tensor, bins: torch.Tensor, *, weight: torch.Tensor | None = None, density: bool = False
) -> Any:
    return _bin_counts(x, bins, weight, density)


def _histogram_of_bins(
    x: torch.Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: torch.Tensor | None = None,
    density: bool = False,
) -> Any:  # fmt: skip
    """Counts in bins of equal width, and the bin edges, which are computed from both ends, as in torch."""
    if not x.numel() or isinstance(x.numel(), torch.SymInt):
        return NotImplemented
    low, high = (x.amin(), x.amax()) if range is None else (x.new_full((), end) for end in range)
    low, high = _separate_ends(low, high, 0.5)
    step, k = (high - low) / bins, torch.arange(bins + 1, device=x.device)
    edges = torch.where(k < (bins + 1) // 2, low + step * k, high - step * (bins - k))
    return _bin_counts(x, edges, weight, density)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> Any:
    """Each position as often as its number says: at an output position, the number of runs that end at or before it.

    NotImplemented unless `output_size` is known.
    """
    if output_size is None or isinstance(output_size, torch.SymInt):
        return NotImplemented
    if not repeats.numel():
        return repeats.new_zeros(output_size)
    ends = repeats.cumsum(0)
    torch._assert_async((repeats >= 0).all() & (ends[-1] == output_size), "the numbers do not sum up to output_size")
    end_counts = repeats.new_zeros(output_size + 1).scatter_add(0, ends.clamp(0, output_size), torch.ones_like(repeats))
    return end_counts[:output_size].cumsum(0).to(repeats.dtype)


def _fake_quantize(
    x: torch.Tensor, scale: Any, inverse: Any, zero_point: Any, low: int, high: int, code_dtype: torch.dtype
) -> Any:
    """Fake quantization to integers from `low` to `high`: the rounded values, and the mask of elements in range.

    The integers are of `code_dtype` before they are clamped, which decides where infinities go; NaN goes to the lowest.
    """
    if x.dtype not in (torch.float32, torch.float16):
        return NotImplemented
    code = ((x.float() * inverse).round() + zero_point).to(code_dtype)
    clamped = code.clamp(low, high)
    clamped = torch.where(clamped.isnan(), low, clamped) if code_dtype.is_floating_point else clamped
    return ((clamped - zero_point).float() * scale).to(x.dtype), (code >= low) & (code <= high)


def _fake_quantize_tensor(x: torch.Tensor, scale: float, zero_point: int, low: int, high: int) -> Any:
    scale = rounded(scale, f32)
    inverse = rounded(1.0 / scale, f32) if scale else math.inf
    return _fake_quantize(x, scale, inverse, zero_point, low, high, torch.float32)


def _fake_quantize_if_enabled(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, low: int, high: int
) -> Any:
    scale, zero, is_enabled = scale.reshape(()), zero_point.reshape(()), enabled.reshape(()) != 0
    results = _fake_quantize(x, scale, 1.0 / scale, zero, low, high, torch.float32)
    return (
        results
        if results is NotImplemented
        else (torch.where(is_enabled, results[0], x), torch.where(is_enabled, results[1], True))
    )


def _fake_quantize_channels(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, low: int, high: int
) -> Any:
    if zero_point.is_floating_point():
        return NotImplemented
    shape = [1] * x.dim()
    shape[axis] = -1
    scale, zero = scale.reshape(shape), zero_point.reshape(shape)
    return _fake_quantize(x, scale, 1.0 / scale, zero, low, high, torch.int64)


def _scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Any:  # fmt: skip
    """A product of 8-bit matrices with one scale per row of `a` and column of `b`, or one scale per matrix."""
    result_dtype, compute_dtype = out_dtype or a.dtype, torch.float64 if a.dtype is torch.float64 else torch.float32
    is_per_matrix = scale_a.numel() == 1 and scale_b.numel() == 1
    is_per_row = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
    if scale_result is not None or not (is_per_matrix or is_per_row):
        return NotImplemented
    product = torch.mm(a.to(compute_dtype), b.to(compute_dtype)) * scale_a * scale_b
    return (product if bias is None else product + bias).to(result_dtype)


def _bucketize(x: Any, edges: torch.Tensor, **options: Any) -> torch.Tensor:
    return _searchsorted(edges, x, **options)


def _angle(x: torch.Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> torch.Tensor:  # fmt: skip
    for dim in expand1:
        a = a.unsqueeze(dim)
    for dim in expand2:
        b = b.unsqueeze(dim)
    for dim in expand3:
        c = c.unsqueeze(dim)
    product = a * b * c
    return product.sum(list(sumdim), dtype=product.dtype) if sumdim else product  # integers, too, keep their type


def _soft_margin_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = 1
) -> torch.Tensor:  # fmt: skip
    """Torch's definition subtracts 1 from a sigmoid near 1, which cancels."""
    gradient = -target * grad * torch.sigmoid(-target * x)
    return gradient / x.numel() if reduction == 1 else gradient  # the mean


def _smooth_l1_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:  # fmt: skip
    """Torch's definition gives a NaN the slope 0, its sign."""
    difference = x - target
    gradient = grad * torch.where(difference.abs() >= beta, difference.sign(), difference / beta)
    return gradient / x.numel() if reduction == 1 else gradient  # the mean


def _threshold_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    """Torch's definition rounds the threshold to the type of a 16-bit tensor, which `threshold` itself does not."""
    return torch.where(widened(x) <= threshold, 0, grad)


def _logit_backward(grad: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """Torch's definition has a slope of minus infinity at -0."""
    low, outside = (0.0, math.nan) if eps is None or eps < 0 else (eps, 0.0)
    is_outside = (x < low) | (x > 1 - low)
    return torch.where(is_outside, outside, grad / (x * (1 - x)).abs())


def _grouped_mm(
    x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Multiply groups of rows, which end at `offs`, each by its own matrix; rows after the last group give zeros."""
    if (x.dim(), weights.dim()) != (2, 3) or offs is None or bias is not None or out_dtype not in (None, x.dtype):
        return NotImplemented
    rows = torch.arange(x.shape[0], device=x.device)
    group = (offs <= rows.unsqueeze(-1)).sum(-1)
    products = torch.bmm(x.unsqueeze(1), weights[group.clamp(max=weights.shape[0] - 1)]).squeeze(1)
    return torch.where((group < weights.shape[0]).unsqueeze(-1), products, 0)


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:  # fmt: skip
    """A `scatter_reduce` in which all elements of a source slice have the same index."""
    if not x.dim():
        result = _index_reduce(x.unsqueeze(0), 0, index, source.reshape(1), reduce, include_self=include_self)
        return result.squeeze(0)
    shape = [1] * x.dim()
    shape[dim] = -1
    indices = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, indices, source, reduce, include_self=include_self)


def _frequencies(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """The frequencies of a Fourier transform: from 0 up, then the negative ones from the lowest up."""
    result_dtype = dtype or torch.get_default_dtype()
    if not result_dtype.is_floating_point:
        return NotImplemented
    positions = torch.arange(n, device=options.get("device"))
    return torch.where(positions < (n + 1) // 2, positions, positions - n).to(result_dtype) * (1.0 / (n * d))


def _real_frequencies(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    result_dtype = dtype or torch.get_default_dtype()
    if not result_dtype.is_floating_point:
        return NotImplemented
    return torch.arange(n // 2 + 1, device=options.get("device")).to(result_dtype) * (1.0 / (n * d))


# Keyed by the name of the overload.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "histc.default": _histogram, "histogram.bin_ct": _histogram_of_bins,
    "histogram.bins_tensor": _histogram_of_edges, "repeat_interleave.Tensor": _repeat_interleave,
    "searchsorted.Tensor": _searchsorted, "searchsorted.Scalar": _searchsorted,
    "bucketize.Tensor": _bucketize, "bucketize.Scalar": _bucketize,
    "index_reduce.default": _index_reduce,
    "logit_backward.default": _logit_backward, "threshold_backward.default": _threshold_backward,
    "soft_margin_loss_backward.default": _soft_margin_backward,
    "smooth_l1_loss_backward.default": _smooth_l1_backward,
    "angle.default": _angle, "_trilinear.default": _trilinear, "_grouped_mm.default": _grouped_mm,
    "fft_fftfreq.default": _frequencies, "fft_rfftfreq.default": _real_frequencies,
    "_scaled_mm.default": _scaled_mm, "fake_quantize_per_tensor_affine_cachemask.default": _fake_quantize_tensor,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantize_if_enabled,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_quantize_channels,
}  # fmt: skip
# Ops that other packages add to torch, keyed by their full name.
OTHERS: dict[str, Callable[..., Any]] = {"transformers.grouped_mm_fallback.default": _grouped_mm}
