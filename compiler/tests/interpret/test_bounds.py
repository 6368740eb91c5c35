"""Error bounds: f32 evaluations of Tensor IR lie within them, and they open where rounding decides."""

import math
from typing import Any

import numpy as np
import pytest

from compiler.interpret import bounded, scalar
from compiler.interpret import tensor as interpret
from compiler.interpret.bounded import Accuracy, Bounded
from compiler.interpret.bounds import bounds
from compiler.ir import dtype as dt
from compiler.ir import tensor, tensor_text
from compiler.ir.expr import OPS, Expr, Load, Op, Var, cast, const, dim, op
from compiler.ir.tensor import Axis, Group, Map, Program, Tensor
from compiler.targets.accuracy import THREEFOLD

SEED = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
RNG = np.random.default_rng(SEED)
N = 400


def margin(y: np.ndarray, b: Bounded, tiny: float = 2.0**-149) -> float:
    """Greatest error over tolerance; NaN and infinities must be where the bound has them, or where it is open."""
    tol = bounded.tolerance(b) * 1.01 + tiny
    error = bounded.distance(y, b.v)
    return float(np.where(np.isinf(tol), 0.0, error / np.where(np.isinf(tol), 1.0, tol)).max(initial=0.0))


def run(text: str, *arrays: np.ndarray) -> tuple[list[np.ndarray], list[Bounded]]:
    program = tensor_text.parse(text)
    tensor.verify(program)
    return list(interpret.run(program, arrays)), list(bounds(program, arrays))


ATTENTION = """
def f(x0: f32[9, 8], x1: f32[7, 8], x2: f32[7, 5]):
    with kernel("attention"):
        s[i: 9, j: 7]: f32 = sum(x0[i, d] * x1[j, d] for d in range(8))
        m[i: 9]: f32 = max(s[i, j] for j in range(7))
        e[i: 9, j: 7]: f32 = exp(s[i, j] - m[i])
        t[i: 9]: f32 = sum(e[i, j] for j in range(7))
        p[i: 9, j: 7]: f32 = e[i, j] / t[i]
        y[i: 9, k: 5]: f32 = sum(p[i, j] * x2[j, k] for j in range(7))
    result(y, f32[9, 5])
"""


def test_errors_too_small_to_be_squared_are_bounded_by_the_worst_case() -> None:
    text = """
def f(x0: f64[3]):
    with kernel("tiny"):
        y[i: 3]: f64 = exp(x0[i]) * x0[i]
    result(y, f64[3])
"""
    ((y,), (b,)) = run(text, np.array([-735.0, -700.0, 1.0]))
    tolerance = bounded.tolerance(b)
    assert (tolerance > 0).all() and (tolerance <= bounded.worst_error(b)).all() and (abs(y - b.v) <= tolerance).all()


@pytest.mark.parametrize("most", [4, 9, 24])
def test_bounds_are_the_same_when_worked_out_in_slabs(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in ((9, 8), (7, 8), (7, 5))]
    program = tensor_text.parse(ATTENTION)
    (whole,) = bounds(program, arrays)
    monkeypatch.setattr(interpret, "SLAB", most)
    monkeypatch.setattr(interpret, "CACHED", most)
    (parts,) = bounds(program, arrays)
    for mine, other in zip((whole.v, *bounded.errors(whole)), (parts.v, *bounded.errors(parts)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, err_msg=f"seed {SEED}")


def elementwise(value: Expr, inputs: int) -> Program:
    shape, strides = (dim(N),), (dim(1),)
    given = tuple(Tensor(f"x{k}", dt.f32, shape, strides) for k in range(inputs))
    made = Map("y", (Axis("i", dim(N)),), value)
    return Program("f", given, (Group("f", (made,)),), (Tensor("y", value.dtype, shape, strides),))


@pytest.mark.parametrize("name", [n for n, r in OPS.items() if "float" in r.kinds.split() and n != "require"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_every_operation_on_rounded_arguments(name: str, scale: float) -> None:
    x = [Load(f"x{k}", (Var("i"),), dt.f32) for k in range(4)]
    rounded = [x[0] * x[1] + x[2], x[1] - x[3] * x[0], x[2] / (x[3] * x[3] + 1.0)]
    args = (op("lt", rounded[0], rounded[1]), *rounded[1:]) if name == "where" else tuple(rounded[: OPS[name].arity])
    value = op("mul", cast(Op(name, args), dt.f32), x[3])
    arrays = [(RNG.standard_normal(N) * scale).astype(np.float32) for _ in range(4)]
    program = elementwise(value, 4)
    (y,), (b,) = interpret.run(program, arrays), bounds(program, arrays)
    assert margin(y, b) <= 1, f"seed {SEED}"
    # the bound says something: for most elements it is a small part of the value
    small = np.isnan(b.v) | (bounded.tolerance(b) <= 1e-3 * np.abs(b.v) + 1e-6)
    assert small.mean() > 0.4 or name in ("floordiv", "mod", "rem", "pow"), f"seed {SEED}: {small.mean()}"


@pytest.mark.parametrize("target", ["bf16", "f16", "i32", "i8", "bool", "f64"])
def test_conversions_of_rounded_values(target: str) -> None:
    x = [Load(f"x{k}", (Var("i"),), dt.f32) for k in range(2)]
    arrays = [(RNG.standard_normal(N) * 9).astype(np.float32) for _ in range(2)]
    program = elementwise(cast(cast(x[0] * x[1], dt.DTYPES[target]), dt.f32) + x[0], 2)
    (y,), (b,) = interpret.run(program, arrays), bounds(program, arrays)
    assert margin(y, b) <= 1, f"seed {SEED}"


def test_a_floor_opens_only_where_rounding_may_turn_it() -> None:
    x = [Load(f"x{k}", (Var("i"),), dt.f32) for k in range(2)]
    program = elementwise(op("floor", x[0] * x[1]), 2)
    near = np.full(N, 1 / 3, np.float32)
    (b,) = bounds(program, [near, np.full(N, 3, np.float32)])
    assert b.v[0] == 1 and bounded.tolerance(b)[0] == 1
    (b,) = bounds(program, [near, np.full(N, 3.5, np.float32)])
    assert bounded.tolerance(b)[0] == 0


@pytest.mark.parametrize(
    ("name", "at", "known"),
    [("lgamma", -3.0, False), ("lgamma", -40.0, False), ("lgamma", -3.5, True), ("lgamma", 3.0, True),
     ("tan", math.pi / 2, False), ("tan", -7 * math.pi / 2, False), ("tan", math.pi, True)],
)  # fmt: skip
def test_a_value_that_rounding_may_take_across_a_pole_is_not_known(name: str, at: float, known: bool) -> None:
    x = [Load(f"x{k}", (Var("i"),), dt.f32) for k in range(2)]
    third, most = np.full(N, 1 / 3, np.float32), np.full(N, 3 * at * (1 + 1e-8), np.float32)
    (b,) = bounds(elementwise(Op(name, (x[0] * x[1] + const(1e-9, dt.f32),)), 2), [third, most])
    assert np.isfinite(bounded.tolerance(b)).all() == known


@pytest.mark.parametrize(
    ("base", "exponent", "known"),
    [
        (-3.0, (1 / 3, 15.0), False), (-3.0, (1 / 3, 16.5), True), (3.0, (1 / 3, 15.0), True),
        (0.0, (1.0, -2.0), False), (0.0, (1.0, 2.0), True),
    ],
)  # fmt: skip
def test_a_power_is_not_known_where_rounding_may_make_it_nan_or_infinite(
    base: float, exponent: tuple[float, float], known: bool
) -> None:
    """A third times a whole number is rounded, so the base has an error, and in three cases the exponent."""
    x = [Load(f"x{k}", (Var("i"),), dt.f32) for k in range(5)]
    arrays = [np.full(N, v, np.float32) for v in (1 / 3, 3.0, base - 1.0, *exponent)]
    (b,) = bounds(elementwise(Op("pow", (x[0] * x[1] + x[2], x[3] * x[4])), 5), arrays)
    assert np.isfinite(bounded.tolerance(b)).all() == known


def test_a_step_that_is_undecided_adds_to_what_is_rounded() -> None:
    x = [Load(f"x{k}", (Var("i"),), dt.f32) for k in range(5)]
    step = op("where", op("lt", const(1.0, dt.f32), x[0] * x[1]), const(0.0, dt.f32), const(20 * 2.0**-24, dt.f32))
    program = elementwise(step + (x[2] * x[3] - x[4]), 5)
    a, b = (RNG.uniform(0.7, 1.0, N).astype(np.float32) for _ in range(2))
    arrays = [np.full(N, 1 / 3, np.float32), np.full(N, 3, np.float32), a, b, a * b]  # a third is rounded up
    (y,), (bound,) = interpret.run(program, arrays), bounds(program, arrays)
    assert (y > 15 * 2.0**-24).all() and (bound.v < 2.0**-23).all()
    assert margin(y, bound) <= 1, f"seed {SEED}"


def test_exact_arithmetic_has_no_error() -> None:
    text = """
def f(a: f32[4, 50], b: f32[50, 3]):
    with kernel("f"):
        y[i: 4, j: 3]: f32 = sum(a[i, k] * b[k, j] for k in range(50))
        s[i: 4]: f32 = sum(a[i, k] * 2.0 + 1.0 for k in range(50))
        c[i: 4, k: 50]: f32 = scan(sum, k, a[i, k])
        p[i: 4]: f32 = prod(a[i, k] for k in range(3))
        n[i: 4]: i64 = min(k if a[i, k] == 1.0 else 50 for k in range(50))
    result(y, f32[4, 3])
    result(s, f32[4])
    result(c, f32[4, 50])
    result(p, f32[4])
    result(n, i64[4])
"""
    a, b = (RNG.integers(-9, 9, s).astype(np.float32) for s in ((4, 50), (50, 3)))
    for y, bound in zip(*run(text, a, b), strict=True):
        assert bound.e1 is None and np.array_equal(y, bound.v), f"seed {SEED}"
    _, made = run(text, a + np.float32(0.1), b)
    assert made[0].e1 is not None and made[4].e1 is None


SUMS = """
def f(x: f32[8, 300], i: i64[300]):
    with kernel("f"):
        e[a: 8, k: 300]: f32 = exp(x[a, k])
        s[a: 8]: f32 = sum(e[a, k] for k in range(300))
        d[a: 8, k: 300]: f32 = e[a, k] / s[a]
        t[a: 8]: f32 = sum(d[a, k] * x[a, k] for k in range(300))
        c[a: 8, k: 300]: f32 = scan(sum, k, e[a, k])
        q[a: 8, k: 300]: f32 = scan(prod, k, 0.5 + d[a, k])
        m[a: 8, k: 300]: f32 = scan(max, k, e[a, k])
        p[a: 8]: f32 = prod(1.0 + d[a, k] for k in range(300))
        o[a: 8]: f32 = max(d[a, k] for k in range(300))
        h[a: 8, j: 5]: f32 = scatter(sum, 0.0, [([z, i[k]], d[z, k]) for z in range(8) for k in range(300)])
        u[a: 8, j: 5]: f32 = scatter(max, 0.0, [([z, i[k]], d[z, k]) for z in range(8) for k in range(300)])
        w[a: 8, j: 5]: f32 = scatter(prod, 1.0, [([z, i[k]], 1.0 + d[z, k]) for z in range(8) for k in range(300)])
        v[a: 8, b: 8]: f32 = sum(d[a, k] * e[b, k] for k in range(300))
    result(t, f32[8])
    result(c, f32[8, 300])
    result(q, f32[8, 300])
    result(m, f32[8, 300])
    result(p, f32[8])
    result(o, f32[8])
    result(h, f32[8, 5])
    result(u, f32[8, 5])
    result(w, f32[8, 5])
    result(v, f32[8, 8])
"""


def test_reductions_scans_and_scatters_of_rounded_values() -> None:
    x, i = RNG.standard_normal((8, 300)).astype(np.float32), RNG.integers(0, 5, 300)
    for k, (y, b) in enumerate(zip(*run(SUMS, x, i), strict=True)):
        assert margin(y, b) <= 1, f"output {k}, seed {SEED}"
        assert (bounded.tolerance(b) <= 1e-3 * np.abs(b.v) + 1e-5).all(), f"output {k}, seed {SEED}"


def test_literals_that_round_to_few_bits_are_rounded() -> None:
    for value, exact in ((3.25, True), (-0.0625, True), (65535.0, True), (3.25115966796875, False), (0.1, False)):
        assert (bounded.constant(value, dt.f32).e1 is None) == exact, value


def test_products_scattered_are_as_far_off_as_products_of_the_same() -> None:
    text = """
def f(x: f64[3, 9]):
    with kernel("f"):
        e[a: 3, k: 9]: f64 = exp(x[a, k])
        p[a: 3]: f64 = prod(e[a, k] for k in range(9))
        y[a: 3]: f64 = scatter(prod, 1.0, [([z], e[z, k]) for z in range(3) for k in range(9)])
        w[()]: f64 = scatter(prod, 1.0, [([], e[0, k]) for k in range(9)])
        u[a: 3, k: 9]: f64 = scatter(prod, e[a, k], [([0, 0], e[0, k + 1]) for k in range(8)])
    result(e, f64[3, 9])
    result(p, f64[3])
    result(y, f64[3])
    result(w, f64[()])
    result(u, f64[3, 9])
"""
    x = RNG.standard_normal((3, 9))
    for given, written in ((x, text), (x.astype(np.float32), text.replace("f64", "f32"))):
        made = bounds(tensor_text.parse(written), [given])
        e, p, y, w, u = (bounded.tolerance(b) / np.abs(b.v) for b in made)
        assert np.allclose(y, p, rtol=0.2) and np.allclose([w, u[0, 0]], p[0], rtol=0.2), f"seed {SEED}"
        assert np.allclose(u[1:], e[1:]), f"what nothing comes to, seed {SEED}"


def test_of_two_that_are_nearly_the_same_either_may_be_the_greatest() -> None:
    text = """
def f(x: f32[2]):
    with kernel("f"):
        e[i: 2]: f32 = exp(x[i])
        place[i: 2]: i64 = sum(i64(e[i] < e[r]) for r in range(2))
        y[i: 1]: f32 = scatter(set, 0.0, [([place[r]], e[r], place[r] < 1) for r in range(2)])
        z[()]: f32 = scatter(set, 0.0, [([], e[r], place[r] < 1) for r in range(2)])
    result(y, f32[1])
    result(z, f32[()])
"""
    x = np.array([1.0, np.nextafter(np.float32(1.0), np.float32(2.0))], np.float32)
    for given in (x, x[::-1]):
        for b in bounds(tensor_text.parse(text), [given]):
            allowed = bounded.tolerance(b).reshape(-1)[0]
            assert np.abs(np.exp(x.astype(np.float64)) - b.v).max() <= allowed < 2e-6


def test_an_error_that_a_row_shares_grows_with_the_row() -> None:
    text = """
def f(r: f32[1], x: f32[4096]):
    with kernel("f"):
        b[i: 1]: bf16 = bf16(r[i])
        y[k: 4096]: f32 = f32(b[0]) * x[k]
        s[()]: f32 = sum(y[k] for k in range(4096))
    result(s, f32[()])
"""
    r, x = np.array([1.0039], np.float32), np.ones(4096, np.float32)
    (y,), (b,) = run(text, r, x)
    assert abs(float(y) - float(b.v)) > 5 and margin(y, b) <= 1


def test_products_by_tf32_lose_what_is_claimed_and_whole_numbers_nothing() -> None:
    """A product of matrices in three of tf32, whose worst term is beyond what f32 itself may lose."""
    program = tensor_text.parse(
        """
def f(x: f32[64, 2], y: f32[2, 64]):
    with kernel("k", ''):
        z[i: 64, j: 64]: f32 = sum(x[i, r] * y[r, j] for r in range(2))
    result(z, f32[64, 64])
"""
    )
    x, y = (RNG.uniform(1, 2, shape).astype(np.float32) for shape in ((64, 2), (2, 64)))
    (big_x, small_x), (big_y, small_y) = map(_halves, (x, y))
    made = (big_x @ small_y + small_x @ big_y + big_x @ big_y).astype(np.float32)
    (strict,), (allowed,) = bounds(program, [x, y]), bounds(program, [x, y], Accuracy(matmul=THREEFOLD))
    assert strict.e1 is not None and allowed.e1 is not None
    off = np.abs(made - strict.v)
    assert (off > strict.e1).any() and (off <= allowed.e1).all(), SEED
    (exact,) = bounds(program, [np.rint(x * 100), np.rint(y * 100)], Accuracy(matmul=THREEFOLD))
    assert exact.e1 is None or not exact.e1.any()


def _halves(x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two tf32 numbers in f64, that come close to `x` together."""
    big = scalar.apply("tf32", (x,))
    return big.astype(np.float64), scalar.apply("tf32", (x - big,)).astype(np.float64)


def test_special_values() -> None:
    text = """
def f(x: f32[4, 3]):
    with kernel("f"):
        s[i: 4]: f32 = sum(x[i, k] for k in range(3))
        m[i: 4]: f32 = max(x[i, k] for k in range(3))
        h[i: 4]: f32 = s[i] * 1e30
        z[i: 4, k: 3]: f32 = h[i] * 0.5
    result(s, f32[4])
    result(m, f32[4])
    result(h, f32[4])
    result(z, f32[4, 3])
"""
    x = np.array([[1, np.nan, 0.1], [np.inf, 1, 0.1], [np.inf, -np.inf, 0.1], [3e9, 1e9, 0.1]], np.float32)
    (s, m, h, z), made = run(text, x)
    assert np.isnan(made[0].v[[0, 2]]).all() and made[0].v[1] == np.inf
    assert (bounded.tolerance(made[0])[:3] == 0).all() and margin(s, made[0]) <= 1 and margin(m, made[1]) == 0
    assert np.isinf(bounded.tolerance(made[2])[3]), "overflowing on the way, anything may come out"
    assert np.isinf(bounded.tolerance(made[3])[3]).all() and margin(h, made[2]) <= 1 and margin(z, made[3]) <= 1


def test_products_that_overflow_or_vanish_on_the_way() -> None:
    """In another order, or in f32 at all, they need not come back to what they are."""
    text = """
def f(x: f32[5, 4]):
    with kernel("f"):
        p[i: 5]: f32 = prod(x[i, k] for k in range(4))
        q[i: 5, k: 4]: f32 = scan(prod, k, x[i, k])
    result(p, f32[5])
    result(q, f32[5, 4])
"""
    far, near = 1e30, 1e-30
    x = np.array([[far, far, 0, 1], [near, near, far, 1], [near, near, 1, np.inf], [far, np.inf, 0, 1], [2, 3, 0, 5]])
    given = x.astype(np.float32)
    (p, q), made = run(text, given)
    free = np.isinf(bounded.tolerance(made[0]))
    assert free.tolist() == [True, False, True, False, False]
    assert (bounded.tolerance(made[0])[3:] < 1e-40).all()
    assert np.isinf(bounded.tolerance(made[1])[0, 1:]).all() and bounded.tolerance(made[1])[0, 0] == 0
    inside = ~np.isinf(bounded.tolerance(made[1])) & np.isfinite(made[1].v)
    assert (np.abs(q - made[1].v)[inside] <= bounded.tolerance(made[1])[inside]).all()
    assert abs(p[1] - made[0].v[1]) <= bounded.tolerance(made[0])[1], "0 in f32, and 1e-30 in exact arithmetic"


def test_an_order_of_summation_that_makes_large_partial_sums() -> None:
    text = """
def f(x: f32[4096]):
    with kernel("f"):
        s[()]: f32 = sum(x[k] for k in range(4096))
    result(s, f32[()])
"""
    x = (1000 + RNG.random(4096)).astype(np.float32)
    x[1::2] *= -1
    _, (b,) = run(text, x)
    lanes = np.add.accumulate(x.reshape(-1, 16), axis=0, dtype=np.float32)[-1]
    assert margin(np.add.accumulate(lanes, dtype=np.float32)[-1], b) <= 1, f"seed {SEED}"


@pytest.mark.parametrize("values", [[0.1], [0.1, 0.7], [-0.3, 0.1, 0.7]])
def test_equal_terms_of_a_sum_lose_the_same(values: list[float]) -> None:
    text = """
def f(x: f32[65536]):
    with kernel("f"):
        s[()]: f32 = sum(x[k] for k in range(65536))
        c[i: 65536]: f32 = scan(sum, i, x[i])
        p[j: 2]: f32 = scatter(sum, 0.0, [([k % 2], x[k]) for k in range(65536)])
    result(s, f32[()])
    result(c, f32[65536])
    result(p, f32[2])
"""
    x = RNG.choice(np.asarray(values, np.float32), 65536)
    _, (whole, running, halves) = run(text, x)
    made = np.add.accumulate(x, dtype=np.float32)
    assert margin(made[-1], whole) <= 1 and margin(made, running) <= 1, f"seed {SEED}"
    assert margin(np.add.accumulate(x.reshape(-1, 2), 0, np.float32)[-1], halves) <= 1, f"seed {SEED}"
    _, (others, *_) = run(text, x + RNG.random(65536, np.float32) / 8)
    assert bounded.tolerance(others) < bounded.tolerance(whole) / 8, f"seed {SEED}"


def test_algebra_in_f64_differs_by_literals_only() -> None:
    text = """
def f(x: f32[100]):
    with kernel("f"):
        y[i: 100]: f32 = f32(bf16(x[i] * 0.1)) + 0.5
    result(y, f32[100])
"""
    program, x = tensor_text.parse(text), RNG.standard_normal(100).astype(np.float32)
    (b,) = bounds(program, [x], Accuracy(algebra=True))
    assert margin(x.astype(np.float64) * 0.1 + 0.5, b) <= 1
    assert margin(x.astype(np.float64) * (0.1 + 1e-7) + 0.5, b) > 1


def test_an_f64_reference_is_not_taken_for_exact() -> None:
    text = """
def f(x: f64[100]):
    with kernel("f"):
        y[i: 100]: f64 = sqrt(x[i]) + f64(1.0)
    result(y, f64[100])
"""
    (y,), (b,) = run(text, 1 + RNG.random(100))
    assert (bounded.tolerance(b) > 0).all() and margin(y, b) <= 1
    (y,), (b,) = run(text, np.full(100, 4.0))
    assert (bounded.tolerance(b) == 0).all()


def test_a_literal_is_exact_where_it_is_short() -> None:
    assert bounded.constant(0.75, dt.f32).e1 is None and bounded.constant(1000.0, dt.f32).e1 is None
    assert bounded.constant(const(0.1, dt.f32).value, dt.f32).e1 is not None
    assert bounded.constant(3, dt.i64).e1 is None


def test_bf16_programs() -> None:
    text = """
def f(x: bf16[50], y: bf16[50]):
    with kernel("f"):
        z[i: 50]: bf16 = bf16(exp(f32(x[i])) * f32(y[i]))
    result(z, bf16[50])
"""
    x, y = (scalar.round_bf16(RNG.standard_normal(50).astype(np.float32)) for _ in range(2))
    (z,), (b,) = run(text, x, y)
    assert 0.1 < margin(z, b) <= 1, f"seed {SEED}"


def test_an_exponential_by_exp2_of_a_product_is_within_its_bound() -> None:
    """Where exp itself would not be: arguments far from zero, and results that are no normal numbers."""
    program = elementwise(op("exp", Load("x0", (Var("i"),), dt.f32)), 1)
    x = (RNG.uniform(-100, 0, N)).astype(np.float32)
    made = scalar.apply("exp2_ftz", (x * np.float32(np.log2(np.e)),))
    (strict,), (allowed,) = bounds(program, [x]), bounds(program, [x], Accuracy.of("cuda", by_exp2=True))
    assert margin(made, strict) > 1 and margin(made, allowed) <= 1, SEED


def test_what_is_rounded_may_be_larger_than_the_exact_value() -> None:
    v, e1 = np.array([1.640625, 0.0]), np.array([0.466, 0.5])
    b = bounded.rounded(Bounded(v, e1, e1**2, np.zeros(2)), dt.bf16, 1.0, correctly=True)
    for computed in (v + e1, v - e1):
        y = scalar.cast(computed, dt.f64, dt.bf16).astype(np.float64)
        assert (np.abs(y - v) <= bounded.worst_error(b)).all()
