"""Symbolic sizes: algebra over them against numbers, their text, and what they are bound to."""

import itertools
import random

import numpy as np
import pytest

from compiler.ir.dtype import i64
from compiler.ir.expr import Expr, Size, Var, const, hint, op, substitute
from compiler.ir.index import simplify
from compiler.ir.loop_text import parse as parse_loop
from compiler.ir.loop_text import show as show_loop
from compiler.ir.sizes import SizeError, bind, fixed, numbers, unbound
from compiler.ir.stages import IRS
from compiler.ir.tensor import row_major
from compiler.ir.text import TextError, show
from compiler.ir.value_ranges import Below, extent_range, value_range
from compiler.tests.ir.test_index import Values, value

S, T = Size("s", i64, 1, None, 5), Size("t", i64, 1, 6, 3)
A, B, C = Var("i"), Var("j"), Var("k")
DIGITS = C % 7 % T * S + C % 7 // T * T * S
EXTENTS = {"i": S, "j": T, "k": S * T * 4}
RANGES = {name: extent_range(e) for name, e in EXTENTS.items()}


def points() -> Values:
    """Every place of the first two axes at some sizes, and a few of the third."""
    rows = []
    for s, t in itertools.product((1, 2, 3, 5), (1, 2, 4, 6)):
        for i, j in itertools.product(range(s), range(t)):
            rows += [(s, t, i, j, k) for k in {0, s * t * 4 - 1, (i * t + j) * 4 + 3}]
    return dict(zip("stijk", np.array(rows).T, strict=True))


POINTS = points()


def drawn(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return rng.choice(
            [
                A,
                B,
                C,
                S,
                T,
                const(rng.randint(0, 9)),
                A * T + B,
                (A * T + B) * 4 + 1,
                C // 4,
                C % 7 % T * S + C % 7 // T * T * S,
            ]
        )
    a, b = drawn(rng, depth - 1), drawn(rng, depth - 1)
    how = rng.choice(["add", "sub", "mul", "floordiv", "mod", "mod", "floordiv", "min", "max"])
    if how in ("floordiv", "mod"):
        b = rng.choice([S, T, S * T, T * 4, const(4), const(rng.randint(1, 9))])
    return op(how, a, b)


def test_simplified_indices_are_equal_at_every_size() -> None:
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(400):
        e = drawn(rng, rng.randint(1, 3))
        if rng.random() < 0.3:
            e = op(rng.choice(["lt", "le", "ge", "eq"]), e, drawn(rng, 1))
        made = simplify(e, RANGES, index=True)
        low, high = value_range(made, RANGES) if made.dtype is i64 else (None, None)
        got, shown = value(made, POINTS), f"seed {seed}: {show(e)} became {show(made)}"
        assert np.all(got == value(e, POINTS)), shown
        assert low is None or np.min(got) >= low, shown
        assert high is None or np.max(got) <= high, shown


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((A * T + B) // T, A), ((A * T + B) % T, B), (C // 4 // T * T + C // 4 % T, C // 4), (S * 4 // 4, S),
        (op("lt", A, S), "True"), (op("lt", A * T + B, S * T), "True"), (op("ge", S, 1), "True"),
        (op("lt", A, T), "i < t"), (op("lt", A + 1, S), "i + 1 < s"), (op("le", T, 6), "True"),
        (C // T // 4 * T * 4 + C % T + C // T % 4 * T, C), (DIGITS, C % 7 * S),
        (C // (T * 4) % S, "k // (t * 4)"), (T * S * 3 + 2 * (S * T), "s * t * 5"),
    ],
)  # fmt: skip
def test_examples(before: Expr, after: Expr | str) -> None:
    assert show(simplify(before, RANGES, index=True)) == (after if isinstance(after, str) else show(after))


def test_axes_of_different_symbolic_extents_have_different_ranges() -> None:
    assert extent_range(S) == extent_range(S) and extent_range(S) != extent_range(Size("u"))
    assert extent_range(S) != (0, None) and Below(const(4) * T, {}) != (0, 23)


def test_text() -> None:
    text = """def f(s0: size[2, 4096, 32], n: size[1, inf, 7], x: f32[s0, n], *, y: f32[n * s0]):
    with kernel("k", [x, y], writes=[y]):
        for i in parallel(s0):
            y[i] = x[i, n - 1]
"""
    program = parse_loop(text)
    assert show_loop(program) == text and parse_loop(show_loop(program)) is program
    assert program.sizes == (Size("s0", i64, 2, 4096, 32), Size("n", i64, 1, None, 7))
    assert hint(program.outputs[0].shape[0]) == 224
    made = fixed(program, {program.sizes[0]: 3, program.sizes[1]: 5})
    assert "y: f32[15]" in show_loop(made) and "x[i, 4]" in show_loop(made) and "size" not in show_loop(made)
    with pytest.raises(TextError, match="a size is"):
        parse_loop(text.replace("size[1, inf, 7]", "size[1]"))


def test_binding() -> None:
    declared = [("x", (S, T)), ("y", (S * 2, const(3)))]
    assert bind((S, T), declared, [(4, 5), (8, 3)]) == {S: 4, T: 5}
    for shapes, match in (
        ([(4, 7), (8, 3)], "t is 7, but it was compiled for sizes from 1 to 6"),
        ([(4, 5), (9, 3)], r"input y has shape \[9, 3\], expected \[8, 3\]"),
        ([(4, 5, 1), (8, 3)], "no axis"),
        ([(0, 5), (0, 3)], "s is 0"),
    ):
        with pytest.raises(SizeError, match=match):
            bind((S, T), declared, shapes)
    assert unbound((S, T), [("x", (S * 2, T))]) == (S,)
    assert numbers(row_major((S, T, const(4))), {S: 7, T: 3}) == (12, 4, 1)


def test_strides_of_symbolic_shapes_have_one_form() -> None:
    assert row_major((T, S, const(4), const(2)))[0] is simplify(const(8) * S, {}, index=True)
    assert substitute(row_major((T, S))[0], {S: const(9)}) is const(9)


@pytest.mark.parametrize("stage", ["tensor", "loop", "tile", "kernel"])
def test_a_name_that_a_size_has_is_refused(stage: str) -> None:
    body = {
        "tensor": ['with kernel("k"):', "    y[s1: s1]: f32 = x[s1]"],
        "loop": ['with kernel("k", [x, y], writes=[y]):', "    for s1 in parallel(s1):", "        y[s1] = x[s1]"],
        "tile": ['with kernel("k", [x, y], writes=[y]):', "    for s1 in serial(s1):", "        y[s1] = x[s1]"],
        "kernel": [
            'with function("k", [x, y], writes=[y]):',
            "    for s1 in range(0, s1, 1):",
            "        y[s1] = x[s1]",
        ],
    }[stage]
    head = f"def f(s1: size[1, inf, 7], x: f32[s1]{'' if stage == 'tensor' else ', *, y: f32[s1]'}):"
    program = IRS[stage].parse("\n".join([head, *("    " + line for line in body)]) + "\n")
    with pytest.raises(ValueError, match=r"s1.*(size|bound twice)"):
        IRS[stage].verify(program)
