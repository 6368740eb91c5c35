"""Halves of bytes that are scaled side by side are one call; others stay."""

import pytest

from compiler.ir import kernel_text
from compiler.passes.packed_conversions import pack_conversions

TEXT = """
def f(p: u8[64], s: bf16[8], *, y: bf16[64]):
    with function("f", [p, s, y], writes=[y], grid=[1], block=[32, 1, 1]):
        p_near = array(local, u8, 16, 16)
        y_near = array(local, bf16, 8, 16)
        for t in range(0, 2, 1, unroll):
            for n in range(0, 8, 1, unroll):
                y_near[n] = bf16((f32(p_near[{at}] * u8(16 - t * 15) & u8(240)) - 128.0) * f32(s[{scale}]))
"""


@pytest.mark.parametrize(
    ("at", "scale", "calls"),
    [("t * 8 + n", "t", 1), ("t * 8 + n * 2", "t", 0), ("t * 8 + n", "n", 0), ("t + n", "t", 0)],
)
def test_halves_side_by_side_are_one_call(at: str, scale: str, calls: int) -> None:
    made = kernel_text.show(pack_conversions(kernel_text.parse(TEXT.format(at=at, scale=scale))))
    wanted = 'call("mlc_scaled_halves", [8], y_near @ (0), p_near @ (t * 8), u8(16 - t * 15), s[t], writes=[y_near])'
    assert made.count(wanted) == calls, made


WIDE = """
def f(q: i8[64], *, y: bf16[64]):
    with function("f", [q, y], writes=[y], grid=[1], block=[32, 1, 1]):
        q_near = array(local, i8, 16, 16)
        y_near = array(local, bf16, 64, 16)
        for n in range(0, 16, 1, unroll):
            y_near[{at}] = bf16(q_near[n])
"""


@pytest.mark.parametrize(
    ("at", "call"), [("n", "[16]"), ("n // 2 * 4 + n % 2", "[16, 4]"), ("n * 2", ""), ("n // 4 * 8 + n % 4", "")]
)
def test_bytes_are_widened_in_pairs(at: str, call: str) -> None:
    made = kernel_text.show(pack_conversions(kernel_text.parse(WIDE.format(at=at))))
    wanted = f'call("mlc_widened", {call}, y_near @ (0), q_near @ (0), writes=[y_near])'
    assert (wanted in made) == bool(call), made
