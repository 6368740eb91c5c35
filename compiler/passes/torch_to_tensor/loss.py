"""Losses: the loss of each element, then none, the mean or the sum of all by `reduction` (0, 1, 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compiler.ir import dtype as dt
from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, cast, const, op
from compiler.ir.tensor import numel
from compiler.passes.torch_to_tensor import formula as f
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, broadcast, dims, merge, without
from compiler.passes.torch_to_tensor.normalize import log_chance, log_softmax
from compiler.passes.torch_to_tensor.positions import broadcast_shape, checked
from compiler.passes.torch_to_tensor.reduce import over

Element = Callable[[Index], Expr]
NONE, MEAN, SUM = 0, 1, 2


def total(b: Builder, shape: Shape, element: Element, hint: str = "total") -> Value:
    return b.reduce("sum", (), shape, lambda at, r: element(r), hint) if shape else b.map((), element, hint)


def reduced(b: Builder, shape: Shape, element: Element, reduction: int, count: Value | None = None) -> Value:
    """Apply the reduction to the losses of all elements; a mean divides by `count`, by default their number."""
    if reduction == NONE:
        return b.map(shape, element)
    made = total(b, shape, element)
    if reduction == SUM:
        return made
    if reduction != MEAN:
        raise b.refuse(f"reduction={reduction}")
    divisor = cast(numel(shape), made.compute) if count is None else count.at(())
    return b.map((), lambda at: made.at(at) / divisor)


# Losses of pairs ------------------------------------------------------------------------------------------------------


def _elements(b: Builder, *values: Value) -> tuple[Shape, Callable[[Index], list[Expr]]]:
    """The shape that values broadcast to, and their elements in the computing type of the result."""
    dtype = dt.compute(b.out.dtype)
    return broadcast_shape([x.shape for x in values]), lambda at: [cast(x.at(broadcast(x, at)), dtype) for x in values]


def _of_pairs(b: Builder, self: Value, target: Value, reduction: int, formula: Callable[[Expr, Expr], Expr]) -> Value:
    shape, at_ = _elements(b, self, target)
    return reduced(b, shape, lambda at: formula(*at_(at)), reduction)


def mse(b: Builder, self: Value, target: Value, reduction: int = MEAN) -> Value:
    return _of_pairs(b, self, target, reduction, lambda x, y: (x - y) * (x - y))


def l1(b: Builder, self: Value, target: Value, reduction: int = MEAN) -> Value:
    return _of_pairs(b, self, target, reduction, lambda x, y: op("abs", x - y))


def smooth_l1(b: Builder, self: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        off = op("abs", x - y)
        return off if not beta else f.where(op("lt", off, beta), off * off * 0.5 / beta, off - 0.5 * beta)

    return _of_pairs(b, self, target, reduction, formula)


def huber(b: Builder, self: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        off = op("abs", x - y)
        return f.where(op("lt", off, delta), off * off * 0.5, (off - 0.5 * delta) * delta)

    return _of_pairs(b, self, target, reduction, formula)


def soft_margin(b: Builder, self: Value, target: Value, reduction: int = MEAN) -> Value:
    return _of_pairs(b, self, target, reduction, lambda x, y: op("log1p", op("exp", -(x * y))))


def kl_div(b: Builder, self: Value, target: Value, reduction: int = MEAN, *, log_target: bool = False) -> Value:
    def formula(x: Expr, y: Expr) -> Expr:
        return op("exp", y) * (y - x) if log_target else f.xlogy(y, y) - y * x

    return _of_pairs(b, self, target, reduction, formula)


def _chance(x: Expr) -> Expr:
    return op("require", op("and", op("ge", x, 0.0), op("le", x, 1.0)), x)


def binary_cross_entropy(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """Logarithms are at least -100, as in torch, so that a certain mistake costs a finite amount."""
    shape, at_ = _elements(b, self, target, *([] if weight is None else [weight]))

    def element(at: Index) -> Expr:
        x, y, *scale = at_(at)
        x, y = _chance(x), _chance(y)
        loss = (y - 1.0) * op("max", op("log1p", -x), -100.0) - y * op("max", op("log", x), -100.0)
        return loss * scale[0] if scale else loss

    return reduced(b, shape, element, reduction)


def binary_cross_entropy_with_logits(
    b: Builder, self: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:  # fmt: skip
    given = [x for x in (self, target, weight, pos_weight) if x is not None]
    shape, at_ = _elements(b, *given)

    def element(at: Index) -> Expr:
        x, y, *scale = at_(at)
        likely = f.log_sigmoid(x)
        if pos_weight is not None:
            likely = likely * ((scale[-1] - 1.0) * y + 1.0)
        loss = (const(1, y.dtype) - y) * x - likely
        return loss if weight is None else loss * scale[0]

    return reduced(b, shape, element, reduction)


def cosine_similarity(b: Builder, x1: Value, x2: Value, dim: int = 1, eps: float = 1e-8) -> Value:
    """The sum of products of both vectors scaled to length 1; lengths are at least `eps`."""
    shape, at_ = _elements(b, x1, x2)
    which = dims(b, dim, len(shape))

    def length(k: int) -> Value:
        squares = over(b, "sum", shape, which, False, lambda at: at_(at)[k] * at_(at)[k], "squares")
        return b.map(squares.shape, lambda at: op("max", op("sqrt", squares.at(at)), eps), "length")

    lengths = [length(0), length(1)]

    def scaled(at: Index) -> Expr:
        first, second = (x / n.at(without(at, which)) for x, n in zip(at_(at), lengths, strict=True))
        return first * second

    return over(b, "sum", shape, which, False, scaled, "similarity")


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

    def right(self, at: Index) -> Expr:
        target = cast(self.target.at(at), i64)
        return checked(op("where", op("eq", target, self.ignored), const(0, i64), target), self.count)

    def counts(self, at: Index) -> Expr:
        return op("ne", self.target.at(at), self.ignored)

    def weight_of(self, k: Expr) -> Expr:
        if self.weight is None:
            return const(1, self.scores.compute)
        return cast(self.weight.at((k,)), self.scores.compute)

    def of(self, at: Index, k: Expr) -> Expr:
        """The score of class `k`."""
        return self.scores.at(merge(at, (k,), (self.c,)))

    def if_counted(self, at: Index, value: Expr) -> Expr:
        return op("where", self.counts(at), value, const(0, value.dtype))

    def mass(self, b: Builder) -> Value:
        """The divisor of a mean: the sum of the weights of the target classes."""
        return total(b, self.target.shape, lambda at: self.if_counted(at, self.weight_of(self.right(at))), "weight")


def _classes(scores: Value, target: Value, weight: Value | None, ignored: int) -> Classes:
    return Classes(scores, 0 if scores.rank == 1 else 1, target, weight, ignored)


def nll_forward(
    b: Builder, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """The loss, and the weight that a mean divides by (0 without a reduction)."""
    of = _classes(self, target, weight, ignore_index)
    return _of_right(b, of, lambda at: of.of(at, of.right(at)), reduction)


def _of_right(b: Builder, of: Classes, chance: Element, reduction: int) -> tuple[Value, Value]:
    """The loss of the target classes, given each one's log-probability, and the weight that a mean divides by."""

    def element(at: Index) -> Expr:
        return of.if_counted(at, -chance(at) * of.weight_of(of.right(at)))

    mass = of.mass(b) if reduction != NONE else b.map((), lambda at: const(0, of.scores.compute), "weight")
    return reduced(b, of.target.shape, element, reduction, mass), mass


def nll(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN, ignore_index: int = -100
) -> Value:
    return nll_forward(b, self, target, weight, reduction, ignore_index)[0]


def cross_entropy(
    b: Builder, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN,
    ignore_index: int = -100, label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    """Scores need not be normalised. Targets are classes or, in the shape of the scores, probabilities."""
    c = 0 if self.rank == 1 else 1
    if not target.dtype.is_float and not label_smoothing:
        # Only the target class of each row is computed; the others are only summed, and not stored.
        of, score = _classes(self, target, weight, ignore_index), log_chance(b, self, c)
        right = b.map(target.shape, lambda at: score(merge(at, (of.right(at),), (c,))), "chance")
        return _of_right(b, of, right.at, reduction)[0]
    of = _classes(log_softmax(b, self, c), target, weight, ignore_index)
    if target.dtype.is_float:
        return _of_chances(b, of, reduction, label_smoothing)
    smooth = _over_classes(b, of, lambda full: of.weight_of(full[c]), label_smoothing / _number(b, of.count))

    def element(at: Index) -> Expr:
        k = of.right(at)
        sure = -of.of(at, k) * of.weight_of(k)
        return of.if_counted(at, sure * (1 - label_smoothing) + smooth.at(at))

    return reduced(b, target.shape, element, reduction, of.mass(b))


def _number(b: Builder, extent: Expr) -> int:
    value = getattr(extent, "value", None)
    if not isinstance(value, int) or not value:
        raise b.refuse("label smoothing needs a known number of classes")
    return value


def _over_classes(b: Builder, of: Classes, factor: Element, scale: float = 1.0) -> Value:
    """Minus the sum over classes of score times factor."""
    which, scores = (of.c,), of.scores
    summed = over(b, "sum", scores.shape, which, False, lambda at: scores.at(at) * factor(at), "weighted")
    return b.map(summed.shape, lambda at: summed.at(at) * const(-scale, summed.compute), "loss")


def _of_chances(b: Builder, of: Classes, reduction: int, smoothing: float) -> Value:
    """The loss for target probabilities; a mean is over all dimensions but the classes."""

    def chance(at: Index) -> Expr:
        p = cast(of.target.at(at), of.scores.compute)
        if smoothing:
            p = p * (1 - smoothing) + smoothing / _number(b, of.count)
        return p if of.weight is None else p * of.weight_of(at[of.c])

    loss = _over_classes(b, of, chance)
    return reduced(b, loss.shape, loss.at, reduction) if reduction != NONE else loss


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
