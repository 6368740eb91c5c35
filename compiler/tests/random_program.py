"""Random programs of Tensor IR for hypothesis: every equation reads earlier ones, each is a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import strategies as st

from compiler.ir import tensor_text
from compiler.ir.dtype import f32
from compiler.ir.expr import Const, Expr, Load, both, cast, const, dim, op, select
from compiler.ir.tensor import Axis, Equation, Group, Map, Program, Reduce, Scan, Scatter, Tensor, row_major

Shape = tuple[int, ...]
LARGEST = 600  # elements of a tensor
SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 16, 17, 35)  # around the widths of vectors and tiles


class _Builder:
    """The program so far; `draw(n)` chooses one of n."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.choose = choose
        self.shapes: dict[str, Shape] = {}
        self.equations: list[Equation] = []

    def axes(self, shape: Shape) -> tuple[Axis, ...]:
        return tuple(Axis(f"i{n}", dim(size)) for n, size in enumerate(shape))

    def add(self, made: Equation, shape: Shape) -> None:
        self.equations.append(made)
        self.shapes[made.name] = shape

    def name(self) -> str:
        return f"t{len(self.equations)}"

    def view(self, source: str, shape: Shape, index: Callable[[list[Expr]], list[Expr]]) -> None:
        axes = self.axes(shape)
        value = Load(source, tuple(index([a.var for a in axes])), f32)
        self.add(Map(self.name(), axes, value), shape)


def _load(name: str, axes: tuple[Axis, ...]) -> Expr:
    return Load(name, tuple(a.var for a in axes), f32)


# ---- one equation each: the builder, a tensor's name, and its shape


def _permute(b: _Builder, x: str, shape: Shape) -> None:
    order = list(range(len(shape)))
    for n in range(len(order)):
        k = n + b.choose(len(order) - n)
        order[n], order[k] = order[k], order[n]
    b.view(x, tuple(shape[k] for k in order), lambda i: [i[order.index(k)] for k in range(len(shape))])


def _merge(b: _Builder, x: str, shape: Shape) -> None:
    if len(shape) < 2:
        return
    at = b.choose(len(shape) - 1)
    n = shape[at + 1]
    merged = (*shape[:at], shape[at] * n, *shape[at + 2 :])
    b.view(x, merged, lambda i: [*i[:at], i[at] // n, i[at] % n, *i[at + 1 :]])


def _split(b: _Builder, x: str, shape: Shape) -> None:
    if not shape or len(shape) > 3:
        return
    at = b.choose(len(shape))
    divisors = [d for d in range(1, shape[at] + 1) if shape[at] % d == 0] or [1]
    n = divisors[b.choose(len(divisors))]
    b.view(
        x, (*shape[:at], shape[at] // n, n, *shape[at + 1 :]), lambda i: [*i[:at], i[at] * n + i[at + 1], *i[at + 2 :]]
    )


def _slice(b: _Builder, x: str, shape: Shape) -> None:
    if not shape:
        return
    at = b.choose(len(shape))
    first, step = b.choose(max(1, shape[at])), 1 + b.choose(2)
    size = max(0, -(-(shape[at] - first) // step))
    b.view(x, (*shape[:at], size, *shape[at + 1 :]), lambda i: [*i[:at], i[at] * step + first, *i[at + 1 :]])


def _flip(b: _Builder, x: str, shape: Shape) -> None:
    if shape:
        at = b.choose(len(shape))
        b.view(x, shape, lambda i: [*i[:at], op("sub", shape[at] - 1, i[at]), *i[at + 1 :]])


def _repeat(b: _Builder, x: str, shape: Shape) -> None:
    n, at = 1 + b.choose(3), b.choose(len(shape) + 1)
    if len(shape) < 4:
        b.view(x, (*shape[:at], n, *shape[at:]), lambda i: [*i[:at], *i[at + 1 :]])


def _pad(b: _Builder, x: str, shape: Shape) -> None:
    if not shape:
        return
    at, before, after = b.choose(len(shape)), b.choose(3), b.choose(3)
    padded = (*shape[:at], shape[at] + before + after, *shape[at + 1 :])
    axes = b.axes(padded)
    here = axes[at].var
    index = tuple(a.var - before if a is axes[at] else a.var for a in axes)
    inside = both(op("ge", here, before), op("lt", here, before + shape[at]))
    b.add(Map(b.name(), axes, select(inside, Load(x, index, f32), const(0.5, f32))), padded)


def _concatenate(b: _Builder, x: str, shape: Shape) -> None:
    others = [n for n, s in b.shapes.items() if len(s) == len(shape) and s[1:] == shape[1:]]
    if not shape or not others:
        return
    other = others[b.choose(len(others))]
    joined = (shape[0] + b.shapes[other][0], *shape[1:])
    axes = b.axes(joined)
    rest = tuple(a.var for a in axes[1:])
    first, second = Load(x, (axes[0].var, *rest), f32), Load(other, (axes[0].var - shape[0], *rest), f32)
    b.add(Map(b.name(), axes, select(op("lt", axes[0].var, shape[0]), first, second)), joined)


def _unary(b: _Builder, x: str, shape: Shape) -> None:
    axes = b.axes(shape)
    value = _load(x, axes)
    made = [
        op("tanh", value),
        op("abs", value),
        value * 0.5 + 1.0,
        op("div", value, op("exp", value * 0.25) + 1.0),
        op("where", op("gt", value, 0.25), value, op("neg", value)),
        value + cast(axes[-1].var, f32) * 0.125 if axes else value,
    ]
    b.add(Map(b.name(), axes, made[b.choose(len(made))]), shape)


def _binary(b: _Builder, x: str, shape: Shape) -> None:
    """With a tensor of the same shape, or one that lacks some leading or trailing axes."""
    others = [n for n, s in b.shapes.items() if s in (shape, shape[1:], shape[:-1], shape[2:])]
    if not others:
        return
    other = others[b.choose(len(others))]
    axes = b.axes(shape)
    rank = len(b.shapes[other])
    own = axes[len(axes) - rank :] if b.shapes[other] == shape[len(axes) - rank :] else axes[:rank]
    how = ("add", "mul", "max", "sub")[b.choose(4)]
    b.add(Map(b.name(), axes, op(how, _load(x, axes), _load(other, own))), shape)


def _reduce(b: _Builder, x: str, shape: Shape) -> None:
    over = [bool(b.choose(2)) for _ in shape]
    axes = tuple(Axis(f"{'r' if o else 'i'}{n}", dim(s)) for n, (o, s) in enumerate(zip(over, shape, strict=True)))
    kept = tuple(a for a, o in zip(axes, over, strict=True) if not o)
    gone = tuple(a for a, o in zip(axes, over, strict=True) if o)
    how = ("sum", "max")[b.choose(2)]
    if how == "max" and math.prod(shape) == 0:
        return  # minus infinity would meet itself
    value = _load(x, axes) * 0.25
    b.add(Reduce(b.name(), kept, how, gone, value), tuple(s for s, o in zip(shape, over, strict=True) if not o))


def _product(b: _Builder, x: str, shape: Shape) -> None:
    """All rows with all rows of some tensor as wide."""
    others = [n for n, s in b.shapes.items() if len(s) == 2 and s[-1:] == shape[-1:]]
    if len(shape) != 2 or not others:
        return
    other = others[b.choose(len(others))]
    made = (shape[0], b.shapes[other][0])
    i, j, k = Axis("i", dim(made[0])), Axis("j", dim(made[1])), Axis("k", dim(shape[1]))
    value = Load(x, (i.var, k.var), f32) * Load(other, (j.var, k.var), f32) * 0.125
    b.add(Reduce(b.name(), (i, j), "sum", (k,), value), made)


def _scan(b: _Builder, x: str, shape: Shape) -> None:
    if shape:
        axes = b.axes(shape)
        along = axes[b.choose(len(axes))].name
        b.add(Scan(b.name(), axes, ("sum", "max")[b.choose(2)], along, _load(x, axes) * 0.25), shape)


def _scatter(b: _Builder, x: str, shape: Shape) -> None:
    """Every row is added to one of three."""
    if not shape or not shape[0]:
        return
    rows, wide = 3, shape[1:]
    axes = tuple(Axis(f"i{n}", dim(s)) for n, s in enumerate((rows, *wide)))
    over = tuple(Axis(f"u{n}", dim(s)) for n, s in enumerate(shape))
    index = (over[0].var * 2 % rows, *(a.var for a in over[1:]))
    base, guard = const(1.0, f32), op("ne", over[0].var, 1)
    b.add(Scatter(b.name(), axes, base, "sum", over, index, _load(x, over), guard), (rows, *wide))


_STEPS = (
    _permute, _merge, _split, _slice, _flip, _repeat, _pad, _concatenate, _unary, _unary, _unary, _binary, _binary,
    _binary, _reduce, _reduce, _product, _scan, _scatter,
)  # fmt: skip


class Shown:
    """A program that a failing test shows as text."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __repr__(self) -> str:
        return "\n" + tensor_text.show(self.program)


@st.composite
def programs(draw: st.DrawFn) -> Shown:
    """A program of up to eight equations over one or two inputs, with one to three results."""

    def choose(n: int) -> int:
        return draw(st.integers(0, n - 1)) if n > 1 else 0

    b = _Builder(choose)
    inputs = []
    for name in "xy"[: 1 + choose(2)]:
        shape = tuple(SIZES[choose(len(SIZES))] for _ in range(choose(4)))
        shape = shape if math.prod(shape) <= LARGEST else shape[:1]
        b.shapes[name] = shape
        sizes = tuple(map(dim, shape))
        inputs.append(Tensor(name, f32, sizes, row_major(sizes)))
    for _ in range(2 + choose(7)):
        source = list(b.shapes)[-1 - min(choose(4), len(b.shapes) - 1)]
        _STEPS[choose(len(_STEPS))](b, source, b.shapes[source])
        if math.prod(list(b.shapes.values())[-1]) > LARGEST:
            gone = b.equations.pop()
            del b.shapes[gone.name]
    if not b.equations:
        _unary(b, "x", b.shapes["x"])
    made = [e.name for e in b.equations]
    results = dict.fromkeys([made[-1], *(made[choose(len(made))] for _ in range(choose(3)))])
    groups = tuple(Group(e.name, (e,)) for e in b.equations)
    outputs = tuple(_result(name, b.shapes[name]) for name in results)
    return Shown(Program("random", tuple(inputs), groups, outputs))


def _result(name: str, shape: Shape) -> Tensor:
    sizes: tuple[Expr, ...] = tuple(map(dim, shape))
    assert all(isinstance(s, Const) for s in sizes)
    return Tensor(name, f32, sizes, row_major(sizes))
