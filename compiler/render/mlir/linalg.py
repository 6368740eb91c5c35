"""All of Tensor IR in `linalg`: a map or reduction is a `linalg.generic`; a scan or scatter is loops of `scf`.

A load that is evaluated for every point, at indices that are sums of axes, is an operand with an affine map; any other
is a `tensor.extract`. Where something is required that does not hold, the last argument of the function is set to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from compiler.errors import Unsupported
from compiler.ir.expr import COMBINE, Const, Expr, Load, Op, Select, Var, identity, static
from compiler.ir.linear import linear
from compiler.ir.tensor import Axis, Equation, Map, Program, Reduce, Scan, Scatter, Tensor, equations
from compiler.ir.text import show_size
from compiler.render.mlir import scalar
from compiler.render.mlir.scalar import INVALID, Scope, as_index, lower
from compiler.render.mlir.text import Block, Value, Values, element, tensor_type

Indices = Mapping[str, Value]
Inside = Callable[[Block, Indices, Value], Value]
NOWHERE: Indices = {}
DECLARED = {"lgamma": "func.func private @lgamma(f64) -> f64"}


def render(program: Program) -> str:
    """A function from tensors to tensors; raises Unsupported for symbolic sizes."""
    if program.sizes:
        raise Unsupported("mlir", [show_size(s) for s in program.sizes], "sizes must be known when the text is made")
    b = Block()
    tensors = {t.name: Value(f"%{t.name}", tensor_type(t.dtype, shape(t))) for t in program.inputs}
    arguments = [*tensors.values(), *([INVALID] if fails(program) else [])]
    for e in equations(program):
        tensors[e.name] = _define(e, b, tensors)
    results = [tensors[t.name] for t in program.outputs]
    b.do("func.return", results)
    given = ", ".join(f"{v.name}: {v.type}" for v in arguments)
    head = f"func.func @{program.name}({given}) -> ({', '.join(v.type for v in results)}) {{"
    text = [head, *(f"  {line}" for line in b.lines), "}"]
    text += [line for name, line in DECLARED.items() if any(f"@{name}" in x for x in b.lines)]
    return "\n".join(text) + "\n"


def shape(t: Tensor) -> tuple[int, ...]:
    return tuple(static(n) for n in t.shape)


def fails(program: Program) -> bool:
    """Whether it requires anything of its data."""
    return any(isinstance(n, Op) and n.name == "require" for e in equations(program) for n in e.walk())


def _define(e: Equation, b: Block, tensors: dict[str, Value]) -> Value:
    match e:
        case Map(value=value):
            return _generic(e, (), value, _empty(e, b), b, tensors, called=e.name)
        case Reduce(op=op, over=over, value=value):
            start = _generic(e, (), identity(op, e.dtype), _empty(e, b), b, tensors)
            return _generic(e, over, value, start, b, tensors, COMBINE[op], e.name)
        case Scan():
            return _scan(e, b, tensors)
        case Scatter():
            return _scatter(e, b, tensors)
    raise TypeError(type(e).__name__)


def _extents(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(static(a.extent) for a in axes)


def _empty(e: Equation, b: Block) -> Value:
    return b.op("tensor.empty", (), tensor_type(e.dtype, _extents(e.axes)))


def _generic(
    e: Equation,
    over: tuple[Axis, ...],
    value: Expr,
    out: Value,
    b: Block,
    tensors: dict[str, Value],
    combine: str = "",
    called: str = "",
) -> Value:
    """`value` at each point of the axes of `e`; with `combine`, combined over `over` with what is in `out`."""
    axes = (*e.axes, *over)
    places = {a.name: f"d{n}" for n, a in enumerate(axes)}
    extents = dict(zip(places, _extents(axes), strict=True))
    operands = {x: m for x in _certain(value) if (m := _affine(x, tensors[x.buffer].type, extents, places))}
    maps = list(operands.values())
    inputs = [tensors[x.buffer] for x in operands]
    # Every axis must be an axis of some operand, or its extent is not known.
    bare = [a for a in over if not any(a.name == i.name for x in operands for i in x.index if isinstance(i, Var))]
    if bare:
        inputs.append(b.op("tensor.empty", (), tensor_type(value.dtype, _extents(bare))))
        maps.append(", ".join(places[a.name] for a in bare))
    maps.append(", ".join(places[a.name] for a in e.axes))

    def body(inner: Block, given: tuple[Value, ...]) -> Values:
        mentioned = {n.name for n in value.walk() if isinstance(n, Var)}
        indices = {
            a.name: inner.op("linalg.index", (), "index", f"dim = {n} : i64")
            for n, a in enumerate(axes)
            if a.name in mentioned and _indexed(a.name, value, operands)
        }
        known: dict[Expr, Value] = dict(zip(operands, given, strict=False))
        made = lower(value, inner, Scope(indices, tensors, known))
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
    """The loads that are evaluated wherever `e` is."""
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
    """Whether an axis is mentioned outside of the operands."""
    stack: list[Expr] = [value]
    while stack:
        e = stack.pop()
        if isinstance(e, Load) and e in operands:
            continue
        if isinstance(e, Var) and e.name == name:
            return True
        stack += [n for n in e.below if isinstance(n, Expr)]
    return False


def _affine(load: Load, kind: str, extents: dict[str, int], places: dict[str, str]) -> str:
    """The results of the affine map of a load; empty where it has none that MLIR's verifier takes."""
    sizes = [int(n) for n in kind.removesuffix(">").split("<")[1].split("x")[:-1]]
    out = []
    for i, n in zip(load.index, sizes, strict=True):
        if isinstance(i, Var):
            if extents.get(i.name) != n:
                return ""
            out.append(places[i.name])
            continue
        terms, rest = linear(i)
        if not all(isinstance(t, Var) and t.name in extents and c > 0 for t, c in terms.items()):
            return ""
        if rest < 0 or rest + sum(c * (extents[t.name] - 1) for t, c in terms.items() if isinstance(t, Var)) >= n:
            return ""
        steps = [(places[t.name], c) for t, c in terms.items() if isinstance(t, Var)]
        words = [place if c == 1 else f"{place} * {c}" for place, c in steps]
        out.append(" + ".join([*words, str(rest)] if rest or not words else words))
    return ", ".join(out) if out else ""


def _nest(
    axes: Sequence[Axis], carried: Value, b: Block, body: Inside, called: str = "", at: Indices = NOWHERE
) -> Value:
    """Loops over axes around `body(block, indices, tensor)`, which gives the tensor as it is then."""
    if not axes:
        return body(b, at, carried)
    first, *rest = axes

    def step(inner: Block, i: Value, held: tuple[Value, ...]) -> Values:
        return (_nest(rest, held[0], inner, body, at={**at, first.name: i}),)

    return b.loop(static(first.extent), (carried,), step, called)[0]


def _scan(e: Scan, b: Block, tensors: dict[str, Value]) -> Value:
    along = next(a for a in e.axes if a.name == e.along)
    others = [a for a in e.axes if a is not along]

    def row(inner: Block, at: Indices, held: Value) -> Value:
        def step(block: Block, i: Value, carried: tuple[Value, ...]) -> Values:
            indices = {**at, along.name: i}
            made = lower(e.value, block, Scope(indices, tensors, {}))
            total = scalar.apply(COMBINE[e.op], (carried[0], made), e.dtype, block)
            where = [indices[a.name] for a in e.axes]
            return total, block.op("tensor.insert", (total, carried[1], *where), held.type)

        start = inner.constant(identity(e.op, e.dtype).value, e.dtype)
        return inner.loop(static(along.extent), (start, held), step, "" if others else e.name)[1]

    return _nest(others, _empty(e, b), b, row, e.name)


def _scatter(e: Scatter, b: Block, tensors: dict[str, Value]) -> Value:
    def update(inner: Block, at: Indices, held: Value) -> Value:
        scope = Scope(at, tensors, {})

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

    base = _generic(e, (), e.base, _empty(e, b), b, tensors)
    return _nest(e.over, base, b, update, e.name)
