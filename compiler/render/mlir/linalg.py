"""Tensor IR in `linalg`: a map or reduction is a `linalg.generic`; a scan or scatter is loops of `scf`.

A load that every point evaluates, at indices that are sums of axes, is an operand with an affine map; any other load is
a `tensor.extract`. If a requirement fails, the last argument of the function is set to 1. A symbolic size is the extent
of an axis of an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.ir.dtype import DType
from compiler.ir.expr import COMBINE, Const, Expr, Load, Op, Select, Size, Var, identity
from compiler.ir.linear import linear
from compiler.ir.tensor import Axis, Equation, Map, Program, Reduce, Scan, Scatter, equations, shape
from compiler.render.mlir import scalar
from compiler.render.mlir.scalar import INVALID, Scope, as_index, lower
from compiler.render.mlir.text import Block, Value, Values, element, function, tensor_type

Indices = Mapping[str, Value]
LoopBody = Callable[[Block, Indices, Value], Value]
Shape = tuple[Expr, ...]
NO_INDICES: Indices = {}
DECLARED = {"lgamma": "func.func private @lgamma(f64) -> f64"}


@dataclass(frozen=True)
class Environment:
    """The environment of equations: tensors with their shapes, and the symbolic sizes."""

    tensors: dict[str, Value]
    shapes: dict[str, Shape]
    sizes: Indices

    def scope(self, indices: Indices, values: dict[Expr, Value] | None = None) -> Scope:
        return Scope({**self.sizes, **indices}, self.tensors, {} if values is None else values)

    def extent(self, n: Expr, b: Block) -> Value:
        return as_index(n, b, self.scope({}))

    def empty(self, dtype: DType, shape: Iterable[Expr], b: Block) -> Value:
        shape = tuple(shape)
        dynamic_extents = [self.extent(n, b) for n in shape if not isinstance(n, Const)]
        return b.op("tensor.empty", dynamic_extents, shaped_type(dtype, shape))


def render(program: Program) -> str:
    """The program as a function from tensors to tensors."""
    b = Block()
    tensors = {t.name: Value(f"%{t.name}", shaped_type(t.dtype, t.shape)) for t in program.inputs}
    arguments = [*tensors.values(), *([INVALID] if has_requirements(program) else [])]
    env = Environment(tensors, {t.name: t.shape for t in program.inputs}, _sizes(program, tensors, b))
    for e in equations(program):
        tensors[e.name] = _define(e, b, env)
        env.shapes[e.name] = shape(e)
    results = [tensors[t.name] for t in program.outputs]
    b.do("func.return", results)
    declared = [line for name, line in DECLARED.items() if any(f"@{name}" in x for x in b.lines)]
    return function(program.name, arguments, results, b, *declared)


def shaped_type(dtype: DType, shape: Iterable[Expr]) -> str:
    """The type of a tensor; its symbolic extents are dynamic."""
    return tensor_type(dtype, (int(n.value) if isinstance(n, Const) else "?" for n in shape))


def _sizes(program: Program, tensors: Mapping[str, Value], b: Block) -> Indices:
    """Read each symbolic size from the extent of an axis of an argument."""
    axes = {n: (t.name, d) for t in reversed(program.inputs) for d, n in enumerate(t.shape) if isinstance(n, Size)}
    sources = [(s.name, *axes[s]) for s in program.sizes]
    return {name: b.op("tensor.dim", (tensors[x], b.index(d)), "index", result_name=name) for name, x, d in sources}


def has_requirements(program: Program) -> bool:
    """Whether the program has requirements on its data."""
    return any(isinstance(n, Op) and n.name == "require" for e in equations(program) for n in e.walk())


def _define(e: Equation, b: Block, env: Environment) -> Value:
    match e:
        case Map(value=value):
            return _generic(e, (), value, env.empty(e.dtype, shape(e), b), b, env, result_name=e.name)
        case Reduce(op=op, over=over, value=value):
            start = _generic(e, (), identity(op, e.dtype), env.empty(e.dtype, shape(e), b), b, env)
            return _generic(e, over, value, start, b, env, COMBINE[op], e.name)
        case Scan():
            return _scan(e, b, env)
        case Scatter():
            return _scatter(e, b, env)
    raise TypeError(type(e).__name__)


def _generic(
    e: Equation,
    over: tuple[Axis, ...],
    value: Expr,
    out: Value,
    b: Block,
    env: Environment,
    combine: str = "",
    result_name: str = "",
) -> Value:
    """`value` at each point of the axes of `e`; with `combine`, accumulated over `over` into `out`."""
    axes = (*e.axes, *over)
    dims = {a.name: f"d{n}" for n, a in enumerate(axes)}
    extents = {a.name: a.extent for a in axes}
    operands = {x: m for x in _unconditional_loads(value) if (m := _affine_map(x, env.shapes[x.buffer], extents, dims))}
    maps = list(operands.values())
    inputs = [env.tensors[x.buffer] for x in operands]
    # Every axis must be an axis of some operand, which gives its extent.
    uncovered = [a for a in over if not any(a.name == i.name for x in operands for i in x.index if isinstance(i, Var))]
    if uncovered:
        inputs.append(env.empty(value.dtype, (a.extent for a in uncovered), b))
        maps.append(", ".join(dims[a.name] for a in uncovered))
    maps.append(", ".join(dims[a.name] for a in e.axes))

    def body(inner: Block, arguments: tuple[Value, ...]) -> Values:
        indices = {
            a.name: inner.op("linalg.index", (), "index", f"dim = {n} : i64")
            for n, a in enumerate(axes)
            if _uses_axis(a.name, value, operands)
        }
        element_value = lower(value, inner, env.scope(indices, dict(zip(operands, arguments, strict=False))))
        return (scalar.apply(combine, (arguments[-1], element_value), e.dtype, inner) if combine else element_value,)

    dim_list = ", ".join(dims.values())
    affine = ", ".join(f"affine_map<({dim_list}) -> ({m})>" for m in maps)
    iterators = ", ".join(f"#linalg.iterator_type<{k}>" for k in ["parallel"] * len(e.axes) + ["reduction"] * len(over))
    attributes = (
        f"indexing_maps = [{affine}], iterator_types = [{iterators}], "
        f"operandSegmentSizes = array<i32: {len(inputs)}, 1>"
    )
    elements = [v.type.removesuffix(">").split("<")[1].split("x")[-1] for v in (*inputs, out)]
    region = b.region(body, elements, "linalg.yield")
    return b.op("linalg.generic", (*inputs, out), out.type, attributes, (region,), result_name)


def _unconditional_loads(e: Expr) -> Iterator[Load]:
    """The loads that are evaluated whenever `e` is."""
    match e:
        case Load(index=index):
            yield e
            for i in index:
                yield from _unconditional_loads(i)
        case Select(cond=cond):
            yield from _unconditional_loads(cond)
        case Op("require", (cond, _)):
            yield from _unconditional_loads(cond)
        case _:
            for n in e.children():
                if isinstance(n, Expr):
                    yield from _unconditional_loads(n)


def _uses_axis(name: str, value: Expr, operands: dict[Load, str]) -> bool:
    """Whether an axis is used outside of the operands."""
    stack: list[Expr] = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, Load) and node in operands:
            continue
        if isinstance(node, Var) and node.name == name:
            return True
        stack += [n for n in node.below if isinstance(n, Expr)]
    return False


def _affine_map(load: Load, sizes: Shape, extents: Mapping[str, Expr], dims: Mapping[str, str]) -> str:
    """The results of the affine map of a load; empty if it has none that MLIR's verifier accepts."""
    out = []
    for i, n in zip(load.index, sizes, strict=True):
        if isinstance(i, Var):
            if extents.get(i.name) is not n:
                return ""
            out.append(dims[i.name])
            continue
        terms, offset = linear(i)
        strides = [(t.name, c) for t, c in terms.items() if isinstance(t, Var) and t.name in extents and c > 0]
        ranges = [(extents[name], c) for name, c in strides]
        static_extents = [(int(x.value), c) for x, c in ranges if isinstance(x, Const)]
        if len(static_extents) < len(terms) or not isinstance(n, Const) or offset < 0:
            return ""
        if offset + sum(c * (x - 1) for x, c in static_extents) >= n.value:
            return ""
        terms_text = [dims[name] if c == 1 else f"{dims[name]} * {c}" for name, c in strides]
        out.append(" + ".join([*terms_text, str(offset)] if offset or not terms_text else terms_text))
    return ", ".join(out)


def _nest(
    axes: Sequence[Axis],
    carried: Value,
    b: Block,
    env: Environment,
    body: LoopBody,
    result_name: str = "",
    indices: Indices = NO_INDICES,
) -> Value:
    """Loops over axes around `body(block, indices, tensor)`, which returns the updated tensor."""
    if not axes:
        return body(b, indices, carried)
    first, *rest = axes

    def step(inner: Block, i: Value, tensors: tuple[Value, ...]) -> Values:
        return (_nest(rest, tensors[0], inner, env, body, indices={**indices, first.name: i}),)

    return b.loop(env.extent(first.extent, b), (carried,), step, result_name)[0]


def _scan(e: Scan, b: Block, env: Environment) -> Value:
    along = next(a for a in e.axes if a.name == e.along)
    others = [a for a in e.axes if a is not along]

    def row(inner: Block, outer_indices: Indices, tensor: Value) -> Value:
        def step(block: Block, i: Value, carried: tuple[Value, ...]) -> Values:
            indices = {**outer_indices, along.name: i}
            element_value = lower(e.value, block, env.scope(indices))
            total = scalar.apply(COMBINE[e.op], (carried[0], element_value), e.dtype, block)
            position = [indices[a.name] for a in e.axes]
            return total, block.op("tensor.insert", (total, carried[1], *position), tensor.type)

        start = inner.constant(identity(e.op, e.dtype).value, e.dtype)
        return inner.loop(env.extent(along.extent, inner), (start, tensor), step, "" if others else e.name)[1]

    return _nest(others, env.empty(e.dtype, shape(e), b), b, env, row, e.name)


def _scatter(e: Scatter, b: Block, env: Environment) -> Value:
    def update(inner: Block, indices: Indices, tensor: Value) -> Value:
        scope = env.scope(indices)

        def write(block: Block, inner_scope: Scope) -> Values:
            position = [as_index(i, block, inner_scope) for i in e.index]
            value = lower(e.value, block, inner_scope)
            if e.op != "set":
                old = block.op("tensor.extract", (tensor, *position), element(e.dtype))
                value = scalar.apply(COMBINE[e.op], (old, value), e.dtype, block)
            return (block.op("tensor.insert", (value, tensor, *position), tensor.type),)

        if isinstance(e.guard, Const):
            return write(inner, scope)[0] if e.guard.value else tensor
        guard = lower(e.guard, inner, scope)
        return inner.if_else(guard, lambda block, _: write(block, scope.inner()), lambda *_: (tensor,), tensor.type)

    base = _generic(e, (), e.base, env.empty(e.dtype, shape(e), b), b, env)
    return _nest(e.over, base, b, env, update, e.name)
