"""Losses: the loss of each element, then none, the mean or the sum of all by `reduction` (0, 1, 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir import dtype as dt
from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, cast, const, op
from compiler.ir.tensor import numel
from compiler.passes.torch_to_tensor import formula as f
from compiler.passes.torch_to_tensor.builder import (
    Builder,
    Index,
    Rule,
    Shape,
    Value,
    broadcast,
    dims,
    drop_dims,
    merge,
)
from compiler.passes.torch_to_tensor.normalize import log_softmax, log_softmax_elements
from compiler.passes.torch_to_tensor.positions import broadcast_shape, require_in_range
from compiler.passes.torch_to_tensor.reduce import reduce_dims

Element = Callable[[Index], Expr]
NONE, MEAN, SUM = 0, 1, 2


def total(b: Builder, shape: Shape, element: Element, hint: str = "total") -> Value:
    return b.reduce("sum", (), shape, lambda at, r: element(r), hint) if shape else b.map((), element, hint)


def reduce_losses(b: Builder, shape: Shape, element: Element, reduction: int, count: Value | None = None) -> Value:
    """Apply the reduction to the losses of all elements; a mean divides by `count`, by default their number."""
    if reduction == NONE:
        return b.map(shape, element)
    loss_sum = total(b, shape, element)
    if reduction == SUM:
        return loss_sum
    if reduction != MEAN:
        raise b.refuse(f"reduction={reduction}")
    divisor = cast(numel(shape), loss_sum.compute) if count is None else count.at(())
    return b.map((), lambda at: loss_sum.at(at) / divisor)


# Losses of pairs ------------------------------------------------------------------------------------------------------


def _broadcast_elements(b: Builder, *values: Value) -> tuple[Shape, Callable[[Index], list[Expr]]]:
    """The shape that values broadcast to, and their elements in the computing type of the result."""
    dtype = dt.compute(b.out.dtype)
    return broadcast_shape([x.shape for x in values]), lambda at: [cast(x.at(broadcast(x, at)), dtype) for x in values]


def _pair_loss(b: Builder, self: Value, target: Value, reduction: int, formula: Callable[[Expr, Expr], Expr]) -> Value:
    shape, at_ = _broadcast_elements(b, self, target)
    return reduce_losses(b, shape, lambda at: formula(*at_(at)), reduction)


def mse(b: Builder, self: Value, target: Value, reduction: int = MEAN) -> Value:
    return _pair_loss(b, self, target, reduction, lambda x, y: (x - y) * (x - y))


def l1(b: Builder, self: Value, target: Value, reduction: int = MEAN) -> Value:
    return _pair_loss(b, self, target, reduction, lambda x, y: op("abs", x - y))


def smooth_l1(b: Builder, self: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        difference = op("abs", x - y)
        return (
            difference
            if not beta
            else f.where(op("lt", difference, beta), difference * difference * 0.5 / beta, difference - 0.5 * beta)
        )

    return _pair_loss(b, self, target, reduction, formula)


def huber(b: Builder, self: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        difference = op("abs", x - y)
        return f.where(op("lt", difference, delta), difference * difference * 0.5, (difference - 0.5 * delta) * delta)

    return _pair_loss(b, self, target, reduction, formula)


def soft_margin(b: Builder, self: Value, target: Value, reduction: int = MEAN) -> Value:
    return _pair_loss(b, self, target, reduction, lambda x, y: op("log1p", op("exp", -(x * y))))


def kl_div(b: Builder, self: Value, target: Value, reduction: int = MEAN, *, log_target: bool = False) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        return op("exp", y) * (y - x) if log_target else f.xlogy(y, y) - y * x

    return _pair_loss(b, self, target, reduction, formula)


def _require_probability(x: Expr) -> Expr:
    return op("require", op("and", op("ge", x, 0.0), op("le", x, 1.0)), x)


def binary_cross_entropy(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """Logarithms are at least -100, as in torch, so that a certain mistake costs a finite amount."""
    shape, at_ = _broadcast_elements(b, self, target, *([] if weight is None else [weight]))

    def element(at: Index) -> Expr:
        x, y, *scale = at_(at)
        x, y = _require_probability(x), _require_probability(y)
        loss = (y - 1.0) * op("max", op("log1p", -x), -100.0) - y * op("max", op("log", x), -100.0)
        return loss * scale[0] if scale else loss

    return reduce_losses(b, shape, element, reduction)


def binary_cross_entropy_with_logits(
    b: Builder, self: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:  # fmt: skip
    operands = [x for x in (self, target, weight, pos_weight) if x is not None]
    shape, at_ = _broadcast_elements(b, *operands)

    def element(at: Index) -> Expr:
        x, y, *scale = at_(at)
        log_likelihood = f.log_sigmoid(x)
        if pos_weight is not None:
            log_likelihood = log_likelihood * ((scale[-1] - 1.0) * y + 1.0)
        loss = (const(1, y.dtype) - y) * x - log_likelihood
        return loss if weight is None else loss * scale[0]

    return reduce_losses(b, shape, element, reduction)


def cosine_similarity(b: Builder, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    """The sum of products of both vectors scaled to length 1; lengths are at least `eps`."""
    shape, at_ = _broadcast_elements(b, x1, x2)
    axes = dims(b, dim, len(shape))

    def length(k: int) -> Value:
        squares = reduce_dims(b, "sum", shape, axes, False, lambda at: at_(at)[k] * at_(at)[k], "squares")
        return b.map(squares.shape, lambda at: op("max", op("sqrt", squares.at(at)), eps), "length")

    lengths = [length(0), length(1)]

    def product_of_units(at: Index) -> Expr:
        first, second = (x / n.at(drop_dims(at, axes)) for x, n in zip(at_(at), lengths, strict=True))
        return first * second

    return reduce_dims(b, "sum", shape, axes, False, product_of_units, "similarity")


# Losses of classes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classes:
    """Scores with classes in dimension `c`, target classes, class weights, and the target value to ignore."""

    scores: Value
    c: int
    target: Value
    weight: Value | None
    ignored: int

    @property
    def count(self) -> Expr:
        return self.scores.shape[self.c]

    def target_class(self, at: Index) -> Expr:
        target = cast(self.target.at(at), i64)
        return require_in_range(op("where", op("eq", target, self.ignored), const(0, i64), target), self.count)

    def is_counted(self, at: Index) -> Expr:
        return op("ne", self.target.at(at), self.ignored)

    def weight_of(self, k: Expr) -> Expr:
        if self.weight is None:
            return const(1, self.scores.compute)
        return cast(self.weight.at((k,)), self.scores.compute)

    def score(self, at: Index, k: Expr) -> Expr:
        """The score of class `k`."""
        return self.scores.at(merge(at, (k,), (self.c,)))

    def zero_if_ignored(self, at: Index, value: Expr) -> Expr:
        return op("where", self.is_counted(at), value, const(0, value.dtype))

    def weight_sum(self, b: Builder) -> Value:
        """The divisor of a mean: the sum of the weights of the target classes."""
        return total(
            b, self.target.shape, lambda at: self.zero_if_ignored(at, self.weight_of(self.target_class(at))), "weight"
        )


def _make_classes(scores: Value, target: Value, weight: Value | None, ignored: int) -> Classes:
    return Classes(scores, 0 if scores.rank == 1 else 1, target, weight, ignored)


def nll_forward(
    b: Builder, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """The loss, and the weight that a mean divides by (0 without a reduction)."""
    classes = _make_classes(self, target, weight, ignore_index)
    return _target_loss(b, classes, lambda at: classes.score(at, classes.target_class(at)), reduction)


def _target_loss(b: Builder, classes: Classes, log_probability: Element, reduction: int) -> tuple[Value, Value]:
    """The loss of the target classes, given each one's log-probability, and the weight that a mean divides by."""

    def element(at: Index) -> Expr:
        return classes.zero_if_ignored(at, -log_probability(at) * classes.weight_of(classes.target_class(at)))

    weight_sum = (
        classes.weight_sum(b) if reduction != NONE else b.map((), lambda at: const(0, classes.scores.compute), "weight")
    )
    return reduce_losses(b, classes.target.shape, element, reduction, weight_sum), weight_sum


def nll(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN, ignore_index: int = -100
) -> Value:
    return nll_forward(b, self, target, weight, reduction, ignore_index)[0]


def cross_entropy(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    """Scores need not be normalised. Targets are classes or, in the shape of the scores, probabilities."""
    class_dim = 0 if self.rank == 1 else 1
    if not target.dtype.is_float and not label_smoothing:
        # Only the target class of each row is computed; the others are only summed, and not stored.
        classes, score = _make_classes(self, target, weight, ignore_index), log_softmax_elements(b, self, class_dim)
        log_probability = b.map(
            target.shape, lambda at: score(merge(at, (classes.target_class(at),), (class_dim,))), "chance"
        )
        return _target_loss(b, classes, log_probability.at, reduction)[0]
    classes = _make_classes(log_softmax(b, self, class_dim), target, weight, ignore_index)
    if target.dtype.is_float:
        return _probability_loss(b, classes, reduction, label_smoothing)
    smoothing_loss = _sum_over_classes(
        b, classes, lambda full: classes.weight_of(full[class_dim]), label_smoothing / _known_count(b, classes.count)
    )

    def element(at: Index) -> Expr:
        k = classes.target_class(at)
        target_loss = -classes.score(at, k) * classes.weight_of(k)
        return classes.zero_if_ignored(at, target_loss * (1 - label_smoothing) + smoothing_loss.at(at))

    return reduce_losses(b, target.shape, element, reduction, classes.weight_sum(b))


def _known_count(b: Builder, extent: Expr) -> int:
    value = getattr(extent, "value", None)
    if not isinstance(value, int) or not value:
        raise b.refuse("label smoothing needs a known number of classes")
    return value


def _sum_over_classes(b: Builder, classes: Classes, factor: Element, scale: float = 1.0) -> Value:
    """Minus the sum over classes of score times factor."""
    axes, scores = (classes.c,), classes.scores
    summed = reduce_dims(b, "sum", scores.shape, axes, False, lambda at: scores.at(at) * factor(at), "weighted")
    return b.map(summed.shape, lambda at: summed.at(at) * const(-scale, summed.compute), "loss")


def _probability_loss(b: Builder, classes: Classes, reduction: int, smoothing: float) -> Value:
    """The loss for target probabilities; a mean is over all dimensions but the classes."""

    def weighted_probability(at: Index) -> Expr:
        p = cast(classes.target.at(at), classes.scores.compute)
        if smoothing:
            p = p * (1 - smoothing) + smoothing / _known_count(b, classes.count)
        return p if classes.weight is None else p * classes.weight_of(at[classes.c])

    loss = _sum_over_classes(b, classes, weighted_probability)
    return reduce_losses(b, loss.shape, loss.at, reduction) if reduction != NONE else loss


RULES: dict[str, Rule] = {
    "aten.mse_loss.default": mse, "aten.l1_loss.default": l1, "aten.smooth_l1_loss.default": smooth_l1,
    "aten.huber_loss.default": huber, "aten.soft_margin_loss.default": soft_margin, "aten.kl_div.default": kl_div,
    "aten.binary_cross_entropy.default": binary_cross_entropy,
    "aten.binary_cross_entropy_with_logits.default": binary_cross_entropy_with_logits,
    "aten.cosine_similarity.default": cosine_similarity,
    "aten.nll_loss.default": nll, "aten.nll_loss2d.default": nll, "aten.nll_loss_nd.default": nll,
    "aten.nll_loss_forward.default": nll_forward, "aten.nll_loss2d_forward.default": nll_forward,
    "aten.cross_entropy_loss.default": cross_entropy,
}  # fmt: skip
