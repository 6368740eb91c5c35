"""Rewrite graphs on complex numbers as graphs on their real and imaginary parts, two real tensors.

A complex input or result of the graph becomes a real tensor with a last dimension of 2. An op without a rule here is
refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from compiler.errors import Unsupported
from compiler.frontend import complex_functions, fourier, graphs
from compiler.frontend.decompose import RetracingInterpreter, expand, retrace

_aten = torch.ops.aten
_ORDER = "complex_order"  # key in a node's meta: the order of the dimensions of its complex tensor in memory
PARTS = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}


@dataclass(frozen=True)
class Pair:
    """The real and imaginary parts of complex numbers."""

    re: Tensor
    im: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        return self.re, self.im

    @property
    def shape(self) -> torch.Size:
        return self.re.shape


def is_complex(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_complex()


def has_complex(graph: GraphModule) -> bool:
    return any(is_complex(v) for n in graph.graph.nodes for v in pytree.tree_leaves(n.meta.get("val")))


def without_complex(graph: GraphModule) -> GraphModule:
    """Rewrite and decompose a graph whose inputs and results are real; raises Unsupported if they are not."""
    if not has_complex(graph):
        return graph
    for n in graph.graph.nodes:
        outer = [n] if n.op == "placeholder" else n.all_input_nodes if n.op == "output" else []
        if any(is_complex(x.meta.get("val")) for x in outer):
            raise Unsupported("complex numbers", (n.name,), "inputs and results are real, but for torch.compile's")
    return expand(as_real(graph))


def as_real(graph: GraphModule) -> GraphModule:
    """The graph on real numbers; raises Unsupported."""
    inputs = [n.meta.get("val") for n in graphs.placeholders(graph)]
    mode = graphs.fake_mode_of(graph.graph.nodes)
    if mode is None:
        raise Unsupported("complex numbers", (), "a graph without tensors")
    graph = _with_real_attributes(graph)
    for n in graph.graph.nodes:
        x = n.meta.get("val")
        if is_complex(x) or n.target is _aten._fft_c2r.default:  # here, as tracing cannot evaluate symbolic strides
            n.meta[_ORDER] = sorted(range(x.dim()), key=x.stride, reverse=True)
    constants = {r.name: r for n in graph.graph.nodes for r in _needed_roots(n)}
    first_node = next(iter(graph.graph.nodes))
    for name, roots in constants.items():
        graph.register_buffer(name, roots.value())
        with graph.graph.inserting_before(first_node):
            graph.graph.get_attr(name)
    with mode:
        examples = [parts(v) for v in inputs]
    return retrace(graph, examples, mode, interpreter_class=_PairInterpreter)


def _with_real_attributes(graph: GraphModule) -> GraphModule:
    """A copy of the graph whose complex attributes are held as real tensors with a last dimension of 2."""
    copied, copy_of = Graph(), dict[Node, Node]()
    for n in graph.graph.nodes:
        copy_of[n] = copied.node_copy(n, copy_of.__getitem__)
    result = GraphModule(graph, copied)
    for n in copied.nodes:
        value = operator.attrgetter(n.target)(graph) if n.op == "get_attr" else None
        if is_complex(value):
            n.meta["val"], n.target = value, f"parts_of_{n.name}"
            result.register_buffer(n.target, parts(value))
    return result


def parts(x: Any) -> Any:
    """A tensor as the rewritten graph takes it: real, with a last dimension of 2 if it was complex."""
    return torch.view_as_real(x.resolve_conj()) if is_complex(x) else x


def _stack_parts(x: Pair, order: list[int]) -> Tensor:
    """The parts stacked along a last dimension, with the other dimensions in memory in this `order`."""
    stacked = torch.stack([part.permute(order) for part in x.parts], -1)
    return stacked.permute(*(order.index(d) for d in range(len(order))), -1)


def _to_memory_order(x: Tensor, order: list[int]) -> Tensor:
    """The tensor made contiguous with its dimensions in memory in this `order`."""
    return x.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])


def _needed_roots(node: Node) -> Sequence[fourier.Roots]:
    if getattr(node.target, "overloadpacket", None) not in _TRANSFORMS:
        return ()
    x, result = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    dtype = PARTS.get(x.dtype, x.dtype)
    sign = -1 if node.target is _aten._fft_r2c.default or node.args[3] is True else 1
    sizes = result.shape if node.target is _aten._fft_c2r.default else x.shape
    roots = [fourier.needed_constants(int(sizes[d]), sign, dtype) for d in node.args[1]]  # type: ignore[union-attr]
    if not all(roots):
        raise Unsupported(str(node.target), [str(list(sizes))], f"a length with a prime factor above {fourier.LONGEST}")
    return [r for each in roots for r in each]


class _PairInterpreter(RetracingInterpreter):
    """Runs a graph with a Pair for each complex tensor."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stacked_parts: dict[tuple[int, int, tuple[int, ...]], tuple[Pair, Tensor]] = {}

    def run_node(self, n: Node) -> Any:
        self.node = n
        value = super().run_node(n)
        holds_parts = n.op in ("placeholder", "get_attr") and is_complex(n.meta.get("val"))
        return Pair(value[..., 0], value[..., 1]) if holds_parts else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        values = [*pytree.tree_leaves(self.node.meta.get("val")), *pytree.tree_leaves((args, kwargs))]
        if not any(isinstance(x, Pair | complex) or is_complex(x) for x in values):
            return super().call_function(target, args, kwargs)
        packet = getattr(target, "overloadpacket", target)
        if packet is _aten.view_as_real:
            return self.stacked(pair(args[0]), self.node.args[0].meta[_ORDER])  # type: ignore[union-attr]
        if packet in _TRANSFORMS:
            result = _TRANSFORMS[packet](lambda roots: self.attribute_values[roots.name], *args, **kwargs)
            return result if isinstance(result, Pair) else _to_memory_order(result, self.node.meta[_ORDER])
        if packet in _FORMULAS and (result := _FORMULAS[packet](*args, **kwargs)) is not NotImplemented:
            return result
        if packet in _PARTWISE or target in _CALLS:
            return _apply_to_parts(target, args, kwargs)
        operands = pytree.tree_leaves((args, kwargs))
        texts = [str(list(x.shape)) if isinstance(x, Tensor | Pair) else str(x) for x in operands]
        raise Unsupported(str(target), texts, "no rule for this op on complex numbers")

    def stacked(self, x: Pair, order: list[int]) -> Tensor:
        """`_stack_parts`, computed once for each pair of parts and order."""
        key = id(x.re), id(x.im), tuple(order)
        if key not in self.stacked_parts:
            self.stacked_parts[key] = x, _stack_parts(x, order)
        return self.stacked_parts[key][1]

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        results = super().output(target, args, kwargs)
        nodes = self.node.args[0]
        pairs = zip(results, nodes, strict=True)  # type: ignore[arg-type]
        return [self.stacked(x, n.meta[_ORDER]) if isinstance(x, Pair) else x for x, n in pairs]


# Ops ------------------------------------------------------------------------------------------------------------------


def pair(x: Any) -> Pair:
    """The parts of a tensor or number; the imaginary part of a real one is 0."""
    if isinstance(x, Pair):
        return x
    return Pair(x, torch.zeros_like(x)) if isinstance(x, Tensor) else Pair(complex(x).real, complex(x).imag)  # type: ignore[arg-type]


def _apply_to_parts(target: Any, args: Any, kwargs: Any) -> Any:
    """Apply an op to the real parts and to the imaginary parts."""
    if isinstance(target, OpOverload):  # an integer operand, too, has the imaginary part 0
        args = [
            complex(x) if isinstance(a.type, torch.NumberType) else x
            for x, a in zip(args, target._schema.arguments, strict=False)
        ]

    def part(x: Any, k: int) -> Any:
        if isinstance(x, Pair | complex | float) or (isinstance(x, Tensor) and x.is_floating_point()):
            return pair(x).parts[k]
        return PARTS.get(x, x) if isinstance(x, torch.dtype) else x

    def apply_to(k: int) -> Any:
        arguments = pytree.tree_map(lambda x: part(x, k), (args, kwargs), is_leaf=lambda x: isinstance(x, Pair))
        return target(*arguments[0], **arguments[1])

    return pytree.tree_map(Pair, apply_to(0), apply_to(1))


def _sum_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    def formula(x: Any, y: Any, alpha: Any = 1) -> Pair:
        a, b = pair(x), pair(y)
        return Pair(*(function(p, q if alpha == 1 else q * alpha) for p, q in zip(a.parts, b.parts, strict=True)))

    return formula


def _product_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """A product of numbers or matrices. A real operand costs no products by its imaginary part."""

    def formula(x: Any, y: Any) -> Pair:
        a, b = pair(x), pair(y)
        if not isinstance(x, Pair | complex):
            return Pair(function(a.re, b.re), function(a.re, b.im))
        if not isinstance(y, Pair | complex):
            return Pair(function(a.re, b.re), function(a.im, b.re))
        return Pair(function(a.re, b.re) - function(a.im, b.im), function(a.re, b.im) + function(a.im, b.re))

    return formula


_multiply = _product_formula(operator.mul)


def _divide(x: Any, y: Any) -> Pair:
    a, b = pair(x), pair(y)
    if not isinstance(y, Pair | complex):
        return Pair(a.re / b.re, a.im / b.re)
    # Divided by its larger part, the divisor can be squared without overflow or underflow.
    scale = torch.maximum(b.re.abs(), b.im.abs()) if isinstance(b.re, Tensor) else max(abs(b.re), abs(b.im)) or 1.0
    re, im = b.re / scale, b.im / scale
    squares = re * re + im * im
    return Pair((a.re * re + a.im * im) / squares / scale, (a.im * re - a.re * im) / squares / scale)


def _is_nonzero(x: Any) -> Any:
    """Where a number is not 0."""
    z = pair(x)
    return (z.re != 0) | (z.im != 0)


def _convert(x: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    if dtype is torch.bool:
        return _is_nonzero(x)
    if dtype is not None and not dtype.is_complex:
        return _aten._to_copy(x.re, dtype=dtype)
    z = pair(x)
    part_dtype = PARTS[dtype] if dtype is not None else z.re.dtype
    return Pair(*(_aten._to_copy(part, dtype=part_dtype) for part in z.parts))


def _fill_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    def formula(*args: Any, **kwargs: Any) -> Pair:
        *like, value = args
        shape = [x.re if isinstance(x, Pair) else x for x in like]
        part_dtype = PARTS.get(kwargs.get("dtype"), None if shape != like else torch.get_default_dtype())  # type: ignore[arg-type]
        options = kwargs if part_dtype is None else kwargs | {"dtype": part_dtype}
        return Pair(*(function(*shape, part, **options) for part in pair(value).parts))

    return formula


def _real_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    """An op whose result is real or depends only on shapes, as complex numbers."""

    def formula(*args: Any, **kwargs: Any) -> Any:
        operands = [x.re if isinstance(x, Pair) else x for x in args]
        if any(isinstance(x, complex) for x in operands):
            return NotImplemented
        part_dtype = PARTS.get(kwargs.get("dtype"))  # type: ignore[arg-type]
        return pair(function(*operands, **(kwargs if part_dtype is None else kwargs | {"dtype": part_dtype})))

    return formula


def _unary_formula(function: Callable[[Tensor, Tensor], complex_functions.Parts]) -> Callable[[Any], Pair]:
    return lambda x: Pair(*function(*x.parts))


_log, _exp = (_unary_formula(complex_functions.FUNCTIONS[name]) for name in ("log", "exp"))


def _power(x: Any, exponent: Any) -> Any:
    """Exponents 0 to 3 by multiplication, as in eager; others by exp and log. Positive powers of 0 are 0."""
    if isinstance(x, Pair) and isinstance(exponent, int | float) and exponent in range(4):
        result = pair(torch.ones_like(x.re))
        for n in range(int(exponent)):
            result = _multiply(result, x) if n else x
        return result
    dtype = torch.result_type(*(y.re if isinstance(y, Pair) else y for y in (x, exponent)))
    base, power = (
        Pair(*(y.to(dtype) if isinstance(y, Tensor) else torch.scalar_tensor(y, dtype=dtype) for y in pair(z).parts))
        for z in (x, exponent)
    )
    result = _exp(_multiply(_log(base), power))
    is_zero = _is_nonzero(base).logical_not() & (power.re > 0)
    return Pair(*(torch.where(is_zero, 0, part) for part in result.parts))


def _sigmoid(x: Pair) -> Pair:
    """Computed from exp of a number whose real part is not positive, to avoid overflow."""
    is_negative = x.re < 0
    exponential = _exp(Pair(-x.re.abs(), torch.where(is_negative, x.im, -x.im)))
    of_positive = _divide(1.0, Pair(1 + exponential.re, exponential.im))
    of_negative = _multiply(exponential, of_positive)
    return Pair(
        torch.where(is_negative, of_negative.re, of_positive.re),
        torch.where(is_negative, of_negative.im, of_positive.im),
    )


def _add(x: Any, y: Any) -> Pair:
    return _FORMULAS[_aten.add](x, y)  # type: ignore[no-any-return]


def _multiply_add_formula(function: Callable[..., Any]) -> Callable[..., Any]:
    multiply = _product_formula(function)

    def formula(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Pair:
        product = multiply(a, b)
        return _add(x if beta == 1 else _multiply(x, beta), product if alpha == 1 else _multiply(product, alpha))

    return formula


def _lerp(x: Any, y: Any, weight: Any) -> Pair:
    return _add(x, _multiply(weight, _FORMULAS[_aten.sub](y, x)))


def _variance(x: Pair, *args: Any, **kwargs: Any) -> Tensor:
    re, im = (_aten.var.correction(part, *args, **kwargs) for part in x.parts)
    variance: Tensor = re + im
    return variance


def _masked_fill(x: Any, mask: Tensor, value: Any) -> Pair:
    return Pair(*(torch.where(mask, v, part) for v, part in zip(pair(value).parts, pair(x).parts, strict=True)))


def _index_add(x: Any, dim: int, index: Tensor, source: Any, *, alpha: Any = 1) -> Pair:
    addend = pair(source if alpha == 1 else _multiply(source, alpha))
    return Pair(*(torch.index_add(p, dim, index, q) for p, q in zip(pair(x).parts, addend.parts, strict=True)))


def _norm(x: Pair, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    return _aten.linalg_vector_norm(torch.hypot(x.re, x.im), *args, dtype=PARTS.get(dtype, dtype), **kwargs)


def _sign(x: Pair) -> Pair:
    magnitude = torch.hypot(x.re, x.im)
    divisor = torch.where(magnitude == 0, 1, magnitude)
    return Pair(x.re / divisor, x.im / divisor)


def _conjugate(x: Any) -> Pair:
    return Pair(pair(x).re, -pair(x).im)


def _complex(re: Tensor, im: Tensor) -> Pair:
    return Pair(*torch.broadcast_tensors(re, im))  # type: ignore[no-untyped-call]


_FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.add: _sum_formula(operator.add), _aten.sub: _sum_formula(operator.sub), _aten.mul: _multiply,
    _aten.square: lambda x: _multiply(x, x), _aten.reciprocal: lambda x: _divide(1.0, x), _aten.pow: _power,
    _aten.mm: _product_formula(torch.mm), _aten.bmm: _product_formula(torch.bmm), _aten.div: _divide,
    _aten._to_copy: _convert,
    **{op: _fill_formula(op) for op in (_aten.full, _aten.full_like, _aten.new_full, _aten.scalar_tensor)},
    _aten.fill: lambda x, value: Pair(*map(_aten.fill, x.parts, pair(value).parts)),
    _aten.complex: _complex, _aten.polar: lambda size, angle: Pair(size * torch.cos(angle), size * torch.sin(angle)),
    _aten.view_as_complex: lambda x: Pair(x[..., 0], x[..., 1]),
    _aten._conj: _conjugate, _aten._conj_physical: _conjugate, _aten.conj_physical: _conjugate,
    _aten.resolve_conj: lambda x: x, _aten.abs: lambda x: torch.hypot(x.re, x.im),
    _aten.angle: lambda x: torch.atan2(x.im, x.re), _aten.sgn: _sign,
    _aten.eq: lambda x, y: (pair(x).re == pair(y).re) & (pair(x).im == pair(y).im),
    _aten.ne: lambda x, y: (pair(x).re != pair(y).re) | (pair(x).im != pair(y).im),
    _aten.rsqrt: lambda x: _divide(1.0, _unary_formula(complex_functions.sqrt)(x)), _aten.sigmoid: _sigmoid,
    _aten.rsub: lambda x, y, alpha=1: _FORMULAS[_aten.sub](y, x, alpha), _aten.lerp: _lerp,
    _aten.mv: _product_formula(torch.mv), _aten.dot: _product_formula(torch.dot),
    _aten.vdot: lambda x, y: _FORMULAS[_aten.dot](_conjugate(x), y),
    _aten.addmm: _multiply_add_formula(torch.mm), _aten.baddbmm: _multiply_add_formula(torch.bmm),
    _aten.addmv: _multiply_add_formula(torch.mv),
    _aten.addcmul: lambda x, a, b, *, value=1: _add(x, _multiply(value, _multiply(a, b))),
    _aten.addcdiv: lambda x, a, b, *, value=1: _add(x, _multiply(value, _divide(a, b))),
    _aten.var: _variance, _aten.std: lambda x, *args, **kwargs: _variance(x, *args, **kwargs).sqrt(),
    _aten.masked_fill: _masked_fill, _aten.index_add: _index_add, _aten.linalg_vector_norm: _norm,
    _aten.isnan: lambda x: x.re.isnan() | x.im.isnan(), _aten.isinf: lambda x: x.re.isinf() | x.im.isinf(),
    _aten.isfinite: lambda x: x.re.isfinite() & x.im.isfinite(),
    _aten.logical_not: lambda x: _is_nonzero(x).logical_not(),
    _aten.any: lambda x, *args: _aten.any(_is_nonzero(x), *args),
    _aten.all: lambda x, *args: _aten.all(_is_nonzero(x), *args),
    **{op: _real_formula(op) for op in (_aten.ones, _aten.ones_like, _aten.new_ones, _aten.eye, _aten.linspace,
                                       _aten.arange)},
    **{getattr(_aten, name): _unary_formula(function) for name, function in complex_functions.FUNCTIONS.items()},
}  # fmt: skip
# Ops that act on the real and imaginary parts independently.
_PARTWISE = {
    getattr(_aten, name)
    for name in (
        "_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "cumsum", "detach",
        "diag_embed", "diagonal", "diagonal_scatter", "embedding", "expand", "flip", "gather", "index", "index_copy",
        "index_fill", "index_put", "index_select", "lift_fresh_copy", "mean", "neg", "new_empty_strided", "new_zeros",
        "permute", "repeat", "reshape", "roll", "scatter", "scatter_add", "select", "select_scatter", "slice",
        "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum", "t", "take", "transpose", "tril",
        "triu", "unbind", "unfold", "unsqueeze", "view", "where", "zeros", "zeros_like",
    )
}  # fmt: skip
_CALLS = {operator.getitem}


# Fourier transforms ---------------------------------------------------------------------------------------------------


def _normalize(x: Pair, normalization: int, count: int) -> Pair:
    scale = (1.0, 1 / math.sqrt(count), 1 / count)[normalization]
    return x if scale == 1 else Pair(x.re * scale, x.im * scale)


def _transform_dims(x: Pair, dims: Sequence[int], sign: int, constant: fourier.ConstantLookup) -> Pair:
    for d in dims:
        re, im = fourier.transform(x.re.movedim(d, -1), x.im.movedim(d, -1), sign, constant)
        x = Pair(re.movedim(-1, d), im.movedim(-1, d))
    return x


def _element_count(x: Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _c2c(constant: fourier.ConstantLookup, x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    return _normalize(
        _transform_dims(x, dims, -1 if forward else 1, constant), normalization, _element_count(x.re, dims)
    )


def _r2c(constant: fourier.ConstantLookup, x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    spectrum = _normalize(_transform_dims(pair(x), dims, -1, constant), normalization, _element_count(x, dims))
    stored = x.shape[dims[-1]] // 2 + 1
    return Pair(*(part.narrow(dims[-1], 0, stored) for part in spectrum.parts)) if onesided else spectrum


def _c2r(
    constant: fourier.ConstantLookup, x: Pair, dims: Sequence[int], normalization: int, last_dim_size: int
) -> Tensor:
    """Extend the last dimension by its conjugate symmetry. Imaginary parts at self-conjugate positions are ignored."""
    *other_dims, last_dim = dims
    x = _transform_dims(x, other_dims, 1, constant)
    stored = last_dim_size // 2 + 1
    re, im = (part.movedim(last_dim, -1)[..., :stored] for part in x.parts)
    positions = torch.arange(last_dim_size, device=re.device)
    mirrored = torch.minimum(positions, last_dim_size - positions)
    is_self_conjugate = (positions == 0) | (2 * positions == last_dim_size)
    sign = torch.where(is_self_conjugate, 0, torch.where(positions < stored, 1, -1)).to(re.dtype)
    spectrum = Pair(re.index_select(-1, mirrored), im.index_select(-1, mirrored) * sign)
    signal = _transform_dims(spectrum, [-1], 1, constant)
    return _normalize(signal, normalization, _element_count(x.re, other_dims) * last_dim_size).re.movedim(-1, last_dim)


_TRANSFORMS: dict[Any, Callable[..., Any]] = {_aten._fft_c2c: _c2c, _aten._fft_r2c: _r2c, _aten._fft_c2r: _c2r}
