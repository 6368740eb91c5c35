"""Index algebra against brute force: over every point of small domains, a simplified expression has the same value."""

import ast
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir import index
from compiler.ir.dtype import boolean, i64
from compiler.ir.expr import Const, Expr, Op, Select, Var, const, op, select, substitute
from compiler.ir.ranges import Range
from compiler.ir.text import Scope, expression, show
from compiler.ir.value_ranges import value_range

Values = dict[str, np.ndarray[Any, Any]]
AXES = ("i", "j", "k")
MEANING: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.remainder,
    "neg": np.negative, "abs": np.abs, "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal, "and": np.logical_and,
    "or": np.logical_or, "where": np.where,
}  # fmt: skip


def value(e: Expr, at: Values) -> Any:
    match e:
        case Const(v):
            return np.asarray(v)
        case Var(name):
            return at[name]
        case Op(name, args):
            return MEANING[name](*(value(a, at) for a in args))
        case Select(cond, then, other):
            return np.where(value(cond, at), value(then, at), value(other, at))
    raise TypeError(type(e).__name__)


VARIABLES = st.sampled_from(AXES).map(Var)
SMALL = st.integers(-7, 12).map(const)
DIVISOR = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 30]).map(const)


def deeper(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def binary(names: list[str], right: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.builds(op, st.sampled_from(names), inner, right)

    condition = binary(["lt", "le", "gt", "ge", "eq", "ne"], inner)
    condition |= st.builds(op, st.sampled_from(["and", "or"]), condition, condition)
    return st.one_of(
        binary(["add", "sub"], inner),
        binary(["mul"], SMALL),
        binary(["floordiv", "mod"], DIVISOR),
        binary(["min", "max"], inner),
        st.builds(op, st.sampled_from(["neg", "abs"]), inner),
        st.builds(select, condition, inner, inner),
        st.builds(op, st.just("where"), condition, inner, inner),
    )


EXPRESSIONS = st.recursive(VARIABLES | SMALL, deeper, max_leaves=12).filter(lambda e: e.dtype is i64)
EXTENTS = st.tuples(*[st.integers(1, 6)] * len(AXES))


def grid(extents: tuple[int, ...]) -> tuple[Values, dict[str, Range]]:
    points = np.meshgrid(*(np.arange(n) for n in extents), indexing="ij")
    return dict(zip(AXES, points, strict=True)), {a: (0, n - 1) for a, n in zip(AXES, extents, strict=True)}


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, EXTENTS)
def test_simplify_keeps_the_value_everywhere(e: Expr, extents: tuple[int, ...]) -> None:
    points, ranges = grid(extents)
    simple = index.simplify(e, ranges)
    assert (value(e, points) == value(simple, points)).all(), show(simple)
    low, high = value_range(e, ranges)
    found = value(e, points)
    assert low is None or low <= found.min(), (low, show(e))
    assert high is None or high >= found.max(), (high, show(e))


def test_squares_of_squares_have_bounds_only_as_long_as_they_fit() -> None:
    ranges: dict[str, Range] = {"x0": (2, 3)}
    for k in range(70):
        ranges[f"x{k + 1}"] = value_range(op("mul", Var(f"x{k}"), Var(f"x{k}")), ranges)
    assert ranges["x2"] == (16, 81) and ranges["x70"] == (None, None)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), EXTENTS)
def test_comparisons_keep_their_value_everywhere(a: Expr, b: Expr, how: str, extents: tuple[int, ...]) -> None:
    points, ranges = grid(extents)
    e = op(how, a, b)
    simple = index.simplify(e, ranges)
    assert simple.dtype is boolean
    assert (value(e, points) == value(simple, points)).all(), show(simple)


@pytest.mark.parametrize("sizes", [(2, 3, 4), (4, 6, 5), (2, 7, 3), (8, 2, 2)], ids=str)
def test_every_reshape_undoes_itself(sizes: tuple[int, ...]) -> None:
    """The digits of a mixed-radix number, put together again, are the number, for every order of the axes."""
    for shape in itertools.permutations(sizes):
        ranges: dict[str, Range] = {a: (0, n - 1) for a, n in zip(AXES, shape, strict=True)}
        own = [Var(a) for a in AXES]
        flat = own[0] * (shape[1] * shape[2]) + own[1] * shape[2] + own[2]
        digits = (flat // (shape[1] * shape[2]), flat // shape[2] % shape[1], flat % shape[2])
        assert list(index.simplify(digits, ranges)) == own
        p = Var("p")
        back = p // (shape[1] * shape[2]) * (shape[1] * shape[2]) + p // shape[2] % shape[1] * shape[2] + p % shape[2]
        assert index.simplify(back, {"p": (0, sizes[0] * sizes[1] * sizes[2] - 1)}) is p


@pytest.mark.parametrize("piece", [2, 8, 12, 16])
def test_digits_of_a_number_in_pieces_are_put_together(piece: int) -> None:
    """Elements of a channels-last tensor, in the order in which its axes are named, lie one after the other."""
    p, q = Var("p"), Var("q")
    flat = p * piece + q
    n, c, h, w = flat // 240, flat % 4, flat // 40 % 6, flat // 4 % 10
    for axes in itertools.permutations((n * 240, c, h * 40, w * 4)):
        assert index.simplify(sum(axes[1:], axes[0]), {"p": (0, 239), "q": (0, piece - 1)}) is flat


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ((Var("i") * 15 + Var("j") * 5 + Var("k")) // 30, "i // 2"),
        ((Var("i") * 3 + Var("j")) % 6, "i % 2 * 3 + j"),
        (op("sub", 5, Var("j")), "5 - j"),
        (op("sub", Var("k"), Var("i") * 8) - 2, "k - i * 8 - 2"),
        (op("min", 16, Var("i") + 3), "i + 3"),
        (Var("i") // 2 // 3, "i // 6"),
        (Var("i") % 12 // 4 % 3, "i // 4"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_simplest_form(text: Expr, simple: str) -> None:
    assert show(index.simplify(text, {"i": (0, 7), "j": (0, 2), "k": (0, 4)})) == simple


def test_data_may_wrap_around() -> None:
    """What holds for indices is left alone where an element of a tensor takes part that nothing bounds."""
    ranges = {"i": (0, 9)}
    scope = Scope({"i": i64}, {"x": i64})
    element = expression(ast.parse("x[i]", mode="eval").body, scope)
    bounded = op("require", op("and", op("ge", element, const(0)), op("lt", element, const(9))), element)
    for text in ("x[i] + 1 > x[i]", "x[i] * 3 // 3", "(x[i] * 4 + 1) % 4"):
        e = expression(ast.parse(text, mode="eval").body, scope)
        assert index.simplify(e, ranges) is e
        assert index.simplify(e, ranges, index=True) is e
        known = substitute(e, {element: bounded})
        assert index.simplify(known, ranges, index=True) is not known
