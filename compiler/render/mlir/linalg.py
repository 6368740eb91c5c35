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
Inside = Callable[[Block, Indices, Value], Value]
Shape = tuple[Expr, ...]
NOWHERE: Indices = {}
DECLARED = {"lgamma": "func.func private @lgamma(f64) -> f64"}


@dataclass(frozen=True)
class Known:
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
        free = [self.extent(n, b) for n in shape if not isinstance(n, Const)]
        return b.op("tensor.empty", free, typed(dtype, shape))


def render(program: Program) -> str:
    """The program as a function from tensors to tensors."""
    b = Block()
    tensors = {t.name: Value(f"%{t.name}", typed(t.dtype, t.shape)) for t in program.inputs}
    arguments = [*tensors.values(), *([INVALID] if fails(program) else [])]
    known = Known(tensors, {t.name: t.shape for t in program.inputs}, _sizes(program, tensors, b))
    for e in equations(program):
        tensors[e.name] = _define(e, b, known)
        known.shapes[e.name] = shape(e)
    results = [tensors[t.name] for t in program.outputs]
    b.do("func.return", results)
    declared = [line for name, line in DECLARED.items() if any(f"@{name}" in x for x in b.lines)]
    return function(program.name, arguments, results, b, *declared)


def typed(dtype: DType, shape: Iterable[Expr]) -> str:
    """The type of a tensor; its symbolic extents are dynamic."""
    return tensor_type(dtype, (int(n.value) if isinstance(n, Const) else "?" for n in shape))


def _sizes(program: Program, tensors: Mapping[str, Value], b: Block) -> Indices:
    """Read each symbolic size from the extent of an axis of an argument."""
    places = {n: (t.name, d) for t in reversed(program.inputs) for d, n in enumerate(t.shape) if isinstance(n, Size)}
    found = [(s.name, *places[s]) for s in program.sizes]
    return {name: b.op("tensor.dim", (tensors[x], b.index(d)), "index", called=name) for name, x, d in found}


def fails(program: Program) -> bool:
    """Whether the program has requirements on its data."""
    return any(isinstance(n, Op) and n.name == "require" for e in equations(program) for n in e.walk())


def _define(e: Equation, b: Block, known: Known) -> Value:
    match e:
        case Map(value=value):
            return _generic(e, (), value, known.empty(e.dtype, shape(e), b), b, known, called=e.name)
        case Reduce(op=op, over=over, value=value):
            start = _generic(e, (), identity(op, e.dtype), known.empty(e.dtype, shape(e), b), b, known)
            return _generic(e, over, value, start, b, known, COMBINE[op], e.name)
        case Scan():
            return _scan(e, b, known)
        case Scatter():
            return _scatter(e, b, known)
    raise TypeError(type(e).__name__)


def _generic(
    e: Equation,
    over: tuple[Axis, ...],
    value: Expr,
    out: Value,
    b: Block,
    known: Known,
    combine: str = "",
    called: str = "",
) -> Value:
    """`value` at each point of the axes of `e`; with `combine`, accumulated over `over` into `out`."""
    axes = (*e.axes, *over)
    places = {a.name: f"d{n}" for n, a in enumerate(axes)}
    extents = {a.name: a.extent for a in axes}
    operands = {x: m for x in _certain(value) if (m := _affine(x, known.shapes[x.buffer], extents, places))}
    maps = list(operands.values())
    inputs = [known.tensors[x.buffer] for x in operands]
    # Every axis must be an axis of some operand, which gives its extent.
    bare = [a for a in over if not any(a.name == i.name for x in operands for i in x.index if isinstance(i, Var))]
    if bare:
        inputs.append(known.empty(value.dtype, (a.extent for a in bare), b))
        maps.append(", ".join(places[a.name] for a in bare))
    maps.append(", ".join(places[a.name] for a in e.axes))

    def body(inner: Block, given: tuple[Value, ...]) -> Values:
        indices = {
            a.name: inner.op("linalg.index", (), "index", f"dim = {n} : i64")
            for n, a in enumerate(axes)
            if _indexed(a.name, value, operands)
        }
        made = lower(value, inner, known.scope(indices, dict(zip(operands, given, strict=False))))
        return (scalar.apply(combine, (given[-1], made), e.dtype, inner) if combine else made,)

    space = ", ".join(places.values())
    affine = ", ".join(f"affine_map<({space}) -> ({m})>" for m in maps)
    kinds = ", ".join(f"#linalg.iterator_type<{k}>" for k in ["parallel"] * len(e.axes) + ["reduction"] * len(over))
    attributes = (
        f"indexing_maps = [{affine}], iterator_types = [{kinds}], operandSegmentSizes = array<i32: {len(inputs)}, 1>"
    )
    elements = [v.type.removesuffix(">").split("<")[1].split("x")[-1] for v in (*inputs, out)]
    region = b.region(body, elements, "linalg.yield")
    return b.op("linalg.generic", (*inputs, out), out.type, attributes, (region,), called)


def _certain(e: Expr) -> Iterator[Load]:
    """The loads that are evaluated whenever `e` is."""
    match e:
        case Load(index=index):
            yield e
            for i in index:
                yield from _certain(i)
        case Select(cond=cond):
            yield from _certain(cond)
        case Op("require", (cond, _)):
            yield from _certain(cond)
        case _:
            for n in e.children():
                if isinstance(n, Expr):
                    yield from _certain(n)


def _indexed(name: str, value: Expr, operands: dict[Load, str]) -> bool:
    """Whether an axis is used outside of the operands."""
    stack: list[Expr] = [value]
    while stack:
        e = stack.pop()
        if isinstance(e, Load) and e in operands:
            continue
        if isinstance(e, Var) and e.name == name:
            return True
        stack += [n for n in e.below if isinstance(n, Expr)]
    return False


def _affine(load: Load, sizes: Shape, extents: Mapping[str, Expr], places: Mapping[str, str]) -> str:
    """The results of the affine map of a load; empty if it has none that MLIR's verifier accepts."""
    out = []
    for i, n in zip(load.index, sizes, strict=True):
        if isinstance(i, Var):
            if extents.get(i.name) is not n:
                return ""
            out.append(places[i.name])
            continue
        terms, begin = linear(i)
        steps = [(t.name, c) for t, c in terms.items() if isinstance(t, Var) and t.name in extents and c > 0]
        ends = [(extents[name], c) for name, c in steps]
        known = [(int(x.value), c) for x, c in ends if isinstance(x, Const)]
        if len(known) < len(terms) or not isinstance(n, Const) or begin < 0:
            return ""
        if begin + sum(c * (x - 1) for x, c in known) >= n.value:
            return ""
        words = [places[name] if c == 1 else f"{places[name]} * {c}" for name, c in steps]
        out.append(" + ".join([*words, str(begin)] if begin or not words else words))
    return ", ".join(out)


def _nest(
    axes: Sequence[Axis], carried: Value, b: Block, known: Known, body: Inside, called: str = "", at: Indices = NOWHERE
) -> Value:
    """Loops over axes around `body(block, indices, tensor)`, which returns the updated tensor."""
    if not axes:
        return body(b, at, carried)
    first, *rest = axes

    def step(inner: Block, i: Value, held: tuple[Value, ...]) -> Values:
        return (_nest(rest, held[0], inner, known, body, at={**at, first.name: i}),)

    return b.loop(known.extent(first.extent, b), (carried,), step, called)[0]


def _scan(e: Scan, b: Block, known: Known) -> Value:
    along = next(a for a in e.axes if a.name == e.along)
    others = [a for a in e.axes if a is not along]

    def row(inner: Block, at: Indices, held: Value) -> Value:
        def step(block: Block, i: Value, carried: tuple[Value, ...]) -> Values:
            indices = {**at, along.name: i}
            made = lower(e.value, block, known.scope(indices))
            total = scalar.apply(COMBINE[e.op], (carried[0], made), e.dtype, block)
            where = [indices[a.name] for a in e.axes]
            return total, block.op("tensor.insert", (total, carried[1], *where), held.type)

        start = inner.constant(identity(e.op, e.dtype).value, e.dtype)
        return inner.loop(known.extent(along.extent, inner), (start, held), step, "" if others else e.name)[1]

    return _nest(others, known.empty(e.dtype, shape(e), b), b, known, row, e.name)


def _scatter(e: Scatter, b: Block, known: Known) -> Value:
    def update(inner: Block, at: Indices, held: Value) -> Value:
        scope = known.scope(at)

        def write(block: Block, within: Scope) -> Values:
            where = [as_index(i, block, within) for i in e.index]
            value = lower(e.value, block, within)
            if e.op != "set":
                old = block.op("tensor.extract", (held, *where), element(e.dtype))
                value = scalar.apply(COMBINE[e.op], (old, value), e.dtype, block)
            return (block.op("tensor.insert", (value, held, *where), held.type),)

        if isinstance(e.guard, Const):
            return write(inner, scope)[0] if e.guard.value else held
        taken = lower(e.guard, inner, scope)
        return inner.choose(taken, lambda block, _: write(block, scope.inner()), lambda *_: (held,), held.type)

    base = _generic(e, (), e.base, known.empty(e.dtype, shape(e), b), b, known)
    return _nest(e.over, base, b, known, update, e.name)
