"""Gradients of scaled dot product attention; weights are recomputed from the logsumexp of the forward pass.

With P = exp(scores - logsumexp) and the gradient dO of the result O, the gradients of the value, the scores, the query
and the key are P^T dO, dS = P * (dO V^T - sum(dO * O)), dS K and dS^T Q. Heads that share a key or a value are summed.
Like the operands of any matmul, P, dS and dO are rounded to the type of the query, and so are the gradients.
"""

from __future__ import annotations

from compiler.ir import dtype as dt
from compiler.ir.expr import Expr, cast, const, dim, op, static
from compiler.passes.torch_to_tensor.attention import compute_scores
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Value, is_one, rounded
from compiler.passes.torch_to_tensor.contract import product
from compiler.passes.torch_to_tensor.reduce import reduce_dims


def _backward(
    b: Builder, grad: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value, mask: Value | None,
    dropout: float, causal: bool, scale: float | None, at_end: bool = False,
) -> tuple[Value, Value, Value, Value]:  # fmt: skip
    """Gradients of the query, the key, the value and the scores."""
    if query.dtype is dt.f64 and logsumexp.dtype is not dt.f64:
        raise b.refuse("the logsumexp is declared f32, where eager makes it f64")
    batch = query.shape[:-2]
    scores = compute_scores(b, batch, query, key, mask, dropout, causal, scale, True, at_end)
    score_shape, rows = scores.logits.shape, query.rank - 1

    def weight(at: Index) -> Expr:
        row = (*at[:rows], *[dim(0)] * (logsumexp.rank - rows))
        return op("exp", scores.logits.at(at) - cast(logsumexp.at(row), scores.logits.compute))

    weights = b.map(score_shape, weight, "weights")
    grad_dot_out = reduce_dims(
        b, "sum", grad.shape, (rows,), False, lambda at: grad.rounded_at(at) * out.at(at), "given"
    )
    weight_gradient = product(
        b, score_shape, value.shape[-1:],
        lambda at, r: grad.rounded_at((*at[:-1], r[0])),
        lambda at, r: value.rounded_at((*scores.head(value, at), at[-1], r[0])), "reached",
    )  # fmt: skip
    score_gradient = b.map(
        score_shape, lambda at: weights.at(at) * (weight_gradient.at(at) - grad_dot_out.at(at[:-1])), "inner"
    )
    query_gradient = product(
        b, query.shape, key.shape[-2:-1],
        lambda at, r: rounded(score_gradient.at((*at[:-1], r[0])), query.dtype),
        lambda at, r: key.rounded_at((*scores.head(key, at), r[0], at[-1])), "by_query",
    )  # fmt: skip
    return (
        _rounded_gradient(b, query_gradient, query, scores.factor),
        _rounded_gradient(b, _sum_over_queries(b, key, score_gradient, query), key, scores.factor),
        _rounded_gradient(b, _sum_over_queries(b, value, weights, grad), value, 1.0), score_gradient,
    )  # fmt: skip


def _rounded_gradient(b: Builder, x: Value, like: Value, factor: float) -> Value:
    """The gradient, scaled and rounded to the type of `like`, as readers load it from memory."""
    return b.map(x.shape, lambda at: rounded(x.at(at) * const(factor, x.compute), like.dtype), "made")


def _sum_over_queries(b: Builder, x: Value, weights: Value, other: Value) -> Value:
    """The gradient of a key or a value: summed over all queries, and over the query heads that share its head."""
    heads = other.rank - 3
    group_size = 1 if x.shape[heads] is other.shape[heads] else static(other.shape[heads]) // static(x.shape[heads])

    def head(at: Index, r: Index) -> Index:
        return (*at[:heads], at[heads] * group_size + r[0] if group_size > 1 else at[heads])

    return product(
        b, x.shape, (dim(group_size), other.shape[-2]),
        lambda at, r: rounded(weights.at((*head(at, r), r[1], at[-2])), other.dtype),
        lambda at, r: other.rounded_at((*head(at, r), r[1], at[-1])), "shared",
    )  # fmt: skip


def _mask_gradient(b: Builder, mask: Value | None, score_gradient: Value) -> Value | None:
    """The gradient of an additive mask: summed over its broadcast dimensions. None for a boolean mask."""
    if mask is None or mask.dtype is dt.boolean:
        return None
    leading = score_gradient.rank - mask.rank
    broadcast_dims = tuple(
        d
        for d in range(score_gradient.rank)
        if d < leading or (is_one(mask.shape[d - leading]) and not is_one(score_gradient.shape[d]))
    )
    total = (
        reduce_dims(b, "sum", score_gradient.shape, broadcast_dims, True, score_gradient.at, "by_mask")
        if broadcast_dims
        else score_gradient
    )
    return b.map(mask.shape, lambda at: total.at((*[dim(0)] * leading, *at)), "mask")


def for_cpu(
    b: Builder, grad_out: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    dropout_p: float, is_causal: bool, attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    gradients = _backward(b, grad_out, query, key, value, out, logsumexp, attn_mask, dropout_p, is_causal, scale)
    return gradients[:3]


def flash(
    b: Builder, grad_out: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    cum_seq_q: object, cum_seq_k: object, max_q: object, max_k: object, dropout_p: float, is_causal: bool,
    philox_seed: object, philox_offset: object, scale: float | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    gradients = _backward(
        b, grad_out, query, key, value, out, logsumexp, None, dropout_p, is_causal, scale, at_end=True
    )
    return gradients[:3]


def cudnn(
    b: Builder, grad_out: Value, query: Value, key: Value, value: Value, out: Value, logsumexp: Value,
    philox_seed: object, philox_offset: object, attn_bias: Value | None, cum_seq_q: object, cum_seq_k: object,
    max_q: object, max_k: object, dropout_p: float, is_causal: bool, scale: float | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    gradients = _backward(b, grad_out, query, key, value, out, logsumexp, attn_bias, dropout_p, is_causal, scale)
    return gradients[:3]


def efficient(
    b: Builder, grad_out_: Value, query: Value, key: Value, value: Value, attn_bias: Value | None, out: Value,
    logsumexp: Value, philox_seed: object, philox_offset: object, dropout_p: float, grad_input_mask: object,
    is_causal: bool = False, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    gradients = _backward(b, grad_out_, query, key, value, out, logsumexp, attn_bias, dropout_p, is_causal, scale)
    return *gradients[:3], _mask_gradient(b, attn_bias, gradients[3])


def overrideable(
    b: Builder, grad_out: Value, query: Value, key: Value, value: Value, attn_bias: Value | None,
    grad_input_mask: object, out: Value, logsumexp: Value, cum_seq_q: object, cum_seq_k: object, max_q: object,
    max_k: object, dropout_p: float, is_causal: bool, philox_seed: object, philox_offset: object,
    scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    gradients = _backward(b, grad_out, query, key, value, out, logsumexp, attn_bias, dropout_p, is_causal, scale)
    return *gradients[:3], _mask_gradient(b, attn_bias, gradients[3])


RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": for_cpu,
    "aten._scaled_dot_product_flash_attention_backward.default": flash,
    "aten._scaled_dot_product_efficient_attention_backward.default": efficient,
    "aten._scaled_dot_product_cudnn_attention_backward.default": cudnn,
    "aten._scaled_dot_product_fused_attention_overrideable_backward.default": overrideable,
}
