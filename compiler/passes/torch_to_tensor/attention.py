"""Scaled dot product attention in all of torch's forms, which differ in their arguments and additional results.

All are softmax(query @ key.T * scale + mask) @ value. A query that may attend to no key gets zeros. Its logsumexp is
infinite, or 0 in the form for CPUs; its scores are -inf, so that either gives a gradient of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from compiler.ir import dtype as dt
from compiler.ir.expr import Expr, cast, const, dim, op, select, static
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, broadcast, is_one, rounded
from compiler.passes.torch_to_tensor.contract import product
from compiler.passes.torch_to_tensor.normalize import softmax_and_logsumexp
from compiler.passes.torch_to_tensor.reduce import Element


def attention(
    b: Builder, query: Value, key: Value, value: Value, attn_mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    return _attend(b, b.out.shape, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)[0]


def for_cpu(
    b: Builder, query: Value, key: Value, value: Value, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Value | None = None, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _fused_attention(b, query, key, value, attn_mask, dropout_p, is_causal, scale, logsumexp_if_masked=0.0)


def flash(
    b: Builder, query: Value, key: Value, value: Value, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    """The causal mask is aligned at the end: the last query sees the last key. Other forms align it at the start.

    The other results, including the debug mask, serve dropout only and are not computed.
    """
    return _fused_attention(b, query, key, value, None, dropout_p, is_causal, scale, at_end=True)


def efficient(
    b: Builder, query: Value, key: Value, value: Value, attn_bias: Value | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _fused_attention(b, query, key, value, attn_bias, dropout_p, is_causal, scale)


def cudnn(
    b: Builder, query: Value, key: Value, value: Value, attn_bias: Value | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _fused_attention(b, query, key, value, attn_bias, dropout_p, is_causal, scale)


def overrideable(
    b: Builder, query: Value, key: Value, value: Value, attn_bias: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, scale: float | None = None,
) -> tuple[Value | None, ...]:  # fmt: skip
    return _fused_attention(b, query, key, value, attn_bias, dropout_p, is_causal, scale)


def _fused_attention(
    b: Builder, query: Value, key: Value, value: Value, mask: Value | None, dropout: float, causal: bool,
    scale: float | None, at_end: bool = False, logsumexp_if_masked: float = math.inf,
) -> tuple[Value | None, ...]:  # fmt: skip
    """The attended values, and the logsumexp if it is used; results that serve dropout are not computed.

    The declared logsumexp may have more rows than there are queries; those are infinite.
    """
    shape = (*query.shape[:-1], value.shape[-1])
    attended, logsumexp = _attend(
        b, shape, query, key, value, mask, dropout, causal, scale, True, at_end, logsumexp_if_masked
    )
    declared, rows = b.types[1], query.shape[:-1]
    row_logsumexp = None
    if declared is not None:
        queries, declared_queries = rows[-1], declared.shape[len(rows) - 1]

        def padded(at: Index) -> Expr:
            row = at[: len(rows)]
            if declared_queries is queries:
                return logsumexp(row)
            return select(op("lt", row[-1], queries), logsumexp(row), const(math.inf, dt.f32))

        row_logsumexp = b.map(declared.shape, padded, "logsumexp")
    return (attended, row_logsumexp, *[None] * (len(b.types) - 2))


def _attend(
    b: Builder, shape: Shape, query: Value, key: Value, value: Value, mask: Value | None, dropout: float, causal: bool,
    scale: float | None, grouped: bool, at_end: bool = False, logsumexp_if_masked: float = math.inf,
) -> tuple[Value, Element]:  # fmt: skip
    """The attended values of this shape, and the logsumexp of each query."""
    scores = compute_scores(b, shape[:-2], query, key, mask, dropout, causal, scale, grouped, at_end)
    score_shape = scores.logits.shape
    may_be_masked = mask is not None or (at_end and key.shape[-2] is not query.shape[-2])
    weights, logsumexp = softmax_and_logsumexp(
        b, score_shape, (len(score_shape) - 1,), scores.logits.at, may_be_masked, logsumexp_if_masked
    )
    attended = product(
        b, shape, key.shape[-2:-1],
        lambda at, r: rounded(weights.at((*at[:-1], r[0])), query.dtype),
        lambda at, r: value.rounded_at((*scores.head(value, at), r[0], at[-1])), "attended",
    )  # fmt: skip
    return attended, logsumexp


@dataclass(frozen=True)
class Scores:
    """Scaled and masked scores of queries and keys; `head` is the batch index into keys or values."""

    logits: Value
    head: Callable[[Value, Index], Index]
    factor: float


def compute_scores(
    b: Builder, batch: Shape, query: Value, key: Value, mask: Value | None, dropout: float, causal: bool,
    scale: float | None, grouped: bool, at_end: bool = False,
) -> Scores:  # fmt: skip
    """`grouped`: several query heads may share one key head; `at_end`: the last query sees the last key."""
    if dropout:
        raise b.refuse("dropout is random")
    queries, keys, features = query.shape[-2], key.shape[-2], query.shape[-1:]
    size = max(static(features[0], "the head size"), 1)  # with no features, scores are 0 for any factor
    factor = 1 / math.sqrt(size) if scale is None else scale
    diagonal = keys - queries if at_end else dim(0)

    def head(x: Value, at: Index) -> Index:
        batch_index = list(broadcast(_batch_view(x), at[: len(batch)]))
        if grouped and len(batch_index) and not is_one(x.shape[-3]) and x.shape[-3] is not query.shape[-3]:
            batch_index[-1] = at[len(batch) - 1] // (static(query.shape[-3], "heads") // static(x.shape[-3], "heads"))
        return tuple(batch_index)

    scores = product(
        b, (*batch, queries, keys), features,
        lambda at, r: query.rounded_at((*head(query, at), at[-2], r[0])),
        lambda at, r: key.rounded_at((*head(key, at), at[-1], r[0])), "scores",
    )  # fmt: skip

    def logit(at: Index) -> Expr:
        score = scores.at(at) * const(factor, scores.compute)
        minus_infinity = const(-math.inf, score.dtype)
        if mask is not None:
            mask_element = mask.at(broadcast(mask, at))
            score = (
                op("where", mask_element, score, minus_infinity)
                if mask.dtype is dt.boolean
                else score + cast(mask_element, score.dtype)
            )
        return op("where", op("le", at[-1], at[-2] + diagonal), score, minus_infinity) if causal else score

    return Scores(b.map(scores.shape, logit, "logits"), head, factor)


def _batch_view(x: Value) -> Value:
    return replace(x, shape=x.shape[:-2], strides=())


RULES: dict[str, Rule] = {
    "aten.scaled_dot_product_attention.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": for_cpu,
    "aten._scaled_dot_product_flash_attention.default": flash,
    "aten._scaled_dot_product_efficient_attention.default": efficient,
    "aten._scaled_dot_product_cudnn_attention.default": cudnn,
    "aten._scaled_dot_product_fused_attention_overrideable.default": overrideable,
}
