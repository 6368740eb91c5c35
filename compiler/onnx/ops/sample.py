"""Resizing and grid sampling of images; Fourier transforms and linear algebra."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.errors import Unsupported
from compiler.onnx.ops.row import Row, axis_of, row

Taps = list[tuple[list[int], list[float]]]  # per neighbour, its positions and weights for all result pixels


def _source_position(n: int, size: int, out_size: int, scale: float, mode: str, roi: tuple[float, float]) -> float:
    """The position in the input of the n-th pixel of the result."""
    scaled_size = scale * size
    match mode:
        case "align_corners":
            return 0.0 if scaled_size == 1 else n * (size - 1) / (scaled_size - 1)
        case "asymmetric":
            return n / scale
        case "tf_half_pixel_for_nn":
            return (n + 0.5) / scale
        case "tf_crop_and_resize":
            width = (roi[1] - roi[0]) * (size - 1)
            return roi[0] * (size - 1) + (width / 2 if out_size == 1 else n * width / (out_size - 1))
        case "pytorch_half_pixel" if out_size == 1:
            return -0.5
        case "half_pixel_symmetric":
            return size / 2 * (1 - out_size / scaled_size) + (n + 0.5) / scale - 0.5
        case "half_pixel" | "pytorch_half_pixel":
            return (n + 0.5) / scale - 0.5
    raise Unsupported("onnx.Resize", (mode,), "coordinate_transformation_mode")


def _cubic(x: float, a: float) -> float:
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def _tap_weights(ratio: float, scale: float, mode: str, nearest: str, a: float) -> tuple[int, list[float]]:
    """The offset of the first neighbour from the pixel on the left, and the weights of it and the following ones."""
    if mode == "nearest":
        right = ratio == 1 or {
            "floor": False, "ceil": True, "round_prefer_floor": ratio > 0.5, "round_prefer_ceil": ratio >= 0.5
        }[nearest]  # fmt: skip
        return 0, [0.0, 1.0] if right else [1.0, 0.0]
    reach = 1 if mode == "linear" else 2
    first = math.floor(-reach / scale) + 1
    distances = [(o - ratio) * scale for o in range(first, 2 - first)]
    weights = [max(1 - abs(x), 0.0) for x in distances] if mode == "linear" else [_cubic(x, a) for x in distances]
    return first, [w / sum(weights) for w in weights]


def _taps(
    size: int, out_size: int, scale: float, roi: tuple[float, float], options: dict[str, Any]
) -> tuple[Taps, list[bool]]:
    """The neighbours along an axis, and which pixels of the result lie outside of the input."""
    rows, outside = [], []
    filter_scale = min(scale, 1.0) if options["antialias"] else 1.0
    for n in range(out_size):
        x = _source_position(n, size, out_size, scale, options["coordinate"], roi)
        outside.append(options["coordinate"] == "tf_crop_and_resize" and not 0 <= x <= size - 1)
        left = math.ceil(x) - 1  # left of x, so the ratio is above 0; of two equally near the left one counts
        first, weights = _tap_weights(x - left, filter_scale, options["mode"], options["nearest"], options["cubic"])
        positions = [left + first + t for t in range(len(weights))]
        if options["exclude"]:
            weights = [w if 0 <= p < size else 0.0 for p, w in zip(positions, weights, strict=True)]
            weights = [w / sum(weights) for w in weights]
        rows.append([(min(max(p, 0), size - 1), w) for p, w in zip(positions, weights, strict=True)])
    taps = [([p for p, _ in column], [w for _, w in column]) for column in zip(*rows, strict=True)]
    return taps, outside


def _interpolate_axis(x: Tensor, axis: int, taps: Taps, nearest: bool) -> Tensor:
    """The weighted sum of neighbours; for nearest, the neighbour with a weight."""
    if nearest:
        chosen = [next(p for p, w in row if w) for row in zip(*(zip(*t, strict=True) for t in taps), strict=True)]
        return x.index_select(axis, torch.tensor(chosen))
    shape = [1] * x.dim()
    shape[axis] = -1
    total = None
    for positions, weights in taps:
        if any(weights):
            term = x.index_select(axis, torch.tensor(positions)) * torch.tensor(weights, dtype=x.dtype).reshape(shape)
            total = term if total is None else total + term
    assert total is not None
    return total


def _scales_and_sizes(
    x: Tensor, axes: list[int], scales: list[float] | None, sizes: list[int] | None, policy: str
) -> tuple[list[float], list[int]]:
    """The scale and the result size of each axis."""
    if sizes is None:
        factors = list(scales or [])
        return factors, [math.floor(s * x.shape[a]) for s, a in zip(factors, axes, strict=True)]
    factors = [n / x.shape[a] for n, a in zip(sizes, axes, strict=True)]
    if policy == "stretch":
        return factors, list(sizes)
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(axes), [math.floor(factor * x.shape[a] + 0.5) for a in axes]


def _resize(
    x: Tensor, roi: list[float] | None = None, scales: list[float] | None = None, sizes: list[int] | None = None, *,
    antialias: int = 0, axes: list[int] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    options = {
        "antialias": antialias, "coordinate": coordinate_transformation_mode, "cubic": cubic_coeff_a,
        "exclude": exclude_outside, "mode": mode, "nearest": nearest_mode,
    }  # fmt: skip
    dims = [axis_of(a, x.dim()) for a in axes] if axes is not None else list(range(x.dim()))
    factors, shape = _scales_and_sizes(x, dims, scales or None, sizes or None, keep_aspect_ratio_policy)
    if mode != "nearest" and not x.is_floating_point():
        raise Unsupported("onnx.Resize", (str(x.dtype),), f"{mode} is for floating types")
    is_cropped = coordinate_transformation_mode == "tf_crop_and_resize"
    outside_mask: Tensor | None = None
    rank = x.dim()
    for n, axis in enumerate(dims):
        if factors[n] == 1 and shape[n] == x.shape[axis] and not is_cropped:
            continue
        axis_roi = (roi[n], roi[n + len(dims)]) if is_cropped and roi else (0.0, 1.0)
        taps, outside = _taps(x.shape[axis], shape[n], factors[n], axis_roi, options)
        x = _interpolate_axis(x, axis, taps, mode == "nearest")
        if any(outside):
            mask = torch.tensor(outside).reshape([-1 if a == axis else 1 for a in range(rank)])
            outside_mask = mask if outside_mask is None else outside_mask | mask
    return x if outside_mask is None else torch.where(outside_mask, extrapolation_value, x).to(x.dtype)


def _resize_by_scales(x: Tensor, scales: list[float], *, mode: str = "nearest") -> Tensor:
    kind = "linear" if mode == "bilinear" else mode
    return _resize(x, None, scales, mode=kind, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _grid_sample(x: Tensor, grid: Tensor, *, align_corners: int, mode: str, padding_mode: str) -> Tensor:
    kind = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(x, grid, kind, padding_mode, bool(align_corners))


def _dft(x: Tensor, length: int | None = None, axis: int | None = None, *, inverse: int, onesided: int) -> Tensor:
    """A Fourier transform by definition, as products with matrices; the last axis has the real and imaginary parts."""
    dim = axis_of(-2 if axis is None else axis, x.dim())
    is_real_inverse = bool(inverse and onesided)  # the input has only the frequencies that determine a real signal
    transform_length = length or (2 * (x.shape[dim] - 1) if is_real_inverse else x.shape[dim])
    input_count = transform_length // 2 + 1 if is_real_inverse else transform_length
    missing = max(input_count - x.shape[dim], 0)
    x = F.pad(x.narrow(dim, 0, min(input_count, x.shape[dim])).movedim(dim, -1), (0, missing)).movedim(-1, dim)
    output_count = transform_length // 2 + 1 if onesided and not inverse else transform_length
    k, n = torch.arange(input_count, dtype=torch.float64).unsqueeze(1), torch.arange(output_count, dtype=torch.float64)
    angle = (1 if inverse else -1) * 2 * math.pi * torch.remainder(k * n, transform_length) / transform_length
    multiplicity = torch.where((k == 0) | (2 * k == transform_length), 1.0, 2.0) if is_real_inverse else 1.0
    scale = multiplicity / transform_length if inverse else 1.0
    cos, sin = ((scale * f(angle)).to(x.dtype) for f in (torch.cos, torch.sin))
    parts = [part.movedim(dim, -1) for part in x.unbind(-1)]
    real, imaginary = parts[0] @ cos, parts[0] @ sin
    if len(parts) == 2:
        real, imaginary = real - parts[1] @ sin, imaginary + parts[1] @ cos
    results = [real] if is_real_inverse else [real, imaginary]
    return torch.stack([part.movedim(-1, dim) for part in results], -1)


def _gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float, beta: float, transA: int, transB: int
) -> Tensor:
    product = torch.matmul(a.t() if transA else a, b.t() if transB else b)
    product = product if alpha == 1 else (product * alpha).to(product.dtype)
    return product if c is None else product + (c if beta == 1 else (c * beta).to(product.dtype))


ROWS: dict[str, Row] = {
    "AffineGrid": row(lambda theta, size, *, align_corners: F.affine_grid(theta, size, bool(align_corners)), 1),
    "DFT": row(_dft, 1, 2),
    "DFT-17": row(
        lambda x, length=None, *, axis, inverse, onesided: _dft(x, length, axis, inverse=inverse, onesided=onesided), 1
    ),
    "Det": row(lambda x: torch.linalg.det(x)),
    "Einsum": row(lambda *xs, equation: torch.einsum(equation.replace(" ", ""), *xs)),
    "Gemm": row(_gemm),
    "GridSample": row(_grid_sample),
    "MatMul": Row(torch.matmul),
    "Resize": row(_resize, 1, 2, 3),
    "Resize-10": row(_resize_by_scales, 1),
    "Upsample": row(_resize_by_scales, 1),
}
