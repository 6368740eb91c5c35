"""Normalisation: softmax, and layer, group, batch and instance norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from compiler.ir.aten import Type
from compiler.ir.dtype import STORAGE_ONLY, DType, f32
from compiler.ir.expr import Const, Expr, cast, const, dim, op
from compiler.ir.tensor import numel
from compiler.ir.text import show
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, dims, drop_dims
from compiler.passes.torch_to_tensor.positions import is_empty
from compiler.passes.torch_to_tensor.reduce import Element, convert_elements, moments, reduce_dims, reduced_index

# The default `eps` of `rms_norm`: the rounding unit, of f32 for 16-bit types.
EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "bf16": 2.0**-23, "f16": 2.0**-23}
_LEAST_INTEGER = -(1 << 62)  # of PyTorch's symbolic integers; less is the address of a symbol


def softmax(b: Builder, self: Value, dim: int, dtype: DType | None = None) -> Value:
    """exp(x - max) / sum; a row of -inf gives NaN, as in torch."""
    return softmax_and_logsumexp(b, self.shape, dims(b, dim, self.rank), convert_elements(self, dtype or self.dtype))[0]


def softmax_and_logsumexp(
    b: Builder, shape: Shape, axes: Sequence[int], element: Element, may_be_masked: bool = False,
    logsumexp_if_masked: float = math.inf,
) -> tuple[Value, Element]:  # fmt: skip
    """A softmax, and the logsumexp of each row.

    With `may_be_masked`, a row may be -inf throughout, if nothing is attended to: it gives zeros, and this logsumexp.
    """
    row_max = reduce_dims(b, "max", shape, axes, False, element, "max")

    def replace_value(total: Value, value: float, replacement: float) -> Element:
        def replaced(at: Index) -> Expr:
            x = total.at(at)
            return op("where", op("eq", x, value), const(replacement, x.dtype), x) if may_be_masked else x

        return replaced

    shift = replace_value(row_max, -math.inf, 0)
    power = b.map(shape, lambda at: op("exp", element(at) - shift(drop_dims(at, axes))), "exp")
    total = reduce_dims(b, "sum", shape, axes, False, power.at, "sum")
    divisor, exponent = replace_value(total, 0, 1), replace_value(row_max, -math.inf, logsumexp_if_masked)
    weights = b.map(shape, lambda at: power.at(at) / divisor(drop_dims(at, axes)))
    return weights, lambda at: exponent(at) + op("log", divisor(at))


def safe_softmax(b: Builder, self: Value, dim: int, dtype: DType | None = None) -> Value:
    return softmax_and_logsumexp(
        b, self.shape, dims(b, dim, self.rank), convert_elements(self, dtype or self.dtype), may_be_masked=True
    )[0]


def log_softmax(b: Builder, self: Value, dim: int, dtype: DType | None = None) -> Value:
    return b.map(self.shape, log_softmax_elements(b, self, dim, dtype))


def log_softmax_elements(b: Builder, self: Value, dim: int, dtype: DType | None = None) -> Element:
    """The elements of a log_softmax, for callers that need only some of them."""
    axes = dims(b, dim, self.rank)
    element = convert_elements(self, dtype or self.dtype)
    row_max = reduce_dims(b, "max", self.shape, axes, False, element, "max")

    def shifted(at: Index) -> Expr:
        return element(at) - row_max.at(drop_dims(at, axes))

    total = reduce_dims(b, "sum", self.shape, axes, False, lambda at: op("exp", shifted(at)), "sum")
    return lambda at: shifted(at) - op("log", total.at(drop_dims(at, axes)))


def _with_half_to_float(rule: Callable[..., Value]) -> Rule:
    """The overload whose last argument says that a 16-bit input gives an f32 result."""

    def core(b: Builder, self: Value, dim: int, half_to_float: bool) -> Value:
        return rule(b, self, dim, b.out.dtype if half_to_float else None)

    return core


# Mean 0, variance 1 ---------------------------------------------------------------------------------------------------


def _affine(value: Expr, weight: Value | None, bias: Value | None, index: Index) -> Expr:
    """The value scaled and shifted by parameters at `index`."""
    if weight is not None:
        value = value * cast(weight.at(index), value.dtype)
    return value if bias is None else value + cast(bias.at(index), value.dtype)


def _check_types(b: Builder, input: Value, *parameters: Value | None) -> None:
    """Refuse parameters and statistics of another type than the input; f32 is allowed for 16 bits, as in torch."""
    types = {x.dtype for x in parameters if x is not None}
    is_wider = types == {f32} and input.dtype in STORAGE_ONLY
    if types - {input.dtype} and not is_wider:
        raise b.refuse(f"an input of type {input.dtype} with parameters of type {', '.join(sorted(map(str, types)))}")


def _normalized_axes(b: Builder, input: Value, normalized_shape: Shape, *parameters: Value | None) -> tuple[int, ...]:
    """The last axes of the input; refused unless `normalized_shape`, and the parameters' shapes, are their sizes.

    Where PyTorch 2.11 records the address of a symbol for a size (`_fused_rms_norm` of sizes that vary, on GPUs), that
    size is the input's.
    """
    first = input.rank - len(normalized_shape)
    shape = tuple(
        input.shape[k] if isinstance(n, Const) and n.value < _LEAST_INTEGER and k >= 0 else n
        for k, n in enumerate(map(dim, normalized_shape), first)
    )
    if not shape or input.shape[max(first, 0) :] != shape:
        raise b.refuse(f"normalized_shape is [{', '.join(map(show, shape))}], which does not end the shape of {input}")
    for x in parameters:
        if x is not None and x.shape != shape:
            raise b.refuse(f"normalized_shape is [{', '.join(map(show, shape))}], and a parameter is {x}")
    return tuple(range(first, input.rank))


def _reciprocal_std(b: Builder, variance: Value, eps: float) -> Value:
    return b.map(variance.shape, lambda at: op("rsqrt", variance.at(at) + eps), "rstd")


def native_layer_norm(
    b: Builder, input: Value, normalized_shape: Shape, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    _check_types(b, input, weight, bias)
    axes = _normalized_axes(b, input, normalized_shape, weight, bias)
    mean, variance = moments(b, input.shape, axes, True, input.at)
    scale = _reciprocal_std(b, variance, eps)

    def normalized(at: Index) -> Expr:
        row = reduced_index(at, axes, True)
        return _affine((input.at(at) - mean.at(row)) * scale.at(row), weight, bias, at[axes[0] :])

    return b.map(input.shape, normalized), mean, scale


def layer_norm(
    b: Builder, input: Value, normalized_shape: Shape, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Value:  # fmt: skip
    del cudnn_enable  # selects torch's kernels
    return native_layer_norm(b, input, normalized_shape, weight, bias, eps)[0]


def fused_rms_norm(
    b: Builder, input: Value, normalized_shape: Shape, weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    axes = _normalized_axes(b, input, normalized_shape, weight)
    squares = reduce_dims(b, "sum", input.shape, axes, True, lambda at: input.at(at) * input.at(at), "squares")
    count = dim(1)
    for d in axes:
        count = count * input.shape[d]
    epsilon = EPSILON[input.dtype.name] if eps is None else eps
    scale = b.map(
        squares.shape, lambda at: op("rsqrt", squares.at(at) / cast(count, squares.compute) + epsilon), "rstd"
    )
    normalized = b.map(
        input.shape,
        lambda at: _affine(input.at(at) * scale.at(reduced_index(at, axes, True)), weight, None, at[axes[0] :]),
    )
    return normalized, scale


def rms_norm(
    b: Builder, input: Value, normalized_shape: Shape, weight: Value | None = None, eps: float | None = None
) -> Value:
    return fused_rms_norm(b, input, normalized_shape, weight, eps)[0]


def native_group_norm(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Value, Value, Value]:  # fmt: skip
    del N, HxW  # given by the input
    _check_types(b, input, weight, bias)
    if C % group:
        raise b.refuse(f"{show(input.shape[1])} channels do not make {group} equal groups")
    per_group = C // group
    space = input.shape[2:]
    split = (input.shape[0], dim(group), dim(per_group), *space)
    axes = tuple(range(2, len(split)))

    def element(at: Index) -> Expr:
        return input.at((at[0], at[1] * per_group + at[2], *at[3:]))

    mean, variance = moments(b, split, axes, False, element)
    scale = _reciprocal_std(b, variance, eps)

    def normalized(at: Index) -> Expr:
        row = (at[0], at[1] // per_group)
        return _affine((input.at(at) - mean.at(row)) * scale.at(row), weight, bias, at[1:2])

    return b.map(input.shape, normalized), mean, scale


def group_norm(
    b: Builder, input: Value, num_groups: int, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Value:  # fmt: skip
    del cudnn_enabled
    channels = input.shape[1]
    count = getattr(channels, "value", None)
    if not isinstance(count, int):
        raise b.refuse("the number of channels must be known when compiling")
    return native_group_norm(b, input, weight, bias, 0, count, 0, num_groups, eps)[0]


def _normalize_by_batch(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """Normalise each channel by its statistics over the batch and all positions."""
    return _normalize_channels(b, input, weight, bias, *_channel_moments(b, input), eps)


def _channel_moments(b: Builder, input: Value) -> tuple[Value, Value]:
    return moments(b, input.shape, (0, *range(2, input.rank)), False, input.at)


def _normalize_channels(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float
) -> tuple[Value, Value, Value]:
    _check_types(b, input, weight, bias)
    scale = _reciprocal_std(b, variance, eps)
    normalized = b.map(
        input.shape, lambda at: _affine((input.at(at) - mean.at(at[1:2])) * scale.at(at[1:2]), weight, bias, at[1:2])
    )
    return normalized, mean, scale


def _normalize_by_running(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, eps: float
) -> Value:
    _check_types(b, input, weight, bias, mean, variance)

    def normalized(at: Index) -> Expr:
        x, channel = input.at(at), at[1:2]
        centered = x - cast(mean.at(channel), x.dtype)
        return _affine(centered * op("rsqrt", cast(variance.at(channel), x.dtype) + eps), weight, bias, channel)

    return b.map(input.shape, normalized)


def batch_norm_inference(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    del momentum  # concerns running statistics, which stay as they are
    normalized = _normalize_by_running(b, input, weight, bias, running_mean, running_var, eps)
    return (normalized, *(_empty_result(b, t) for t in b.types[1:]))


def _empty_result(b: Builder, declared: Type | None) -> Value | None:
    """An empty result, if one is declared."""
    return (
        None
        if declared is None or not is_empty(declared.shape)
        else b.map(declared.shape, lambda at: const(0, declared.dtype))
    )


def batch_norm_of_batch(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    del momentum
    if not training:
        raise b.refuse("inference needs running statistics")
    return _normalize_by_batch(b, input, weight, bias, eps)


def batch_norm_training(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, running_mean: Value, running_var: Value,
    training: bool, momentum: float, eps: float,
) -> tuple[Value | None, ...]:  # fmt: skip
    """The updated running statistics are results too; their variance is the unbiased one."""
    if not training:
        normalized = _normalize_by_running(b, input, weight, bias, running_mean, running_var, eps)
        return normalized, _empty_result(b, b.types[1]), _empty_result(b, b.types[2]), running_mean, running_var
    mean, variance = _channel_moments(b, input)
    count = numel(tuple(n for d, n in enumerate(input.shape) if d != 1))
    if isinstance(count, Const):
        variance_factor: Expr = const(momentum * int(count.value) / max(int(count.value) - 1, 1), variance.compute)
    else:
        variance_factor = cast(count, variance.compute) / cast(op("max", count - 1, 1), variance.compute) * momentum

    def updated(old: Value, new: Value, factor: Expr, hint: str) -> Value:
        return b.map(old.shape, lambda at: old.at(at) * (1 - momentum) + cast(new.at(at) * factor, old.compute), hint)

    means = updated(running_mean, mean, const(momentum, mean.compute), "means")
    variances = updated(running_var, variance, variance_factor, "variances")
    return *_normalize_channels(b, input, weight, bias, mean, variance, eps), means, variances


def batch_norm(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, training: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Value:  # fmt: skip
    del momentum, cudnn_enabled
    if running_mean is None or running_var is None:
        return _normalize_by_batch(b, input, weight, bias, eps)[0]
    if training:
        raise b.refuse("training changes the running statistics")
    return _normalize_by_running(b, input, weight, bias, running_mean, running_var, eps)


def instance_norm(
    b: Builder, input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Value:  # fmt: skip
    del momentum, cudnn_enabled
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise b.refuse("use_input_stats=False needs running statistics")
        return _normalize_by_running(b, input, weight, bias, running_mean, running_var, eps)
    if running_mean is not None or running_var is not None:
        raise b.refuse("training changes the running statistics")
    _check_types(b, input, weight, bias)
    axes = tuple(range(2, input.rank))
    mean, variance = moments(b, input.shape, axes, False, input.at)
    scale = _reciprocal_std(b, variance, eps)
    return b.map(
        input.shape, lambda at: _affine((input.at(at) - mean.at(at[:2])) * scale.at(at[:2]), weight, bias, at[1:2])
    )


RULES: dict[str, Rule] = {
    "aten._softmax.default": _with_half_to_float(softmax), "aten.softmax.int": softmax,
    "aten._safe_softmax.default": safe_softmax,
    "aten._log_softmax.default": _with_half_to_float(log_softmax), "aten.log_softmax.int": log_softmax,
    "aten.native_layer_norm.default": native_layer_norm, "aten.layer_norm.default": layer_norm,
    "aten._fused_rms_norm.default": fused_rms_norm, "aten.rms_norm.default": rms_norm,
    "aten.native_group_norm.default": native_group_norm, "aten.group_norm.default": group_norm,
    "aten._native_batch_norm_legit_no_training.default": batch_norm_inference,
    "aten._batch_norm_no_update.default": batch_norm_inference,
    "aten._native_batch_norm_legit.no_stats": batch_norm_of_batch,
    "aten._native_batch_norm_legit_functional.default": batch_norm_training,
    "aten.batch_norm.default": batch_norm, "aten.instance_norm.default": instance_norm,
}  # fmt: skip
