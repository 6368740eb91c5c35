"""Contractions: matmuls of all shapes, einsum and convolution.

16-bit operands are read as their types hold them and sums are f32, as in the tensor cores that this is meant for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.ir import dtype as dt
from compiler.ir.expr import Const, Expr, cast, const, dim, op, select, static
from compiler.ir.expr import both as all_of
from compiler.passes.torch_to_tensor.builder import Builder, Index, Rule, Shape, Value, broadcast, element, is_one
from compiler.passes.torch_to_tensor.formula import mul
from compiler.passes.torch_to_tensor.reduce import over

Element = Callable[[Index, Index], Expr]
# The terms of a transposed convolution: positions in the kernel and in the input, the conditions under which the term
# exists, and those under which the kernel has the position.
Met = tuple[list[Expr], list[Expr], list[Expr], list[Expr]]
Meeting = Callable[[Index, Index], Met]
Weighed = Callable[[Shape, Shape, Meeting], Value]
MOST_PHASES = 16  # the most phases of a transposed convolution that become separate sums


def product(b: Builder, shape: Shape, over: Shape, left: Element, right: Element, hint: str = "product") -> Value:
    """For every `at` of `shape`, the sum over `r` of left(at, r) * right(at, r)."""
    return b.reduce("sum", shape, over, lambda at, r: left(at, r) * right(at, r), hint)


def matmul(b: Builder, self: Value, other: Value) -> Value:
    """A vector is a row on the left and a column on the right; the leading dimensions broadcast."""
    if not self.rank or not other.rank:
        raise b.refuse("a matmul of a scalar")
    rows, columns = self.rank > 1, other.rank > 1
    tail = rows + columns

    def left(at: Index, r: Index) -> Expr:
        batch = at[: len(at) - tail]
        full = (*batch, at[len(batch)], r[0]) if rows else (r[0],)
        return self.rounded_at(_batched(self, full))

    def right(at: Index, r: Index) -> Expr:
        batch = at[: len(at) - tail]
        full = (*batch, r[0], at[-1]) if columns else (r[0],)
        return other.rounded_at(_batched(other, full))

    return product(b, b.out.shape, self.shape[-1:], left, right)


def int_mm(b: Builder, self: Value, mat2: Value) -> Value:
    """A product of int8 matrices with sums in the 32 bits of the result."""

    def wide(x: Value, i: Expr, j: Expr) -> Expr:
        return cast(x.at((i, j)), b.out.dtype)

    return product(
        b, b.out.shape, self.shape[-1:], lambda at, r: wide(self, at[0], r[0]), lambda at, r: wide(mat2, r[0], at[1])
    )


def _batched(x: Value, full: Index) -> Index:
    """The index into an operand for an index of the product's rank: only its batch dimensions broadcast."""
    batch = x.shape[:-2]
    own = full[len(full) - x.rank :]
    return tuple(dim(0) if d < len(batch) and is_one(batch[d]) else i for d, i in enumerate(own))


def _plus(b: Builder, self: Value, made: Value, beta: float | Expr, alpha: float | Expr) -> Value:
    """beta * self + alpha * made. With beta 0, NaN in `self` does not count. Factors of integers are truncated."""
    if not b.out.dtype.is_float:
        beta, alpha = (x if isinstance(x, Expr) else int(x) for x in (beta, alpha))

    def value(at: Index) -> Expr:
        out = made.at(at)
        out = out if alpha == 1 else out * _factor(alpha, out.dtype)
        if not beta:
            return out
        start = cast(self.at(broadcast(self, at)), out.dtype)
        return (start if beta == 1 else start * _factor(beta, out.dtype)) + out

    return made if not beta and alpha == 1 else b.map(b.out.shape, value)


def _factor(x: float | Expr, dtype: dt.DType) -> Expr:
    """A number as an element of a type; for an integer type it wraps if out of range."""
    return const(x, dtype) if dtype.is_float and not isinstance(x, Expr) else element(x, (), dtype)


def addmm(b: Builder, self: Value, mat1: Value, mat2: Value, beta: float = 1, alpha: float = 1) -> Value:
    return _plus(b, self, matmul(b, mat1, mat2), beta, alpha)


def addbmm(b: Builder, self: Value, batch1: Value, batch2: Value, beta: float = 1, alpha: float = 1) -> Value:
    """The sum of the matmuls of all batches."""
    made = product(
        b, b.out.shape, (batch1.shape[0], batch1.shape[2]),
        lambda at, r: batch1.rounded_at((r[0], at[0], r[1])), lambda at, r: batch2.rounded_at((r[0], r[1], at[1])),
    )  # fmt: skip
    return _plus(b, self, made, beta, alpha)


def outer(b: Builder, self: Value, vec2: Value) -> Value:
    """An outer product in the result's type, as `mul`; it sums nothing, so it is no contraction."""
    dtype = dt.compute(b.out.dtype)
    return b.map(b.out.shape, lambda at: mul(cast(self.at(at[:1]), dtype), cast(vec2.at(at[1:]), dtype)))


def linear(b: Builder, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weight.T + bias."""
    shape = (*input.shape[:-1], *weight.shape[:-1])

    def left(at: Index, r: Index) -> Expr:
        return input.rounded_at((*at[: input.rank - 1], r[0]))

    def right(at: Index, r: Index) -> Expr:
        return weight.rounded_at((*at[input.rank - 1 :], r[0]))

    made = product(b, shape, input.shape[-1:], left, right)
    return made if bias is None else _plus(b, bias, made, 1, 1)


# Einsum ---------------------------------------------------------------------------------------------------------------


def einsum(b: Builder, equation: str, tensors: Sequence[Value], path: Sequence[int] | None = None) -> Value:
    """Contract operands from left to right, two at a time; labels that no later operand needs are summed at once."""
    del path  # only an order of evaluation
    terms, result = _labels(b, equation, tensors)
    made, labels = tensors[0], terms[0]
    for n in range(1, len(tensors) or 1):
        later = set(result).union(*terms[n + 1 :])
        target = result if n == len(tensors) - 1 else [x for x in dict.fromkeys(labels + terms[n]) if x in later]
        made = _contract(b, [(made, labels), (tensors[n], terms[n])], target)
        labels = target
    return _contract(b, [(made, labels)], result) if len(tensors) == 1 else made


def _labels(b: Builder, equation: str, tensors: Sequence[Value]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand's dimensions and of the result's; those of `...` are numbered from the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        raise b.refuse(f"{len(parts)} operands in {equation!r}, but {len(tensors)} tensors")
    terms = [_term(b, p, x.rank) for p, x in zip(parts, tensors, strict=True)]
    hidden = sorted({x for t in terms for x in t if x.isdigit()}, key=int, reverse=True)
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(hidden if dots else []), *after]
    every = [x for t in terms for x in t if not x.isdigit()]
    return terms, hidden + sorted(x for x in set(every) if every.count(x) == 1)


def _term(b: Builder, part: str, rank: int) -> list[str]:
    before, dots, after = part.partition("...")
    count = rank - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise b.refuse(f"{part!r} does not fit a tensor of rank {rank}")
    return [*before, *(str(n) for n in reversed(range(count))), *after]


def _contract(b: Builder, operands: list[tuple[Value, list[str]]], result: list[str]) -> Value:
    sizes: dict[str, Expr] = {}
    for x, labels in operands:
        for label, extent in zip(labels, x.shape, strict=True):
            if label not in sizes or is_one(sizes[label]):
                sizes[label] = extent
    summed = [label for label in sizes if label not in result]
    shape, over = tuple(sizes[x] for x in result), tuple(sizes[x] for x in summed)

    def value(at: Index, r: Index) -> Expr:
        where = dict(zip([*result, *summed], [*at, *r], strict=True))
        factors = [
            x.rounded_at([0 if is_one(n) else where[label] for label, n in zip(labels, x.shape, strict=True)])
            for x, labels in operands
        ]
        return factors[0] if len(factors) == 1 else factors[0] * factors[1]

    return b.reduce("sum", shape, over, value, "product") if summed else b.map(shape, lambda at: value(at, ()))


# Convolution ----------------------------------------------------------------------------------------------------------


def convolution(
    b: Builder, input: Value, weight: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """The sum over channels and kernel positions of shifted inputs times weights; zero outside of the input."""
    rank = input.rank - 2
    stride, padding, dilation = (_per_dim(x, rank) for x in (stride, padding, dilation))
    del output_padding  # it only enlarges the declared shape
    made = (_transposed if transposed else _convolved)(b, b.out.shape, input, weight, stride, padding, dilation, groups)
    if bias is None:
        return made
    return b.map(b.out.shape, lambda at: made.at(at) + cast(bias.at(at[1:2]), made.compute))


def convolution_backward(
    b: Builder, grad_output: Value, input: Value, weight: Value, bias_sizes: Sequence[int] | None,
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, output_mask: Sequence[bool],
) -> tuple[Value | None, ...]:  # fmt: skip
    """Gradients of the input, the weights and the bias; None for those that `output_mask` excludes.

    The gradient of a convolution's input is a transposed convolution, and vice versa. The gradient of the weights sums
    the same products over the image; a transposed convolution exchanges the roles of input and gradient.
    """
    del bias_sizes, output_padding
    rank = input.rank - 2
    how = _per_dim(stride, rank), _per_dim(padding, rank), _per_dim(dilation, rank)
    back = _convolved if transposed else _transposed
    steady, moving = (input, grad_output) if transposed else (grad_output, input)
    image = (0, *range(2, grad_output.rank))
    return (
        back(b, input.shape, grad_output, weight, *how, groups) if output_mask[0] else None,
        _weighing(b, weight.shape, steady, moving, *how, groups) if output_mask[1] else None,
        over(b, "sum", grad_output.shape, image, False, grad_output.at, "bias") if output_mask[2] else None,
    )


def _weighing(
    b: Builder, shape: Shape, steady: Value, moving: Value, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """The gradient of each weight: the sum over the steady image of its elements times those that met the weight."""
    outer, inner = (static(n, "channels") for n in shape[:2])

    def shifted(at: Index, r: Index) -> Expr:
        channel = at[1] if groups == 1 else at[0] // (outer // groups) * inner + at[1]
        return _shifted(moving, (r[0], channel), r[1:], at[2:], stride, padding, dilation)

    return product(
        b, shape, (steady.shape[0], *steady.shape[2:]),
        lambda at, r: steady.rounded_at((r[0], at[0], *r[1:])), shifted, "weights",
    )  # fmt: skip


def _shifted(
    image: Value, row: Index, at: Index, places: Index, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Expr:  # fmt: skip
    """The image elements under kernel positions `places` for the result position `at`; zero outside."""
    here = [i * s + k * e - p for i, k, s, e, p in zip(at, places, stride, dilation, padding, strict=True)]
    edges = [(h, n) for h, n, p in zip(here, image.shape[2:], padding, strict=True) if p]
    inside = all_of(*(c for h, n in edges for c in (op("ge", h, 0), op("lt", h, n))))
    value = image.rounded_at((*row, *here))
    return select(inside, value, const(0, value.dtype))


def _convolved(
    b: Builder, shape: Shape, input: Value, weight: Value, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    per_input = static(input.shape[1], "channels") // groups
    per_output = static(shape[1], "channels") // groups

    def shifted(at: Index, r: Index) -> Expr:
        channel = r[0] if groups == 1 else at[1] // per_output * per_input + r[0]
        return _shifted(input, (at[0], channel), at[2:], r[1:], stride, padding, dilation)

    return product(b, shape, (dim(per_input), *weight.shape[2:]), shifted, lambda at, r: weight.rounded_at((at[1], *r)))


@dataclass(frozen=True)
class _Spread:
    """A dimension of a transposed convolution, whose result has `stride` phases for each element of the input.

    At place = m * stride + phase (padding included), kernel position k meets input (place - k * dilation) / stride if
    that is whole: k modulo stride / gcd(stride, dilation) is determined by the phase.
    """

    stride: int
    padding: int
    dilation: int
    kernel: Expr
    extent: Expr

    @property
    def common(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        return self.stride // self.common

    @property
    def skipped(self) -> int:
        """Places before the first element of the result, modulo the stride."""
        return self.padding % self.stride

    def first(self, phase: Expr) -> Expr:
        """The first kernel position that meets an input."""
        inverse = pow(self.dilation // self.common, -1, self.period) if self.period > 1 else 0
        return phase // self.common * inverse % self.period

    def turns(self, phase: Expr) -> Expr:
        """The number of kernel positions that meet an input."""
        return (self.kernel - self.first(phase) + (self.period - 1)) // self.period

    def meet(self, m: Expr, phase: Expr, turn: Expr) -> tuple[Expr, Expr]:
        """The positions in the kernel and in the input that meet."""
        first = self.first(phase)
        k = turn * self.period + first
        i = m + self.padding // self.stride - turn * (self.dilation // self.common)
        return k, i + (phase - first * self.dilation) // self.stride

    def edges(self, i: Expr) -> list[Expr]:
        """The condition that the input position exists."""
        return [op("ge", i, 0), op("lt", i, self.extent)]


def _transposed(
    b: Builder, shape: Shape, input: Value, weight: Value, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """Compute each element of the result by its phase, so that only the kernel positions of that phase are visited."""
    per_input = static(input.shape[1], "channels") // groups
    per_output = static(shape[1], "channels") // groups
    spread = list(map(_Spread, stride, padding, dilation, weight.shape[2:], input.shape[2:]))
    last = b.parts and any(s.stride > 1 for s in spread) and b.out.strides[1] is const(1)

    def lie(at: Index) -> Index:
        """The index into the sums, which are stored channels-last if the result is."""
        return (at[0], *at[2:], at[1]) if last else at

    def stand(at: Index) -> Index:
        return (at[0], at[-1], *at[1:-1]) if last else at

    def weighed(whole: Shape, turns: Shape, meet: Meeting) -> Value:
        """The sums over channels and turns, with the terms of `meet`."""

        def shifted(at: Index, r: Index) -> Expr:
            _, here, conditions, _ = meet(at[2:], r[1:])
            channel = r[0] if groups == 1 else at[1] // per_output * per_input + r[0]
            value = input.rounded_at((at[0], channel, *here))
            return select(all_of(*conditions), value, const(0, value.dtype))

        def weighted(at: Index, r: Index) -> Expr:
            places, _, _, within = meet(at[2:], r[1:])
            group = at[1] // per_output
            value = weight.rounded_at((group * per_input + r[0], at[1] % per_output, *places))
            return select(all_of(*within), value, const(0, value.dtype))

        return product(
            b, lie((*shape[:2], *whole)), (dim(per_input), *turns),
            lambda at, r: shifted(stand(at), r), lambda at, r: weighted(stand(at), r),
        )  # fmt: skip

    return (_apart if b.parts and _uneven(spread) else _together)(b, shape, spread, weighed, lie)


def _together(
    b: Builder, shape: Shape, spread: list[_Spread], weighed: Weighed, lie: Callable[[Index], Index]
) -> Value:
    """All phases in one sum, with the largest number of turns of any phase."""
    split = [d for d, s in enumerate(spread) if s.stride > 1]

    def meet(at: Index, r: Index) -> Met:
        phases = iter(at)
        inner = [next(phases) if d in split else dim(0) for d in range(len(spread))]
        places, here, conditions, within = [], [], [], []
        for s, m, phase, turn in zip(spread, at[len(split) :], inner, r, strict=True):
            k, i = s.meet(m, phase, turn)
            there = [op("lt", k, s.kernel)] if s.period > 1 else []
            conditions += [op("eq", phase % s.common, 0)] if s.common > 1 else []
            conditions += [*s.edges(i), *there]
            within += there
            places.append(k)
            here.append(i)
        return places, here, conditions, within

    phases = [dim(spread[d].stride) for d in split]
    whole = [(n + (s.skipped + s.stride - 1)) // s.stride for n, s in zip(shape[2:], spread, strict=True)]
    made = weighed((*phases, *whole), tuple(s.turns(dim(0)) for s in spread), meet)
    if not split:
        return made

    def apart(at: Index) -> Index:
        places = [o + s.skipped for o, s in zip(at[2:], spread, strict=True)]
        own = (places[d] % spread[d].stride for d in split)
        return (*at[:2], *own, *(x // s.stride for x, s in zip(places, spread, strict=True)))

    return b.map(shape, lambda at: made.at(lie(apart(at))))


def _uneven(spread: list[_Spread]) -> bool:
    """Whether phases of a known kernel differ in their number of turns, so that one sum for all would add zeros."""
    kernels = [s.kernel for s in spread]
    if math.prod(s.stride for s in spread) > MOST_PHASES or not all(isinstance(n, Const) for n in kernels):
        return False
    return any(s.common > 1 or static(n) % s.period for s, n in zip(spread, kernels, strict=True))


def _apart(b: Builder, shape: Shape, spread: list[_Spread], weighed: Weighed, lie: Callable[[Index], Index]) -> Value:
    """A sum per phase: for the elements of the result with one remainder modulo the stride."""
    whole = tuple((n + (s.stride - 1)) // s.stride for n, s in zip(shape[2:], spread, strict=True))
    made: dict[tuple[int, ...], Value] = {}
    for rest in itertools.product(*(range(s.stride) for s in spread)):
        ahead = [divmod(x + s.skipped, s.stride) for x, s in zip(rest, spread, strict=True)]
        turns = tuple(s.turns(dim(p)) if p % s.common == 0 else dim(0) for (_, p), s in zip(ahead, spread, strict=True))

        def meet(at: Index, r: Index, ahead: list[tuple[int, int]] = ahead) -> Met:
            met = [s.meet(m + n, dim(p), t) for s, m, (n, p), t in zip(spread, at, ahead, r, strict=True)]
            edges = [e for s, (_, i) in zip(spread, met, strict=True) for e in s.edges(i)]
            return [k for k, _ in met], [i for _, i in met], edges, []

        if all(static(n) for n in turns):
            made[rest] = weighed(whole, turns, meet)

    zero = const(0, next(iter(made.values())).compute)  # for phases without terms

    def chosen(at: Index, rest: tuple[int, ...] = ()) -> Expr:
        d = len(rest)
        if d == len(spread):
            here = tuple(o // s.stride for o, s in zip(at[2:], spread, strict=True))
            return made[rest].at(lie((*at[:2], *here))) if rest in made else zero
        *others, last = (chosen(at, (*rest, x)) for x in range(spread[d].stride))
        for x in reversed(range(len(others))):
            how = op("eq", at[2 + d] % spread[d].stride, x)
            # Neighbours have different phases; each lane computes all of them and selects its own.
            last = op("where", how, others[x], last) if d == len(spread) - 1 else select(how, others[x], last)
        return last

    return b.map(shape, chosen)


def _per_dim(given: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(given) * rank if len(given) == 1 else tuple(given)


RULES: dict[str, Rule] = {
    "aten.mm.default": matmul, "aten.bmm.default": matmul, "aten.mv.default": matmul, "aten.dot.default": matmul,
    "aten.vdot.default": matmul, "aten.matmul.default": matmul, "aten.outer.default": outer,
    "aten.addmm.default": addmm, "aten.baddbmm.default": addmm, "aten.addmv.default": addmm,
    "aten.addbmm.default": addbmm, "aten.linear.default": linear, "aten.einsum.default": einsum,
    "aten._int_mm.default": int_mm,
    "aten.convolution.default": convolution, "aten.convolution_backward.default": convolution_backward,
}  # fmt: skip
