"""Tile IR text in, numbers out: bindings change nothing, tiles are private and undefined until written."""

import numpy as np
import pytest
import torch

from compiler.interpret import scalar
from compiler.interpret import tile as interpret
from compiler.interpret.grid import InterpretError
from compiler.ir import tile, tile_text

SEED = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]
RNG = np.random.default_rng(SEED)
CAPS = [1 << 22, 40, 1]


def run(text: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    program = tile_text.parse(text)
    tile.verify(program)
    assert tile_text.parse(tile_text.show(program)) is program
    return interpret.run(program, arrays)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def close(y: np.ndarray, want: torch.Tensor, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(y, want.double().numpy(), rtol=tol, atol=tol, err_msg=f"seed {SEED}")


SOFTMAX = """
def softmax(x: f32[5, 24], *, y: f32[5, 24]):
    with kernel("softmax", [x, y], writes=[y]):
        for i in blocks(5):
            row = registers(f32[24])
            for j in vector(3, width=8):
                for l in vector(8):
                    row[j * 8 + l] = x[i, j * 8 + l]
            m: f32 = -inf
            for a in vector(24, reduce, width=8):
                m = update(max, row[a])
            s: f32 = 0.0
            for b in vector(24, reduce, width=8):
                e = exp(row[b] - m)
                s += e
            for c in lanes(24, threads=32):
                y[i, c] = exp(row[c] - m) / s
"""
MATMUL = """
def matmul(a: bf16[20, 24], b: bf16[24, 18], *, y: f32[20, 18]):
    with kernel("matmul", [a, b, y], writes=[y]):
        for i in blocks(3):
            for j in blocks(3):
                acc = registers(f32[8, 8])
                for p in lanes(64):
                    acc[p // 8, p % 8] = 0.0
                sa = shared(bf16[8, 16], swizzle=64)
                for k in pipeline(2, reduce, depth=2):
                    copy(sa[0: +8, 0: +16], a[i * 8: +8, k * 16: +16], "tma")
                    sb = shared(bf16[16, 8])
                    copy(sb[0: +16, 0: +8], b[k * 16: +16, j * 8: +8], "cp.async")
                    mma("wgmma", acc[0: +8, 0: +8], sa[0: +8, 0: +16], sb[0: +16, 0: +8], "mk", "kn")
                copy(y[i * 8: +8, j * 8: +8], acc[0: +8, 0: +8], "tma")
"""
FMA = """
def fma(a: f32[9, 7], b: f32[10, 7], *, y: f32[9, 10]):
    with kernel("fma", [a, b, y], writes=[y]):
        for i in blocks(9):
            acc = registers(f32[10])
            for z in vector(10):
                acc[z] = 0.0
            for k in serial(7, reduce):
                for j in vector(10, width=8):
                    acc[j] += a[i, k] * b[j, k]
            for o in vector(10):
                y[i, o] = acc[o]
"""
SCAN = """
def scan(x: f32[4, 9], *, y: f32[4, 9], t: f32[4]):
    with kernel("scan", [x, y, t], writes=[y, t]):
        for i in blocks(4):
            s: f32 = 0.0
            for j in serial(9, scan):
                s += x[i, j]
                if j % 2 == 0:
                    s += 1.0
                y[i, j] = s
            u: f32 = 0.0
            for k in serial(i + 2, reduce):
                if x[i, k] > 0.0:
                    u += x[i, k]
            t[i] = u
"""
SCATTER = """
def scatter(i: i64[3, 8], *, y: i64[4]):
    with kernel("clear", [y], writes=[y]):
        for a in blocks(4):
            y[a] = 0
    with kernel("count", [i, y], writes=[y]):
        for b in serial(3, reduce):
            for c in vector(8, reduce):
                y[i[b, c]] += 1
"""
ATTENTION = """
def attention(q: f32[12, 8], k: f32[16, 8], v: f32[16, 8], *, y: f32[12, 8]):
    with kernel("attention", [q, k, v, y], writes=[y]):
        for i in blocks(3):
            qt = shared(f32[4, 8])
            copy(qt[0: +4, 0: +8], q[i * 4: +4, 0: +8], "plain")
            o = registers(f32[4, 8])
            m = registers(f32[4])
            l = registers(f32[4])
            for r in lanes(4):
                m[r] = -inf
                l[r] = 0.0
                for d in unroll(8):
                    o[r, d] = 0.0
            for t in serial(2, scan):
                s = registers(f32[4, 8])
                for r1 in lanes(4):
                    for c1 in unroll(8):
                        s[r1, c1] = 0.0
                mma("m16n8k8", s[0: +4, 0: +8], qt[0: +4, 0: +8], k[t * 8: +8, 0: +8], "mk", "nk")
                for r2 in warps(4):
                    n: f32 = m[r2]
                    for c2 in unroll(8, reduce):
                        n = update(max, s[r2, c2])
                    scale = exp(m[r2] - n)
                    w: f32 = 0.0
                    for c3 in unroll(8):
                        s[r2, c3] = exp(s[r2, c3] - n)
                    for c4 in unroll(8, reduce):
                        w += s[r2, c4]
                    l[r2] = l[r2] * scale + w
                    m[r2] = n
                    for d2 in unroll(8):
                        o[r2, d2] = o[r2, d2] * scale
                mma("m16n8k8", o[0: +4, 0: +8], s[0: +4, 0: +8], v[t * 8: +8, 0: +8], "mk", "kn")
            for r3 in lanes(4):
                for d3 in vector(8):
                    y[i * 4 + r3, d3] = o[r3, d3] / l[r3]
"""

PARTIAL = """
def partial(a: f32[7, 10], b: f32[10, 5], x: f32[7], *, y: f32[7, 5], z: f32[10]):
    with kernel("partial", [a, b, x, y, z], writes=[y, z]):
        for i in blocks(2):
            acc = registers(f32[4, 8])
            for p in lanes(32):
                acc[p // 8, p % 8] = 0.0
            t = min(4, 7 - i * 4)
            mma("outer", acc[0: +4, 0: +8], a[i * 4: +4, 0: +16], b[0: +16, 0: +8], "mk", "kn", t, 5, 10)
            for q in lanes(20):
                if i * 4 + q // 5 < 7:
                    y[i * 4 + q // 5, q % 5] = acc[q // 5, q % 5]
    with kernel("row", [a, x, z], writes=[z]):
        for r in vector(10):
            z[r] = 0.0
        mma("vector", z[0: +10], x[0: +7], a[0: +7, 0: +10], "k", "kn")
"""


@pytest.fixture(params=CAPS)
def cap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpret, "MAX_POINTS", request.param)


@pytest.mark.usefixtures("cap")
class TestPrograms:
    def test_softmax(self) -> None:
        x = normal(5, 24)
        close(run(SOFTMAX, x)[0], torch.softmax(torch.from_numpy(x), -1))

    def test_matmul_with_ragged_tiles(self) -> None:
        a, b = scalar.round_bf16(normal(20, 24)), scalar.round_bf16(normal(24, 18))
        close(run(MATMUL, a, b)[0], torch.from_numpy(a) @ torch.from_numpy(b))

    def test_partial_tensor_instructions(self) -> None:
        a, b, x = normal(7, 10), normal(10, 5), normal(7)
        y, z = run(PARTIAL, a, b, x)
        close(y, torch.from_numpy(a) @ torch.from_numpy(b))
        close(z, torch.from_numpy(x) @ torch.from_numpy(a))

    def test_accumulation_in_a_tile(self) -> None:
        a, b = normal(9, 7), normal(10, 7)
        close(run(FMA, a, b)[0], torch.from_numpy(a) @ torch.from_numpy(b).T)

    def test_scan_and_loops_whose_extent_varies(self) -> None:
        x = normal(4, 9)
        y, t = run(SCAN, x)
        close(y, (torch.from_numpy(x) + torch.tensor([1.0, 0.0] * 4 + [1.0])).cumsum(1))
        close(t, torch.stack([torch.from_numpy(x[i, : i + 2]).clamp(min=0).sum() for i in range(4)]))

    def test_scatter(self) -> None:
        i = RNG.integers(0, 4, (3, 8))
        assert run(SCATTER, i)[0].tolist() == np.bincount(i.ravel(), minlength=4).tolist()

    def test_online_attention(self) -> None:
        q, k, v = (torch.from_numpy(normal(n, 8)) for n in (12, 16, 16))
        close(run(ATTENTION, q.numpy(), k.numpy(), v.numpy())[0], torch.softmax(q @ k.T, -1) @ v)


def wrong(body: str, allocated: str = "") -> str:
    lines = ["for i in blocks(4):", *(f"    {x}" for x in (allocated, *body.splitlines()) if x)]
    head = 'def f(x: f32[4], *, y: f32[4]):\n    with kernel("bad", [x, y], writes=[y]):\n'
    return head + "".join(f"        {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[i] = x[i + 1]", r"index out of bounds: x\[i \+ 1\] reads element 4 along dimension 0, which has 4"),
        ("y[i - 1] = x[i]", r"index out of bounds: y\[i - 1\] stores to element -1 along dimension 0, which has 4"),
        ("y[i] = t[0]", r"t\[0\] reads an element of t before it is written"),
        ("if i > 0:\n    t[0] = 1.0\ny[i] = t[0]", "reads an element of t before it is written"),
        ("t[1] = 1.0\nt[1] += 1.0\nt[0] += 1.0", "t is accumulated into before its first write"),
        ("if i < 3:\n    y[i] = x[i]", r"element \[3\] of output y was never written"),
        ("t[2] = x[i]", r"t\[2\] stores to element 2 along dimension 0, which has 2"),
    ],
)
@pytest.mark.usefixtures("cap")
def test_what_a_kernel_may_not_do(body: str, message: str) -> None:
    with pytest.raises(InterpretError, match=message):
        run(wrong(body, "t = registers(f32[2])"), normal(4))


MOVED = "s = local(f32[4])\ns[i] = x[i]\ncopy(t[0: +4], s[0: +4], 'plain')\ny[i] = t[%s]"


@pytest.mark.usefixtures("cap")
def test_what_was_not_written_may_be_copied_but_not_used() -> None:
    x = normal(4)
    assert np.array_equal(run(wrong(MOVED % "i", "t = local(f32[4])"), x)[0], x)
    with pytest.raises(InterpretError, match=r"t\[3 - i\] reads an element of t before it is written"):
        run(wrong(MOVED % "3 - i", "t = local(f32[4])"), x)
    with pytest.raises(InterpretError, match="reads an element of t before it is written"):  # what was there is lost
        run(wrong("for j in serial(4):\n    t[j] = 1.0\n" + MOVED % "3 - i", "t = local(f32[4])"), x)


@pytest.mark.usefixtures("cap")
def test_scalars_and_empty_buffers() -> None:
    text = """
def f(x: i32[3], e: f32[0], *, y: i32[()], z: f32[0]):
    with kernel("f", [x, e, y, z], writes=[y, z]):
        s: i32 = i32(0)
        for i in vector(3, reduce):
            s += x[i]
        y[()] = s
        for j in blocks(0):
            z[j] = e[j]
"""
    y, z = run(text, np.array([1, 2, 3], np.int32), np.zeros(0, np.float32))
    assert y.shape == () and int(y) == 6 and z.shape == (0,)


@pytest.mark.usefixtures("cap")
def test_a_name_keeps_its_value() -> None:
    body = "t[0] = x[i]\nold = t[0]\nt[0] = 7.0\ny[i] = old + t[0]"
    (y,) = run(wrong(body, "t = local(f32[1])"), np.arange(4, dtype=np.float32))
    assert y.tolist() == [7, 8, 9, 10]


@pytest.mark.usefixtures("cap")
def test_guards_keep_loads_in_bounds() -> None:
    (y,) = run(wrong("y[i] = x[i + 1] if i < 3 else 0.0"), np.arange(4, dtype=np.float32))
    assert y.tolist() == [1, 2, 3, 0]
