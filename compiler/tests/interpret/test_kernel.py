"""Kernel IR text in, numbers out; and every access that the IR forbids is an error that says where."""

import numpy as np
import pytest

from compiler.interpret import kernel as interpreter
from compiler.interpret import scalar
from compiler.interpret.grid import InterpretError
from compiler.ir import dtype as dt
from compiler.ir import kernel, kernel_text
from compiler.ir.dtype import DTYPES
from compiler.ir.expr import OPS
from compiler.tests.kernel_samples import SAMPLES
from compiler.tests.run_kernel import draw, same, spelled

COUNT = 48


def run(text: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    program = kernel_text.parse(text)
    kernel.verify(program)
    return interpreter.run(program, arrays)


def lines(body: str, signature: str = "x: f32[8], *, y: f32[8]", params: str = "x, y", writes: str = "y") -> str:
    """A program of one function with this body."""
    inner = "\n".join("        " + line for line in body.splitlines())
    return f"def p({signature}):\n    with function('f', [{params}], writes=[{writes}]):\n{inner}\n"


# ---- meaning


def test_softmax(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((7, 21)).astype(np.float32)
    (y,) = run(SAMPLES["softmax"], x)
    e = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6), f"seed {seed}"


def test_pointwise(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(100).astype(np.float32) for _ in "xy")
    assert np.array_equal(run(SAMPLES["pointwise"], x, y)[0], np.maximum(x * y + np.float32(1.5), 0)), f"seed {seed}"


def test_functions_run_in_order_and_share_temporaries() -> None:
    x = np.arange(40.0)
    assert np.array_equal(run(SAMPLES["two"], x)[0], 2 * x - 2 * x.sum())


def test_gathers_and_guards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, at = rng.standard_normal(64).astype(np.float32), rng.integers(0, 64, 16, dtype=np.int32)
    b, p = scalar.round_bf16(rng.standard_normal(64).astype(np.float32)), rng.random(64) < 0.5
    y, z, w, q = run(SAMPLES["gather"], x, at, b, p)
    guarded = np.concatenate([np.full(3, -np.inf, np.float32), x[:13]])
    assert np.array_equal(y, np.minimum(x[at], guarded[::-1])), f"seed {seed}"
    assert np.array_equal(z, x[np.arange(16) * 3 + 2] + b[at]), f"seed {seed}"
    start = np.repeat([0, 8], 8)
    assert np.array_equal(w, b[start + 2 * (np.arange(16) - start)]), f"seed {seed}"
    assert np.array_equal(q, p[at] | p[np.arange(16) + 1]), f"seed {seed}"


def test_masks_are_plain_bools_here(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, n = rng.standard_normal(32).astype(np.float32), rng.integers(-3, 4, 32).astype(np.int8)
    p, d = rng.random(32) < 0.5, rng.standard_normal(32)
    y, q, w, c = run(SAMPLES["masks"], x, n, p, d)
    narrow, wide = n < 0, x < n
    both = (wide & narrow) | ~p
    assert np.array_equal(y, np.where(both ^ narrow, x, np.float32(-1))), f"seed {seed}"
    assert np.array_equal(q, (both | narrow) == (~wide & p)), f"seed {seed}"
    assert np.array_equal(w, np.where(p, d, narrow)), f"seed {seed}"
    taken = wide.reshape(4, 8).any(1) & ~p.reshape(4, 8).all(1)
    count = narrow.astype(int) + (x != 0)
    count[::8] += np.where(taken, 100, -100)
    assert np.array_equal(c, count), f"seed {seed}"


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", [name for name in OPS if name != "require"])
def test_every_operation_at_every_type(name: str, lanes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = OPS[name]
    for d in DTYPES.values():
        if d.kind not in row.kinds or d in dt.STORAGE_ONLY:
            continue
        made = "bool" if row.result == "bool" else d
        args = [f"{n}[i, {d}x{lanes}]" if lanes > 1 else f"{n}[i]" for n in "abc"[: row.arity]]
        args = [f"p[i, boolx{lanes}]" if lanes > 1 else "p[i]", *args[:2]] if name == "where" else args
        signature = ", ".join(f"{n}: {d}[{COUNT}]" for n in "abc") + f", p: bool[{COUNT}], *, y: {made}[{COUNT}]"
        text = lines(
            f"for i in range(0, {COUNT}, {lanes}):\n    y[i] = {spelled(name, args)}", signature, "a, b, c, p, y"
        )
        given = [draw(rng, d, COUNT) for _ in "abc"]
        p = draw(rng, dt.boolean, COUNT)
        want = scalar.apply(name, (p, *given[:2]) if name == "where" else tuple(given[: row.arity]))
        allowed = 2.0**-22 if d is dt.f32 else 2.0**-50 if d is dt.f64 else 0.0  # as one rounding more or less may give
        assert same(run(text, *given, p)[0], want, allowed), f"{name} of {d}, seed {seed}"


def test_stores_combine_and_integers_wrap() -> None:
    text = lines(
        "for i in range(0, 8, 1):\n    y[i] = i32(2000000000)\n"
        "for i in range(0, 8, 4):\n    y[i] += x[i, i32x4]\n    y[i] = update(prod, x[i, i32x4])\n"
        "y[7] = update(max, i32(5))",
        "x: i32[8], *, y: i32[8]",
    )
    x = np.arange(8, dtype=np.int32) * 100_000_000
    want = (np.int32(2_000_000_000) + x) * x
    want[7] = max(want[7], 5)
    assert np.array_equal(run(text, x)[0], want)


def test_sizes_and_strides_come_from_the_inputs() -> None:
    text = """
def t(n: size, x: f32[n: 1, 3: n], *, y: f32[n, 3]):
    with function("f", [x, y], writes=[y]):
        for i in range(0, n, 1):
            for j in range(0, 3, 1):
                y[i * 3 + j] = x[i + j * n]
"""
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(run(text, x)[0], x)


def test_nothing_in_nothing_out() -> None:
    text = lines("for i in range(0, 0, 1):\n    y[i] = x[i]", "x: f32[0, 3], *, y: f32[0, 3]")
    assert run(text, np.empty((0, 3), np.float32))[0].shape == (0, 3)


# ---- errors


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[0] = x[8]", "function f: loads element 8 of x, which has 8"),
        ("y[0] = x[-1]", "function f: loads element -1 of x, which has 8"),
        ("y[1] = x[1, f32x8]", "function f: loads elements 1 to 8 of x, which has 8"),
        ("y[-8] = x[0, f32x8]", "function f: stores elements -8 to -1 of y, which has 8"),
        ("y[8] = 1.0", "function f: stores element 8 of y, which has 8"),
        ("y[0] = gather(x, ramp(1, 1, 8))", "function f: loads element 8 of x, which has 8"),
        ("y[0] = gather(x, ramp(-1, 1, 8))", "function f: loads element -1 of x, which has 8"),
        ("y[0] = y[3]", "function f: loads element 3 of y, which was never written"),
        ("y[0] += 1.0", "function f: loads element 0 of y, which was never written"),
        ("t = array(local, f32, 8)\nt[0] = 1.0\ny[0] = t[0, f32x8]", "of t, not all of which were ever written"),
        (
            "t = array(local, f32, 8)\nt[0] = 1.0\ny[0] = gather(t, ramp(0, 1, 8))",
            "element 1 of t, which was never written",
        ),
        ("y[0] = x[0, f32x4]", "element .4. of output y was never written"),
        ("y[0] = where(1 < 0, x[9], 1.0)", "loads element 9 of x"),
        ("call('mlc_nothing', [], writes=[])", "no row of CALLS says what mlc_nothing does"),
    ],
)
def test_what_the_ir_forbids_is_found(body: str, message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        run(lines(body), np.zeros(8, np.float32))


def test_a_select_guards_its_loads() -> None:
    (y,) = run(lines("for i in range(0, 8, 1):\n    y[i] = x[i - 1] if i > 0 else 9.0"), np.arange(8, dtype=np.float32))
    assert y.tolist() == [9, 0, 1, 2, 3, 4, 5, 6]


def test_parallel_iterations_that_are_not_independent_show() -> None:
    body = "y[0] = x[0]\nfor i in range(1, 8, 1, parallel):\n    y[i] = y[i - 1] + x[i]"
    with pytest.raises(InterpretError, match="never written"):
        run(lines(body), np.ones(8, np.float32))


def test_a_loaded_vector_is_a_value_not_a_view() -> None:
    body = "for i in range(0, 8, 8):\n    v: f32x8 = x[i, f32x8]\n    y[i] = v\n    w: f32x8 = y[i, f32x8]\n"
    body += "    y[i] = w + w\n    y[i] = y[i, f32x8] + w"
    assert run(lines(body), np.ones(8, np.float32))[0].tolist() == [3.0] * 8


def test_an_input_of_another_shape_is_refused() -> None:
    with pytest.raises(InterpretError, match="input x has shape"):
        run(lines("y[0] = x[0, f32x8]"), np.ones(7, np.float32))


# ---- device functions


def test_a_device_function_reads_and_writes_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(template: tuple[int | str, ...], args: tuple[object, ...]) -> None:
        source, target = args
        assert isinstance(source, interpreter.Pointer) and isinstance(target, interpreter.Pointer)
        at = np.arange(int(template[0]))
        target.write(at, source.read(at) * 2)

    monkeypatch.setitem(interpreter.CALLS, "mlc_twice", copy)
    good = "call('mlc_twice', [4], x @ (4), y @ (0), writes=[y])\ncall('mlc_twice', [4], x @ (0), y @ (4), writes=[y])"
    assert run(lines(good), np.arange(8, dtype=np.float32))[0].tolist() == [8, 10, 12, 14, 0, 2, 4, 6]
    with pytest.raises(InterpretError, match="loads element 8 of x, which has 8"):
        run(lines("call('mlc_twice', [4], x @ (5), y @ (0), writes=[y])"), np.zeros(8, np.float32))
    with pytest.raises(InterpretError, match="loads element 0 of y, which was never written"):
        run(lines("call('mlc_twice', [4], y @ (0), y @ (4), writes=[y])"), np.zeros(8, np.float32))


def test_what_was_not_written_may_be_copied_but_not_used() -> None:
    """A block of 2 x 4 elements, transposed, of which the last column has no values."""
    body = """s = array(local, f32, 8)
t = array(local, f32, 8)
for i in range(0, 3, 1):
    s[i] = x[i]
    s[i + 4] = x[i + 4]
call('mlc_copy_block', ['MLC_PLAIN'], 2, 4, 2, 4, s @ (0), 4, 1, t @ (0), 1, 2, writes=[t])
for i in range(0, {count}, 1):
    y[i] = t[i]
for i in range({count}, 8, 1):
    y[i] = 0.0"""
    assert run(lines(body.format(count=6)), np.arange(8, dtype=np.float32))[0].tolist() == [0, 4, 1, 5, 2, 6, 0, 0]
    with pytest.raises(InterpretError, match="t, which was never written"):
        run(lines(body.format(count=7)), np.zeros(8, np.float32))
