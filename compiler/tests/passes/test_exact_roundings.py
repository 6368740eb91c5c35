"""Roundings of bytes, and of small sums of them, are left out; others stay."""

import pytest

from compiler.ir import kernel_text
from compiler.passes.exact_roundings import remove_exact_roundings

TEXT = """
def f(q: i8[8], *, y: f32[8]):
    with function("f", [q, y], writes=[y]):
        for i in range(0, 8, 1):
            wide: f32 = f32(bf16(q[i]))
            y[i] = {value}
"""


@pytest.mark.parametrize(
    ("value", "left"),
    [("f32(bf16(wide - 8.0))", "wide - 8.0"), ("f32(bf16(wide - 200.0))", "f32(bf16(wide - 200.0))"),
     ("f32(f16(wide - 0.5))", "f32(f16(wide - 0.5))"), ("f32(bf16(wide * 2.0))", "f32(bf16(wide * 2.0))")],
)  # fmt: skip
def test_what_is_known_to_be_whole_and_small_is_not_rounded(value: str, left: str) -> None:
    made = kernel_text.show(remove_exact_roundings(kernel_text.parse(TEXT.format(value=value))))
    assert "wide: f32 = f32(q[i])" in made
    assert f"y[i] = {left}\n" in made
