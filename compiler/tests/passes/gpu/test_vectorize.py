"""What may lie outside of a buffer has a predicate: a program from which one is left out is refused."""

import re

import pytest

from compiler.ir import tile_text
from compiler.passes.gpu.vectorize import vectorize, verify
from compiler.tests.passes.gpu.test_tile_to_threads import CASES

ROWS = (CASES / "vectorize" / "ends_of_rows.ir").read_text(encoding="utf-8").split("# ---\n")[1]
ODD = (CASES / "tile_to_threads" / "mma_odd_rows.tile").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(ROWS.count(".within(")))
def test_copies_ask_for_what_may_leave_a_buffer(number: int) -> None:
    verify(tile_text.parse(ROWS))
    asked = list(re.finditer(r"\.within\(\d\)", ROWS))[number]
    left_out = tile_text.parse(ROWS[: asked.start()] + ROWS[asked.end() :])
    with pytest.raises(ValueError, match=r"may leave . along axes .*, and does not ask"):
        verify(left_out)


def test_a_width_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of b to tb move 1 to 2 elements at once, .* not 4: width=2 fits"):
        vectorize(tile_text.parse(ROWS.replace("width=2", "width=4")))


@pytest.mark.parametrize("left, said", [
    ("bn * 64 + j1 < 72", "i1 goes from 0 to 63 of the 40 elements of y, and nothing asks"),
    ("i1 < 40", "bn . 64 . j1 goes from 0 to 127 of the 72 elements of y, and nothing asks"),
])  # fmt: skip
def test_stores_have_their_guards(left: str, said: str) -> None:
    vectorize(tile_text.parse(ODD))
    with pytest.raises(ValueError, match=said):
        vectorize(tile_text.parse(ODD.replace("(i1 < 40) & (bn * 64 + j1 < 72)", left)))
