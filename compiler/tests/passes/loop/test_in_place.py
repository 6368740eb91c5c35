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
