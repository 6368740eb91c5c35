"""Torch IR's text: what is printed is read back as the very same program, and what is wrong is named by line."""

import pytest

from compiler.ir import aten, aten_text
from compiler.ir.aten import Call, Program
from compiler.ir.expr import const
from compiler.ir.text import TextError

PROGRAM = """\
def f(s0: size, x: f32[s0, 2048], w: constant(f32[2048: 3, 4: 1]), z: bf16[()]):
    y: f32[s0, 2048] = aten.mul.Tensor(x, w, alpha=-inf)
    m: f32[s0]
    m, i = aten.max.dim(y, -1, True)
    aten.f.default(None, 'x', [m, None, 1], 1.5, bf16, dim=[s0 * 2, 3], k=[])
    with decomposed("aten.h.default"):
        u, v = aten.g.default(nan, -0.0, False)
        aten.g.default(y)
    return y, m
"""


def test_text_is_read_back_as_the_same_program() -> None:
    program = aten_text.parse(PROGRAM)
    aten.verify(program)
    assert aten_text.show(program) == PROGRAM
    assert aten_text.parse(aten_text.show(program)) is program


def test_results_that_nobody_reads_have_no_type() -> None:
    program = aten_text.parse(PROGRAM)
    assert [t is None for t in program.calls[1].types] == [False, True]


def test_a_program_without_results() -> None:
    text = "def f():\n    return ()\n"
    assert aten_text.show(aten_text.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(x):\n    return x\n", "x has no type"),
        ("def f(x: f32[2]):\n    x = 3\n    return x\n", "line 2"),
        ("def f(x: f32[2]):\n    y: f32[2]\n    return x\n", "'y'"),
        ("def f(x: f33[2]):\n    return x\n", "not a tensor type"),
    ],
)
def test_wrong_text_is_refused(text: str, problem: str) -> None:
    with pytest.raises(TextError, match=problem):
        aten_text.parse(text)


def test_a_known_size_as_an_expression_is_refused() -> None:
    with pytest.raises(TypeError, match="integer"):
        aten_text.show(Program("f", (), (Call((), (), "aten.f.default", (const(3),), ()),), ()))
