"""Tensor IR text in, numbers out, against torch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from compiler.interpret import tensor as interpret
from compiler.interpret.grid import InterpretError
from compiler.ir import tensor, tensor_text

SEED = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
RNG = np.random.default_rng(SEED)


def run(text: str, *arrays: np.ndarray, exact: bool = False) -> tuple[np.ndarray, ...]:
    program = tensor_text.parse(text)
    tensor.verify(program)
    return interpret.run(program, arrays, exact=exact)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def integers(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape)


SOFTMAX = """
def softmax(x: f32[6, 10]):
    with kernel("softmax"):
        m[i: 6]: f32 = max(x[i, j] for j in range(10))
        e[i: 6, j: 10]: f32 = exp(x[i, j] - m[i])
        s[i: 6]: f32 = sum(e[i, j] for j in range(10))
        y[i: 6, j: 10]: f32 = e[i, j] / s[i]
    result(y, f32[6, 10])
"""
LAYER_NORM = """
def layer_norm(x: f32[5, 16], w: f32[16], b: f32[16]):
    with kernel("layer_norm"):
        s[i: 5]: f32 = sum(x[i, j] for j in range(16))
        d[i: 5, j: 16]: f32 = x[i, j] - s[i] / 16.0
        q[i: 5]: f32 = sum(d[i, j] * d[i, j] for j in range(16))
        r[i: 5]: f32 = rsqrt(q[i] / 16.0 + 1e-05)
        y[i: 5, j: 16]: f32 = d[i, j] * r[i] * w[j] + b[j]
    result(y, f32[5, 16])
"""
MATMUL = """
def matmul(a: f32[3, 7, 9], b: f32[3, 9, 4]):
    with kernel("matmul"):
        y[q: 3, i: 7, j: 4]: f32 = sum(a[q, i, k] * b[q, k, j] for k in range(9))
    result(y, f32[3, 7, 4])
"""
CONVOLUTION = """
def convolution(x: f32[2, 5, 6, 7], w: f32[4, 5, 3, 2]):
    with kernel("convolution"):
        y[n: 2, o: 4, h: 3, v: 8]: f32 = sum((x[n, c, h * 2 + r - 1, v + s - 1] if (h * 2 + r >= 1) & (h * 2 + r < 7) & (v + s >= 1) & (v + s < 8) else 0.0) * w[o, c, r, s] for c in range(5) for r in range(3) for s in range(2))
    result(y, f32[2, 4, 3, 8])
"""  # noqa: E501
EINSUM = """
def einsum(a: f32[3, 4, 5], b: f32[5, 6], c: f32[6, 3]):
    with kernel("einsum"):
        y[j: 6, i: 3, z: 4]: f32 = sum(a[i, z, k] * b[k, j] * 2.0 * c[j, i] for k in range(5))
        t[j: 6]: f32 = sum(y[j, i, z] for i in range(3) for z in range(4))
    result(y, f32[6, 3, 4])
    result(t, f32[6])
"""
SCAN = """
def scan(x: f32[3, 8, 2]):
    with kernel("scan"):
        s[i: 3, j: 8, k: 2]: f32 = scan(sum, j, x[i, j, k])
        m[i: 3, j: 8, k: 2]: f32 = scan(max, j, x[i, j, k])
    result(s, f32[3, 8, 2])
    result(m, f32[3, 8, 2])
"""
SCATTER = """
def scatter(x: f32[4, 3], i: i64[6], v: f32[6, 3]):
    with kernel("scatter"):
        y[a: 4, b: 3]: f32 = scatter(sum, x[a, b], [([i[k], j], v[k, j]) for k in range(6) for j in range(3)])
    result(y, f32[4, 3])
"""
GUARDED_SCATTER = """
def scatter(x: f32[4], i: i64[6], v: f32[6]):
    with kernel("scatter"):
        y[a: 4]: f32 = scatter(set, x[a] * 2.0, [([i[k]], v[k], (i[k] >= 0) & (i[k] < 4)) for k in range(6)])
    result(y, f32[4])
"""
GATHER = """
def gather(x: f32[5, 4], i: i64[3, 4]):
    with kernel("gather"):
        y[a: 3, b: 4]: f32 = x[i[a, b], b]
        d[a: 4]: f32 = x[a, a]
        f[a: 5, b: 4]: f32 = x[4 - a, b]
        s[b: 2, a: 5]: f32 = x[a, b * 2 + 1]
    result(y, f32[3, 4])
    result(d, f32[4])
    result(f, f32[5, 4])
    result(s, f32[2, 5])
"""
PAD = """
def pad(x: f32[3], y: f32[2]):
    with kernel("pad"):
        z[i: 5]: f32 = x[i - 1] if (i >= 1) & (i < 4) else -1.0
        c[i: 5]: f32 = x[i] if i < 3 else y[i - 3]
    result(z, f32[5])
    result(c, f32[5])
"""
ARGMAX = """
def argmax(x: f32[4, 9]):
    with kernel("argmax"):
        m[i: 4]: f32 = max(x[i, j] for j in range(9))
        y[i: 4]: i64 = min(j if x[i, j] == m[i] else 9 for j in range(9))
    result(y, i64[4])
"""
Case = tuple[str, Callable[[], list[np.ndarray]], Callable[..., tuple[torch.Tensor, ...]]]
CASES: dict[str, Case] = {
    "softmax": (SOFTMAX, lambda: [normal(6, 10)], lambda x: (torch.softmax(x, -1),)),
    "layer_norm": (
        LAYER_NORM, lambda: [normal(5, 16), normal(16), normal(16)],
        lambda x, w, b: (torch.layer_norm(x, [16], w, b, 1e-5),),
    ),
    "matmul": (MATMUL, lambda: [normal(3, 7, 9), normal(3, 9, 4)], lambda a, b: (a @ b,)),
    "convolution": (
        CONVOLUTION, lambda: [normal(2, 5, 6, 7), normal(4, 5, 3, 2)],
        lambda x, w: (torch.conv2d(torch.nn.functional.pad(x, (1, 1, 1, 1)), w, stride=(2, 1)),),
    ),
    "einsum": (
        EINSUM, lambda: [normal(3, 4, 5), normal(5, 6), normal(6, 3)],
        lambda a, b, c: (y := 2 * torch.einsum("izk,kj,ji->jiz", a, b, c), y.sum((1, 2))),
    ),
    "scan": (SCAN, lambda: [normal(3, 8, 2)], lambda x: (x.cumsum(1), x.cummax(1).values)),
    "scatter": (
        SCATTER, lambda: [normal(4, 3), integers(4, 6), normal(6, 3)], lambda x, i, v: (x.index_add(0, i, v),)
    ),
    "guarded scatter": (
        GUARDED_SCATTER, lambda: [normal(4), np.array([9, 1, -1, 0, 1, 4]), normal(6)],
        lambda x, i, v: (torch.stack([v[3], v[4], 2 * x[2], 2 * x[3]]),),
    ),
    "gather": (
        GATHER, lambda: [normal(5, 4), integers(5, 3, 4)],
        lambda x, i: (x.gather(0, i), x.diagonal(), x.flip(0), x[:, 1::2].T),
    ),
    "pad": (
        PAD, lambda: [normal(3), normal(2)],
        lambda x, y: (torch.nn.functional.pad(x, (1, 1), value=-1.0), torch.cat([x, y])),
    ),
    "argmax": (ARGMAX, lambda: [integers(5, 4, 9).astype(np.float32)], lambda x: (x.argmax(-1),)),
}  # fmt: skip


@pytest.mark.parametrize("slab", [1 << 22, 24])
@pytest.mark.parametrize("name", CASES)
def test_program(name: str, slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpret, "SLAB", slab)
    monkeypatch.setattr(interpret, "CACHED", slab)
    text, make, reference = CASES[name]
    arrays = make()
    tensors = [torch.from_numpy(a) for a in arrays]
    for y, r in zip(run(text, *arrays), reference(*tensors), strict=True):
        assert y.dtype == r.numpy().dtype
        np.testing.assert_allclose(y, r.numpy(), rtol=1e-5, atol=1e-5, err_msg=f"seed {SEED}")
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    for y, r in zip(run(text, *arrays, exact=True), reference(*wide), strict=True):
        if r.is_floating_point() and name != "layer_norm":  # whose epsilon is an f32
            np.testing.assert_allclose(y, r.numpy(), rtol=1e-13, atol=1e-13, err_msg=f"seed {SEED}")


def test_the_first_of_equal_maxima_and_types() -> None:
    (y,) = run(ARGMAX, np.zeros((4, 9), np.float32))
    assert y.dtype == np.int64 and y.tolist() == [0, 0, 0, 0]


def test_sixteen_bit_storage() -> None:
    text = """
def f(x: bf16[3]):
    with kernel("f"):
        y[i: 3]: bf16 = bf16(f32(x[i]) * 1.01)
    result(y, bf16[3])
"""
    x = np.array([1.0, 2.0, -3.0], np.float32)
    assert np.array_equal(run(text, x)[0], (torch.from_numpy(x) * 1.01).bfloat16().float().numpy())
    assert run(text, x, exact=True)[0].dtype == np.float64
    np.testing.assert_allclose(run(text, x, exact=True)[0], x * 1.01, rtol=1e-7)


def test_index_out_of_bounds_is_an_error_where_it_is_taken() -> None:
    text = """
def f(x: f32[3], i: i64[2]):
    with kernel("f"):
        shifted[a: 2]: f32 = x[i[a]]
    result(shifted, f32[2])
"""
    for bad in (-1, 3):
        with pytest.raises(
            InterpretError, match=f"equation shifted: index out of bounds: .*element {bad} along dimension 0"
        ):
            run(text, normal(3), np.array([0, bad]))
    guarded = text.replace("x[i[a]]", "x[i[a]] if i[a] < 3 else 0.0")
    assert run(guarded, normal(3), np.array([0, 3]))[0][1] == 0
    with pytest.raises(InterpretError, match="element -1"):
        run(guarded, normal(3), np.array([3, -1]))
    with pytest.raises(InterpretError, match="writes element 4"):
        run(
            GUARDED_SCATTER.replace(" & (i[k] < 4)", ""),
            normal(4),
            np.array([9, 1, -1, 0, 1, 4])[3:].repeat(2),
            normal(6),
        )


def test_empty_and_scalar_tensors() -> None:
    text = """
def f(x: f32[4, 0], y: f32[()]):
    with kernel("f"):
        s[i: 4]: f32 = sum(x[i, j] for j in range(0))
        m[()]: f32 = max(x[i, j] for i in range(4) for j in range(0))
        e[i: 0, j: 4]: f32 = exp(x[j, i]) + y[()]
        t[()]: f32 = scatter(sum, y[()], [([], f32(k)) for k in range(4)])
    result(s, f32[4])
    result(m, f32[()])
    result(e, f32[0, 4])
    result(t, f32[()])
"""
    s, m, e, t = run(text, np.zeros((4, 0), np.float32), np.asarray(0.5, np.float32))
    assert s.tolist() == [0] * 4 and float(m) == -np.inf and e.shape == (0, 4) and float(t) == 6.5


def test_symbolic_sizes() -> None:
    text = """
def f(n: size, x: f32[n, 3]):
    with kernel("f"):
        y[j: 3, i: n * 2]: f32 = x[i // 2, j] + f32(n)
    result(y, f32[3, n * 2])
"""
    x = normal(5, 3)
    np.testing.assert_array_equal(run(text, x)[0], x.repeat(2, 0).T + np.float32(5))
    with pytest.raises(InterpretError, match="input x has shape"):
        run(text, normal(5, 4))
