"""Ops that torch has as kernels only, or whose definition there loses digits, as others of its ops."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import get_decompositions
from torch.utils import _pytree as pytree

from compiler.ir.dtype import f32, rounded


def copied(view: Any, *args: Any, **kwargs: Any) -> Any:
    made = view(*args, **kwargs)
    copies = [x.clone(memory_format=torch.contiguous_format) for x in pytree.tree_leaves(made)]
    return copies[0] if isinstance(made, torch.Tensor) else copies


def _searchsorted(
    edges: torch.Tensor, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """How many edges are before each value, NaN after all of them; each is compared with all."""
    edges = edges if sorter is None else edges.gather(-1, sorter)
    x = x if isinstance(x, torch.Tensor) else torch.scalar_tensor(x, dtype=edges.dtype, device=edges.device)
    values = x.unsqueeze(-1)
    beside = edges.unsqueeze(-2) if edges.dim() > 1 else edges
    after: torch.Tensor = beside > values if right or side == "right" else beside >= values
    return after.logical_not().sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _histogram(x: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Counts of the elements in bins of one width; those of 16-bit types, which eager rounds on the way, in f32."""
    if not x.is_floating_point() or not x.numel() or isinstance(x.numel(), torch.SymInt):
        return NotImplemented
    kind, x = x.dtype, x if x.dtype is torch.float64 else x.float()
    low, high = x.new_full((), min), x.new_full((), max)
    if min == max:
        low, high = x.amin(), x.amax()
        low, high = torch.where(low == high, low - 1, low), torch.where(low == high, high + 1, high)
    inside = (x >= low) & (x <= high)
    place = torch.where(inside, (x - low) / (high - low) * bins, -1.0).trunc().clamp(max=bins - 1)
    return (place.flatten().unsqueeze(-1) == torch.arange(bins, device=x.device)).sum(0).to(kind)


def _faked(x: torch.Tensor, scale: Any, inverse: Any, zero: Any, low: int, high: int, kind: torch.dtype) -> Any:
    """Numbers rounded to those that integers from `low` to `high` stand for, and which of them are in that range.

    The integers are of `kind` before they are clamped, which decides where infinities go; NaN goes to the lowest.
    """
    if x.dtype not in (torch.float32, torch.float16):
        return NotImplemented
    code = ((x.float() * inverse).round() + zero).to(kind)
    inside = code.clamp(low, high)
    inside = torch.where(inside.isnan(), low, inside) if kind.is_floating_point else inside
    return ((inside - zero).float() * scale).to(x.dtype), (code >= low) & (code <= high)


def _fake_quantized(x: torch.Tensor, scale: float, zero_point: int, low: int, high: int) -> Any:
    scale = rounded(scale, f32)
    inverse = rounded(1.0 / scale, f32) if scale else math.inf
    return _faked(x, scale, inverse, zero_point, low, high, torch.float32)


def _fake_quantized_if(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, low: int, high: int
) -> Any:
    scale, zero, on = scale.reshape(()), zero_point.reshape(()), enabled.reshape(()) != 0
    found = _faked(x, scale, 1.0 / scale, zero, low, high, torch.float32)
    return found if found is NotImplemented else (torch.where(on, found[0], x), torch.where(on, found[1], True))


def _fake_quantized_channels(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, low: int, high: int
) -> Any:
    if zero_point.is_floating_point():
        return NotImplemented
    beside = [1] * x.dim()
    beside[axis] = -1
    scale, zero = scale.reshape(beside), zero_point.reshape(beside)
    return _faked(x, scale, 1.0 / scale, zero, low, high, torch.int64)


def _scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Any:  # fmt: skip
    """A product of matrices of few bits, whose rows and columns have a scale each, or all of them one."""
    kind, exact = out_dtype or a.dtype, torch.float64 if a.dtype is torch.float64 else torch.float32
    ones = scale_a.numel() == 1 and scale_b.numel() == 1
    each = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
    if scale_result is not None or not (ones or each):
        return NotImplemented
    made = torch.mm(a.to(exact), b.to(exact)) * scale_a * scale_b
    return (made if bias is None else made + bias).to(kind)


def _bucketize(x: Any, edges: torch.Tensor, **given: Any) -> torch.Tensor:
    return _searchsorted(edges, x, **given)


def _angle(x: torch.Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return torch.where(x.isnan(), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


def _trilinear(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> torch.Tensor:  # fmt: skip
    for place in expand1:
        a = a.unsqueeze(place)
    for place in expand2:
        b = b.unsqueeze(place)
    for place in expand3:
        c = c.unsqueeze(place)
    return (a * b * c).sum(list(sumdim)) if sumdim else a * b * c


def _soft_margin_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int = 1
) -> torch.Tensor:  # fmt: skip
    """Torch's own definition takes 1 from a sigmoid near 1."""
    made = -target * grad * torch.sigmoid(-target * x)
    return made / x.numel() if reduction == 1 else made  # the mean


def _grouped_mm(
    x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Rows in groups, of which `offs` are the ends, each group times a matrix of its own; behind the last are zeros."""
    if (x.dim(), weights.dim()) != (2, 3) or offs is None or bias is not None or out_dtype not in (None, x.dtype):
        return NotImplemented
    rows = torch.arange(x.shape[0], device=x.device)
    group = (offs <= rows.unsqueeze(-1)).sum(-1)
    made = torch.bmm(x.unsqueeze(1), weights[group.clamp(max=weights.shape[0] - 1)]).squeeze(1)
    return torch.where((group < weights.shape[0]).unsqueeze(-1), made, 0)


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:  # fmt: skip
    """Slices of the source go where their indices say, so that each element of a slice has the same one."""
    if not x.dim():
        made = _index_reduce(x.unsqueeze(0), 0, index, source.reshape(1), reduce, include_self=include_self)
        return made.squeeze(0)
    beside = [1] * x.dim()
    beside[dim] = -1
    places = index.reshape(beside).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _median(x: torch.Tensor) -> Any:
    """The lower one of the middle; NaN, which sorting puts last, if there is any."""
    if not x.numel() or isinstance(x.numel(), torch.SymInt):
        return NotImplemented
    found = x.flatten().sort().values[(x.numel() - 1) // 2]
    return torch.where(x.isnan().any(), math.nan, found) if x.is_floating_point() else found


def _pair_distances(x: torch.Tensor, p: float = 2.0) -> Any:
    """Between each row and each later one."""
    n = x.shape[0]
    if type(n) is not int or n > 64:
        return NotImplemented
    if n < 2:
        return x.new_zeros(0)
    every = _distances(x, x, p)
    return torch.cat([every[k, k + 1 :] for k in range(n - 1)])


def _embedding_renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Rows that are asked for and too long, made shorter."""
    norms = torch.linalg.vector_norm(weight, norm_type, dim=1)
    asked = torch.zeros_like(norms, dtype=torch.bool).index_fill(0, indices.flatten(), True)
    shorter = torch.where(asked & (norms > max_norm), max_norm / (norms + 1e-7), 1)
    return weight * shorter.unsqueeze(1).to(weight.dtype)


def _embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: torch.Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Sums, means or largest of the rows of each bag, which are those from its offset to the next one.

    What is given besides, each index's bag among it, is for backward, and nobody asks the forward alone for it.
    """
    bags, (count,) = offsets.shape[0] - include_last_offset, indices.shape
    counted = indices != padding_idx
    inside = ((indices >= 0) & (indices < weight.shape[0])).all()
    for good, said in (
        (inside, f"embedding_bag: an index is out of range of the {weight.shape[0]} rows"),
        ((offsets[:1] == 0).all(), "embedding_bag: offsets[0] has to be 0"),
        ((offsets[-1:] <= count).all(), "embedding_bag: offsets[-1] can not be greater than input's length"),
    ):
        torch.ops.aten._assert_async.msg(good, said)
    bag = _searchsorted(offsets[:bags], torch.arange(count, device=offsets.device), right=True) - 1
    rows = weight.index_select(0, indices.clamp(0, max(weight.shape[0] - 1, 0))).to(
        torch.promote_types(weight.dtype, torch.float32)
    )
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    size = torch.zeros_like(offsets[:bags]).index_add(0, bag, counted.to(offsets.dtype))
    blank = rows.new_zeros(bags, weight.shape[1])
    if mode == 2:
        bag_of = torch.where(counted, bag, bags).unsqueeze(1).expand(rows.shape)
        lowest = F.pad(blank, (0, 0, 0, 1)).scatter_reduce(0, bag_of, rows, "amax", include_self=False)
        made = lowest[:bags]
    else:
        made = blank.index_add(0, bag, torch.where(counted.unsqueeze(1), rows, 0))
    if mode == 1:
        made = made / size.clamp(min=1).unsqueeze(1)
    return made.to(weight.dtype), bag, size, size


def _grid_sampler_3d(
    x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool
) -> torch.Tensor:  # fmt: skip
    """Trilinear or nearest samples at places from -1 to 1, outside of which are zeros, the border or a reflection."""
    count, _, *sizes = x.shape

    def place(g: torch.Tensor, n: int) -> torch.Tensor:
        at = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
        if padding == 2:
            low, span = (0.0, float(n - 1)) if align_corners else (-0.5, float(n))
            off = torch.remainder((at - low).abs(), 2 * span) if span else torch.zeros_like(at)
            at = torch.where(off > span, 2 * span - off, off) + low
        return at.clamp(0, n - 1) if padding else at

    places = [place(grid[..., 2 - k], n) for k, n in enumerate(sizes)]
    batch = torch.arange(count, device=x.device).view(-1, 1, 1, 1)

    def at(spots: Sequence[torch.Tensor], weight: Any) -> torch.Tensor:
        inside = functools.reduce(torch.logical_and, ((i >= 0) & (i < n) for i, n in zip(spots, sizes, strict=True)))
        index = [torch.where(inside, i, 0).to(torch.int64) for i in spots]
        taken: torch.Tensor = x[batch, :, index[0], index[1], index[2]] * (inside * weight).unsqueeze(-1)
        return taken

    if interpolation == 1:
        made = at([p.round() for p in places], 1)
    else:
        lows = [p.floor() for p in places]
        made = torch.zeros((), dtype=x.dtype, device=x.device)
        for corner in itertools.product((0, 1), repeat=3):
            spots = [low + c for low, c in zip(lows, corner, strict=True)]
            weights = [p - low if c else 1 - (p - low) for p, low, c in zip(places, lows, corner, strict=True)]
            made = made + at(spots, math.prod(weights[1:], start=weights[0]))
    return made.permute(0, 4, 1, 2, 3).to(x.dtype)


def _sampled(sample: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Samples of `sample`, also at places that are infinite or no number: where these are is for torch to say.

    A clamp makes 0 of NaN, but the last place in volumes on CPUs, and what cannot be reflected is NaN. Beyond zeros'
    edges all is zero; only in images on CPUs its weight is NaN.
    """

    def sampled(x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool) -> Any:
        sizes, on_cpu = x.shape[2:], x.device.type == "cpu"
        if interpolation == 2:
            return sample(x, grid, interpolation, padding, align_corners)
        wide = grid.to(torch.promote_types(grid.dtype, torch.float32))
        places = [(g + 1) * (n / 2) for g, n in zip(wide.unbind(-1), reversed(sizes), strict=True)]
        lost = torch.stack(places, -1).isfinite().logical_not()
        if padding:
            edge = 1 if on_cpu and len(sizes) == 3 else -1
            lost = lost if padding == 2 else grid.isnan()
            return sample(x, torch.where(lost, edge, grid), interpolation, padding, align_corners)
        made = sample(x, grid, interpolation, padding, align_corners)
        beyond = math.nan if on_cpu and len(sizes) == 2 and interpolation == 0 else 0
        return torch.where(lost.any(-1).unsqueeze(1), beyond, made)

    return sampled


def _distances(a: torch.Tensor, b: torch.Tensor, p: float, compute_mode: int | None = None) -> torch.Tensor:
    """Between each row of one and each of the other, from their differences: none is lost between large numbers."""
    made: torch.Tensor = torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, dim=-1)
    return made


# By the names of overloads.
DEFINITIONS: dict[str, Callable[..., Any]] = {
    "histc.default": _histogram, "_embedding_bag_forward_only.default": _embedding_bag,
    "searchsorted.Tensor": _searchsorted, "searchsorted.Scalar": _searchsorted,
    "bucketize.Tensor": _bucketize, "bucketize.Scalar": _bucketize,
    "index_reduce.default": _index_reduce, "median.default": _median,
    "_cdist_forward.default": _distances, "_pdist_forward.default": _pair_distances,
    "embedding_renorm.default": _embedding_renorm, "grid_sampler_3d.default": _sampled(_grid_sampler_3d),
    "grid_sampler_2d.default": _sampled(*get_decompositions([torch.ops.aten.grid_sampler_2d.default]).values()),
    "soft_margin_loss_backward.default": _soft_margin_backward,
    "angle.default": _angle, "_trilinear.default": _trilinear, "_grouped_mm.default": _grouped_mm,
    "_scaled_mm.default": _scaled_mm, "fake_quantize_per_tensor_affine_cachemask.default": _fake_quantized,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantized_if,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_quantized_channels,
}  # fmt: skip
# Of ops that other packages add to torch, by their whole names.
OTHERS: dict[str, Callable[..., Any]] = {"transformers.grouped_mm_fallback.default": _grouped_mm}
