"""Error bounds of counts and scatters whose conditions and places rounding decides."""

import numpy as np

from compiler.interpret import bounded
from compiler.interpret.bounded import Bounded
from compiler.interpret.bounds import bounds
from compiler.ir import tensor, tensor_text


def run(text: str, *arrays: np.ndarray) -> tuple[Bounded, ...]:
    program = tensor_text.parse(text)
    tensor.verify(program)
    return bounds(program, arrays)


def test_all_comparisons_that_are_counted_may_be_decided_by_one_rounding() -> None:
    text = """
def f(x: f32[40]):
    with kernel("f"):
        d[i: 40]: f32 = x[i] / 3.0 * 3.0 - x[i]
        n[()]: i64 = sum(where(d[i] != 0.0, 1, 0) for i in range(40))
        m[()]: i64 = sum(i64(d[i] != 0.0) for i in range(40))
    result(n, i64[()])
    result(m, i64[()])
"""
    made = run(text, np.full(40, 7, np.float32))
    assert all(bound.v - bounded.tolerance(bound) <= 0 and bound.v + bounded.tolerance(bound) >= 40 for bound in made)


def test_updates_whose_place_is_undecided_may_be_at_any_of_several() -> None:
    """Three numbers are equal but for rounding, so that what belongs to one of them may be put where another is."""
    text = """
def f(x: f32[6], g: f32[6]):
    with kernel("f"):
        e[i: 6]: f32 = x[i] / 3.0 * 3.0
        order[i: 6]: i64 = ascending(i, [e[r] for r in range(6)])
        y[i: 6]: f32 = scatter(set, 0.0, [([order[k]], g[k]) for k in range(6)])
        z[i: 6]: f32 = scatter(sum, 0.0, [([order[k]], g[k]) for k in range(6)])
    result(y, f32[6])
    result(z, f32[6])
"""
    x, g = np.array([7, 1, 7, 7, 2, 9], np.float32), np.array([1, 2, 4, 8, 16, 32], np.float32)
    made = run(text, x, g)
    for bound in made:
        assert (bounded.tolerance(bound)[[1, 5]] == 0).all()
        for k in (0, 2, 3):
            assert all(abs(v - bound.v[k]) <= bounded.tolerance(bound)[k] for v in (4.0, 8.0, 16.0))


def test_each_index_of_a_load_may_be_off_by_itself() -> None:
    """A check that an index in bounds passes does not send it to element 0."""
    text = """
def f(x: f32[2], a: f32[9, 9]):
    with kernel("f"):
        e[i: 2]: i64 = i64(x[i] / 3.0 * 3.0)
        y[()]: f32 = a[e[0], require(e[1] < 6, e[1])]
    result(y, f32[()])
"""
    a = np.zeros((9, 9), np.float32)
    a[7, 0], a[8, 4] = 1000, 16
    (bound,) = run(text, np.array([7, 5], np.float32), a)
    assert bound.v == 0 and 16 <= bounded.tolerance(bound) < 1000


def test_an_index_that_is_far_off_may_be_anywhere() -> None:
    text = """
def f(x: f32[()], a: f32[9]):
    with kernel("f"):
        e[()]: i64 = i64(x[()] / 3.0 * 3.0) - i64(x[()]) + 4
        y[()]: f32 = a[min(max(e[()], 0), 8)]
    result(y, f32[()])
"""
    a = np.zeros(9, np.float32)
    a[1] = 32
    (bound,) = run(text, np.array(1e8, np.float32), a)
    assert bound.v == 0 and bounded.tolerance(bound) >= 32
