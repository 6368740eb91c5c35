"""Which outputs are made in the memory of an input."""

import pytest

from compiler.ir.stages import IRS
from compiler.passes.loop.in_place import in_place

TEXT = """
def f(x: f32[8, {row}], held: f32[8: {apart}, {row}: 1], *, y: f32[8, {row}]):
    with kernel("y", [x, y], writes=[y]):
        for i in parallel(8):
            for j in parallel({row}):
                y[i, j] = x[i, j] + 1.0
"""


@pytest.mark.parametrize(("row", "apart", "placed"), [(64, 64, True), (64, 68, True), (65, 68, False), (65, 65, True)])
def test_rows_that_end_amid_16_bytes_of_others_are_not_written_in_place(row: int, apart: int, placed: bool) -> None:
    """A bulk store of a GPU writes all 16 bytes, of which the rest is the caller's."""
    made = in_place(IRS["loop"].parse(TEXT.format(row=row, apart=apart)), {"y": "held"})
    assert bool(made.outputs) is not placed
    assert ("held" in made.kernels[0].writes) is placed


STEP = """
def f(p: f32[8, 4], g: f32[8, 4], *, y: f32[8, 4], z: f32[8, 4]):
    with kernel("y", [p, g, y, z], writes=[y, z]):
        for i in parallel(8):
            for j in parallel(4):
                {body}
"""
UPDATE = ("a = p[i, j] - g[i, j]", "z[i, j] = p[i, j] * 2.0", "y[i, j] = a")


@pytest.mark.parametrize(
    ("body", "placed"),
    [
        (UPDATE, True),
        ((UPDATE[0], UPDATE[2], UPDATE[1]), False),  # read after the store
        (("y[i, j] = p[i, 3 - j] - g[i, j]", "z[i, j] = 1.0"), False),  # read by another iteration
        (("y[0, j] = p[0, j]", "z[i, j] = 1.0"), False),  # stored by several iterations
        (("z[i, j] = require(g[i, j] > 0.0, g[i, j])", "y[i, j] = p[i, j] * 2.0"), False),  # a call may fail
        (("s: f32 = 0.0", "for r in reduce(4):", "    s += p[i, r]", "y[i, j] = p[i, j] * s", "z[i, j] = s"), False),
    ],
)
def test_elements_are_replaced_where_only_they_are_read(body: tuple[str, ...], placed: bool) -> None:
    text = STEP.format(body="\n                ".join(body))
    made = in_place(IRS["loop"].parse(text), {"y": "p"})
    assert ("p" in made.kernels[0].writes) is placed
    assert ([t.name for t in made.outputs] == ["z"]) is placed
    assert len({p.name for p in made.kernels[0].params}) == len(made.kernels[0].params)


def test_checks_that_report_later_let_elements_be_replaced() -> None:
    body = ("z[i, j] = require(g[i, j] > 0.0, g[i, j])", "y[i, j] = p[i, j] * 2.0")
    program = IRS["loop"].parse(STEP.format(body="\n                ".join(body)))
    assert "p" not in in_place(program, {"y": "p"}).kernels[0].writes
    assert "p" in in_place(program, {"y": "p"}, checks_report_later=True).kernels[0].writes
