"""What a loop adds to, where data say, waits in registers; scalars, known places and other readers are left alone."""

import pytest

from compiler.ir import kernel_text
from compiler.passes.cpu.register_accumulators import keep_accumulators

TEXT = """
def f(index: i64[100], x: f32[3200], *, y: f32[3200]):
    with function("f", [index, x, y], writes=[y]):
        for piece in range(0, 100, 10):
            for r in range(piece, piece + 10, 1, unroll):
                at: i64 = index[r]
                for s in range(0, 32, 32):
                    y[at * 32 + s] += x[r * 32 + s, f32x16]
                    y[at * 32 + s + 16] += x[r * 32 + s + 16, f32x16]
"""
HELD = """
def f(index: i64[100], x: f32[3200], *, y: f32[3200]):
    with function("f", [index, x, y], writes=[y]):
        y_last: i64 = -1
        y_held: f32x16 = broadcast(0.0, 16)
        y_held_1: f32x16 = broadcast(0.0, 16)
        for piece in range(0, 100, 10):
            for r in range(piece, piece + 10, 1):
                at: i64 = index[r]
                y_place: i64 = at * 32
                if y_place != y_last:
                    if y_last != -1:
                        y[y_last] = y_held
                        y[y_last + 16] = y_held_1
                    y_held = y[y_place, f32x16]
                    y_held_1 = y[y_place + 16, f32x16]
                    y_last = y_place
                y_held = y_held + x[r * 32, f32x16]
                y_held_1 = y_held_1 + x[r * 32 + 16, f32x16]
        if y_last != -1:
            y[y_last] = y_held
            y[y_last + 16] = y_held_1
"""


def test_vectors_at_a_place_that_data_name_are_held() -> None:
    assert kernel_text.show(keep_accumulators(kernel_text.parse(TEXT))).strip() == HELD.strip()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[at * 32 + s] += x", "y[r * 32 + s] += x"),
        ("s + 16] += x", "s + 16] = x"),
        ("x[r * 32 + s, f32x16]", "x[r * 32 + s, f32x16] + y[s, f32x16]"),
        ("= index[r]", "= index[r] + i64(y[r])"),
        ("at * 32", "r * 32"),
        ("at * 32 +", ""),
        ("f32", "bf16"),
        (", f32x16]", "]"),
    ],
)
def test_other_updates_stay_in_memory(old: str, new: str) -> None:
    """Of two places, overwritten, read in between; where the place changes each time, or never; short floats, which are
    rounded each time, and elements one by one."""
    program = kernel_text.parse(TEXT.replace(old, new))
    assert keep_accumulators(program) == program
