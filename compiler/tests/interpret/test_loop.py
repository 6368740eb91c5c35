"""Loop IR text in, numbers out: every operation against `scalar.py`, and what a kernel may not do."""

import numpy as np
import pytest
import torch

from compiler.interpret import loop as interpret
from compiler.interpret import scalar
from compiler.interpret.grid import InterpretError
from compiler.ir import dtype as dt
from compiler.ir import loop, loop_text
from compiler.ir.expr import OPS, Load, Op, Var, cast, dim
from compiler.ir.statement import Kernel, Program, Store
from compiler.ir.tensor import Tensor

SEED = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
RNG = np.random.default_rng(SEED)


def run(text: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    program = loop_text.parse(text)
    loop.verify(program)
    return interpret.run(program, arrays)


SOFTMAX = """
def softmax(x: f32[6, 10], *, y: f32[6, 10]):
    s: f32[6]
    with kernel("sums", [x, s], writes=[s]):
        for i in parallel(6):
            m: f32 = -inf
            for j in reduce(10):
                m = update(max, x[i, j])
            t: f32 = 0.0
            for k in reduce(10):
                t += exp(x[i, k] - m)
            s[i] = m + log(t)
    with kernel("rows", [x, s, y], writes=[y]):
        for i in parallel(6):
            for j in parallel(10):
                y[i, j] = exp(x[i, j] - s[i])
"""


def test_softmax() -> None:
    x = RNG.standard_normal((6, 10)).astype(np.float32)
    (y,) = run(SOFTMAX, x)
    np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-5, err_msg=f"seed {SEED}")


def test_scan_scatter_and_guard_in_sixteen_bits() -> None:
    text = """
def f(x: bf16[8], i: i64[8], *, s: bf16[8], h: f32[3], p: f16[4]):
    with kernel("scan", [x, s], writes=[s]):
        a: f32 = 0.0
        for j in scan(8):
            a += f32(x[j])
            s[j] = bf16(a)
    with kernel("histogram", [x, i, h], writes=[h]):
        for j in parallel(3):
            h[j] = 0.0
        for k in scan(8):
            if i[k] >= 0:
                h[i[k]] += f32(x[k])
    with kernel("pad", [x, p], writes=[p]):
        for j in parallel(4):
            p[j] = f16(f32(x[j - 1]) if j >= 1 else 0.5)
"""
    x = scalar.round_bf16(RNG.standard_normal(8).astype(np.float32))
    i = np.array([0, 1, 2, -1, 1, 1, -5, 0])
    s, h, p = run(text, x, i)
    np.testing.assert_allclose(s, np.cumsum(x), rtol=0.02, atol=0.02, err_msg=f"seed {SEED}")
    assert s.dtype == np.float32 and np.array_equal(scalar.round_bf16(s), s)
    np.testing.assert_allclose(h, [x[i == k].sum() for k in range(3)], rtol=1e-5, atol=1e-6, err_msg=f"seed {SEED}")
    assert p.dtype == np.float16 and np.array_equal(p, np.concatenate([[0.5], x[:3]]).astype(np.float16))


def elementwise(expressions: dict[str, Op], inputs: list[str], n: int) -> Program:
    """y0[i] = e0, y1[i] = e1, .. over n elements."""
    shape, strides, i = (dim(n),), (dim(1),), (Var("i", dt.i64),)
    given = [Tensor(f"x{k}", dt.DTYPES[name], shape, strides) for k, name in enumerate(inputs)]
    made = [Tensor(name, e.dtype, shape, strides) for name, e in expressions.items()]
    stores = tuple(Store(t.name, i, e) for t, e in zip(made, expressions.values(), strict=True))
    kernel = Kernel("all", (*given, *made), tuple(t.name for t in made), (loop.For("i", dim(n), "parallel", stores),))
    return Program("elementwise", tuple(given), tuple(made), (), (kernel,))


def edge(name: str) -> np.ndarray:
    dtype = dt.DTYPES[name]
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 7.25, np.inf, -np.inf, np.nan, 1e-40, 60000.0, -0.3]
        return scalar.cast(np.array(special, np.float64), dt.f64, dtype)
    low, high = dt.integer_range(dtype)
    return np.array([low, low // 2, 0, 0, 1, high, high // 3], scalar.storage(dtype))


@pytest.mark.parametrize("name", ["f32", "f64", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_every_operation_means_what_scalar_says(name: str) -> None:
    dtype = dt.DTYPES[name]
    a, b = (x.ravel() for x in np.meshgrid(edge(name), edge(name)))
    c = RNG.permutation(a)
    flag = RNG.integers(0, 2, a.size).astype(bool)
    i = (Var("i", dt.i64),)
    loads = [Load(f"x{k}", i, dtype) for k in range(3)]
    arrays = [a, b, c]
    rows = {n: r for n, r in OPS.items() if dtype.kind in r.kinds.split() and n not in ("where", "require")}
    wanted = {f"y_{n}": Op(n, tuple(loads[: r.arity])) for n, r in rows.items()}
    wanted["y_where"] = Op("where", (Load("x3", i, dt.boolean), loads[0], loads[1]))
    program = elementwise(wanted, [name] * 3 + ["bool"], a.size)
    loop.verify(program)
    got = interpret.run(program, [*arrays, flag])
    for (n, e), y in zip(wanted.items(), got, strict=True):
        given = (flag, a, b) if n == "y_where" else tuple(arrays[: len(e.args)])
        want = scalar.apply(e.name, given)
        assert y.dtype == want.dtype
        np.testing.assert_allclose(
            y, want, rtol=1e-6, atol=0 if dtype.is_integer else 1e-42, err_msg=f"{n}, seed {SEED}"
        )


@pytest.mark.parametrize("name", dt.DTYPES)
def test_every_conversion_means_what_scalar_says(name: str) -> None:
    source = dt.DTYPES[name]
    x = edge(name)
    if source.is_float:
        bits = RNG.standard_normal(500) * 10.0 ** RNG.integers(-9, 12, 500)
        with np.errstate(over="ignore"):
            x = np.concatenate([x, scalar.cast(bits, dt.f64, source)])
    targets = [t for t in dt.DTYPES.values() if t is not source]
    wanted = {f"y_{t}": cast(Load("x0", (Var("i", dt.i64),), source), t) for t in targets}
    program = elementwise(wanted, [name], x.size)  # type: ignore[arg-type]
    loop.verify(program)
    for t, y in zip(targets, interpret.run(program, [x]), strict=True):
        np.testing.assert_array_equal(y, scalar.cast(x, source, t), err_msg=f"to {t}, seed {SEED}")


def test_no_excess_precision_and_no_contraction() -> None:
    text = """
def f(a: f32[1], b: f32[1], *, y: f32[1], z: f32[1]):
    with kernel("f", [a, b, y, z], writes=[y, z]):
        y[0] = a[0] * a[0] - b[0]
        z[0] = (a[0] + 16777216.0) - 16777216.0
"""
    a = np.array([1 + 2.0**-12], np.float32)
    y, z = run(text, a, a * a)
    assert y[0] == 0 and z[0] in (0.0, 2.0)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("y[i] = x[i - 1]", "loads element -1 of x along dimension 0, which has 4"),
        ("y[i + 1] = x[i]", "stores to element 4 of y along dimension 0, which has 4"),
        ("y[i] = where(i < 3, x[i + 1], 0.0)", "loads element 4 of x"),
    ],
)
def test_out_of_bounds_is_an_error(statement: str, message: str) -> None:
    head = 'def f(x: f32[4], *, y: f32[4]):\n    with kernel("shift", [x, y], writes=[y]):\n'
    with pytest.raises(InterpretError, match=f"f: kernel shift: index out of bounds: {message}"):
        run(f"{head}        for i in parallel(4):\n            {statement}\n", np.zeros(4, np.float32))


def test_what_is_not_written_stays_poisoned() -> None:
    text = """
def f(x: f32[2], *, y: f32[2], n: i32[2]):
    with kernel("f", [x, y, n], writes=[y, n]):
        y[0] = x[0]
        n[0] = i32(1)
"""
    y, n = run(text, np.ones(2, np.float32))
    assert y[0] == 1 and np.isnan(y[1]) and n.tolist() == [1, 0x7F7F7F7F]
    with pytest.raises(InterpretError, match="output b was never written"):
        run(
            'def f(x: f32[2], *, b: bool[2]):\n    with kernel("f", [x, b], writes=[b]):\n        b[0] = x[0] < 1.0\n',
            y,
        )


def test_symbolic_sizes_and_names_that_mean_something_in_cpp() -> None:
    text = """
def f(n: size, float: f32[n, 3], *, double: f32[n]):
    with kernel("while", [float, double], writes=[double]):
        for int in parallel(n):
            exp2: f32 = 0.0
            for return_ in reduce(3):
                exp2 += float[int, return_]
            double[int] = exp2
"""
    x = RNG.standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(run(text, x)[0], x.sum(1), rtol=1e-5, atol=1e-6, err_msg=f"seed {SEED}")
