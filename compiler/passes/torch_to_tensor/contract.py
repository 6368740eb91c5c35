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
from compiler.passes.torch_to_tensor.reduce import reduce_dims

Element = Callable[[Index, Index], Expr]
# The terms of a transposed convolution: positions in the kernel and in the input, the conditions under which the term
# exists, and those under which the kernel has the position.
Terms = tuple[list[Expr], list[Expr], list[Expr], list[Expr]]
TermsOf = Callable[[Index, Index], Terms]
SumOfTerms = Callable[[Shape, Shape, TermsOf], Value]
MOST_PHASES = 16  # the most phases of a transposed convolution that become separate sums


def product(b: Builder, shape: Shape, over: Shape, left: Element, right: Element, hint: str = "product") -> Value:
    """For every `at` of `shape`, the sum over `r` of left(at, r) * right(at, r)."""
    return b.reduce("sum", shape, over, lambda at, r: left(at, r) * right(at, r), hint)


def matmul(b: Builder, self: Value, other: Value) -> Value:
    """A vector is a row on the left and a column on the right; the leading dimensions broadcast."""
    if not self.rank or not other.rank:
        raise b.refuse("a matmul of a scalar")
    rows, columns = self.rank > 1, other.rank > 1
    matrix_dims = rows + columns

    def left(at: Index, r: Index) -> Expr:
        batch = at[: len(at) - matrix_dims]
        full = (*batch, at[len(batch)], r[0]) if rows else (r[0],)
        return self.rounded_at(_operand_index(self, full))

    def right(at: Index, r: Index) -> Expr:
        batch = at[: len(at) - matrix_dims]
        full = (*batch, r[0], at[-1]) if columns else (r[0],)
        return other.rounded_at(_operand_index(other, full))

    return product(b, b.out.shape, self.shape[-1:], left, right)


def int_mm(b: Builder, self: Value, mat2: Value) -> Value:
    """A product of int8 matrices with sums in the 32 bits of the result."""

    def wide(x: Value, i: Expr, j: Expr) -> Expr:
        return cast(x.at((i, j)), b.out.dtype)

    return product(
        b, b.out.shape, self.shape[-1:], lambda at, r: wide(self, at[0], r[0]), lambda at, r: wide(mat2, r[0], at[1])
    )


def _operand_index(x: Value, full: Index) -> Index:
    """The index into an operand for an index of the product's rank: only its batch dimensions broadcast."""
    batch = x.shape[:-2]
    index = full[len(full) - x.rank :]
    return tuple(dim(0) if d < len(batch) and is_one(batch[d]) else i for d, i in enumerate(index))


def _add_scaled(b: Builder, self: Value, addend: Value, beta: float | Expr, alpha: float | Expr) -> Value:
    """beta * self + alpha * addend. With beta 0, NaN in `self` does not count. Factors of integers are truncated."""
    if not b.out.dtype.is_float:
        beta, alpha = (x if isinstance(x, Expr) else int(x) for x in (beta, alpha))

    def value(at: Index) -> Expr:
        out = addend.at(at)
        out = out if alpha == 1 else out * _factor(alpha, out.dtype)
        if not beta:
            return out
        start = cast(self.at(broadcast(self, at)), out.dtype)
        return (start if beta == 1 else start * _factor(beta, out.dtype)) + out

    return addend if not beta and alpha == 1 else b.map(b.out.shape, value)


def _factor(x: float | Expr, dtype: dt.DType) -> Expr:
    """A number as an element of a type; for an integer type it wraps if out of range."""
    return const(x, dtype) if dtype.is_float and not isinstance(x, Expr) else element(x, (), dtype)


def addmm(b: Builder, self: Value, mat1: Value, mat2: Value, beta: float = 1, alpha: float = 1) -> Value:
    return _add_scaled(b, self, matmul(b, mat1, mat2), beta, alpha)


def addbmm(b: Builder, self: Value, batch1: Value, batch2: Value, beta: float = 1, alpha: float = 1) -> Value:
    """The sum of the matmuls of all batches."""
    total = product(
        b, b.out.shape, (batch1.shape[0], batch1.shape[2]),
        lambda at, r: batch1.rounded_at((r[0], at[0], r[1])), lambda at, r: batch2.rounded_at((r[0], r[1], at[1])),
    )  # fmt: skip
    return _add_scaled(b, self, total, beta, alpha)


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

    result = product(b, shape, input.shape[-1:], left, right)
    return result if bias is None else _add_scaled(b, bias, result, 1, 1)


# Einsum ---------------------------------------------------------------------------------------------------------------


def einsum(b: Builder, equation: str, tensors: Sequence[Value], path: Sequence[int] | None = None) -> Value:
    """Contract operands from left to right, two at a time; labels that no later operand needs are summed at once."""
    del path  # only an order of evaluation
    terms, result = einsum_labels(equation, [x.rank for x in tensors], b.refuse)
    value, labels = tensors[0], terms[0]
    for n in range(1, len(tensors) or 1):
        needed = set(result).union(*terms[n + 1 :])
        target = result if n == len(tensors) - 1 else [x for x in dict.fromkeys(labels + terms[n]) if x in needed]
        value = _contract(b, [(value, labels), (tensors[n], terms[n])], target)
        labels = target
    return _contract(b, [(value, labels)], result) if len(tensors) == 1 else value


def einsum_labels(
    equation: str, ranks: Sequence[int], refuse: Callable[[str], Exception]
) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand's dimensions and of the result's; those of `...` are numbered from the end.

    Raises what `refuse` makes of a reason if the operands are not of these ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise refuse(f"{len(parts)} operands in {equation!r}, but {len(ranks)} tensors")
    terms = [_term_labels(p, rank, refuse) for p, rank in zip(parts, ranks, strict=True)]
    ellipsis_labels = sorted({x for t in terms for x in t if x.isdigit()}, key=int, reverse=True)
    if arrow:
        before, dots, after = right.partition("...")
        return terms, [*before, *(ellipsis_labels if dots else []), *after]
    labels = [x for t in terms for x in t if not x.isdigit()]
    return terms, ellipsis_labels + sorted(x for x in set(labels) if labels.count(x) == 1)


def _term_labels(part: str, rank: int, refuse: Callable[[str], Exception]) -> list[str]:
    before, dots, after = part.partition("...")
    count = rank - len(before) - len(after)
    if count < 0 or (count and not dots):
        raise refuse(f"{part!r} does not fit a tensor of rank {rank}")
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
        index_of = dict(zip([*result, *summed], [*at, *r], strict=True))
        factors = [
            x.rounded_at([0 if is_one(n) else index_of[label] for label, n in zip(labels, x.shape, strict=True)])
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
    result = (_transposed_convolution if transposed else _direct_convolution)(
        b, b.out.shape, input, weight, stride, padding, dilation, groups
    )
    if bias is None:
        return result
    return b.map(b.out.shape, lambda at: result.at(at) + cast(bias.at(at[1:2]), result.compute))


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
    geometry = _per_dim(stride, rank), _per_dim(padding, rank), _per_dim(dilation, rank)
    input_gradient = _direct_convolution if transposed else _transposed_convolution
    fixed_image, sliding_image = (input, grad_output) if transposed else (grad_output, input)
    summed_dims = (0, *range(2, grad_output.rank))
    return (
        input_gradient(b, input.shape, grad_output, weight, *geometry, groups) if output_mask[0] else None,
        _weight_gradient(b, weight.shape, fixed_image, sliding_image, *geometry, groups) if output_mask[1] else None,
        reduce_dims(b, "sum", grad_output.shape, summed_dims, False, grad_output.at, "bias")
        if output_mask[2]
        else None,
    )


def _weight_gradient(
    b: Builder, shape: Shape, fixed_image: Value, sliding_image: Value, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """The gradient of each weight: the sum over the fixed image of its elements times those that met the weight."""
    output_channels, input_channels = (static(n, "channels") for n in shape[:2])

    def shifted(at: Index, r: Index) -> Expr:
        channel = at[1] if groups == 1 else at[0] // (output_channels // groups) * input_channels + at[1]
        return _image_at(sliding_image, (r[0], channel), r[1:], at[2:], stride, padding, dilation)

    return product(
        b, shape, (fixed_image.shape[0], *fixed_image.shape[2:]),
        lambda at, r: fixed_image.rounded_at((r[0], at[0], *r[1:])), shifted, "weights",
    )  # fmt: skip


def _image_at(
    image: Value, row: Index, at: Index, kernel_positions: Index, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> Expr:  # fmt: skip
    """The image elements under `kernel_positions` for the result position `at`; zero outside."""
    positions = [
        i * s + k * e - p for i, k, s, e, p in zip(at, kernel_positions, stride, dilation, padding, strict=True)
    ]
    checked = [(h, n) for h, n, p in zip(positions, image.shape[2:], padding, strict=True) if p]
    inside = all_of(*(c for h, n in checked for c in (op("ge", h, 0), op("lt", h, n))))
    value = image.rounded_at((*row, *positions))
    return select(inside, value, const(0, value.dtype))


def _direct_convolution(
    b: Builder, shape: Shape, input: Value, weight: Value, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    per_input = static(input.shape[1], "channels") // groups
    per_output = static(shape[1], "channels") // groups

    def shifted(at: Index, r: Index) -> Expr:
        channel = r[0] if groups == 1 else at[1] // per_output * per_input + r[0]
        return _image_at(input, (at[0], channel), at[2:], r[1:], stride, padding, dilation)

    return product(b, shape, (dim(per_input), *weight.shape[2:]), shifted, lambda at, r: weight.rounded_at((at[1], *r)))


@dataclass(frozen=True)
class _StridedDim:
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
    def step_gcd(self) -> int:
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        return self.stride // self.step_gcd

    @property
    def start_phase(self) -> int:
        """Places before the first element of the result, modulo the stride."""
        return self.padding % self.stride

    def first_tap(self, phase: Expr) -> Expr:
        """The first kernel position that meets an input."""
        inverse = pow(self.dilation // self.step_gcd, -1, self.period) if self.period > 1 else 0
        return phase // self.step_gcd * inverse % self.period

    def tap_count(self, phase: Expr) -> Expr:
        """The number of kernel positions that meet an input."""
        return (self.kernel - self.first_tap(phase) + (self.period - 1)) // self.period

    def positions(self, m: Expr, phase: Expr, tap: Expr) -> tuple[Expr, Expr]:
        """The positions in the kernel and in the input that meet."""
        first = self.first_tap(phase)
        k = tap * self.period + first
        i = m + self.padding // self.stride - tap * (self.dilation // self.step_gcd)
        return k, i + (phase - first * self.dilation) // self.stride

    def bounds(self, i: Expr) -> list[Expr]:
        """The condition that the input position exists."""
        return [op("ge", i, 0), op("lt", i, self.extent)]


def _transposed_convolution(
    b: Builder, shape: Shape, input: Value, weight: Value, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    """Compute each element of the result by its phase, so that only the kernel positions of that phase are visited."""
    per_input = static(input.shape[1], "channels") // groups
    per_output = static(shape[1], "channels") // groups
    strided_dims = list(map(_StridedDim, stride, padding, dilation, weight.shape[2:], input.shape[2:]))
    channels_last = b.split_sums and any(s.stride > 1 for s in strided_dims) and b.out.strides[1] is const(1)

    def to_storage(at: Index) -> Index:
        """The index into the sums, which are stored channels-last if the result is."""
        return (at[0], *at[2:], at[1]) if channels_last else at

    def from_storage(at: Index) -> Index:
        return (at[0], at[-1], *at[1:-1]) if channels_last else at

    def sum_of_terms(extents: Shape, tap_counts: Shape, terms_of: TermsOf) -> Value:
        """The sums over channels and taps, with the terms of `terms_of`."""

        def shifted(at: Index, r: Index) -> Expr:
            _, input_positions, conditions, _ = terms_of(at[2:], r[1:])
            channel = r[0] if groups == 1 else at[1] // per_output * per_input + r[0]
            value = input.rounded_at((at[0], channel, *input_positions))
            return select(all_of(*conditions), value, const(0, value.dtype))

        def weighted(at: Index, r: Index) -> Expr:
            kernel_positions, _, _, kernel_conditions = terms_of(at[2:], r[1:])
            group = at[1] // per_output
            value = weight.rounded_at((group * per_input + r[0], at[1] % per_output, *kernel_positions))
            return select(all_of(*kernel_conditions), value, const(0, value.dtype))

        return product(
            b, to_storage((*shape[:2], *extents)), (dim(per_input), *tap_counts),
            lambda at, r: shifted(from_storage(at), r), lambda at, r: weighted(from_storage(at), r),
        )  # fmt: skip

    return (_sum_per_phase if b.split_sums and _phases_differ(strided_dims) else _one_sum)(
        b, shape, strided_dims, sum_of_terms, to_storage
    )


def _one_sum(
    b: Builder,
    shape: Shape,
    strided_dims: list[_StridedDim],
    sum_of_terms: SumOfTerms,
    to_storage: Callable[[Index], Index],
) -> Value:
    """All phases in one sum, with the largest number of taps of any phase."""
    split = [d for d, s in enumerate(strided_dims) if s.stride > 1]

    def terms_of(at: Index, r: Index) -> Terms:
        phases = iter(at)
        phase_of_dim = [next(phases) if d in split else dim(0) for d in range(len(strided_dims))]
        kernel_positions, input_positions, conditions, kernel_conditions = [], [], [], []
        for s, m, phase, tap in zip(strided_dims, at[len(split) :], phase_of_dim, r, strict=True):
            k, i = s.positions(m, phase, tap)
            in_kernel = [op("lt", k, s.kernel)] if s.period > 1 else []
            conditions += [op("eq", phase % s.step_gcd, 0)] if s.step_gcd > 1 else []
            conditions += [*s.bounds(i), *in_kernel]
            kernel_conditions += in_kernel
            kernel_positions.append(k)
            input_positions.append(i)
        return kernel_positions, input_positions, conditions, kernel_conditions

    phases = [dim(strided_dims[d].stride) for d in split]
    extents = [(n + (s.start_phase + s.stride - 1)) // s.stride for n, s in zip(shape[2:], strided_dims, strict=True)]
    sums = sum_of_terms((*phases, *extents), tuple(s.tap_count(dim(0)) for s in strided_dims), terms_of)
    if not split:
        return sums

    def sum_index(at: Index) -> Index:
        padded_positions = [o + s.start_phase for o, s in zip(at[2:], strided_dims, strict=True)]
        phase_index = (padded_positions[d] % strided_dims[d].stride for d in split)
        return (*at[:2], *phase_index, *(x // s.stride for x, s in zip(padded_positions, strided_dims, strict=True)))

    return b.map(shape, lambda at: sums.at(to_storage(sum_index(at))))


def _phases_differ(strided_dims: list[_StridedDim]) -> bool:
    """Whether phases of a known kernel differ in their number of taps, so that one sum for all would add zeros."""
    kernels = [s.kernel for s in strided_dims]
    if math.prod(s.stride for s in strided_dims) > MOST_PHASES or not all(isinstance(n, Const) for n in kernels):
        return False
    return any(s.step_gcd > 1 or static(n) % s.period for s, n in zip(strided_dims, kernels, strict=True))


def _sum_per_phase(
    b: Builder,
    shape: Shape,
    strided_dims: list[_StridedDim],
    sum_of_terms: SumOfTerms,
    to_storage: Callable[[Index], Index],
) -> Value:
    """A sum per phase: for the elements of the result with one remainder modulo the stride."""
    extents = tuple((n + (s.stride - 1)) // s.stride for n, s in zip(shape[2:], strided_dims, strict=True))
    sums: dict[tuple[int, ...], Value] = {}
    for remainders in itertools.product(*(range(s.stride) for s in strided_dims)):
        phases = [divmod(x + s.start_phase, s.stride) for x, s in zip(remainders, strided_dims, strict=True)]
        tap_counts = tuple(
            s.tap_count(dim(p)) if p % s.step_gcd == 0 else dim(0)
            for (_, p), s in zip(phases, strided_dims, strict=True)
        )

        def terms_of(at: Index, r: Index, phases: list[tuple[int, int]] = phases) -> Terms:
            pairs = [s.positions(m + n, dim(p), t) for s, m, (n, p), t in zip(strided_dims, at, phases, r, strict=True)]
            edges = [e for s, (_, i) in zip(strided_dims, pairs, strict=True) for e in s.bounds(i)]
            return [k for k, _ in pairs], [i for _, i in pairs], edges, []

        if all(static(n) for n in tap_counts):
            sums[remainders] = sum_of_terms(extents, tap_counts, terms_of)

    zero = const(0, next(iter(sums.values())).compute)  # for phases without terms

    def select_phase(at: Index, remainders: tuple[int, ...] = ()) -> Expr:
        d = len(remainders)
        if d == len(strided_dims):
            sum_position = tuple(o // s.stride for o, s in zip(at[2:], strided_dims, strict=True))
            return sums[remainders].at(to_storage((*at[:2], *sum_position))) if remainders in sums else zero
        *others, last = (select_phase(at, (*remainders, x)) for x in range(strided_dims[d].stride))
        for x in reversed(range(len(others))):
            is_phase = op("eq", at[2 + d] % strided_dims[d].stride, x)
            # Neighbours have different phases; each lane computes all of them and selects its own.
            last = (
                op("where", is_phase, others[x], last)
                if d == len(strided_dims) - 1
                else select(is_phase, others[x], last)
            )
        return last

    return b.map(shape, select_phase)


def _per_dim(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


RULES: dict[str, Rule] = {
    "aten.mm.default": matmul, "aten.bmm.default": matmul, "aten.mv.default": matmul, "aten.dot.default": matmul,
    "aten.vdot.default": matmul, "aten.matmul.default": matmul, "aten.outer.default": outer,
    "aten.addmm.default": addmm, "aten.baddbmm.default": addmm, "aten.addmv.default": addmm,
    "aten.addbmm.default": addbmm, "aten.linear.default": linear, "aten.einsum.default": einsum,
    "aten._int_mm.default": int_mm,
    "aten.convolution.default": convolution, "aten.convolution_backward.default": convolution_backward,
}  # fmt: skip
